//! Never ends its `describe`. It must not be loaded.

wit_bindgen::generate!({ path: "../../../wit", world: "prompt-guard-plugin" });

use exports::tidegate::plugin::{meta, prompt_guard};
use tidegate::plugin::types::{Context, Error, Verdict};

struct Component;

impl meta::Guest for Component {
    fn describe() -> String {
        loop {
            std::hint::spin_loop();
        }
    }
    fn configure(_: String) -> Result<(), Error> {
        Ok(())
    }
}

impl prompt_guard::Guest for Component {
    fn inspect_prompt(_: Context, _: prompt_guard::Prompt) -> Result<Verdict, Error> {
        Err(Error::Unsupported("it only ponders".into()))
    }
}

export!(Component);
