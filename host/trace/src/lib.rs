//! Traces: what a request did and how long each part of it took, as spans that a collector gets over OTLP.
//!
//! Exported are the spans of level `debug` of this program's crates: the request itself ([`server`]), its plugins'
//! calls, the turns of its model, its requests to upstreams. Where no traces are wanted they are disabled, and cost what
//! a disabled span costs; a log at its default level has none of them.
//!
//! Invariant: a span has names, numbers and codes, and nothing that callers or models wrote.

mod export;
mod span;

pub use export::{TraceConfig, TraceError, Traces};
pub use span::{Lasting, behind, fail, name, note, outgoing, server, whole};
