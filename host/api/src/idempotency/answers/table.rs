//! The keys that are remembered, and in which order they are forgotten. Each change costs what a look-up in a tree does,
//! however many there are.

use super::shares::Shares;
use super::{Id, KEY_AGE, Waiting};
use std::collections::{BTreeMap, HashMap};
use std::time::Instant;
use tidegate_types::TenantId;

/// A key of nobody's weighs as many of a tenant's: anyone who reaches the server can make them.
const NOBODYS: usize = 1000;

#[derive(Default)]
pub(super) struct Table {
    pub(super) entries: HashMap<Id, Entry>,
    /// Keys whose requests have ended, the oldest first: all of them, and each tenant's.
    ended: BTreeMap<u64, Id>,
    ended_of: Shares<u64>,
    /// Those of them whose answers are kept, by the time that they are kept until; each tenant's by their bytes.
    kept: BTreeMap<(Instant, u64), Id>,
    kept_of: Shares<(Instant, u64)>,
    serial: u64,
}

pub(super) struct Entry {
    serial: u64,
    /// Empty for nobody.
    whose: TenantId,
    pub(super) fingerprint: Id,
    begun: Instant,
    pub(super) state: State,
}

pub(super) enum State {
    Runs(Waiting),
    Kept { waiting: Waiting, until: Instant },
    Gone,
}

impl Table {
    /// A request with a new key begins; gives what tells it from others with the same key.
    pub(super) fn begin(
        &mut self,
        id: Id,
        fingerprint: Id,
        whose: Option<&TenantId>,
        now: Instant,
        waiting: Waiting,
    ) -> u64 {
        self.serial += 1;
        let whose = whose.cloned().unwrap_or_else(|| TenantId::new(""));
        let entry = Entry { serial: self.serial, whose, fingerprint, begun: now, state: State::Runs(waiting) };
        self.entries.insert(id, entry);
        self.serial
    }

    /// Its answer is complete.
    pub(super) fn keep(&mut self, id: Id, serial: u64, waiting: Waiting, bytes: usize, until: Instant) {
        let Some(entry) = self.entries.get_mut(&id).filter(|entry| entry.serial == serial) else { return };
        entry.state = State::Kept { waiting, until };
        let weight = if entry.whose.as_str().is_empty() { NOBODYS } else { 1 };
        self.ended.insert(serial, id);
        self.ended_of.put(&entry.whose, serial, id, weight);
        self.kept.insert((until, serial), id);
        self.kept_of.put(&entry.whose, (until, serial), id, bytes);
    }

    /// Forgets answers until they have no more than `bytes`: of the tenant whose have the most, those first whose time is
    /// over first.
    pub(super) fn shrink(&mut self, bytes: usize) {
        while self.kept_of.weight() > bytes
            && let Some(((_, serial), id)) = self.kept_of.first_of_heaviest()
        {
            self.forget_answer(id, serial);
        }
    }

    /// Forgets keys that are a day old, and answers whose time is over. One that has run for a day is not forgotten while
    /// it runs.
    pub(super) fn expire(&mut self, now: Instant) {
        while let Some((&serial, &id)) = self.ended.first_key_value()
            && self.entries.get(&id).is_none_or(|entry| now.duration_since(entry.begun) >= KEY_AGE)
        {
            self.ended.remove(&serial);
            self.remove(id, serial);
        }
        while let Some((&(until, serial), &id)) = self.kept.first_key_value()
            && until <= now
        {
            self.forget_answer(id, serial);
        }
    }

    /// Forgets the oldest key of the tenant with the most, of those that do not run; whether there was one.
    pub(super) fn drop_oldest(&mut self) -> bool {
        let Some((serial, id)) = self.ended_of.first_of_heaviest() else { return false };
        self.remove(id, serial);
        true
    }

    pub(super) fn remove(&mut self, id: Id, serial: u64) {
        self.forget_answer(id, serial);
        if self.entries.get(&id).is_none_or(|entry| entry.serial != serial) {
            return;
        }
        if let Some(entry) = self.entries.remove(&id) {
            self.ended.remove(&serial);
            self.ended_of.take(&entry.whose, serial);
        }
    }

    /// The key stays.
    fn forget_answer(&mut self, id: Id, serial: u64) {
        let Some(entry) = self.entries.get_mut(&id).filter(|entry| entry.serial == serial) else { return };
        if let State::Kept { until, .. } = entry.state {
            entry.state = State::Gone;
            self.kept.remove(&(until, serial));
            self.kept_of.take(&entry.whose, (until, serial));
        }
    }

    /// Bytes of answers.
    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        self.kept_of.weight()
    }

    /// Entries, in each of the orders.
    #[cfg(test)]
    pub(super) fn sizes(&self) -> [usize; 3] {
        [self.entries.len(), self.ended.len(), self.kept.len()]
    }
}
