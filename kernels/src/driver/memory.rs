//! Device memory, allocated once and carved, and pinned host memory for copies.

use super::{Context, call};
use crate::error::CudaError;
use std::marker::PhantomData;
use std::sync::Arc;

/// Carved pieces begin at multiples of this.
const ALIGNMENT: usize = 256;

/// An address in device memory, as kernels take it. The type is that of the element, for the compiler's eyes only.
#[repr(transparent)]
pub struct Ptr<T>(u64, PhantomData<fn() -> T>);

impl<T> Ptr<T> {
    /// What kernels read as "not given".
    pub const NULL: Self = Self(0, PhantomData);

    /// The number.
    pub fn address(self) -> u64 {
        self.0
    }
}

impl<T> Clone for Ptr<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Ptr<T> {}

impl<T> std::fmt::Debug for Ptr<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// A piece of an [`Arena`]: `len` elements. It must not be used after its arena is gone: whoever owns an arena drops
/// it last.
pub struct Slice<T> {
    ptr: u64,
    len: usize,
    element: PhantomData<fn() -> T>,
}

impl<T> Clone for Slice<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Slice<T> {}

impl<T> std::fmt::Debug for Slice<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:#x}[{}]", self.ptr, self.len)
    }
}

impl<T> Slice<T> {
    /// Its address.
    pub fn ptr(&self) -> Ptr<T> {
        Ptr(self.ptr, PhantomData)
    }

    /// Elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes.
    pub fn bytes(&self) -> usize {
        self.len * size_of::<T>()
    }

    /// The elements from `start` on; none if there are fewer.
    pub fn from(&self, start: usize) -> Self {
        let start = start.min(self.len);
        Self { ptr: self.ptr + (start * size_of::<T>()) as u64, len: self.len - start, element: PhantomData }
    }

    /// The same memory as elements of another type, as many as fit.
    pub fn cast<U>(&self) -> Slice<U> {
        Slice { ptr: self.ptr, len: self.bytes() / size_of::<U>(), element: PhantomData }
    }
}

/// Hands memory out from its start; or only counts, to know how much to allocate.
#[derive(Debug)]
pub struct Carver {
    base: u64,
    bytes: usize,
    used: usize,
}

impl Carver {
    /// Hands out nothing that may be used, and counts.
    pub fn measuring() -> Self {
        Self { base: 0, bytes: usize::MAX, used: 0 }
    }

    /// Bytes that were handed out.
    pub fn used(&self) -> usize {
        self.used
    }

    /// The next `len` elements, or `None` if they do not fit.
    pub fn take<T>(&mut self, len: usize) -> Option<Slice<T>> {
        let end = self.used.checked_add(len.checked_mul(size_of::<T>())?)?;
        if end > self.bytes {
            return None;
        }
        let slice = Slice { ptr: self.base + self.used as u64, len, element: PhantomData };
        self.used = end.checked_next_multiple_of(ALIGNMENT)?;
        Some(slice)
    }
}

/// One allocation of device memory; it frees everything at once.
#[derive(Debug)]
pub struct Arena {
    base: u64,
    bytes: usize,
    context: Arc<Context>,
}

impl Arena {
    /// Allocates `bytes`; the memory holds whatever it held.
    pub fn new(context: &Arc<Context>, bytes: usize) -> Result<Self, CudaError> {
        let mut base = 0;
        // SAFETY: `base` is written.
        unsafe { call!(cuMemAlloc_v2(&mut base, bytes.max(1)))? };
        Ok(Self { base, bytes, context: Arc::clone(context) })
    }

    /// Hands out all of it; called once, or the pieces overlap.
    pub fn carver(&self) -> Carver {
        Carver { base: self.base, bytes: self.bytes, used: 0 }
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: allocated in `new`. A failure has no remedy here.
        let _ = self.context.bind().and(unsafe { call!(cuMemFree_v2(self.base)) });
    }
}

/// Host memory that the device copies from and to by itself.
#[derive(Debug)]
pub struct Pinned {
    ptr: *mut u8,
    len: usize,
    context: Arc<Context>,
}

// SAFETY: memory that nobody else holds a pointer to.
unsafe impl Send for Pinned {}

impl Pinned {
    /// Allocates `bytes`, all zero.
    pub fn new(context: &Arc<Context>, bytes: usize) -> Result<Self, CudaError> {
        let mut ptr = std::ptr::null_mut();
        let bytes = bytes.max(ALIGNMENT);
        // SAFETY: `ptr` is written; 0 asks for memory that the host reads at full speed.
        unsafe { call!(cuMemHostAlloc(&mut ptr, bytes, 0))? };
        let ptr = ptr.cast::<u8>();
        // SAFETY: just allocated, of that size.
        unsafe { ptr.write_bytes(0, bytes) };
        Ok(Self { ptr, len: bytes, context: Arc::clone(context) })
    }

    /// The bytes. The device must not be copying them: the caller waited for the event after its last copy.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: allocated with this size, initialised, and borrowed through `self` alone.
        unsafe { std::slice::from_raw_parts_mut(self.ptr, self.len) }
    }

    /// As [`Self::bytes_mut`], to read.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: as in `bytes_mut`.
        unsafe { std::slice::from_raw_parts(self.ptr, self.len) }
    }

    pub(super) fn address(&self) -> *mut std::ffi::c_void {
        self.ptr.cast()
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // SAFETY: allocated in `new`. A failure has no remedy here.
        let _ = self.context.bind().and(unsafe { call!(cuMemFreeHost(self.ptr.cast())) });
    }
}
