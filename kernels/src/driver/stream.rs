//! Queues of work and marks in them.

use super::{Context, Pinned, Slice, call};
use crate::error::CudaError;
use cudarc::driver::sys;
use std::sync::Arc;

/// A queue; its work runs in order, behind the host's back.
#[derive(Debug)]
pub struct Stream {
    pub(super) handle: sys::CUstream,
    context: Arc<Context>,
}

// SAFETY: the driver's streams may be used from any thread.
unsafe impl Send for Stream {}

impl Stream {
    /// A queue that does not wait for the default one.
    pub fn new(context: &Arc<Context>) -> Result<Self, CudaError> {
        const NON_BLOCKING: u32 = 1;
        let mut handle = std::ptr::null_mut();
        // SAFETY: `handle` is written.
        unsafe { call!(cuStreamCreate(&mut handle, NON_BLOCKING))? };
        Ok(Self { handle, context: Arc::clone(context) })
    }

    /// Queues a copy of the first `bytes` of `from`. `from` must stay as it is until an event after this is done.
    pub fn upload<T>(&self, to: Slice<T>, from: &Pinned, at: usize, bytes: usize) -> Result<(), CudaError> {
        if bytes > to.bytes() || at.saturating_add(bytes) > from.bytes().len() {
            return Err(CudaError { call: "cuMemcpyHtoDAsync_v2", code: 1 });
        }
        // SAFETY: both ranges were checked; the caller keeps `from` unchanged.
        unsafe { call!(cuMemcpyHtoDAsync_v2(to.ptr().address(), from.address().byte_add(at), bytes, self.handle)) }
    }

    /// Queues a copy of `bytes` of `from` to the start of `to`, to be read after an event after this is done.
    pub fn download<T>(&self, to: &mut Pinned, from: Slice<T>, bytes: usize) -> Result<(), CudaError> {
        if bytes > from.bytes() || bytes > to.bytes().len() {
            return Err(CudaError { call: "cuMemcpyDtoHAsync_v2", code: 1 });
        }
        // SAFETY: both ranges were checked.
        unsafe { call!(cuMemcpyDtoHAsync_v2(to.address(), from.ptr().address(), bytes, self.handle)) }
    }

    /// Queues a copy within the device's memory: of `from` to the start of `to`.
    pub fn copy<T>(&self, to: Slice<T>, from: Slice<T>) -> Result<(), CudaError> {
        if from.bytes() > to.bytes() {
            return Err(CudaError { call: "cuMemcpyDtoDAsync_v2", code: 1 });
        }
        // SAFETY: the range was checked; both are pieces of an arena of ours.
        unsafe { call!(cuMemcpyDtoDAsync_v2(to.ptr().address(), from.ptr().address(), from.bytes(), self.handle)) }
    }

    /// Queues zeros.
    pub fn zero<T>(&self, to: Slice<T>) -> Result<(), CudaError> {
        if to.is_empty() {
            return Ok(());
        }
        // SAFETY: the slice's own size.
        unsafe { call!(cuMemsetD8Async(to.ptr().address(), 0, to.bytes(), self.handle)) }
    }

    /// For libraries that queue on it.
    pub(crate) fn raw(&self) -> sys::CUstream {
        self.handle
    }

    /// Waits for all that was queued.
    pub fn synchronize(&self) -> Result<(), CudaError> {
        // SAFETY: a stream of ours.
        unsafe { call!(cuStreamSynchronize(self.handle)) }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: created in `new`. A failure has no remedy here.
        let _ = self.context.bind().and(unsafe { call!(cuStreamDestroy_v2(self.handle)) });
    }
}

/// A mark in a stream that the host can wait for.
#[derive(Debug)]
pub struct Event {
    handle: sys::CUevent,
    context: Arc<Context>,
}

// SAFETY: the driver's events may be used from any thread.
unsafe impl Send for Event {}

impl Event {
    /// A mark that nothing waits for yet.
    pub fn new(context: &Arc<Context>) -> Result<Self, CudaError> {
        const NO_TIMING: u32 = 2;
        let mut handle = std::ptr::null_mut();
        // SAFETY: `handle` is written.
        unsafe { call!(cuEventCreate(&mut handle, NO_TIMING))? };
        Ok(Self { handle, context: Arc::clone(context) })
    }

    /// Puts the mark behind all that is queued.
    pub fn record(&self, stream: &Stream) -> Result<(), CudaError> {
        // SAFETY: both are ours.
        unsafe { call!(cuEventRecord(self.handle, stream.handle)) }
    }

    /// Waits until the stream has passed the mark; at once if it was never put anywhere.
    pub fn wait(&self) -> Result<(), CudaError> {
        // SAFETY: an event of ours.
        unsafe { call!(cuEventSynchronize(self.handle)) }
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: created in `new`. A failure has no remedy here.
        let _ = self.context.bind().and(unsafe { call!(cuEventDestroy_v2(self.handle)) });
    }
}
