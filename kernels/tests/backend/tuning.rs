//! Algorithms of products: the fastest is found and kept; what is kept is used, and what is damaged is made again.

use crate::executor::small;
use crate::is_alone;
use crate::model::build;
use std::path::Path;
use std::sync::Arc;
use tidegate_device::{Backend, Batch, BlockId, Limits, Segment};
use tidegate_emu::{Standin, standin};
use tidegate_kernels::blas::Algorithms;
use tidegate_kernels::{CudaBackend, CudaOptions};

const LIMITS: Limits = Limits { num_blocks: 8, block_tokens: 16, max_batch_tokens: 8, max_seqs: 2 };
/// Of five proposed: the last is refused, and those before this one are slow.
const FASTEST: i32 = 3;

#[test]
fn the_fastest_algorithm_is_found_and_kept() {
    let Some(standin) = standin() else { return };
    if !is_alone("tuning::the_fastest_algorithm_is_found_and_kept") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let first = run(standin, folder.path(), Algorithms::Best, 5);
    assert!(first.timed.iter().all(|&count| count > 0), "{first:?}");
    assert_eq!(first.used, FASTEST_ONLY, "{first:?}");
    let second = run(standin, folder.path(), Algorithms::Best, 5);
    assert_eq!((second.timed, second.used), ([0; 4], FASTEST_ONLY), "what was kept is used");
    let kept = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path());
    let kept = kept.into_iter().find(|path| path.to_string_lossy().contains("products-")).unwrap();
    let whole = std::fs::read(&kept).unwrap();
    std::fs::write(&kept, &whole[..whole.len() - 9]).unwrap();
    let third = run(standin, folder.path(), Algorithms::Best, 5);
    assert!(third.timed.iter().all(|&count| count > 0) && third.used == FASTEST_ONLY, "{third:?}");
    assert_eq!(first.logits, second.logits);
    // Fixed algorithms are the heuristic's, whatever is faster, so that no timing decides about bits.
    let fixed = run(standin, folder.path(), Algorithms::Fixed, 1);
    assert_eq!((fixed.timed, &fixed.logits), ([0; 4], &first.logits));
    // The first of them that takes any rows.
    let fixed = run(standin, folder.path(), Algorithms::Fixed, 5);
    assert_eq!((fixed.used, fixed.logits), ([false, true, false, false], first.logits));
}

const FASTEST_ONLY: [bool; 4] = [false, false, false, true];

#[derive(Debug)]
struct Run {
    /// How often each algorithm was queued while the model was loaded.
    timed: [i32; 4],
    /// Which were in a step.
    used: [bool; 4],
    logits: Vec<f32>,
}

/// Loads a model and computes a step of as many rows as algorithms are chosen for.
fn run(standin: &Standin, folder: &Path, algorithms: Algorithms, proposed: i32) -> Run {
    let options = CudaOptions { cache: Some(folder.to_owned()), algorithms, ..CudaOptions::default() };
    let backend = CudaBackend::open(options).unwrap();
    let (program, weights) = build(&small(), 3);
    standin.algorithms(proposed);
    let mut executor = backend.load(Arc::new(program), &weights, LIMITS).unwrap();
    let queued = || [0, 1, 2, FASTEST].map(|number| standin.queued(number));
    let timed = queued();
    let blocks = [BlockId(0)];
    let segment = Segment { tokens: &[1; 8], fed: None, start: 0, blocks: &blocks, want_result: true };
    executor.forward(&Batch { segments: vec![segment] }).unwrap();
    let logits = executor.logits(0).unwrap().to_vec();
    let (before, after) = (timed, queued());
    let used = std::array::from_fn(|i| after[i] > before[i]);
    standin.algorithms(1);
    Run { timed, used, logits }
}
