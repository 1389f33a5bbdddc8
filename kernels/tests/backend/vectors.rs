//! Programs that make vectors, against the reference.

use crate::backend;
use crate::executor::{LIMITS, segment, sequences, small};
use crate::model::build;
use std::sync::Arc;
use tidegate_device::{Backend, Batch, Node, Program, ReferenceBackend, Segment};
use tidegate_types::Pooling;

/// The program without its head.
pub fn without_head(mut program: Program, pooling: Pooling) -> Program {
    if let Some(Node::Logits { residual, delta, norm, eps, .. }) = program.nodes.pop() {
        program.nodes.push(Node::Vectors { residual, delta, norm, eps, pooling });
    }
    program
}

/// Activations, keys, values and the vector itself are rounded to bf16, as a share of the row's root mean square.
const TOLERANCE: f32 = 8e-2;

#[test]
fn vectors_of_the_last_token_agree_with_the_reference() {
    let Some(cuda) = backend() else { return };
    let (program, weights) = build(&small(), 7);
    let program = Arc::new(without_head(program, Pooling::LastToken));
    let sequences = sequences(&[37, 1, 16, 300], program.dims.vocab);
    let vectors = |backend: &dyn Backend| {
        let mut executor = backend.load(Arc::clone(&program), &weights, LIMITS).unwrap();
        // In two pieces, of which the first keeps nothing; the prompt of one token goes with the second.
        let half = |len: usize| len / 2;
        let first = sequences.iter().filter(|s| s.tokens.len() > 1).map(|s| segment(s, 0..half(s.tokens.len())));
        let first = first.map(|segment| Segment { want_result: false, ..segment }).collect();
        executor.forward(&Batch { segments: first }).unwrap();
        assert!(executor.vector(0, 0).is_none() && executor.logits(0).is_none());
        let rest = sequences.iter().map(|s| segment(s, half(s.tokens.len())..s.tokens.len())).collect();
        executor.forward(&Batch { segments: rest }).unwrap();
        executor.sample(&[]).unwrap();
        assert_eq!(executor.collect().unwrap().len(), 0);
        assert!(executor.vector(0, 1).is_none() && executor.logits(0).is_none());
        (0..sequences.len()).map(|i| executor.vector(i, 0).unwrap().to_vec()).collect::<Vec<_>>()
    };
    let (found, expected) = (vectors(&*cuda), vectors(&ReferenceBackend));
    for (row, (found, expected)) in found.iter().zip(&expected).enumerate() {
        near(row, found, expected);
    }
}

/// The engine makes the mean, so its rows are what is compared.
#[test]
fn a_mean_has_every_row_of_every_piece() {
    let Some(cuda) = backend() else { return };
    let (program, weights) = build(&small(), 7);
    let program = Arc::new(without_head(program, Pooling::Mean));
    cuda.check(&program).unwrap();
    let sequences = sequences(&[37, 1, 16, 300], program.dims.vocab);
    // Rows of each sequence, computed in pieces of so many tokens, all sequences at once.
    let rows = |backend: &dyn Backend, piece: usize| {
        let mut executor = backend.load(Arc::clone(&program), &weights, LIMITS).unwrap();
        let mut rows = vec![Vec::new(); sequences.len()];
        for start in (0..300).step_by(piece) {
            let left: Vec<usize> = (0..sequences.len()).filter(|i| sequences[*i].tokens.len() > start).collect();
            let of = |i: usize| segment(&sequences[i], start..sequences[i].tokens.len().min(start + piece));
            let segments: Vec<_> = left.iter().map(|i| of(*i)).collect();
            let sizes: Vec<usize> = segments.iter().map(|segment| segment.num_tokens()).collect();
            // Nobody says which piece is the last: a mean wants all.
            let segments = segments.into_iter().map(|s| Segment { want_result: false, ..s }).collect();
            executor.forward(&Batch { segments }).unwrap();
            executor.sample(&[]).unwrap();
            assert_eq!(executor.collect().unwrap().len(), 0);
            for (at, (i, size)) in left.into_iter().zip(sizes).enumerate() {
                assert!(executor.vector(at, size).is_none() && executor.logits(at).is_none());
                rows[i].extend((0..size).map(|row| executor.vector(at, row).unwrap().to_vec()));
            }
        }
        rows
    };
    let expected = rows(&ReferenceBackend, 100);
    for piece in [100, 16] {
        let found = rows(&*cuda, piece);
        for (found, expected) in found.iter().zip(&expected) {
            assert_eq!(found.len(), expected.len());
            found.iter().zip(expected).enumerate().for_each(|(row, (found, expected))| near(row, found, expected));
        }
    }
}

/// A prompt of one token goes through a recorded graph, whose rows are padded.
#[test]
fn a_mean_of_one_token_each_is_that_of_a_graph_too() {
    let Some(cuda) = backend() else { return };
    let (program, weights) = build(&small(), 7);
    let program = Arc::new(without_head(program, Pooling::Mean));
    let sequences = sequences(&[1, 1, 1], program.dims.vocab);
    let rows = |backend: &dyn Backend| {
        let mut executor = backend.load(Arc::clone(&program), &weights, LIMITS).unwrap();
        let segments = sequences.iter().map(|sequence| segment(sequence, 0..1)).collect();
        executor.forward(&Batch { segments }).unwrap();
        executor.sample(&[]).unwrap();
        executor.collect().unwrap();
        (0..sequences.len()).map(|i| executor.vector(i, 0).unwrap().to_vec()).collect::<Vec<_>>()
    };
    let (found, expected) = (rows(&*cuda), rows(&ReferenceBackend));
    found.iter().zip(&expected).enumerate().for_each(|(row, (found, expected))| near(row, found, expected));
}

fn near(row: usize, found: &[f32], expected: &[f32]) {
    assert_eq!(found.len(), expected.len());
    let rms = (expected.iter().map(|x| x * x).sum::<f32>() / expected.len() as f32).sqrt();
    let worst = found.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max) / rms;
    assert!(worst <= TOLERANCE, "row {row}: {worst} of the rms");
}
