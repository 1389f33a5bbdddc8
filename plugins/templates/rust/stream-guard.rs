//! Replaces one word in what the model says, also where the word comes in pieces.

use serde::Deserialize;
use tidegate_plugin_sdk::{Context, Descriptor, Error, Inspection, Plugin, Setting, StreamGuard, Window};

/// The settings; the host has checked them against the descriptor.
#[derive(Deserialize)]
struct Config {
    word: String,
    replacement: String,
}

/// What is dear to build is built in `configure` and kept here.
struct Guard(Config);

impl Plugin for Guard {
    type Config = Config;

    fn describe() -> Descriptor {
        Descriptor::new("{{name}}", env!("CARGO_PKG_VERSION"), "Replaces a word in answers")
            .setting(Setting::text("word", "foo", "The word"))
            .setting(Setting::text("replacement", "bar", "What the client reads in its place"))
            .mutates()
            .deterministic()
    }

    fn configure(config: Config) -> Result<Self, Error> {
        if config.word.is_empty() {
            return Err(Error::InvalidConfig("`word` is empty; name one".into()));
        }
        // It is put into the JSON of a tool call's arguments as it stands.
        if config.replacement.contains(|c: char| matches!(c, '"' | '\\' | '\0'..='\x1f')) {
            let why = "`replacement` has a quote, a backslash or a control character; name another";
            return Err(Error::InvalidConfig(why.into()));
        }
        Ok(Self(config))
    }
}

impl StreamGuard for Guard {
    /// What is remembered from window to window: here nothing.
    type State = ();

    fn inspect_window(&self, _: &Context, _: &mut (), window: &Window) -> Result<Inspection, Error> {
        let Config { word, replacement } = &self.0;
        // Arguments of a tool call are JSON, whose escapes are not read: in them `"\u0066oo"` is no `foo`. A word that JSON
        // itself writes, such as `true`, would leave none.
        let found = window.pending().match_indices(word.as_str());
        // Spans count in the window's whole text, which begins with what the client has already.
        let found: Vec<_> = found.map(|(at, word)| window.start() + at..window.start() + at + word.len()).collect();
        let decided = found.last().map_or(window.start(), |last| last.end);
        // The word may begin at the end of the text, and the rest of it may be in the next window.
        let safe = window.safe_before(decided, word);
        Ok(Inspection::redact(safe, found.into_iter().map(|range| (range, replacement.clone())).collect()))
    }
}

tidegate_plugin_sdk::export!(Guard: StreamGuard);

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_plugin_sdk::testing::{Host, plugin};

    #[test]
    fn the_word_is_replaced_across_borders_of_pieces() {
        let outcome = Host::default().stream(&plugin::<Guard>(""), &["a f", "o", "o foof", "oo fo"]).unwrap();
        assert_eq!(outcome.text, "a bar barbar fo");
    }
}
