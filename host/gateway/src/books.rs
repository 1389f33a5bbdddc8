//! The books of a running server: the store and the ledger that the config asks for, and what drives them.

mod events;
mod kafka;
mod nats;
mod webhook;

pub(crate) use events::check as check_events;

use crate::config::{Config, EgressConfig, StoreConfig, project_id};
use anyhow::Context;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidegate_ledger::{Budgets, Drain, Journal, JournalLimits, Ledger, SetAside};
use tidegate_shared::Board;
use tidegate_store::{Db, Holder, Place, Usage, UsageSink};
use tidegate_types::clock::unix_ms;
use tokio_util::task::AbortOnDropHandle;

/// Open books.
pub(crate) struct Books {
    pub(crate) ledger: Arc<Ledger>,
    pub(crate) db: Db,
    /// What amounts of money are in.
    pub(crate) currency: String,
    /// Whether other gateways may write to the same database.
    pub(crate) is_shared: bool,
    drain: Arc<Drain<UsageSink>>,
    work: Vec<AbortOnDropHandle<()>>,
}

/// For the database to take something of what a crash left in the journal, before budgets are read from it.
const CATCH_UP: Duration = Duration::from_secs(10);
/// For what the last answers cost, when the server stops. What is not taken then waits for the next start.
const LAST_ENTRIES: Duration = Duration::from_secs(2);
/// For statements that still run when the server stops. Some connection may be dead without a word.
const CLOSING: Duration = Duration::from_secs(5);

impl Books {
    /// Opens what `config` asks for; nothing where it has no `[store]`.
    pub(crate) async fn open(config: &Config) -> anyhow::Result<Option<Self>> {
        let Some(store) = &config.store else { return Ok(None) };
        let db = Db::open(&store.place()?).await.context("the store cannot be opened")?;
        let prices = config.prices()?;
        let journal = store.journal();
        let opening = move || {
            let journal = Journal::open(&journal, JournalLimits::default())?;
            Ledger::start(journal, prices, Budgets::default())
        };
        let ledger = tokio::task::spawn_blocking(opening).await.context("opening the journal panicked")??;
        let sink = UsageSink::new(db.clone(), store.events.is_some());
        let drain = Arc::new(Drain::new(Arc::clone(&ledger), sink));
        if !drain.catch_up(CATCH_UP).await {
            anyhow::bail!(
                "the store takes nothing from the journal in {}; budgets would not be known",
                store.journal().display()
            );
        }
        let mut books = Self {
            ledger,
            db,
            currency: store.currency.clone(),
            is_shared: store.is_shared(),
            drain,
            work: Vec::new(),
        };
        books.replace(config).await?;
        books.begin(store, &config.egress).await?;
        Ok(Some(books))
    }

    /// What plugins know callers by is made with it, at every gateway with this store and from every start.
    pub(crate) async fn pseudonym_key(&self) -> anyhow::Result<[u8; 32]> {
        let mut fresh = [0; 32];
        getrandom::fill(&mut fresh).context("this machine gives no random numbers")?;
        let fresh = blake3::Hash::from_bytes(fresh).to_hex();
        let key = self.db.lasting_key("pseudonyms", &fresh).await?;
        Ok(blake3::Hash::from_hex(&key).context("the store's key for pseudonyms is none")?.into())
    }

    /// Takes prices and budgets from `config`, with what is spent of them.
    pub(crate) async fn replace(&self, config: &Config) -> anyhow::Result<()> {
        let usage = Usage::new(self.db.clone());
        let now = unix_ms();
        let (day, month) = tidegate_ledger::Budgets::window_starts_ms(now);
        let mut budgets = Budgets::default();
        for (name, tenant) in &config.tenants {
            if let Some(budget) = tenant.budget {
                let spent = usage.spent(Holder::Tenant(name), day, month).await?;
                budgets.of_tenant(name, budget.to_budget(name)?, spent, now);
            }
            for (project, terms) in &tenant.projects {
                if let Some(budget) = terms.budget {
                    let id = project_id(name, project);
                    let spent = usage.spent(Holder::Project(id.as_str()), day, month).await?;
                    budgets.of_project(id.as_str(), budget.to_budget(project)?, spent, now);
                }
            }
        }
        for key in &config.keys {
            if let Some(budget) = key.budget {
                let spent = usage.spent(Holder::Key(&key.name), day, month).await?;
                budgets.of_key(&key.name, budget.to_budget(&key.name)?, spent, now);
            }
        }
        self.ledger.replace(config.prices()?, budgets);
        Ok(())
    }

