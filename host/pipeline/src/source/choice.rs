//! From tokens to text: detokenizer, tool calls and reasoning, stop strings of one answer, in this order.

use super::engine::{EngineTurn, Reading};
use std::collections::VecDeque;
use std::sync::Arc;
use tidegate_text::{
    CallIdForm, Detokenizer, OutputEvent, OutputParser, Parsed, Place, Specials, StopMatcher, TextModel,
};
use tidegate_types::{DeltaKind, Reject, SampledToken, TextLogprob, ToolCall, TopLogprob};

/// The text of one answer as it grows.
pub(super) struct ChoiceText {
    text: Arc<TextModel>,
    detokenizer: Detokenizer,
    stops: StopMatcher,
    /// `None` for raw completions.
    parser: Option<OutputParser>,
    /// Up to where generated text was told.
    said: usize,
    /// Bytes of text that were told; what is reasoning, a call or between them is none.
    told: u64,
    logprobs: LogprobQueue,
    num_calls: u32,
    /// `None` where reasoning is not told from the rest.
    reasoning_tokens: Option<u64>,
}

/// Log-probabilities that wait for the text of their tokens.
#[derive(Default)]
struct LogprobQueue {
    /// Bytes of text made so far.
    made: usize,
    /// The same, with those that wait for the rest of their character.
    reached: usize,
    waiting: VecDeque<Waiting>,
}

/// Where a token's text is in the generated text.
struct Waiting {
    begin: usize,
    /// Where the whole characters end that it is told with; `None` until the token, or one behind it, has made some.
    end: Option<usize>,
    /// Where its own bytes end; `None` for one without text, such as a special token.
    own_end: Option<usize>,
    logprob: TextLogprob,
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
            Reading::CallsAlone => {
                Some(OutputParser::new(text.dialect(), text.opens_reasoning(&turn.prompt)).calls_alone())
            }
        };
        let (specials, place) = match turn.reading {
            Reading::Verbatim => (Specials::Hide, Place::Continuation),
            Reading::Chat { tools: false } => (Specials::ShowReasoning, Place::Start),
            Reading::Chat { tools: true } | Reading::CallsAlone => (Specials::ShowMarkup, Place::Start),
        };
        let detokenizer = Detokenizer::new(Arc::clone(&text), specials, place);
        let reasoning_tokens = (parser.is_some() && text.dialect().reasoning.is_some()).then_some(0);
        let logprobs = LogprobQueue::default();
        Ok(Self { text, detokenizer, stops, parser, said: 0, told: 0, logprobs, num_calls: 0, reasoning_tokens })
    }

    pub(super) fn num_calls(&self) -> u32 {
        self.num_calls
    }

    /// Tokens behind which the model still reasoned.
    pub(super) fn reasoning_tokens(&self) -> Option<u64> {
        self.reasoning_tokens
    }

    /// Adds a token; true when a stop string ends the answer.
    pub(super) fn push(&mut self, token: &SampledToken, out: &mut Vec<DeltaKind>) -> bool {
        if let Some(logprob) = token.logprob {
            let logprob = self.describe(token, logprob);
            self.logprobs.push(logprob);
        }
        let piece = self.detokenizer.push(token.id);
        let events = self.read(piece);
        if let Some(count) = &mut self.reasoning_tokens {
            *count += u64::from(self.parser.as_ref().is_some_and(OutputParser::is_reasoning));
        }
        self.tell(events, out)
    }

    /// The answer ended by itself, or at a limit that may have cut a tool call in two; true when its last words
    /// hold a stop string.
    pub(super) fn finish(&mut self, is_cut: bool, out: &mut Vec<DeltaKind>) -> bool {
        let rest = self.detokenizer.finish();
        let mut events = self.read(rest);
        if let Some(parser) = &mut self.parser {
            events.extend(if is_cut { parser.cut() } else { parser.finish() });
        }
        let stopped = self.tell(events, out);
        if !stopped {
            self.flush(out);
        }
        stopped
    }

    fn read(&mut self, piece: String) -> Vec<Parsed> {
        self.logprobs.made(piece.len(), self.detokenizer.waiting_bytes());
        match &mut self.parser {
            Some(parser) if !piece.is_empty() => parser.push(&piece),
            None if !piece.is_empty() => vec![Parsed { event: OutputEvent::Text(piece), end: self.logprobs.made }],
            _ => Vec::new(),
        }
    }

    /// Stop strings are looked for in the answer's text alone: one that ends a line must not end a tool call.
    fn tell(&mut self, events: Vec<Parsed>, out: &mut Vec<DeltaKind>) -> bool {
        for Parsed { event, end } in events {
            match event {
                OutputEvent::Text(text) => {
                    if self.say(&text, end, out) {
                        return true;
                    }
                }
                OutputEvent::Reasoning(text) => {
                    self.flush(out);
                    self.logprobs.take(end);
                    out.push(DeltaKind::Reasoning(text));
                }
                OutputEvent::ToolCall { name, arguments } => {
                    self.flush(out);
                    self.logprobs.take(end);
                    let call = ToolCall { id: call_id(self.text.call_id_form()), name, arguments };
                    out.push(DeltaKind::ToolCall { index: self.num_calls, call });
                    self.num_calls += 1;
                }
            }
        }
        false
    }

    fn say(&mut self, text: &str, end: usize, out: &mut Vec<DeltaKind>) -> bool {
        let begin = end - text.len() - self.stops.held_bytes();
        // What was read without an event, such as a mark or the white space beside it, is none of the text.
        self.logprobs.take(begin);
        let step = self.stops.push(text);
        self.said = begin + step.text.len();
        let stopped = step.matched.is_some();
        // A token that the stop string cuts is told with what is left of it.
        let tokens = if stopped { self.logprobs.take_begun(self.said) } else { self.logprobs.take(self.said) };
        self.tell_text(step.text, tokens, out);
        stopped
    }

    /// What waited for a stop string is text.
    fn flush(&mut self, out: &mut Vec<DeltaKind>) {
        let text = self.stops.flush();
        self.said += text.len();
        let tokens = self.logprobs.take(self.said);
        self.tell_text(text, tokens, out);
    }

    /// Tells text that ends at `said`, with tokens that end in it. They come without text where a stop string cuts a token
    /// whose beginning was told before.
    fn tell_text(&mut self, text: String, tokens: Vec<Waiting>, out: &mut Vec<DeltaKind>) {
        self.told += text.len() as u64;
        let place = |Waiting { own_end, logprob, .. }| {
            let behind = own_end.and_then(|end| self.said.checked_sub(end)).filter(|behind| *behind < text.len());
            TextLogprob { end: behind.map(|behind| self.told - behind as u64), ..logprob }
        };
        let logprobs: Vec<TextLogprob> = tokens.into_iter().map(place).collect();
        if !text.is_empty() || !logprobs.is_empty() {
            out.push(DeltaKind::Text { text, logprobs });
        }
    }

    /// Of a token that comes next, and of those that might have: each is what it writes there, or would. One that writes
    /// nothing, such as a special one, is called by the bytes that it has.
    fn describe(&self, token: &SampledToken, logprob: f32) -> TextLogprob {
        let one = |id: u32, logprob: f32| {
            let written = self.detokenizer.written(id);
            let bytes = if written.is_empty() { self.text.token_bytes(id).to_vec() } else { written.into_owned() };
            TopLogprob { token: String::from_utf8_lossy(&bytes).into_owned(), logprob, bytes }
        };
        TextLogprob {
            chosen: one(token.id, logprob),
            top: token.top.iter().map(|(id, logprob)| one(*id, *logprob)).collect(),
            end: None,
        }
    }
}

