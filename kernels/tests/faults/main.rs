//! Faults of the device and around it: each ends in a typed error, and the next executor works.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

#[allow(dead_code, reason = "other tests use the rest of it")]
#[path = "../../../host/device/tests/support/model.rs"]
mod model;

use model::{Shape, Weights, build};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tidegate_device::{
    Activation, Backend, Batch, BlockId, DType, DeviceError, Dims, Executor, Limits, Node, Program, SampleRow, Segment,
    StepLimits,
};
use tidegate_emu::{ANY, Standin, standin};
use tidegate_kernels::driver::Context;
use tidegate_kernels::probe::NoCuda;
use tidegate_kernels::{CudaBackend, CudaOptions, Unavailable};
use tidegate_types::{Pooling, SamplingParams};

const LIMITS: Limits = Limits { num_blocks: 8, block_tokens: 16, max_batch_tokens: 32, max_seqs: 4 };
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
    tiny_of(24)
}

fn tiny_of(vocab: usize) -> (Arc<Program>, Weights) {
    let dims =
        Dims { num_layers: 1, num_heads: 2, num_kv_heads: 1, head_dim: 16, hidden: 16, vocab, max_positions: 100 };
    let shape = Shape {
        dims,
        ffn: 24,
        dtype: DType::BF16,
        qkv_bias: true,
        out_bias: false,
        head_norm: false,
        tied: true,
        window: None,
        act: Activation::Silu,
        rope_scale: 1.0,
    };
    let (program, weights) = build(&shape, 3);
    (Arc::new(program), weights)
}

/// Without a head it makes vectors.
fn without_head((program, weights): (Arc<Program>, Weights)) -> (Arc<Program>, Weights) {
    let mut program = Arc::unwrap_or_clone(program);
    let Some(Node::Logits { residual, delta, norm, eps, .. }) = program.nodes.pop() else { panic!("no head") };
    program.nodes.push(Node::Vectors { residual, delta, norm, eps, pooling: Pooling::LastToken });
    (Arc::new(program), weights)
}

/// A program, and its steps: of a prompt and of the token after it; the second is a recorded one. They give what the
/// program makes, as bits.
struct Makes {
    program: fn() -> (Arc<Program>, Weights),
    steps: Steps,
}

type Steps = fn(&mut dyn Executor) -> Result<[Vec<u32>; 2], DeviceError>;

const TOKENS: Makes = Makes { program: tiny, steps: |executor| step(executor).map(|drawn| drawn.map(|id| vec![id])) };
const VECTORS: Makes = Makes {
    program: || without_head(tiny()),
    steps: |executor| Ok([vector(executor, &[5; 20], 0)?, vector(executor, &[7], 20)?]),
};

impl Makes {
    fn load(&self, backend: &CudaBackend) -> Box<dyn Executor> {
        let (program, weights) = (self.program)();
        backend.load(program, &weights, LIMITS).unwrap()
    }
}

fn load(backend: &CudaBackend) -> Result<Box<dyn Executor>, DeviceError> {
    let (program, weights) = tiny();
    backend.load(program, &weights, LIMITS)
}

/// A prompt, and the two tokens after it.
fn step(executor: &mut dyn Executor) -> Result<[u32; 2], DeviceError> {
    let first = draw(executor, &[5; 20], 0)?;
    Ok([first, draw(executor, &[first], 20)?])
}

fn draw(executor: &mut dyn Executor, tokens: &[u32], start: usize) -> Result<u32, DeviceError> {
    forward(executor, tokens, start)?;
    let params = SamplingParams::greedy();
    let position = start + tokens.len();
    executor.sample(&[SampleRow { segment: 0, params: &params, position, prompt: &[], output: &[], mask: None }])?;
    Ok(executor.collect()?[0].as_ref().unwrap().id)
}

fn vector(executor: &mut dyn Executor, tokens: &[u32], start: usize) -> Result<Vec<u32>, DeviceError> {
    forward(executor, tokens, start)?;
    executor.sample(&[])?;
    executor.collect()?;
    Ok(executor.vector(0, 0).unwrap().iter().map(|x| x.to_bits()).collect())
}

fn forward(executor: &mut dyn Executor, tokens: &[u32], start: usize) -> Result<(), DeviceError> {
    let blocks = [BlockId(3), BlockId(0)];
    let segment = Segment { tokens, start, blocks: &blocks, want_result: true, fed: None };
    executor.forward(&Batch { segments: vec![segment] })
}

