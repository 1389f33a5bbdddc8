//! The component's exports: a macro that names the stages, and one function per call that converts, runs the
//! plugin and converts back. A plugin that panics says why in the host's log before the instance dies.

use super::bindings::memory::exports::tidegate::plugin::memory as remembering;
use super::bindings::observer::exports::tidegate::plugin::observer as observing;
use super::bindings::output_guard::exports::tidegate::plugin::output_guard as output;
use super::bindings::prompt_guard::exports::tidegate::plugin::prompt_guard as prompt;
use super::bindings::router::exports::tidegate::plugin::router as routing;
use super::bindings::stream_guard::exports::tidegate::plugin::stream_guard as stream;
use super::bindings::types as w;
use crate::host::log;
use crate::plugin::{self, Plugin};
use crate::stages::*;
use crate::types::Role;
use std::cell::OnceCell;
use std::sync::Once;
use std::thread::LocalKey;

/// Where a component keeps its plugin: one per instance, set by `configure`.
pub type Slot<P> = LocalKey<OnceCell<P>>;

#[doc(hidden)]
#[macro_export]
macro_rules! __component {
    ($plugin:ty: $($stage:ident),+) => {
        thread_local! {
            static PLUGIN: ::std::cell::OnceCell<$plugin> = const { ::std::cell::OnceCell::new() };
        }
        struct __Component;

        impl $crate::wasm::bindings::base::exports::tidegate::plugin::meta::Guest for __Component {
            fn describe() -> ::std::string::String {
                $crate::wasm::describe::<$plugin>()
            }
            fn configure(
                config: ::std::string::String,
            ) -> ::std::result::Result<(), $crate::wasm::bindings::types::Error> {
                $crate::wasm::configure(&PLUGIN, &config)
            }
        }
        $crate::wasm::bindings::base::export_meta!(__Component with_types_in $crate::wasm::bindings::base);
        $($crate::__stage!($stage);)+
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __stage {
    (PromptGuard) => {
        impl $crate::wasm::bindings::prompt_guard::exports::tidegate::plugin::prompt_guard::Guest for __Component {
            fn inspect_prompt(
                ctx: $crate::wasm::bindings::types::Context,
                prompt: $crate::wasm::bindings::prompt_guard::exports::tidegate::plugin::prompt_guard::Prompt,
            ) -> ::std::result::Result<
                $crate::wasm::bindings::types::Verdict,
                $crate::wasm::bindings::types::Error,
            > {
                $crate::wasm::inspect_prompt(&PLUGIN, ctx, prompt)
            }
        }
        $crate::wasm::bindings::prompt_guard::export_prompt_guard!(
            __Component with_types_in $crate::wasm::bindings::prompt_guard
        );
    };
    (StreamGuard) => {
        impl $crate::wasm::bindings::stream_guard::exports::tidegate::plugin::stream_guard::Guest for __Component {
            fn inspect_window(
                ctx: $crate::wasm::bindings::types::Context,
                carry: ::std::vec::Vec<u8>,
                window: $crate::Window,
            ) -> ::std::result::Result<
                $crate::wasm::bindings::stream_guard::exports::tidegate::plugin::stream_guard::Inspection,
                $crate::wasm::bindings::types::Error,
            > {
                $crate::wasm::inspect_window(&PLUGIN, ctx, carry, window)
            }
        }
        $crate::wasm::bindings::stream_guard::export_stream_guard!(
            __Component with_types_in $crate::wasm::bindings::stream_guard
        );
    };
    (PromptGlance) => {
        impl $crate::wasm::bindings::prompt_glance::exports::tidegate::plugin::prompt_glance::Guest for __Component {
            fn glance_prompt(messages: ::std::vec::Vec<($crate::Role, ::std::string::String)>) -> bool {
                $crate::wasm::glance_prompt(&PLUGIN, &messages)
            }
        }
        $crate::wasm::bindings::prompt_glance::export_prompt_glance!(
            __Component with_types_in $crate::wasm::bindings::prompt_glance
        );
    };
    (StreamGlance) => {
        impl $crate::wasm::bindings::stream_glance::exports::tidegate::plugin::stream_glance::Guest for __Component {
            fn glance(text: ::std::string::String, settled: u32) -> ::std::option::Option<u32> {
                $crate::wasm::glance(&PLUGIN, &text, settled)
            }
        }
        $crate::wasm::bindings::stream_glance::export_stream_glance!(
            __Component with_types_in $crate::wasm::bindings::stream_glance
        );
    };
    (Router) => {
        impl $crate::wasm::bindings::router::exports::tidegate::plugin::router::Guest for __Component {
            fn route(
                ctx: $crate::wasm::bindings::types::Context,
                request: $crate::wasm::bindings::router::exports::tidegate::plugin::router::Request,
                candidates: ::std::vec::Vec<
                    $crate::Candidate,
                >,
            ) -> ::std::result::Result<
                $crate::Decision,
                $crate::wasm::bindings::types::Error,
            > {
                $crate::wasm::route(&PLUGIN, ctx, request, candidates)
            }
        }
        $crate::wasm::bindings::router::export_router!(__Component with_types_in $crate::wasm::bindings::router);
    };
    (ToolProvider) => {
        impl $crate::wasm::bindings::tool_provider::exports::tidegate::plugin::tool_provider::Guest for __Component {
            fn list_tools(
                ctx: $crate::wasm::bindings::types::Context,
            ) -> ::std::result::Result<
                ::std::vec::Vec<$crate::wasm::bindings::types::ToolDef>,
                $crate::wasm::bindings::types::Error,
            > {
                $crate::wasm::list_tools(&PLUGIN, ctx)
            }
            fn call_tool(
                ctx: $crate::wasm::bindings::types::Context,
                call: $crate::wasm::bindings::types::ToolCall,
            ) -> ::std::result::Result<
                $crate::wasm::bindings::types::ToolOutcome,
                $crate::wasm::bindings::types::Error,
            > {
                $crate::wasm::call_tool(&PLUGIN, ctx, call)
            }
        }
        $crate::wasm::bindings::tool_provider::export_tool_provider!(
            __Component with_types_in $crate::wasm::bindings::tool_provider
        );
    };
    (OutputGuard) => {
        impl $crate::wasm::bindings::output_guard::exports::tidegate::plugin::output_guard::Guest for __Component {
            fn inspect_output(
                ctx: $crate::wasm::bindings::types::Context,
                output: $crate::wasm::bindings::output_guard::exports::tidegate::plugin::output_guard::Output,
            ) -> ::std::result::Result<$crate::wasm::bindings::types::Verdict, $crate::wasm::bindings::types::Error> {
                $crate::wasm::inspect_output(&PLUGIN, ctx, output)
            }
        }
        $crate::wasm::bindings::output_guard::export_output_guard!(
            __Component with_types_in $crate::wasm::bindings::output_guard
        );
    };
    (Memory) => {
        impl $crate::wasm::bindings::memory::exports::tidegate::plugin::memory::Guest for __Component {
            fn recall(
                ctx: $crate::wasm::bindings::types::Context,
                question: $crate::Question,
            ) -> ::std::result::Result<::std::vec::Vec<$crate::Item>, $crate::wasm::bindings::types::Error> {
                $crate::wasm::recall(&PLUGIN, ctx, question)
            }
            fn remember(
                ctx: $crate::wasm::bindings::types::Context,
                exchange: $crate::wasm::bindings::memory::exports::tidegate::plugin::memory::Exchange,
            ) -> ::std::result::Result<::std::vec::Vec<$crate::Item>, $crate::wasm::bindings::types::Error> {
                $crate::wasm::remember(&PLUGIN, ctx, exchange)
            }
            fn forget(
                ctx: $crate::wasm::bindings::types::Context,
                ids: ::std::vec::Vec<::std::string::String>,
            ) -> ::std::result::Result<u32, $crate::wasm::bindings::types::Error> {
                $crate::wasm::forget(&PLUGIN, ctx, ids)
            }
        }
        $crate::wasm::bindings::memory::export_memory!(
            __Component with_types_in $crate::wasm::bindings::memory
        );
    };
    (Observer) => {
        impl $crate::wasm::bindings::observer::exports::tidegate::plugin::observer::Guest for __Component {
            fn on_complete(
                ctx: $crate::wasm::bindings::types::Context,
                summary: $crate::wasm::bindings::observer::exports::tidegate::plugin::observer::Summary,
            ) -> ::std::result::Result<(), $crate::wasm::bindings::types::Error> {
                $crate::wasm::on_complete(&PLUGIN, ctx, summary)
            }
        }
        $crate::wasm::bindings::observer::export_observer!(
            __Component with_types_in $crate::wasm::bindings::observer
        );
    };
    (Retriever) => {
        impl $crate::wasm::bindings::retriever::exports::tidegate::plugin::retriever::Guest for __Component {
            fn retrieve(
                ctx: $crate::wasm::bindings::types::Context,
                query: $crate::Query,
            ) -> ::std::result::Result<
                ::std::vec::Vec<$crate::Chunk>,
                $crate::wasm::bindings::types::Error,
            > {
                $crate::wasm::retrieve(&PLUGIN, ctx, query)
            }
        }
        $crate::wasm::bindings::retriever::export_retriever!(
            __Component with_types_in $crate::wasm::bindings::retriever
        );
    };
}

/// `meta.describe`
pub fn describe<P: Plugin>() -> String {
    begin();
    P::describe().to_json()
}

/// `meta.configure`
pub fn configure<P: Plugin>(slot: &'static Slot<P>, json: &str) -> Result<(), w::Error> {
    begin();
    let made = plugin::configure::<P>(json)?;
    let twice = |_| w::Error::Unsupported("an instance is configured once; make another one".into());
    slot.with(|cell| cell.set(made)).map_err(twice)?;
    #[cfg(target_arch = "wasm32")]
    crate::alloc::calls_begin();
    Ok(())
}

/// `prompt-guard.inspect-prompt`
pub fn inspect_prompt<P: PromptGuard>(
    slot: &'static Slot<P>,
    ctx: w::Context,
    asked: prompt::Prompt,
) -> Result<w::Verdict, w::Error> {
    run(slot, |plugin| Ok(plugin.inspect_prompt(&ctx, &asked.into())?.into()))
}

/// `stream-guard.inspect-window`
pub fn inspect_window<P: StreamGuard>(
    slot: &'static Slot<P>,
    ctx: w::Context,
    carry: Vec<u8>,
    window: Window,
) -> Result<stream::Inspection, w::Error> {
    run(slot, |plugin| {
        let (inspection, carry) = inspect_with_carry(plugin, &ctx, &carry, &window)?;
        Ok(stream::Inspection {
            action: inspection.action.into(),
            safe_through: inspection.safe_through,
            carry,
            findings: inspection.findings.into_iter().map(Into::into).collect(),
            attrs: inspection.attrs,
        })
    })
}

/// `router.route`
pub fn route<P: Router>(
    slot: &'static Slot<P>,
    ctx: w::Context,
    request: routing::Request,
    candidates: Vec<Candidate>,
) -> Result<Decision, w::Error> {
    run(slot, |plugin| plugin.route(&ctx, &request.into(), &candidates))
}

/// `tool-provider.list-tools`
pub fn list_tools<P: ToolProvider>(slot: &'static Slot<P>, ctx: w::Context) -> Result<Vec<w::ToolDef>, w::Error> {
    run(slot, |plugin| plugin.list_tools(&ctx))
}

/// `tool-provider.call-tool`
pub fn call_tool<P: ToolProvider>(
    slot: &'static Slot<P>,
    ctx: w::Context,
    call: w::ToolCall,
) -> Result<w::ToolOutcome, w::Error> {
    run(slot, |plugin| plugin.call_tool(&ctx, &call))
}

/// `retriever.retrieve`
pub fn retrieve<P: Retriever>(slot: &'static Slot<P>, ctx: w::Context, query: Query) -> Result<Vec<Chunk>, w::Error> {
    run(slot, |plugin| plugin.retrieve(&ctx, &query))
}

/// `output-guard.inspect-output`
pub fn inspect_output<P: OutputGuard>(
    slot: &'static Slot<P>,
    ctx: w::Context,
    answer: output::Output,
) -> Result<w::Verdict, w::Error> {
    run(slot, |plugin| Ok(plugin.inspect_output(&ctx, &answer.into())?.into()))
}

/// `memory.recall`
pub fn recall<P: Memory>(slot: &'static Slot<P>, ctx: w::Context, question: Question) -> Result<Vec<Item>, w::Error> {
    run(slot, |plugin| plugin.recall(&ctx, &question))
}

/// `memory.remember`
pub fn remember<P: Memory>(
    slot: &'static Slot<P>,
    ctx: w::Context,
    exchange: remembering::Exchange,
) -> Result<Vec<Item>, w::Error> {
    run(slot, |plugin| plugin.remember(&ctx, &exchange.into()))
}

/// `memory.forget`
pub fn forget<P: Memory>(slot: &'static Slot<P>, ctx: w::Context, ids: Vec<String>) -> Result<u32, w::Error> {
    run(slot, |plugin| plugin.forget(&ctx, &ids))
}

/// `observer.on-complete`
pub fn on_complete<P: Observer>(
    slot: &'static Slot<P>,
    ctx: w::Context,
    summary: observing::Summary,
) -> Result<(), w::Error> {
    run(slot, |plugin| plugin.on_complete(&ctx, &summary.into()))
}

pub fn glance<P: StreamGlance>(slot: &'static Slot<P>, text: &str, settled: u32) -> Option<u32> {
    slot.with(|cell| cell.get()?.glance(text, settled as usize).and_then(|through| u32::try_from(through).ok()))
}

pub fn glance_prompt<P: PromptGlance>(slot: &'static Slot<P>, messages: &[(Role, String)]) -> bool {
    slot.with(|cell| cell.get().is_some_and(|plugin| plugin.glance_prompt(messages)))
}

fn run<P: Plugin, T>(slot: &'static Slot<P>, call: impl FnOnce(&P) -> Result<T, w::Error>) -> Result<T, w::Error> {
    slot.with(|cell| match cell.get() {
        Some(plugin) => call(plugin),
        None => Err(w::Error::Unsupported("a stage was called before `configure`".into())),
    })
}

/// Before all else that an instance does.
fn begin() {
    #[cfg(target_arch = "wasm32")]
    super::bindings::run_constructors();
    static ONCE: Once = Once::new();
    ONCE.call_once(|| std::panic::set_hook(Box::new(|panic| log::error(&format!("the plugin panicked: {panic}")))));
}
