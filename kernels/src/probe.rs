//! Whether this machine has a driver that we can use, asked in a way that cannot panic.
//!
//! cudarc panics on a library that is missing, on a symbol that is missing, and on formatting an error. So the
//! library is opened here first, in the order in which cudarc will look for it, and every entry point that
//! [`crate::driver`] names is looked up. Only after [`probe`] said yes may the driver layer be used.

use libloading::Library;

/// CUDA 13.0, which the driver line 580 and newer supports.
const OLDEST_DRIVER: i32 = 13000;

/// What the driver layer calls.
const ENTRY_POINTS: &[&str] = &[
    "cuInit",
    "cuDriverGetVersion",
    "cuDeviceGetCount",
    "cuDeviceGet",
    "cuDeviceGetName",
    "cuDeviceGetAttribute",
    "cuDevicePrimaryCtxRetain",
    "cuDevicePrimaryCtxRelease_v2",
    "cuCtxSetCurrent",
    "cuMemGetInfo_v2",
    "cuMemAlloc_v2",
    "cuMemFree_v2",
    "cuMemHostAlloc",
    "cuMemFreeHost",
    "cuMemcpyHtoDAsync_v2",
    "cuMemcpyDtoHAsync_v2",
    "cuMemcpyDtoDAsync_v2",
    "cuMemsetD8Async",
    "cuStreamCreate",
    "cuStreamDestroy_v2",
    "cuStreamSynchronize",
    "cuEventCreate",
    "cuEventDestroy_v2",
    "cuEventRecord",
    "cuEventSynchronize",
    "cuModuleLoadData",
    "cuModuleUnload",
    "cuModuleGetFunction",
    "cuFuncSetAttribute",
    "cuFuncGetParamInfo",
    "cuLaunchKernel",
    "cuStreamBeginCapture_v2",
    "cuStreamEndCapture",
    "cuGraphInstantiateWithFlags",
    "cuGraphLaunch",
    "cuGraphExecDestroy",
    "cuGraphDestroy",
];

/// Why there is nothing to run on; one line for the operator.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoCuda {
    /// No library.
    #[error("no NVIDIA driver on this machine (libcuda.so not found)")]
    NoDriver,
    /// A library that is not a driver, or too old to have what we call.
    #[error("libcuda has no {0}: a stub, or a driver that is too old")]
    MissingSymbol(&'static str),
    /// Another library that the backend needs.
    #[error("{library} {what}; it comes with the CUDA 13 toolkit")]
    Library {
        /// Its name.
        library: &'static str,
        /// What is wrong.
        what: String,
    },
    /// The toolkit's stub library.
    #[error("libcuda is the toolkit's stub, not a driver")]
    Stub,
    /// The driver works, the machine has no device for it.
    #[error("the driver finds no device")]
    NoDevice,
    /// The driver's CUDA version, times 1000.
    #[error("the driver supports CUDA {}.{}; 13.0 is needed (driver 580 or newer)", .0 / 1000, .0 % 1000 / 10)]
    TooOld(i32),
    /// What else the driver may answer.
    #[error("{call} failed with {code}")]
    Call {
        /// The entry point.
        call: &'static str,
        /// The driver's number.
        code: i32,
    },
}

/// How many devices there are.
pub fn probe() -> Result<usize, NoCuda> {
    // SAFETY: a driver library; its initialisers are NVIDIA's, or those of the stand-in that the tests build.
    let open = |name: &&str| unsafe { Library::new(*name) }.ok();
    let library = ["libcuda.so", "libcuda.so.1"].iter().find_map(open).ok_or(NoCuda::NoDriver)?;
    for name in ENTRY_POINTS {
        // SAFETY: only whether it is there.
        unsafe { library.get::<unsafe extern "C" fn()>(name.as_bytes()) }.map_err(|_| NoCuda::MissingSymbol(name))?;
    }
    let count = count_devices(&library)?;
    // Unloading a driver is not supported; cudarc opens it again by name.
    std::mem::forget(library);
    Ok(count)
}

/// Whether a library is there with all that we call of it. `names` are tried in order, as cudarc will.
pub(crate) fn require_library(library: &'static str, names: &[&str], entry_points: &[&str]) -> Result<(), NoCuda> {
    let lacks = |what: String| NoCuda::Library { library, what };
    // SAFETY: NVIDIA's library, or the stand-in that the tests build.
    let open = |name: &&str| unsafe { Library::new(*name) }.ok();
    let found = names.iter().find_map(open).ok_or_else(|| lacks("was not found".to_owned()))?;
    // SAFETY: only whether it is there.
    let there = |name: &&&str| unsafe { found.get::<unsafe extern "C" fn()>(name.as_bytes()) }.is_ok();
    let missing = entry_points.iter().find(|name| !there(name));
    let missing = missing.map(|name| lacks(format!("has no {name}")));
    std::mem::forget(found);
    missing.map_or(Ok(()), Err)
}

fn count_devices(library: &Library) -> Result<usize, NoCuda> {
    type Init = unsafe extern "C" fn(u32) -> i32;
    type Get = unsafe extern "C" fn(*mut i32) -> i32;
    let missing = |name| move |_| NoCuda::MissingSymbol(name);
    // SAFETY: the signatures of cuda.h.
    let init = unsafe { library.get::<Init>(b"cuInit") }.map_err(missing("cuInit"))?;
    // SAFETY: as above.
    let version_of = unsafe { library.get::<Get>(b"cuDriverGetVersion") }.map_err(missing("cuDriverGetVersion"))?;
    // SAFETY: as above.
    let count_of = unsafe { library.get::<Get>(b"cuDeviceGetCount") }.map_err(missing("cuDeviceGetCount"))?;
    // SAFETY: 0 is the only flag word that is defined.
    match unsafe { init(0) } {
        0 => {}
        34 => return Err(NoCuda::Stub),
        100 => return Err(NoCuda::NoDevice),
        code => return Err(NoCuda::Call { call: "cuInit", code }),
    }
    let (mut version, mut count) = (0, 0);
    let asked = |call, code| if code == 0 { Ok(()) } else { Err(NoCuda::Call { call, code }) };
    // SAFETY: writes one i32.
    asked("cuDriverGetVersion", unsafe { version_of(&mut version) })?;
    if version < OLDEST_DRIVER {
        return Err(NoCuda::TooOld(version));
    }
    // SAFETY: as above.
    match unsafe { count_of(&mut count) } {
        100 => Err(NoCuda::NoDevice),
        code => asked("cuDeviceGetCount", code),
    }?;
    usize::try_from(count).ok().filter(|&n| n > 0).ok_or(NoCuda::NoDevice)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_is_one_line_for_the_operator() {
        let check = |error: NoCuda, want: &str| assert_eq!(error.to_string(), want);
        check(NoCuda::TooOld(12040), "the driver supports CUDA 12.4; 13.0 is needed (driver 580 or newer)");
        check(NoCuda::MissingSymbol("cuInit"), "libcuda has no cuInit: a stub, or a driver that is too old");
        check(NoCuda::NoDevice, "the driver finds no device");
    }
}
