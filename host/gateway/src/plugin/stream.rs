//! A stream guard under test: the gateway's own holdback hands it windows, in every chunking of a text, and the client
//! must read the same each time.
//!
//! Each chunking comes with an ending on its last piece and with an empty window that ends it. Then two streams of the text
//! come in turn, as two choices of one answer, so that what a guard remembers in its instance is not of the stream that it is
//! asked about. Arguments of a tool call come once and whole, as in a server. The guide says the number (`docs/plugins.md`).
//! Read next: `stream/chunkings.rs` for the chunkings, `stream/cap.rs` for what may be withheld.

mod cap;
mod chunkings;

use super::cases::categories;
use super::fixture::Stream;
use super::workbench::context;
use anyhow::{Context, bail};
use cap::Cap;
use chunkings::{chunkings, cut};
use serde_json::{Value, json};
use tidegate_pipeline::check_arguments;
use tidegate_pipeline::holdback::{AtCap, Holdback};
use tidegate_sandbox::stage::{CallError, Channel, Inspection, Window, WindowAction};
use tidegate_sandbox::{Plugin, Prefilter};
use tidegate_types::FinishReason;

const IN_TURN: &str = "where two streams of it come in turn, a character of each: its instance sees other streams between, \
                       so that what it remembers of one belongs in `carry`";

/// What a client reads in every chunking.
pub(super) struct Reading {
    /// `text`, `halted`, `findings`; or `error`, where the guard fails at the whole text.
    pub(super) outcome: Value,
    /// How many there were.
    pub(super) chunkings: usize,
}

