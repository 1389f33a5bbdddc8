//! What a plugin may ask of the host. Log, metrics and clock are always there; the others need a
//! grant, and a component that imports one without it is refused at load.
//!
//! On other targets than wasm the same functions reach fakes in memory, one set per thread, so that a plugin's
//! tests run anywhere: see [`fake`].

pub mod clock;
pub mod documents;
#[cfg(not(target_arch = "wasm32"))]
pub mod fake;
pub mod http;
pub mod kv;
pub mod log;
pub mod metrics;
pub mod models;
pub mod random;
pub mod secrets;
pub mod vectors;
