//! Other servers as backends: Tidegate, vLLM, SGLang, llama.cpp, any that speaks OpenAI's protocol.
//!
//! An [`Upstream`] is one model at one server. Its answer comes back as the same deltas that the own engine
//! gives. Invariants: an answer that was cut is an error, never a quiet end; what the caller reads names neither
//! the server nor its key; dropping an [`UpstreamStream`] closes the connection, which stops the work there.
//!
//! Read `upstream.rs`, then `stream.rs`; `failure.rs` is the table of what goes wrong and who must act.

mod config;
mod failure;
mod stream;
mod upstream;
mod usage;

pub use config::{ApiKey, UpstreamConfig, UpstreamError};
pub use stream::{UpstreamEvent, UpstreamStream};
pub use tidegate_wire::changes_answer;
pub use tidegate_wire::client::TokenBound;
pub use upstream::Upstream;
