//! The open generations of this process, and the thread that writes down how far they are.

use crate::budget::{Budgets, Payer, SetAside};
use crate::charge::Charge;
use crate::entry::{Alert, Entry, Opening, Record};
use crate::error::LedgerError;
use crate::journal::Journal;
use crate::price::{Price, Prices};
use crate::recover;
use crate::segment;
use crate::tally::{Tally, Tokens};
use metrics::{counter, gauge};
use parking_lot::{Mutex, RwLock};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tidegate_types::clock::unix_ms;
use tidegate_types::{Fault, Reject, RejectKind};

/// Who generates what, for the books.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Who {
    /// Names the generation; no other of any process has it.
    pub generation: String,
    /// The request's id.
    pub request_id: String,
    /// Who pays.
    pub tenant: String,
    /// For which project, where it is not the tenant's own.
    pub project: Option<String>,
    /// With which key.
    pub key_name: String,
    /// For whom, where the caller says.
    pub end_user: Option<String>,
}

impl Who {
    fn pays(&self) -> Payer<'_> {
        Payer { tenant: &self.tenant, project: self.project.as_deref(), key: &self.key_name }
    }
}

/// All that is open, and where it is written.
#[derive(Debug)]
pub struct Ledger {
    journal: Arc<Journal>,
    prices: RwLock<Arc<Prices>>,
    budgets: Mutex<Budgets>,
    open: Mutex<HashMap<u64, Open>>,
    next: AtomicU64,
    /// Ends and alerts that the disk had no room for. No more ends than were open: while there are some, nothing new
    /// begins; and of each budget no more alerts than it has bounds.
    unwritten: Mutex<Vec<Record>>,
    full: AtomicBool,
    /// What was written could not be made to last.
    unsynced: AtomicBool,
}

/// A generation whose beginning is written and whose end is not.
#[derive(Debug)]
struct Open {
    tally: Arc<Tally>,
    marked: Tokens,
    /// How many calls the last mark has.
    marked_calls: u64,
    /// The file that has its beginning. It stays until the end is written: a crash before that bills what the marks say.
    segment: u64,
    /// No mark follows its end.
    has_ended: bool,
}

impl Open {
    /// What the marks that were written do not say yet.
    fn encode_marks(&self, number: u64, now: (Tokens, u64), bytes: &mut Vec<u8>) -> Result<(), LedgerError> {
        let (tokens, num_calls) = now;
        if tokens != self.marked {
            segment::encode(&Record::Mark(number, tokens), bytes)?;
        }
        if num_calls != self.marked_calls {
            let calls = Record::MarkCalls(number, self.tally.calls());
            if let Err(error) = segment::encode(&calls, bytes) {
                tracing::error!("the calls of a generation are not written down before its end: {error}");
            }
        }
        Ok(())
    }
}

/// The number of no generation.
const NOBODY: u64 = 0;
/// Marks are written this often: what a crash may lose of a running generation.
const MARK: Duration = Duration::from_millis(50);
/// What was written is made to survive a loss of power this often. A disk that is busy takes longer for it than a mark may
/// wait, so that a thread of its own does it.
const SYNC: Duration = Duration::from_millis(100);

impl Ledger {
    /// Settles what a crash left in `journal`, and begins to write down what runs.
    pub fn start(journal: Journal, prices: Prices, budgets: Budgets) -> Result<Arc<Self>, LedgerError> {
        let recovered = recover::settle_left(&journal, unix_ms())?;
        if recovered > 0 {
            counter!("tidegate_ledger_recovered_total").increment(recovered as u64);
            tracing::warn!(recovered, "settled what the last run left open, as its last marks say");
        }
        let ledger = Arc::new(Self {
            journal: Arc::new(journal),
            prices: RwLock::new(Arc::new(prices)),
            budgets: Mutex::new(budgets),
            open: Mutex::default(),
            next: AtomicU64::new(1),
            unwritten: Mutex::default(),
            full: AtomicBool::new(false),
            unsynced: AtomicBool::new(false),
        });
        each("tidegate-ledger", MARK, &ledger, Self::tick)?;
        each("tidegate-sync", SYNC, &ledger, Self::sync)?;
        Ok(ledger)
    }

    /// Follows one generation. Nothing is written before its first [`Charge::reserve`].
    pub fn follow(self: &Arc<Self>, who: Who) -> Charge {
        Charge::new(Arc::clone(self), who)
    }

    /// Other prices and budgets from now on; what is open keeps the price that it began with, and what was set aside for
    /// it.
    pub fn replace(&self, prices: Prices, mut budgets: Budgets) {
        *self.prices.write() = Arc::new(prices);
        let mut current = self.budgets.lock();
        let alerts = budgets.go_on_from(std::mem::take(&mut current), unix_ms());
        *current = budgets;
        drop(current);
        self.alert(alerts);
    }

    /// What is set aside from budgets for generations that run here.
    pub fn set_aside(&self) -> Vec<SetAside> {
        self.budgets.lock().set_aside()
    }

