//! Works for as many milliseconds as the prompt says, by the clock; then allows it. Within the limits it must get
//! its result, and others must get theirs meanwhile.

kit::misbehave!("dawdles", |text| {
    let end = tidegate::plugin::clock::monotonic_ms() + text.parse::<u64>().unwrap_or(0);
    while tidegate::plugin::clock::monotonic_ms() < end {
        std::hint::spin_loop();
    }
});
