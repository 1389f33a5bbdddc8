//! No two objects share a byte, whatever is asked for when.

use super::scratch::BYTES;
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
    // SAFETY: nobody grows by nothing.
    (unsafe { System.alloc_zeroed(layout) }, bytes)
}

/// Its scratch is not zero: what is asked for as zeros is to be made so.
fn area() -> *mut Area {
    let mut area = Box::new(Area::new());
    area.scratch.fill(0xaa);
    Box::leak(area)
}

/// With dlmalloc's region.
fn heap() -> (Heap, Range<usize>) {
    let area = area();
    let begin = area.addr() + BYTES;
    (Heap::over(area, leak), begin..begin + REGION_BYTES)
}

/// With the scratch.
fn configured() -> (Heap, Range<usize>) {
    let area = area();
    let heap = Heap::over(area, leak);
    heap.calls_begin();
    (heap, area.addr()..area.addr() + BYTES)
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
        // SAFETY: a heap has just given so many bytes there.
        unsafe { place.write_bytes(mark, layout.size()) };
        Self { place, layout, mark }
    }

    fn range(&self) -> Range<usize> {
        self.place.addr()..self.place.addr() + self.layout.size()
    }

    /// Whether its first bytes are still as they were written.
    fn keeps(&self, bytes: usize) -> bool {
        // SAFETY: it lives, and so many of its bytes were written: by `write`, or by the heap as zeros.
        let kept = unsafe { std::slice::from_raw_parts(self.place, bytes.min(self.layout.size())) };
        kept.iter().all(|byte| *byte == self.mark)
    }
}

fn take(heap: &Heap, layout: Layout) -> *mut u8 {
    // SAFETY: no test asks for nothing.
    unsafe { heap.alloc(layout) }
}

/// What `take` gave for `layout`, once.
fn give_back(heap: &Heap, place: *mut u8, layout: Layout) {
    // SAFETY: as said above, which each test does.
    unsafe { heap.dealloc(place, layout) };
}

/// What `take` gave for `layout`, to be used no more.
fn resize(heap: &Heap, place: *mut u8, layout: Layout, size: usize) -> *mut u8 {
    // SAFETY: as said above, and no test asks for nothing.
    unsafe { heap.realloc(place, layout, size) }
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
    fn what_lives_is_aligned_and_shares_no_byte(acts in acts(), configured_at in 0usize..60) {
        let (heap, _) = heap();
        let mut live: Vec<Live> = Vec::new();
        for (n, (act, which, size, align)) in acts.into_iter().enumerate() {
            if n == configured_at {
                heap.calls_begin();
            }
            let layout = Layout::from_size_align(size, 1 << align).unwrap();
            let mark = n as u8 | 1;
            match act {
                Act::Make { zeroed } => {
                    // SAFETY: as for `take`.
                    let place = if zeroed { unsafe { heap.alloc_zeroed(layout) } } else { take(&heap, layout) };
                    if zeroed {
                        prop_assert!(Live { place, layout, mark: 0 }.keeps(size), "not all of it is zero");
                    }
                    live.push(Live::write(place, layout, mark));
                }
                Act::Resize if !live.is_empty() => {
                    let old = live.swap_remove(which % live.len());
                    let place = resize(&heap, old.place, old.layout, size);
                    let layout = Layout::from_size_align(size, old.layout.align()).unwrap();
                    let moved = Live { place, layout, mark: old.mark };
                    prop_assert!(moved.keeps(old.layout.size()), "a resize lost something");
                    live.push(Live::write(place, layout, mark));
                }
                Act::Drop if !live.is_empty() => {
                    let old = live.swap_remove(which % live.len());
                    prop_assert!(old.keeps(old.layout.size()), "somebody else wrote there");
                    give_back(&heap, old.place, old.layout);
                }
                Act::Resize | Act::Drop => {}
            }
            let mut ranges: Vec<Range<usize>> = live.iter().map(Live::range).collect();
            ranges.sort_by_key(|range| range.start);
            prop_assert!(ranges.windows(2).all(|pair| pair[0].end <= pair[1].start), "two share a byte");
        }
    }
}

/// An area whose end is so far from the border of a page.
fn area_that_ends(on_last_page: usize) -> *mut Area {
    let bytes = size_of::<Area>();
    let layout = Layout::from_size_align(bytes + 2 * HOST_PAGE, HOST_PAGE).unwrap();
    // SAFETY: it has a size.
    let place = unsafe { System.alloc_zeroed(layout) };
    let gap = (on_last_page + HOST_PAGE - (place.addr() + bytes) % HOST_PAGE) % HOST_PAGE;
    place.wrapping_add(gap).cast()
}

