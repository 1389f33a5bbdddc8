//! Algorithms by timing: what the heuristic proposes for each shape and number of rows, tried with the model's own
//! weights, and kept on disk for the next start.
//!
//! A choice is kept under a digest of all that it depends on: device, version of the library, workspace, and the shapes;
//! the file begins with a digest of itself. What is kept is opaque numbers of the library, which its documentation allows
//! to store for the same version.

use super::{
    Blas, CANDIDATES, Call, CudaError, Element, INVALID_VALUE, Key, Matrix, Operand, Product, Shape, is_refusal,
};
use crate::driver::{Slice, Stream};
use crate::kept;
use cudarc::cublaslt::sys;
use half::bf16;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Times that each is run; the least time counts.
const REPEATS: usize = 3;
/// Runs that are queued before the host waits, so that its own time does not count.
const QUEUED: u32 = 4;
/// Bytes of a key and of an algorithm in the file.
const KEY_BYTES: usize = 32;
const ALGORITHM_BYTES: usize = size_of::<sys::cublasLtMatmulAlgo_t>();

/// What products are tried with; what is in the memory does not matter, and afterwards it holds anything.
#[derive(Clone, Copy, Debug)]
pub struct Bench<'a> {
    /// Room for the largest batch.
    pub input: Slice<bf16>,
    /// Likewise, for all but logits.
    pub out: Slice<bf16>,
    /// Room for the logits.
    pub logits: Slice<f32>,
    /// The matrices of the model, each with whether it makes logits; those of one shape take turns, so that none comes
    /// from the second-level cache that would not in a step.
    pub matrices: &'a [(Matrix, bool)],
    /// Names the device.
    pub device: &'a str,
    /// Where choices are kept.
    pub folder: Option<&'a Path>,
}

type Chosen = HashMap<Key, sys::cublasLtMatmulAlgo_t>;

impl Blas {
    /// Chooses an algorithm for each shape and number of rows: the kept one, or the fastest. Says how many were timed.
    pub fn tune(&mut self, stream: &Stream, bench: &Bench<'_>) -> Result<usize, CudaError> {
        let keys = self.keys(bench);
        let path = bench.folder.map(|folder| folder.join(self.file_name(bench.device, &keys)));
        if let Some(chosen) = path.as_deref().and_then(kept::read).and_then(|bytes| parse(&bytes, &keys)) {
            self.chosen.extend(chosen);
            return Ok(0);
        }
        for key in &keys {
            let algorithm = self.fastest(stream, bench, key)?;
            self.chosen.insert(*key, algorithm);
        }
        // A folder that cannot be written costs the next start its time, and nothing else.
        let _ = path.map(|path| kept::write(&path, &self.print(&keys)));
        Ok(keys.len())
    }

    /// Every shape with every number of rows that has room.
    fn keys(&self, bench: &Bench<'_>) -> Vec<Key> {
        let mut keys = Vec::new();
        for (matrix, wide) in bench.matrices {
            let room = if *wide { bench.logits.len() } else { bench.out.len() } / matrix.outs.max(1);
            let rows = room.min(bench.input.len() / matrix.ins.max(1));
            for key in self.buckets().filter(|bucket| *bucket <= rows).map(|rows| Key::new(matrix, rows, out_of(*wide)))
            {
                if !keys.contains(&key) {
                    keys.push(key);
                }
            }
        }
        keys
    }

    fn file_name(&self, device: &str, keys: &[Key]) -> PathBuf {
        // SAFETY: takes nothing and gives a number.
        let version = unsafe { sys::cublasLtGetVersion() };
        let mut hasher = blake3::Hasher::new();
        hasher.update(format!("{device}\n{version} {} {CANDIDATES}", self.workspace.bytes()).as_bytes());
        for key in keys {
            hasher.update(&key.bytes());
        }
        PathBuf::from(format!("products-{}.bin", &hasher.finalize().to_hex()[..24]))
    }

