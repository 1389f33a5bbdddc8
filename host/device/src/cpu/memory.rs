//! Memory that the kernels read and write: anonymous maps in pages of 2 MB, zeroed, asked for once at load.
//!
//! Weights are never computed from a mapped file: 4 KB pages cost 14-40 % of decode, and a page that the system
//! dropped would be read again in the middle of a step.

use crate::executor::DeviceError;
use memmap2::{MmapMut, MmapOptions};
use std::ptr::NonNull;

const HUGE_PAGE: usize = 2 << 20;
/// Bytes behind the end that may be read or prefetched; their value never matters.
const SLACK: usize = 4096;

/// A zeroed map of at least `len` bytes. Shared by threads that write disjoint parts through its pointer.
#[derive(Debug)]
pub(super) struct Memory {
    /// Owns the pages; only ever touched through `start`.
    _map: MmapMut,
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: `Memory` only hands out a raw pointer; whoever dereferences it answers for races.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// Asks the system for `len` bytes for `what`.
    pub(super) fn zeroed(len: usize, what: &'static str) -> Result<Self, DeviceError> {
        let fail = || DeviceError::OutOfMemory { what, bytes: len };
        let align = if len >= HUGE_PAGE { HUGE_PAGE } else { 64 };
        let total = len.checked_add(align + SLACK).ok_or_else(fail)?;
        let mut map = MmapOptions::new().len(total).map_anon().map_err(|_| fail())?;
        #[cfg(target_os = "linux")]
        if align == HUGE_PAGE {
            // Without huge pages everything works, only slower: a kernel built without them is no error.
            let _ = map.advise(memmap2::Advice::HugePage);
        }
        let base = map.as_mut_ptr();
        let skip = base.align_offset(align);
        debug_assert!(skip < align && skip + len + SLACK <= total, "the map holds the aligned part");
        // SAFETY: `skip + len` lies within the map, whose address is not null.
        let start = unsafe { NonNull::new_unchecked(base.add(skip)) };
        Ok(Self { _map: map, start, len })
    }

    /// The first byte; aligned to 64 at least.
    pub(super) fn ptr(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// Bytes asked for.
    pub(super) fn len(&self) -> usize {
        self.len
    }
}

/// Rows of f32 in a [`Memory`]: `stride` is a multiple of 32 and the columns past `width` are padding that stays
/// finite. A plain handle: copies alias, so each unit of an operation touches rows or columns of its own.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rows {
    start: NonNull<f32>,
    /// Rows that exist.
    pub(super) count: usize,
    /// Columns that mean something.
    pub(super) width: usize,
    /// Elements from one row to the next.
    pub(super) stride: usize,
}

// SAFETY: a handle to memory; the methods that dereference it are unsafe and say what must hold.
unsafe impl Send for Rows {}
// SAFETY: as above.
unsafe impl Sync for Rows {}

impl Rows {
    /// Elements from one row of `width` to the next.
    pub(super) fn stride_of(width: usize) -> usize {
        width.next_multiple_of(super::pack::ROW_MULTIPLE)
    }

    /// `count` rows of `width` at byte `offset` of `memory`; `None` where they do not fit.
    pub(super) fn new(memory: &Memory, offset: usize, count: usize, width: usize) -> Option<Self> {
        let stride = Self::stride_of(width);
        let end = offset.checked_add(count.checked_mul(stride)?.checked_mul(4)?)?;
        if end > memory.len() || !offset.is_multiple_of(64) {
            return None;
        }
        // SAFETY: `offset` lies within the map.
        let start = unsafe { memory.start.add(offset).cast() };
        Some(Self { start, count, width, stride })
    }

    /// The address of row `r`.
    pub(super) fn ptr(&self, r: usize) -> *mut f32 {
        debug_assert!(r < self.count, "row {r} of {}", self.count);
        // SAFETY: callers ask for rows below `count`, which `new` has checked to lie within the map.
        unsafe { self.start.as_ptr().add(r * self.stride) }
    }

    /// Row `r` without its padding.
    ///
    /// # Safety
    /// `r < count`, the memory lives, and nobody writes the row meanwhile.
    pub(super) unsafe fn row<'a>(&self, r: usize) -> &'a [f32] {
        // SAFETY: by `new` the row lies within the map; the caller vouches for the rest.
        unsafe { std::slice::from_raw_parts(self.ptr(r), self.width) }
    }

    /// Row `r` without its padding.
    ///
    /// # Safety
    /// `r < count`, the memory lives, and nobody else reads or writes the row meanwhile.
    pub(super) unsafe fn row_mut<'a>(&self, r: usize) -> &'a mut [f32] {
        // SAFETY: by `new` the row lies within the map; the caller vouches for the rest.
        unsafe { std::slice::from_raw_parts_mut(self.ptr(r), self.width) }
    }
}
