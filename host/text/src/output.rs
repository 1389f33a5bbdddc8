//! Generated text to events: answer, reasoning, tool calls.
//!
//! An incremental state machine. Invariants, property-tested:
//! - the events are the same for every chunking of the text (adjacent texts joined);
//! - nothing is lost: what is not a well-formed tool call is text, its marks included, unless a limit cut it off;
//! - a tool call comes whole, its arguments are a valid JSON object as the model wrote it.
//!
//! Two things are left out of the events because they are punctuation between parts and not text: white space
//! around reasoning, and white space beside a tool call where no other text follows it.
//!
//! Work is bounded: a call is at most [`MAX_CALL_BYTES`] long, and after [`MAX_MALFORMED`] calls that were not
//! well-formed the rest of the answer is text.
//!
//! Read next: `output/call.rs` (formats of calls), `output/scan.rs` (where a JSON value ends), `stop.rs` (where the
//! text goes to).

mod call;
mod scan;

use crate::dialect::{Dialect, ReasoningTags, ToolFormat};
use call::{Body, Call, Opening};

/// The longest tool call. A longer one is text.
const MAX_CALL_BYTES: usize = 1 << 20;
/// Malformed calls after which no more are looked for.
const MAX_MALFORMED: usize = 64;

/// What a model said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OutputEvent {
    /// Text of the answer.
    Text(String),
    /// Reasoning.
    Reasoning(String),
    /// A call of a tool.
    ToolCall {
        /// The tool's name, as the model wrote it; it may be none that was offered.
        name: String,
        /// JSON text of an object.
        arguments: String,
    },
}

/// An event, and how much of the generated text lies behind it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parsed {
    /// What the model said.
    pub event: OutputEvent,
    /// Bytes of generated text up to the end of this event; tells which tokens belong to it.
    pub end: usize,
}

/// Where in an answer the parser is. What is before is consumed.
#[derive(Debug)]
enum Phase {
    /// Reasoning may open.
    Opening,
    /// The prompt opened reasoning; the model may do so again.
    Opened,
    /// Behind the opening tag.
    ReasoningStart,
    /// Inside reasoning.
    Reasoning,
    /// Behind the closing tag.
    ReasoningEnd,
    /// A call may be the whole answer (Llama), or follow another call.
    BareCall,
    /// A mark may open a call; else there is none.
    Alone,
    /// In text where a mark opens a call.
    Text,
    /// Behind `lead` bytes of white space and mark, in a call's body.
    Call { lead: usize, body: Body },
    /// Behind a call's JSON; its closing mark may follow.
    CallEnd,
    /// Everything is text.
    Verbatim,
}

/// Whether a step got further.
enum Step {
    /// The phase or the text changed; go on.
    Next,
    /// More text is needed.
    Wait,
}

/// Parses one answer.
#[derive(Debug)]
pub struct OutputParser {
    tools: ToolFormat,
    /// No words stand beside calls.
    alone: bool,
    reasoning: Option<ReasoningTags>,
    phase: Phase,
    /// Text that is not decided yet.
    pending: String,
    /// Bytes of text before `pending`.
    consumed: usize,
    /// No more text comes.
    is_last: bool,
    num_calls: usize,
    num_malformed: usize,
    events: Vec<Parsed>,
}

impl OutputParser {
    /// A parser for an answer. `in_reasoning` where the prompt already opened the reasoning
    /// ([`TextModel::opens_reasoning`](crate::TextModel::opens_reasoning)).
    pub fn new(dialect: &Dialect, in_reasoning: bool) -> Self {
        let phase = match &dialect.reasoning {
            Some(_) if in_reasoning => Phase::Opened,
            Some(_) => Phase::Opening,
            None => first_phase(dialect.tools, false),
        };
        Self {
            tools: dialect.tools,
            alone: false,
            reasoning: dialect.reasoning.clone(),
            phase,
            pending: String::new(),
            consumed: 0,
            is_last: false,
            num_calls: 0,
            num_malformed: 0,
            events: Vec::new(),
        }
    }

    /// The same for an answer that is calls from its beginning on or has none. What is JSON may have a call's mark in a string,
    /// and Mistral's calls need no quotes: it would be cut out.
    pub fn calls_alone(mut self) -> Self {
        self.alone = true;
        if self.reasoning.is_none() {
            self.phase = first_phase(self.tools, true);
        }
        self
    }

    /// Takes the next text and returns what is decided.
    pub fn push(&mut self, text: &str) -> Vec<Parsed> {
        self.pending.push_str(text);
        self.run()
    }

