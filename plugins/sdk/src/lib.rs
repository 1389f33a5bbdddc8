//! Write a Tidegate plugin in Rust.
//!
//! A plugin is a type with a [`Plugin`] implementation (name, settings, how it is made from its config) and one
//! implementation per stage that it serves: [`PromptGuard`], [`StreamGuard`], [`Router`], [`ToolProvider`],
//! [`Retriever`], [`OutputGuard`], [`Memory`], [`Observer`]. [`export!`] names the stages; nothing else is needed for a component.
//!
//! ```
//! use tidegate_plugin_sdk::{Context, Descriptor, Error, Plugin, Prompt, PromptGuard, Refusal, Setting, Verdict};
//!
//! #[derive(serde::Deserialize)]
//! struct Config {
//!     max_messages: usize,
//! }
//!
//! struct Brief(Config);
//!
//! impl Plugin for Brief {
//!     type Config = Config;
//!     fn describe() -> Descriptor {
//!         Descriptor::new("brief", "0.1.0", "Refuses long conversations")
//!             .setting(Setting::integer("max_messages", 50, 1, 10_000, "Messages that a conversation may have"))
//!     }
//!     fn configure(config: Config) -> Result<Self, Error> {
//!         Ok(Self(config))
//!     }
//! }
//!
//! impl PromptGuard for Brief {
//!     fn inspect_prompt(&self, _: &Context, prompt: &Prompt) -> Result<Verdict, Error> {
//!         if prompt.messages.len() <= self.0.max_messages {
//!             return Ok(Verdict::allow());
//!         }
//!         Ok(Verdict::refuse(Refusal::new("too_long", "This conversation has too many messages.")))
//!     }
//! }
//!
//! tidegate_plugin_sdk::export!(Brief: PromptGuard);
//! ```
//!
//! Logic compiles and runs on any target: on wasm the [`host`] functions reach the host, elsewhere they reach
//! small fakes, so that `cargo test` needs no wasm toolchain. [`scan`] and [`testing`] keep stream guards
//! honest: the same client bytes for any chunking. Read next: [`plugin`], then [`stages`].

extern crate self as tidegate_plugin_sdk;

#[cfg(any(target_arch = "wasm32", test))]
mod alloc;
pub mod changes;
pub mod descriptor;
pub mod findings;
pub mod host;
pub mod json;
pub mod plugin;
pub mod prefilter;
pub mod scan;
pub mod screen;
pub mod stages;
#[cfg(not(target_arch = "wasm32"))]
pub mod testing;
pub mod text;
pub mod types;
#[cfg(target_arch = "wasm32")]
#[doc(hidden)]
pub mod wasm;

pub use changes::Changes;
pub use descriptor::{Capability, Descriptor, Setting, some_of};
pub use findings::Findings;
pub use plugin::{Error, Plugin};
pub use prefilter::Prefilter;
pub use stages::{
    Action, Candidate, Channel, Chunk, Decision, Edit, Exchange, Inspection, Item, Memory, Observer, Output,
    OutputGuard, Prompt, PromptGlance, PromptGuard, Query, Question, Redaction, Retriever, RouteRequest, Router,
    StreamGlance, StreamGuard, Summary, ToolProvider, Verdict, Window, WindowAction, each_once, offered,
};
pub use types::{
    Attrs, Context, Finding, Media, MediaSource, Message, Part, Refusal, Role, Severity, Span, ToolCall, ToolDef,
    ToolHints, ToolOutcome, Usage,
};

/// Makes a component of a plugin: `export!(MyPlugin: PromptGuard, StreamGuard);`, once per crate. It does
/// nothing on other targets than wasm, so that the crate's tests build anywhere.
#[macro_export]
macro_rules! export {
    ($plugin:ty: $($stage:ident),+ $(,)?) => {
        #[cfg(target_arch = "wasm32")]
        mod tidegate_component {
            #![allow(missing_docs, unsafe_code)]
            use super::*;
            $crate::__component!($plugin: $($stage),+);
        }
        #[cfg(not(target_arch = "wasm32"))]
        const _: () = {
            $({
                const fn serves<P: $crate::$stage>() {}
                serves::<$plugin>();
            })+
        };
    };
}
