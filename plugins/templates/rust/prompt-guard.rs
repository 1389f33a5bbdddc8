//! Refuses prompts that hold a word.

use serde::Deserialize;
use tidegate_plugin_sdk::{Context, Descriptor, Error, Prompt, PromptGuard, Plugin, Refusal, Setting, Verdict};

/// The settings; the host has checked them against the descriptor.
#[derive(Deserialize)]
struct Config {
    word: String,
}

/// What is dear to build is built in `configure` and kept here.
struct Guard(Config);

impl Plugin for Guard {
    type Config = Config;

    fn describe() -> Descriptor {
        Descriptor::new("{{name}}", env!("CARGO_PKG_VERSION"), "Refuses prompts that hold a word")
            .setting(Setting::new("word", r#"{"type":"string","minLength":1}"#, r#""forbidden""#, "The word"))
            .deterministic()
    }

    fn configure(config: Config) -> Result<Self, Error> {
        Ok(Self(config))
    }
}

impl PromptGuard for Guard {
    fn inspect_prompt(&self, _: &Context, prompt: &Prompt) -> Result<Verdict, Error> {
        let mut texts = prompt.messages.iter().flat_map(|message| message.texts()).map(|(_, text)| text);
        if !texts.any(|text| text.contains(&self.0.word)) {
            return Ok(Verdict::allow());
        }
        Ok(Verdict::refuse(Refusal::new("word", "This prompt holds a word that is not allowed here.")))
    }
}

tidegate_plugin_sdk::export!(Guard: PromptGuard);
