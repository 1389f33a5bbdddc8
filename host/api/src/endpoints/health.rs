//! `GET /livez`: the process runs. `GET /readyz`, and `GET /health` as vLLM and llama.cpp call it: requests will be answered.

use crate::body::Response;
use crate::exchange::{Exchange, with_type};
use tidegate_types::{Fault, Reject};

pub(crate) async fn live(_: Exchange) -> Result<Response, Reject> {
    Ok(with_type("text/plain", "ok\n"))
}

/// Not ready from when the server is told to stop, so that a load balancer sends nothing more.
pub(crate) async fn ready(exchange: Exchange) -> Result<Response, Reject> {
    if exchange.api.phase.settling.is_cancelled() {
        return Err(Reject::unavailable(Fault::Operator, "the server is stopping", 1));
    }
    match exchange.api.service.ready() {
        Ok(()) => Ok(with_type("text/plain", "ready\n")),
        Err(why) => Err(Reject::unavailable(Fault::Engine, "the server is not ready", 1).because(why)),
    }
}
