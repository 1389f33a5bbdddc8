//! Weights and architectures: a Hugging Face folder becomes a [`Model`], whose program any backend runs.
//!
//! [`Model::open`] reads `config.json`, `generation_config.json` and safetensors, checks all of them against each
//! other, and computes nothing. Invariant: a folder that opens has every weight of its program, in the right
//! shape and in a type that backends know; whatever is wrong with it is a [`ModelError`] that names the file.
//! To add an architecture: a file in `arch/` and a line in `registry.rs`. Read next: [`model`], then `arch`.

mod arch;
mod config;
mod error;
mod files;
mod fingerprint;
mod generation;
mod json;
pub mod model;
pub mod registry;
mod rope;
pub mod weights;

pub use error::ModelError;
pub use fingerprint::Fingerprint;
pub use model::Model;
pub use weights::Weights;
