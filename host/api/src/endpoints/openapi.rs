//! `GET /openapi.json`: what this server has, for programs and for people.

use crate::body::Response;
use crate::exchange::{Exchange, json};
use crate::openapi::DOCUMENT;
use tidegate_types::{Fault, Reject};

pub(crate) async fn read(_: Exchange) -> Result<Response, Reject> {
    match &*DOCUMENT {
        Ok(document) => Ok(json(document.clone())),
        Err(why) => Err(Reject::internal(Fault::Operator, why.clone())),
    }
}
