//! Keeps as many MiB of memory as the prompt says, for as long as it lives. The memory limit must end it.

use std::cell::RefCell;

thread_local! {
    static HOARD: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

kit::misbehave!("hoards", |text| {
    let mib: usize = text.parse().unwrap_or(0);
    for _ in 0..mib {
        HOARD.with_borrow_mut(|hoard| hoard.push(vec![1; 1 << 20]));
    }
});
