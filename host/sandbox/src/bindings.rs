//! The contract as Rust types, generated from `wit/`. One world holds every stage and every capability, for the
//! host only: what a component exports is looked up interface by interface (`GuestIndices`), so that stages stay
//! optional, and what it imports was checked before. Parameters are borrowed: text is copied once, into the guest.
//!
//! Those of stages that are entered on the caller's own stack too (`stages.rs`) are there a second time, with functions that are
//! not `async`.
//!
//! Read next: `convert.rs` builds these from the host's types, `stages/` calls the exports.

wasmtime::component::bindgen!({
    inline: "
        package tidegate:host;
        world everything {
            import tidegate:plugin/log@0.1.0;
            import tidegate:plugin/metrics@0.1.0;
            import tidegate:plugin/clock@0.1.0;
            import tidegate:plugin/kv@0.1.0;
            import tidegate:plugin/documents@0.1.0;
            import tidegate:plugin/secrets@0.1.0;
            import tidegate:plugin/http@0.1.0;
            import tidegate:plugin/models@0.1.0;
            import tidegate:plugin/vectors@0.1.0;
            import tidegate:plugin/random@0.1.0;
            export tidegate:plugin/meta@0.1.0;
            export tidegate:plugin/prompt-guard@0.1.0;
            export tidegate:plugin/stream-guard@0.1.0;
            export tidegate:plugin/router@0.1.0;
            export tidegate:plugin/tool-provider@0.1.0;
            export tidegate:plugin/retriever@0.1.0;
            export tidegate:plugin/output-guard@0.1.0;
            export tidegate:plugin/memory@0.1.0;
            export tidegate:plugin/observer@0.1.0;
        }
    ",
    path: "../../wit",
    ownership: Borrowing { duplicate_if_necessary: true },
    imports: {
        "tidegate:plugin/kv": async | trappable,
        "tidegate:plugin/documents": async | trappable,
        "tidegate:plugin/http": async | trappable,
        "tidegate:plugin/models": async | trappable,
        "tidegate:plugin/vectors": async | trappable,
        default: trappable,
    },
    exports: { default: async },
});

pub(crate) mod direct {
    wasmtime::component::bindgen!({
        inline: "
            package tidegate:host;
            world direct {
                export tidegate:plugin/prompt-guard@0.1.0;
                export tidegate:plugin/stream-guard@0.1.0;
                export tidegate:plugin/prompt-glance@0.1.0;
                export tidegate:plugin/stream-glance@0.1.0;
                // Types that these take are the host's to give and to take there, and have the names that they have above.
                export tidegate:plugin/router@0.1.0;
                export tidegate:plugin/tool-provider@0.1.0;
            }
        ",
        path: "../../wit",
        ownership: Borrowing { duplicate_if_necessary: true },
        with: { "tidegate:plugin/types": crate::bindings::tidegate::plugin::types },
    });
}
