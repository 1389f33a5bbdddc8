//! `POST /admin/reload`: takes the config and the plugins anew, whole or not at all. For administrators.

use crate::body::Response;
use crate::exchange::{Exchange, with_type};
use tidegate_types::Reject;

/// Answers with one line for each part that runs now; a refusal says what is wrong, and nothing has changed.
pub(crate) async fn create(exchange: Exchange) -> Result<Response, Reject> {
    let facts = exchange.api.service.reload().await?;
    exchange.log_change("config reloaded", None, None);
    Ok(with_type("text/plain", facts.join("\n") + "\n"))
}
