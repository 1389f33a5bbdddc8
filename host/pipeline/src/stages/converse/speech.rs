//! What a conversation says: text on its way through the guards, and what leaves.

use super::Conversation;
use crate::reply::ReplyEvent;
use crate::stages::ask_guard::Asking;
use crate::stages::beside::common_len;
use crate::stages::screen_answer;
use crate::stages::screen_output::{Judged, Piece, Taken};
use crate::stages::start::TurnPlan;
use crate::states::Request;
use tidegate_sandbox::stage::Channel;
use tidegate_types::{Delta, DeltaKind, FinishReason, Part, Reject, TextLogprob};

/// Text of a turn's answer, for the guards; `ending` says that it is the last.
pub(super) fn asking<'a>(turn: &'a TurnPlan, choice: u32, channel: &'a Channel, ending: Option<&'a str>) -> Asking<'a> {
    let Request { cx, chat, .. } = &*turn.request;
    Asking { cx, streaming: chat.stream, choice, channel, ending, pauses: false }
}

impl Conversation {
    /// Repeats the prompt before a choice that begins, where that is asked; true when a guard halts the answer.
    pub(super) async fn repeat(&mut self, choice: u32) -> Result<bool, Reject> {
        for text in self.echo.as_mut().map(|echo| echo.begin(choice)).unwrap_or_default() {
            if let Some(held) = &mut self.held {
                held.echoes(text.len());
            }
            if self.say(choice, DeltaKind::Text { text, logprobs: Vec::new() }, Vec::new(), None).await? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether the answer begins behind reasoning of which some may wait: it leaves first, in the order in which it was said.
    pub(super) fn ends_reasoning(&self, choice: u32, kind: &DeltaKind) -> bool {
        let begins = match kind {
            DeltaKind::Text { text, .. } | DeltaKind::Refusal(text) => !text.is_empty(),
            _ => false,
        };
        begins && self.screen.holds(choice, &Channel::Reasoning)
    }

    /// Lets the guards judge what they hold of the reasoning; true when one halts the answer. The answer does not end the other
    /// way round: who reads it joins what comes behind more reasoning to it.
    pub(super) async fn end_reasoning(&mut self, choice: u32) -> Result<bool, Reject> {
        let ending = Some(FinishReason::Stop.as_str());
        self.say(choice, DeltaKind::Reasoning(String::new()), Vec::new(), ending).await
    }

    /// Judges text, with `more` that came together with it, and lets it out; true when a guard halts the answer.
    pub(super) async fn say(
        &mut self,
        choice: u32,
        kind: DeltaKind,
        more: Vec<Piece>,
        ending: Option<&str>,
    ) -> Result<bool, Reject> {
        let (channel, text, logprobs) = match kind {
            DeltaKind::Text { text, logprobs } => (Channel::Text, text, logprobs),
            DeltaKind::Reasoning(text) => (Channel::Reasoning, text, Vec::new()),
            DeltaKind::Refusal(text) => (Channel::Refusal, text, Vec::new()),
            DeltaKind::ToolCall { .. } | DeltaKind::Finish(_) => return Ok(false),
        };
        let (guards, asking) = (&self.pipeline.stages.stream_guards, asking(&self.turn, choice, &channel, ending));
        let judged = match self.screen.take(guards, asking, Piece { text, logprobs }, more)? {
            Taken::Judged(judged) => judged,
            // What a call needs is made where that of the last call of any stream was, and not among what this answer keeps,
            // which is cold whenever its events pause. `Box::pin` would make it on the stack and copy it (`docs/decisions/0026`).
            Taken::Waits(place) => {
                let called = Box::write(Box::new_uninit(), self.screen.ask(guards, asking, place));
                Box::into_pin(called).await?
            }
        };
        Ok(self.let_out(choice, &channel, judged).await)
    }

    /// Has the guards judge what they hold of the answer, which goes on when the server's tools have been run; true when one halts
    /// it. What they go on holding is a part of one text with what comes, and the model knows it as said.
    pub(super) async fn pause(&mut self, choice: u32, reason: FinishReason) -> Result<bool, Reject> {
        if self.say(choice, DeltaKind::Reasoning(String::new()), Vec::new(), Some(reason.as_str())).await? {
            return Ok(true);
        }
        for channel in [Channel::Text, Channel::Refusal] {
            if !self.screen.holds(choice, &channel) {
                continue;
            }
            let guards = &self.pipeline.stages.stream_guards;
            let asking = Asking { pauses: true, ..asking(&self.turn, choice, &channel, None) };
            let judged = self.screen.judge(guards, asking, Piece::default(), Vec::new()).await?;
            if self.let_out(choice, &channel, judged).await {
                return Ok(true);
            }
            self.screen.rest(choice, &channel);
        }
        if let Some(spoken) = self.spoken.as_mut().filter(|_| choice == 0) {
            let waits = self.screen.waits(choice, &Channel::Text);
            add_text(spoken, &waits[common_len(&waits, &self.waiting)..]);
            self.waiting = waits;
        }
        Ok(false)
    }

    /// Counts text of a turn that began behind so many bytes of the answer's, where its tokens are then.
    pub(super) fn place_behind(&mut self, before: u64, choice: u32, kind: &mut DeltaKind, more: &mut [Piece]) {
        let DeltaKind::Text { text, logprobs } = kind else { return };
        if choice != 0 {
            return;
        }
        self.heard_bytes += (text.len() + more.iter().map(|piece| piece.text.len()).sum::<usize>()) as u64;
        if before > 0 {
            let tokens = logprobs.iter_mut().chain(more.iter_mut().flat_map(|piece| &mut piece.logprobs));
            tokens.filter_map(|token| token.end.as_mut()).for_each(|end| *end += before);
        }
    }

    async fn let_out(&mut self, choice: u32, channel: &Channel, judged: Judged) -> bool {
        let halted = judged.halted;
        for Piece { text, logprobs } in judged.pieces() {
            self.emit_text(choice, channel, text, logprobs).await;
        }
        halted
    }

    async fn emit_text(&mut self, choice: u32, channel: &Channel, text: String, logprobs: Vec<TextLogprob>) {
        let kind = match channel {
            Channel::Reasoning => DeltaKind::Reasoning(text),
            Channel::Refusal => DeltaKind::Refusal(text),
            Channel::Text | Channel::ToolArguments(_) => DeltaKind::Text { text, logprobs },
        };
        self.emit(choice, kind).await;
    }

    pub(super) async fn emit(&mut self, choice: u32, kind: DeltaKind) {
        self.note_spoken(choice, &kind);
        if let Some(held) = &mut self.held {
            held.push(Delta { choice, kind });
            return;
        }
        match &kind {
            DeltaKind::Finish(FinishReason::ContentFilter) => self.said = None,
            DeltaKind::Finish(reason) if choice == 0 => self.finish = Some(*reason),
            DeltaKind::Text { text, .. } if choice == 0 => self.said.iter_mut().for_each(|said| said.push_str(text)),
            _ => {}
        }
        self.out.emit(ReplyEvent::Delta(Delta { choice, kind })).await;
    }

    fn note_spoken(&mut self, choice: u32, kind: &DeltaKind) {
        let Some(spoken) = self.spoken.as_mut().filter(|_| choice == 0) else { return };
        match kind {
            DeltaKind::Text { text, .. } => {
                let known = common_len(text, &self.waiting);
                self.waiting.drain(..known);
                if known < text.len() {
                    // It is what came behind, or a guard has changed it.
                    self.waiting.clear();
                }
                add_text(spoken, &text[known..]);
            }
            kind => screen_answer::add(spoken, kind),
        }
    }
}

/// What has no words is no part of a message.
fn add_text(spoken: &mut Vec<Part>, text: &str) {
    if !text.is_empty() {
        screen_answer::add_text(spoken, text);
    }
}
