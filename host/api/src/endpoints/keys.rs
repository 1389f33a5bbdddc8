//! `/admin/keys`: keys that are made, replaced and taken back while the server runs. For administrators, and
//! for owners and admins of a tenant, who see its keys only.

use crate::administration::Administration;
use crate::body::Response;
use crate::exchange::Exchange;
use crate::query::{Query, invalid, percent_decoded};
use tidegate_types::{Fault, Reject, RejectKind};

/// `GET /admin/keys`
pub(crate) async fn list(exchange: Exchange) -> Result<Response, Reject> {
    exchange.administer(Administration::Keys).await
}

/// `POST /admin/keys`: the body is an entry of `[[keys]]` without its hash; the answer has the key, this once.
pub(crate) async fn make(mut exchange: Exchange) -> Result<Response, Reject> {
    let body = exchange.settings().await?;
    exchange.administer(Administration::MakeKey(body)).await
}

/// `POST /admin/keys/{name}/rotate?grace_s=N`: another key of the same settings; the old one goes on for a while.
pub(crate) async fn rotate(exchange: Exchange) -> Result<Response, Reject> {
    let Some(name) = exchange.rest.strip_suffix("/rotate") else {
        let message = "there is no such path here; POST /admin/keys/{name}/rotate makes a key anew";
        return Err(Reject::new(RejectKind::NotFound, Fault::Client, message));
    };
    let query = Query::read(exchange.request.uri(), &["grace_s"])?;
    let grace_s = query.number("grace_s")?.unwrap_or(0);
    let name = decoded(name)?;
    exchange.administer(Administration::RotateKey { name, grace_s }).await
}

/// `DELETE /admin/keys/{name}`: refused from now on.
pub(crate) async fn revoke(exchange: Exchange) -> Result<Response, Reject> {
    let name = decoded(&exchange.rest)?;
    exchange.administer(Administration::RevokeKey(name)).await
}

fn decoded(name: &str) -> Result<String, Reject> {
    percent_decoded(name).ok_or_else(|| invalid("name", "the key's name in the path is not percent-encoded UTF-8"))
}
