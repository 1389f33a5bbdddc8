//! Tokens that a step takes from the one before it, for backends that compute at once: what a device does behind the
//! host's back is done here by looking it up.

use crate::check::check_fed;
use crate::executor::{Batch, DeviceError, Drawn, SampleRow, Segment};
use std::collections::VecDeque;

/// What was drawn and not collected, and what the next step may be fed with.
#[derive(Debug, Default)]
pub struct DrawQueue {
    waiting: VecDeque<Vec<Drawn>>,
    /// The ids of the last draw, by row.
    last: Vec<u32>,
    /// Of each segment of the last batch: the token that it was fed.
    fed: Vec<Option<u32>>,
}

impl DrawQueue {
    /// Looks up what a batch is fed, and gives all its tokens, segment by segment; `None` where nothing is fed.
    pub fn feed(&mut self, batch: &Batch<'_>) -> Result<Option<Vec<Vec<u32>>>, DeviceError> {
        self.fed.clear();
        if batch.segments.iter().all(|segment| segment.fed.is_none()) {
            return Ok(None);
        }
        check_fed(batch, self.last.len())?;
        self.fed.extend(batch.segments.iter().map(|segment| segment.fed.map(|row| self.last[row])));
        let all = |(segment, fed): (&Segment<'_>, &Option<u32>)| segment.tokens.iter().copied().chain(*fed).collect();
        Ok(Some(batch.segments.iter().zip(&self.fed).map(all).collect()))
    }

    /// Draws each row by `draw`, which sees the whole output, and keeps what it answers.
    pub fn draw(&mut self, rows: &[SampleRow<'_>], mut draw: impl FnMut(&SampleRow<'_>) -> Drawn) {
        let mut drawn = Vec::with_capacity(rows.len());
        for row in rows {
            drawn.push(match self.fed.get(row.segment).copied().flatten() {
                Some(token) => draw(&SampleRow { output: &[row.output, &[token]].concat(), ..row.clone() }),
                None => draw(row),
            });
        }
        // A row that failed feeds some token: what comes of it is dropped.
        self.last = drawn.iter().map(|row| row.as_ref().map_or(0, |token| token.id)).collect();
        self.waiting.push_back(drawn);
    }

    /// The oldest draw that was not collected.
    pub fn collect(&mut self) -> Result<Vec<Drawn>, DeviceError> {
        self.waiting.pop_front().ok_or_else(|| DeviceError::BadBatch("nothing was sampled".to_owned()))
    }
}

/// The batch with the tokens that [`DrawQueue::feed`] gave.
pub fn with_tokens<'a>(batch: &Batch<'a>, tokens: &'a [Vec<u32>]) -> Batch<'a> {
    let segments = batch.segments.iter().zip(tokens);
    Batch { segments: segments.map(|(s, tokens)| Segment { tokens, fed: None, ..s.clone() }).collect() }
}