/// Runs a text through the guard; fails where two chunkings differ.
pub(super) async fn read(plugin: &Plugin, stream: &Stream, most: usize) -> anyhow::Result<Reading> {
    let (name, channel, cap) = (plugin.name(), &stream.channel, Cap::of(plugin, most));
    Guard { judge: plugin, name, channel, cap }.read(&stream.text).await
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
    /// What it need not be asked about.
    fn prefilter(&self) -> Option<&Prefilter> {
        None
    }

    /// Bytes of what has left that it sees again, where it says how many.
    fn look_behind_bytes(&self) -> Option<u32> {
        None
    }

    async fn judge(&self, carry: &[u8], window: Window<'_>) -> Result<Inspection, CallError>;
}

impl Judge for Plugin {
    fn prefilter(&self) -> Option<&Prefilter> {
        self.descriptor().prefilter.as_ref()
    }

    fn look_behind_bytes(&self) -> Option<u32> {
        self.descriptor().look_behind_bytes
    }

    async fn judge(&self, carry: &[u8], window: Window<'_>) -> Result<Inspection, CallError> {
        self.inspect_window(&context(), carry, window).await
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
        let whole = match self.one(&[text], false).await {
            Err(error) if error.is::<CallError>() => {
                return Ok(Reading { outcome: json!({"error": format!("{error:#}")}), chunkings: 1 });
            }
            whole => whole.context("in one piece")?,
        };
        if comes_whole(self.channel) {
            return Ok(Reading { outcome: whole, chunkings: 1 });
        }
        let chunked = self.chunked(text, &whole).await?;
        self.in_turn(text, &whole).await?;
        Ok(Reading { outcome: whole, chunkings: 1 + chunked + 1 })
    }

    /// Compares each chunking with the whole; gives how many those were.
    async fn chunked(&self, text: &str, whole: &Value) -> anyhow::Result<usize> {
        let mut count = 0;
        for cuts in chunkings(text) {
            let pieces = cut(text, &cuts);
            for apart in [false, true] {
                let outcome = self.one(&pieces, apart).await.with_context(|| format!("in {pieces:?}"))?;
                compare(&outcome, whole, || format!("in {pieces:?}, ending apart: {apart}"))?;
                count += 1;
            }
        }
        Ok(count)
    }

    /// Compares two streams of the text, of which the guard sees a window each in turn, with the whole.
    async fn in_turn(&self, text: &str, whole: &Value) -> anyhow::Result<()> {
        let everywhere: Vec<usize> = (1..text.chars().count()).collect();
        let pieces = cut(text, &everywhere);
        let mut both = [0, 1].map(|choice| Passage { choice, ..self.passage() });
        for (idx, piece) in pieces.iter().enumerate() {
            for passage in &mut both {
                self.push(passage, piece, idx + 1 == pieces.len()).await.context(IN_TURN)?;
            }
        }
        both.into_iter().try_for_each(|passage| compare(&passage.outcome(), whole, || IN_TURN.to_owned()))
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

    /// What the guard says of what waits; where its descriptor has the answer, that, provided that the guard says so too.
    async fn judged(&self, choice: u32, held: &Holdback, ends: bool) -> anyhow::Result<Inspection> {
        let (shown, ending) = (held.window(), ends.then(|| finish_reason(self.channel)));
        let (seq, settled) = (held.seq(), shown.settled);
        let window = Window { seq, choice, channel: self.channel, text: shown.text, settled, ending };
        let said = self.judge.judge(held.carry(), window.clone()).await?;
        check_arguments(self.name, &window, &said)?;
        let prefilter = self.judge.prefilter().filter(|_| !ends);
        let Some(declared) = prefilter.and_then(|prefilter| held.prefiltered(prefilter, self.cap.bytes())) else {
            return Ok(said);
        };
        match breach(&said, &declared) {
            Some(breach) => bail!(
                "its descriptor says (`stream.prefilter`) that it need not be asked about {:?}; of that it {breach}",
                held.pending()
            ),
            None => Ok(declared),
        }
    }
}

/// What a guard says that it has promised not to.
fn breach(said: &Inspection, declared: &Inspection) -> Option<String> {
    match &said.action {
        WindowAction::Halt { .. } => return Some("halts the answer".into()),
        WindowAction::Redact(_) => return Some("redacts some: let that lead to no state".into()),
        WindowAction::Pass => {}
    }
    if let [finding, ..] = said.findings.as_slice() {
        return Some(format!("finds `{}`: let that lead to no state", finding.category));
    }
    if !said.carry.is_empty() {
        return Some(format!("remembers something: its `carry` has {} bytes", said.carry.len()));
    }
    let kept = declared.safe_through.checked_sub(said.safe_through).filter(|kept| *kept > 0)?;
    Some(format!(
        "keeps the last {kept} bytes of what it would let go: let their ends lead to another state than `start`"
    ))
}

fn compare(outcome: &Value, whole: &Value, how: impl Fn() -> String) -> anyhow::Result<()> {
    if (&outcome["text"], &outcome["halted"]) != (&whole["text"], &whole["halted"]) {
        bail!("the client reads {outcome}\n  instead of       {whole}\n  {}", how());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plugin::workbench;
    use std::cell::{Cell, RefCell};
    use tidegate_sandbox::stage::{Redaction, Refusal};
    use tidegate_types::{Finding, Severity, Span};

    type Said = Result<Inspection, CallError>;

    /// A guard in this process, and what its descriptor says: what it need not be asked about, and how much it sees again.
    struct Own<F>(F, Option<Prefilter>, Option<u32>);

    impl<F: Fn(&[u8], &Window<'_>) -> Said> Judge for Own<F> {
        fn prefilter(&self) -> Option<&Prefilter> {
            self.1.as_ref()
        }

        fn look_behind_bytes(&self) -> Option<u32> {
            self.2
        }

        async fn judge(&self, carry: &[u8], window: Window<'_>) -> Said {
            (self.0)(carry, &window)
        }
    }

    /// Runs a text through it.
    fn tried(channel: &Channel, text: &str, judge: impl Fn(&[u8], &Window<'_>) -> Said) -> anyhow::Result<Reading> {
        declared(None, None, channel, text, judge)
    }

    /// The same of one that declares something.
    fn declared(
        prefilter: Option<Prefilter>,
        look_behind_bytes: Option<u32>,
        channel: &Channel,
        text: &str,
        judge: impl Fn(&[u8], &Window<'_>) -> Said,
    ) -> anyhow::Result<Reading> {
        let judge = Own(judge, prefilter, look_behind_bytes);
        let guard = Guard { judge: &judge, name: "own", channel, cap: Cap { promised: None, most: 512 } };
        workbench::runtime()?.block_on(guard.read(text))
    }

    /// All of a window may leave.
    fn said(window: &Window<'_>, action: WindowAction) -> Said {
        let safe_through = window.text.len() as u32;
        Ok(Inspection { action, safe_through, carry: Vec::new(), findings: Vec::new() })
    }

    fn trap() -> Said {
        Err(CallError::Trap { plugin: "own".into(), message: "as the test asked".into() })
    }

    fn redact(start: u32, end: u32) -> WindowAction {
        WindowAction::Redact(vec![Redaction { span: Span { start, end }, text: String::new() }])
    }

    /// The window's own text is put behind what came before; where that is another text at the end, the guard says so.
    fn told(before: &str, window: &Window<'_>) -> (String, WindowAction) {
        let all = [before, &window.text[window.settled as usize..]].concat();
        let is_other = window.ending.is_some() && all != "abab";
        let action = if is_other { redact(window.settled, window.text.len() as u32) } else { WindowAction::Pass };
        (all, action)
    }

    #[test]
    fn what_a_guard_remembers_of_a_stream_in_its_instance_is_found() {
        let memory = RefCell::new(String::new());
        let error = tried(&Channel::Text, "abab", |_, window| {
            let mut memory = memory.borrow_mut();
            let before = if window.seq == 0 { "" } else { memory.as_str() };
            let (all, action) = told(before, window);
            *memory = all;
            said(window, action)
        });
        let error = error.err().unwrap().to_string();
        assert!(error.contains("instead of") && error.contains("belongs in `carry`"), "{error}");
        let reading = tried(&Channel::Text, "abab", |carry, window| {
            let (all, action) = told(std::str::from_utf8(carry).unwrap(), window);
            said(window, action).map(|said| Inspection { carry: all.into_bytes(), ..said })
        });
        // The whole, its 8 chunkings with either ending, and two streams in turn.
        assert_eq!(reading.unwrap().chunkings, 1 + 16 + 1);
    }

    #[test]
    fn a_guard_that_needs_more_of_what_has_left_than_it_says_is_found() {
        let tried = |look_behind_bytes| {
            let reading = declared(None, look_behind_bytes, &Channel::Text, "aab", |_, window| {
                let at = window.text.find("aab").map_or(window.text.len() as u32, |at| at as u32 + 2);
                said(window, redact(at.max(window.settled), window.text.len() as u32))
            });
            reading.map(|reading| reading.outcome["text"].clone()).map_err(|error| error.to_string())
        };
        assert_eq!([None, Some(2)].map(tried), [Ok("aa".into()), Ok("aa".into())]);
        assert!(tried(Some(1)).unwrap_err().contains("instead of"));
    }

    #[test]
    fn a_prefilter_that_promises_too_much_is_found() {
        let tried = |said: &dyn Fn(&Window<'_>) -> Said| {
            let classes = json!({"letters": ["ab", "x"], "ends": [" "]});
            let next = json!({"letters": "word", "ends": "start"});
            let states = json!({"start": next, "word": next});
            let words = json!({"classes": classes, "states": states, "run-bytes": 4});
            let words = Prefilter::new(&words).unwrap();
            let reading = declared(Some(words), None, &Channel::Text, "ab a!x", |_, window| said(window));
            reading.map(|reading| reading.outcome["text"].clone()).map_err(|error| format!("{error:#}"))
        };
        let passes = |window: &Window<'_>| said(window, WindowAction::Pass).unwrap();
        assert_eq!(tried(&|window| Ok(passes(window))), Ok("ab a!x".into()));
        let finding =
            Finding { category: "x".into(), severity: Severity::Low, score: None, message_id: None, span: None };
        let found = |window: &Window<'_>| if window.ending.is_none() { vec![finding.clone()] } else { Vec::new() };
        // Of what it is asked about it lets all go.
        let breaks = |window: &Window<'_>, action: WindowAction| match window.ending {
            None if !window.text.contains('!') => Ok(Inspection { action, ..passes(window) }),
            _ => Ok(passes(window)),
        };
        let refusal = || Refusal { code: "no".into(), public_message: "no".into(), private_reason: None };
        for (broken, how) in [
            (tried(&|window| Ok(Inspection { findings: found(window), ..passes(window) })), "finds `x`"),
            (tried(&|window| Ok(Inspection { carry: vec![1], ..passes(window) })), "remembers something"),
            (tried(&|window| breaks(window, redact(window.settled, window.settled))), "redacts some"),
            (
                tried(&|window| breaks(window, WindowAction::Halt { refusal: refusal(), farewell: None })),
                "halts the answer",
            ),
            (
                tried(&|window| match window.ending {
                    None => Ok(Inspection { safe_through: window.settled, ..passes(window) }),
                    Some(_) => Ok(passes(window)),
                }),
                "keeps the last 3 bytes",
            ),
        ] {
            let error = broken.unwrap_err();
            assert!(error.contains("need not be asked about \"") && error.contains(how), "{how}: {error}");
        }
    }

    #[test]
    fn a_long_text_comes_whole_with_its_ending_behind_it() {
        let text = "x".repeat(chunkings::ALL_OF + 1);
        let error = tried(&Channel::Text, &text, |_, window| match (window.seq, window.ending) {
            (1, Some(_)) if window.settled as usize == window.text.len() => trap(),
            _ => said(window, WindowAction::Pass),
        });
        assert!(format!("{:#}", error.err().unwrap()).contains(&format!("in [{text:?}]: plugin `own` trapped")));
    }

    #[test]
    fn what_a_guard_fails_with_at_the_whole_is_an_outcome_and_in_some_chunking_it_is_a_failure() {
        let reading = tried(&Channel::Text, "abc", |_, _| trap()).unwrap();
        let error = "plugin `own` trapped: as the test asked";
        assert_eq!((reading.outcome, reading.chunkings), (json!({"error": error}), 1));
        let failure = tried(&Channel::Text, "abc", |_, window| match window.text {
            "ab" => trap(),
            _ => said(window, WindowAction::Pass),
        });
        assert_eq!(format!("{:#}", failure.err().unwrap()), format!("in [\"ab\", \"c\"]: {error}"));
    }

    #[test]
    fn arguments_come_once_and_whole_as_a_server_asks_about_them() {
        let channel = Channel::ToolArguments("c1".into());
        let json = r#"{"a":1234}"#;
        let calls = Cell::new(0);
        let tried = |action: WindowAction| {
            tried(&channel, json, |_, window| {
                calls.set(calls.get() + 1);
                assert_eq!((window.text, window.ending), (json, Some("tool_calls")));
                said(window, action.clone())
            })
            .unwrap()
        };
        let Reading { outcome, chunkings } = tried(WindowAction::Pass);
        assert_eq!((&outcome["text"], chunkings, calls.get()), (&json.into(), 1, 1));
        assert_eq!(tried(redact(6, 7)).outcome["text"], r#"{"a":134}"#);
        let spoilt = tried(redact(5, 9)).outcome;
        assert!(spoilt["error"].as_str().is_some_and(|error| error.contains("leave no JSON")), "{spoilt}");
        let refusal = Refusal { code: "no".into(), public_message: "no".into(), private_reason: None };
        let halted = tried(WindowAction::Halt { refusal, farewell: Some("bye".into()) }).outcome;
        assert_eq!(halted, json!({"text": "", "halted": "no", "findings": []}));
    }
}