    /// Ends the answer and returns the rest.
    pub fn finish(&mut self) -> Vec<Parsed> {
        self.is_last = true;
        self.run()
    }

    /// Ends an answer that a limit cut off: as [`Self::finish`], but a tool call that is not whole is neither a
    /// call nor text. A bare JSON object (Llama) may be the answer itself and stays text.
    pub fn cut(&mut self) -> Vec<Parsed> {
        if matches!(self.phase, Phase::Call { .. }) && self.tools != ToolFormat::LlamaJson {
            self.consume(self.pending.len());
            self.phase = Phase::CallEnd;
        }
        self.finish()
    }

    /// How many tool calls there were.
    pub fn num_calls(&self) -> usize {
        self.num_calls
    }

    /// Whether the next text continues reasoning, as far as is decided.
    pub fn is_reasoning(&self) -> bool {
        matches!(self.phase, Phase::Opened | Phase::ReasoningStart | Phase::Reasoning)
    }

    fn run(&mut self) -> Vec<Parsed> {
        while let Step::Next = self.step() {}
        std::mem::take(&mut self.events)
    }

    fn step(&mut self) -> Step {
        match &mut self.phase {
            Phase::Opening => self.opening(first_phase(self.tools, self.alone)),
            Phase::Opened => self.opening(Phase::ReasoningStart),
            Phase::ReasoningStart => self.reasoning_start(),
            Phase::Reasoning => self.in_reasoning(),
            Phase::ReasoningEnd => self.reasoning_end(),
            Phase::BareCall => self.bare_call(),
            Phase::Alone => self.alone(),
            Phase::Text => self.text(),
            Phase::Call { .. } => self.in_call(),
            Phase::CallEnd => self.call_end(),
            Phase::Verbatim => {
                self.emit_text(self.pending.len());
                Step::Wait
            }
        }
    }

    fn opening(&mut self, otherwise: Phase) -> Step {
        let Some(tags) = &self.reasoning else { return self.go(otherwise) };
        let blank = blank_len(&self.pending);
        match self.mark_at(blank, &tags.open) {
            Mark::There => {
                self.consume(blank + tags.open.len());
                self.go(Phase::ReasoningStart)
            }
            Mark::Perhaps => Step::Wait,
            Mark::Not => self.go(otherwise),
        }
    }

    fn reasoning_start(&mut self) -> Step {
        self.skip_blank(Phase::Reasoning)
    }

    fn in_reasoning(&mut self) -> Step {
        let Some(tags) = &self.reasoning else { return self.go(Phase::Verbatim) };
        let close_len = tags.close.len();
        if let Some(at) = self.pending.find(&tags.close) {
            let text_len = self.pending[..at].trim_end().len();
            self.emit_reasoning(text_len);
            self.consume(at - text_len + close_len);
            return self.go(Phase::ReasoningEnd);
        }
        let held = if self.is_last { 0 } else { held_len(&self.pending, &tags.close) };
        self.emit_reasoning(self.pending.len() - held);
        Step::Wait
    }

    fn reasoning_end(&mut self) -> Step {
        self.skip_blank(first_phase(self.tools, self.alone))
    }

    fn skip_blank(&mut self, next: Phase) -> Step {
        self.consume(blank_len(&self.pending));
        if self.pending.is_empty() { Step::Wait } else { self.go(next) }
    }

    /// Llama: a call is JSON at the beginning of an answer, or behind another call and an optional semicolon.
    fn bare_call(&mut self) -> Step {
        let mut at = blank_len(&self.pending);
        if self.num_calls > 0 && self.pending[at..].starts_with(';') {
            at += 1 + blank_len(&self.pending[at + 1..]);
        }
        let tag = ToolFormat::LlamaJson.marks()[0];
        let opening = match self.mark_at(at, tag) {
            Mark::There => {
                at += tag.len() + blank_len(&self.pending[at + tag.len()..]);
                Opening::Mark
            }
            Mark::Perhaps => return Step::Wait,
            Mark::Not => Opening::Bare,
        };
        match self.pending[at..].chars().next() {
            Some('{') => self.go(Phase::Call { lead: at, body: Body::new(ToolFormat::LlamaJson, opening) }),
            None if !self.is_last => Step::Wait,
            None if self.num_calls > 0 => {
                self.consume(self.pending.len());
                Step::Wait
            }
            _ => self.go(Phase::Verbatim),
        }
    }

    fn alone(&mut self) -> Step {
        let begins = self.tools.marks().first().map_or(Mark::Not, |mark| self.mark_at(blank_len(&self.pending), mark));
        match begins {
            Mark::There => self.go(Phase::Text),
            Mark::Perhaps => Step::Wait,
            Mark::Not => self.go(Phase::Verbatim),
        }
    }

