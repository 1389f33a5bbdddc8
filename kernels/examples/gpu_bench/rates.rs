//! What the device itself can do, measured in the same run as everything else: the floors are made of these.

use crate::{Failure, open, row};
use half::{bf16, f16};
use serde_json::json;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidegate_kernels::blas::{Algorithms, Blas, E4m3, Matrix, Operand, Product, WORKSPACE_BYTES};
use tidegate_kernels::driver::{Arena, Carver, Context, Pinned, Slice, Stream};

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
    factor: Slice<f32>,
    workspace: Slice<u8>,
}

impl Buffers {
    fn carve(carver: &mut Carver, bytes: usize, size: usize) -> Option<Self> {
        let square = size.checked_mul(size)?;
        Some(Self {
            copied: [carver.take(bytes)?, carver.take(bytes)?],
            matrices: [carver.take(square)?, carver.take(square)?, carver.take(square)?],
            factor: carver.take(1)?,
            workspace: carver.take(WORKSPACE_BYTES)?,
        })
    }
}

/// Prints the bandwidth, and the rate of products of each type: floors are made of bf16's.
pub fn measure(bytes: usize, size: usize) -> Result<(), Failure> {
    // The backend knows how to find and probe the libraries.
    open(Algorithms::Best)?;
    let context = Context::open(0)?;
    let stream = Stream::new(&context)?;
    let mut counting = Carver::measuring();
    Buffers::carve(&mut counting, bytes, size).ok_or("the sizes overflow")?;
    let arena = Arena::new(&context, counting.used())?;
    let buffers = Buffers::carve(&mut arena.carver(), bytes, size).ok_or("the sizes overflow")?;
    let Buffers { copied: [from, to], matrices: [weight, input, out], factor, workspace } = buffers;
    stream.zero(from)?;
    let time = least(&stream, || Ok(stream.copy(to, from)?))?;
    let rate = 2.0 * bytes as f64 / time.as_secs_f64();
    row::print(&json!({"figure": "bandwidth", "by": "device", "unit": "bytes/s", "value": rate, "bytes": bytes}));
    let mut products = Products { blas: Blas::new(workspace, size, Algorithms::Best)?, stream: &stream, size };
    for matrix in [weight, input] {
        fill(&context, &stream, matrix, |x| bf16::from_f32(x).to_le_bytes())?;
    }
    products.measure("matrix rate", [weight.into(), input.into()], Product::Bf16(out))?;
    let [weight, input] = [weight, input].map(|matrix| matrix.cast::<f16>());
    for matrix in [weight, input] {
        fill(&context, &stream, matrix, |x| f16::from_f32(x).to_le_bytes())?;
    }
    products.measure_or_say("matrix rate, f16", [weight.into(), input.into()], Product::F16(out.cast()));
    let [weight, input] = [weight, input].map(|matrix| matrix.cast::<E4m3>());
    fill(&context, &stream, factor, |_| 1f32.to_le_bytes())?;
    for matrix in [weight, input] {
        // The sign, and numbers below 2.
        fill(&context, &stream, matrix, |x| [u8::from(x < 0.0) << 7 | (x.abs() * 63.0) as u8])?;
    }
    let operands = [weight, input].map(|matrix| Operand::scaled(matrix, factor));
    products.measure_or_say("matrix rate, FP8", operands, Product::Bf16(out));
    Ok(())
}

/// Square products of one size.
struct Products<'a> {
    blas: Blas,
    stream: &'a Stream,
    size: usize,
}

impl Products<'_> {
    /// Of a type that a device may lack: prints the rate, or why there is none.
    fn measure_or_say(&mut self, figure: &str, operands: [Operand; 2], out: Product) {
        if let Err(why) = self.measure(figure, operands, out) {
            row::print(&json!({"figure": figure, "by": "device", "skipped": why.to_string()}));
        }
    }

    fn measure(&mut self, figure: &str, [weight, input]: [Operand; 2], out: Product) -> Result<(), Failure> {
        let Self { blas, stream, size } = self;
        let matrix = Matrix { weight, bias: None, outs: *size, ins: *size };
        let time = least(stream, || Ok(blas.multiply(stream, &matrix, *size, input, out)?))?;
        let rate = 2.0 * (*size as f64).powi(3) / time.as_secs_f64();
        row::print(&json!({"figure": figure, "by": "device", "unit": "FLOP/s", "value": rate, "size": size}));
        Ok(())
    }
}

/// Random numbers from -1 to 1: a device computes zeros with less power, and so faster, than anything real.
fn fill<T, const N: usize>(
    context: &Arc<Context>,
    stream: &Stream,
    mut to: Slice<T>,
    bits: impl Fn(f32) -> [u8; N],
) -> Result<(), Failure> {
    let elems = to.len().min((1 << 20) + 7919);
    let mut staging = Pinned::new(context, N * elems)?;
    let mut state = 1u32;
    let (numbers, _) = staging.bytes_mut().as_chunks_mut::<N>();
    for number in numbers.iter_mut().take(elems) {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        *number = bits(state as f32 / 2_147_483_648.0 - 1.0);
    }
    while !to.is_empty() {
        let count = to.len().min(elems);
        stream.upload(to, &staging, 0, N * count)?;
        to = to.from(count);
    }
    Ok(stream.synchronize()?)
}
