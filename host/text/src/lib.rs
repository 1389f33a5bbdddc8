//! Text in and out of a model: tokenizer, chat template, detokenizer, stop strings, tool-call and reasoning parser.
//!
//! Pure and synchronous: only [`TextModel::open_with`] reads files. The way in is [`TextModel::encode_chat`]
//! (conversation to token ids), the way out is [`Detokenizer`] -> [`OutputParser`] -> [`StopMatcher`]
//! (token ids to events).
//!
//! Invariants, each with a test:
//! - What a caller writes never becomes a control token (`veil.rs`).
//! - Output is the same for every chunking of the same tokens, and no character is split.
//! - A parser loses no text: what is not a well-formed tool call is text.
//! - What is held of a text is bounded by the tokens that its model reads, and not by the text (`within.rs`, `blanks.rs`).
//!
//! Read next: `model.rs` (what a folder holds), `chat.rs` (the way in), `detokenizer.rs` (the way out).

mod added;
mod blanks;
mod call_ids;
mod chat;
mod conversation;
mod detokenizer;
mod dialect;
mod encoder;
mod error;
mod files;
mod measure;
mod model;
mod output;
mod pieces;
mod stop;
mod template;
mod veil;
mod within;

pub use call_ids::CallIdForm;
pub use chat::ChatOptions;
pub use detokenizer::{Detokenizer, Place, Specials};
pub use dialect::{Dialect, ReasoningTags, ToolFormat};
pub use encoder::AddSpecial;
pub use error::TextError;
pub use model::{TextModel, TextOverrides};
pub use output::{OutputEvent, OutputParser, Parsed};
pub use stop::{StopMatcher, StopStep};
pub use within::{Past, Within};
