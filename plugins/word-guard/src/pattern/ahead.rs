//! What a stretch of text holds for a program, told from its end backwards: for each place and instruction the nearest end of a
//! match. One pass over the text, so that a place at which nothing comes of a beginning costs no walk of its own.

use super::program::Program;
use crate::words::Behind;
use tidegate_plugin_sdk::scan::Place;

/// No match from here.
const NEVER: u16 = u16::MAX;

/// Larger programs are told only where a match may begin, not where it may no longer go on: a row for each byte is much memory.
const MAX_ROW: usize = 64;

/// A stretch that was read. Places in it are known by the length of the rest, as within one scan.
#[derive(Debug, Default)]
pub(super) struct Ahead {
    /// The length of the rest where it begins; 0 where none was read.
    rest_len: usize,
    /// Bytes of it in which a match may begin and is told whole.
    covered: usize,
    /// Of each byte at which a character begins: the nearest end of a match from there.
    starts: Vec<u16>,
    /// The same of each instruction, a row for each byte; empty for large programs.
    rows: Vec<u16>,
    row_len: usize,
}

impl Ahead {
    /// Gives back its memory, too: of a hundred patterns that is much, and most texts need none.
    pub(super) fn forget(&mut self) {
        if self.rest_len > 0 {
            *self = Self::default();
        }
    }

    /// Reads so much that for `max_bytes` of it each match, of at most as many bytes, is told.
    pub(super) fn read(&mut self, program: &Program, at: Place<'_>, max_bytes: usize) {
        let end = at.rest.floor_char_boundary(2 * max_bytes + 4);
        let is_cut = end < at.rest.len() || !at.is_last;
        let len = program.len();
        (self.rest_len, self.covered) = (at.rest.len(), max_bytes.min(end));
        self.row_len = if len <= MAX_ROW { len } else { 0 };
        self.starts.clear();
        self.starts.resize(end + 1, NEVER);
        self.rows.clear();
        self.rows.resize((end + 1) * self.row_len, NEVER);
        // What follows may be anything, so that anything may match there.
        let mut behind = vec![end as u16; len];
        let mut here = vec![NEVER; len];
        if !is_cut {
            program.ends(end as u16, Behind::inside(at, end).is_border(None), None, &here, &mut behind);
        }
        self.keep(end, &behind);
        for (start, c) in at.rest[..end].char_indices().rev() {
            program.ends(start as u16, Behind::inside(at, start).is_border(Some(c)), Some(c), &behind, &mut here);
            self.keep(start, &here);
            std::mem::swap(&mut here, &mut behind);
        }
    }

    fn keep(&mut self, start: usize, ends: &[u16]) {
        self.starts[start] = ends.first().copied().unwrap_or(NEVER);
        let row = start * self.row_len;
        self.rows[row..row + self.row_len].copy_from_slice(&ends[..self.row_len]);
    }

    /// How far a place is into the stretch, where a match from there would be told.
    pub(super) fn offset(&self, at: Place<'_>) -> Option<usize> {
        let offset = self.rest_len.checked_sub(at.rest.len())?;
        (offset < self.covered).then_some(offset)
    }

    /// Whether a match of at most `max_bytes` may begin there.
    pub(super) fn may_begin(&self, offset: usize, max_bytes: usize) -> bool {
        usize::from(self.starts[offset]) <= offset + max_bytes
    }

    /// Whether one of the instructions may come to a match, at the latest at `end`. An end of [`NEVER`] is none: the
    /// stretch is much shorter.
    pub(super) fn may_end(&self, ways: &[usize], here: usize, end: usize) -> bool {
        let row = here * self.row_len;
        let Some(row) = self.rows.get(row..row + self.row_len).filter(|row| !row.is_empty()) else { return true };
        ways.iter().any(|way| usize::from(row[*way]) <= end)
    }
}
