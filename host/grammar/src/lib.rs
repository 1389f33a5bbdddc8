//! What an answer is held to: a grammar over the tokens of one model, compiled once and followed token by token.
//!
//! The grammar of a request is text ([`Layout::source`]), so it travels with a job as plain data. [`Grammars`] compiles and
//! keeps what was compiled; a [`Guide`] follows one answer and says which tokens may come next, as a bit set.
//!
//! Invariants, each with a test:
//! - What a schema asks for is held, or the schema is refused by name (`schema.rs`); nothing of it is dropped.
//! - A schema costs no more than its bounds: bytes, values, nesting, references, the ways in which it joins alternatives
//!   (`ways.rs`), and llguidance's own limits for compiling, and for each mask.
//! - No tenant takes the place of another's compiled grammars.
//! - What a guide says depends on its grammar and the tokens so far, and on nothing else.
//!
//! Only this crate names llguidance. Read next: `layout.rs` (what is written), `schema.rs` (what is held), `guide.rs`.

mod cache;
mod compiled;
mod error;
mod formats;
mod guide;
mod layout;
mod pattern;
mod prepared;
mod schema;
mod values;
mod vocabulary;
mod ways;

pub use compiled::{Compiled, Grammars, MAX_SOURCE_BYTES};
pub use error::GrammarError;
pub use guide::Guide;
pub use layout::{Answer, CallForm, Calls, Function, Layout, Mark, Reasoning};
pub use schema::check_schema;
pub use vocabulary::Token;
