//! Sandboxed WebAssembly components as pipeline stages.
pub mod stage;
