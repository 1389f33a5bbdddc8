//! `GET /v1/models`.

use crate::write::{list, raw, string, uint};
use bytes::{Bytes, BytesMut};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

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
    /// What it can do, where known: `completions`, `chat`, `tools`, `reasoning`, `logprobs`, `embeddings`, `classification`.
    pub capabilities: Vec<&'static str>,
    /// What it costs; `None` means nothing.
    pub pricing: Option<ModelPricing>,
}

/// What a model costs, in billionths of the currency.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModelPricing {
    /// As ISO 4217 names it, in lower case.
    pub currency: String,
    /// For a million tokens of prompts.
    pub input: u64,
    /// For a million of those that the prefix cache had.
    pub cached_input: u64,
    /// For a million generated tokens.
    pub output: u64,
    /// For a call of a tool, by `PLUGIN` or `PLUGIN/TOOL`.
    pub tools: BTreeMap<String, u64>,
    /// For looking for passages, by plugin.
    pub retrieval: BTreeMap<String, u64>,
}

impl ModelCard {
    /// Whether it answers chats, as far as anybody here knows.
    pub fn chats(&self) -> bool {
        self.capabilities.is_empty() || self.capabilities.contains(&"chat")
    }
}

impl ModelPricing {
    /// Whether nothing costs anything.
    pub fn is_free(&self) -> bool {
        let calls = self.tools.values().chain(self.retrieval.values());
        calls.chain([&self.input, &self.cached_input, &self.output]).all(|price| *price == 0)
    }

    fn to_json(&self) -> Value {
        let each = |prices: &BTreeMap<String, u64>| -> Map<String, Value> {
            prices.iter().map(|(name, price)| (name.clone(), json!(units(*price)))).collect()
        };
        json!({
            "currency": self.currency,
            "input_per_million": units(self.input),
            "cached_input_per_million": units(self.cached_input),
            "output_per_million": units(self.output),
            "per_tool_call": each(&self.tools),
            "per_retrieval": each(&self.retrieval),
        })
    }
}

/// A number of JSON, in whole units.
fn units(billionths: u64) -> f64 {
    billionths as f64 / 1e9
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
    if !card.capabilities.is_empty() {
        raw(out, r#","capabilities":"#);
        list(out, &card.capabilities, |out, name| string(out, name));
    }
    if let Some(pricing) = &card.pricing {
        raw(out, r#","pricing":"#);
        raw(out, &pricing.to_json().to_string());
    }
    raw(out, "}");
}

#[cfg(test)]
mod tests {
    use super::*;
    #[test]
    fn lists_models_in_openais_shape() {
        let with = |id: &str, context_tokens| ModelCard {
            id: id.into(),
            created: 7,
            owned_by: "tidegate".into(),
            context_tokens,
            capabilities: if context_tokens.is_some() { vec!["chat", "tools"] } else { Vec::new() },
            pricing: None,
        };
        let body: Value = serde_json::from_slice(&list_body(&[with("a/b", Some(512)), with("c\"", None)])).unwrap();
        let expected = json!({"object": "list", "data": [
            {"id": "a/b", "object": "model", "created": 7, "owned_by": "tidegate", "max_model_len": 512,
                "capabilities": ["chat", "tools"]},
            {"id": "c\"", "object": "model", "created": 7, "owned_by": "tidegate"},
        ]});
        assert_eq!(body, expected);
        assert_eq!(serde_json::from_slice::<Value>(&card_body(&with("c\"", None))).unwrap(), expected["data"][1]);
    }

    #[test]
    fn a_model_says_what_it_costs() {
        let pricing = ModelPricing {
            currency: "eur".into(),
            input: 150_000_000,
            cached_input: 75_000_000,
            output: 600_000_000,
            tools: [("web/search".to_owned(), 10_000_000)].into(),
            ..ModelPricing::default()
        };
        assert!(!pricing.is_free() && ModelPricing::default().is_free());
        let card = ModelCard {
            id: "m".into(),
            created: 7,
            owned_by: "tidegate".into(),
            context_tokens: None,
            capabilities: Vec::new(),
            pricing: Some(pricing),
        };
        let body: Value = serde_json::from_slice(&card_body(&card)).unwrap();
        let expected = json!({"currency": "eur", "input_per_million": 0.15, "cached_input_per_million": 0.075,
            "output_per_million": 0.6, "per_tool_call": {"web/search": 0.01}, "per_retrieval": {}});
        assert_eq!(body["pricing"], expected);
    }
}
