//! Decides on text as it is generated, before the client has it.
//!
//! A window is look-behind that the client already has, then everything that waits. The guard says how much of
//! it may leave and what to change in that. Calls for one stream may run on different instances, so whatever
//! must be remembered is [`StreamGuard::State`], which travels with the stream as a few bytes of postcard.
//! A guard whose answer hangs on the text alone, and never on where windows end, gives the client the same
//! bytes for any chunking; [`crate::scan`] makes that easy and [`crate::testing`] tests it.

use crate::plugin::{Error, Plugin};
use crate::types::{Attrs, Context, Finding, Refusal, Span};
use postcard::ser_flavors::Flavor;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::ops::Range;

/// The host's cap on what a stream remembers.
pub const MAX_CARRY_BYTES: usize = 16 * 1024;

/// A guard on generated text.
pub trait StreamGuard: Plugin {
    /// What is remembered from window to window of one choice and channel; the first window has the default.
    type State: Serialize + DeserializeOwned + Default;

    /// Called for each window, in order.
    ///
    /// # Errors
    /// When the guard cannot decide; the stage's `on_error` then does.
    fn inspect_window(&self, ctx: &Context, state: &mut Self::State, window: &Window) -> Result<Inspection, Error>;
}

/// A guard's first look at text, which costs a server less than a call: named beside the guard,
/// `export!(MyPlugin: StreamGuard, StreamGlance)`. `testing::assert_glances_tell` compares both.
pub trait StreamGlance: StreamGuard {
    /// How much of a window's `text` may leave, as a place in it, `settled` at least, as [`Inspection::safe_through`]. With the default
    /// state, in a window that is not the last of its text, of any channel but arguments and whoever asks, [`StreamGuard::inspect_window`]
    /// says [`WindowAction::Pass`] up to there or farther, finds nothing and leaves the default state. `None` where it says more, or where
    /// that cannot be told: then it is asked. Neither logs or counts anything for such a window.
    fn glance(&self, text: &str, settled: usize) -> Option<usize>;
}

/// Which text of an answer a window is of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Channel {
    /// The answer.
    Text,
    /// The reasoning.
    Reasoning,
    /// The refusal.
    Refusal,
    /// JSON arguments of the tool call with this id.
    ToolArguments(String),
}

/// Look-behind and pending text of one choice and channel.
#[derive(Clone, Debug, PartialEq)]
pub struct Window {
    /// Counts the windows from 0.
    pub seq: u32,
    /// Which answer.
    pub choice: u32,
    /// Which text of it.
    pub channel: Channel,
    /// Look-behind, then everything not yet released, as the guard before this one left it.
    pub text: String,
    /// Bytes of look-behind: the client has them.
    pub settled: u32,
    /// On the last window: the finish reason.
    pub ending: Option<String>,
    /// More about the window.
    pub attrs: Attrs,
}

impl Window {
    /// Where pending text begins.
    pub fn start(&self) -> usize {
        self.settled as usize
    }

    /// Text that no client has.
    pub fn pending(&self) -> &str {
        self.text.get(self.start()..).unwrap_or_default()
    }

    /// Nothing follows: what waits must be decided now.
    pub fn is_last(&self) -> bool {
        self.ending.is_some()
    }

    /// How far text may leave when `literal` must not be cut: before the place at or behind `from` where it may begin
    /// at the end of the text; everything in the last window.
    pub fn safe_before(&self, from: usize, literal: &str) -> usize {
        let len = self.text.len();
        let first = self.text.ceil_char_boundary(from.max(len.saturating_sub(literal.len())));
        let begins = |at: &usize| self.text.get(*at..).is_some_and(|tail| literal.starts_with(tail));
        if self.is_last() { len } else { (first..len).find(begins).unwrap_or(len) }
    }

    /// The nearest place at or before `at` where no character is split, within pending text.
    pub fn border(&self, at: usize) -> usize {
        self.text.floor_char_boundary(at).max(self.start())
    }

    /// Pending text before `at`, with the replacements (sorted) that begin there.
    fn text_before(&self, at: usize, replaced: &[(Range<usize>, String)]) -> String {
        let at = self.border(at);
        let mut said = String::new();
        let mut from = self.start();
        for (range, text) in replaced.iter().filter(|(range, _)| range.start < at || range.end <= at) {
            said.push_str(self.text.get(from..self.border(range.start)).unwrap_or_default());
            said.push_str(text);
            from = from.max(self.text.ceil_char_boundary(range.end));
        }
        // Nothing, where the last replacement crosses `at`.
        said.push_str(self.text.get(from..at).unwrap_or_default());
        said
    }
}

