//! For tests: the CUDA kernels compiled as C++ for the CPU, behind stand-ins for NVIDIA's libraries.
//!
//! [`Build`] compiles `kernels/cuda/*.cu` with the C++ compiler of the machine, through `cpp/cuemu.h`, into a shared
//! library that exports what our driver layer needs of libcuda; beside it one for cuBLASLt and one for NVRTC. [`Standin::load`] makes the process use it, so that
//! the unchanged backend runs where no GPU is. Objects are kept by a digest of everything they are made of.

#![allow(unsafe_code, reason = "loads the libraries that it built and calls their test entry points")]

mod compile;

pub use compile::{Build, Libraries, Replacement, Skip, sanitizer_runtime};

use anyhow::{Context, Result};
use libloading::{Library, Symbol};
use std::ffi::CString;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// Set where a missing compiler must fail a test instead of skipping it.
pub const REQUIRE: &str = "TIDEGATE_REQUIRE_EMULATOR";

/// A driver for [`standin`] to use instead of the one without defects.
pub const DRIVER: &str = "TIDEGATE_EMULATED_DRIVER";

/// Set to run the tests on this machine's own driver, libraries and device: `tests/gpu/run.sh` does.
pub const MACHINE: &str = "TIDEGATE_TEST_GPU";

/// For [`Standin::fail`]: whichever call comes.
pub const ANY: &str = "*";

/// What the kernels' tests run on.
#[derive(Clone, Copy, Debug)]
pub enum Device {
    /// The emulator, behind the stand-in driver.
    Standin(&'static Standin),
    /// A device of this machine, behind its own driver.
    Machine,
}

/// What this process tests on: the stand-ins, unless [`MACHINE`] is set. `None` where there is no compiler.
pub fn device() -> Option<Device> {
    if std::env::var_os(MACHINE).is_some() { Some(Device::Machine) } else { standin().map(Device::Standin) }
}

/// The stand-ins of this process, built and loaded by the first call. `None` where there is no compiler; that is said
/// on standard error, and the test passes. `None` too where [`MACHINE`] is set: a fault cannot be asked of a device.
#[allow(clippy::expect_used, reason = "for tests only")]
pub fn standin() -> Option<&'static Standin> {
    static STANDIN: OnceLock<Option<Standin>> = OnceLock::new();
    let load = || {
        if std::env::var_os(MACHINE).is_some() {
            tidegate_skipped::skipped!("needs the stand-ins, and {MACHINE} is set");
            return None;
        }
        let mut libraries = Build::default().libraries().expect("the stand-ins compile");
        if let (Ok(libraries), Some(path)) = (&mut libraries, std::env::var_os(DRIVER)) {
            libraries.cuda = PathBuf::from(path);
        }
        match libraries {
            Ok(libraries) => Some(Standin::load(&libraries).expect("the stand-ins load")),
            Err(skip) => {
                tidegate_skipped::skipped!("{}", skip.0);
                None
            }
        }
    };
    STANDIN.get_or_init(load).as_ref()
}

/// The order in which warps and lanes take their turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// By number.
    Forward,
    /// By number, backwards.
    Reverse,
    /// Shuffled for each block, from a seed.
    Random(u32),
}

/// The stand-ins, loaded. There is one set in a process.
#[derive(Debug)]
pub struct Standin {
    driver: Library,
    cublaslt: Library,
    _nvrtc: Library,
}

impl Standin {
    /// Loads the libraries; later requests for them by name (`libcuda.so` and so on) find these.
    pub fn load(libraries: &Libraries) -> Result<Self> {
        let open = |path: &Path| {
            // SAFETY: we built it; its initialisers fill a table of kernels and nothing else.
            unsafe { Library::new(path) }.with_context(|| format!("cannot load {}", path.display()))
        };
        Ok(Self {
            driver: open(&libraries.cuda)?,
            cublaslt: open(&libraries.cublaslt)?,
            _nvrtc: open(&libraries.nvrtc)?,
        })
    }

