//! Products of every element type that the layer over cuBLASLt knows, against sums in f64.

use crate::model::Random;
use half::{bf16, f16};
use std::sync::Arc;
use tidegate_emu::{Device, device};
use tidegate_kernels::blas::{self, Algorithms, Blas, E4m3, Matrix, Operand, Product, WORKSPACE_BYTES};
use tidegate_kernels::driver::{Arena, Context, Pinned, Slice, Stream};
use tidegate_kernels::probe::probe;

/// FP8 asks for multiples of 16, also of the rows.
const OUTS: usize = 48;
const INS: usize = 80;
const ROWS: usize = 32;
/// One rounding of the sum to bf16, and to f16; values here are below 64.
const BF16: f64 = 0.126;
const F16: f64 = 0.0157;

struct Rig {
    context: Arc<Context>,
    stream: Stream,
    memory: Vec<Arena>,
    blas: Blas,
}

impl Rig {
    fn new() -> Option<Self> {
        Self::with(ROWS, Algorithms::Best)
    }

    fn with(max_rows: usize, algorithms: Algorithms) -> Option<Self> {
        device()?;
        probe().unwrap();
        blas::probe().unwrap();
        let context = Context::open(0).unwrap();
        let workspace = Arena::new(&context, WORKSPACE_BYTES).unwrap();
        let blas = Blas::new(workspace.carver().take(WORKSPACE_BYTES).unwrap(), max_rows, algorithms).unwrap();
        Some(Self { stream: Stream::new(&context).unwrap(), memory: vec![workspace], blas, context })
    }

    fn buffer<T>(&mut self, len: usize) -> Slice<T> {
        self.memory.push(Arena::new(&self.context, len * size_of::<T>()).unwrap());
        self.memory.last().unwrap().carver().take(len).unwrap()
    }

    fn upload<T, const N: usize>(&mut self, numbers: &[f32], bits: impl Fn(f32) -> [u8; N]) -> Slice<T> {
        let slice = self.buffer(numbers.len());
        let mut staging = Pinned::new(&self.context, numbers.len() * N).unwrap();
        let (room, _) = staging.bytes_mut().as_chunks_mut::<N>();
        room.iter_mut().zip(numbers).for_each(|(to, x)| *to = bits(*x));
        self.stream.upload(slice, &staging, 0, numbers.len() * N).unwrap();
        self.stream.synchronize().unwrap();
        slice
    }

    fn download<T, const N: usize>(&self, slice: Slice<T>, number: impl Fn([u8; N]) -> f32) -> Vec<f32> {
        let mut staging = Pinned::new(&self.context, slice.bytes()).unwrap();
        self.stream.download(&mut staging, slice, slice.bytes()).unwrap();
        self.stream.synchronize().unwrap();
        staging.bytes()[..slice.bytes()].as_chunks::<N>().0.iter().map(|bytes| number(*bytes)).collect()
    }

    fn multiply(&mut self, what: &str, weight: Operand, bias: Option<Operand>, input: Operand, out: Product) {
        let matrix = Matrix { weight, bias, outs: OUTS, ins: INS };
        let done = self.blas.multiply(&self.stream, &matrix, ROWS, input, out);
        done.unwrap_or_else(|error| panic!("{what}: {error}"));
    }
}

/// Eighths from -1 to 1: exact in every type.
fn eighths(random: &mut Random, len: usize) -> Vec<f32> {
    (0..len).map(|_| random.below(17) as f32 / 8.0 - 1.0).collect()
}

/// The bits of such a number.
fn e4m3(x: f32) -> [u8; 1] {
    let bits = (0..0x7f).find(|bits| {
        let (exponent, fraction) = (bits >> 3, f32::from(*bits as u8 & 7) / 8.0);
        x.abs() == if exponent == 0 { fraction / 64.0 } else { (1.0 + fraction) * 2f32.powi(exponent - 7) }
    });
    [u8::from(x < 0.0) << 7 | bits.unwrap() as u8]
}

fn assert_product(
    (what, rounded): (&str, f64),
    found: &[f32],
    [weight, input]: [&[f32]; 2],
    bias: Option<&[f32]>,
    factor: f64,
) {
    for (row, input) in input.chunks_exact(INS).enumerate() {
        for (out, weight) in weight.chunks_exact(INS).enumerate() {
            let sum: f64 = input.iter().zip(weight).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
            let want = sum * factor + bias.map_or(0.0, |bias| f64::from(bias[out]));
            let got = f64::from(found[row * OUTS + out]);
            assert!((got - want).abs() <= rounded, "{what}: row {row}, output {out} is {got}, expected {want}");
        }
    }
}