/// A replacement within pending text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Redaction {
    /// Bytes of the window's text, at or behind `settled`.
    pub span: Span,
    /// The new text.
    pub text: String,
}

/// A guard's answer to a window.
#[derive(Clone, Debug, PartialEq)]
pub struct Inspection {
    /// The decision.
    pub action: WindowAction,
    /// Bytes of the window's text (before redaction) that may leave.
    pub safe_through: u32,
    /// What it saw.
    pub findings: Vec<Finding>,
    /// More for the host.
    pub attrs: Attrs,
}

/// A guard's decision on a window.
#[derive(Clone, Debug, PartialEq)]
pub enum WindowAction {
    /// What leaves, leaves as it is.
    Pass,
    /// What leaves, leaves with these changes: sorted, apart, and not past `safe_through`.
    Redact(Vec<Redaction>),
    /// The answer ends here.
    Halt {
        /// Why.
        refusal: Refusal,
        /// Said to the client in the model's place.
        farewell: Option<String>,
    },
}

impl Inspection {
    /// Everything up to `safe_through` may leave.
    pub fn pass(safe_through: usize) -> Self {
        Self::of(WindowAction::Pass, safe_through)
    }

    /// Everything up to `safe_through` may leave, with replacements; without any it is [`Inspection::pass`].
    pub fn redact(safe_through: usize, replaced: Vec<(Range<usize>, String)>) -> Self {
        if replaced.is_empty() {
            return Self::pass(safe_through);
        }
        let redactions = replaced.into_iter().map(|(range, text)| Redaction { span: Span::of(range), text }).collect();
        Self::of(WindowAction::Redact(redactions), safe_through)
    }

    /// The answer ends: nothing of this window leaves, and the client reads `farewell` instead.
    pub fn halt(window: &Window, refusal: Refusal, farewell: Option<String>) -> Self {
        Self::of(WindowAction::Halt { refusal, farewell }, window.start())
    }

    /// The answer ends at byte `at` of the window. The host lets nothing of a window leave that a guard halts, so
    /// what is before `at`, with its replacements, goes into the farewell: the client reads the same whether or
    /// not that text came with the offending one. A replacement that begins before `at` is said, and nothing of the
    /// text behind its beginning. A border inside a character is moved to where the client reads less. Arguments of
    /// tools are cut off as a whole.
    pub fn halt_at(
        window: &Window,
        at: usize,
        replaced: &[(Range<usize>, String)],
        refusal: Refusal,
        farewell: &str,
    ) -> Self {
        if matches!(window.channel, Channel::ToolArguments(_)) {
            return Self::halt(window, refusal, None);
        }
        let said = [&window.text_before(at, replaced), farewell].concat();
        Self::halt(window, refusal, (!said.is_empty()).then_some(said))
    }

    /// Adds what was seen.
    pub fn with(mut self, findings: Vec<Finding>) -> Self {
        self.findings = findings;
        self
    }

    fn of(action: WindowAction, safe_through: usize) -> Self {
        let safe_through = u32::try_from(safe_through).unwrap_or(u32::MAX);
        Self { action, safe_through, findings: Vec::new(), attrs: Vec::new() }
    }
}

/// Runs a guard on a window with its state in wire form, as the host keeps it. Returns the new state beside the
/// answer.
///
/// # Errors
/// [`Error::Other`] for state that is not this guard's or outgrew the host's cap, and whatever the guard says.
pub fn inspect_with_carry<G: StreamGuard>(
    guard: &G,
    ctx: &Context,
    carry: &[u8],
    window: &Window,
) -> Result<(Inspection, Vec<u8>), Error> {
    let mut state = if carry.is_empty() { G::State::default() } else { carried(carry)? };
    let inspection = guard.inspect_window(ctx, &mut state, window)?;
    // Nothing carried is the state of a beginning, and the host can see that it is.
    if is_default(&state) {
        return Ok((inspection, Vec::new()));
    }
    let carry = postcard::to_allocvec(&state).map_err(|e| Error::Other(format!("state has no wire form: {e}")))?;
    if carry.len() > MAX_CARRY_BYTES {
        return Err(Error::Other(format!("state has {} bytes; a stream may carry {MAX_CARRY_BYTES}", carry.len())));
    }
    Ok((inspection, carry))
}

/// A state of its wire form, and of nothing behind that: what is longer is another guard's, or that of another version.
fn carried<S: DeserializeOwned>(carry: &[u8]) -> Result<S, Error> {
    let foreign = |why: String| Error::Other(format!("carry is not this guard's: {why}"));
    match postcard::take_from_bytes(carry).map_err(|error| foreign(error.to_string()))? {
        (state, []) => Ok(state),
        (_, rest) => Err(foreign(format!("it has {} bytes more than a state", rest.len()))),
    }
}

