//! Where what lives for a call is laid. Addresses only: nothing here reads or writes what is there.
//!
//! It serves plugins that keep nothing of a call in their memory. What is kept all the same, such as an index that a first
//! call builds, is given back late or never, so that the region does not begin anew: beside it each object that is not
//! given back last in, first out loses its room, until there is none and dlmalloc has all objects, as without a region.
//! What `configure` builds is dlmalloc's from the beginning, and costs no room.

use std::alloc::Layout;
use std::ptr;

/// More than the calls of most stages need: a prompt of 4 KB and what is said about it.
pub(super) const BYTES: usize = 16 << 10;
/// What objects are aligned to here, at most.
const ALIGN: usize = 16;

/// Objects laid end to end. Only the last one's place is given back alone; when none lives, all are.
pub(super) struct Scratch {
    region: *mut u8,
    /// Bytes that may be used: none before the plugin is configured.
    room: usize,
    /// Where the next object may begin.
    next: usize,
    live: usize,
}

impl Scratch {
    /// Without a region. No object is at the beginning of memory, where it seems to be.
    pub(super) const fn closed() -> Self {
        Self { region: ptr::null_mut(), room: 0, next: 0, live: 0 }
    }

    /// From now on there is room, in a region of [`BYTES`] that is aligned to 16.
    pub(super) fn open(&mut self, region: *mut u8) {
        (self.region, self.room) = (region, BYTES);
    }

    /// A place for an object, null where there is no room.
    #[inline]
    pub(super) fn take(&mut self, layout: Layout) -> *mut u8 {
        // An alignment is a power of two: no division.
        let begin = (self.next + (layout.align() - 1)) & !(layout.align() - 1);
        if layout.align() > ALIGN || layout.size() > self.room.saturating_sub(begin) {
            return ptr::null_mut();
        }
        self.next = begin + layout.size();
        self.live += 1;
        self.region.wrapping_add(begin)
    }

    /// Where in the region an object of dlmalloc's or of its own is.
    #[inline]
    pub(super) fn offset_of(&self, place: *mut u8) -> Option<usize> {
        let offset = place.addr().wrapping_sub(self.region.addr());
        (offset < BYTES).then_some(offset)
    }

    #[inline]
    pub(super) fn give_back(&mut self, offset: usize, size: usize) {
        self.live -= 1;
        if self.live == 0 {
            self.next = 0;
        } else if offset + size == self.next {
            self.next = offset;
        }
    }

    /// Makes the last object larger or smaller where it is.
    pub(super) fn resize(&mut self, offset: usize, from: usize, to: usize) -> bool {
        let may = offset + from == self.next && to <= self.room.saturating_sub(offset);
        if may {
            self.next = offset + to;
        }
        may
    }
}
