//! Products of small integers, which every format and order of summing gives exactly: so `==`, and any lane, pair,
//! block or tile that goes astray shows. Instruction sets that the processor lacks are named on standard error.

use super::*;
use crate::cpu::memory::Memory;
use crate::cpu::pack::{ROW_MULTIPLE, STRIP};
#[cfg(target_arch = "x86_64")]
use crate::cpu::simd::avx512::Avx512;
use crate::cpu::simd::portable::Portable;
use crate::cpu::simd::{DOT, EXACT, TILES};
use half::{bf16, f16};

fn weight(row: usize, col: usize) -> f32 {
    ((row * 31 + col * 17 + row * col) % 15) as f32 - 7.0
}

fn activation(token: usize, col: usize) -> f32 {
    ((token * 13 + col * 7 + token * col) % 11) as f32 - 5.0
}

fn encode(dtype: DType, x: f32) -> Vec<u8> {
    match dtype {
        DType::F32 => x.to_le_bytes().to_vec(),
        DType::F16 => f16::from_f32(x).to_le_bytes().to_vec(),
        DType::BF16 => bf16::from_f32(x).to_le_bytes().to_vec(),
    }
}

/// A matrix of [`weight`]s, and the bytes that it points into.
fn pack(dtype: DType, rows: usize, cols: usize) -> (Vec<u8>, Matrix) {
    let layout = Layout { dtype, rows: rows.next_multiple_of(ROW_MULTIPLE), cols, strip: STRIP };
    let mut bytes = vec![0; layout.bytes().unwrap()];
    for row in 0..rows {
        let source: Vec<u8> = (0..cols).flat_map(|col| encode(dtype, weight(row, col))).collect();
        let strip = bytes.chunks_exact_mut(layout.strip_bytes()).nth(row / ROW_MULTIPLE).unwrap();
        layout.pack_row(strip, row % ROW_MULTIPLE, &source, dtype);
    }
    // SAFETY: the caller keeps the bytes.
    let matrix = unsafe { Matrix::new(layout, bytes.as_ptr()) };
    (bytes, matrix)
}

fn zeroed_rows(count: usize, width: usize) -> (Memory, Rows) {
    let memory = Memory::zeroed(count * Rows::stride_of(width) * 4, "a test").unwrap();
    let rows = Rows::new(&memory, 0, count, width).unwrap();
    (memory, rows)
}

/// `tokens` tokens through a matrix of `rows` by `cols`, all units of `workers`.
fn check<S: Simd>(s: S, dtype: DType, (rows, cols): (usize, usize), tokens: usize, workers: usize) {
    let (_bytes, matrix) = pack(dtype, rows, cols);
    let (_input, input) = zeroed_rows(tokens, cols);
    let (_panel, panel) = zeroed_rows(1, panel_len(tokens, cols));
    let (_out, out) = zeroed_rows(tokens, rows);
    let bias: Vec<f32> = (0..out.stride).map(|n| if n < rows { n as f32 } else { 0.0 }).collect();
    for t in 0..tokens {
        // SAFETY: one thread.
        unsafe { input.row_mut(t) }.iter_mut().enumerate().for_each(|(col, x)| *x = activation(t, col));
    }
    let packing = PackPanel::new::<S>(input, tokens, dtype, panel.ptr(0));
    (0..packing.tiles.count).for_each(|tile| packing.unit(s, tile));
    let linear = Linear::new::<S>(matrix, Some(&bias), panel.ptr(0), tokens, out, workers);
    (0..linear.units()).rev().for_each(|unit| linear.unit(s, unit));
    for t in 0..tokens {
        // SAFETY: one thread.
        for (n, x) in unsafe { out.row(t) }.iter().enumerate() {
            let expected = n as f32 + (0..cols).map(|col| activation(t, col) * weight(n, col)).sum::<f32>();
            assert_eq!(*x, expected, "{} {dtype:?}, {rows} by {cols}, {tokens} tokens: token {t}, row {n}", S::NAME);
        }
    }
}

