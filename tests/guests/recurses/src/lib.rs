//! Recurses without end. The guest's own stack must end it, and never the host's.

#[expect(unconditional_recursion, reason = "that is what this guest is for")]
fn deeper(depth: u64) -> u64 {
    let frame = std::hint::black_box([depth; 32]);
    std::hint::black_box(deeper(depth + 1) + frame[(depth % 32) as usize])
}

kit::misbehave!("recurses", |_| {
    std::hint::black_box(deeper(0));
});
