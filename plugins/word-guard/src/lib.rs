//! A guard for the operator's own list: words, and patterns in the usual notation of regular expressions.
//!
//! What is done about a match is the SDK's [`Screen`]. Matching is our own, for the sake of streams: at the end of
//! a window the guard must know whether a match may be under way, and holds back nothing else. Read next:
//! [`words`], [`pattern`].

pub mod pattern;
pub mod words;

use pattern::Pattern;
use serde::Deserialize;
use tidegate_plugin_sdk::scan::{Place, Scanner, Step};
use tidegate_plugin_sdk::screen::{OnMatch, Rules, Screen, ScreenConfig, ScreenState, is_json_safe};
use tidegate_plugin_sdk::{
    Context, Descriptor, Error, Finding, Inspection, Plugin, Prompt, PromptGlance, PromptGuard, Refusal, Role, Setting,
    Severity, StreamGlance, StreamGuard, Verdict, Window,
};
use words::{BREAK_BYTES, Behind, Words, is_break};

/// Longest word or match, in bytes: a stream holds back that much at most, and a line break as JSON writes it before it or one
/// character that ends it.
const MAX_MATCH_BYTES: usize = 480;
const MAX_WORDS: usize = 10_000;
const MAX_PATTERNS: usize = 100;
/// Rules of matches. Higher ones are of an open match, told by the bytes of it that are to come: see [`List::whole`].
const RULES: usize = MAX_PATTERNS + 1;

/// The settings.
#[derive(Clone, Debug, Deserialize)]
pub struct Config {
    words: Vec<String>,
    patterns: Vec<String>,
    ignore_case: bool,
    whole_words: bool,
    max_match_bytes: usize,
    replacement: String,
    message: String,
    action: OnMatch,
    roles: Vec<String>,
    tool_arguments: bool,
}

/// The plugin.
#[derive(Debug)]
pub struct WordGuard(Screen<List>);

/// The operator's list. Rule 0 is a word, the others are patterns in their order.
#[derive(Debug)]
pub struct List {
    words: Words,
    patterns: Vec<Pattern>,
    /// Which ASCII characters a match or a line break may begin with; most text is passed by on this.
    firsts: [bool; 128],
    replacement: String,
    message: String,
}

const MESSAGE: &str = "The request contains something that this server does not allow.";

impl Plugin for WordGuard {
    type Config = Config;

    fn describe() -> Descriptor {
        let max = MAX_MATCH_BYTES as u64;
        Descriptor::new("word-guard", env!("CARGO_PKG_VERSION"), "Redacts, blocks or flags the operator's own words")
            .setting(Setting::texts("words", &[], "Words and phrases; a space stands for any one white space"))
            .setting(Setting::texts("patterns", &[], "Regular expressions"))
            .setting(Setting::switch("ignore_case", true, "Upper and lower case are the same"))
            .setting(Setting::switch("whole_words", true, "A word does not match inside of a longer one"))
            .setting(Setting::integer(
                "max_match_bytes",
                256,
                1,
                max,
                "The longest match of a pattern; `*`, `+` and `{n,}` end there",
            ))
            .setting(Setting::text("replacement", "[redacted]", "What stands in a match's place"))
            .setting(Setting::text("message", MESSAGE, "What the client reads when a request is blocked"))
            .settings(ScreenConfig::settings())
            .metric("words_found", "listed words and matches of patterns")
            .holdback(MAX_MATCH_BYTES as u32 + 4)
            .look_behind(ScreenConfig::LOOK_BEHIND_BYTES)
            .mutates()
            .deterministic()
    }

    fn configure(config: Config) -> Result<Self, Error> {
        let list = List::new(&config).map_err(Error::InvalidConfig)?;
        let Config { action, roles, tool_arguments, .. } = config;
        let config = ScreenConfig { action, roles, tool_arguments };
        config.check()?;
        Ok(Self(Screen::new(list, config, "words_found")))
    }
}

impl List {
    fn new(config: &Config) -> Result<Self, String> {
        if config.words.is_empty() && config.patterns.is_empty() {
            return Err("`words` and `patterns` are both empty: there is nothing to look for".into());
        }
        let within = |name: &str, have: usize, max: usize| {
            if have > max { Err(format!("`{name}` has {have} entries; at most {max} are supported")) } else { Ok(()) }
        };
        within("words", config.words.len(), MAX_WORDS)?;
        within("patterns", config.patterns.len(), MAX_PATTERNS)?;
        if !is_json_safe(&config.replacement) {
            let replacement = &config.replacement;
            return Err(format!("`replacement` is {replacement:?}; quotes, backslashes and controls break JSON text"));
        }
        if !(1..=MAX_MATCH_BYTES).contains(&config.max_match_bytes) {
            return Err(format!("`max_match_bytes` is {}; it is 1 to {MAX_MATCH_BYTES}", config.max_match_bytes));
        }
        let words = Words::new(&config.words, config.ignore_case, config.whole_words, MAX_MATCH_BYTES)?;
        let pattern = |text: &String| {
            Pattern::new(text, config.ignore_case, config.max_match_bytes).map_err(|e| format!("pattern `{text}`: {e}"))
        };
        let patterns = config.patterns.iter().map(pattern).collect::<Result<Vec<_>, _>>()?;
        let may_begin =
            |c: char| c == '\\' || words.may_begin(c) || patterns.iter().any(|pattern| pattern.may_begin(c));
        let firsts = std::array::from_fn(|code: usize| may_begin(char::from(code as u8)));
        // Not the whole config: a long list of words is much memory.
        let (replacement, message) = (config.replacement.clone(), config.message.clone());
        Ok(Self { words, patterns, firsts, replacement, message })
    }
}

