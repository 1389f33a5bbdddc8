//! Imports WASI, which plugins do not get. It must not be loaded.

wit_bindgen::generate!({
    path: "../../../wit",
    inline: "
        package guests:wanders;
        world wanders {
            include tidegate:plugin/prompt-guard-plugin@0.1.0;
            import wasi:random/random@0.2.0;
        }
        package wasi:random@0.2.0 {
            interface random {
                get-random-u64: func() -> u64;
            }
        }
    ",
    world: "guests:wanders/wanders",
    generate_all,
});

use exports::tidegate::plugin::prompt_guard::{Guest, Prompt};
use tidegate::plugin::types::{Action, Context, Error, Verdict};

struct Component;

kit::meta!(Component, "wanders");

impl Guest for Component {
    fn inspect_prompt(_: Context, _: Prompt) -> Result<Verdict, Error> {
        std::hint::black_box(wasi::random::random::get_random_u64());
        Ok(Verdict { action: Action::Allow, findings: Vec::new(), attrs: Vec::new() })
    }
}

export!(Component);
