//! A host in miniature for tests of stream guards: it hands out windows as the real one does, follows what the
//! guard says, and checks the contract on the way, what the guard declares of itself included.
//!
//! [`assert_same_for_any_chunking`] is the test that every guard on streams should have: whatever the pieces in
//! which a text arrives, the client reads the same. One answer's way is in `testing/stream.rs`, what guards on messages do in
//! `testing/edits.rs`, what a guard says at a glance in `testing/glances.rs`, what a server checks of tools in
//! `testing/tools.rs`.

mod chunkings;
mod edits;
mod glances;
mod stream;
mod tools;

use crate::host::fake;
use crate::plugin::{Error, Plugin, configure};
use crate::stages::{Channel, StreamGuard};
use crate::types::Finding;
use chunkings::chunkings;
use stream::{Declared, Stream};

pub use edits::{assert_same_for_any_parts, edited};
pub use glances::{assert_glances_tell, assert_prompt_glances_tell};
pub use tools::assert_tools_are_taken;

/// How the host behaves where the contract leaves it free.
#[derive(Clone, Debug)]
pub struct Host {
    /// Which text.
    pub channel: Channel,
    /// Bytes of look-behind at most, but for its last character, which is always there. A host that does not know
    /// [`crate::Descriptor::look_behind`] gives as many whatever that says.
    pub look_behind: usize,
    /// Gives the guard an empty last window of its own instead of ending with the last piece.
    pub ends_apart: bool,
}

impl Default for Host {
    fn default() -> Self {
        Self { channel: Channel::Text, look_behind: 256, ends_apart: false }
    }
}

/// What a client read, and what came with it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcome {
    /// The client's bytes.
    pub text: String,
    /// What the guard reported.
    pub findings: Vec<Finding>,
    /// The code of the refusal, where the guard ended the answer.
    pub halted: Option<String>,
    /// The most bytes that the guard kept waiting.
    pub held_bytes: usize,
}

/// A plugin with a config, as the host would make it, and held to what it declares: [`fake::hold_to`].
///
/// # Panics
/// When the config is refused.
#[expect(clippy::panic, reason = "a test helper fails its test")]
pub fn plugin<P: Plugin>(config: &str) -> P {
    fake::hold_to(&P::describe());
    configure(config).unwrap_or_else(|error: Error| panic!("{config} was refused: {error}"))
}

impl Host {
    /// Runs pieces of text through a guard.
    ///
    /// # Errors
    /// What the guard says, or how it broke the contract.
    pub fn stream<G: StreamGuard>(&self, guard: &G, pieces: &[&str]) -> Result<Outcome, Error> {
        self.stream_as(guard, &Declared::by::<G>()?, pieces)
    }

    fn stream_as<G: StreamGuard>(&self, guard: &G, declared: &Declared, pieces: &[&str]) -> Result<Outcome, Error> {
        let mut stream = Stream::begin(self, guard, declared);
        let mut outcome = Outcome::default();
        let ends_with = pieces.len().checked_sub(1).filter(|_| !self.ends_apart);
        for (idx, piece) in pieces.iter().enumerate() {
            if !stream.push(piece, Some(idx) == ends_with, &mut outcome)? {
                return Ok(outcome);
            }
        }
        if ends_with.is_none() {
            stream.push("", true, &mut outcome)?;
        }
        Ok(outcome)
    }

    /// The finish reason of an answer that ends with this channel.
    fn ending(&self) -> &'static str {
        if matches!(self.channel, Channel::ToolArguments(_)) { "tool_calls" } else { "stop" }
    }
}

/// Cuts a text at the given bytes, moved to character borders; order and repetition do not matter.
pub fn cut<'a>(text: &'a str, at: &[usize]) -> Vec<&'a str> {
    let mut cuts: Vec<usize> = at.iter().map(|&at| text.floor_char_boundary(at)).collect();
    cuts.extend([0, text.len()]);
    cuts.sort_unstable();
    cuts.dedup();
    cuts.windows(2).filter_map(|pair| text.get(pair[0]..pair[1])).collect()
}

