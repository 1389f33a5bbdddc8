//! What is kept of conversations, and tidied while the server runs.

use crate::config::{Config, StoreConfig};
use anyhow::Context;
use std::time::Duration;
use tidegate_api::{Behind, Kept};
use tidegate_store::conversations::ago_ms;
use tidegate_store::{Conversations, Db};
use tidegate_types::{Fault, Reject, RejectKind};
use tokio::task::JoinHandle;

/// How often what was deleted long enough ago is removed.
const TIDYING: Duration = Duration::from_secs(600);

/// How long a gateway may be silent before another makes what it has begun; longer than clocks differ.
const LEASE: Duration = Duration::from_secs(30);

/// Keeps conversations in a database.
pub(crate) struct Keeping {
    kept: Kept,
    shared: bool,
    purge_after: Duration,
}

impl Keeping {
    /// What the config says of it, in this database.
    pub(crate) fn new(config: &Config, db: Db) -> anyhow::Result<Self> {
        // Of this run: what the one before has begun is nobody's.
        let name = getrandom::u64().context("this machine gives no random numbers")?;
        let store = config.store.as_ref();
        let behind = store.map_or_else(Behind::default, |store| Behind {
            titles: store.titles.clone(),
            summaries: store.summaries.clone(),
        });
        Ok(Self {
            kept: Kept { conversations: Conversations::of_gateway(db, &format!("{name:016x}")), behind },
            shared: store.is_some_and(StoreConfig::is_shared),
            purge_after: store.map(StoreConfig::purge_after).unwrap_or_default(),
        })
    }

    /// Says to the others that this gateway is there, again and again, where there may be others.
    pub(crate) async fn stay(&self) -> Option<JoinHandle<()>> {
        if !self.shared {
            return None;
        }
        let conversations = self.kept.conversations.clone();
        say_so(&conversations).await;
        Some(tokio::spawn(async move {
            loop {
                tokio::time::sleep(LEASE / 6).await;
                say_so(&conversations).await;
            }
        }))
    }

    /// For the HTTP side.
    pub(crate) fn kept(&self) -> Kept {
        self.kept.clone()
    }

    /// Ends what a server before this one has left unended, deletes what archived projects have, then removes what was
    /// deleted, again and again.
    pub(crate) fn tidy(&self) -> JoinHandle<()> {
        let (conversations, purge_after) = (self.kept.conversations.clone(), self.purge_after);
        tokio::spawn(async move {
            let tidying = async {
                loop {
                    delete_archived(&conversations).await;
                    purge(&conversations, ago_ms(purge_after)).await;
                    tokio::time::sleep(TIDYING).await;
                }
            };
            let ((), ()) = tokio::join!(close_all_abandoned(&conversations), tidying);
        })
    }
}

/// As often as a gateway may end that others take for one that is there.
async fn close_all_abandoned(conversations: &Conversations) {
    loop {
        match close_abandoned(conversations).await {
            // There may be more than one look gives.
            Ok(1..) => continue,
            Ok(0) => {}
            Err(error) => tracing::warn!("responses that were cut off stay as they are for now: {error}"),
        }
        tokio::time::sleep(LEASE).await;
    }
}

async fn delete_archived(conversations: &Conversations) {
    match conversations.delete_archived().await {
        Ok(0) => {}
        Ok(deleted) => tracing::info!(deleted, "conversations of archived projects were deleted"),
        Err(error) => tracing::warn!("conversations of archived projects stay for now: {error}"),
    }
}

/// Removes what was deleted before, and then what is left of it in the files.
async fn purge(conversations: &Conversations, before_ms: i64) {
    match conversations.purge(before_ms).await {
        Ok(purged) if purged != Default::default() => tracing::info!(?purged, "removed what was deleted"),
        Ok(_) => {}
        Err(error) => tracing::warn!("what was deleted stays for now: {error}"),
    }
    if let Err(error) = conversations.wipe().await {
        tracing::warn!("what was removed is left in the store's files for now: {error}");
    }
}

async fn say_so(conversations: &Conversations) {
    if let Err(error) = conversations.stay(LEASE).await {
        tracing::warn!("the other gateways do not hear that this one is there: {error}");
    }
}

/// A response whose server is no more has failed, and says so. Gives how many did.
async fn close_abandoned(conversations: &Conversations) -> Result<usize, tidegate_store::StoreError> {
    let why = "the server was restarted while it made this response, or could not write what became of it; ask again";
    let reject = Reject::new(RejectKind::Unavailable, Fault::Operator, why).code("server_restarted");
    let mut closed = 0;
    for (tenant, id, body) in conversations.abandoned().await? {
        let failed = tidegate_wire::responses::failed_object(&body, &reject);
        if conversations.close_response(&tenant, &id, "failed", &failed).await? {
            closed += 1;
            tracing::warn!(response = id, %tenant, "it was cut off by a restart, and has failed");
        }
    }
    Ok(closed)
}
