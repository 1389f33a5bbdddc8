//! `POST /admin/reload`: takes the config and the plugins anew, whole or not at all. For administrators.

use crate::body::Response;
use crate::error::stopping;
use crate::exchange::{Exchange, with_type};
use std::sync::Arc;
use std::time::Duration;
use tidegate_types::{Fault, Reject};
use tokio::sync::OwnedMutexGuard;
use tokio::time::timeout;
use tracing::Instrument;

/// Answers with one line for each part that runs now; a refusal says what is wrong, and nothing has changed. What has begun
/// comes to its end, and to the log and the metrics, though its administrator may not wait for that.
pub(crate) async fn create(exchange: Exchange) -> Result<Response, Reject> {
    let api = Arc::clone(&exchange.api);
    // Waited for by whoever is there, so that no more than one goes on for somebody who is not.
    let turn = timeout(PATIENCE, Arc::clone(&api.reloading).lock_owned()).await;
    let turn = turn.map_err(|_| busy(api.service.reloading()))?;
    let taking = api.tasks.spawn(take(exchange, turn).in_current_span());
    let facts = taking.await.map_err(|error| Reject::internal(Fault::Operator, error.to_string()))??;
    Ok(with_type("text/plain", facts.join("\n") + "\n"))
}

/// For how long an administrator waits for the reload of another, which may wait for a disk that is away.
const PATIENCE: Duration = Duration::from_secs(5);
const AGAIN_S: u32 = 5;

fn busy(at: Option<String>) -> Reject {
    let at = at.unwrap_or_else(|| "under way".into());
    let message = format!("another reload is {at}; ask again when that has ended");
    Reject::unavailable(Fault::Operator, message, AGAIN_S).code("reload_refused")
}

async fn take(exchange: Exchange, _turn: OwnedMutexGuard<()>) -> Result<Vec<String>, Reject> {
    let facts = tokio::select! {
        facts = exchange.api.service.reload() => facts?,
        () = exchange.cutting.cancelled() => return Err(stopping()),
    };
    exchange.log_change("config reloaded", None, None);
    Ok(facts)
}