/// What a server lets a stream guard keep back unless its operator says something else (`limits.holdback_bytes`).
const HOLDBACK_BYTES: u32 = 512;

/// Streams a text whole, in the given pieces, and in many others, and compares what the client reads: one of at most 12
/// characters in each of its chunkings, a longer one in pieces of 1, 2 and up to 64 characters. A guard that promises a holdback
/// in its descriptor must keep it, and one that does not what a server lets it keep back. Returns the outcome of the whole text.
///
/// # Panics
/// When the client reads something else, the contract is broken or the holdback is above its promise.
#[expect(clippy::panic, reason = "a test helper fails its test")]
pub fn assert_same_for_any_chunking<G: StreamGuard>(guard: &G, host: &Host, text: &str, at: &[usize]) -> Outcome {
    let declared = Declared::by::<G>().unwrap_or_else(|error| panic!("{error}"));
    let run = |host: &Host, pieces: &[&str]| match host.stream_as(guard, &declared, pieces) {
        Ok(outcome) => outcome,
        Err(error) => panic!("{error}\nin {pieces:?}"),
    };
    let whole = run(host, &[text]);
    let descriptor = G::describe();
    let most = descriptor.look_behind_bytes().map_or(usize::MAX, |bytes| bytes as usize);
    let look_behind = most.min(host.look_behind / 7);
    let apart = Host { ends_apart: !host.ends_apart, look_behind, ..host.clone() };
    let cuts = chunkings(text);
    let others = cuts.iter().map(|at| (host, cut(text, at)));
    for (host, pieces) in [(host, cut(text, at)), (&apart, cut(text, at))].into_iter().chain(others) {
        let outcome = run(host, &pieces);
        let same = outcome.text == whole.text && outcome.halted == whole.halted;
        assert!(same, "the client reads\n{:?}\ninstead of\n{:?}\nin {pieces:?}", outcome.text, whole.text);
        // Arguments of a tool call wait for the whole of them whatever a guard lets go.
        let waits = matches!(host.channel, Channel::ToolArguments(_));
        let (held, promised) = (outcome.held_bytes, descriptor.holdback_bytes());
        let (most, why) = match promised {
            Some(promised) => (promised, "are promised"),
            None => (HOLDBACK_BYTES, "are what a server allows; promise more by `Descriptor::holdback`"),
        };
        assert!(waits || held <= most as usize, "{held} bytes were held; {most} {why}\nin {pieces:?}");
    }
    whole
}

/// Checks a plugin's README against its descriptor: every setting has a row in the table of settings, with its
/// default, and the whole is short enough to be read.
///
/// # Panics
/// When a setting or its default is missing, or the README is longer than 40 lines.
pub fn assert_readme_is_true<P: Plugin>(readme: &str) {
    let lines = readme.lines().count();
    assert!(lines <= 40, "a README of {lines} lines; 40 are enough");
    for setting in P::describe().declared_settings() {
        let name = format!("`{}`", setting.name());
        let row = readme.lines().find(|line| line.starts_with('|') && line.contains(&name)).unwrap_or_default();
        let default = setting.default().map_or("required".to_owned(), |value| format!("`{value}`"));
        let stated = row.contains(&default) || (setting.default().is_none() && row.contains("none"));
        assert!(stated, "the README has no row for {name} with its default {default}: {row:?}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stages::{Inspection, Window};
    use stream::tests::Says;

    /// Of one character at a time, and of all of them, it says the right thing.
    #[test]
    #[should_panic(expected = "in [\"ab\", \"cd\"]")]
    fn a_guard_that_is_wrong_about_some_pieces_is_found() {
        let takes_a_pair: fn(&Window) -> Inspection = |window| {
            let pending = window.start()..window.text.len();
            let pair = (window.pending() == "ab").then(|| (pending.clone(), String::new()));
            Inspection::redact(pending.end, pair.into_iter().collect())
        };
        assert_same_for_any_chunking(&Says(takes_a_pair), &Host::default(), "abcd", &[]);
    }
}
