//! Faults of the device and around it: each ends in a typed error, and the next executor works.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

#[allow(dead_code, reason = "other tests use the rest of it")]
#[path = "../../../host/device/tests/support/model.rs"]
mod model;

use model::{Shape, Weights, build};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tidegate_device::{
    Activation, Backend, Batch, BlockId, DType, DeviceError, Dims, Executor, Limits, Program, SampleRow, Segment,
    StepLimits,
};
use tidegate_emu::{Standin, standin};
use tidegate_kernels::driver::Context;
use tidegate_kernels::probe::NoCuda;
use tidegate_kernels::{CudaBackend, CudaOptions, Unavailable};
use tidegate_types::SamplingParams;

const LIMITS: Limits = Limits { num_blocks: 8, block_tokens: 16, max_batch_tokens: 32, max_seqs: 4 };
const CALLS_OF_A_STEP: [&str; 9] = [
    "cuLaunchKernel",
    "cuMemcpyHtoDAsync_v2",
    "cuMemcpyDtoHAsync_v2",
    "cuEventRecord",
    "cuEventSynchronize",
    "cuStreamBeginCapture_v2",
    "cuStreamEndCapture",
    "cuGraphInstantiateWithFlags",
    "cuGraphLaunch",
];
const OUT_OF_MEMORY: i32 = 2;
const LAUNCH_FAILED: i32 = 719;

/// Faults are set for the whole process: one test at a time.
fn alone() -> Option<(&'static Standin, MutexGuard<'static, ()>)> {
    static LOCK: Mutex<()> = Mutex::new(());
    let standin = standin()?;
    Some((standin, LOCK.lock().unwrap_or_else(PoisonError::into_inner)))
}

fn open() -> CudaBackend {
    CudaBackend::open(CudaOptions::default()).unwrap()
}

fn tiny() -> (Arc<Program>, Weights) {
    let dims =
        Dims { num_layers: 1, num_heads: 2, num_kv_heads: 1, head_dim: 16, hidden: 16, vocab: 24, max_positions: 100 };
    let shape = Shape {
        dims,
        ffn: 24,
        dtype: DType::BF16,
        qkv_bias: true,
        head_norm: false,
        tied: true,
        window: None,
        act: Activation::Silu,
    };
    let (program, weights) = build(&shape, 3);
    (Arc::new(program), weights)
}

fn load(backend: &CudaBackend) -> Result<Box<dyn Executor>, DeviceError> {
    let (program, weights) = tiny();
    backend.load(program, &weights, LIMITS)
}

/// A prompt, and the two tokens after it; the second comes from a recorded step.
fn step(executor: &mut dyn Executor) -> Result<[u32; 2], DeviceError> {
    let first = draw(executor, &[5; 20], 0)?;
    Ok([first, draw(executor, &[first], 20)?])
}

fn draw(executor: &mut dyn Executor, tokens: &[u32], start: usize) -> Result<u32, DeviceError> {
    let blocks = [BlockId(3), BlockId(0)];
    let segment = Segment { tokens, start, blocks: &blocks, want_logits: true, fed: None };
    executor.forward(&Batch { segments: vec![segment] })?;
    let params = SamplingParams::greedy();
    let position = start + tokens.len();
    executor.sample(&[SampleRow { segment: 0, params: &params, position, prompt: &[], output: &[], mask: None }])?;
    Ok(executor.collect()?[0].as_ref().unwrap().id)
}

fn assert_nothing_is_held() {
    let (free, total) = Context::open(0).unwrap().memory().unwrap();
    assert_eq!(free, total, "device memory is left behind");
}

#[test]
fn memory_that_runs_out_at_any_allocation_is_said_and_given_back() {
    let Some((standin, _alone)) = alone() else { return };
    let backend = open();
    for call in ["cuMemAlloc_v2", "cuMemHostAlloc"] {
        let mut failed = 0;
        loop {
            standin.fail(call, failed, OUT_OF_MEMORY);
            match load(&backend) {
                Err(DeviceError::OutOfMemory { what, bytes }) => assert!(!what.is_empty() && bytes > 0),
                Err(other) => panic!("{other}"),
                Ok(mut executor) => {
                    standin.heal();
                    step(&mut *executor).unwrap();
                    break;
                }
            }
            assert_nothing_is_held();
            failed += 1;
        }
        assert!(failed > 0, "{call} was never called");
    }
    standin.heal();
    assert_nothing_is_held();
}

