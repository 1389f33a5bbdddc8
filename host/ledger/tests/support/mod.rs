//! A ledger with a sink in memory, and what a crash leaves.

// A failure here is the failure of the test that called.
#![allow(clippy::unwrap_used)]
#![allow(dead_code, reason = "each file of tests takes what it needs of it")]

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tidegate_ledger::{
    Batch, BoxFuture, Budgets, CallPrices, Charge, Drain, Entry, Event, Journal, JournalLimits, Ledger, Position,
    Price, Prices, Sink, Who,
};

/// A sink in memory that fails as it is told: before it keeps a batch, or after.
#[derive(Clone, Default)]
pub struct Shelf(pub Arc<Mutex<Kept>>);

#[derive(Default)]
pub struct Kept {
    pub events: Vec<Event>,
    /// For each journal, by its id.
    pub behind: BTreeMap<String, Position>,
    pub failures: Vec<Failure>,
    /// What each batch takes.
    pub pause: Duration,
}

#[derive(Clone, Copy, Debug)]
pub enum Failure {
    Before,
    After,
}

impl Sink for Shelf {
    type Error = &'static str;

    fn position(&self, journal: &str) -> BoxFuture<'_, Result<Position, &'static str>> {
        let known = self.0.lock().behind.get(journal).copied().unwrap_or_default();
        Box::pin(async move { Ok(known) })
    }

    fn commit(&self, journal: &str, batch: Batch) -> BoxFuture<'_, Result<(), &'static str>> {
        let journal = journal.to_owned();
        Box::pin(async move {
            let pause = self.0.lock().pause;
            tokio::time::sleep(pause).await;
            let mut kept = self.0.lock();
            let failure = kept.failures.pop();
            if let Some(Failure::Before) = failure {
                return Err("down");
            }
            kept.events.extend(batch.events);
            kept.behind.insert(journal, batch.behind);
            if failure.is_some() { Err("the answer was lost") } else { Ok(()) }
        })
    }
}

impl Shelf {
    pub fn entries(&self) -> Vec<Entry> {
        let of = |event: &Event| match event {
            Event::Used(entry) => Some(entry.clone()),
            Event::Alert(_) => None,
        };
        self.0.lock().events.iter().filter_map(of).collect()
    }

    pub fn outputs(&self) -> BTreeMap<String, (u64, String)> {
        let entries = self.entries();
        let count = entries.len();
        let by_name: BTreeMap<_, _> =
            entries.into_iter().map(|entry| (entry.opening.generation, (entry.tokens.output, entry.outcome))).collect();
        assert_eq!(by_name.len(), count, "a generation was billed twice");
        by_name
    }
}

pub fn ledger(folder: &Path, segment_bytes: u64, budgets: Budgets) -> Arc<Ledger> {
    let limits = JournalLimits { segment_bytes, ..JournalLimits::default() };
    Ledger::start(Journal::open(folder, limits).unwrap(), prices(), budgets).unwrap()
}

/// A billionth for each token of an answer, and more for calls.
pub fn prices() -> Prices {
    let models = [("m".to_owned(), Price { input: 0, cached: 0, output: 1_000_000 })].into();
    let calls = CallPrices {
        tools: [("web".to_owned(), 20), ("web/search".to_owned(), 50)].into(),
        retrieval: [("library".to_owned(), 30)].into(),
    };
    Prices { models, calls }
}

pub fn charge(ledger: &Arc<Ledger>, generation: &str) -> Charge {
    charge_of(ledger, generation, None)
}

pub fn charge_of(ledger: &Arc<Ledger>, generation: &str, end_user: Option<String>) -> Charge {
    ledger.follow(Who {
        generation: generation.into(),
        request_id: "r".into(),
        project: None,
        tenant: "t".into(),
        key_name: "k".into(),
        end_user,
    })
}

pub async fn drained(ledger: &Arc<Ledger>, shelf: &Shelf) -> bool {
    Drain::new(Arc::clone(ledger), shelf.clone()).catch_up(Duration::from_secs(20)).await
}

/// A copy of what a process that dies now leaves behind.
pub fn crash(folder: &Path) -> tempfile::TempDir {
    let copy = tempfile::tempdir().unwrap();
    for file in std::fs::read_dir(folder).unwrap() {
        let file = file.unwrap();
        std::fs::copy(file.path(), copy.path().join(file.file_name())).unwrap();
    }
    copy
}
