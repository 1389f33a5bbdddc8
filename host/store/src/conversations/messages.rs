//! The tree: each message follows another, and those that follow the same one are siblings.
//!
//! Parts: `messages/reading.rs`, `messages/referring.rs`, `messages/writing.rs`.

mod reading;
mod referring;
mod writing;

pub use reading::MessagePage;
pub(super) use writing::{append, append_of, lock};

use crate::error::StoreError;
use serde::{Deserialize, Serialize};
use sqlx::Row;
use sqlx::any::AnyRow;
use tidegate_types::{Message, Part, Report, Role, Usage};

/// Where messages go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum At {
    /// Behind the current leaf.
    Leaf,
    /// Behind this message, or as the first where it is empty. The leaf moves along if it was this one.
    Behind(String),
    /// As [`At::Behind`], and the new branch becomes the current one.
    Branch(String),
}

impl At {
    /// The message that what goes here follows, where the conversation's leaf is this one.
    pub(super) fn parent<'a>(&'a self, leaf: &'a str) -> &'a str {
        match self {
            Self::Leaf => leaf,
            Self::Behind(parent) | Self::Branch(parent) => parent,
        }
    }
}

/// How far a message came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageStatus {
    /// Whole.
    Completed,
    /// It was cut off: cancelled, too long, or its writer failed.
    Incomplete,
}

/// Who brought a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A caller, on its own.
    Added,
    /// A caller, to be answered.
    Input,
    /// The model.
    Output,
}

/// What is known of how a message was made.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Made {
    /// Who answered; empty for a message that no model made.
    pub model: String,
    /// Why it ended.
    pub finish: String,
    /// What the whole answer used.
    pub usage: Usage,
    /// What else is known of it.
    pub report: Report,
}

/// A message to be written.
#[derive(Clone, Debug, PartialEq)]
pub struct NewMessage {
    /// Names it within its conversation; `message.id` is not kept.
    pub id: String,
    /// The caller's own name for it, once in a conversation; empty for none.
    pub client_id: String,
    /// Who says what.
    pub message: Message,
    /// How far it came.
    pub status: MessageStatus,
    /// How it was made.
    pub made: Made,
}

/// A message as it is kept.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredMessage {
    /// Names it within its conversation.
    pub id: String,
    /// The one that it follows; empty for the first.
    pub parent: String,
    /// Which of those that follow the same one.
    pub sibling: i64,
    /// The caller's own name for it.
    pub client_id: String,
    /// The response that it belongs to; empty for none.
    pub response: String,
    /// Who says what; its id is the message's own.
    pub message: Message,
    /// How far it came.
    pub status: MessageStatus,
    /// Always part of the context.
    pub pinned: bool,
    /// How it was made.
    pub made: Made,
    /// Milliseconds since 1970.
    pub created_ms: i64,
}

/// What a message says, as it is written. JSON escapes the zero that Postgres' text cannot hold.
#[derive(Serialize, Deserialize)]
struct Body {
    role: Role,
    #[serde(default)]
    name: Option<String>,
    parts: Vec<Part>,
}

impl Body {
    fn text_of(message: &Message) -> Result<String, StoreError> {
        let (role, name, parts) = (message.role.clone(), message.name.clone(), message.parts.clone());
        serde_json::to_string(&Self { role, name, parts }).map_err(StoreError::Body)
    }
}

fn said(id: String, body: &str) -> Result<Message, StoreError> {
    let Body { role, name, parts } = serde_json::from_str(body).map_err(StoreError::Body)?;
    Ok(Message { id, role, name, parts, provenance: None })
}

fn read(row: &AnyRow) -> Result<StoredMessage, StoreError> {
    let id: String = row.try_get("id")?;
    let tokens = |column| row.try_get::<i64, _>(column).map(|count| count.max(0) as u64);
    Ok(StoredMessage {
        message: said(id.clone(), &row.try_get::<String, _>("body")?)?,
        id,
        parent: row.try_get("parent")?,
        sibling: row.try_get("sibling")?,
        client_id: row.try_get("client_id")?,
        response: row.try_get("response")?,
        status: MessageStatus::read(&row.try_get::<String, _>("status")?),
        pinned: row.try_get::<i64, _>("pinned")? != 0,
        made: Made {
            model: row.try_get("model")?,
            finish: row.try_get("finish")?,
            usage: Usage {
                input_tokens: tokens("input_tokens")?,
                cached_tokens: tokens("cached_tokens")?,
                output_tokens: tokens("output_tokens")?,
                reasoning_tokens: row.try_get::<Option<i64>, _>("reasoning_tokens")?.map(|count| count.max(0) as u64),
            },
            report: report(&row.try_get::<String, _>("report")?)?,
        },
        created_ms: row.try_get("created_ms")?,
    })
}

fn report(text: &str) -> Result<Report, StoreError> {
    if text.is_empty() {
        return Ok(Report::default());
    }
    serde_json::from_str(text).map_err(StoreError::Body)
}

impl Origin {
    fn as_str(self) -> &'static str {
        match self {
            Self::Added => "added",
            Self::Input => "input",
            Self::Output => "output",
        }
    }
}

impl MessageStatus {
    /// The name in the database and on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::Incomplete => "incomplete",
        }
    }

    fn read(name: &str) -> Self {
        if name == "completed" { Self::Completed } else { Self::Incomplete }
    }
}
