//! A stream guard under test: the gateway's own holdback hands it windows, in many chunkings of a text, of a short one in all,
//! and the client must read the same each time.
//!
//! Each chunking comes with an ending on its last piece and with an empty window that ends it. Then two streams of the text
//! come in turn, as two choices of one answer, so that what a guard remembers in its instance is not of the stream that it is
//! asked about. Each begins in the world as the first one found it. Arguments of a tool call come once and whole, as in a
//! server. The guide says the number (`docs/plugins.md`).
//! Read next: `stream/chunkings.rs` for the chunkings, `stream/cap.rs` for what may be withheld.

mod cap;
mod chunkings;

use super::cases::categories;
use super::fixture::Stream;
use super::workbench::{State, World, context};
use anyhow::{Context, bail};
use cap::Cap;
use chunkings::{chunkings, cut};
use serde_json::{Value, json};
use tidegate_pipeline::check_arguments;
use tidegate_pipeline::holdback::{AtCap, Holdback};
use tidegate_sandbox::Prefilter;
use tidegate_sandbox::stage::{CallError, Channel, Inspection, Window, WindowAction};
use tidegate_types::FinishReason;

const IN_TURN: &str = "where two streams of it come in turn, a character of each: its instance sees other streams between, \
                       so that what it remembers of one belongs in `carry`";

const FAREWELL: &str = "\n  of a window that is halted nothing leaves but the `farewell`: begin that with the pending text that stands \
                        before what it halts at (wit/README.md)";

/// What a client reads in each chunking.
pub(super) struct Reading {
    /// `text`, `halted`, `findings`; or `error`, where the guard fails at the whole text.
    pub(super) outcome: Value,
    /// How many there were.
    pub(super) chunkings: usize,
}

/// Runs a text through the guard; fails where two chunkings differ.
pub(super) async fn read(world: &World, stream: &Stream, most: usize) -> anyhow::Result<Reading> {
    let (name, channel, cap) = (world.plugin.name(), &stream.channel, Cap::of(&world.plugin, most));
    Guard { judge: world, name, channel, cap }.read(&stream.text).await
}

/// Why a text of a channel ends.
pub(super) fn finish_reason(channel: &Channel) -> &'static str {
    let reason = if comes_whole(channel) { FinishReason::ToolCalls } else { FinishReason::Stop };
    reason.as_str()
}

/// A server holds arguments until it has all of them.
fn comes_whole(channel: &Channel) -> bool {
    matches!(channel, Channel::ToolArguments(_))
}

/// Who judges windows: a plugin, or in the tests of this file something else.
trait Judge {
    /// What it leaves beside what it says.
    type State: Clone;

    fn state(&self) -> Self::State;

    fn set_state(&self, state: &Self::State);

    /// What it need not be asked about.
    fn prefilter(&self) -> Option<&Prefilter> {
        None
    }

    /// Bytes of what has left that it sees again, where it says how many.
    fn look_behind_bytes(&self) -> Option<u32> {
        None
    }

    /// What it says at a glance.
    async fn glance(&self, _: &Window<'_>) -> Result<Option<Inspection>, CallError> {
        Ok(None)
    }

    async fn judge(&self, carry: &[u8], window: Window<'_>) -> Result<Inspection, CallError>;
}

impl Judge for World {
    type State = State;

    fn state(&self) -> State {
        self.state()
    }

    fn set_state(&self, state: &State) {
        self.set_state(state);
    }

    fn prefilter(&self) -> Option<&Prefilter> {
        self.plugin.descriptor().prefilter.as_ref()
    }

    fn look_behind_bytes(&self) -> Option<u32> {
        self.plugin.descriptor().look_behind_bytes
    }

    async fn glance(&self, window: &Window<'_>) -> Result<Option<Inspection>, CallError> {
        self.plugin.glance(&context(true), window).await
    }

    async fn judge(&self, carry: &[u8], window: Window<'_>) -> Result<Inspection, CallError> {
        self.plugin.inspect_window(&context(true), carry, window).await
    }
}

/// A guard and what it is asked about.
struct Guard<'a, J> {
    judge: &'a J,
    name: &'a str,
    channel: &'a Channel,
    cap: Cap,
}