    fn fastest(&self, stream: &Stream, bench: &Bench<'_>, key: &Key) -> Result<sys::cublasLtMatmulAlgo_t, CudaError> {
        let fits = |(matrix, wide): &&(Matrix, bool)| Key::new(matrix, key.rows, out_of(*wide)) == *key;
        let matrices: Vec<Matrix> = bench.matrices.iter().filter(fits).map(|(matrix, _)| *matrix).collect();
        let first = matrices.first().ok_or(CudaError { call: "cublasLtMatmul", code: INVALID_VALUE })?;
        let proposed = self.propose(&Shape::new(first, key.rows, (None, key.out))?, CANDIDATES)?;
        let mut best = (Duration::MAX, proposed[0]);
        if proposed.len() == 1 {
            return Ok(best.1);
        }
        let out = if key.out == Element::F32 { Product::F32(bench.logits) } else { Product::Bf16(bench.out) };
        for algorithm in proposed {
            match self.time(stream, &matrices, (key.rows, bench.input, out), &algorithm) {
                Ok(time) if time < best.0 => best = (time, algorithm),
                Err(error) if !is_refusal(error) => return Err(error),
                _ => {}
            }
        }
        Ok(best.1)
    }

    /// The least time of some runs.
    fn time(
        &self,
        stream: &Stream,
        matrices: &[Matrix],
        (rows, input, out): (usize, Slice<bf16>, Product),
        algorithm: &sys::cublasLtMatmulAlgo_t,
    ) -> Result<Duration, CudaError> {
        let input = Operand::from(input);
        let mut turns = matrices.iter().cycle();
        let mut run = || {
            let Some(matrix) = turns.next() else { return Ok(()) };
            let shape = Shape::new(matrix, rows, (None, out.element()))?;
            self.queue(stream, &Call { matrix, input, out: out.address(), shape: &shape }, algorithm)
        };
        run()?;
        let mut least = Duration::MAX;
        for _ in 0..REPEATS {
            stream.synchronize()?;
            let start = Instant::now();
            (0..QUEUED).try_for_each(|_| run())?;
            stream.synchronize()?;
            least = least.min(start.elapsed() / QUEUED);
        }
        Ok(least)
    }

    fn print(&self, keys: &[Key]) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(keys.len() * (KEY_BYTES + ALGORITHM_BYTES));
        for (key, algorithm) in keys.iter().filter_map(|key| Some((key, self.chosen.get(key)?))) {
            bytes.extend(key.bytes());
            bytes.extend(algorithm.data.iter().flat_map(|word| word.to_le_bytes()));
        }
        bytes
    }
}

impl Key {
    fn bytes(&self) -> [u8; KEY_BYTES] {
        let kind = u64::from(self.biased) | (self.element as u64) << 8 | (self.out as u64) << 16;
        let mut bytes = [0; KEY_BYTES];
        let (words, _) = bytes.as_chunks_mut::<8>();
        for (to, word) in words.iter_mut().zip([self.outs as u64, self.ins as u64, self.rows as u64, kind]) {
            *to = word.to_le_bytes();
        }
        bytes
    }
}

/// The type of logits or of activations.
fn out_of(wide: bool) -> Element {
    if wide { Element::F32 } else { Element::Bf16 }
}

/// The choices of a file, if it has one for each key in their order.
fn parse(bytes: &[u8], keys: &[Key]) -> Option<Chosen> {
    let entries = bytes.chunks_exact(KEY_BYTES + ALGORITHM_BYTES);
    let whole = bytes.len() == keys.len() * (KEY_BYTES + ALGORITHM_BYTES);
    let entry = |(key, bytes): (&Key, &[u8])| {
        let algorithm = bytes.strip_prefix(&key.bytes()[..])?;
        let mut data = [0; ALGORITHM_BYTES / 8];
        let (words, _) = algorithm.as_chunks::<8>();
        data.iter_mut().zip(words).for_each(|(to, word)| *to = u64::from_le_bytes(*word));
        Some((*key, sys::cublasLtMatmulAlgo_t { data }))
    };
    if whole { keys.iter().zip(entries).map(entry).collect() } else { None }
}
