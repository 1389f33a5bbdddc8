//! `GET /metrics`, for Prometheus. Keyed like the rest, since the figures name tenants.

use crate::body::Response;
use crate::exchange::{Exchange, with_type};
use tidegate_types::Reject;

pub(crate) async fn render(exchange: Exchange) -> Result<Response, Reject> {
    Ok(with_type("text/plain; version=0.0.4", exchange.api.service.metrics()))
}
