//! A guest's allocator: that of Rust's standard library (dlmalloc), but that its first 64 KiB are in the component's own
//! memory. The standard library's asks the host for them at the first allocation, and for a small guest, which needs no
//! more, most of what it costs to make and drop it is that its memory grows and is cut back (`docs/decisions/0021`).
//!
//! Invariant: the region is handed out once. This is the one file of the SDK with `unsafe` of its own: a guest reaches
//! nothing but its own memory, whatever is wrong here.
#![allow(unsafe_code)]

use dlmalloc::{Allocator, Dlmalloc};
use std::alloc::{GlobalAlloc, Layout};
use std::cell::UnsafeCell;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

/// What dlmalloc asks for at least, and a page of WebAssembly.
const REGION_BYTES: usize = 64 << 10;

#[repr(C, align(16))]
pub(crate) struct Region([u8; REGION_BYTES]);

#[cfg(target_arch = "wasm32")]
static mut REGION: Region = Region([0; REGION_BYTES]);

#[cfg(target_arch = "wasm32")]
#[global_allocator]
static ALLOCATOR: Heap = Heap::over(&raw mut REGION, grow);

/// Memory behind the component's own: where it begins, and how large it is; null for none.
#[cfg(target_arch = "wasm32")]
fn grow(bytes: usize) -> (*mut u8, usize) {
    let pages = bytes.div_ceil(REGION_BYTES);
    let before = core::arch::wasm32::memory_grow::<0>(pages);
    if before == usize::MAX {
        return (ptr::null_mut(), 0);
    }
    let (base, bytes) = (before * REGION_BYTES, pages * REGION_BYTES);
    // No object ends at the end of the address space: a pointer behind it would be null.
    let at_the_end = base.wrapping_add(bytes) == 0;
    (ptr::with_exposed_provenance_mut(base), if at_the_end { bytes - 16 } else { bytes })
}

/// An allocator.
pub(crate) struct Heap(UnsafeCell<Dlmalloc<Memory>>);

/// Where an allocator's memory comes from.
struct Memory {
    /// The region, until it is handed out.
    first: AtomicPtr<u8>,
    behind: fn(usize) -> (*mut u8, usize),
}

impl Heap {
    const fn over(region: *mut Region, behind: fn(usize) -> (*mut u8, usize)) -> Self {
        let first = AtomicPtr::new(region.cast());
        Self(UnsafeCell::new(Dlmalloc::new_with_allocator(Memory { first, behind })))
    }
}

// SAFETY: a guest has one thread, and nothing that dlmalloc calls allocates, so no two uses of the cell overlap.
unsafe impl Sync for Heap {}

// SAFETY: dlmalloc keeps `GlobalAlloc`'s contract, which the callers keep too; the cell is used by one call at a time.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        unsafe { (*self.0.get()).malloc(layout.size(), layout.align()) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        unsafe { (*self.0.get()).calloc(layout.size(), layout.align()) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        unsafe { (*self.0.get()).free(place, layout.size(), layout.align()) }
    }

    unsafe fn realloc(&self, place: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        unsafe { (*self.0.get()).realloc(place, layout.size(), layout.align(), size) }
    }
}

// SAFETY: what is handed out is nobody else's: the region once, then what `behind` gives; all of it begins as zeros, and
// nothing is taken back.
unsafe impl Allocator for Memory {
    fn alloc(&self, bytes: usize) -> (*mut u8, usize, u32) {
        if bytes <= REGION_BYTES {
            let first = self.first.swap(ptr::null_mut(), Ordering::Relaxed);
            if !first.is_null() {
                return (first, REGION_BYTES, 0);
            }
        }
        let (base, bytes) = (self.behind)(bytes);
        (base, bytes, 0)
    }

    fn remap(&self, _: *mut u8, _: usize, _: usize, _: bool) -> *mut u8 {
        ptr::null_mut()
    }

    fn free_part(&self, _: *mut u8, _: usize, _: usize) -> bool {
        false
    }

    fn free(&self, _: *mut u8, _: usize) -> bool {
        false
    }

    fn can_release_part(&self, _: u32) -> bool {
        false
    }

    fn allocates_zeros(&self) -> bool {
        true
    }