fn assert_nothing_is_held() {
    let (free, total) = Context::open(0).unwrap().memory().unwrap();
    assert_eq!(free, total, "device memory is left behind");
}

/// What a start ends in: the backend is opened, and a model loaded.
#[derive(Debug)]
enum Refused {
    Open(Unavailable),
    Load(DeviceError),
}

fn start() -> Result<Box<dyn Executor>, Refused> {
    let backend = CudaBackend::open(CudaOptions::default()).map_err(Refused::Open)?;
    load(&backend).map_err(Refused::Load)
}

/// Giving memory back begins with it, and goes on whatever it answers; what comes next then says that a device is lost.
const BIND: &str = "cuCtxSetCurrent";

/// Gives `code` to each call of a start in turn; `said` says whether what the start ended in fits it. The calls.
fn every_call_of_a_start(standin: &Standin, code: i32, said: impl Fn(&Refused, &str) -> bool) -> BTreeSet<String> {
    let mut calls = BTreeSet::new();
    for number in 0.. {
        standin.fail(ANY, number, code);
        let started = start();
        let call = standin.met();
        standin.heal();
        match started {
            Ok(_) if call.is_empty() => break,
            Ok(mut executor) => {
                assert_eq!(call, BIND, "a call failed, and nobody noticed");
                step(&mut *executor).unwrap();
            }
            Err(refused) => assert!(said(&refused, &call), "{call}, call {number} of a start: {refused:?}"),
        }
        assert_nothing_is_held();
        calls.insert(call);
    }
    calls
}

fn assert_all(calls: &BTreeSet<String>, wanted: &[&str]) {
    let missing: Vec<_> = wanted.iter().filter(|call| !calls.contains(**call)).collect();
    assert!(missing.is_empty(), "never called: {missing:?}; called: {calls:?}");
}

#[test]
fn memory_that_runs_out_at_any_call_of_a_start_is_said_and_given_back() {
    let Some((standin, _alone)) = alone() else { return };
    let calls = every_call_of_a_start(standin, OUT_OF_MEMORY, |refused, call| match refused {
        Refused::Load(DeviceError::OutOfMemory { what, .. }) => !what.is_empty(),
        Refused::Open(why) => why.to_string().starts_with(&format!("{call} failed with 2")),
        Refused::Load(_) => false,
    });
    let allocating = ["cuDevicePrimaryCtxRetain", "cuModuleLoadData", "cuMemAlloc_v2", "cuMemHostAlloc"];
    assert_all(&calls, &allocating);
    assert_all(&calls, &["cuStreamCreate", "cuEventCreate", "cublasLtCreate", "cublasLtMatrixLayoutCreate"]);
}

#[test]
fn a_device_that_is_lost_at_any_call_of_a_start_is_said_and_the_next_start_works() {
    let Some((standin, _alone)) = alone() else { return };
    let calls = every_call_of_a_start(standin, LAUNCH_FAILED, |refused, call| match refused {
        Refused::Load(DeviceError::Lost(why)) => why.contains(call) || call == BIND,
        Refused::Open(why) => why.to_string().contains(call) || call == BIND,
        Refused::Load(_) => false,
    });
    assert_all(&calls, &["cuInit", "cuMemcpyHtoDAsync_v2", "cuStreamSynchronize", "cublasLtMatmulAlgoGetHeuristic"]);
}

/// Gives `code` to each call of a step in turn, one executor for each. The calls, and those that a step has survived.
fn every_call_of_a_step(standin: &Standin, makes: &Makes, code: i32) -> [BTreeSet<String>; 2] {
    let backend = open();
    let expected = (makes.steps)(&mut *makes.load(&backend)).unwrap();
    let (mut calls, mut survived) = (BTreeSet::new(), BTreeSet::new());
    for number in 0.. {
        let mut executor = makes.load(&backend);
        standin.fail(ANY, number, code);
        let stepped = (makes.steps)(&mut *executor);
        let call = standin.met();
        if call.is_empty() {
            assert_eq!(stepped.unwrap(), expected);
            break;
        }
        match stepped {
            Ok(made) => {
                assert_eq!(made, expected, "after {call}");
                survived.insert(call.clone());
            }
            Err(error) => assert!(matches!(&error, DeviceError::Lost(why) if why.contains(&call)), "{error}"),
        }
        if code == LAUNCH_FAILED {
            assert!(matches!((makes.steps)(&mut *executor), Err(DeviceError::Lost(_))), "a lost device works on");
        }
        standin.heal();
        drop(executor);
        assert_nothing_is_held();
        if calls.insert(call.clone()) {
            assert_eq!((makes.steps)(&mut *makes.load(&backend)).unwrap(), expected, "after {call} {number}");
        }
    }
    standin.heal();
    [calls, survived]
}

