//! What all guests have in common, so that a guest's file shows its one misbehaviour and little else.

// As every plugin made with the SDK: `cargo xtask bench plugins` measures such a guest.
#[cfg(target_arch = "wasm32")]
#[path = "../../../../plugins/sdk/src/alloc.rs"]
mod alloc;

/// What follows is allocated for a call: an SDK's plugin says so when it is configured.
pub fn calls_begin() {
    #[cfg(target_arch = "wasm32")]
    alloc::calls_begin();
}

/// A descriptor without capabilities, of a guest that takes any config.
pub fn descriptor(name: &str, mutates: bool) -> String {
    descriptor_with(name, mutates, "")
}

/// A descriptor with more keys: `,"key":value` in `more`.
pub fn descriptor_with(name: &str, mutates: bool, more: &str) -> String {
    format!(
        "{{\"name\":\"{name}\",\"version\":\"0.1.0\",\"summary\":\"A guest of the sandbox's tests\",\
         \"config-schema\":{{\"type\":\"object\",\"additionalProperties\":true}},\
         \"mutates\":{mutates},\"deterministic\":true{more}}}"
    )
}

/// Implements `meta` for a guest that takes any config, with bindings generated in the crate's root.
#[macro_export]
macro_rules! meta {
    ($guest:ty, $name:literal) => {
        impl exports::tidegate::plugin::meta::Guest for $guest {
            fn describe() -> String {
                kit::descriptor($name, true)
            }
            fn configure(_: String) -> Result<(), tidegate::plugin::types::Error> {
                Ok(())
            }
        }
    };
}

/// Implements `prompt-guard` and `meta` for a guest that misbehaves when it is asked about a prompt and allows it if
/// it ever comes that far.
#[macro_export]
macro_rules! misbehave {
    ($name:literal, $work:expr) => {
        wit_bindgen::generate!({ path: "../../../wit", world: "prompt-guard-plugin" });

        use exports::tidegate::plugin::prompt_guard::Prompt;
        use tidegate::plugin::types::{Action, Context, Error, Part, Verdict};

        struct Component;

        kit::meta!(Component, $name);

        impl exports::tidegate::plugin::prompt_guard::Guest for Component {
            fn inspect_prompt(_: Context, prompt: Prompt) -> Result<Verdict, Error> {
                let text = prompt.messages.iter().flat_map(|message| &message.parts).find_map(|part| match part {
                    Part::Text(text) => Some(text.as_str()),
                    _ => None,
                });
                let work: fn(&str) = $work;
                work(text.unwrap_or_default());
                Ok(Verdict { action: Action::Allow, findings: Vec::new(), attrs: Vec::new() })
            }
        }

        export!(Component);
    };
}