impl PromptGuard for WordGuard {
    fn inspect_prompt(&self, _: &Context, prompt: &Prompt) -> Result<Verdict, Error> {
        Ok(self.0.prompt(prompt))
    }
}

impl StreamGuard for WordGuard {
    type State = ScreenState;

    fn inspect_window(&self, _: &Context, state: &mut ScreenState, window: &Window) -> Result<Inspection, Error> {
        Ok(self.0.window(state, window))
    }
}

impl PromptGlance for WordGuard {
    fn glance_prompt(&self, messages: &[(Role, String)]) -> bool {
        self.0.glance_prompt(messages)
    }
}

impl StreamGlance for WordGuard {
    fn glance(&self, text: &str, settled: usize) -> Option<usize> {
        self.0.glance(text, settled)
    }
}

impl Scanner for List {
    fn end(&self) {
        self.patterns.iter().for_each(Pattern::end);
    }

    fn step(&self, at: Place<'_>) -> Step {
        if let Some(open) = at.open {
            return self.whole(at, 0, open / RULES, open % RULES);
        }
        match self.longest(at) {
            Step::Match { len, rule } => self.whole(at, 1, len, rule),
            Step::No => self.behind_break(at),
            step => step,
        }
    }

    fn idle(&self, at: Place<'_>) -> usize {
        at.rest.bytes().take_while(|b| self.firsts.get(usize::from(*b)) == Some(&false)).count()
    }
}

impl List {
    /// The longest match at a place, of whatever rule.
    fn longest(&self, at: Place<'_>) -> Step {
        let mut best = Step::No;
        let patterns = self.patterns.iter().enumerate().map(|(idx, pattern)| pattern.step(at, idx + 1));
        for step in std::iter::once(self.words.step(at, 0)).chain(patterns) {
            match (step, best) {
                (Step::More, _) => return Step::More,
                (Step::Match { len, .. }, Step::Match { len: longest, .. }) if len <= longest => {}
                (found @ Step::Match { .. }, _) => best = found,
                _ => {}
            }
        }
        best
    }

    /// What begins right behind a line break as JSON writes it. Text of tools' results and of answers is not decoded, so the break's
    /// letter stands before a word as if it were one with it. A scan does not stop behind the letter, which alone would say nothing.
    fn behind_break(&self, at: Place<'_>) -> Step {
        let mut chars = at.rest.chars();
        match (chars.next(), chars.next()) {
            (Some('\\'), None) if !at.is_last => Step::More,
            (backslash, Some(letter)) if is_break(backslash, letter) => match chars.as_str() {
                "" if at.is_last => Step::No,
                "" => Step::More,
                rest => match self.longest(Place { rest, before: None, ..at }) {
                    Step::Match { .. } => Step::Skip(BREAK_BYTES),
                    step => step,
                },
            },
            _ => Step::No,
        }
    }

    /// A match of `len` bytes with the words that begin in it, from byte `from` on, and end behind it. Where a word may yet become
    /// one the match is open: what stands before leaves, or it would wait for longer than a stream holds back. A line break stays with
    /// the word behind it.
    fn whole(&self, at: Place<'_>, from: usize, mut len: usize, rule: usize) -> Step {
        let mut start = at.rest.ceil_char_boundary(from);
        while let Some(c) = at.rest.get(start..len).and_then(|inside| inside.chars().next()) {
            let behind = Behind::inside(at, start);
            let (before, cut) =
                if behind.is_break { (None, start.saturating_sub(BREAK_BYTES)) } else { (behind.last, start) };
            match self.words.step(Place { rest: &at.rest[start..], before, ..at }, 0) {
                Step::More if cut == 0 => return Step::More,
                Step::More => return Step::Open { len: cut, rule: rule + RULES * (len - cut) },
                Step::Match { len: more, .. } => len = len.max(start + more),
                _ => {}
            }
            start += c.len_utf8();
        }
        if len == 0 { Step::No } else { Step::Match { len, rule } }
    }
}

impl Rules for List {
    fn replacement(&self, _: usize) -> String {
        self.replacement.clone()
    }

    fn finding(&self, rule: usize) -> Finding {
        let category = match rule % RULES {
            0 => "word-guard:word",
            _ => "word-guard:pattern",
        };
        Finding::new(category, Severity::Medium)
    }

    fn refusal(&self, rule: usize) -> Refusal {
        let reason = match (rule % RULES).checked_sub(1) {
            Some(pattern) => format!("pattern {pattern} of the list matches"),
            None => "a word of the list matches".into(),
        };
        Refusal::new("words", self.message.clone()).because(reason)
    }
}

tidegate_plugin_sdk::export!(WordGuard: PromptGuard, PromptGlance, StreamGuard, StreamGlance);

#[cfg(test)]
mod tests;
