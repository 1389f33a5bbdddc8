//! `--deterministic`: the bits of a row do not depend on the rows beside it, though each algorithm of a product rounds in
//! its own way. So do those of a vector, which is made of the last row.

use crate::executor::{LIMITS, forward, segment, sequences, small};
use crate::is_alone;
use crate::model::{Shape, Weights, build};
use crate::vectors::without_head;
use std::sync::Arc;
use tidegate_device::{Backend, Batch, Dims, Executor, Program, Segment};
use tidegate_emu::{Device, device};
use tidegate_kernels::blas::Algorithms;
use tidegate_kernels::{CudaBackend, CudaOptions};
use tidegate_types::Pooling;

/// Lengths of prompts. None of them fills a block: there is room for a token more.
const LENS: [usize; 5] = [3, 1, 20, 9, 40];

/// Logits or vectors, one row for each prompt.
type Made = Vec<Vec<f32>>;

/// What is made of each prompt and of the token after it: computed alone, and all together.
fn alone_and_together(model: &(Program, Weights), algorithms: Algorithms) -> [Made; 2] {
    let backend = CudaBackend::open(CudaOptions { algorithms, ..CudaOptions::default() }).unwrap();
    let load = || backend.load(Arc::new(model.0.clone()), &model.1, LIMITS).unwrap();
    let mut all = sequences(&LENS, model.0.dims.vocab);
    all.iter_mut().for_each(|sequence| sequence.tokens.push(7));
    let parts: [fn(usize) -> std::ops::Range<usize>; 2] = [|len| 0..len, |len| len..len + 1];
    let make = if model.0.pooling().is_some() { vectors } else { forward };
    let (mut one, mut many) = (load(), load());
    let (mut alone, mut together) = (Vec::new(), Vec::new());
    for part in parts {
        for (sequence, len) in all.iter().zip(LENS) {
            alone.extend(make(&mut *one, vec![segment(sequence, part(len))]));
        }
        together.extend(make(&mut *many, all.iter().zip(LENS).map(|(s, len)| segment(s, part(len))).collect()));
    }
    [alone, together]
}

fn vectors(executor: &mut dyn Executor, segments: Vec<Segment<'_>>) -> Made {
    let count = segments.len();
    executor.forward(&Batch { segments }).unwrap();
    executor.sample(&[]).unwrap();
    executor.collect().unwrap();
    (0..count).map(|i| executor.vector(i, 0).unwrap().to_vec()).collect()
}

#[test]
fn a_batch_of_one_and_of_many_agree_to_the_bit() {
    let Some(device) = device() else { return };
    let model = build(&small(), 21);
    // Vectors are rounded to bf16, as all is before them: more layers, for what is rounded otherwise to be seen.
    let deep = Shape { dims: Dims { num_layers: 6, hidden: 96, ..small().dims }, ..small() };
    let (program, weights) = build(&deep, 21);
    let model_of_vectors = (without_head(program, Pooling::LastToken), weights);
    if let Device::Standin(standin) = device {
        if !is_alone("deterministic::a_batch_of_one_and_of_many_agree_to_the_bit") {
            return;
        }
        standin.rounding(true);
        // What the test is for: with the best algorithm for each number of rows they differ.
        for model in [&model, &model_of_vectors] {
            let [alone, together] = alone_and_together(model, Algorithms::Best);
            assert_ne!(alone, together, "the stand-in's algorithms all round alike");
        }
    }
    for model in [&model, &model_of_vectors] {
        let [alone, together] = alone_and_together(model, Algorithms::Fixed);
        assert_eq!(alone, together);
    }
}
