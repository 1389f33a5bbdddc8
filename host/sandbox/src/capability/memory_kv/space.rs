//! One namespace: its entries, and which of them end first, so that what is over is found without a look at the others.

use super::{CapabilityError, KvRefusal, expiry};
use parking_lot::Mutex;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidegate_fair::{Owner, Places};

/// What an entry costs beside its key and value.
const ENTRY_BYTES: u64 = 64;
/// What one that ends costs beside that: its place among those that do, and a key that both places share.
pub(super) const END_BYTES: u64 = 64;

/// A number as decimal text.
pub(super) const MAX_NUMBER_BYTES: u64 = 20;

/// How large a namespace may be.
pub(super) struct Room<'a> {
    /// Its bytes before it changes, which are booked.
    pub(super) before: u64,
    pub(super) quota: u64,
    pub(super) owner: Owner,
    pub(super) held: &'a Mutex<Places>,
    /// Of all namespaces.
    pub(super) cap: u64,
}

impl Room<'_> {
    /// Whether all together leave room for so many bytes of it.
    fn is_left_for(&self, bytes: u64) -> bool {
        let grown = bytes.saturating_sub(self.before);
        grown == 0 || self.held.lock().has_room(&self.owner, grown as usize)
    }

    fn check(&self, bytes: u64) -> Result<(), KvRefusal<'static>> {
        if bytes > self.quota {
            return Err(KvRefusal::Quota(self.quota));
        }
        if self.is_left_for(bytes) { Ok(()) } else { Err(KvRefusal::Cap(self.cap)) }
    }
}

/// Invariant: `ends` has the key of each entry that ends, by when it does.
#[derive(Clone, Default)]
pub(super) struct Space {
    entries: HashMap<Arc<str>, Entry>,
    ends: BTreeSet<(Instant, Arc<str>)>,
    pub(super) bytes: u64,
}

#[derive(Clone)]
pub(super) struct Entry {
    pub(super) value: Vec<u8>,
    pub(super) expires: Option<Instant>,
}

impl Entry {
    fn is_over(&self, now: Instant) -> bool {
        self.expires.is_some_and(|at| at <= now)
    }
}

pub(super) fn cost(key: &str, entry: &Entry) -> u64 {
    let end = if entry.expires.is_some() { END_BYTES } else { 0 };
    (key.len() + entry.value.len()) as u64 + ENTRY_BYTES + end
}

impl Space {
    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub(super) fn get(&self, key: &str, now: Instant) -> Option<&Entry> {
        self.entries.get(key).filter(|entry| !entry.is_over(now))
    }

    pub(super) fn remove(&mut self, key: &str) {
        if let Some((key, entry)) = self.entries.remove_entry(key) {
            self.bytes -= cost(&key, &entry);
            if let Some(at) = entry.expires {
                self.ends.remove(&(at, key));
            }
        }
    }

    pub(super) fn put(
        &mut self,
        key: String,
        entry: Entry,
        room: &Room<'_>,
        now: Instant,
    ) -> Result<(), CapabilityError> {
        let replaced = self.entries.get(key.as_str()).map_or(0, |old| cost(&key, old));
        let added = cost(&key, &entry);
        if room.check(self.bytes - replaced + added).is_err() {
            self.sweep(now, &key);
            room.check(self.bytes - replaced + added)?;
        }
        self.remove(&key);
        self.bytes += added;
        let key = Arc::from(key);
        self.ends.extend(entry.expires.map(|at| (at, Arc::clone(&key))));
        self.entries.insert(key, entry);
        Ok(())
    }

    /// Removes what is over, but for `keep`, which is about to be replaced.
    pub(super) fn sweep(&mut self, now: Instant, keep: &str) {
        let mut kept = None;
        while let Some((at, key)) = self.ends.pop_first() {
            if at > now {
                self.ends.insert((at, key));
                break;
            } else if *key == *keep {
                kept = Some((at, key));
            } else if let Some(entry) = self.entries.remove(&key) {
                self.bytes -= cost(&key, &entry);
            }
        }
        self.ends.extend(kept);
    }

    pub(super) fn increment(
        &mut self,
        key: String,
        delta: i64,
        ttl: Option<Duration>,
        room: &Room<'_>,
        now: Instant,
    ) -> Result<i64, CapabilityError> {
        let (number, expires) = match self.get(&key, now) {
            Some(entry) => (parse(&key, &entry.value)?, entry.expires),
            None => (0, expiry(now, ttl)),
        };
        let sum = number.checked_add(delta).ok_or(KvRefusal::Overflow(&key, number, delta))?;
        self.put(key, Entry { value: sum.to_string().into_bytes(), expires }, room, now)?;
        Ok(sum)
    }
}

fn parse(key: &str, value: &[u8]) -> Result<i64, CapabilityError> {
    let number = std::str::from_utf8(value).ok().and_then(|text| text.parse().ok());
    number.ok_or_else(|| KvRefusal::NotANumber(key).into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slots::share_of;
    use tidegate_types::TenantId;

    /// Entries are put, replaced, counted, removed and swept as if each look were at all of them.
    #[test]
    fn what_ends_is_found_by_when_it_does_whatever_became_of_it() {
        let held = Mutex::new(Places::new(1 << 20));
        let room = Room { before: 0, quota: 2_000, owner: share_of(TenantId::new("a")), held: &held, cap: 1 << 20 };
        let (mut space, began, mut seed) = (Space::default(), Instant::now(), 1u64);
        for step in 0..20_000u64 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let (now, key) = (began + Duration::from_millis(step), format!("k{}", (seed >> 33) % 30));
            let ttl = Some(Duration::from_millis((seed >> 40) % 50)).filter(|_| !seed.is_multiple_of(3));
            match (seed >> 50) % 5 {
                0 => space.remove(&key),
                1 => space.sweep(now, &key),
                2 => drop(space.increment(key, 1, ttl, &room, now)),
                _ => {
                    let value = (step % 7 + 1).to_string().into_bytes();
                    drop(space.put(key, Entry { value, expires: expiry(now, ttl) }, &room, now));
                }
            }
            let ends: BTreeSet<(Instant, Arc<str>)> =
                space.entries.iter().filter_map(|(key, entry)| Some((entry.expires?, Arc::clone(key)))).collect();
            assert_eq!(space.ends, ends);
            assert_eq!(space.bytes, space.entries.iter().map(|(key, entry)| cost(key, entry)).sum::<u64>());
        }
        space.sweep(began + Duration::from_secs(60), "");
        assert!(space.ends.is_empty() && space.entries.values().all(|entry| entry.expires.is_none()));
    }
}
