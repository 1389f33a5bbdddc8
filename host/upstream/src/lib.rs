//! Other servers as backends: Tidegate, vLLM, SGLang, llama.cpp, any that speaks OpenAI's protocol.
//!
//! An [`Upstream`] is one model at one server, [`Replicas`] are the servers of one model. Their answer comes back as the
//! same deltas that the own engine gives. Invariants: an answer that was cut is an error, never a quiet end; nothing is
//! sent again once something of its answer was handed on, nor more often than the budget allows; what the caller reads
//! names neither the server nor its key; dropping an [`Answer`] closes the connection, which stops the work there.
//!
//! Read `upstream.rs`, then `stream.rs`; `failure.rs` is the table of what goes wrong and who must act, `retry.rs` that
//! of what is sent again. `replicas.rs` chooses the server, `attempt.rs` judges it.

mod answer;
mod attempt;
mod breaker;
mod budget;
mod chance;
mod config;
mod failure;
mod figures;
mod replicas;
mod retry;
mod stream;
mod upstream;
mod usage;

pub use answer::{Answer, Sending};
pub use breaker::BreakerConfig;
pub use config::{ApiKey, Reader, UpstreamConfig, UpstreamError};
pub use replicas::{MAX_SERVERS, Replicas};
pub use retry::{Attempts, RetryConfig};
pub use stream::{UpstreamEvent, UpstreamStream};
pub use tidegate_wire::changes_answer;
pub use tidegate_wire::client::{ListedModel, RequestOptions, TokenBound};
pub use upstream::Upstream;
