use crate::numbers::{ROUNDED, Random, Tolerance, assert_close, widen};
use crate::rig::{ORDERS, Rig};
use tidegate_device::Activation;
use tidegate_device::reference::ops::gated;
use tidegate_kernels::ops::GatedActivation;

#[test]
fn the_gate_is_close_for_every_shape_and_function() {
    let Some(mut rig) = Rig::new() else { return };
    for (rows, width) in [(1, 8), (3, 64), (5, 1000), (2, 14336)] {
        for act in [Activation::Silu, Activation::GeluTanh] {
            let mut random = Random::new((rows * width) as u64);
            let gate_up = random.bf16s(rows * 2 * width, 6.0);
            let want: Vec<f32> = widen(&gate_up).chunks_exact(2 * width).flat_map(|row| gated(row, act)).collect();
            let (input, op) = (rig.upload(&gate_up), GatedActivation::new(&rig.kernels, act, width).unwrap());
            for order in ORDERS {
                rig.order(order);
                let out = rig.buffer(rows * width);
                op.launch(&rig.stream, rows, input, out).unwrap();
                let tolerance = Tolerance { atol: 1e-5, ..ROUNDED };
                assert_close(&format!("{act:?} {rows}x{width}"), &widen(&rig.download(out)), &want, tolerance);
            }
        }
    }
}

#[test]
fn large_gates_neither_overflow_nor_vanish() {
    let Some(mut rig) = Rig::new() else { return };
    let gates = [-300.0, -80.0, -20.0, 0.0, 20.0, 80.0, 300.0, 30000.0];
    let row: Vec<half::bf16> = gates.iter().chain(&[1.0; 8]).map(|&x| half::bf16::from_f32(x)).collect();
    let input = rig.upload(&row);
    for act in [Activation::Silu, Activation::GeluTanh] {
        let out = rig.buffer(8);
        GatedActivation::new(&rig.kernels, act, 8).unwrap().launch(&rig.stream, 1, input, out).unwrap();
        assert_close(&format!("{act:?}"), &widen(&rig.download(out)), &gated(&widen(&row), act), ROUNDED);
    }
}
