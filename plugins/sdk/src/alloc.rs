//! A guest's allocator: that of Rust's standard library (dlmalloc), but for two things.
//!
//! Its first region, of some 64 KiB, is in the component's own memory. The standard library's asks the host for them at the
//! first allocation, and for a small guest, which needs no more, most of what it costs to make and drop it is that its memory
//! grows and is cut back. It is handed out in two parts, the small last one first, so that what a small guest keeps is on one
//! page of the host's with all else that it writes there (`docs/decisions/0021`).
//!
//! And what a call allocates is mostly gone when the call ends: each string that the host hands over, and each that is
//! handed back. Once the plugin is configured such things are laid end to end in a region of their own, `scratch.rs`, which
//! begins anew whenever nothing lives in it; dlmalloc has what finds no room there (`docs/decisions/0026`).
//!
//! Invariant: each part of a region is handed out once. Beside its tests and the bindings this is the one file of the SDK with
//! `unsafe`: a guest reaches nothing but its own memory, whatever is wrong here.
#![allow(unsafe_code)]

// By their paths: the guests of the tests take this file without the SDK.
#[path = "alloc/scratch.rs"]
mod scratch;
#[cfg(test)]
#[path = "alloc/tests.rs"]
mod tests;

use dlmalloc::{Allocator, Dlmalloc};
use scratch::Scratch;
use std::alloc::{GlobalAlloc, Layout};
use std::cell::UnsafeCell;
use std::ops::Range;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

/// What dlmalloc asks for at least, and a page of WebAssembly.
const WASM_PAGE: usize = 64 << 10;
/// A page of the host's: what an instance has written to is counted in these.
const HOST_PAGE: usize = 4 << 10;
/// What a small guest keeps, and dlmalloc's own words beside it.
const SMALL: usize = 1 << 10;
/// dlmalloc's region, of which the last part is on one page of the host's.
const REGION_BYTES: usize = WASM_PAGE + SMALL + HOST_PAGE;

/// The scratch, and behind it dlmalloc's region. The linker puts it between statics that are written at calls as well: a call
/// of which little is laid begins to write on the page of those before, and what the region begins with is on that of those
/// behind. So an instance has as few pages of its own as can be (`docs/decisions/0021`).
#[repr(C, align(16))]
pub(crate) struct Area {
    scratch: [u8; scratch::BYTES],
    lasting: [u8; REGION_BYTES],
}

impl Area {
    const fn new() -> Self {
        Self { scratch: [0; scratch::BYTES], lasting: [0; REGION_BYTES] }
    }
}

#[cfg(target_arch = "wasm32")]
static mut AREA: Area = Area::new();

#[cfg(target_arch = "wasm32")]
#[global_allocator]
static ALLOCATOR: Heap = Heap::over(&raw mut AREA, grow);

/// From now on what is allocated is thought to live for a call: the plugin is configured.
#[cfg(target_arch = "wasm32")]
pub(crate) fn calls_begin() {
    ALLOCATOR.calls_begin();
}

/// Where the host puts each string and list that it hands over: the canonical ABI's allocator. It stands in for wit-bindgen's,
/// which the linker takes only where there is no other, and which reaches [`ALLOCATOR`] through three functions more at each call.
///
/// # Safety
/// As for [`GlobalAlloc::realloc`], but that nothing may become something, and something nothing.
#[cfg(target_arch = "wasm32")]
#[unsafe(no_mangle)]
unsafe extern "C" fn cabi_realloc(place: *mut u8, from: usize, align: usize, to: usize) -> *mut u8 {
    // SAFETY: the host names an alignment of its types, and what it was given before.
    let layout = |bytes| unsafe { Layout::from_size_align_unchecked(bytes, align) };
    if to == 0 {
        if from > 0 {
            // SAFETY: it was given that place, for so many bytes.
            unsafe { ALLOCATOR.dealloc(place, layout(from)) };
        }
        // Nobody looks at what is at such a place.
        return ptr::without_provenance_mut(align);
    }
    // SAFETY: the size is not zero, and the place is as above.
    let place =
        unsafe { if from == 0 { ALLOCATOR.alloc(layout(to)) } else { ALLOCATOR.realloc(place, layout(from), to) } };
    if place.is_null() {
        // The host has denied the memory, and knows why the guest ends here.
        core::arch::wasm32::unreachable();
    }
    place
}

/// Memory behind the component's own: where it begins, and how large it is; null for none.
#[cfg(target_arch = "wasm32")]
fn grow(bytes: usize) -> (*mut u8, usize) {
    let pages = bytes.div_ceil(WASM_PAGE);
    let before = core::arch::wasm32::memory_grow::<0>(pages);
    if before == usize::MAX {
        return (ptr::null_mut(), 0);
    }
    let (base, bytes) = (before * WASM_PAGE, pages * WASM_PAGE);
    // No object ends at the end of the address space: a pointer behind it would be null.
    let at_the_end = base.wrapping_add(bytes) == 0;
    (ptr::with_exposed_provenance_mut(base), if at_the_end { bytes - 16 } else { bytes })
}

/// An allocator.
pub(crate) struct Heap(UnsafeCell<Parts>);

struct Parts {
    area: *mut u8,
    scratch: Scratch,
    lasting: Dlmalloc<Memory>,
}

/// Where dlmalloc's memory comes from.
struct Memory {
    /// Its region.
    region: AtomicPtr<u8>,
    /// Bytes at the region's beginning that are not handed out.
    left: AtomicUsize,
    behind: fn(usize) -> (*mut u8, usize),
}

