//! Generated from `wit/`: one world per stage, so that a component exports what its author names and nothing
//! else, and imports only the capabilities that it uses. All of them share one set of types: the SDK's own where those are the same
//! as the contract's, which what is generated then makes by the names of their fields and cases; else generated ones. Enums
//! without payloads are generated always. What is not generated beside is [`run_constructors`].

#![allow(missing_docs, unsafe_code, clippy::all, clippy::undocumented_unsafe_blocks)]

/// What every component has: log, metrics and clock, `meta`, and the shared types.
pub mod base {
    wit_bindgen::generate!({
        path: "../../wit",
        world: "tidegate:plugin/base",
        pub_export_macro: true,
        export_macro_name: "export_meta",
        disable_run_ctors_once_workaround: true,
        default_bindings_module: "tidegate_plugin_sdk::wasm::bindings::base",
        runtime_path: "::tidegate_plugin_sdk::wasm::rt",
        with: {
            "tidegate:plugin/types@0.1.0/context": crate::types::Context,
            "tidegate:plugin/types@0.1.0/role": crate::types::Role,
            "tidegate:plugin/types@0.1.0/span": crate::types::Span,
            "tidegate:plugin/types@0.1.0/media-source": crate::types::MediaSource,
            "tidegate:plugin/types@0.1.0/media": crate::types::Media,
            "tidegate:plugin/types@0.1.0/tool-call": crate::types::ToolCall,
            "tidegate:plugin/types@0.1.0/tool-outcome": crate::types::ToolOutcome,
            "tidegate:plugin/types@0.1.0/tool-hints": crate::types::ToolHints,
            "tidegate:plugin/types@0.1.0/tool-def": crate::types::ToolDef,
            "tidegate:plugin/types@0.1.0/refusal": crate::types::Refusal,
            "tidegate:plugin/types@0.1.0/error": crate::Error,
        },
    });
}

/// The contract's types: the SDK's own where theirs are the same, else generated.
pub mod types {
    pub use super::base::tidegate::plugin::types::*;
    pub use crate::Error;
    pub use crate::types::{
        Context, Media, MediaSource, Refusal, Role, Span, ToolCall, ToolDef, ToolHints, ToolOutcome,
    };
}

/// The contract's, all of them the SDK's own.
pub mod accounting {
    pub use crate::types::{Attrs, Usage};
}

macro_rules! capability {
    ($module:ident, $world:literal, $inline:literal $(, $used:literal: $at:path)*) => {
        pub mod $module {
            wit_bindgen::generate!({
                path: "../../wit",
                inline: $inline,
                world: $world,
                runtime_path: "::tidegate_plugin_sdk::wasm::rt",
                with: { $($used: $at),* },
                generate_all,
            });
        }
    };
}

macro_rules! stage {
    ($module:ident, $world:literal, $inline:literal, $export:literal, $path:literal $(, $used:literal: $at:path)*) => {
        pub mod $module {
            wit_bindgen::generate!({
                path: "../../wit",
                inline: $inline,
                world: $world,
                pub_export_macro: true,
                export_macro_name: $export,
                disable_run_ctors_once_workaround: true,
                default_bindings_module: $path,
                runtime_path: "::tidegate_plugin_sdk::wasm::rt",
                with: { "tidegate:plugin/types@0.1.0": crate::wasm::bindings::types $(, $used: $at)* },
            });
        }
    };
}

capability!(
    kv,
    "with-kv",
    "package sdk:kv; world with-kv { import tidegate:plugin/kv@0.1.0; }",
    "tidegate:plugin/types@0.1.0": crate::wasm::bindings::types
);
capability!(
    documents,
    "with-documents",
    "package sdk:documents; world with-documents { import tidegate:plugin/documents@0.1.0; }",
    "tidegate:plugin/types@0.1.0": crate::wasm::bindings::types
);
capability!(
    secrets,
    "with-secrets",
    "package sdk:secrets; world with-secrets { import tidegate:plugin/secrets@0.1.0; }"
);
capability!(
    http,
    "with-http",
    "package sdk:http; world with-http { import tidegate:plugin/http@0.1.0; }",
    "tidegate:plugin/types@0.1.0": crate::wasm::bindings::types
);
capability!(
    models,
    "with-models",
    "package sdk:models; world with-models { import tidegate:plugin/models@0.1.0; }",
    "tidegate:plugin/types@0.1.0": crate::wasm::bindings::types,
    "tidegate:plugin/accounting@0.1.0": crate::wasm::bindings::accounting
);
capability!(
    vectors,
    "with-vectors",
    "package sdk:vectors; world with-vectors { import tidegate:plugin/vectors@0.1.0; }",
    "tidegate:plugin/types@0.1.0": crate::wasm::bindings::types
);
capability!(
    random,
    "with-random",
    "package sdk:random; world with-random { import tidegate:plugin/random@0.1.0; }",
    "tidegate:plugin/types@0.1.0": crate::wasm::bindings::types
);