    /// Chooses the order of all later launches.
    pub fn order(&self, order: Order) {
        let (kind, seed) = match order {
            Order::Forward => (0, 0),
            Order::Reverse => (1, 0),
            Order::Random(seed) => (2, seed),
        };
        // SAFETY: the signature of `standin_order` in cpp/driver.cpp.
        unsafe { self.get::<unsafe extern "C" fn(i32, u32) -> i32>(b"standin_order")(kind, seed) };
    }

    /// Makes the `after`-th next call of that name, or of any with [`ANY`], answer `code`: of the driver, or of cuBLASLt,
    /// which says it in its own numbers. What only gives back does not fail.
    pub fn fail(&self, call: &str, after: i32, code: i32) {
        let call = CString::new(call).unwrap_or_default();
        // SAFETY: the signature of `standin_fail`; the text outlives the call, which copies it.
        unsafe {
            self.get::<unsafe extern "C" fn(*const std::ffi::c_char, i32, i32) -> i32>(b"standin_fail")(
                call.as_ptr(),
                after,
                code,
            )
        };
    }

    /// Takes the fault back that no call has met.
    pub fn heal(&self) {
        self.fail("", 0, 0);
    }

    /// The call that the fault was given to; empty while none was.
    pub fn met(&self) -> String {
        type Met = unsafe extern "C" fn() -> *const std::ffi::c_char;
        // SAFETY: the signature of `standin_met`; the text lives until the next fault is asked for.
        unsafe { std::ffi::CStr::from_ptr(self.get::<Met>(b"standin_met")()) }.to_string_lossy().into_owned()
    }

    /// How often that entry point was called so far.
    pub fn calls(&self, call: &str) -> i32 {
        let call = CString::new(call).unwrap_or_default();
        // SAFETY: the signature of `standin_calls`.
        unsafe { self.get::<unsafe extern "C" fn(*const std::ffi::c_char) -> i32>(b"standin_calls")(call.as_ptr()) }
    }

    /// What the driver says of itself: its CUDA version times 1000, and how many devices there are.
    pub fn driver(&self, version: i32, devices: i32) {
        // SAFETY: the signature of `standin_driver`.
        unsafe { self.get::<unsafe extern "C" fn(i32, i32) -> i32>(b"standin_driver")(version, devices) };
    }

    /// How much memory the device has from now on, as if others had taken the rest; what was allocated stays.
    pub fn memory(&self, bytes: u64) {
        // SAFETY: the signature of `standin_memory`.
        unsafe { self.get::<unsafe extern "C" fn(u64) -> i32>(b"standin_memory")(bytes) };
    }

    /// How many algorithms are proposed for a product from now on; see `standin_algorithms` in cpp/cublaslt.cpp.
    pub fn algorithms(&self, count: i32) {
        // SAFETY: its signature.
        unsafe { Self::symbol::<unsafe extern "C" fn(i32) -> i32>(&self.cublaslt, b"standin_algorithms")(count) };
    }

    /// Whether products are rounded in an order that depends on the algorithm, as on a device.
    pub fn rounding(&self, on: bool) {
        // SAFETY: the signature of `standin_rounding`.
        unsafe { Self::symbol::<unsafe extern "C" fn(i32) -> i32>(&self.cublaslt, b"standin_rounding")(i32::from(on)) };
    }

    /// How often the algorithm of that number was queued since then.
    pub fn queued(&self, number: i32) -> i32 {
        // SAFETY: the signature of `standin_queued`.
        unsafe { Self::symbol::<unsafe extern "C" fn(i32) -> i32>(&self.cublaslt, b"standin_queued")(number) }
    }

    unsafe fn get<F>(&self, name: &[u8]) -> Symbol<'_, F> {
        // SAFETY: as the caller vouches.
        unsafe { Self::symbol(&self.driver, name) }
    }

    #[allow(clippy::expect_used, reason = "the library was built from this folder's sources")]
    unsafe fn symbol<'a, F>(library: &'a Library, name: &[u8]) -> Symbol<'a, F> {
        // SAFETY: as the caller vouches.
        unsafe { library.get(name) }.expect("the sources in cpp/ export it")
    }
}
