//! `--deterministic`: the bits of a row do not depend on the rows beside it, though each algorithm of a product rounds in
//! its own way.

use crate::executor::{LIMITS, forward, segment, sequences, small};
use crate::is_alone;
use crate::model::{Weights, build};
use std::sync::Arc;
use tidegate_device::{Backend, Program};
use tidegate_emu::{Device, device};
use tidegate_kernels::blas::Algorithms;
use tidegate_kernels::{CudaBackend, CudaOptions};

/// Lengths of prompts. None of them fills a block: there is room for a token more.
const LENS: [usize; 5] = [3, 1, 20, 9, 40];

type Logits = Vec<Vec<f32>>;

/// The logits of each prompt and of the token after it: computed alone, and all together.
fn alone_and_together(model: &(Program, Weights), algorithms: Algorithms) -> [Logits; 2] {
    let backend = CudaBackend::open(CudaOptions { algorithms, ..CudaOptions::default() }).unwrap();
    let load = || backend.load(Arc::new(model.0.clone()), &model.1, LIMITS).unwrap();
    let mut all = sequences(&LENS, model.0.dims.vocab);
    all.iter_mut().for_each(|sequence| sequence.tokens.push(7));
    let parts: [fn(usize) -> std::ops::Range<usize>; 2] = [|len| 0..len, |len| len..len + 1];
    let (mut one, mut many) = (load(), load());
    let (mut alone, mut together) = (Vec::new(), Vec::new());
    for part in parts {
        for (sequence, len) in all.iter().zip(LENS) {
            alone.extend(forward(&mut *one, vec![segment(sequence, part(len))]));
        }
        together.extend(forward(&mut *many, all.iter().zip(LENS).map(|(s, len)| segment(s, part(len))).collect()));
    }
    [alone, together]
}

#[test]
fn a_batch_of_one_and_of_many_agree_to_the_bit() {
    let Some(device) = device() else { return };
    let model = build(&small(), 21);
    if let Device::Standin(standin) = device {
        if !is_alone("deterministic::a_batch_of_one_and_of_many_agree_to_the_bit") {
            return;
        }
        standin.rounding(true);
        // What the test is for: with the best algorithm for each number of rows they differ.
        let [alone, together] = alone_and_together(&model, Algorithms::Best);
        assert_ne!(alone, together, "the stand-in's algorithms all round alike");
    }
    let [alone, together] = alone_and_together(&model, Algorithms::Fixed);
    assert_eq!(alone, together);
}
