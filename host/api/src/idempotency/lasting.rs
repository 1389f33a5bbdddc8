//! Requests that make something in the store: the store knows their keys, for a day, whatever becomes of this process. It
//! knows what was made by its name only, so that nothing of what callers write stays where it was deleted.

use super::{Asked, being_made, gone, reused};
use crate::answering::PAUSES;
use crate::backend::BoxFuture;
use crate::body::Response;
use crate::endpoints::{conversations, responses};
use crate::exchange::Exchange;
use crate::ids;
use crate::kept::store_failed;
use crate::routes::Route;
use std::sync::Arc;
use std::time::Duration;
use tidegate_store::conversations::Claim;
use tidegate_store::{Conversations, StoreError};
use tidegate_types::{Reject, RejectKind, TenantId};
use tracing::Instrument;

/// What is done with a key whose request was taken before this process knew it.
#[derive(Clone, Copy)]
enum Again {
    /// What it made is found by its name; whether another gateway is still at it says what is not there yet.
    Finds(fn(Exchange, String, bool) -> BoxFuture<'static, Result<Response, Reject>>),
    /// It is refused.
    Refuses,
}

/// Of paths where doing it again would make another; anywhere else it comes to the same, or nothing lasts.
fn again(path: &str) -> Option<Again> {
    match path {
        "/v1/responses" => Some(Again::Finds(|x, made, is_running| Box::pin(responses::again(x, made, is_running)))),
        "/v1/conversations" => Some(Again::Finds(|x, made, _| Box::pin(conversations::again(x, made)))),
        "/v1/conversations/{}/items"
        | "/v1/conversations/{}/items/{}/regenerate"
        | "/admin/keys/*"
        | "/v1/organization/projects" => Some(Again::Refuses),
        _ => None,
    }
}

/// A key that the store knows now.
pub(super) struct Claimed {
    conversations: Conversations,
    tenant: TenantId,
    route: &'static str,
    key_hash: String,
    /// What it stands for.
    object: String,
}

/// For a key to be free again before its client hears that the store could not say whether it was taken.
const PATIENCE: Duration = Duration::from_secs(1);

impl Claimed {
    /// Lets the same request be tried again, since this one has failed.
    pub(super) async fn release(&self) {
        let mut pauses = PAUSES.iter();
        while let Err(error) = self.conversations.release(&self.tenant, self.route, &self.key_hash, &self.object).await
        {
            match (&error, pauses.next()) {
                (StoreError::Unavailable(_), Some(pause)) => tokio::time::sleep(*pause).await,
                _ => {
                    tracing::warn!(tenant = %self.tenant, "an idempotency key stays with a request that failed: {error}");
                    return;
                }
            }
        }
    }

    /// Lets other gateways know that nothing more is made for it.
    pub(super) async fn done(&self) {
        if let Err(error) = self.conversations.done(&self.tenant, self.route, &self.key_hash).await {
            tracing::warn!(tenant = %self.tenant, "an idempotency key stays with a request that was done: {error}");
        }
    }
}

/// Handles a request, once for all gateways where what it makes lasts.
pub(super) async fn handle(
    route: &'static Route,
    mut exchange: Exchange,
    asked: &Asked,
) -> (Result<Response, Reject>, Option<Claimed>) {
    let api = Arc::clone(&exchange.api);
    let (Some(again), Ok(conversations)) = (again(route.path), api.writable(&exchange.caller)) else {
        return ((route.handler)(exchange).await, None);
    };
    let made = match ids::secret() {
        Ok(made) => made,
        Err(reject) => return (Err(reject), None),
    };
    let hex = |id: [u8; 32]| blake3::Hash::from_bytes(id).to_hex().to_string();
    let (tenant, key_hash) = (exchange.caller.owner().clone(), hex(asked.id));
    let claim: Result<Claim, StoreError> =
        conversations.claim(&tenant, route.path, &key_hash, &hex(asked.fingerprint), &made).await;
    let claimed = || Claimed {
        conversations: conversations.clone(),
        tenant: tenant.clone(),
        route: route.path,
        key_hash: key_hash.clone(),
        object: made.clone(),
    };
    match claim {
        Ok(Claim::New) => {
            let claimed = claimed();
            exchange.made = Some(made);
            ((route.handler)(exchange).await, Some(claimed))
        }
        Ok(Claim::Same { object, is_running }) => (found(again, exchange, object, is_running).await, None),
        Ok(Claim::Other) => (Err(reused()), None),
        Err(error) => {
            // The claim may be there all the same, where only its acknowledgement was lost: the key would stand for nothing.
            let claimed = claimed();
            let releasing = api.tasks.spawn(async move { claimed.release().await }.in_current_span());
            let _ = tokio::time::timeout(PATIENCE, releasing).await;
            (Err(store_failed(error)), None)
        }
    }
}

/// What was made; it may have been deleted since, or never have been made by a process that was killed. What another gateway
/// is at may not be there yet.
async fn found(again: Again, exchange: Exchange, made: String, is_running: bool) -> Result<Response, Reject> {
    let found = match again {
        Again::Finds(find) => find(exchange, made, is_running).await,
        Again::Refuses => Err(gone()),
    };
    let is_there = match (&found, again) {
        (Err(reject), Again::Finds(_)) => reject.kind != RejectKind::NotFound,
        (found, _) => found.is_ok(),
    };
    match is_there {
        true => found,
        false if is_running => Err(being_made()),
        false => Err(gone()),
    }
}
