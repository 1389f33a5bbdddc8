use crate::numbers::{ATTENTION, Random, assert_close, widen};
use crate::rig::{ORDERS, Rig};
use half::bf16;
use tidegate_device::reference::ops::{dot, softmax, weighted_sum};
use tidegate_kernels::driver::Slice;
use tidegate_kernels::ops::attend::{AttendBuffers, LayerAttention, Phase, SegmentInfo, WorkList};
use tidegate_kernels::ops::rope_cache::{Heads, LayerCache};
use tidegate_kernels::ops::{Attend, AttendPlan, Piece, PlanLimits};

const NUM_LAYERS: usize = 2;
const LAYER: usize = 1;

/// Which kernels a case is forced through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Route {
    /// As planned.
    Planned,
    /// Everything by the prefill kernel.
    Prefill,
}

struct Case {
    heads: Heads,
    pieces: Vec<Piece>,
    layer: LayerAttention,
    /// Of each segment, in order.
    tables: Vec<Vec<i32>>,
    qkv: Vec<bf16>,
    cache: Vec<bf16>,
}

impl Case {
    /// Pieces are (tokens, start).
    fn new(heads: Heads, pieces: &[(usize, usize)], window: Option<usize>) -> Self {
        let mut random = Random::new((heads.dim * 31 + heads.queries * 7 + pieces[0].1) as u64);
        let pieces: Vec<Piece> = pieces.iter().map(|&(num_tokens, start)| Piece { num_tokens, start }).collect();
        let counts: Vec<usize> = pieces.iter().map(|p| (p.start + p.num_tokens).div_ceil(16)).collect();
        let mut ids = random.shuffled(counts.iter().sum::<usize>() + 1);
        let tables = counts.iter().map(|&count| ids.split_off(ids.len() - count)).collect::<Vec<_>>();
        let rows: usize = pieces.iter().map(|p| p.num_tokens).sum();
        let num_blocks = counts.iter().sum::<usize>() + 1;
        let mut case = Self {
            heads,
            layer: LayerAttention { scale: 1.0 / (heads.dim as f32).sqrt(), window },
            qkv: random.bf16s(rows * heads.qkv_width(), 4.0),
            cache: random.bf16s(num_blocks * NUM_LAYERS * heads.layer_elems(), 1.0),
            tables,
            pieces,
        };
        case.spoil_what_is_not_there();
        case
    }

    /// Positions of a last block that no token has reached hold NaN: memory that nobody wrote.
    fn spoil_what_is_not_there(&mut self) {
        for (s, piece) in self.pieces.clone().iter().enumerate() {
            let end = piece.start + piece.num_tokens;
            for position in end..end.next_multiple_of(16) {
                for i in 0..2 * self.heads.keys {
                    let at = self.place(s, position, i);
                    self.cache[at..at + self.heads.dim].fill(bf16::NAN);
                }
            }
        }
    }

    fn place(&self, segment: usize, position: usize, head: usize) -> usize {
        let block = self.tables[segment][position / 16] as usize;
        (block * NUM_LAYERS + LAYER) * self.heads.layer_elems() + (head * 16 + position % 16) * self.heads.dim
    }

    fn expected(&self) -> Vec<f32> {
        let Heads { queries, keys, dim } = self.heads;
        let cache = widen(&self.cache);
        let mut out = Vec::new();
        let mut row = 0;
        for (s, piece) in self.pieces.iter().enumerate() {
            for position in piece.start..piece.start + piece.num_tokens {
                let first = self.layer.window.map_or(0, |w| (position + 1).saturating_sub(w));
                let query = widen(&self.qkv[row * self.heads.qkv_width()..][..queries * dim]);
                for (head, query) in query.chunks_exact(dim).enumerate() {
                    let kv = head / (queries / keys);
                    let vector = |p, head| &cache[self.place(s, p, head)..][..dim];
                    let scores = (first..=position).map(|p| dot(query, vector(p, kv)) * f64::from(self.layer.scale));
                    let shares = softmax(scores);
                    out.extend(weighted_sum(&shares, (first..=position).map(|p| vector(p, keys + kv)), dim));
                }
                row += 1;
            }
        }
        out
    }

    fn segments(&self) -> Vec<SegmentInfo> {
        let (mut row, mut table) = (0, 0);
        let info = |(piece, blocks): (&Piece, &Vec<i32>)| {
            let info =
                SegmentInfo { first_row: row, num_tokens: piece.num_tokens as i32, start: piece.start as i32, table };
            row += piece.num_tokens as i32;
            table += blocks.len() as i32;
            info
        };
        self.pieces.iter().zip(&self.tables).map(info).collect()
    }