impl LogprobQueue {
    fn push(&mut self, logprob: TextLogprob) {
        self.waiting.push_back(Waiting { begin: self.made, end: None, own_end: None, logprob });
    }

    /// The last token has made so many bytes of text, and so many wait.
    fn made(&mut self, bytes: usize, waiting_bytes: usize) {
        let reached = self.made + bytes + waiting_bytes;
        if let Some(last) = self.waiting.back_mut().filter(|_| reached > self.reached) {
            last.own_end = Some(reached);
        }
        self.reached = reached;
        if bytes == 0 {
            return;
        }
        self.made += bytes;
        for waiting in self.waiting.iter_mut().rev().take_while(|waiting| waiting.end.is_none()) {
            waiting.end = Some(self.made);
        }
    }

    /// Those whose text ends at or before `said`.
    fn take(&mut self, said: usize) -> Vec<Waiting> {
        self.take_while(|waiting| waiting.end.is_some_and(|end| end <= said))
    }

    /// Those whose text begins before `said`.
    fn take_begun(&mut self, said: usize) -> Vec<Waiting> {
        self.take_while(|waiting| waiting.begin < said)
    }

    fn take_while(&mut self, goes: impl Fn(&Waiting) -> bool) -> Vec<Waiting> {
        let mut taken = Vec::new();
        while self.waiting.front().is_some_and(&goes) {
            taken.extend(self.waiting.pop_front());
        }
        taken
    }
}

/// Of the form that the model's template will take when the call comes back.
fn call_id(form: CallIdForm) -> String {
    let mut bytes = [0_u8; 12];
    // An id only has to be unique within its conversation; a machine without randomness counts instead.
    if getrandom::fill(&mut bytes).is_err() {
        static NEXT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
        let next = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        bytes[..8].copy_from_slice(&next.to_le_bytes());
    }
    form.write(&bytes)
}

#[cfg(test)]
#[allow(clippy::expect_used, clippy::panic)]
mod tests;
