//! From tokens to text: detokenizer, stop strings, tool calls and reasoning of one answer, in this order.

use super::engine::{EngineTurn, Reading};
use std::collections::VecDeque;
use std::sync::Arc;
use tidegate_text::{Detokenizer, OutputEvent, OutputParser, Parsed, Place, Specials, StopMatcher, TextModel};
use tidegate_types::{DeltaKind, Reject, SampledToken, TextLogprob, ToolCall, TopLogprob};

/// The text of one answer as it grows.
pub(super) struct ChoiceText {
    text: Arc<TextModel>,
    detokenizer: Detokenizer,
    stops: StopMatcher,
    /// `None` for raw completions.
    parser: Option<OutputParser>,
    /// Bytes that the stop matcher let through.
    passed: usize,
    logprobs: LogprobQueue,
    num_calls: u32,
}

/// Log-probabilities that wait for the text of their tokens.
#[derive(Default)]
struct LogprobQueue {
    /// Bytes of text made so far.
    made: usize,
    /// Where the token's text ends; `None` until the token has made text.
    waiting: VecDeque<(Option<usize>, TextLogprob)>,
}

impl ChoiceText {
    pub(super) fn new(text: Arc<TextModel>, turn: &EngineTurn) -> Result<Self, Reject> {
        let stops = StopMatcher::new(&turn.stop).map_err(|error| Reject::invalid("stop", error.to_string()))?;
        let parser = match turn.reading {
            Reading::Verbatim => None,
            Reading::Chat { tools } => {
                let dialect = if tools { text.dialect().clone() } else { text.dialect().without_tools() };
                Some(OutputParser::new(&dialect, text.opens_reasoning(&turn.prompt)))
            }
        };
        let (specials, place) = match parser {
            Some(_) => (Specials::ShowMarkup, Place::Start),
            None => (Specials::Hide, Place::Continuation),
        };
        let detokenizer = Detokenizer::new(Arc::clone(&text), specials, place);
        Ok(Self { text, detokenizer, stops, parser, passed: 0, logprobs: LogprobQueue::default(), num_calls: 0 })
    }

    pub(super) fn num_calls(&self) -> u32 {
        self.num_calls
    }

    /// Adds a token; true when a stop string ends the answer.
    pub(super) fn push(&mut self, token: &SampledToken, out: &mut Vec<DeltaKind>) -> bool {
        if let Some(logprob) = token.logprob {
            self.logprobs.waiting.push_back((None, self.describe(token, logprob)));
        }
        let piece = self.detokenizer.push(token.id);
        self.logprobs.made(piece.len());
        let step = self.stops.push(&piece);
        self.pass(&step.text, out);
        if step.matched.is_some() {
            self.end(out);
        }
        step.matched.is_some()
    }

    /// The answer ended by itself.
    pub(super) fn finish(&mut self, out: &mut Vec<DeltaKind>) {
        let rest = self.detokenizer.finish();
        self.logprobs.made(rest.len());
        let step = self.stops.push(&rest);
        self.pass(&step.text, out);
        let rest = self.stops.finish();
        self.pass(&rest, out);
        self.end(out);
    }

    fn pass(&mut self, text: &str, out: &mut Vec<DeltaKind>) {
        if text.is_empty() {
            return;
        }
        self.passed += text.len();
        match &mut self.parser {
            None => {
                let logprobs = self.logprobs.take(self.passed);
                out.push(DeltaKind::Text { text: text.to_owned(), logprobs });
            }
            Some(parser) => {
                let events = parser.push(text);
                self.convert(events, out);
            }
        }
    }

    fn end(&mut self, out: &mut Vec<DeltaKind>) {
        if let Some(parser) = &mut self.parser {
            let events = parser.finish();
            self.convert(events, out);
        }
    }

    fn convert(&mut self, events: Vec<Parsed>, out: &mut Vec<DeltaKind>) {
        for Parsed { event, end } in events {
            let logprobs = self.logprobs.take(end);
            match event {
                OutputEvent::Text(text) => out.push(DeltaKind::Text { text, logprobs }),
                OutputEvent::Reasoning(text) => out.push(DeltaKind::Reasoning(text)),
                OutputEvent::ToolCall { name, arguments } => {
                    let call = ToolCall { id: call_id(), name, arguments };
                    out.push(DeltaKind::ToolCall { index: self.num_calls, call });
                    self.num_calls += 1;
                }
            }
        }
    }

    fn describe(&self, token: &SampledToken, logprob: f32) -> TextLogprob {
        let one = |id: u32, logprob: f32| {
            let bytes = self.text.token_bytes(id).to_vec();
            TopLogprob { token: String::from_utf8_lossy(&bytes).into_owned(), logprob, bytes }
        };
        TextLogprob {
            chosen: one(token.id, logprob),
            top: token.top.iter().map(|(id, logprob)| one(*id, *logprob)).collect(),
        }
    }
}

impl LogprobQueue {
    fn made(&mut self, bytes: usize) {
        if bytes == 0 {
            return;
        }
        self.made += bytes;
        for (end, _) in self.waiting.iter_mut().rev().take_while(|(end, _)| end.is_none()) {
            *end = Some(self.made);
        }
    }

    /// Those whose text ends at or before `passed`.
    fn take(&mut self, passed: usize) -> Vec<TextLogprob> {
        let mut taken = Vec::new();
        while let Some((Some(end), _)) = self.waiting.front()
            && *end <= passed
        {
            taken.extend(self.waiting.pop_front().map(|(_, logprob)| logprob));
        }
        taken
    }
}

fn call_id() -> String {
    let mut bytes = [0_u8; 12];
    // An id only has to be unique within its conversation; a machine without randomness counts instead.
    if getrandom::fill(&mut bytes).is_err() {
        static NEXT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
        let next = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        bytes[..8].copy_from_slice(&next.to_le_bytes());
    }
    bytes.iter().fold(String::from("call_"), |mut id, byte| {
        use std::fmt::Write;
        let _ = write!(id, "{byte:02x}");
        id
    })
}