impl Memory {
    /// The region's last part: what is on the last page of which the region has as much as a small guest needs.
    fn last_part(region: *mut u8) -> Range<usize> {
        let on_last_page = region.addr().wrapping_add(REGION_BYTES) % HOST_PAGE;
        if on_last_page < SMALL {
            let end = REGION_BYTES - on_last_page;
            end - HOST_PAGE..end
        } else {
            REGION_BYTES - on_last_page..REGION_BYTES
        }
    }
}

impl Heap {
    const fn over(area: *mut Area, behind: fn(usize) -> (*mut u8, usize)) -> Self {
        let area: *mut u8 = area.cast();
        let region = AtomicPtr::new(area.wrapping_add(scratch::BYTES));
        let lasting = Dlmalloc::new_with_allocator(Memory { region, left: AtomicUsize::new(REGION_BYTES), behind });
        Self(UnsafeCell::new(Parts { area, scratch: Scratch::closed(), lasting }))
    }

    fn calls_begin(&self) {
        // SAFETY: as for the allocator's own functions.
        let parts = unsafe { &mut *self.0.get() };
        parts.scratch.open(parts.area);
    }
}

impl Parts {
    /// Asks dlmalloc, and once more where it has nothing: the region's last part, which it is given first, may have been too
    /// small.
    fn lasting(&mut self, ask: impl Fn(&mut Dlmalloc<Memory>) -> *mut u8) -> *mut u8 {
        let place = ask(&mut self.lasting);
        if place.is_null() { ask(&mut self.lasting) } else { place }
    }
}

// SAFETY: a guest has one thread, and nothing that is called here allocates, so no two uses of the cell overlap.
unsafe impl Sync for Heap {}

// SAFETY: dlmalloc keeps `GlobalAlloc`'s contract, which the callers keep too; the cell is used by one call at a time.
// An object in the scratch region shares no byte with another: each begins where the last of those that live ends, or
// behind it. Its place says where an object came from.
unsafe impl GlobalAlloc for Heap {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: one thread, and nothing below allocates: no other call is under way.
        let parts = unsafe { &mut *self.0.get() };
        let place = parts.scratch.take(layout);
        if !place.is_null() {
            return place;
        }
        // SAFETY: dlmalloc asks for no more than `GlobalAlloc` does: a size that is not zero, an alignment of two's powers.
        parts.lasting(|dlmalloc| unsafe { dlmalloc.malloc(layout.size(), layout.align()) })
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as in `alloc`.
        let parts = unsafe { &mut *self.0.get() };
        let place = parts.scratch.take(layout);
        if !place.is_null() {
            // SAFETY: the scratch region gave so many bytes, and nobody has them yet.
            unsafe { place.write_bytes(0, layout.size()) };
            return place;
        }
        // SAFETY: as for `malloc` in `alloc`.
        parts.lasting(|dlmalloc| unsafe { dlmalloc.calloc(layout.size(), layout.align()) })
    }

    #[inline]
    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        // SAFETY: as in `alloc`.
        let parts = unsafe { &mut *self.0.get() };
        match parts.scratch.offset_of(place) {
            Some(offset) => parts.scratch.give_back(offset, layout.size()),
            // SAFETY: it is not in the scratch region, so dlmalloc gave it, for the layout that the caller names again.
            None => unsafe { parts.lasting.free(place, layout.size(), layout.align()) },
        }
    }

    unsafe fn realloc(&self, place: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: as in `alloc`; it is not used any more where `self.alloc` takes the parts below.
        let parts = unsafe { &mut *self.0.get() };
        let Some(offset) = parts.scratch.offset_of(place) else {
            // SAFETY: as in `dealloc`, and the caller's new size is not zero. Where there is no room the old place stays as it was.
            return parts.lasting(|dlmalloc| unsafe { dlmalloc.realloc(place, layout.size(), layout.align(), size) });
        };
        if parts.scratch.resize(offset, layout.size(), size) {
            return place;
        }
        // SAFETY: the size is one that the caller may ask for, with the alignment that it had.
        let moved = unsafe { self.alloc(Layout::from_size_align_unchecked(size, layout.align())) };
        if !moved.is_null() {
            // SAFETY: both have at least so many bytes and share none, for the old one lives until it is given back here, once.
            unsafe {
                ptr::copy_nonoverlapping(place, moved, layout.size().min(size));
                self.dealloc(place, layout);
            }
        }
        moved
    }
}

// SAFETY: what is handed out is nobody else's: both parts of the region once, then what `behind` gives; all of it begins as
// zeros, and nothing is taken back. It is less than was asked for where dlmalloc has nothing yet, and at the end of the address
// space: places where dlmalloc 0.2.11, of which no other version is taken, looks whether it is enough. What it joins to the
// beginning of what it has, which is the region's first part, is as much as was asked for.
unsafe impl Allocator for Memory {
    fn alloc(&self, bytes: usize) -> (*mut u8, usize, u32) {
        let (region, left) = (self.region.load(Ordering::Relaxed), self.left.load(Ordering::Relaxed));
        let part = match left {
            REGION_BYTES => Self::last_part(region),
            _ if bytes <= left => 0..left,
            _ => {
                let (base, bytes) = (self.behind)(bytes);
                return (base, bytes, 0);
            }
        };
        self.left.store(part.start, Ordering::Relaxed);
        (region.wrapping_add(part.start), part.len(), 0)
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
        WASM_PAGE
    }
}
