//! Imports an interface that no host has. It must not be loaded.

wit_bindgen::generate!({
    path: "../../../wit",
    inline: "
        package guests:strays;
        world strays {
            include tidegate:plugin/prompt-guard-plugin@0.1.0;
            import shell: interface { run: func(command: string) -> string; }
        }
    ",
    world: "guests:strays/strays",
    generate_all,
});

use exports::tidegate::plugin::prompt_guard::{Guest, Prompt};
use tidegate::plugin::types::{Action, Context, Error, Verdict};

struct Component;

kit::meta!(Component, "strays");

impl Guest for Component {
    fn inspect_prompt(_: Context, _: Prompt) -> Result<Verdict, Error> {
        std::hint::black_box(shell::run("true"));
        Ok(Verdict { action: Action::Allow, findings: Vec::new(), attrs: Vec::new() })
    }
}

export!(Component);
