//! What we need of libcuda: a context, one arena, streams, events, kernels, graphs.
//!
//! Thin on purpose: each type owns one handle and gives it back; nothing is tracked or waited for behind the
//! caller's back. [`crate::probe::probe`] must have succeeded in this process before [`Context::open`].
//! Read next: `driver/memory.rs`, `driver/launch.rs`.

mod graph;
mod launch;
mod memory;
mod stream;

pub use graph::Graph;
pub use launch::{Args, Kernel, Kernels, Launch, Loaded};
pub use memory::{Arena, Carver, Pinned, Ptr, Slice};
pub use stream::{Event, Stream};

use crate::error::CudaError;
use cudarc::driver::sys;
use std::sync::Arc;

/// A driver call as a `Result`; the name of the entry point is the error's.
macro_rules! call {
    ($name:ident($($arg:expr),* $(,)?)) => {
        crate::error::CudaError::check(stringify!($name), cudarc::driver::sys::$name($($arg),*) as i32)
    };
}
pub(crate) use call;

/// A device's primary context, held until the last user drops it.
#[derive(Debug)]
pub struct Context {
    device: sys::CUdevice,
    context: sys::CUcontext,
}

// SAFETY: the driver's contexts may be used from any thread.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    /// Takes the context of a device and makes it the thread's.
    pub fn open(ordinal: usize) -> Result<Arc<Self>, CudaError> {
        let (mut device, mut context) = (0, std::ptr::null_mut());
        let ordinal = i32::try_from(ordinal).unwrap_or(i32::MAX);
        // SAFETY: each writes its first argument.
        unsafe {
            call!(cuDeviceGet(&mut device, ordinal))?;
            call!(cuDevicePrimaryCtxRetain(&mut context, device))?;
        }
        let opened = Self { device, context };
        opened.bind()?;
        Ok(Arc::new(opened))
    }

    /// Makes it the context of the calling thread; every thread does that before it uses anything of it.
    pub fn bind(&self) -> Result<(), CudaError> {
        // SAFETY: the context is held.
        unsafe { call!(cuCtxSetCurrent(self.context)) }
    }

    /// The device's name.
    pub fn name(&self) -> Result<String, CudaError> {
        let mut text = [0u8; 128];
        // SAFETY: the length is that of the buffer; the driver ends the text with a zero.
        unsafe { call!(cuDeviceGetName(text.as_mut_ptr().cast(), text.len() as i32, self.device))? };
        let end = text.iter().position(|&b| b == 0).unwrap_or(text.len());
        Ok(String::from_utf8_lossy(&text[..end]).into_owned())
    }

    /// Compute capability, such as (9, 0).
    pub fn capability(&self) -> Result<(i32, i32), CudaError> {
        use sys::CUdevice_attribute_enum as A;
        let major = self.attribute(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
        Ok((major, self.attribute(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?))
    }

    /// Multiprocessors.
    pub fn multiprocessors(&self) -> Result<usize, CudaError> {
        let count = self.attribute(sys::CUdevice_attribute_enum::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
        Ok(usize::try_from(count).unwrap_or(0).max(1))
    }

    /// Bytes of device memory that are free, and all of it.
    pub fn memory(&self) -> Result<(usize, usize), CudaError> {
        let (mut free, mut total) = (0, 0);
        // SAFETY: both are written.
        unsafe { call!(cuMemGetInfo_v2(&mut free, &mut total))? };
        Ok((free, total))
    }

    fn attribute(&self, which: sys::CUdevice_attribute) -> Result<i32, CudaError> {
        let mut value = 0;
        // SAFETY: the value is written.
        unsafe { call!(cuDeviceGetAttribute(&mut value, which, self.device))? };
        Ok(value)
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: retained in `open`; everything of the context holds an `Arc` of it. A failure has no remedy here.
        let _ = unsafe { call!(cuDevicePrimaryCtxRelease_v2(self.device)) };
    }
}
