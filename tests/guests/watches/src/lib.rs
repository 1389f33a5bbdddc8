//! A stream guard that changes nothing. Config: `{"hold": "30"}` bytes are kept back until the text ends, `{"halt":
//! "word"}` ends the answer where the word comes, `{"seam": "word"}` also where it stands in what has left and in
//! what waits, `{"trap": "word"}` traps there and `{"loop": "word"}` never answers; `{"say":
//! "word"}` is logged by `configure`. It looks at every channel, and says which one it halted.

wit_bindgen::generate!({ path: "../../../wit", world: "stream-guard-plugin" });

use exports::tidegate::plugin::stream_guard::{Channel, Guest, Halting, Inspection, Window, WindowAction};
use std::cell::RefCell;
use tidegate::plugin::log::{Level, write};
use tidegate::plugin::types::{Context, Error, Refusal};

thread_local! {
    static CONFIG: RefCell<String> = const { RefCell::new(String::new()) };
}

struct Component;

impl exports::tidegate::plugin::meta::Guest for Component {
    fn describe() -> String {
        // More than a server gives unasked.
        kit::descriptor_with("watches", false, ",\"stream\":{\"holdback-bytes\":4096}")
    }

    fn configure(config: String) -> Result<(), Error> {
        CONFIG.with(|kept| *kept.borrow_mut() = config);
        if let Some(word) = setting("say") {
            write(Level::Info, &word, &[]);
        }
        Ok(())
    }
}

impl Guest for Component {
    fn inspect_window(_: Context, carry: Vec<u8>, window: Window) -> Result<Inspection, Error> {
        let Window { text, settled, ending, channel, .. } = window;
        let comes = |key| setting(key).is_some_and(|word| text[settled as usize..].contains(&word));
        assert!(!comes("trap"), "as the test asked");
        if comes("loop") {
            loop {
                std::hint::spin_loop();
            }
        }
        let is_at_seam = setting("seam").is_some_and(|word| text.contains(&word));
        let action =
            if comes("halt") || is_at_seam { WindowAction::Halt(halting(&channel)) } else { WindowAction::Pass };
        let hold = setting("hold").and_then(|bytes| bytes.parse().ok()).unwrap_or(0);
        let through = if ending.is_some() { text.len() } else { text.len().saturating_sub(hold) };
        let safe_through = (text.floor_char_boundary(through) as u32).max(settled);
        Ok(Inspection { action, safe_through, carry, findings: Vec::new(), attrs: Vec::new() })
    }
}

fn halting(channel: &Channel) -> Halting {
    let channel = match channel {
        Channel::Text => "text",
        Channel::Reasoning => "reasoning",
        Channel::Refusal => "refusal",
        Channel::ToolArguments(_) => "arguments",
    };
    let refusal = Refusal { code: channel.into(), public_message: "no".into(), private_reason: None };
    Halting { refusal, farewell: Some(format!("[halted in {channel}]")) }
}

/// The text of a key, where the config has it.
fn setting(key: &str) -> Option<String> {
    CONFIG.with(|config| {
        let config = config.borrow();
        let rest = config.split_once(&format!("\"{key}\":\""))?.1;
        Some(rest.split('"').next()?.to_owned())
    })
}

export!(Component);