/// What is written lies at both ends of the area, at its end on one page.
#[test]
fn what_calls_write_begins_the_area_and_what_is_kept_ends_it() {
    for on_last_page in [0, 16, SMALL - 16, SMALL, 2 * SMALL, HOST_PAGE - 16] {
        let area = area_that_ends(on_last_page);
        let heap = Heap::over(area, leak);
        let kept = [100, 300, 200].map(|size| (take(&heap, layout(size)), layout(size)));
        give_back(&heap, kept[1].0, kept[1].1);
        heap.calls_begin();
        let call = take(&heap, layout(100));
        assert_eq!(call.addr(), area.addr());
        // SAFETY: what was handed out of it is not used any more.
        let region = unsafe { &(*area).lasting };
        let page = kept[0].0.addr() / HOST_PAGE;
        let is_written = |(at, byte): (usize, &u8)| (*byte != 0).then_some((region.as_ptr().addr() + at) / HOST_PAGE);
        assert!(region.iter().enumerate().filter_map(is_written).all(|written| written == page), "{on_last_page}");
        assert!(kept.iter().all(|(place, _)| place.addr() / HOST_PAGE == page), "{on_last_page}");
        let last = (area.addr() + size_of::<Area>() - 1) / HOST_PAGE;
        assert_eq!(
            page == last,
            on_last_page == 0 || on_last_page >= SMALL,
            "{on_last_page}: it is the last where it can be"
        );
    }
}

/// The whole region is used, whatever is asked for first.
#[test]
fn what_is_too_large_for_the_last_part_has_the_rest() {
    for size in [SMALL, HOST_PAGE, 3 * HOST_PAGE, WASM_PAGE - 256] {
        let (heap, region) = heap();
        let before = GROWN.get();
        for zeroed in [false, true] {
            // SAFETY: as for `take`.
            let one = if zeroed { unsafe { heap.alloc_zeroed(layout(size)) } } else { take(&heap, layout(size)) };
            assert!(region.contains(&one.addr()), "{size}");
            let one = resize(&heap, one, layout(size), size + 8);
            assert!(region.contains(&one.addr()), "{size}");
            give_back(&heap, one, layout(size + 8));
        }
        assert_eq!(GROWN.get(), before, "{size}");
    }
}

#[test]
fn a_small_guest_needs_the_region_only_however_often_it_is_used_again() {
    let (heap, region) = heap();
    let before = GROWN.get();
    for n in 0..10_000 {
        let layout = Layout::from_size_align(20_000 + n, 8).unwrap();
        let (one, other) = (take(&heap, layout), take(&heap, layout));
        assert!(region.contains(&one.addr()) && region.contains(&other.addr()));
        give_back(&heap, one, layout);
        give_back(&heap, other, layout);
    }
    assert_eq!(GROWN.get(), before);
}

#[test]
fn what_is_larger_comes_from_behind_and_leaves_the_region_to_others() {
    let (heap, region) = heap();
    let before = GROWN.get();
    let large = take(&heap, Layout::from_size_align(REGION_BYTES, 1).unwrap());
    assert!(!large.is_null() && !region.contains(&large.addr()));
    assert_eq!(GROWN.get(), before + 1);
    let layout = Layout::from_size_align(60_000, 1).unwrap();
    let places = [take(&heap, layout), take(&heap, layout)];
    assert!(places.iter().any(|place| region.contains(&place.addr())));
    assert_eq!(GROWN.get(), before + 1);
}

fn layout(size: usize) -> Layout {
    Layout::from_size_align(size, 8).unwrap()
}

#[test]
fn what_lives_for_a_call_is_laid_end_to_end_and_begins_anew_with_the_next() {
    let (heap, scratch) = configured();
    let mut first = None;
    for _ in 0..1_000 {
        let places = [24, 100, 4_096].map(|size| (take(&heap, layout(size)), layout(size)));
        assert!(places.iter().all(|(place, _)| scratch.contains(&place.addr())));
        assert_eq!(*first.get_or_insert(places[0].0), places[0].0, "a call begins where the one before began");
        assert_eq!(places[2].0.addr() - places[0].0.addr(), 128, "24 and 100 bytes, and 4 for the alignment");
        // Not in the order in which they came.
        for (place, layout) in [places[1], places[0], places[2]] {
            give_back(&heap, place, layout);
        }
    }
}

#[test]
fn what_grows_at_the_end_stays_where_it_is() {
    let (heap, scratch) = configured();
    let first = take(&heap, layout(8));
    let last = take(&heap, layout(8));
    assert_eq!(resize(&heap, last, layout(8), 5_000), last);
    let moved = resize(&heap, first, layout(8), 100);
    assert!(moved.addr() == last.addr() + 5_000, "behind the last");
    let outside = resize(&heap, moved, layout(100), BYTES);
    assert!(!outside.is_null() && !scratch.contains(&outside.addr()), "there is no room");
}

/// Where objects are given back last in, first out; `scratch.rs` says what becomes of others.
#[test]
fn what_a_call_leaves_behind_takes_room_from_calls_and_no_more() {
    let (heap, scratch) = configured();
    let kept = take(&heap, layout(BYTES / 2));
    for _ in 0..100 {
        let place = take(&heap, layout(BYTES / 2));
        assert!(scratch.contains(&place.addr()), "the last one's room is free again");
        let none = take(&heap, layout(64));
        assert!(!scratch.contains(&none.addr()));
        give_back(&heap, none, layout(64));
        give_back(&heap, place, layout(BYTES / 2));
    }
    give_back(&heap, kept, layout(BYTES / 2));
    assert_eq!(take(&heap, layout(BYTES)), kept, "all of it is free");
}
