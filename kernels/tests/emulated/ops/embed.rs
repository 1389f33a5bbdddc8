use crate::numbers::{Random, widen};
use crate::rig::{ORDERS, Rig};
use tidegate_kernels::ops::{Embed, OpError};

#[test]
fn rows_of_the_table_arrive_exactly() {
    let Some(mut rig) = Rig::new() else { return };
    for hidden in [8, 64, 1000, 4104] {
        let mut random = Random::new(hidden as u64);
        let table = random.bf16s(7 * hidden, 1.0);
        // Two are given as tokens that the step before drew.
        let (tokens, drawn) = (vec![3, !1, 0, 6, !0], vec![5, 2]);
        let ids = [3, 2, 0, 6, 5];
        let want: Vec<f32> = ids.iter().flat_map(|&id| widen(&table[id * hidden..(id + 1) * hidden])).collect();
        let (table, tokens, drawn) = (rig.upload(&table), rig.upload(&tokens), rig.upload(&drawn));
        let embed = Embed::new(&rig.kernels, hidden).unwrap();
        for order in ORDERS {
            rig.order(order);
            let out = rig.buffer(want.len());
            embed.launch(&rig.stream, ids.len(), table, (tokens, drawn), out).unwrap();
            assert_eq!(rig.download(out), want, "hidden {hidden}");
        }
    }
}

#[test]
fn shapes_that_do_not_fit_are_refused_with_both_sides() {
    let Some(mut rig) = Rig::new() else { return };
    let error = Embed::new(&rig.kernels, 12).unwrap_err();
    assert_eq!(error.to_string(), "embed: hidden is 12, not a multiple of 8");
    let embed = Embed::new(&rig.kernels, 8).unwrap();
    let (table, tokens, out) = (rig.buffer(8), rig.upload(&[0, 0]), rig.buffer(15));
    let refused = embed.launch(&rig.stream, 2, table, (tokens, tokens), out);
    assert!(
        matches!(&refused, Err(OpError::Shape { what, .. }) if what.contains("15 elements where 16")),
        "{refused:?}"
    );
}
