//! `GET /v1/streams/{id}`: a resumable stream from where its reader left off, by `Last-Event-ID` or `starting_after`.
//! `POST /v1/streams/{id}/cancel`: ends its generation.

use crate::body::{Body, Response};
use crate::endpoints::generate::event_stream;
use crate::exchange::{Exchange, json};
use crate::replay::{ReplayBody, away, gone};
use metrics::counter;
use tidegate_streams::Found;
use tidegate_types::{Fault, Reject, RejectKind};
use tidegate_wire::stream::stream_body;

pub(crate) async fn read(exchange: Exchange) -> Result<Response, Reject> {
    let log = find(&exchange, &exchange.rest).await?;
    let seen = seen(&exchange)?;
    let cursor = log.read_after(seen).map_err(gone)?;
    counter!("tidegate_stream_reads_total", "from" => if seen == 0 { "start" } else { "event" }).increment(1);
    Ok(event_stream(Body::replay(ReplayBody::new(&exchange.api, cursor))))
}

/// Answers at once; the log then ends with an error of the code `cancelled`, unless it had ended before.
pub(crate) async fn cancel(exchange: Exchange) -> Result<Response, Reject> {
    let Some(id) = exchange.rest.strip_suffix("/cancel") else {
        let message = "there is no such path here; POST /v1/streams/{id}/cancel ends a stream";
        return Err(Reject::new(RejectKind::NotFound, Fault::Client, message));
    };
    let log = find(&exchange, id).await?;
    let status = match log.outcome() {
        None => {
            log.stop().await.map_err(away)?;
            "cancelled"
        }
        Some(Ok(())) => "completed",
        Some(Err(reject)) if reject.is_cancelled() => "cancelled",
        Some(Err(_)) => "failed",
    };
    Ok(json(stream_body(id, status)))
}

async fn find(exchange: &Exchange, id: &str) -> Result<Found, Reject> {
    let found = exchange.api.streams.find_anywhere(exchange.caller.owner(), id).await.map_err(away)?;
    found.ok_or_else(|| {
        let message = "there is no such stream; ended ones are kept for a while only";
        Reject::new(RejectKind::NotFound, Fault::Client, message).code("stream_not_found")
    })
}

/// The last event that the reader has. The header is newer than the URL: clients that come back by themselves send it.
pub(super) fn seen(exchange: &Exchange) -> Result<u64, Reject> {
    let header = exchange.request.headers().get("last-event-id");
    if let Some(id) = header {
        let number = id.to_str().ok().and_then(|id| id.trim().parse().ok());
        return number.ok_or_else(|| bad("Last-Event-ID"));
    }
    let query = exchange.request.uri().query().unwrap_or_default();
    let after = query.split('&').find_map(|pair| pair.strip_prefix("starting_after="));
    after.map_or(Ok(0), |number| number.parse().map_err(|_| bad("starting_after")))
}

fn bad(name: &str) -> Reject {
    let message = format!("`{name}` must be the id of an event: a whole number, 0 for the start");
    Reject::invalid(name, message).code("invalid_value")
}
