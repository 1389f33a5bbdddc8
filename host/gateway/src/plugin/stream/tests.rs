use super::*;
use crate::plugin::workbench;
use std::cell::{Cell, RefCell};
use tidegate_sandbox::stage::{Redaction, Refusal};
use tidegate_types::{Finding, Severity, Span};

type Said = Result<Inspection, CallError>;

/// A guard in this process, and what its descriptor says: what it need not be asked about, and how much it sees again.
struct Own<F>(F, Option<Prefilter>, Option<u32>, Option<Glance>);

type Glance = fn(&Window<'_>) -> Result<Option<Inspection>, CallError>;

impl<F: Fn(&[u8], &Window<'_>) -> Said> Judge for Own<F> {
    type State = ();

    fn state(&self) {}

    fn set_state(&self, (): &()) {}

    fn prefilter(&self) -> Option<&Prefilter> {
        self.1.as_ref()
    }

    fn look_behind_bytes(&self) -> Option<u32> {
        self.2
    }

    async fn glance(&self, window: &Window<'_>) -> Result<Option<Inspection>, CallError> {
        self.3.map_or(Ok(None), |glance| glance(window))
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
    read(Own(judge, prefilter, look_behind_bytes, None), channel, text)
}

fn read(judge: impl Judge, channel: &Channel, text: &str) -> anyhow::Result<Reading> {
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

/// Right as it is, but for what stands before in the window: how much that is goes by the chunking.
#[test]
fn a_guard_that_halts_without_what_stands_before_is_told_where_that_goes() {
    let halting = |farewell: fn(&str) -> Option<String>| {
        let reading = tried(&Channel::Text, "ab!", |_, window| match window.text.find('!') {
            Some(at) => {
                let refusal = Refusal { code: "no".into(), public_message: "no".into(), private_reason: None };
                let pending = &window.text[window.settled as usize..at];
                said(window, WindowAction::Halt { refusal, farewell: farewell(pending) })
            }
            None => said(window, WindowAction::Pass),
        });
        reading.map(|reading| reading.outcome["text"].clone()).map_err(|error| format!("{error:#}"))
    };
    let why = halting(|_| None).unwrap_err();
    assert!(why.contains("instead of") && why.contains("`farewell`: begin that with the pending text"), "{why}");
    assert_eq!(halting(|pending| Some(pending.to_owned())), Ok("ab".into()));
    // What is another fault has no such remedy.
    let other = tried(&Channel::Text, "ab", |_, window| match window.text {
        "a" => said(window, redact(0, 1)),
        _ => said(window, WindowAction::Pass),
    });
    let why = format!("{:#}", other.err().unwrap());
    assert!(why.contains("instead of") && !why.contains("farewell"), "{why}");
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
    let finding = Finding { category: "x".into(), severity: Severity::Low, score: None, message_id: None, span: None };
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
fn a_glance_that_promises_too_much_is_found() {
    let text = "ab#c";
    let tried = |glance: Glance, said: &dyn Fn(&[u8], &Window<'_>) -> Said| {
        let reading = read(Own(said, None, None, Some(glance)), &Channel::Text, text);
        reading.map(|reading| reading.outcome["text"].clone()).map_err(|error| format!("{error:#}"))
    };
    let all: Glance = |window| Ok(Some(Inspection::pass(window.text.len())));
    let letters: Glance = |window| Ok((!window.text.contains('#')).then(|| Inspection::pass(window.text.len())));
    let passes = |_: &[u8], window: &Window<'_>| said(window, WindowAction::Pass);
    let keeps = |_: &[u8], window: &Window<'_>| {
        let kept = window.text.find('#').filter(|_| window.ending.is_none());
        let safe_through = kept.unwrap_or(window.text.len()).max(window.settled as usize) as u32;
        Ok(Inspection { safe_through, ..said(window, WindowAction::Pass)? })
    };
    let remembers =
        |_: &[u8], window: &Window<'_>| Ok(Inspection { carry: vec![1], ..said(window, WindowAction::Pass)? });
    assert_eq!(tried(all, &passes), Ok(text.into()));
    assert_eq!(tried(letters, &keeps), Ok(text.into()));
    for (broken, how) in
        [(tried(all, &keeps), "keeps the last 2 bytes"), (tried(all, &remembers), "remembers something")]
    {
        let error = broken.unwrap_err();
        assert!(error.contains("at a glance it lets go") && error.contains(how), "{how}: {error}");
    }
    let error = tried(|_| Err(trap().unwrap_err()), &passes).unwrap_err();
    assert!(error.contains("at a glance at \"") && error.contains("as the test asked"), "{error}");
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

/// A guard that counts streams where it keeps things, and halts the second.
struct Counts(Cell<u32>);

impl Judge for Counts {
    type State = u32;

    fn state(&self) -> u32 {
        self.0.get()
    }

    fn set_state(&self, state: &u32) {
        self.0.set(*state);
    }

    async fn judge(&self, _: &[u8], window: Window<'_>) -> Said {
        self.0.set(self.0.get() + u32::from(window.seq == 0));
        let refusal = Refusal { code: "second".into(), public_message: String::new(), private_reason: None };
        let halts = self.0.get() > 1;
        said(&window, if halts { WindowAction::Halt { refusal, farewell: None } } else { WindowAction::Pass })
    }
}

#[test]
fn each_stream_begins_in_the_world_of_the_first_and_the_next_case_in_what_that_left() {
    let counts = Counts(Cell::new(0));
    let cap = Cap { promised: None, most: 512 };
    let guard = Guard { judge: &counts, name: "counts", channel: &Channel::Text, cap };
    let runtime = workbench::runtime().unwrap();
    let halted = || runtime.block_on(guard.read("abab")).unwrap().outcome["halted"].clone();
    assert_eq!([halted(), halted()], [Value::Null, "second".into()]);
}
