//! `/v1/responses`: OpenAI's newer endpoint, which remembers. A request is read into the same [`Chat`] as a chat
//! completion's; an answer is an object of items, and a stream of typed events that build it.
//!
//! Parts: `request.rs`, `object.rs` (what is said of a response), `encoder.rs` (its events).

mod encoder;
mod object;
mod request;

pub use encoder::{ResponseEncoder, Skin};
pub use object::{Ended, Head, failed_object, status_of, without_item};
pub use request::{Reference, ResponseRequest, Truncation, parse_response};