    /// What other gateways have set aside now, from budgets that they share with this one.
    pub fn set_aside_elsewhere(&self, all: &[SetAside]) {
        self.budgets.lock().set_aside_elsewhere(all);
    }

    /// The journal.
    pub(crate) fn journal(&self) -> &Arc<Journal> {
        &self.journal
    }

    /// Generations that have begun and not ended.
    pub fn num_open(&self) -> usize {
        self.open.lock().values().filter(|open| !open.has_ended).count()
    }

    /// Whether the disk takes what is to be kept; the error says what is missing.
    pub fn health(&self) -> Result<(), String> {
        if self.full.load(Ordering::Relaxed) {
            return Err("the journal cannot be written; is the disk full?".into());
        }
        Ok(())
    }

    pub(crate) fn price(&self, model: &str) -> Price {
        self.prices.read().of(model)
    }

    /// What everything costs now.
    pub fn prices(&self) -> Arc<Prices> {
        Arc::clone(&self.prices.read())
    }

    pub(crate) fn oldest_open_segment(&self) -> Option<u64> {
        self.open.lock().values().map(|open| open.segment).min()
    }

    /// Sets money aside, or says why that is not allowed.
    pub(crate) fn reserve(&self, who: &Who, amount: u64) -> Result<(), Reject> {
        let allowed = self.budgets.lock().reserve(&who.pays(), amount, unix_ms());
        allowed.map_err(|mut exceeded| {
            self.alert(exceeded.alert.take().map(|alert| *alert).into_iter().collect());
            counter!("tidegate_budget_refusals_total", "scope" => exceeded.scope, "window" => exceeded.window)
                .increment(1);
            let (scope, name, window) = (exceeded.scope, &exceeded.name, exceeded.window);
            let message = format!(
                "the {scope} `{name}` may spend {} in a {window} and has spent or set aside {}; this request may cost {}, \
                 so lower its `max_tokens`, wait for the next {window}, or ask the operator for more",
                money(exceeded.limit), money(exceeded.spent), money(amount)
            );
            let seconds = u32::try_from(exceeded.resets_s).unwrap_or(u32::MAX);
            let reject = Reject::new(RejectKind::RateLimited, Fault::Client, message).code("insufficient_quota");
            Reject { retry_after_s: Some(seconds), ..reject }
        })
    }

    /// Gives back what was set aside and was not used.
    pub(crate) fn release(&self, who: &Who, reserved: u64) {
        let alerts = self.budgets.lock().settle(&who.pays(), reserved, 0, unix_ms());
        self.alert(alerts);
    }

    /// Writes that a generation begins; gives its number.
    pub(crate) fn open(&self, number: Option<u64>, opening: &Opening, tally: &Arc<Tally>) -> Result<u64, Reject> {
        let number = number.unwrap_or_else(|| self.next.fetch_add(1, Ordering::Relaxed));
        let full = self.full.load(Ordering::Relaxed);
        let written = if full { None } else { Some(self.write(&[Record::Open(number, opening.clone())])) };
        match written {
            Some(Err(error @ LedgerError::TooLong { .. })) => Err(Reject::internal(Fault::Operator, error.to_string())),
            Some(Ok(segment)) => {
                let (tally, marked) = (Arc::clone(tally), Tokens::default());
                let open = Open { tally, marked, marked_calls: 0, segment, has_ended: false };
                self.open.lock().insert(number, open);
                Ok(number)
            }
            failed => {
                let cause = failed.and_then(Result::err).map(|error| error.to_string());
                if let Some(cause) = &cause {
                    tracing::error!("usage cannot be written down; nothing new begins: {cause}");
                    self.full.store(true, Ordering::Relaxed);
                }
                let message = "the server cannot write down what is used: its disk is full or fails; try again later";
                Err(Reject::unavailable(Fault::Operator, message, 5)
                    .code("storage_full")
                    .because(cause.unwrap_or_default()))
            }
        }
    }

    /// Writes that a generation ended.
    pub(crate) fn end(&self, who: &Who, number: u64, entry: Entry, reserved: u64) {
        let (amount, now_ms) = (entry.amount(), entry.ended_ms);
        let mut budgets = self.budgets.lock();
        let alerts = budgets.settle(&who.pays(), reserved, amount, now_ms);
        drop(budgets);
        if let Some(open) = self.open.lock().get_mut(&number) {
            open.has_ended = true;
        }
        self.keep(vec![Record::End(number, entry)]);
        self.alert(alerts);
    }

    /// Tells of bounds that were reached.
    fn alert(&self, alerts: Vec<Alert>) {
        alerts.iter().for_each(tell);
        if !alerts.is_empty() {
            self.keep(alerts.into_iter().map(Record::Alert).collect());
        }
    }