    fn text(&mut self) -> Step {
        let Some(mark) = self.tools.marks().first().filter(|_| self.tools != ToolFormat::LlamaJson) else {
            return self.go(Phase::Verbatim);
        };
        if let Some(at) = self.pending.find(mark) {
            let text_len = self.pending[..at].trim_end().len();
            self.emit_text(text_len);
            let body = Body::new(self.tools, Opening::Mark);
            return self.go(Phase::Call { lead: at - text_len + mark.len(), body });
        }
        if !self.is_last {
            self.emit_text(self.pending.len() - held_len(&self.pending, mark));
        } else if self.num_calls > 0 && self.pending.trim().is_empty() {
            self.consume(self.pending.len());
        } else {
            self.emit_text(self.pending.len());
        }
        Step::Wait
    }

    fn in_call(&mut self) -> Step {
        let Phase::Call { lead, body } = &mut self.phase else { return Step::Next };
        let lead = *lead;
        match body.read(&self.pending[lead..], self.is_last) {
            Call::Incomplete => Step::Wait,
            Call::Malformed => self.malformed(lead),
            Call::Complete { calls, len } => {
                self.consume(lead + len);
                self.num_calls += calls.len();
                let end = self.consumed;
                let event = |(name, arguments)| Parsed { event: OutputEvent::ToolCall { name, arguments }, end };
                self.events.extend(calls.into_iter().map(event));
                self.go(Phase::CallEnd)
            }
        }
    }

    /// The lead is text; a mark further on may still open a call.
    fn malformed(&mut self, lead: usize) -> Step {
        self.num_malformed += 1;
        if self.tools == ToolFormat::LlamaJson || self.num_malformed > MAX_MALFORMED {
            return self.go(Phase::Verbatim);
        }
        self.emit_text(lead);
        self.go(Phase::Text)
    }

    fn call_end(&mut self) -> Step {
        let (next, close) = match self.tools {
            ToolFormat::Hermes => (Phase::Text, ToolFormat::Hermes.marks().get(1)),
            ToolFormat::LlamaJson => (Phase::BareCall, None),
            ToolFormat::Mistral | ToolFormat::None => (Phase::Text, None),
        };
        let Some(close) = close else { return self.go(next) };
        let blank = blank_len(&self.pending);
        match self.mark_at(blank, close) {
            Mark::There => self.consume(blank + close.len()),
            Mark::Perhaps => return Step::Wait,
            Mark::Not => {}
        }
        self.go(next)
    }

    fn go(&mut self, phase: Phase) -> Step {
        self.phase = phase;
        Step::Next
    }

    fn emit_text(&mut self, len: usize) {
        self.emit(len, OutputEvent::Text);
    }

    fn emit_reasoning(&mut self, len: usize) {
        self.emit(len, OutputEvent::Reasoning);
    }

    fn emit(&mut self, len: usize, kind: fn(String) -> OutputEvent) {
        if len > 0 {
            let text = self.pending[..len].to_owned();
            self.consume(len);
            self.events.push(Parsed { event: kind(text), end: self.consumed });
        }
    }

    fn consume(&mut self, len: usize) {
        self.pending.drain(..len);
        self.consumed += len;
    }

    fn mark_at(&self, at: usize, mark: &str) -> Mark {
        let rest = &self.pending[at..];
        if rest.starts_with(mark) {
            Mark::There
        } else if !self.is_last && mark.starts_with(rest) {
            Mark::Perhaps
        } else {
            Mark::Not
        }
    }
}

/// Whether a mark stands somewhere.
enum Mark {
    There,
    /// The text ends before that is decided.
    Perhaps,
    Not,
}

/// Where an answer begins that does not begin with reasoning.
fn first_phase(tools: ToolFormat, alone: bool) -> Phase {
    match tools {
        ToolFormat::None => Phase::Verbatim,
        ToolFormat::LlamaJson => Phase::BareCall,
        ToolFormat::Hermes | ToolFormat::Mistral if alone => Phase::Alone,
        ToolFormat::Hermes | ToolFormat::Mistral => Phase::Text,
    }
}

fn blank_len(text: &str) -> usize {
    text.len() - text.trim_start().len()
}

/// How much of the end of `text` has to wait: white space, then a beginning of `mark`.
fn held_len(text: &str, mark: &str) -> usize {
    let begun = (1..mark.len()).rev().find(|len| mark.is_char_boundary(*len) && text.ends_with(&mark[..*len]));
    let before = &text[..text.len() - begun.unwrap_or(0)];
    text.len() - before.trim_end().len()
}
