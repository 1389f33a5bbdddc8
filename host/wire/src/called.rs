//! A call that a model has made, as a caller repeats it. What a caller offers is its own to name; a call is in the words of a
//! model and of its server. Who refused those would end the conversation, so their bounds are those within which calls are
//! handed out ([`crate::client`]): an id may have the signature of a thought in it, a name be none that was offered.

use crate::field::short_string;
use crate::json::Node;
use crate::path::Path;
use tidegate_types::{Reject, ToolCall};

pub(crate) fn id(node: Node<'_>, at: &Path<'_>) -> Result<String, Reject> {
    short_string(node, at, ToolCall::MAX_ID_BYTES)
}

pub(crate) fn name(node: Node<'_>, at: &Path<'_>) -> Result<String, Reject> {
    short_string(node, at, ToolCall::MAX_NAME_BYTES)
}