    /// Writes what must not be lost; what the disk has no room for waits.
    fn keep(&self, records: Vec<Record>) {
        match self.write(&records) {
            Ok(_) => self.close(&records),
            // It would not be shorter later.
            Err(error @ LedgerError::TooLong { .. }) => {
                tracing::error!("an end is not written down: {error}");
                self.close(&records);
            }
            Err(error) => {
                tracing::error!("an end waits in memory until the journal can be written: {error}");
                self.full.store(true, Ordering::Relaxed);
                self.unwritten.lock().extend(records);
            }
        }
    }

    /// Their ends need nothing more of the files with their beginnings.
    fn close(&self, ends: &[Record]) {
        let mut open = self.open.lock();
        for record in ends {
            if let Record::End(number, _) = record {
                open.remove(number);
            }
        }
    }

    fn write(&self, records: &[Record]) -> Result<u64, LedgerError> {
        let mut bytes = Vec::with_capacity(records.len() * 320);
        for record in records {
            segment::encode(record, &mut bytes)?;
        }
        self.journal.append(&bytes)
    }

    /// How far each open generation is, where that has changed.
    fn mark(&self) -> Result<(), LedgerError> {
        let mut bytes = Vec::new();
        let mut open = self.open.lock();
        let mut marks = Vec::new();
        for (number, open) in open.iter_mut().filter(|(_, open)| !open.has_ended) {
            let now = (open.tally.tokens(), open.tally.num_calls());
            open.encode_marks(*number, now, &mut bytes)?;
            marks.push((open, now));
        }
        gauge!("tidegate_ledger_open").set(marks.len() as f64);
        // Under the lock, so that no end overtakes its marks.
        if !bytes.is_empty() {
            self.journal.append(&bytes)?;
        }
        // Not before they are written: what could not be is tried again.
        for (open, now) in marks {
            (open.marked, open.marked_calls) = now;
        }
        Ok(())
    }

    /// Writes the ends that waited.
    fn retry(&self) -> Result<(), LedgerError> {
        let mut unwritten = self.unwritten.lock();
        if !unwritten.is_empty() {
            self.write(&unwritten)?;
            self.close(&unwritten);
            unwritten.clear();
        }
        Ok(())
    }

    /// Writes everything down, for a stop.
    pub fn flush(&self) -> Result<(), LedgerError> {
        self.retry()?;
        self.mark()?;
        self.journal.sync()
    }

    /// Writes something that means nothing, while nothing new may begin: there is no other way to know of room.
    fn probe(&self) -> Result<(), LedgerError> {
        if !self.full.load(Ordering::Relaxed) {
            return Ok(());
        }
        self.write(&[Record::Mark(NOBODY, Tokens::default())]).map(drop)
    }

    fn tick(&self) {
        let outcome = self.probe().and_then(|()| self.retry()).and_then(|()| self.mark());
        let is_full = outcome.is_err() || self.unsynced.load(Ordering::Relaxed);
        let was_full = self.full.swap(is_full, Ordering::Relaxed);
        match outcome {
            Err(error) if !was_full => tracing::error!("the journal cannot be written; nothing new begins: {error}"),
            Ok(()) if was_full && !is_full => tracing::info!("the journal can be written again"),
            _ => {}
        }
    }

    fn sync(&self) {
        let outcome = self.journal.sync();
        let was_unsynced = self.unsynced.swap(outcome.is_err(), Ordering::Relaxed);
        if let Err(error) = outcome
            && !was_unsynced
        {
            tracing::error!("the journal does not reach the disk; nothing new begins: {error}");
        }
    }
}

/// Has a thread of this name do something time and again, for as long as there is a ledger.
fn each(name: &str, pause: Duration, ledger: &Arc<Ledger>, what: fn(&Ledger)) -> Result<(), LedgerError> {
    let ledger = Arc::downgrade(ledger);
    let work = move || {
        loop {
            std::thread::sleep(pause);
            let Some(ledger) = Weak::upgrade(&ledger) else { return };
            what(&ledger);
        }
    };
    std::thread::Builder::new().name(name.into()).spawn(work).map_err(LedgerError::Thread).map(drop)
}

fn tell(alert: &Alert) {
    counter!("tidegate_budget_alerts_total", "scope" => alert.scope.clone(), "bound" => alert.bound.clone())
        .increment(1);
    let (spent, limit) = (money(alert.spent), money(alert.limit));
    tracing::warn!(
        scope = alert.scope,
        name = alert.name,
        window = alert.window,
        bound = alert.bound,
        spent,
        limit,
        "a budget has reached its bound"
    );
}

/// In whole units of the currency, as people write it.
fn money(billionths: u64) -> String {
    let (units, rest) = (billionths / 1_000_000_000, billionths % 1_000_000_000);
    let mut digits = format!("{rest:09}");
    while digits.len() > 2 && digits.ends_with('0') {
        digits.pop();
    }
    format!("{units}.{digits}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn money_is_written_as_people_do() {
        assert_eq!(money(0), "0.00");
        assert_eq!(money(12_500_000_000), "12.50");
        assert_eq!(money(150), "0.00000015");
    }
}
