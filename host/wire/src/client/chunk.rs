//! Reads an upstream's answer: chunks of a stream, or a whole answer from a server that does not stream.
//!
//! The hot path parses straight into typed fields; the only allocation that survives is the text of the delta.
//! Invariant: what comes out is a valid sequence of deltas (nothing after a choice's `Finish`, calls whole,
//! text never empty), or an error.

mod content;
mod tokens;
mod usage;

use self::content::Content;
use self::tokens::{HeldTokens, Logprobs};
use self::usage::WireUsage;
use crate::client::WireError;
use crate::client::calls::{CallPiece, Calls};
use crate::client::failure::Failure;
use serde::de::{Deserialize, Deserializer, IgnoredAny, SeqAccess, Visitor};
use serde_json::Value;
use std::borrow::Cow;
use std::collections::VecDeque;
use std::fmt;
use tidegate_types::{Chat, Delta, DeltaKind, FinishReason, Form, Usage};

/// What an upstream said.
#[derive(Clone, Debug, PartialEq)]
pub enum Received {
    /// Part of the answer.
    Delta(Delta),
    /// A piece of a tool call, of so many bytes: the call is told once it is whole.
    Piece(usize),
    /// What it counted.
    Usage(Usage),
    /// `[DONE]`: every choice has ended.
    Done,
}

/// Of calls that are not whole and of log-probabilities without text, of all choices together: as much as of an answer in one
/// piece.
const MAX_WAITING_BYTES: usize = 64 << 20;

/// A longer name is nonsense, and is not taken.
const MAX_MODEL_BYTES: usize = 256;

#[derive(serde::Deserialize)]
struct Chunk<'a> {
    #[serde(borrow)]
    model: Option<Cow<'a, str>>,
    choices: Option<Choices>,
    #[serde(default, deserialize_with = "usage::readable")]
    usage: Option<WireUsage>,
    error: Option<Value>,
    /// What an error has that is not within `error`.
    message: Option<IgnoredAny>,
    detail: Option<IgnoredAny>,
}

impl Chunk<'_> {
    fn has_choices(&self) -> bool {
        self.choices.as_ref().is_some_and(|choices| choices.first.is_some())
    }

    /// Whether it is an error itself, as vLLM's older ones and FastAPI's are.
    fn is_error(&self) -> bool {
        self.usage.is_none() && !self.has_choices() && (self.message.is_some() || self.detail.is_some())
    }
}

/// A list that nearly always has one item, which then needs no allocation.
struct Choices {
    first: Option<Choice>,
    rest: Vec<Choice>,
}

impl<'de> Deserialize<'de> for Choices {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(ChoicesVisitor)
    }
}

struct ChoicesVisitor;

impl<'de> Visitor<'de> for ChoicesVisitor {
    type Value = Choices;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of choices")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Choices, A::Error> {
        let mut choices = Choices { first: seq.next_element()?, rest: Vec::new() };
        while let Some(choice) = seq.next_element()? {
            choices.rest.push(choice);
        }
        Ok(choices)
    }
}

/// How an answer comes.
#[derive(Clone, Copy)]
enum Saying {
    /// As a stream of chunks.
    InPieces,
    /// As one body.
    Whole,
}

#[derive(serde::Deserialize)]
struct Choice {
    #[serde(default)]
    index: u32,
    delta: Option<Body>,
    message: Option<Body>,
    text: Option<String>,
    logprobs: Option<Logprobs>,
    finish_reason: Option<String>,
}

#[derive(serde::Deserialize)]
struct Body {
    content: Option<Content>,
    reasoning_content: Option<String>,
    reasoning: Option<String>,
    refusal: Option<String>,
    tool_calls: Option<Vec<CallPiece>>,
}

impl Body {
    /// Whether it says something, and no text.
    fn is_without_text(&self) -> bool {
        let is_said = |text: &Option<String>| text.as_ref().is_some_and(|text| !text.is_empty());
        let (is_text, thinks) =
            self.content.as_ref().map_or((false, false), |said| (!said.text.is_empty(), !said.reasoning.is_empty()));
        let calls = self.tool_calls.as_ref().is_some_and(|calls| !calls.is_empty());
        let others = [&self.reasoning_content, &self.reasoning, &self.refusal];
        !is_text && (thinks || calls || others.into_iter().any(is_said))
    }
}

/// Reads the answer to one request.
pub struct AnswerReader {
    form: Form,
    choices: Vec<ChoiceState>,
    /// Ends of choices that may have more calls, in the order in which they came. Gemini, through some gateways, ends a
    /// choice with each of its calls.
    held: Vec<(u32, FinishReason)>,
    /// What was counted since the first of those.
    held_usage: Option<Usage>,
    /// Who answers, as the server names it.
    model: Option<String>,
    new_call_id: fn() -> String,
}

#[derive(Default)]
struct ChoiceState {
    calls: Calls,
    /// Log-probabilities of tokens whose text has not come yet: parts of a character.
    tokens: HeldTokens,
    finished: bool,
}

