//! `/v1/memories`: what plugins remember of the caller, and that they forget it.

use crate::body::Response;
use crate::exchange::{Exchange, json};
use crate::query::{Query, invalid};
use tidegate_types::Reject;
use tidegate_wire::memories as wire;

/// Memories of each plugin in one answer, where nothing else is asked for, and at most.
const LIMIT: u32 = 20;
const MOST: u32 = 100;

/// `GET /v1/memories?q=QUESTION&limit=N`: what each memory would bring to this question.
pub(crate) async fn list(exchange: Exchange) -> Result<Response, Reject> {
    let query = Query::read(exchange.request.uri(), &["q", "limit"])?;
    let question = query.get("q").unwrap_or_default();
    if question.trim().is_empty() {
        return Err(invalid("q", "`q` is required: the question to which memories are looked up"));
    }
    let limit = query.number("limit")?.map_or(Some(LIMIT), |limit| u32::try_from(limit).ok());
    let Some(limit) = limit.filter(|limit| (1..=MOST).contains(limit)) else {
        return Err(invalid("limit", &format!("`limit` must be from 1 to {MOST}")));
    };
    let known = exchange.answers.memories(question, limit, exchange.context()).await?;
    Ok(json(wire::list_body(&known)))
}

/// `POST /v1/memories/forget`, with the ids that `list` gave.
pub(crate) async fn forget(mut exchange: Exchange) -> Result<Response, Reject> {
    let ids = exchange.read(wire::parse_forget).await?;
    Ok(json(wire::forgotten_body(exchange.answers.forget(&ids, exchange.context()).await?)))
}
