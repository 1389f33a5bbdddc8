use crate::numbers::{ROUNDED, Random, assert_close, widen};
use crate::rig::{ORDERS, Rig};
use tidegate_device::reference::ops::rms_norm;
use tidegate_kernels::ops::AddRmsNorm;
use tidegate_kernels::ops::add_rms_norm::NormBuffers;

const EPS: f32 = 1e-5;
/// Less than a piece, a piece, odd tails, whole turns of the block, the largest.
const WIDTHS: [usize; 6] = [8, 64, 1000, 4096, 4104, 16384];

/// Residual and normed rows.
fn expected(residual: &[f32], delta: Option<&[f32]>, weight: &[f32]) -> (Vec<f32>, Vec<f32>) {
    let sum: Vec<f32> = match delta {
        Some(delta) => residual.iter().zip(delta).map(|(r, d)| r + d).collect(),
        None => residual.to_vec(),
    };
    let normed = sum.chunks_exact(weight.len()).flat_map(|row| rms_norm(row, weight, EPS)).collect();
    (sum, normed)
}

#[test]
fn the_residual_is_exact_and_the_norm_is_close() {
    let Some(mut rig) = Rig::new() else { return };
    for (width, with_delta) in WIDTHS.into_iter().flat_map(|w| [(w, true), (w, false)]) {
        let mut random = Random::new(width as u64);
        let rows = 3;
        let (residual, weight) = (random.f32s(rows * width, 4.0), random.f32s(width, 2.0));
        let delta = with_delta.then(|| random.bf16s(rows * width, 1.0));
        let (sum, normed) = expected(&residual, delta.as_deref().map(widen).as_deref(), &weight);
        let op = AddRmsNorm::new(&rig.kernels, width).unwrap();
        for order in ORDERS {
            rig.order(order);
            let buffers = NormBuffers {
                residual: rig.upload(&residual),
                delta: delta.as_ref().map(|d| rig.upload(d)),
                weight: rig.upload(&weight),
                out: rig.buffer(rows * width),
            };
            op.launch(&rig.stream, rows, &buffers, EPS).unwrap();
            assert_eq!(rig.download(buffers.residual), sum, "width {width}");
            let out = widen(&rig.download(buffers.out));
            assert_close(&format!("width {width} {order:?}"), &out, &normed, ROUNDED);
        }
    }
}

#[test]
fn gathered_rows_are_normed_and_the_residual_stays() {
    let Some(mut rig) = Rig::new() else { return };
    let (width, rows) = (136, 5);
    let mut random = Random::new(1);
    let (residual, weight) = (random.f32s(rows * width, 1.0), random.f32s(width, 1.0));
    let delta = random.bf16s(rows * width, 1.0);
    let (_, normed) = expected(&residual, Some(&widen(&delta)), &weight);
    let gather = [4, 0, 2];
    let want: Vec<f32> = gather.iter().flat_map(|&r| normed[r as usize * width..][..width].to_vec()).collect();
    let buffers = NormBuffers {
        residual: rig.upload(&residual),
        delta: Some(rig.upload(&delta)),
        weight: rig.upload(&weight),
        out: rig.buffer(gather.len() * width),
    };
    let op = AddRmsNorm::new(&rig.kernels, width).unwrap();
    let rows = rig.upload(&gather);
    for order in ORDERS {
        rig.order(order);
        op.launch_gather(&rig.stream, (rows, gather.len()), &buffers, EPS).unwrap();
        assert_close(&format!("gathered {order:?}"), &widen(&rig.download(buffers.out)), &want, ROUNDED);
        assert_eq!(rig.download(buffers.residual), residual);
    }
}

#[test]
fn widths_beyond_the_registers_are_refused() {
    let Some(rig) = Rig::new() else { return };
    for width in [0, 12, 16392] {
        let error = AddRmsNorm::new(&rig.kernels, width).unwrap_err().to_string();
        assert!(error.contains(&format!("width is {width}")), "{error}");
    }
}
