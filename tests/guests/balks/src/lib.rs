//! Never ends its `configure` for a tenant that has said `balk`: the instance that hears it panics, and no other comes to
//! be. While it is loaded nobody has said it.

wit_bindgen::generate!({
    path: "../../../wit",
    inline: "
        package guests:balks;
        world balks {
            include tidegate:plugin/prompt-guard-plugin@0.1.0;
            import tidegate:plugin/kv@0.1.0;
        }
    ",
    world: "guests:balks/balks",
    generate_all,
});

use exports::tidegate::plugin::{meta, prompt_guard};
use tidegate::plugin::kv;
use tidegate::plugin::types::{Action, Context, Error, Part, Verdict};

const KEY: &str = "balks";

struct Component;

impl meta::Guest for Component {
    fn describe() -> String {
        kit::descriptor_with("balks", false, ",\"capabilities\":[{\"name\":\"kv\",\"reason\":\"to keep\"}]")
    }

    fn configure(_: String) -> Result<(), Error> {
        if kv::get(KEY)?.is_none() {
            return Ok(());
        }
        loop {
            std::hint::spin_loop();
        }
    }
}

impl prompt_guard::Guest for Component {
    fn inspect_prompt(_: Context, prompt: prompt_guard::Prompt) -> Result<Verdict, Error> {
        let is_told = |part: &Part| matches!(part, Part::Text(text) if text == "balk");
        if prompt.messages.iter().flat_map(|message| &message.parts).any(is_told) {
            kv::set(KEY, b"yes", None)?;
            panic!("as the test asked");
        }
        Ok(Verdict { action: Action::Allow, findings: Vec::new(), attrs: Vec::new() })
    }
}

export!(Component);
