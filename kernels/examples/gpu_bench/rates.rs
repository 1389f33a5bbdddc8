//! What the device itself can do, measured in the same run as everything else: the floors are made of these.

use crate::{Failure, open, row};
use half::bf16;
use serde_json::json;
use std::time::{Duration, Instant};
use tidegate_kernels::blas::{Algorithms, Blas, Matrix, Product, WORKSPACE_BYTES};
use tidegate_kernels::driver::{Arena, Carver, Context, Slice, Stream};

const REPEATS: usize = 10;
/// Operations that are queued before the host waits, so that its own time does not count.
const QUEUED: u32 = 8;

/// The least time of one operation.
pub fn least(stream: &Stream, mut queue: impl FnMut() -> Result<(), Failure>) -> Result<Duration, Failure> {
    let mut best = Duration::MAX;
    for _ in 0..REPEATS {
        stream.synchronize()?;
        let start = Instant::now();
        for _ in 0..QUEUED {
            queue()?;
        }
        stream.synchronize()?;
        best = best.min(start.elapsed() / QUEUED);
    }
    Ok(best)
}

struct Buffers {
    copied: [Slice<u8>; 2],
    matrices: [Slice<bf16>; 3],
    workspace: Slice<u8>,
}

impl Buffers {
    fn carve(carver: &mut Carver, bytes: usize, size: usize) -> Option<Self> {
        let square = size.checked_mul(size)?;
        Some(Self {
            copied: [carver.take(bytes)?, carver.take(bytes)?],
            matrices: [carver.take(square)?, carver.take(square)?, carver.take(square)?],
            workspace: carver.take(WORKSPACE_BYTES)?,
        })
    }
}

/// Prints both rates.
pub fn measure(bytes: usize, size: usize) -> Result<(), Failure> {
    // The backend knows how to find and probe the libraries.
    open(Algorithms::Best)?;
    let context = Context::open(0)?;
    let stream = Stream::new(&context)?;
    let mut counting = Carver::measuring();
    Buffers::carve(&mut counting, bytes, size).ok_or("the sizes overflow")?;
    let arena = Arena::new(&context, counting.used())?;
    let buffers = Buffers::carve(&mut arena.carver(), bytes, size).ok_or("the sizes overflow")?;
    let Buffers { copied: [from, to], matrices: [weight, input, out], workspace } = buffers;
    stream.zero(from)?;
    let time = least(&stream, || Ok(stream.copy(to, from)?))?;
    let rate = 2.0 * bytes as f64 / time.as_secs_f64();
    row::print(&json!({"figure": "bandwidth", "by": "device", "unit": "bytes/s", "value": rate, "bytes": bytes}));
    for matrix in [weight, input] {
        fill(&context, &stream, matrix)?;
    }
    let mut blas = Blas::new(workspace, size, Algorithms::Best)?;
    let matrix = Matrix { weight, bias: None, outs: size, ins: size };
    let time = least(&stream, || Ok(blas.multiply(&stream, &matrix, size, input, Product::Bf16(out))?))?;
    let rate = 2.0 * (size as f64).powi(3) / time.as_secs_f64();
    row::print(&json!({"figure": "matrix rate", "by": "device", "unit": "FLOP/s", "value": rate, "size": size}));
    Ok(())
}

/// Random numbers: a device computes zeros with less power, and so faster, than anything real.
fn fill(context: &std::sync::Arc<Context>, stream: &Stream, matrix: Slice<bf16>) -> Result<(), Failure> {
    use tidegate_kernels::driver::Pinned;
    let elems = matrix.len().min((1 << 20) + 7919);
    let mut staging = Pinned::new(context, 2 * elems)?;
    let mut state = 1u32;
    let (numbers, _) = staging.bytes_mut().as_chunks_mut::<2>();
    for number in numbers.iter_mut().take(elems) {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        *number = bf16::from_f32(state as f32 / 2_147_483_648.0 - 1.0).to_le_bytes();
    }
    let mut to = matrix;
    while !to.is_empty() {
        let count = to.len().min(elems);
        stream.upload(to, &staging, 0, 2 * count)?;
        to = to.from(count);
    }
    Ok(stream.synchronize()?)
}
