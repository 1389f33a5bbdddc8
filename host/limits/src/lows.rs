//! How low a level has been since a given change of it: a list of the minima that later changes have not undercut, in
//! the order of the changes, so that the levels rise along it.

/// Minima that are kept apart. Past that the oldest two become one, of the lower level: what is given back may then be
/// less than it could be, never more.
const MAX_ENTRIES: usize = 32;

#[derive(Clone, Debug, Default)]
pub(crate) struct Lows {
    entries: Vec<Low>,
}

#[derive(Clone, Copy, Debug)]
struct Low {
    change: u64,
    level: u64,
}

impl Lows {
    /// Notes the level just before a change; changes are counted up.
    pub(crate) fn note(&mut self, change: u64, level: u64) {
        while self.entries.last().is_some_and(|last| last.level >= level) {
            self.entries.pop();
        }
        self.entries.push(Low { change, level });
        if self.entries.len() > MAX_ENTRIES {
            let lowest = self.entries.remove(0).level;
            self.entries[0].level = lowest;
        }
    }

    /// Lowers every level since `change`, that one not included, by `amount`, or by as much as the lowest of them has.
    /// Gives how much that was.
    pub(crate) fn lower_since(&mut self, change: u64, amount: u64) -> u64 {
        let mut first = self.entries.partition_point(|low| low.change <= change);
        let Some(lowest) = self.entries.get(first).map(|low| low.level) else { return 0 };
        let by = amount.min(lowest);
        self.entries[first..].iter_mut().for_each(|low| low.level -= by);
        while first > 0 && self.entries[first - 1].level >= lowest - by {
            first -= 1;
            self.entries.remove(first);
        }
        by
    }

    /// The level is no more than this now: of what was charged before, no more can be given back.
    pub(crate) fn lower_to(&mut self, level: u64) {
        self.entries.iter_mut().for_each(|low| low.level = low.level.min(level));
    }

    pub(crate) fn clear(&mut self) {
        self.entries.clear();
    }
}