/// A text on its way past the guard.
#[derive(Default)]
struct Passage {
    choice: u32,
    held: Holdback,
    text: String,
    halted: Option<String>,
    findings: Vec<String>,
}

impl Passage {
    fn outcome(self) -> Value {
        json!({"text": self.text, "halted": self.halted, "findings": self.findings})
    }
}

impl<J: Judge> Guard<'_, J> {
    /// What the guard fails with at the whole text is an outcome; what it fails with in some chunking only is a failure.
    async fn read(&self, text: &str) -> anyhow::Result<Reading> {
        let before = self.judge.state();
        let whole = match self.one(&[text], false).await {
            Err(error) if error.is::<CallError>() => {
                return Ok(Reading { outcome: json!({"error": format!("{error:#}")}), chunkings: 1 });
            }
            whole => whole.context("in one piece")?,
        };
        if comes_whole(self.channel) {
            return Ok(Reading { outcome: whole, chunkings: 1 });
        }
        // The next case finds what one stream has left.
        let after = self.judge.state();
        let chunkings = self.chunked(text, &whole, &before).await;
        self.judge.set_state(&after);
        Ok(Reading { outcome: whole, chunkings: 1 + chunkings? })
    }

    /// Compares each chunking with the whole, and two streams in turn; gives how many those were. Each begins `before`.
    async fn chunked(&self, text: &str, whole: &Value, before: &J::State) -> anyhow::Result<usize> {
        let mut count = 0;
        for cuts in chunkings(text) {
            let pieces = cut(text, &cuts);
            for apart in [false, true] {
                self.judge.set_state(before);
                let outcome = self.one(&pieces, apart).await.with_context(|| format!("in {pieces:?}"))?;
                compare(&outcome, whole, || format!("in {pieces:?}, ending apart: {apart}"))?;
                count += 1;
            }
        }
        self.in_turn(text, whole, before).await?;
        Ok(count + 1)
    }

    /// Compares two streams of the text, of which the guard sees a window each in turn, with the whole. Each has a world of
    /// its own: what they share is the instance.
    async fn in_turn(&self, text: &str, whole: &Value, before: &J::State) -> anyhow::Result<()> {
        let everywhere: Vec<usize> = (1..text.chars().count()).collect();
        let pieces = cut(text, &everywhere);
        let mut both = [0, 1].map(|choice| (Passage { choice, ..self.passage() }, before.clone()));
        for (idx, piece) in pieces.iter().enumerate() {
            for (passage, state) in &mut both {
                self.judge.set_state(state);
                self.push(passage, piece, idx + 1 == pieces.len()).await.context(IN_TURN)?;
                *state = self.judge.state();
            }
        }
        both.into_iter().try_for_each(|(passage, _)| compare(&passage.outcome(), whole, || IN_TURN.to_owned()))
    }

    /// One generation in the given pieces.
    async fn one(&self, pieces: &[&str], apart: bool) -> anyhow::Result<Value> {
        let mut passage = self.passage();
        let count = pieces.len() + usize::from(apart);
        for (idx, piece) in pieces.iter().copied().chain(apart.then_some("")).enumerate() {
            self.push(&mut passage, piece, idx + 1 == count).await?;
        }
        Ok(passage.outcome())
    }

    /// One that begins. The guard sees as much again as in a server.
    fn passage(&self) -> Passage {
        let held = Holdback::with_look_behind(self.judge.look_behind_bytes());
        Passage { held, ..Passage::default() }
    }

    /// Has the guard judge the next piece. It is asked about nothing that follows a halt.
    async fn push(&self, passage: &mut Passage, piece: &str, ends: bool) -> anyhow::Result<()> {
        let Passage { choice, held, text, halted, findings } = passage;
        if halted.is_some() {
            return Ok(());
        }
        held.push(piece, Vec::new());
        let inspection = self.judged(*choice, held, ends).await?;
        findings.extend(categories(&inspection.findings).into_iter().map(str::to_owned));
        if let WindowAction::Halt { refusal, farewell } = &inspection.action {
            // One for arguments is not said.
            let farewell = farewell.as_deref().filter(|_| !comes_whole(self.channel));
            text.push_str(farewell.unwrap_or_default());
            *halted = Some(refusal.code.clone());
            return Ok(());
        }
        let released = held.apply(inspection, ends, self.cap.bytes(), AtCap::Halt)?;
        match released.over_cap {
            Some(withheld) if ends => {
                bail!("it withholds {withheld} bytes at the end, for which a server ends the answer")
            }
            Some(withheld) => Err(self.cap.passed(withheld)),
            None => {
                text.push_str(&released.text);
                Ok(())
            }
        }
    }

    /// What the guard says of what waits; where its descriptor has the answer, or a glance, that, provided that the guard says so too.
    async fn judged(&self, choice: u32, held: &Holdback, ends: bool) -> anyhow::Result<Inspection> {
        let (shown, ending) = (held.window(), ends.then(|| finish_reason(self.channel)));
        let (seq, settled) = (held.seq(), shown.settled);
        let window = Window { seq, choice, channel: self.channel, text: shown.text, settled, ending };
        let said = self.judge.judge(held.carry(), window.clone()).await?;
        check_arguments(self.name, &window, &said)?;
        let prefilter = self.judge.prefilter().filter(|_| !ends);
        if let Some(declared) = prefilter.and_then(|prefilter| held.prefiltered(prefilter, self.cap.bytes())) {
            let Some((breach, remedy)) = breach(&said, &declared) else { return Ok(declared) };
            bail!(
                "its descriptor says (`stream.prefilter`) that it need not be asked about {:?}; of that it {breach}: let {remedy}",
                held.pending()
            );
        }
        let may_glance = !ends && held.carry().is_empty() && !held.is_empty();
        let glance = if may_glance { self.glanced(&window, &said).await? } else { None };
        Ok(glance.unwrap_or(said))
    }

    /// What the guard says at a glance, where a server goes by that, provided that it says so too when it is asked.
    async fn glanced(&self, window: &Window<'_>, said: &Inspection) -> anyhow::Result<Option<Inspection>> {
        let Window { text, settled, .. } = window;
        let glance = self.judge.glance(window).await.with_context(|| format!("at a glance at {text:?}"))?;
        if let Some(glanced) = &glance
            && let Some((breach, _)) = breach(said, glanced)
        {
            let through = glanced.safe_through;
            bail!(
                "at a glance it lets go the first {through} bytes of {text:?}, of which {settled} have left; asked about it, \
                 it {breach}"
            );
        }
        Ok(glance.filter(|glanced| text.len() - glanced.safe_through as usize <= self.cap.bytes()))
    }
}

