//! Weights and architectures: a Hugging Face folder becomes a [`Model`], whose program any backend runs.
//!
//! [`Model::open`] reads `config.json`, `generation_config.json` and safetensors, and `modules.json` of models that make
//! vectors, checks all of them against each other, and computes nothing. Invariant: a folder that opens has every weight of
//! its program, in the right shape and in a type that backends know; whatever is wrong with it is a [`ModelError`] that
//! names the file. What gives labels has its head here too, since no backend computes it: [`Classifier`].
//! To add an architecture: a file in `arch/` and a line in `registry.rs`. Read next: [`model`], then `arch`.

mod arch;
pub mod classifier;
mod config;
mod error;
mod files;
mod fingerprint;
mod generation;
mod json;
pub mod model;
mod pooling;
pub mod registry;
mod rope;
mod sentences;
pub mod weights;

pub use classifier::Classifier;
pub use error::ModelError;
pub use fingerprint::Fingerprint;
pub use model::Model;
pub use weights::Weights;