impl AnswerReader {
    /// A reader for the answer to `chat`. Calls that come without an id get one from `new_call_id`, which must
    /// be unique within a conversation, so not only within this answer.
    pub fn new(chat: &Chat, new_call_id: fn() -> String) -> Self {
        let choices = (0..chat.n).map(|_| ChoiceState::default()).collect();
        Self { form: chat.form, choices, held: Vec::new(), held_usage: None, model: None, new_call_id }
    }

    /// What the server calls the model that answers; a name of reasonable length, once it was said.
    pub fn model(&self) -> Option<&str> {
        self.model.as_deref()
    }

    /// Reads the data of one event of a stream.
    pub fn event(&mut self, data: &[u8], out: &mut VecDeque<Received>) -> Result<(), WireError> {
        if data.trim_ascii_end() == b"[DONE]" {
            self.end(out)?;
            out.push_back(Received::Done);
            return Ok(());
        }
        // Some servers keep a connection alive with such events.
        if data.iter().all(u8::is_ascii_whitespace) {
            return Ok(());
        }
        self.chunk(data, Saying::InPieces, out)
    }

    /// Reads a whole answer that came without a stream.
    pub fn whole(&mut self, body: &[u8], out: &mut VecDeque<Received>) -> Result<(), WireError> {
        self.chunk(body, Saying::Whole, out)?;
        self.end(out)?;
        out.push_back(Received::Done);
        Ok(())
    }

    /// Nothing more comes: gives what was held back until then.
    pub fn end(&mut self, out: &mut VecDeque<Received>) -> Result<(), WireError> {
        self.check_complete()?;
        self.release(out)
    }

    /// Whether every choice has ended; an answer that stops before is broken.
    fn check_complete(&self) -> Result<(), WireError> {
        match self.choices.iter().position(|choice| !choice.finished) {
            None => Ok(()),
            Some(choice) => Err(WireError::BrokeOff { choice: choice as u32 }),
        }
    }

    fn chunk(&mut self, data: &[u8], saying: Saying, out: &mut VecDeque<Received>) -> Result<(), WireError> {
        let chunk: Chunk<'_> = serde_json::from_slice(data)
            .map_err(|error| WireError::Malformed(format!("a chunk is not OpenAI's: {error}")))?;
        if let Some(error) = chunk.error {
            return Err(WireError::Failed(Failure::from_value(&error)));
        }
        if chunk.is_error() {
            return Err(WireError::Failed(Failure::parse(data)));
        }
        // The last chunk of a stream has what was counted alone; some servers count in each.
        let is_last = matches!(saying, Saying::Whole) || !chunk.has_choices();
        if let (None, Some(name)) = (&self.model, chunk.model.filter(|name| name.len() <= MAX_MODEL_BYTES)) {
            self.model = Some(name.into_owned());
        }
        if let Some(Choices { first, rest }) = chunk.choices {
            first.into_iter().chain(rest).try_for_each(|choice| self.choice(choice, saying, out))?;
            self.check_waiting()?;
        }
        let Some(usage) = chunk.usage.map(Usage::from) else { return Ok(()) };
        if !is_last && !self.held.is_empty() {
            self.held_usage = Some(usage);
            return Ok(());
        }
        self.held_usage = None;
        self.release(out)?;
        out.push_back(Received::Usage(usage));
        Ok(())
    }

    /// What is gathered until something else comes is bounded, whatever the server does.
    fn check_waiting(&self) -> Result<(), WireError> {
        let waiting: usize = self.choices.iter().map(|choice| choice.calls.bytes() + choice.tokens.bytes()).sum();
        match waiting <= MAX_WAITING_BYTES {
            true => Ok(()),
            false => Err(WireError::TooLong { limit_bytes: MAX_WAITING_BYTES }),
        }
    }

    fn release(&mut self, out: &mut VecDeque<Received>) -> Result<(), WireError> {
        for (choice, reason) in std::mem::take(&mut self.held) {
            let state = self.choices.get_mut(choice as usize);
            let calls = state.map(|state| std::mem::take(&mut state.calls)).unwrap_or_default();
            Emit { choice, finished: false, out }.finish(reason, calls, self.new_call_id)?;
        }
        out.extend(self.held_usage.take().map(Received::Usage));
        Ok(())
    }

