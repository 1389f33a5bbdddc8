//! What the guard hands to the memory of the same request: under which key the answer belongs, and what was asked, so
//! that nothing is kept for a question that another guard changed behind this one.

use crate::asked::{Asked, digest};
use serde::{Deserialize, Serialize};
use tidegate_plugin_sdk::Attrs;

const NAME: &str = "semantic-cache/asked";

/// The name by which a request leaves the model to routers, as JSON.
const ROUTED: &str = "\"auto\"";

/// A question that was not answered from the cache.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct Note {
    /// Of the exact answer.
    pub key: String,
    /// Of all but the question.
    pub context: String,
    /// Digest of the question.
    pub question: String,
    /// The model that was asked, as JSON.
    model: String,
    /// Little-endian numbers in hexadecimal; empty for none.
    vector: String,
}

impl Note {
    /// Of a question and its vector.
    pub fn new(asked: &Asked, vector: Option<&[f32]>) -> Self {
        let numbers = vector.unwrap_or_default().iter();
        let vector = numbers.flat_map(|x| x.to_le_bytes()).map(|byte| format!("{byte:02x}")).collect();
        let (context, model) = (asked.context.clone(), asked.model.clone());
        Self { key: asked.key(), context, question: digest(&asked.question), model, vector }
    }

    /// As the host hands it on.
    pub fn into_attrs(self) -> Attrs {
        serde_json::to_string(&self).map(|json| vec![(NAME.to_owned(), json)]).unwrap_or_default()
    }

    /// The guard's note among what the host hands on.
    pub fn find(attrs: &Attrs) -> Option<Self> {
        let (_, json) = attrs.iter().find(|(name, _)| name == NAME)?;
        serde_json::from_str(json).ok()
    }

    /// Whether an answer is of the model that was asked, or of any for whoever left that open: of a router's second choice too,
    /// which is then given after the first is back. Of one that stood in it is no answer of the model's, and who may use the one
    /// may not use the other. A host that does not say has none.
    pub fn is_answered(&self, by: Option<&str>) -> bool {
        self.model == ROUTED || by.is_none_or(|by| by == self.model)
    }

    /// The question's vector.
    pub fn vector(&self) -> Option<Vec<f32>> {
        let byte = |pair: &[u8; 2]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
        let bytes: Vec<u8> = self.vector.as_bytes().as_chunks::<2>().0.iter().map(byte).collect::<Option<_>>()?;
        let numbers: Vec<f32> = bytes.as_chunks::<4>().0.iter().map(|four| f32::from_le_bytes(*four)).collect();
        (!numbers.is_empty()).then_some(numbers)
    }
}