#[test]
fn a_device_that_is_lost_at_any_call_of_a_step_is_replaced_by_the_next_executor() {
    let Some((standin, _alone)) = alone() else { return };
    let backend = open();
    let expected = step(&mut *load(&backend).unwrap()).unwrap();
    for call in CALLS_OF_A_STEP {
        let mut failed = 0;
        loop {
            let mut executor = load(&backend).unwrap();
            standin.fail(call, failed, LAUNCH_FAILED);
            match step(&mut *executor) {
                Ok(token) => {
                    assert_eq!(token, expected);
                    break;
                }
                Err(error) => assert!(matches!(&error, DeviceError::Lost(why) if why.contains(call)), "{error}"),
            }
            assert!(matches!(step(&mut *executor), Err(DeviceError::Lost(_))), "a lost device works on");
            standin.heal();
            drop(executor);
            assert_eq!(step(&mut *load(&backend).unwrap()).unwrap(), expected, "after {call} {failed}");
            failed += 1;
        }
        assert!(failed > 0, "{call} was never called");
        standin.heal();
    }
    assert_nothing_is_held();
}

#[test]
fn a_driver_that_is_too_old_or_has_no_device_is_named() {
    let Some((standin, _alone)) = alone() else { return };
    let refused = || CudaBackend::open(CudaOptions::default()).unwrap_err();
    standin.driver(12040, 1);
    assert!(matches!(refused(), Unavailable::NoCuda(NoCuda::TooOld(12040))));
    standin.driver(13000, 0);
    assert!(matches!(refused(), Unavailable::NoCuda(NoCuda::NoDevice)));
    standin.driver(13000, 1);
    let error = CudaBackend::open(CudaOptions { device: 3, ..CudaOptions::default() }).unwrap_err();
    assert_eq!(error.to_string(), "device 3 was asked for; there are 1");
}

#[test]
fn kept_kernels_are_used_and_damaged_ones_are_made_again() {
    let Some((standin, _alone)) = alone() else { return };
    let folder = tempfile::tempdir().unwrap();
    let open = || CudaBackend::open(CudaOptions { cache: Some(folder.path().into()), ..CudaOptions::default() });
    open().unwrap();
    let is_image = |path: &std::path::PathBuf| path.extension().is_some_and(|extension| extension == "cubin");
    let entries = || std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path());
    let files = || entries().filter(is_image).collect::<Vec<_>>();
    let kept = files();
    assert!(kept.len() > 5, "{kept:?}");
    let whole: Vec<Vec<u8>> = kept.iter().map(|path| std::fs::read(path).unwrap()).collect();
    for (path, bytes) in kept.iter().zip(&whole) {
        std::fs::write(path, &bytes[..bytes.len() / 2]).unwrap();
    }
    step(&mut *load(&open().unwrap()).unwrap()).unwrap();
    let mended: Vec<Vec<u8>> = kept.iter().map(|path| std::fs::read(path).unwrap()).collect();
    assert!(mended == whole && files().len() == kept.len());
    // A folder that cannot be written costs the next start its time, and nothing else.
    let unwritable = folder.path().join(kept[0].file_name().unwrap()).join("below a file");
    CudaBackend::open(CudaOptions { cache: Some(unwritable), ..CudaOptions::default() }).unwrap();
    standin.fail("cuModuleLoadData", 0, 209);
    let error = open().unwrap_err().to_string();
    standin.heal();
    assert_eq!(error, "cuModuleLoadData failed with 209 (no kernel image for this device)");
}

#[test]
fn the_room_for_a_cache_is_filled_but_for_the_reserve() {
    let Some((_, _alone)) = alone() else { return };
    let (backend, (program, weights)) = (open(), tiny());
    let steps = StepLimits { max_batch_tokens: LIMITS.max_batch_tokens, max_seqs: LIMITS.max_seqs };
    let room = |sharers| backend.cache_room(&program, &steps, sharers).unwrap().unwrap();
    let (_, total) = Context::open(0).unwrap().memory().unwrap();
    assert!(room(2) < room(1) / 2 && room(2) > room(1) / 3, "{} of {}", room(2), room(1));
    let limits = Limits { num_blocks: room(1) / (16 * program.kv_bytes_per_token(2)), ..LIMITS };
    let mut executor = backend.load(program, &weights, limits).unwrap();
    let (free, _) = Context::open(0).unwrap().memory().unwrap();
    assert!(free >= total / 20 && free < total / 20 + (1 << 20), "{free} bytes of {total} are left");
    step(&mut *executor).unwrap();
    let nothing_left = backend.cache_room(&tiny().0, &steps, 1).unwrap();
    assert_eq!(nothing_left, Some(0));
}
