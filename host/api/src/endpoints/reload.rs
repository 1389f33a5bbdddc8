//! `POST /admin/reload`: takes the config and the plugins anew, whole or not at all. For administrators.

use crate::body::Response;
use crate::error::stopping;
use crate::exchange::{Exchange, with_type};
use std::sync::Arc;
use tidegate_types::{Fault, Reject};
use tokio::sync::OwnedMutexGuard;
use tracing::Instrument;

/// Answers with one line for each part that runs now; a refusal says what is wrong, and nothing has changed. What has begun
/// comes to its end, and to the log and the metrics, though its administrator may not wait for that.
pub(crate) async fn create(exchange: Exchange) -> Result<Response, Reject> {
    let api = Arc::clone(&exchange.api);
    // Waited for by whoever is there, so that no more than one goes on for somebody who is not.
    let turn = Arc::clone(&api.reloading).lock_owned().await;
    let taking = api.tasks.spawn(take(exchange, turn).in_current_span());
    let facts = taking.await.map_err(|error| Reject::internal(Fault::Operator, error.to_string()))??;
    Ok(with_type("text/plain", facts.join("\n") + "\n"))
}

async fn take(exchange: Exchange, _turn: OwnedMutexGuard<()>) -> Result<Vec<String>, Reject> {
    let facts = tokio::select! {
        facts = exchange.api.service.reload() => facts?,
        () = exchange.cutting.cancelled() => return Err(stopping()),
    };
    exchange.log_change("config reloaded", None, None);
    Ok(facts)
}
