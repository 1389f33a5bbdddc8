//! What came together of a turn: events that one wake of its source gives are taken at once, to be judged at once.
//! Nothing is waited for, and a source that gives one event at a time is not asked for a second one.

use crate::source::{Source, SourceEvent};
use crate::stages::echo::PIECE_BYTES;
use crate::stages::screen_output::{Joining, Piece};
use std::mem::{Discriminant, discriminant};
use tidegate_types::{Delta, DeltaKind, Reject};

/// Events of one read that are judged at once: a client waits for the verdict on all of them.
const READ_EVENTS: usize = 16;

/// Events of a source, and how they come.
#[derive(Default)]
pub(super) struct Reads {
    /// Whose text the last event was, and of which kind.
    last: Option<(u32, Discriminant<DeltaKind>)>,
    /// This wake has given two events of the same text.
    is_burst: bool,
    /// The wake before had.
    was_burst: bool,
    /// An event that did not fit behind others.
    behind: Option<Result<SourceEvent, Reject>>,
}

impl Reads {
    /// The next event; `None` after each choice has finished.
    pub(super) async fn next(&mut self, source: &mut Source) -> Option<Result<SourceEvent, Reject>> {
        let mut waited = false;
        let event = match self.behind.take() {
            Some(event) => Some(event),
            None => {
                std::future::poll_fn(|cx| {
                    let polled = source.poll_next(cx);
                    waited |= polled.is_pending();
                    polled
                })
                .await
            }
        };
        self.note(waited, event.as_ref().and_then(text_of));
        event
    }

    fn note(&mut self, waited: bool, text: Option<(u32, Discriminant<DeltaKind>)>) {
        if waited {
            self.was_burst = std::mem::take(&mut self.is_burst);
        } else {
            self.is_burst |= text.is_some() && text == self.last;
        }
        self.last = text;
    }

    /// Takes what is there already of the text that `kind` begins: joined to it, or as further events. However much is there,
    /// it is about [`PIECE_BYTES`]: a guard's time is that of one call.
    pub(super) fn gather(
        &mut self,
        joining: Joining,
        choice: u32,
        kind: &mut DeltaKind,
        source: &mut Source,
    ) -> Vec<Piece> {
        let mut more = Vec::new();
        let mut bytes = text_bytes(kind);
        while self.may_take(joining, more.len() + 1, bytes) {
            match source.ready() {
                None => break,
                Some(Ok(SourceEvent::Delta(delta))) if is_next(&delta, choice) => match piece(kind, delta.kind) {
                    Ok(next) if joining == Joining::Text => {
                        bytes += next.text.len();
                        append(kind, next);
                    }
                    Ok(next) => {
                        bytes += next.text.len();
                        more.push(next);
                        self.is_burst = true;
                    }
                    Err(kind) => {
                        self.behind = Some(Ok(SourceEvent::Delta(Delta { choice, kind })));
                        break;
                    }
                },
                Some(other) => {
                    self.behind = Some(other);
                    break;
                }
            }
        }
        more
    }

    fn may_take(&self, joining: Joining, events: usize, bytes: usize) -> bool {
        match joining {
            Joining::Never => false,
            Joining::OneRead => (self.is_burst || self.was_burst) && events < READ_EVENTS && bytes < PIECE_BYTES,
            Joining::Events | Joining::Text => bytes < PIECE_BYTES,
        }
    }
}

fn text_of(event: &Result<SourceEvent, Reject>) -> Option<(u32, Discriminant<DeltaKind>)> {
    match event {
        Ok(SourceEvent::Delta(Delta { choice, kind: kind @ (DeltaKind::Text { .. } | DeltaKind::Reasoning(_)) })) => {
            Some((*choice, discriminant(kind)))
        }
        _ => None,
    }
}

/// Whether it may be judged with what came before it of the same choice.
fn is_next(delta: &Delta, choice: u32) -> bool {
    delta.choice == choice && text_bytes(&delta.kind) <= PIECE_BYTES
}

pub(super) fn text_bytes(kind: &DeltaKind) -> usize {
    match kind {
        DeltaKind::Text { text, .. } | DeltaKind::Reasoning(text) | DeltaKind::Refusal(text) => text.len(),
        DeltaKind::ToolCall { .. } | DeltaKind::Finish(_) => 0,
    }
}

/// The text of an event, where it goes on with what was said.
fn piece(said: &DeltaKind, next: DeltaKind) -> Result<Piece, DeltaKind> {
    match (said, next) {
        (DeltaKind::Text { .. }, DeltaKind::Text { text, logprobs }) => Ok(Piece { text, logprobs }),
        (DeltaKind::Reasoning(_), DeltaKind::Reasoning(text)) => Ok(Piece { text, logprobs: Vec::new() }),
        (_, other) => Err(other),
    }
}

fn append(said: &mut DeltaKind, mut next: Piece) {
    match said {
        DeltaKind::Text { text, logprobs } => {
            text.push_str(&next.text);
            logprobs.append(&mut next.logprobs);
        }
        DeltaKind::Reasoning(text) => text.push_str(&next.text),
        _ => {}
    }
}
