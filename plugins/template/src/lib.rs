//! A stream guard to begin a plugin with: copy this folder, give it a name in `Cargo.toml` and in the workspace's
//! `Cargo.toml`, and change it bit by bit. It replaces one word in what the model says, also where the word comes
//! in pieces.

use serde::Deserialize;
use tidegate_plugin_sdk::{Context, Descriptor, Error, Inspection, Plugin, Setting, StreamGuard, Window};

/// The settings. The host has checked them against the descriptor, which also gives the defaults.
#[derive(Debug, Deserialize)]
pub struct Config {
    word: String,
    replacement: String,
}

/// The plugin. What is dear to build is built in `configure` and kept here.
#[derive(Debug)]
pub struct Template(Config);

impl Plugin for Template {
    type Config = Config;

    fn describe() -> Descriptor {
        Descriptor::new("template", env!("CARGO_PKG_VERSION"), "Replaces a word in answers")
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

impl StreamGuard for Template {
    /// What is remembered of a stream from window to window: here nothing. A guard that must remember names a type
    /// that serde can write; a field of `Template` would not do, for windows of one stream go to any instance.
    type State = ();

    fn inspect_window(&self, _: &Context, _: &mut (), window: &Window) -> Result<Inspection, Error> {
        let Config { word, replacement } = &self.0;
        // Arguments of a tool call are JSON, whose escapes are not read: in them `"\u0066oo"` is no `foo`. A word that JSON
        // itself writes, such as `true`, would leave none.
        let pending = window.pending();
        let matches = pending.match_indices(word.as_str()).map(|(at, found)| at..at + found.len());
        // Spans count in the window's whole text, which begins with what the client has already.
        let matches: Vec<_> = matches.map(|m| window.start() + m.start..window.start() + m.end).collect();
        let decided = matches.last().map_or(window.start(), |last| last.end);
        // The word may begin at the end of the text, and the rest of it may be in the next window.
        let safe = window.safe_before(decided, word);
        Ok(Inspection::redact(safe, matches.into_iter().map(|range| (range, replacement.clone())).collect()))
    }
}

tidegate_plugin_sdk::export!(Template: StreamGuard);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use tidegate_plugin_sdk::Channel;
    use tidegate_plugin_sdk::plugin::configure;
    use tidegate_plugin_sdk::testing::{Host, assert_readme_is_true, assert_same_for_any_chunking, plugin};

    #[test]
    fn the_readme_names_every_setting() {
        assert_readme_is_true::<Template>(include_str!("../README.md"));
    }

    #[test]
    fn the_word_is_replaced_across_borders_of_pieces() {
        let outcome = Host::default().stream(&plugin::<Template>(""), &["a f", "o", "o foof", "oo fo"]).unwrap();
        assert_eq!(outcome.text, "a bar barbar fo");
    }

    #[test]
    fn a_replacement_that_leaves_no_json_of_a_calls_arguments_is_refused() {
        for replacement in [r#"\"no\""#, r"a\\b", r"a\nb", r"\u001f"] {
            let config = format!(r#"{{"replacement":"{replacement}"}}"#);
            let refused = configure::<Template>(&config).unwrap_err().to_string();
            assert!(refused.contains("`replacement` has a quote"), "{replacement}: {refused}");
        }
        let host = Host { channel: Channel::ToolArguments("c1".into()), ..Host::default() };
        let outcome = host.stream(&plugin::<Template>(""), &[r#"{"a":"a foo"}"#]).unwrap();
        assert_eq!(outcome.text, r#"{"a":"a bar"}"#);
    }

    proptest! {
        #[test]
        fn the_client_reads_the_same_for_any_chunking(
            text in "[fo é]{0,30}",
            at in proptest::collection::vec(0usize..40, 0..5),
        ) {
            assert_same_for_any_chunking(&plugin::<Template>(""), &Host::default(), &text, &at);
        }
    }
}
