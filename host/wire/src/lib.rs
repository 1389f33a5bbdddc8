//! OpenAI JSON and server-sent events, both directions. Pure: bytes in, types out, and back.
//!
//! This is the only crate that knows OpenAI's wire format; a field that another crate spells is a defect.
//!
//! - Serving: [`request`] parses and validates a body once, with the path of whatever is wrong; [`stream`],
//!   [`answer`], [`models`] and [`error`] write what a client reads; [`embeddings`] does both for vectors.
//! - Asking an upstream: [`client`] writes a `Chat` as a request and reads chunks, answers and errors back;
//!   [`sse`] cuts the bytes of a stream into events.
//!
//! Read `request.rs` first.

pub mod answer;
mod called;
pub mod client;
pub mod conversations;
pub mod embeddings;
pub mod error;
mod field;
pub mod head;
pub mod items;
mod json;
mod logprobs;
pub mod memories;
pub mod models;
mod padding;
mod path;
pub mod report;
pub mod request;
pub mod responses;
pub mod schemas;
pub mod sse;
pub mod stream;
pub mod usage;
mod write;

pub use answer::Answer;
pub use embeddings::{Encoding, embeddings_body, parse_embeddings};
pub use error::{error_body, status};
pub use head::Head;
pub use models::{ModelCard, ModelPricing};
pub use request::{ParsedRequest, changes_answer, parse_chat, parse_completion};
pub use schemas::schemas;
pub use stream::StreamEncoder;
