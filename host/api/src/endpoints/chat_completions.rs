//! `POST /v1/chat/completions`.

use crate::body::Response;
use crate::endpoints::generate;
use crate::exchange::Exchange;
use tidegate_types::Reject;

pub(crate) async fn create(exchange: Exchange) -> Result<Response, Reject> {
    generate::answer(exchange, tidegate_wire::parse_chat).await
}
