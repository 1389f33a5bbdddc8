//! What went wrong on the device, in words that need no driver.

use tidegate_device::DeviceError;

/// A call that the driver refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{call} failed with {code} ({})", text(*.code))]
pub struct CudaError {
    /// The entry point.
    pub call: &'static str,
    /// The driver's number.
    pub code: i32,
}

/// Numbers for memory that ran out: the driver's, and cuBLASLt's.
const OUT_OF_MEMORY: [i32; 2] = [2, 100_003];

/// The numbers that an operator meets. The driver's own texts are behind a call that may not exist.
fn text(code: i32) -> &'static str {
    match code {
        1 => "invalid value",
        2 => "out of memory",
        3 => "not initialized",
        34 => "the toolkit's stub, not a driver",
        46 => "device unavailable",
        100 => "no device",
        101 => "invalid device",
        200 => "invalid image",
        201 => "invalid context",
        209 => "no kernel image for this device",
        214 => "uncorrectable memory error",
        222 => "the image needs a newer driver",
        500 => "not found",
        700 => "illegal address",
        702 => "launch timed out",
        716 => "misaligned address",
        718 => "invalid program counter",
        719 => "launch failed",
        // cuBLASLt's, moved by `blas::CUBLAS_BASE`.
        100_001 => "cuBLASLt is not initialized",
        100_003 => "cuBLASLt ran out of memory",
        100_007 => "cuBLASLt: invalid value",
        100_008 => "cuBLASLt does not know this device",
        100_013 => "a cuBLASLt product failed",
        100_015 => "cuBLASLt has no algorithm for this shape",
        802 => "system not ready",
        803 => "driver and kernel module do not match",
        999 => "unknown error",
        _ => "see CUresult in cuda.h",
    }
}

impl CudaError {
    /// `Ok` for 0.
    pub fn check(call: &'static str, code: i32) -> Result<(), Self> {
        if code == 0 { Ok(()) } else { Err(Self { call, code }) }
    }

    /// Whether memory ran out.
    pub fn is_out_of_memory(self) -> bool {
        OUT_OF_MEMORY.contains(&self.code)
    }

    /// As the engine knows it: memory that ran out while `bytes` for `what` were asked for, or a lost device.
    pub fn while_allocating(self, what: &'static str, bytes: usize) -> DeviceError {
        if self.is_out_of_memory() { DeviceError::OutOfMemory { what, bytes } } else { self.into() }
    }
}

/// A call that may allocate without saying how much has run out of memory; any other failure is a lost device.
impl From<CudaError> for DeviceError {
    fn from(error: CudaError) -> Self {
        match error.is_out_of_memory() {
            true => Self::OutOfMemory { what: error.call, bytes: 0 },
            false => Self::Lost(error.to_string()),
        }
    }
}

/// As the engine knows what failed within a step: of a step that was queued in part nothing can be used, also where
/// memory ran out, and what was queued may use what the next step would write. So the device counts as lost.
pub fn within_step(error: DeviceError) -> DeviceError {
    match error {
        DeviceError::OutOfMemory { .. } => DeviceError::Lost(error.to_string()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_names_the_call_and_its_meaning() {
        let error = CudaError { call: "cuLaunchKernel", code: 719 };
        assert_eq!(error.to_string(), "cuLaunchKernel failed with 719 (launch failed)");
        assert!(matches!(DeviceError::from(error), DeviceError::Lost(why) if why.contains("719")));
    }

    #[test]
    fn only_memory_that_ran_out_is_out_of_memory() {
        let check = |code| CudaError { call: "cuMemAlloc_v2", code }.while_allocating("weights", 7);
        assert!(matches!(check(2), DeviceError::OutOfMemory { what: "weights", bytes: 7 }));
        assert!(matches!(check(719), DeviceError::Lost(_)));
        let said = DeviceError::from(CudaError { call: "cublasLtCreate", code: 100_003 });
        assert_eq!(said.to_string(), "out of memory: cublasLtCreate needs more than there is");
        assert!(matches!(within_step(said), DeviceError::Lost(why) if why.contains("cublasLtCreate")));
    }
}
