//! What a message says: one text, or a list of parts, as Mistral's reasoning models have it.

use serde::de::{Deserialize, Deserializer, Error, SeqAccess, Visitor};
use std::fmt;

/// `content`, taken apart.
#[derive(Default)]
pub(super) struct Content {
    pub(super) text: String,
    /// What parts of the type `thinking` say; it stands before the text.
    pub(super) reasoning: String,
}

#[derive(serde::Deserialize)]
struct ContentPart {
    #[serde(rename = "type")]
    kind: String,
    text: Option<String>,
    thinking: Option<Content>,
}

impl<'de> Deserialize<'de> for Content {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ContentVisitor)
    }
}

struct ContentVisitor;

impl<'de> Visitor<'de> for ContentVisitor {
    type Value = Content;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text or a list of parts")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Content, E> {
        Ok(Content { text: text.to_owned(), reasoning: String::new() })
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Content, A::Error> {
        let mut content = Content::default();
        while let Some(ContentPart { kind, text, thinking }) = seq.next_element()? {
            match kind.as_str() {
                "text" => content.text.push_str(text.as_deref().unwrap_or_default()),
                "thinking" => {
                    let Content { text, reasoning } = thinking.unwrap_or_default();
                    content.reasoning.push_str(&reasoning);
                    content.reasoning.push_str(&text);
                }
                // Numbers of the passages that the text before it is from, and no text.
                "reference" => {}
                other => {
                    let other: String = other.chars().take(40).collect();
                    return Err(A::Error::custom(format_args!("a part of the type {other:?} is no text")));
                }
            }
        }
        Ok(content)
    }
}
