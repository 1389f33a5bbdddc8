//! `GET /v1/models`.

use crate::write::{list, raw, string, uint};
use bytes::{Bytes, BytesMut};

/// One model that callers may name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelCard {
    /// The name callers use.
    pub id: String,
    /// Unix seconds of when it was loaded.
    pub created: u64,
    /// Who answers: `tidegate`, or the name of an upstream.
    pub owned_by: String,
    /// Prompt and answer together, in tokens, where known. Sent as vLLM's `max_model_len`.
    pub context_tokens: Option<u32>,
}

/// The body for all models.
pub fn list_body(cards: &[ModelCard]) -> Bytes {
    let mut out = BytesMut::with_capacity(64 + cards.len() * 128);
    raw(&mut out, r#"{"object":"list","data":"#);
    list(&mut out, cards, card);
    raw(&mut out, "}");
    out.freeze()
}

/// The body for one model.
pub fn card_body(one: &ModelCard) -> Bytes {
    let mut out = BytesMut::with_capacity(128);
    card(&mut out, one);
    out.freeze()
}

fn card(out: &mut BytesMut, card: &ModelCard) {
    raw(out, r#"{"id":"#);
    string(out, &card.id);
    raw(out, r#","object":"model","created":"#);
    uint(out, card.created);
    raw(out, r#","owned_by":"#);
    string(out, &card.owned_by);
    if let Some(tokens) = card.context_tokens {
        raw(out, r#","max_model_len":"#);
        uint(out, u64::from(tokens));
    }
    raw(out, "}");
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn lists_models_in_openais_shape() {
        let with = |id: &str, context_tokens| ModelCard {
            id: id.into(),
            created: 7,
            owned_by: "tidegate".into(),
            context_tokens,
        };
        let body: Value = serde_json::from_slice(&list_body(&[with("a/b", Some(512)), with("c\"", None)])).unwrap();
        let expected = json!({"object": "list", "data": [
            {"id": "a/b", "object": "model", "created": 7, "owned_by": "tidegate", "max_model_len": 512},
            {"id": "c\"", "object": "model", "created": 7, "owned_by": "tidegate"},
        ]});
        assert_eq!(body, expected);
        assert_eq!(serde_json::from_slice::<Value>(&card_body(&with("c\"", None))).unwrap(), expected["data"][1]);
    }
}