    async fn begin(&mut self, store: &StoreConfig, egress: &EgressConfig) -> anyhow::Result<()> {
        let drain = Arc::clone(&self.drain);
        self.work.push(AbortOnDropHandle::new(tokio::spawn(async move { drain.run().await })));
        if let Some(events) = &store.events {
            let sender = events::Sender::new(events, egress, self.db.clone()).await?;
            self.work.push(AbortOnDropHandle::new(tokio::spawn(sender.run())));
        }
        Ok(())
    }

    /// One line for the operator.
    pub(crate) fn fact(store: &StoreConfig) -> String {
        match store.place() {
            Ok(Place::Postgres(_)) => format!("store     Postgres, journal in {}", store.path.display()),
            _ => format!("store     SQLite in {}", store.path.display()),
        }
    }

    /// Writes down what is left and closes the store.
    pub(crate) async fn close(&self) {
        for work in &self.work {
            work.abort();
        }
        if let Err(error) = self.ledger.flush() {
            tracing::error!("what was used is not all on disk: {error}");
        }
        let last = self.drain.catch_up(LAST_ENTRIES);
        if !tokio::time::timeout(LAST_ENTRIES, last).await.unwrap_or(false) {
            tracing::warn!(
                "the database has not taken all that was used; the journal keeps the rest for the next start"
            );
        }
        if tokio::time::timeout(CLOSING, self.db.close()).await.is_err() {
            tracing::warn!("connections to the database have not ended in {} s; they are left", CLOSING.as_secs());
        }
    }
}

/// How often gateways tell each other what they have set aside.
const TELLING: Duration = Duration::from_millis(500);

/// Tells other gateways what is set aside here, and takes what they have set aside, for ever.
pub(crate) async fn tell_set_aside(ledger: Arc<Ledger>, board: Board) {
    let mut heard = Instant::now();
    loop {
        tokio::time::sleep(TELLING).await;
        let note = serde_json::to_string(&ledger.set_aside()).unwrap_or_default();
        let others = board.post("set-aside", &note).await;
        if others.is_some() {
            heard = Instant::now();
        }
        if let Some(all) = set_aside_by(others, heard.elapsed(), board.lease()) {
            ledger.set_aside_elsewhere(&all);
        }
    }
}

/// What others have set aside. While they cannot be asked, what they said last counts (`None`), for as long as a note of theirs
/// would be there: what they set aside for answers that ended long ago would keep requests from a budget until its day is over.
fn set_aside_by(others: Option<Vec<String>>, silent: Duration, lease: Duration) -> Option<Vec<SetAside>> {
    let others = others.or_else(|| (silent >= lease).then(Vec::new))?;
    Some(others.iter().flat_map(|note| serde_json::from_str::<Vec<SetAside>>(note).unwrap_or_default()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_others_have_set_aside_counts_for_a_lease_where_they_are_not_heard() {
        let (note, lease) = (r#"[{"scope":"key","name":"k","amount":7}]"#, Duration::from_secs(10));
        let heard = set_aside_by(Some(vec![note.into()]), Duration::ZERO, lease);
        assert_eq!(heard.map(|all| all.len()), Some(1));
        assert!(set_aside_by(None, lease / 2, lease).is_none(), "it stays as it is");
        assert_eq!(set_aside_by(None, lease, lease).map(|all| all.len()), Some(0));
    }
}