/// Most default states have fewer.
const SMALL_STATE_BYTES: usize = 64;

/// Whether a state has the wire form of the default one.
fn is_default<S: Serialize + Default>(state: &S) -> bool {
    let (default, mut room) = (S::default(), [0; SMALL_STATE_BYTES]);
    match postcard::to_slice(&default, &mut room) {
        Ok(bytes) => is_wire_form(bytes, state),
        Err(_) => postcard::to_allocvec(&default).is_ok_and(|bytes| is_wire_form(&bytes, state)),
    }
}

/// Whether `bytes` are the wire form of `value`, which is not written for that.
fn is_wire_form(bytes: &[u8], value: &impl Serialize) -> bool {
    postcard::serialize_with_flavor(value, Same(bytes)).unwrap_or(false)
}

/// Takes bytes that are the same as these.
struct Same<'a>(&'a [u8]);

impl Flavor for Same<'_> {
    type Output = bool;

    fn try_push(&mut self, byte: u8) -> postcard::Result<()> {
        match self.0.split_first() {
            Some((same, rest)) if *same == byte => {
                self.0 = rest;
                Ok(())
            }
            _ => Err(postcard::Error::SerializeBufferFull),
        }
    }

    fn finalize(self) -> postcard::Result<bool> {
        Ok(self.0.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn farewell(text: &str, settled: u32, at: usize, replaced: &[(Range<usize>, &str)]) -> String {
        let (channel, ending, attrs) = (Channel::Text, None, Vec::new());
        let window = Window { seq: 0, choice: 0, channel, text: text.into(), settled, ending, attrs };
        let replaced: Vec<_> = replaced.iter().map(|(range, text)| (range.clone(), (*text).to_owned())).collect();
        match Inspection::halt_at(&window, at, &replaced, Refusal::new("code", "why"), "!").action {
            WindowAction::Halt { farewell, .. } => farewell.unwrap_or_default(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn of_a_replacement_that_crosses_the_halt_nothing_of_the_models_text_is_said() {
        let text = "mail bob@bomb.example";
        let check = |at, expected: &str| assert_eq!(farewell(text, 0, at, &[(5..21, "[mail]")]), expected, "{at}");
        check(9, "mail [mail]!");
        check(21, "mail [mail]!");
        check(5, "mail !");
        check(4, "mail!");
        assert_eq!(farewell(text, 2, 9, &[(5..21, "[mail]")]), "il [mail]!");
        assert_eq!(farewell("a b c d", 0, 6, &[(0..1, "x"), (4..5, "y")]), "x b y !");
    }

    #[test]
    fn a_border_inside_a_character_is_moved_and_no_text_is_lost() {
        assert_eq!(farewell("ab \u{e9}t", 0, 4, &[]), "ab !");
        assert_eq!(farewell("ab \u{e9}t\u{e9} c", 0, 9, &[(4..7, "x")]), "ab x !");
        assert_eq!(farewell("ab", 0, 9, &[]), "ab!", "behind the text");
    }

    #[test]
    fn a_carry_that_is_longer_than_a_state_is_not_this_guards() {
        assert_eq!(carried::<u8>(&[1]).unwrap(), 1);
        for (foreign, why) in [(&[1, 2, 3][..], "2 bytes more than a state"), (&[], "not this guard's")] {
            let said = carried::<u8>(foreign).unwrap_err().to_string();
            assert!(said.contains(why), "{said}");
        }
    }

    #[test]
    fn a_state_is_the_default_one_by_its_wire_form_however_long_that_is() {
        let long = |bytes| vec!['a'; bytes];
        #[derive(Serialize)]
        struct Long(Vec<char>);
        impl Default for Long {
            fn default() -> Self {
                Self(vec!['a'; 2 * SMALL_STATE_BYTES])
            }
        }
        assert!(is_default(&0_u16) && !is_default(&1_u16));
        assert!(is_default(&String::new()) && !is_default(&String::from("a")));
        assert!(
            is_default(&Long::default())
                && !is_default(&Long(long(3)))
                && !is_default(&Long(long(3 * SMALL_STATE_BYTES)))
        );
    }

    #[test]
    fn only_the_whole_wire_form_of_a_value_is_it() {
        let value = (7_u16, Some("ab"));
        let bytes = postcard::to_allocvec(&value).unwrap();
        assert!(is_wire_form(&bytes, &value));
        assert!(!is_wire_form(&bytes[..bytes.len() - 1], &value), "it goes on");
        assert!(!is_wire_form(&[&bytes[..], &[0]].concat(), &value), "it has ended");
        assert!(!is_wire_form(&bytes, &(7_u16, Some("ac"))));
        assert!(is_wire_form(&[], &()));
    }
}
