use crate::numbers::{ROUNDED, Random, assert_close, widen};
use crate::rig::{ORDERS, Rig};
use half::bf16;
use tidegate_device::RopeTable;
use tidegate_device::reference::ops::{rms_norm, rotate};
use tidegate_kernels::ops::RopeCache;
use tidegate_kernels::ops::rope_cache::{HeadNorm, Heads, LayerCache, Places};

const EPS: f32 = 1e-6;
const NUM_LAYERS: usize = 2;
const LAYER: usize = 1;
const NUM_BLOCKS: usize = 5;
/// Positions and slots of the rows, from a first token to one after many blocks; the third is padding.
const POSITIONS: [i32; 6] = [0, 37, 5, 16, 1599, 15];
const SLOTS: [i32; 6] = [15, 32, -1, 2, 79, 16];
/// Positions that there are rotations for.
const MAX_POSITIONS: usize = 1600;

struct Case {
    heads: Heads,
    rope: RopeTable,
    qkv: Vec<bf16>,
    norms: Option<[Vec<f32>; 2]>,
}

impl Case {
    fn new(heads: Heads, normed: bool) -> Self {
        let mut random = Random::new((heads.dim * 100 + heads.queries) as u64);
        let inv_freq = (0..heads.dim / 2).map(|i| 10000f32.powf(-2.0 * i as f32 / heads.dim as f32)).collect();
        Self {
            heads,
            // YaRN's factor: what is turned by it gets longer.
            rope: RopeTable { inv_freq, attention_scale: if normed { 1.0 } else { 1.3 } },
            qkv: random.bf16s(SLOTS.len() * heads.qkv_width(), 2.0),
            norms: normed.then(|| [random.f32s(heads.dim, 2.0), random.f32s(heads.dim, 2.0)]),
        }
    }

    /// As the executor makes it: angles in f32, functions in f64.
    fn rotations(&self) -> Vec<[f32; 2]> {
        let scale = f64::from(self.rope.attention_scale);
        let pair = |p: usize, f: &f32| {
            let (sin, cos) = f64::from(p as f32 * f).sin_cos();
            [(cos * scale) as f32, (sin * scale) as f32]
        };
        (0..MAX_POSITIONS).flat_map(|p| self.rope.inv_freq.iter().map(move |f| pair(p, f))).collect()
    }

    /// The heads of a row after norm and rotation.
    fn expected(&self, row: usize) -> Vec<f32> {
        let width = self.heads.qkv_width();
        let heads = widen(&self.qkv[row * width..(row + 1) * width]);
        let head = |(i, head): (usize, &[f32])| {
            if i >= self.heads.queries + self.heads.keys {
                return head.to_vec();
            }
            let weight = self.norms.as_ref().map(|n| &n[usize::from(i >= self.heads.queries)]);
            let normed = weight.map_or_else(|| head.to_vec(), |w| rms_norm(head, w, EPS));
            rotate(&normed, &self.rope, POSITIONS[row] as usize)
        };
        heads.chunks_exact(self.heads.dim).enumerate().flat_map(head).collect()
    }

    fn check(&self, rig: &mut Rig) {
        for order in ORDERS {
            rig.order(order);
            self.check_one(rig, &format!("{:?} normed {} {order:?}", self.heads, self.norms.is_some()));
        }
    }

    fn check_one(&self, rig: &mut Rig, what: &str) {
        let heads = self.heads;
        let block_stride = NUM_LAYERS * heads.layer_elems();
        let before = vec![bf16::from_f32(77.0); NUM_BLOCKS * block_stride];
        let (qkv, cache) = (rig.upload(&self.qkv), rig.upload(&before));
        let norm =
            self.norms.as_ref().map(|[q, k]| HeadNorm { q_weight: rig.upload(q), k_weight: rig.upload(k), eps: EPS });
        let places = Places {
            rotations: rig.upload(&self.rotations()),
            positions: rig.upload(&POSITIONS),
            slots: rig.upload(&SLOTS),
        };
        let layer = LayerCache { cache: cache.from(LAYER * heads.layer_elems()), block_stride };
        let op = RopeCache::new(&rig.kernels, heads).unwrap();
        op.launch(&rig.stream, SLOTS.len(), qkv, norm.as_ref(), (&places, &layer)).unwrap();
        let (qkv, mut after) = (rig.download(qkv), rig.download(cache));
        for (row, &slot) in SLOTS.iter().enumerate() {
            let width = heads.qkv_width();
            let got = &qkv[row * width..(row + 1) * width];
            if slot < 0 {
                assert_eq!(got, &self.qkv[row * width..(row + 1) * width], "{what}: a padding row");
                continue;
            }
            let want = self.expected(row);
            let (queries, rest) = want.split_at(heads.queries * heads.dim);
            assert_close(&format!("{what}: queries of row {row}"), &widen(&got[..queries.len()]), queries, NEAR);
            for (i, vector) in rest.chunks_exact(heads.dim).enumerate() {
                let (block, offset) = (slot as usize / 16, slot as usize % 16);
                let at = block * block_stride + LAYER * heads.layer_elems() + (i * 16 + offset) * heads.dim;
                let stored = &mut after[at..at + heads.dim];
                assert_close(&format!("{what}: cached vector {i} of row {row}"), &widen(stored), vector, NEAR);
                stored.fill(bf16::from_f32(77.0));
            }
        }
        assert!(after == before, "{what}: something else in the cache was written");
    }
}

/// Sums of two products: the absolute part is for those that nearly cancel.
const NEAR: crate::numbers::Tolerance = crate::numbers::Tolerance { atol: 4e-6, ..ROUNDED };

#[test]
fn queries_turn_in_place_and_keys_and_values_reach_their_slots_only() {
    let Some(mut rig) = Rig::new() else { return };
    let one_key = [1, 2, 3, 4, 5, 6, 7, 8, 16].map(|queries| (queries, 1));
    for (queries, keys) in one_key.into_iter().chain([(8, 2), (3, 3)]) {
        for dim in [20, 64, 96, 128, 256] {
            for normed in [true, false] {
                Case::new(Heads { queries, keys, dim }, normed).check(&mut rig);
            }
        }
    }
}

#[test]
fn head_widths_beyond_a_warp_are_refused() {
    let Some(rig) = Rig::new() else { return };
    for dim in [0, 6, 260] {
        let error = RopeCache::new(&rig.kernels, Heads { queries: 1, keys: 1, dim }).unwrap_err().to_string();
        assert!(error.contains(&format!("head_dim is {dim}")), "{error}");
    }
}
