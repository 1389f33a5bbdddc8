//! Modules, kernels and launches.

use super::{Context, Stream, call};
use crate::error::CudaError;
use cudarc::driver::sys;
use std::ffi::{CString, c_void};
use std::marker::PhantomData;
use std::sync::Arc;

/// The driver's number for a name that a module does not have.
const NOT_FOUND: i32 = 500;

/// The one argument of a kernel: the Rust twin of the struct in its `.cu`.
///
/// # Safety
/// `#[repr(C)]`, with the fields of the struct in its order, and no pointer to host memory.
pub unsafe trait Args: Copy + std::fmt::Debug + 'static {}

/// A kernel by name, with the type of its argument and its block of threads.
#[derive(Clone, Copy, Debug)]
pub struct Kernel<A> {
    /// Of the entry point.
    pub name: &'static str,
    /// Threads of a block, as in its `.cu`.
    pub threads: u32,
    args: PhantomData<fn(A)>,
}

impl<A> Kernel<A> {
    /// States a kernel.
    pub const fn new(name: &'static str, threads: u32) -> Self {
        Self { name, threads, args: PhantomData }
    }
}

/// Loaded images, where kernels are found by name.
#[derive(Debug)]
pub struct Kernels {
    modules: Vec<sys::CUmodule>,
    context: Arc<Context>,
}

// SAFETY: the driver's modules may be used from any thread.
unsafe impl Send for Kernels {}
// SAFETY: as above.
unsafe impl Sync for Kernels {}

impl Kernels {
    /// Loads images: cubins of this device's architecture.
    pub fn load(context: &Arc<Context>, images: &[Vec<u8>]) -> Result<Arc<Self>, CudaError> {
        let mut kernels = Self { modules: Vec::new(), context: Arc::clone(context) };
        for image in images {
            let mut module = std::ptr::null_mut();
            // SAFETY: `module` is written. The driver checks the image's header; whoever made the image vouches for
            // the rest (our compiler, or a cache whose digest was checked).
            unsafe { call!(cuModuleLoadData(&mut module, image.as_ptr().cast()))? };
            kernels.modules.push(module);
        }
        Ok(Arc::new(kernels))
    }

    /// Finds a kernel and checks that its argument has the size of its Rust twin.
    pub fn find<A: Args>(self: &Arc<Self>, kernel: Kernel<A>) -> Result<Loaded<A>, CudaError> {
        let name = CString::new(kernel.name).unwrap_or_default();
        let mut function = std::ptr::null_mut();
        let mut found = Err(CudaError { call: "cuModuleGetFunction", code: NOT_FOUND });
        for &module in &self.modules {
            // SAFETY: a module of ours and a text that ends in zero; `function` is written.
            found = unsafe { call!(cuModuleGetFunction(&mut function, module, name.as_ptr())) };
            if !matches!(found, Err(CudaError { code: NOT_FOUND, .. })) {
                break;
            }
        }
        found?;
        let (mut offset, mut bytes) = (0, 0);
        // SAFETY: a function of ours; both are written.
        unsafe { call!(cuFuncGetParamInfo(function, 0, &mut offset, &mut bytes))? };
        if (offset, bytes) != (0, size_of::<A>()) {
            return Err(CudaError { call: "cuFuncGetParamInfo", code: 1 });
        }
        Ok(Loaded { function, kernel, _kernels: Arc::clone(self) })
    }
}

impl Drop for Kernels {
    fn drop(&mut self) {
        let _ = self.context.bind();
        for &module in &self.modules {
            // SAFETY: loaded in `load`; every `Loaded` holds an `Arc` of this. A failure has no remedy here.
            let _ = unsafe { call!(cuModuleUnload(module)) };
        }
    }
}

/// A kernel that can be launched.
#[derive(Clone, Debug)]
pub struct Loaded<A> {
    function: sys::CUfunction,
    kernel: Kernel<A>,
    _kernels: Arc<Kernels>,
}

// SAFETY: the driver's functions may be used from any thread.
unsafe impl<A> Send for Loaded<A> {}

/// The shape of one launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Launch {
    /// Blocks of threads.
    pub grid: (u32, u32),
    /// Bytes of dynamic shared memory.
    pub shared_bytes: u32,
}

impl<A: Args> Loaded<A> {
    /// Lets launches ask for `bytes` of dynamic shared memory; above 48 KiB that must be said once.
    pub fn allow_shared(&self, bytes: u32) -> Result<(), CudaError> {
        use sys::CUfunction_attribute_enum as A;
        let bytes = i32::try_from(bytes).unwrap_or(i32::MAX);
        let which = A::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        // SAFETY: a function of ours.
        unsafe { call!(cuFuncSetAttribute(self.function, which, bytes)) }
    }

    /// Queues a launch; an empty grid is nothing to do.
    ///
    /// # Safety
    /// What the kernel's `.cu` says of its arguments holds.
    pub unsafe fn launch(&self, stream: &Stream, launch: Launch, args: &A) -> Result<(), CudaError> {
        let (x, y) = launch.grid;
        if x == 0 || y == 0 {
            return Ok(());
        }
        // The driver copies the argument before the call returns.
        let mut args = [std::ptr::from_ref(args).cast_mut().cast::<c_void>()];
        let (threads, none) = (self.kernel.threads, std::ptr::null_mut());
        // SAFETY: the size of the argument was checked in `find`; the rest is the caller's.
        unsafe {
            call!(cuLaunchKernel(
                self.function,
                x,
                y,
                1,
                threads,
                1,
                1,
                launch.shared_bytes,
                stream.handle,
                args.as_mut_ptr(),
                none,
            ))
        }
    }
}