/// All numbers of tokens up to 30, and more; few and many rows; columns within a block, and over several.
fn check_all<S: Simd>(s: S) {
    for dtype in [DType::BF16, DType::F16, DType::F32] {
        for tokens in 1..=30 {
            check(s, dtype, (70, 37), tokens, 1 + tokens % 3);
        }
        for tokens in [1, 2, 3, 5, 7, 13, 24] {
            check(s, dtype, (33, 1290), tokens, 2);
        }
        check(s, dtype, (200, 130), 160, 3);
        check(s, dtype, (96, 2100), 45, 2);
        check(s, dtype, (1, 1), 1, 1);
    }
}

#[test]
fn portable_products_are_exact() {
    check_all(Portable::<EXACT>);
}

#[test]
fn emulated_two_term_products_are_exact() {
    check_all(Portable::<DOT>);
}

#[test]
fn emulated_products_on_tiles_are_exact() {
    check_all(Portable::<TILES>);
}

/// Numbers that are rounded at each sum: the emulation says in which order the processor's tiles sum, and that the
/// number of tokens, blocks and threads changes nothing.
#[cfg(target_arch = "x86_64")]
#[test]
fn tiles_give_the_bits_of_their_emulation() {
    let Some(tiles) = Avx512::<TILES>::detect() else {
        tidegate_skipped::skipped!("this processor lacks AMX BF16");
        return;
    };
    for (rows, cols) in [(64, 96), (33, 2100)] {
        let expected = products(Portable::<TILES>, (rows, cols), 1, 1);
        for (tokens, workers) in [(1, 1), (2, 2), (17, 1), (45, 3), (120, 2)] {
            let found = products(tiles, (rows, cols), tokens, workers);
            assert_eq!(found[0], expected[0], "{rows} by {cols}, {tokens} tokens");
            assert_eq!(
                found,
                products(Portable::<TILES>, (rows, cols), tokens, 1),
                "{rows} by {cols}, {tokens} tokens"
            );
        }
    }
}

/// The bits of what comes out for activations that bf16 does not hold, by token.
#[cfg(target_arch = "x86_64")]
fn products<S: Simd>(s: S, (rows, cols): (usize, usize), tokens: usize, workers: usize) -> Vec<Vec<u32>> {
    let (_bytes, matrix) = pack(DType::BF16, rows, cols);
    let (_input, input) = zeroed_rows(tokens, cols);
    let (_panel, panel) = zeroed_rows(1, panel_len(tokens, cols));
    let (_out, out) = zeroed_rows(tokens, rows);
    for t in 0..tokens {
        let number = |(col, x): (usize, &mut f32)| *x = (activation(t, col) + 0.37) * 1.1_f32.powi(col as i32 % 40);
        // SAFETY: one thread.
        unsafe { input.row_mut(t) }.iter_mut().enumerate().for_each(number);
    }
    let packing = PackPanel::new::<S>(input, tokens, DType::BF16, panel.ptr(0));
    (0..packing.tiles.count).for_each(|tile| packing.unit(s, tile));
    let linear = Linear::new::<S>(matrix, None, panel.ptr(0), tokens, out, workers);
    (0..linear.units()).for_each(|unit| linear.unit(s, unit));
    // SAFETY: one thread.
    (0..tokens).map(|t| unsafe { out.row(t) }.iter().map(|x| x.to_bits()).collect()).collect()
}

#[cfg(target_arch = "x86_64")]
#[test]
fn products_with_every_instruction_set_of_this_processor_are_exact() {
    use crate::cpu::simd::avx2::Avx2;
    let (avx2, avx512) = (Avx2::detect(), Avx512::<EXACT>::detect());
    let (dot, tiles) = (Avx512::<DOT>::detect(), Avx512::<TILES>::detect());
    let lacking = [avx2.is_none(), avx512.is_none(), dot.is_none(), tiles.is_none()];
    for (name, lacking) in ["AVX2", "AVX-512", "AVX-512 BF16", "AMX BF16"].into_iter().zip(lacking) {
        if lacking {
            tidegate_skipped::skipped!("this processor lacks {name}");
        }
    }
    avx2.into_iter().for_each(check_all);
    avx512.into_iter().for_each(check_all);
    dot.into_iter().for_each(check_all);
    tiles.into_iter().for_each(check_all);
}
