//! Panics when the prompt is `panic`; else allows it.

kit::misbehave!("panics", |text| assert!(text != "panic", "as the test asked"));
