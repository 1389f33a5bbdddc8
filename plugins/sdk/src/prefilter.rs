//! What a stream guard need not be asked about, as its descriptor declares it.

use crate::descriptor::quoted;
use crate::json::quote;

/// Text that a stream guard lets through whatever its config, by an automaton: text leaves as far as it was in `start` last,
/// and the guard is asked where a state has none behind it for a character.
///
/// ```
/// use tidegate_plugin_sdk::{Descriptor, Prefilter};
/// let words = Prefilter::new(19)
///     .class("letters", ["az", "AZ", "é"])
///     .class("joins", ["-"])
///     .class("ends", [" ", ",", "\n"])
///     .state("start", &[("letters", "word"), ("ends", "start")])
///     .state("word", &[("letters", "word"), ("joins", "joined"), ("ends", "start")])
///     .state("joined", &[("letters", "word")]);
/// assert_eq!(words.through("The café wa"), Some(10));
/// assert_eq!(words.through("A well-fed cat "), Some(15));
/// assert_eq!(words.through("The cat- "), None);
/// assert_eq!(words.through("The cat 9"), None);
/// Descriptor::new("guard", "0.1.0", "Finds numbers").holdback(19).prefilter(words);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prefilter {
    run_bytes: u32,
    classes: Vec<(String, Vec<String>)>,
    states: Vec<(String, Vec<(String, String)>)>,
}

impl Prefilter {
    /// Of text of which at most so many bytes wait for what ends them; no more than the guard withholds.
    pub fn new(run_bytes: u32) -> Self {
        Self { run_bytes, classes: Vec::new(), states: Vec::new() }
    }

    /// A class of characters: each text is one of them, or the first and the last of several. None is listed twice.
    pub fn class<T: Into<String>>(mut self, name: &str, characters: impl IntoIterator<Item = T>) -> Self {
        self.classes.push((name.into(), characters.into_iter().map(Into::into).collect()));
        self
    }

    /// A state: behind a character of a class the next one. There is one with the name `start`.
    pub fn state(mut self, name: &str, next: &[(&str, &str)]) -> Self {
        let next = next.iter().map(|(class, state)| ((*class).into(), (*state).into())).collect();
        self.states.push((name.into(), next));
        self
    }

    /// What of its names and characters a host would refuse.
    #[cfg(not(target_arch = "wasm32"))]
    pub(crate) fn check(&self) -> Result<(), String> {
        let twice = |names: &mut dyn Iterator<Item = &String>| {
            let names: Vec<&String> = names.collect();
            names.iter().enumerate().find(|(at, name)| names[..*at].contains(name)).map(|(_, name)| (*name).clone())
        };
        let again = |name: Option<String>| name.map_or(Ok(()), |name| Err(format!("{name:?} is in it twice")));
        again(twice(&mut self.classes.iter().map(|(name, _)| name)))?;
        again(twice(&mut self.states.iter().map(|(name, _)| name)))?;
        let is_state = |state: &str| self.states.iter().any(|(name, _)| name == state);
        if !is_state("start") {
            return Err("it has no state `start`".into());
        }
        for (class, state) in self.states.iter().flat_map(|(_, next)| next) {
            if !is_state(state) || !self.classes.iter().any(|(name, _)| name == class) {
                return Err(format!("{class:?} to {state:?}: one of them is not declared"));
            }
        }
        self.states.iter().try_for_each(|(_, next)| again(twice(&mut next.iter().map(|(class, _)| class))))?;
        let mut ranges = Vec::new();
        for entry in self.classes.iter().flat_map(|(_, entries)| entries) {
            ranges.push(range(entry).ok_or_else(|| format!("{entry:?} is neither a character nor a range"))?);
        }
        ranges.sort_unstable();
        match ranges.windows(2).find(|two| two[1].0 <= two[0].1) {
            Some(two) => Err(format!("{:?} is in it twice", two[1].0)),
            None => Ok(()),
        }
    }

    /// Bytes of a text that the host lets through without asking; `None` where it asks.
    pub fn through(&self, text: &str) -> Option<usize> {
        let (mut through, mut state) = (0, "start");
        for (at, c) in text.char_indices() {
            let class = self.classes.iter().find(|(_, entries)| entries.iter().any(|entry| has(entry, c)))?;
            let (_, next) = self.states.iter().find(|(name, _)| name == state)?;
            state = &next.iter().find(|(name, _)| *name == class.0)?.1;
            let end = at + c.len_utf8();
            if state == "start" {
                through = end;
            } else if end - through > self.run_bytes as usize {
                return None;
            }
        }
        Some(through)
    }

    pub(crate) fn to_json(&self) -> String {
        let classes = self.classes.iter().map(|(name, entries)| {
            let entries: Vec<&str> = entries.iter().map(String::as_str).collect();
            format!("{}:{}", quote(name), quoted(&entries))
        });
        let states = self.states.iter().map(|(name, next)| {
            let next = next.iter().map(|(class, state)| format!("{}:{}", quote(class), quote(state)));
            format!("{}:{{{}}}", quote(name), next.collect::<Vec<_>>().join(","))
        });
        let [classes, states] = [classes.collect::<Vec<_>>(), states.collect()].map(|parts| parts.join(","));
        format!("{{\"classes\":{{{classes}}},\"states\":{{{states}}},\"run-bytes\":{}}}", self.run_bytes)
    }
}

fn has(entry: &str, c: char) -> bool {
    range(entry).is_some_and(|(from, to)| (from..=to).contains(&c))
}

/// The first and the last character of a class's text. A letter with a mark of its own behind it is two characters and no range.
fn range(entry: &str) -> Option<(char, char)> {
    let mut characters = entry.chars();
    let from = characters.next()?;
    let to = characters.next().unwrap_or(from);
    (from <= to && from.is_ascii() == to.is_ascii() && characters.next().is_none()).then_some((from, to))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_host_refuses_is_named() {
        let words = || Prefilter::new(8).class("letters", ["az"]).class("ends", [" "]);
        let next = [("letters", "start"), ("ends", "start")];
        assert_eq!(words().state("start", &next).check(), Ok(()));
        for (refused, why) in [
            (words(), "no state `start`"),
            (words().state("start", &[("digits", "start")]), "not declared"),
            (words().state("start", &[("ends", "end")]), "not declared"),
            (words().state("start", &next).state("start", &[]), "\"start\" is in it twice"),
            (words().state("start", &[next, next].concat()), "\"letters\" is in it twice"),
            (words().class("ends", ["!"]).state("start", &next), "\"ends\" is in it twice"),
            (words().class("more", ["mo"]).state("start", &next), "'m' is in it twice"),
            (words().class("more", ["a-z"]).state("start", &next), "\"a-z\" is neither"),
            (words().class("more", ["e\u{301}"]).state("start", &next), "is neither"),
        ] {
            assert!(refused.check().unwrap_err().contains(why), "{why}");
        }
    }
}