    /// Runs the three phases; a grid smaller than the work makes blocks of threads take items in turn.
    fn run(&self, rig: &mut Rig, route: Route) -> Vec<bf16> {
        let op = Attend::new(&rig.kernels, self.heads).unwrap();
        let mut plan = AttendPlan::default();
        let max_partials = if route == Route::Prefill { 0 } else { 64 };
        let limits = PlanLimits { group: op.group(), max_partials, window: self.layer.window };
        plan.make(self.pieces.iter().copied(), &limits);
        if route == Route::Prefill {
            // What needs no partials would still be split.
            let tiles = |(s, p): (usize, &Piece)| {
                (0..p.num_tokens * op.group()).step_by(64).map(move |first| [s as i32, first as i32, 0, 0])
            };
            plan.prefill = self.pieces.iter().enumerate().flat_map(tiles).collect();
            plan.split.clear();
        }
        let Heads { queries, keys, dim } = self.heads;
        let buffers = AttendBuffers {
            segments: rig.upload(&self.segments()),
            tables: rig.upload(&self.tables.concat()),
            partials: rig.buffer(max_partials.max(1) * keys * 16 * dim),
            partial_sums: rig.buffer(max_partials.max(1) * keys * 16),
        };
        let cache = rig.upload(&self.cache).from(LAYER * self.heads.layer_elems());
        let cache = LayerCache { cache, block_stride: NUM_LAYERS * self.heads.layer_elems() };
        let rows: usize = self.pieces.iter().map(|p| p.num_tokens).sum();
        let (qkv, out) = (rig.upload(&self.qkv), rig.buffer::<bf16>(rows * queries * dim));
        for (phase, items) in
            [(Phase::Split, plan.split), (Phase::Combine, plan.combine), (Phase::Prefill, plan.prefill)]
        {
            if items.is_empty() {
                continue;
            }
            let count: Slice<i32> = rig.upload(&[items.len() as i32]);
            let work = WorkList { items: rig.upload(&items), count, grid: (items.len() * keys).min(3) };
            op.launch(&rig.stream, (phase, &work), (qkv, out), (&cache, &buffers), &self.layer).unwrap();
        }
        rig.download(out)
    }

    /// Both routes, each in all orders: close to the reference, and equal to each other to the bit.
    fn check(&self, rig: &mut Rig) {
        let want = self.expected();
        let what = format!("{:?} {:?} window {:?}", self.heads, self.pieces, self.layer.window);
        let mut first: Option<Vec<bf16>> = None;
        let routes = [Route::Planned, Route::Prefill];
        for (order, route) in ORDERS.into_iter().flat_map(|order| routes.map(|route| (order, route))) {
            rig.order(order);
            let out = self.run(rig, route);
            assert_close(&format!("{what} {route:?} {order:?}"), &widen(&out), &want, ATTENTION);
            assert!(*first.get_or_insert_with(|| out.clone()) == out, "{what}: the kernels differ in their bits");
        }
    }
}

fn heads(group: usize, keys: usize, dim: usize) -> Heads {
    Heads { queries: group * keys, keys, dim }
}

/// A first token, a piece across a block's end, and a token over a past of a span and some blocks.
const PIECES: [(usize, usize); 3] = [(1, 0), (3, 14), (1, 270)];

#[test]
fn every_group_and_head_width_is_close_and_both_kernels_agree_to_the_bit() {
    let Some(mut rig) = Rig::new() else { return };
    for dim in [16, 32, 64, 96, 128, 256] {
        for group in [1, 2, 3, 4, 5, 6, 7, 8, 16] {
            Case::new(heads(group, 1, dim), &PIECES, None).check(&mut rig);
        }
    }
}

#[test]
fn several_key_heads_and_tiles_of_rows_are_right() {
    let Some(mut rig) = Rig::new() else { return };
    for (group, dim) in [(1, 128), (4, 64), (7, 96), (16, 256)] {
        Case::new(heads(group, 2, dim), &[(1, 77), (17, 50)], None).check(&mut rig);
    }
}

#[test]
fn contexts_around_blocks_tiles_and_spans_are_right() {
    let Some(mut rig) = Rig::new() else { return };
    for context in [1, 2, 15, 16, 17, 63, 64, 65, 255, 256, 257, 512, 600] {
        Case::new(heads(2, 1, 64), &[(1, context - 1)], None).check(&mut rig);
    }
    // More than a hundred blocks.
    for dim in [64, 96, 128, 256] {
        Case::new(heads(4, 1, dim), &[(1, 1700)], None).check(&mut rig);
    }
}

#[test]
fn windows_hide_what_is_too_old() {
    let Some(mut rig) = Rig::new() else { return };
    for window in [1, 5, 64, 100, 256, 300] {
        Case::new(heads(2, 1, 64), &[(1, 519), (9, 250), (1, 3)], Some(window)).check(&mut rig);
    }
}

#[test]
fn a_chunk_changes_no_bits_and_neither_do_neighbours() {
    let Some(mut rig) = Rig::new() else { return };
    let whole = Case::new(heads(3, 1, 64), &[(90, 200)], None);
    let all = whole.run(&mut rig, Route::Planned);
    let width = whole.heads.qkv_width();
    let mut at = 0;
    // The same rows in chunks, each beside a neighbour that only takes part.
    for tokens in [1, 30, 2, 40, 17] {
        let mut chunk = Case::new(whole.heads, &[(5, 33)], None);
        let blocks = chunk.cache.len() / (NUM_LAYERS * whole.heads.layer_elems());
        chunk.pieces.push(Piece { num_tokens: tokens, start: 200 + at });
        chunk.tables.push(whole.tables[0].iter().map(|id| id + blocks as i32).collect());
        chunk.cache.extend(&whole.cache);
        chunk.qkv.extend(&whole.qkv[at * width..(at + tokens) * width]);
        let out = chunk.run(&mut rig, Route::Planned);
        let row = whole.heads.queries * whole.heads.dim;
        assert!(out[5 * row..] == all[at * row..(at + tokens) * row], "chunk of {tokens} at {at}");
        at += tokens;
    }
}

#[test]
fn head_widths_without_a_kernel_are_refused() {
    let Some(rig) = Rig::new() else { return };
    let error = Attend::new(&rig.kernels, heads(1, 1, 80)).unwrap_err().to_string();
    assert_eq!(error, "attend: head_dim is 80, not one of [16, 32, 64, 96, 128, 256]");
}
