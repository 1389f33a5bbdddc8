//! Sandboxed WebAssembly components as pipeline stages.
mod bindings;
pub mod stage;
