//! Which kernel computes which rows of a batch's attention, and how far each is split: pure, and once for a step.
//!
//! Few rows over a long past are split into spans of 256 keys, so that one sequence fills the device; many rows go
//! to the prefill kernel, which reads each key once for 64 of them. Both give the same bits, so the choice, and the
//! bound on partial results that it keeps, is a matter of speed alone.

/// Keys of a span; `SPAN` of `cuda/attention.cuh`.
pub const SPAN: usize = 256;
/// Rows of a warp.
pub const TILE_ROWS: usize = 16;
/// Rows of a block of the prefill kernel.
pub const PREFILL_ROWS: usize = 64;

/// Consecutive tokens of one sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// How many.
    pub num_tokens: usize,
    /// Position of the first.
    pub start: usize,
}

/// What a plan must keep to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlanLimits {
    /// Query heads to a key head.
    pub group: usize,
    /// Partial results that there is room for.
    pub max_partials: usize,
    /// No layer looks further back than this.
    pub window: Option<usize>,
}

/// The work lists of a step; see the kernels for what an item's numbers are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AttendPlan {
    /// (segment, first row, span, partial or -1)
    pub split: Vec<[i32; 4]>,
    /// (segment, first row, first partial, partials)
    pub combine: Vec<[i32; 4]>,
    /// (segment, first row, 0, 0)
    pub prefill: Vec<[i32; 4]>,
    num_partials: usize,
}

impl AttendPlan {
    /// Plans anew; allocates only while it grows.
    pub fn make(&mut self, pieces: impl Iterator<Item = Piece>, limits: &PlanLimits) {
        self.split.clear();
        self.combine.clear();
        self.prefill.clear();
        self.num_partials = 0;
        for (segment, piece) in pieces.enumerate() {
            let rows = piece.num_tokens * limits.group;
            if rows > PREFILL_ROWS || !self.split_all(segment, &piece, rows, limits) {
                let tiles = (0..rows).step_by(PREFILL_ROWS);
                self.prefill.extend(tiles.map(|first| [segment as i32, first as i32, 0, 0]));
            }
        }
    }

    /// Items for all row tiles of a segment; none of them if their partials do not fit.
    fn split_all(&mut self, segment: usize, piece: &Piece, rows: usize, limits: &PlanLimits) -> bool {
        let spans = |first: usize| {
            let oldest = piece.start + first / limits.group;
            let newest = piece.start + (first + TILE_ROWS).min(rows).saturating_sub(1) / limits.group;
            let begin = limits.window.map_or(0, |window| (oldest + 1).saturating_sub(window));
            begin / SPAN..newest / SPAN + 1
        };
        let tiles = || (0..rows).step_by(TILE_ROWS).map(|first| (first, spans(first)));
        let wanted: usize = tiles().map(|(_, spans)| if spans.len() > 1 { spans.len() } else { 0 }).sum();
        if self.num_partials + wanted > limits.max_partials {
            return false;
        }
        for (first, spans) in tiles() {
            let (segment, first, count) = (segment as i32, first as i32, spans.len());
            let partial = self.num_partials as i32;
            if count == 1 {
                self.split.push([segment, first, spans.start as i32, -1]);
                continue;
            }
            self.split.extend((0i32..).zip(spans).map(|(i, span)| [segment, first, span as i32, partial + i]));
            self.combine.push([segment, first, partial, count as i32]);
            self.num_partials += count;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(pieces: &[(usize, usize)], limits: PlanLimits) -> AttendPlan {
        let mut plan = AttendPlan::default();
        plan.make(pieces.iter().map(|&(num_tokens, start)| Piece { num_tokens, start }), &limits);
        plan
    }

    const LIMITS: PlanLimits = PlanLimits { group: 4, max_partials: 8, window: None };

    #[test]
    fn one_span_goes_to_the_output_at_once() {
        let plan = plan(&[(1, 255)], LIMITS);
        assert_eq!((plan.split, plan.combine.len()), (vec![[0, 0, 0, -1]], 0));
    }

    #[test]
    fn a_longer_past_is_split_and_combined_in_order() {
        let plan = plan(&[(1, 0), (1, 600)], LIMITS);
        assert_eq!(plan.split, [[0, 0, 0, -1], [1, 0, 0, 0], [1, 0, 1, 1], [1, 0, 2, 2]]);
        assert_eq!(plan.combine, [[1, 0, 0, 3]]);
    }

    #[test]
    fn many_rows_and_what_does_not_fit_go_to_prefill() {
        let plan = plan(&[(17, 0), (1, 8 * 256), (16, 0)], LIMITS);
        assert_eq!(plan.prefill, [[0, 0, 0, 0], [0, 64, 0, 0], [1, 0, 0, 0]]);
        assert_eq!(plan.split.len(), 4, "64 rows are 4 tiles of 16");
    }

    #[test]
    fn a_window_skips_the_spans_before_it() {
        let plan = plan(&[(1, 1000)], PlanLimits { window: Some(300), ..LIMITS });
        assert_eq!(plan.split.iter().map(|item| item[2]).collect::<Vec<_>>(), [2, 3]);
    }
}