    fn choice(&mut self, mut choice: Choice, saying: Saying, out: &mut VecDeque<Received>) -> Result<(), WireError> {
        let n = self.choices.len();
        // Perplexity says both, in each chunk all that was said so far beside what is new.
        choice.delta = match saying {
            Saying::InPieces => choice.delta.or(choice.message),
            Saying::Whole => choice.message.or(choice.delta),
        };
        // Together AI says each text twice; what counts is what the request's endpoint says it in.
        match self.form {
            Form::Chat if choice.delta.is_some() => choice.text = None,
            Form::Completion { .. } if choice.text.is_some() => choice.delta = None,
            Form::Chat | Form::Completion { .. } => {}
        }
        let Some(state) = self.choices.get_mut(choice.index as usize) else {
            return Err(WireError::Malformed(format!("choice {} of {n} that were asked for", choice.index)));
        };
        let mut emit = Emit { choice: choice.index, finished: state.finished, out };
        if let Some(logprobs) = choice.logprobs {
            state.tokens.add(logprobs);
        }
        if let Some(body) = choice.delta {
            if body.is_without_text() {
                state.tokens.set_apart();
            }
            let content = body.content.unwrap_or_default();
            emit.text(body.reasoning_content.or(body.reasoning), DeltaKind::Reasoning)?;
            emit.text(Some(content.reasoning), DeltaKind::Reasoning)?;
            emit.answer_text(Some(content.text), state)?;
            emit.text(body.refusal, DeltaKind::Refusal)?;
            let mut calls = body.tool_calls.unwrap_or_default().into_iter();
            let is_held = self.held.iter().any(|(held, _)| *held == choice.index);
            if state.finished && !is_held && calls.len() > 0 {
                return Err(WireError::Malformed(format!("a tool call after the end of choice {}", choice.index)));
            }
            match saying {
                Saying::InPieces => calls.try_for_each(|piece| {
                    emit.out.push_back(Received::Piece(piece.bytes()));
                    state.calls.add(piece)
                })?,
                Saying::Whole => calls.try_for_each(|call| state.calls.add_whole(call))?,
            }
        }
        emit.answer_text(choice.text, state)?;
        match choice.finish_reason.as_deref() {
            None | Some("") => Ok(()),
            Some(_) if state.finished => Ok(()),
            Some(reason) => {
                state.finished = true;
                let reason = finish_reason(reason)?;
                if reason == FinishReason::ToolCalls || !state.calls.is_empty() || !self.held.is_empty() {
                    self.held.push((choice.index, reason));
                    return Ok(());
                }
                emit.push(DeltaKind::Finish(reason))
            }
        }
    }
}

/// Hands out the deltas of one choice.
struct Emit<'a> {
    choice: u32,
    finished: bool,
    out: &'a mut VecDeque<Received>,
}

impl Emit<'_> {
    fn push(&mut self, kind: DeltaKind) -> Result<(), WireError> {
        if self.finished {
            return Err(WireError::Malformed(format!("text after the end of choice {}", self.choice)));
        }
        self.out.push_back(Received::Delta(Delta { choice: self.choice, kind }));
        Ok(())
    }

    fn text(&mut self, text: Option<String>, kind: fn(String) -> DeltaKind) -> Result<(), WireError> {
        match text {
            Some(text) if !text.is_empty() => self.push(kind(text)),
            _ => Ok(()),
        }
    }

    /// Text with the log-probabilities of the tokens that end in it.
    fn answer_text(&mut self, text: Option<String>, state: &mut ChoiceState) -> Result<(), WireError> {
        match text {
            Some(text) if !text.is_empty() => {
                let logprobs = state.tokens.of_text(&text);
                self.push(DeltaKind::Text { text, logprobs })
            }
            _ => Ok(()),
        }
    }

    fn finish(&mut self, reason: FinishReason, calls: Calls, new_id: fn() -> String) -> Result<(), WireError> {
        // Some servers say `stop` after tool calls; a client that believes it would not run them.
        let reason = if calls.is_empty() || reason != FinishReason::Stop { reason } else { FinishReason::ToolCalls };
        for (index, call) in calls.finish(new_id)?.into_iter().enumerate() {
            self.push(DeltaKind::ToolCall { index: index as u32, call })?;
        }
        self.push(DeltaKind::Finish(reason))
    }
}

/// OpenAI's words and the ones that other servers use for the same, in whatever case. Words of a failure (`abort`, `error`) are
/// none of them: what was said until then is no answer.
fn finish_reason(word: &str) -> Result<FinishReason, WireError> {
    match word.to_ascii_lowercase().as_str() {
        "stop" | "eos" | "eos_token" | "stop_sequence" | "end_turn" | "complete" => Ok(FinishReason::Stop),
        "length" | "max_tokens" | "model_length" => Ok(FinishReason::Length),
        "tool_calls" | "tool_call" | "tool_use" | "function_call" => Ok(FinishReason::ToolCalls),
        // What Gemini's and Anthropic's filters say, as endpoints of OpenAI's protocol in front of them pass it on.
        "content_filter" | "safety" | "recitation" | "blocklist" | "prohibited_content" | "spii" | "image_safety"
        | "refusal" => Ok(FinishReason::ContentFilter),
        _ => Err(WireError::Malformed(format!("the answer ended with the unknown reason {:?}", shorten(word)))),
    }
}

fn shorten(word: &str) -> String {
    word.chars().take(40).collect()
}

#[cfg(test)]
mod tests;