#[test]
fn a_device_that_is_lost_at_any_call_of_a_step_is_replaced_by_the_next_executor() {
    let Some((standin, _alone)) = alone() else { return };
    for makes in [TOKENS, VECTORS] {
        let [calls, survived] = every_call_of_a_step(standin, &makes, LAUNCH_FAILED);
        assert_all(&calls, &["cuLaunchKernel", "cuMemcpyHtoDAsync_v2", "cuMemcpyDtoHAsync_v2", "cublasLtMatmul"]);
        assert_all(&calls, &["cuEventRecord", "cuEventSynchronize", "cuGraphLaunch"]);
        assert_all(&calls, &["cuStreamBeginCapture_v2", "cuStreamEndCapture", "cuGraphInstantiateWithFlags"]);
        assert_eq!(survived, BTreeSet::new());
    }
}

#[test]
fn memory_that_runs_out_in_a_step_is_said_and_a_step_that_cannot_be_recorded_is_queued_plainly() {
    let Some((standin, _alone)) = alone() else { return };
    for makes in [TOKENS, VECTORS] {
        let [calls, survived] = every_call_of_a_step(standin, &makes, OUT_OF_MEMORY);
        assert_all(&calls, &["cuLaunchKernel", "cuGraphLaunch"]);
        assert_all(&survived, &["cuStreamBeginCapture_v2", "cuStreamEndCapture", "cuGraphInstantiateWithFlags"]);
    }
}

#[test]
fn nothing_is_allocated_in_a_step() {
    let Some((standin, _alone)) = alone() else { return };
    for makes in [TOKENS, VECTORS] {
        let mut executor = makes.load(&open());
        let allocating = ["cuMemAlloc_v2", "cuMemHostAlloc", "cuStreamCreate", "cuEventCreate"];
        let allocated = || allocating.map(|call| standin.calls(call));
        let (before, played) = (allocated(), standin.calls("cuGraphLaunch"));
        let expected = (makes.steps)(&mut *executor).unwrap();
        assert_eq!((makes.steps)(&mut *executor).unwrap(), expected);
        assert_eq!(allocated(), before);
        assert!(standin.calls("cuGraphLaunch") > played, "nothing was recorded");
    }
}

/// What a step kept is one area that the next would write.
#[test]
fn a_step_before_the_vectors_of_the_last_were_collected_is_refused() {
    let Some((_, _alone)) = alone() else { return };
    let mut executor = VECTORS.load(&open());
    let expected = vector(&mut *executor, &[5; 20], 0).unwrap();
    forward(&mut *executor, &[5; 20], 0).unwrap();
    assert!(executor.vector(0, 0).is_none(), "it is not there yet");
    executor.sample(&[]).unwrap();
    let refused = forward(&mut *executor, &[6; 20], 0).unwrap_err();
    assert_eq!(refused.to_string(), "bad batch: the vectors of the last step were not collected");
    executor.collect().unwrap();
    assert_eq!(executor.vector(0, 0).unwrap().iter().map(|x| x.to_bits()).collect::<Vec<_>>(), expected);
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
    standin.fail("cuDriverGetVersion", 0, 999);
    assert_eq!(refused().to_string(), "cuDriverGetVersion failed with 999");
    standin.heal();
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

#[test]
fn a_model_that_makes_vectors_takes_no_memory_to_draw_from() {
    let Some((_, _alone)) = alone() else { return };
    let (backend, vocab, max_seqs) = (open(), 4000, 32);
    let steps = StepLimits { max_batch_tokens: 32, max_seqs };
    let room = |(program, _): (Arc<Program>, Weights)| backend.cache_room(&program, &steps, 1).unwrap().unwrap();
    let saved = room(without_head(tiny_of(vocab))) - room(tiny_of(vocab));
    // Logits, adjusted ones and counts.
    assert!(saved >= 3 * max_seqs * vocab * size_of::<f32>(), "{saved} bytes");
}