    fn page_size(&self) -> usize {
        REGION_BYTES
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::alloc::System;
    use std::cell::Cell;
    use std::ops::Range;

    thread_local! {
        /// How often this thread's heaps went behind their regions.
        static GROWN: Cell<usize> = const { Cell::new(0) };
    }

    /// As `grow`, of this machine's memory.
    fn leak(bytes: usize) -> (*mut u8, usize) {
        GROWN.set(GROWN.get() + 1);
        let layout = Layout::from_size_align(bytes, 16).unwrap();
        (unsafe { System.alloc_zeroed(layout) }, bytes)
    }

    fn heap() -> (Heap, Range<usize>) {
        let region: *mut Region = Box::leak(Box::new(Region([0; REGION_BYTES])));
        (Heap::over(region, leak), region.addr()..region.addr() + REGION_BYTES)
    }

    /// Something that lives: where, and what its bytes are.
    struct Live {
        place: *mut u8,
        layout: Layout,
        mark: u8,
    }

    impl Live {
        fn write(place: *mut u8, layout: Layout, mark: u8) -> Self {
            assert!(!place.is_null() && place.addr().is_multiple_of(layout.align()), "{place:?} for {layout:?}");
            unsafe { place.write_bytes(mark, layout.size()) };
            Self { place, layout, mark }
        }

        fn range(&self) -> Range<usize> {
            self.place.addr()..self.place.addr() + self.layout.size()
        }

        /// Whether its first bytes are still as they were written.
        fn keeps(&self, bytes: usize) -> bool {
            let kept = unsafe { std::slice::from_raw_parts(self.place, bytes.min(self.layout.size())) };
            kept.iter().all(|byte| *byte == self.mark)
        }
    }

    #[derive(Clone, Copy, Debug)]
    enum Act {
        Make { zeroed: bool },
        Resize,
        Drop,
    }

    fn acts() -> impl Strategy<Value = Vec<(Act, usize, usize, u32)>> {
        let act = prop_oneof![
            any::<bool>().prop_map(|zeroed| Act::Make { zeroed }),
            any::<bool>().prop_map(|zeroed| Act::Make { zeroed }),
            Just(Act::Resize),
            Just(Act::Drop)
        ];
        let size = prop_oneof![1usize..200, 1usize..5_000, 60_000usize..140_000];
        proptest::collection::vec((act, any::<usize>(), size, 0u32..7), 1..120)
    }

    proptest! {
        #[test]
        fn what_lives_is_aligned_and_shares_no_byte(acts in acts()) {
            let (heap, _) = heap();
            let mut live: Vec<Live> = Vec::new();
            for (n, (act, which, size, align)) in acts.into_iter().enumerate() {
                let layout = Layout::from_size_align(size, 1 << align).unwrap();
                let mark = n as u8 | 1;
                match act {
                    Act::Make { zeroed } => {
                        let place = unsafe { if zeroed { heap.alloc_zeroed(layout) } else { heap.alloc(layout) } };
                        if zeroed {
                            prop_assert!(Live { place, layout, mark: 0 }.keeps(size), "not all of it is zero");
                        }
                        live.push(Live::write(place, layout, mark));
                    }
                    Act::Resize if !live.is_empty() => {
                        let old = live.swap_remove(which % live.len());
                        let place = unsafe { heap.realloc(old.place, old.layout, size) };
                        let layout = Layout::from_size_align(size, old.layout.align()).unwrap();
                        let moved = Live { place, layout, mark: old.mark };
                        prop_assert!(moved.keeps(old.layout.size()), "a resize lost something");
                        live.push(Live::write(place, layout, mark));
                    }
                    Act::Drop if !live.is_empty() => {
                        let old = live.swap_remove(which % live.len());
                        prop_assert!(old.keeps(old.layout.size()), "somebody else wrote there");
                        unsafe { heap.dealloc(old.place, old.layout) };
                    }
                    Act::Resize | Act::Drop => {}
                }
                let mut ranges: Vec<Range<usize>> = live.iter().map(Live::range).collect();
                ranges.sort_by_key(|range| range.start);
                prop_assert!(ranges.windows(2).all(|pair| pair[0].end <= pair[1].start), "two share a byte");
            }
        }
    }

    #[test]
    fn a_small_guest_needs_the_region_only_however_often_it_is_used_again() {
        let (heap, region) = heap();
        let before = GROWN.get();
        for n in 0..10_000 {
            let layout = Layout::from_size_align(20_000 + n, 8).unwrap();
            let (one, other) = unsafe { (heap.alloc(layout), heap.alloc(layout)) };
            assert!(region.contains(&one.addr()) && region.contains(&other.addr()));
            unsafe {
                heap.dealloc(one, layout);
                heap.dealloc(other, layout);
            }
        }
        assert_eq!(GROWN.get(), before);
    }

    #[test]
    fn what_is_larger_comes_from_behind_and_leaves_the_region_to_others() {
        let (heap, region) = heap();
        let before = GROWN.get();
        let large = unsafe { heap.alloc(Layout::from_size_align(REGION_BYTES, 1).unwrap()) };
        assert!(!large.is_null() && !region.contains(&large.addr()));
        assert_eq!(GROWN.get(), before + 1);
        let layout = Layout::from_size_align(60_000, 1).unwrap();
        let places = unsafe { [heap.alloc(layout), heap.alloc(layout)] };
        assert!(places.iter().any(|place| region.contains(&place.addr())));
        assert_eq!(GROWN.get(), before + 1);
    }
}
