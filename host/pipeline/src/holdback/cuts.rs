//! What a guard redacts of a text that waits. A long text may have many cuts, and many tokens and events that end in it: so
//! whoever asks where those are goes through both once.

/// Bytes of what waits, and what is read in their place. Cuts are in order and apart; an empty one puts text in between.
#[derive(Debug)]
pub(super) struct Cut {
    pub(super) start: usize,
    pub(super) end: usize,
    pub(super) text: String,
}

/// Text with its cuts made.
pub(super) fn redacted(text: &str, cuts: &[Cut]) -> String {
    let mut left = String::with_capacity(text.len());
    let mut from = 0;
    for cut in cuts {
        left.push_str(&text[from..cut.start]);
        left.push_str(&cut.text);
        from = cut.end;
    }
    left.push_str(&text[from..]);
    left
}

/// A way through a text with its cuts, on which nobody goes back: places are asked for in their order.
pub(super) struct Walk<'a> {
    at: usize,
    /// That begin where it has not been.
    ahead: &'a [Cut],
    /// Where the last of those behind ends: none of them ends further on.
    cut_to: usize,
    added: usize,
    removed: usize,
}

impl<'a> Walk<'a> {
    pub(super) fn of(cuts: &'a [Cut]) -> Self {
        Self { at: 0, ahead: cuts, cut_to: 0, added: 0, removed: 0 }
    }

    fn go_to(&mut self, at: usize) {
        debug_assert!(self.at <= at, "from {} back to {at}", self.at);
        self.at = at;
        while let [cut, ahead @ ..] = self.ahead
            && cut.start < at
        {
            self.ahead = ahead;
            self.cut_to = cut.end;
            self.added += cut.text.len();
            self.removed += cut.end - cut.start;
        }
    }

    /// Whether a cut changes what is between the two places.
    pub(super) fn is_cut(&mut self, start: usize, end: usize) -> bool {
        self.go_to(end);
        start < self.cut_to
    }

    /// Where a place is once the cuts are made; `None` for one within a cut.
    pub(super) fn moved(&mut self, at: usize) -> Option<usize> {
        self.go_to(at);
        (self.cut_to <= at).then(|| at + self.added - self.removed)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Cuts by what is kept before each, how long it is, and what is read instead.
    pub(crate) fn cuts() -> impl Strategy<Value = Vec<Cut>> {
        let cut = (0_usize..4, 0_usize..4, 0_usize..6);
        prop::collection::vec(cut, 0..8).prop_map(|cuts| {
            let mut from = 0;
            let cut = |(kept, bytes, instead): (usize, usize, usize)| {
                let start = from + kept;
                from = start + bytes;
                Cut { start, end: from, text: "x".repeat(instead) }
            };
            cuts.into_iter().map(cut).collect()
        })
    }

    /// As [`Walk::is_cut`], from the beginning each time.
    pub(crate) fn is_cut(start: usize, end: usize, cuts: &[Cut]) -> bool {
        cuts.iter().any(|cut| start < cut.end && cut.start < end)
    }

    /// As [`Walk::moved`], from the beginning each time.
    pub(crate) fn moved(at: usize, cuts: &[Cut]) -> Option<usize> {
        let mut before = cuts.iter().take_while(|cut| cut.start < at);
        before.try_fold(at, |moved, cut| (cut.end <= at).then(|| moved + cut.text.len() - (cut.end - cut.start)))
    }

    proptest! {
        #[test]
        fn one_way_through_finds_what_many_do(
            cuts in cuts(),
            mut places in prop::collection::vec((0_usize..60, 0_usize..60), 0..20),
        ) {
            for (start, end) in &mut places {
                let (one, other) = (*start, *end);
                (*start, *end) = (one.min(other), one.max(other) + 1);
            }
            places.sort_by_key(|(_, end)| *end);
            let mut walk = Walk::of(&cuts);
            for (start, end) in places {
                prop_assert_eq!(walk.is_cut(start, end), is_cut(start, end, &cuts), "{}..{} of {:?}", start, end, cuts);
                prop_assert_eq!(walk.moved(end), moved(end, &cuts), "{} of {:?}", end, cuts);
            }
        }
    }
}