stage!(
    prompt_guard,
    "prompt-guard-stage",
    "package sdk:prompt-guard; world prompt-guard-stage { export tidegate:plugin/prompt-guard@0.1.0; }",
    "export_prompt_guard",
    "tidegate_plugin_sdk::wasm::bindings::prompt_guard"
);
stage!(
    stream_guard,
    "stream-guard-stage",
    "package sdk:stream-guard; world stream-guard-stage { export tidegate:plugin/stream-guard@0.1.0; }",
    "export_stream_guard",
    "tidegate_plugin_sdk::wasm::bindings::stream_guard",
    "tidegate:plugin/stream-guard@0.1.0/channel": crate::stages::Channel,
    "tidegate:plugin/stream-guard@0.1.0/window": crate::stages::Window,
    "tidegate:plugin/stream-guard@0.1.0/redaction": crate::stages::Redaction
);
stage!(
    prompt_glance,
    "prompt-glance-stage",
    "package sdk:prompt-glance; world prompt-glance-stage { export tidegate:plugin/prompt-glance@0.1.0; }",
    "export_prompt_glance",
    "tidegate_plugin_sdk::wasm::bindings::prompt_glance"
);
/// No type of it is the contract's.
pub mod stream_glance {
    wit_bindgen::generate!({
        path: "../../wit",
        inline: "package sdk:stream-glance; world stream-glance-stage { export tidegate:plugin/stream-glance@0.1.0; }",
        world: "stream-glance-stage",
        pub_export_macro: true,
        export_macro_name: "export_stream_glance",
        disable_run_ctors_once_workaround: true,
        default_bindings_module: "tidegate_plugin_sdk::wasm::bindings::stream_glance",
        runtime_path: "::tidegate_plugin_sdk::wasm::rt",
    });
}
stage!(
    router,
    "router-stage",
    "package sdk:router; world router-stage { export tidegate:plugin/router@0.1.0; }",
    "export_router",
    "tidegate_plugin_sdk::wasm::bindings::router",
    "tidegate:plugin/router@0.1.0/candidate": crate::stages::Candidate,
    "tidegate:plugin/router@0.1.0/decision": crate::stages::Decision
);
stage!(
    tool_provider,
    "tool-provider-stage",
    "package sdk:tool-provider; world tool-provider-stage { export tidegate:plugin/tool-provider@0.1.0; }",
    "export_tool_provider",
    "tidegate_plugin_sdk::wasm::bindings::tool_provider"
);
stage!(
    retriever,
    "retriever-stage",
    "package sdk:retriever; world retriever-stage { export tidegate:plugin/retriever@0.1.0; }",
    "export_retriever",
    "tidegate_plugin_sdk::wasm::bindings::retriever",
    "tidegate:plugin/retriever@0.1.0/query": crate::stages::Query,
    "tidegate:plugin/retriever@0.1.0/chunk": crate::stages::Chunk
);
stage!(
    output_guard,
    "output-guard-stage",
    "package sdk:output-guard; world output-guard-stage { export tidegate:plugin/output-guard@0.1.0; }",
    "export_output_guard",
    "tidegate_plugin_sdk::wasm::bindings::output_guard",
    "tidegate:plugin/accounting@0.1.0": crate::wasm::bindings::accounting
);
stage!(
    memory,
    "memory-stage",
    "package sdk:memory; world memory-stage { export tidegate:plugin/memory@0.1.0; }",
    "export_memory",
    "tidegate_plugin_sdk::wasm::bindings::memory",
    "tidegate:plugin/memory@0.1.0/question": crate::stages::Question,
    "tidegate:plugin/memory@0.1.0/item": crate::stages::Item
);
stage!(
    observer,
    "observer-stage",
    "package sdk:observer; world observer-stage { export tidegate:plugin/observer@0.1.0; }",
    "export_observer",
    "tidegate_plugin_sdk::wasm::bindings::observer",
    "tidegate:plugin/accounting@0.1.0": crate::wasm::bindings::accounting
);

/// Runs the constructors of what is linked in, of a library in C say, once: an instance begins with `describe` or
/// `configure`. What is generated would look at each call whether that was done, in a byte that costs each instance a page
/// of memory (`docs/decisions/0021`). This one begins as true, and so lies among what is written anyway.
#[cfg(target_arch = "wasm32")]
pub fn run_constructors() {
    use std::sync::atomic::{AtomicBool, Ordering};
    static TO_BE_RUN: AtomicBool = AtomicBool::new(true);
    unsafe extern "C" {
        fn __wasm_call_ctors();
    }
    if TO_BE_RUN.swap(false, Ordering::Relaxed) {
        // SAFETY: the linker makes it, of this type, for whoever calls it himself.
        unsafe { __wasm_call_ctors() }
    }
}
