//! `POST /v1/completions`, the older endpoint: a raw prompt, no messages, no tools.

use crate::body::Response;
use crate::endpoints::generate;
use crate::exchange::Exchange;
use tidegate_types::Reject;

pub(crate) async fn create(exchange: Exchange) -> Result<Response, Reject> {
    generate::answer(exchange, tidegate_wire::parse_completion).await
}
