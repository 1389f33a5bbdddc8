//! Refuses prompts that hold a word.

use serde::Deserialize;
use tidegate_plugin_sdk::{Context, Descriptor, Error, Part, Plugin, Prompt, PromptGuard, Refusal, Setting, Verdict};

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

/// The text of a part that has one: what is said, reasoned or refused, what a tool answered, and what it is called with: JSON,
/// whose escapes are not read.
fn text_of(part: &Part) -> Option<&str> {
    match part {
        Part::ToolCall(call) => Some(&call.arguments),
        part => part.as_text(),
    }
}

impl PromptGuard for Guard {
    fn inspect_prompt(&self, _: &Context, prompt: &Prompt) -> Result<Verdict, Error> {
        let mut texts = prompt.messages.iter().flat_map(|message| &message.parts).filter_map(text_of);
        if !texts.any(|text| text.contains(&self.0.word)) {
            return Ok(Verdict::allow());
        }
        Ok(Verdict::refuse(Refusal::new("word", "This prompt holds a word that is not allowed here.")))
    }
}

tidegate_plugin_sdk::export!(Guard: PromptGuard);
