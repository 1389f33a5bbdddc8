//! Sandboxed WebAssembly components as pipeline stages. This crate alone knows wasmtime; `pipeline` sees a
//! [`Plugin`] with one method per stage function, host types ([`stage`]), and typed failures.
//!
//! What it promises: a guest reaches nothing but the imports that it was granted; it cannot hold a thread, memory,
//! the log or a result beyond its limits; it never serves two tenants from one instance; and whatever it does, the
//! call ends in a result that was checked or in a [`stage::CallError`], and the host goes on.
//!
//! Read in this order: [`sandbox`] and `load` (what is checked when a plugin is loaded), `plugin` (the path of a call),
//! `pools`, `pool`, `registry` and `slots` (who gets an instance), `state` and `meter` (limits), `stages/` and `capability/`
//! (the contract, one file per interface), `cache` (compiled components on disk).

mod bindings;
mod blueprint;
mod cache;
mod call_ids;
pub mod capability;
mod check;
pub mod config;
mod convert;
mod descriptor;
mod detour;
mod engine;
pub mod error;
mod failure;
mod imports;
pub mod inspect;
mod instance;
mod json;
mod lane;
mod load;
mod media;
mod meter;
mod per_key;
pub mod plugin;
mod pool;
mod pools;
mod prefilter;
mod registry;
pub mod sandbox;
mod schema;
mod slots;
mod snapshot;
pub mod stage;
mod stages;
mod state;
mod sweeper;
mod ticker;
mod within;

pub use config::{Fixed, SandboxConfig};
pub use descriptor::is_plugin_name;
pub use error::{LoadCause, LoadError, SandboxError};
pub use inspect::{Anatomy, Import};
pub use load::MAX_COMPONENT_BYTES;
pub use plugin::{Plugin, StreamPool};
pub use prefilter::Prefilter;
pub use sandbox::{PluginSpec, Sandbox, Snapshot, Usage};
