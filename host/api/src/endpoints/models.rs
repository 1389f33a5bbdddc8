//! `GET /v1/models` and `GET /v1/models/{id}`; ids may contain slashes.

use crate::body::Response;
use crate::exchange::{Exchange, json};
use tidegate_types::{Fault, Reject, RejectKind};
use tidegate_wire::models::{card_body, list_body};

pub(crate) async fn list(exchange: Exchange) -> Result<Response, Reject> {
    Ok(json(list_body(&exchange.api.service.models(&exchange.caller))))
}

pub(crate) async fn get(exchange: Exchange) -> Result<Response, Reject> {
    let id = percent_decoded(&exchange.rest).ok_or_else(|| not_found(&exchange.rest))?;
    let cards = exchange.api.service.models(&exchange.caller);
    let card = cards.iter().find(|card| card.id == id).ok_or_else(|| not_found(&id))?;
    Ok(json(card_body(card)))
}

fn not_found(id: &str) -> Reject {
    let id: String = id.chars().take(100).collect();
    let message = format!("the model `{id}` does not exist; GET /v1/models lists those that do");
    Reject::new(RejectKind::NotFound, Fault::Client, message).at("model").code("model_not_found")
}

fn percent_decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, tail)) = rest.split_first() {
        if first != b'%' {
            bytes.push(first);
            rest = tail;
            continue;
        }
        let (digits, tail) = tail.split_at_checked(2)?;
        let digits = std::str::from_utf8(digits).ok().filter(|d| d.bytes().all(|b| b.is_ascii_hexdigit()))?;
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
        rest = tail;
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_decoded_or_refused() {
        assert_eq!(percent_decoded("org%2Fname%20x").as_deref(), Some("org/name x"));
        assert_eq!(percent_decoded("%C3%A4").as_deref(), Some("ä"));
        for bad in ["%", "%2", "%zz", "%+1", "%ff"] {
            assert_eq!(percent_decoded(bad), None, "{bad}");
        }
    }
}
