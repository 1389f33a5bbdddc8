//! `GET /v1/models` and `GET /v1/models/{id}`; ids may contain slashes.

use crate::body::Response;
use crate::exchange::{Exchange, json};
use crate::query::percent_decoded;
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
