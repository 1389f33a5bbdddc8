//! `Idempotency-Key`: a client that does not know whether it got through asks again with the same key, and gets what the
//! first request made. A key is its tenant's, and stands for one body on one path for a day.

use crate::kept::store_failed;
use crate::server::Api;
use hyper::HeaderMap;
use tidegate_store::Conversations;
use tidegate_store::conversations::Claim;
use tidegate_types::{Caller, Fault, Reject, RejectKind, TenantId};

const HEADER: &str = "idempotency-key";
const MAX_BYTES: usize = 256;

/// A key that was claimed.
pub(crate) struct Claimed {
    /// Names what is made, or was made before.
    pub(crate) unique: String,
    /// Whether nothing was made for it yet.
    pub(crate) new: bool,
    conversations: Conversations,
    tenant: TenantId,
    route: &'static str,
    key_hash: String,
}

impl Claimed {
    /// Lets the same request be tried again, since this one has failed.
    pub(crate) async fn release(&self) {
        if let Err(error) = self.conversations.release(&self.tenant, self.route, &self.key_hash).await {
            tracing::warn!(tenant = %self.tenant, "an idempotency key stays with a request that failed: {error}");
        }
    }
}

/// Claims the request's key, where it has one, for what `unique` names.
pub(crate) async fn claim(
    api: &Api,
    caller: &Caller,
    route: &'static str,
    headers: &HeaderMap,
    body: &[u8],
    unique: &str,
) -> Result<Option<Claimed>, Reject> {
    let Some(key) = headers.get(HEADER) else { return Ok(None) };
    if key.is_empty() || key.len() > MAX_BYTES {
        let message = format!("the header `Idempotency-Key` must have 1 to {MAX_BYTES} bytes");
        return Err(Reject::invalid(HEADER, message).code("invalid_value"));
    }
    let (conversations, tenant) = (api.writable(caller)?.clone(), caller.tenant.clone());
    let key_hash = blake3::hash(key.as_bytes()).to_hex().to_string();
    let fingerprint = blake3::hash(body).to_hex().to_string();
    let claim = conversations.claim(&tenant, route, &key_hash, &fingerprint, unique).await;
    let (unique, new) = match claim.map_err(|error| store_failed(&error))? {
        Claim::New => (unique.to_owned(), true),
        Claim::Same(unique) => (unique, false),
        Claim::Other => {
            let message = "this `Idempotency-Key` came with another body before; use a new key for a new request";
            return Err(Reject::new(RejectKind::Conflict, Fault::Client, message).code("idempotency_key_reused"));
        }
    };
    Ok(Some(Claimed { unique, new, conversations, tenant, route, key_hash }))
}
