//! Answers with as many MiB of text as the prompt says. The result limit must refuse it before the host copies it.

wit_bindgen::generate!({ path: "../../../wit", world: "prompt-guard-plugin" });

use exports::tidegate::plugin::prompt_guard::{Guest, Prompt};
use tidegate::plugin::types::{Action, Context, Error, Part, Verdict};

struct Component;

kit::meta!(Component, "bloats");

impl Guest for Component {
    fn inspect_prompt(_: Context, prompt: Prompt) -> Result<Verdict, Error> {
        let mib = match prompt.messages.first().and_then(|message| message.parts.first()) {
            Some(Part::Text(text)) => text.parse().unwrap_or(0),
            _ => 0,
        };
        let parts = vec![Part::Text("x".repeat(mib << 20))];
        Ok(Verdict { action: Action::Respond(parts), findings: Vec::new(), attrs: Vec::new() })
    }
}

export!(Component);