/// What a guard says that it has promised not to, and what makes a prefilter keep the promise.
fn breach(said: &Inspection, promised: &Inspection) -> Option<(String, &'static str)> {
    let to_no_state = "that lead to no state";
    match &said.action {
        WindowAction::Halt { .. } => return Some(("halts the answer".into(), to_no_state)),
        WindowAction::Redact(_) => return Some(("redacts some".into(), to_no_state)),
        WindowAction::Pass => {}
    }
    if let [finding, ..] = said.findings.as_slice() {
        return Some((format!("finds `{}`", finding.category), to_no_state));
    }
    if !said.carry.is_empty() {
        return Some((format!("remembers something: its `carry` has {} bytes", said.carry.len()), to_no_state));
    }
    let kept = promised.safe_through.checked_sub(said.safe_through).filter(|kept| *kept > 0)?;
    let keeps = format!("keeps the last {kept} bytes of what it would let go");
    Some((keeps, "their ends lead to another state than `start`"))
}

fn compare(outcome: &Value, whole: &Value, how: impl Fn() -> String) -> anyhow::Result<()> {
    let (is_other_text, is_other_end) = (outcome["text"] != whole["text"], outcome["halted"] != whole["halted"]);
    if !is_other_text && !is_other_end {
        return Ok(());
    }
    // It halts at the right place, and what came before that in the same window is lost.
    let remedy = if outcome["halted"].is_string() && !is_other_end { FAREWELL } else { "" };
    bail!("the client reads {outcome}\n  instead of       {whole}\n  {}{remedy}", how())
}

#[cfg(test)]
mod tests;