#[test]
fn products_of_every_type_are_those_of_f64() {
    let Some(mut rig) = Rig::new() else { return };
    let mut random = Random(5);
    let (weight, input) = (eighths(&mut random, OUTS * INS), eighths(&mut random, ROWS * INS));
    let bias = eighths(&mut random, OUTS);
    let both = [&weight[..], &input[..]];

    let bits = |x| bf16::from_f32(x).to_le_bytes();
    let operands = [&weight, &input, &bias].map(|x| Operand::from(rig.upload::<bf16, 2>(x, bits)));
    let out = rig.buffer::<bf16>(ROWS * OUTS);
    rig.multiply("bf16", operands[0], Some(operands[2]), operands[1], Product::Bf16(out));
    let found = rig.download(out, |bytes| bf16::from_le_bytes(bytes).to_f32());
    assert_product(("bf16", BF16), &found, both, Some(&bias), 1.0);

    let bits = |x| f16::from_f32(x).to_le_bytes();
    let operands = [&weight, &input, &bias].map(|x| Operand::from(rig.upload::<f16, 2>(x, bits)));
    let out = rig.buffer::<f16>(ROWS * OUTS);
    rig.multiply("f16", operands[0], Some(operands[2]), operands[1], Product::F16(out));
    let found = rig.download(out, |bytes| f16::from_le_bytes(bytes).to_f32());
    assert_product(("f16", F16), &found, both, Some(&bias), 1.0);

    let (major, minor) = rig.context.capability().unwrap();
    if (major, minor) < (8, 9) {
        return println!("compute capability {major}.{minor} has no FP8");
    }
    let mut scaled = |x: &[f32], factor: f32| {
        let factor = rig.upload::<f32, 4>(&[factor], f32::to_le_bytes);
        Operand::scaled(rig.upload::<E4m3, 1>(x, e4m3), factor)
    };
    let operands = [scaled(&weight, 0.5), scaled(&input, 0.25)];
    let out = rig.buffer::<bf16>(ROWS * OUTS);
    rig.multiply("FP8", operands[0], None, operands[1], Product::Bf16(out));
    let found = rig.download(out, |bytes| bf16::from_le_bytes(bytes).to_f32());
    assert_product(("FP8", BF16), &found, both, None, 0.125);
}

/// In the shapes of an 8B model, for what is proposed depends on them; the stand-in's part is `deterministic.rs`.
#[test]
fn a_fixed_algorithm_gives_a_row_the_same_bits_beside_any_others() {
    let Some(Device::Machine) = device() else { return println!("only on a device") };
    let shapes = [(6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336)];
    let (rows, most) = ([1, 2, 17, 64, 200, 256, 300, 1024, 2048], 2048);
    let Some(mut rig) = Rig::with(most, Algorithms::Fixed) else { return };
    let mut random = Random(6);
    for (outs, ins) in shapes {
        let bits = |x| bf16::from_f32(x).to_le_bytes();
        let [weight, input] = [outs, most].map(|lines| {
            let numbers: Vec<f32> = (0..lines * ins).map(|_| random.below(2001) as f32 / 1000.0 - 1.0).collect();
            rig.upload::<bf16, 2>(&numbers, bits)
        });
        let matrix = Matrix { weight: weight.into(), bias: None, outs, ins };
        let out = rig.buffer::<bf16>(most * outs);
        let first = rows.iter().map(|&rows| {
            rig.blas.multiply(&rig.stream, &matrix, rows, input, Product::Bf16(out)).unwrap();
            let mut found = rig.download(out, |bytes| bf16::from_le_bytes(bytes).to_f32());
            found.truncate(outs);
            found
        });
        let first: Vec<Vec<f32>> = first.collect();
        for (found, rows) in first.iter().zip(rows) {
            assert!(found == &first[0], "{outs} x {ins}: beside {rows} rows it is another one");
        }
    }
}

#[test]
fn operands_of_two_types_are_refused() {
    let Some(mut rig) = Rig::new() else { return };
    let (weight, input) = (rig.buffer::<bf16>(OUTS * INS), rig.buffer::<f16>(ROWS * INS));
    let out = Product::Bf16(rig.buffer(ROWS * OUTS));
    let matrix = Matrix { weight: weight.into(), bias: None, outs: OUTS, ins: INS };
    let error = rig.blas.multiply(&rig.stream, &matrix, ROWS, input, out).unwrap_err();
    assert_eq!((error.call, error.code), ("cublasLtMatmul", 1));
}
