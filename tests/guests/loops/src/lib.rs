//! Never answers when the prompt is `loop`; else allows it. The CPU limit must end it.

kit::misbehave!("loops", |text| {
    if text == "loop" {
        let mut count = 0u64;
        loop {
            count = std::hint::black_box(count.wrapping_add(1));
        }
    }
});
