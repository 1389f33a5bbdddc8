//! NVIDIA's own run-time compiler on our kernels, where its library is found: it needs no driver and no device.
//! `LD_LIBRARY_PATH=.../nvidia/cu13/lib cargo test -p tidegate-kernels --test nvrtc` with the wheel `nvidia-cuda-nvrtc`.
#![allow(clippy::unwrap_used, reason = "tests")]

use tidegate_kernels::compile::{CompileError, KERNELS, images};

#[test]
fn every_kernel_compiles_for_every_architecture_without_a_header_of_cuda() {
    for arch in ["sm_80", "sm_90a", "sm_100"] {
        match images(arch, None) {
            Err(CompileError::NoCompiler(why)) => return tidegate_skipped::skipped!("{why}"),
            images => {
                let images = images.unwrap();
                assert_eq!(images.len(), KERNELS.len());
                assert!(images.iter().all(|image| image.starts_with(b"\x7fELF")), "{arch}: a cubin is an ELF file");
            }
        }
    }
}
