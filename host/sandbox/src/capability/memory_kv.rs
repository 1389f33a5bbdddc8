//! Key-value storage in memory: one lock per namespace, a quota per namespace and a cap over all. What is past its
//! time to live is absent at once, and is removed when room is needed, by whomever.

use super::{BoxFuture, CapabilityError, KvRefusal, KvStore, Namespace};
use parking_lot::{Mutex, RwLock};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// What an entry costs beside its key and value.
const ENTRY_BYTES: u64 = 64;

/// A number as decimal text.
const MAX_NUMBER_BYTES: u64 = 20;

/// All namespaces are searched for what is over no more often.
const SWEEP_EVERY: Duration = Duration::from_secs(1);

/// Storage of this process; lost when it ends.
pub struct MemoryKv {
    spaces: RwLock<HashMap<Namespace, Arc<Mutex<Space>>>>,
    used: AtomicU64,
    cap: u64,
    swept: Mutex<Option<Instant>>,
    passed_ms: Arc<AtomicU64>,
}

impl MemoryKv {
    /// Storage of at most `cap` bytes over all namespaces.
    pub fn new(cap: u64) -> Self {
        Self::with_passed(cap, Arc::default())
    }

    /// The same, where so much time passes beside the machine's: for tests of plugins ([`crate::Fixed`]).
    pub fn with_passed(cap: u64, passed_ms: Arc<AtomicU64>) -> Self {
        Self { spaces: RwLock::default(), used: AtomicU64::new(0), cap, swept: Mutex::default(), passed_ms }
    }

    fn now(&self) -> Instant {
        Instant::now() + Duration::from_millis(self.passed_ms.load(Ordering::Relaxed))
    }

    /// A namespace that something was put into: who looks for what is not there leaves nothing behind.
    fn known(&self, name: &Namespace) -> Option<Arc<Mutex<Space>>> {
        self.spaces.read().get(name).cloned()
    }

    fn space(&self, name: &Namespace) -> Arc<Mutex<Space>> {
        self.known(name).unwrap_or_else(|| self.spaces.write().entry(name.clone()).or_default().clone())
    }

    /// Runs a change that adds at most `wanted` bytes on a namespace, and books what it did to the total.
    fn change<T>(
        &self,
        name: &Namespace,
        quota: u64,
        wanted: u64,
        now: Instant,
        change: impl FnOnce(&mut Space, Room) -> Result<T, CapabilityError>,
    ) -> Result<T, CapabilityError> {
        let space = self.space(name);
        let mut space = space.lock();
        let before = space.bytes;
        let mut room = self.room(before, quota);
        if before + wanted > room.left_by_others && self.may_sweep(now) {
            self.sweep_others(now);
            room = self.room(before, quota);
        }
        let done = change(&mut space, room);
        // Two namespaces that grow at once may pass the cap by one value each; the next one is refused.
        if space.bytes >= before {
            self.used.fetch_add(space.bytes - before, Ordering::Relaxed);
        } else {
            self.used.fetch_sub(before - space.bytes, Ordering::Relaxed);
        }
        done
    }

    /// For a namespace that has so many bytes.
    fn room(&self, own: u64, quota: u64) -> Room {
        let others = self.used.load(Ordering::Relaxed).saturating_sub(own);
        Room { quota, left_by_others: self.cap.saturating_sub(others), cap: self.cap }
    }

    fn may_sweep(&self, now: Instant) -> bool {
        let mut swept = self.swept.lock();
        let may = swept.is_none_or(|last| now.saturating_duration_since(last) >= SWEEP_EVERY);
        if may {
            *swept = Some(now);
        }
        may
    }

    /// Removes what is over everywhere, and namespaces that are empty. One that is in use is passed over: nobody waits for
    /// two of them.
    fn sweep_others(&self, now: Instant) {
        self.spaces.write().retain(|_, space| {
            let in_use = Arc::strong_count(space) > 1;
            let Some(mut space) = space.try_lock() else { return true };
            let before = space.bytes;
            space.sweep(now, "");
            self.used.fetch_sub(before - space.bytes, Ordering::Relaxed);
            in_use || !space.entries.is_empty()
        });
    }
}

/// How large a namespace may be.
#[derive(Clone, Copy)]
struct Room {
    quota: u64,
    left_by_others: u64,
    /// Of all namespaces.
    cap: u64,
}

#[derive(Default)]
struct Space {
    entries: HashMap<String, Entry>,
    bytes: u64,
}

struct Entry {
    value: Vec<u8>,
    expires: Option<Instant>,
}

impl Entry {
    fn is_over(&self, now: Instant) -> bool {
        self.expires.is_some_and(|at| at <= now)
    }
}

fn cost(key: &str, value: &[u8]) -> u64 {
    (key.len() + value.len()) as u64 + ENTRY_BYTES
}

impl Space {
    fn get(&self, key: &str, now: Instant) -> Option<&Entry> {
        self.entries.get(key).filter(|entry| !entry.is_over(now))
    }

    fn remove(&mut self, key: &str) {
        if let Some(entry) = self.entries.remove(key) {
            self.bytes -= cost(key, &entry.value);
        }
    }

    fn put(&mut self, key: String, entry: Entry, room: Room, now: Instant) -> Result<(), CapabilityError> {
        let replaced = self.entries.get(&key).map_or(0, |old| cost(&key, &old.value));
        let added = cost(&key, &entry.value);
        let limit = room.quota.min(room.left_by_others);
        if self.bytes - replaced + added > limit {
            self.sweep(now, &key);
            if self.bytes - replaced + added > limit {
                return Err(full(room));
            }
        }
        self.bytes = self.bytes - replaced + added;
        self.entries.insert(key, entry);
        Ok(())
    }

    /// Removes what is over, but for `keep`, which is about to be replaced.
    fn sweep(&mut self, now: Instant, keep: &str) {
        let bytes = &mut self.bytes;
        self.entries.retain(|key, entry| {
            let stays = key == keep || !entry.is_over(now);
            if !stays {
                *bytes -= cost(key, &entry.value);
            }
            stays
        });
    }

    fn increment(
        &mut self,
        key: String,
        delta: i64,
        ttl: Option<Duration>,
        room: Room,
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

/// A time too far off to count is no end at all.
fn expiry(now: Instant, ttl: Option<Duration>) -> Option<Instant> {
    ttl.and_then(|ttl| now.checked_add(ttl))
}

fn full(room: Room) -> CapabilityError {
    let is_own = room.quota <= room.left_by_others;
    (if is_own { KvRefusal::Quota(room.quota) } else { KvRefusal::Cap(room.cap) }).into()
}

impl KvStore for MemoryKv {
    fn get_many<'a>(
        &'a self,
        space: &'a Namespace,
        keys: &'a [String],
        most: u64,
    ) -> BoxFuture<'a, Result<Vec<Option<Vec<u8>>>, CapabilityError>> {
        let Some(space) = self.known(space) else { return ready(Ok(vec![None; keys.len()])) };
        let space = space.lock();
        let now = self.now();
        let found = || keys.iter().map(|key| space.get(key, now));
        if found().flatten().map(|entry| entry.value.len() as u64).sum::<u64>() > most {
            return ready(Err(KvRefusal::TooMuch(most).into()));
        }
        ready(Ok(found().map(|entry| entry.map(|entry| entry.value.clone())).collect()))
    }

    fn set<'a>(
        &'a self,
        space: &'a Namespace,
        key: String,
        value: Vec<u8>,
        ttl: Option<Duration>,
        quota: u64,
    ) -> BoxFuture<'a, Result<(), CapabilityError>> {
        let now = self.now();
        let entry = Entry { value, expires: expiry(now, ttl) };
        let wanted = cost(&key, &entry.value);
        ready(self.change(space, quota, wanted, now, |space, room| space.put(key, entry, room, now)))
    }

    fn increment<'a>(
        &'a self,
        space: &'a Namespace,
        key: String,
        delta: i64,
        ttl: Option<Duration>,
        quota: u64,
    ) -> BoxFuture<'a, Result<i64, CapabilityError>> {
        let now = self.now();
        let wanted = cost(&key, &[]) + MAX_NUMBER_BYTES;
        ready(self.change(space, quota, wanted, now, |space, room| space.increment(key, delta, ttl, room, now)))
    }

    fn delete<'a>(&'a self, space: &'a Namespace, key: &'a str) -> BoxFuture<'a, Result<(), CapabilityError>> {
        if let Some(space) = self.known(space) {
            let mut space = space.lock();
            let before = space.bytes;
            space.remove(key);
            self.used.fetch_sub(before - space.bytes, Ordering::Relaxed);
        }
        ready(Ok(()))
    }
}

fn ready<'a, T: Send + 'a>(value: T) -> BoxFuture<'a, T> {
    Box::pin(std::future::ready(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOM: Room = Room { quota: 300, left_by_others: 1000, cap: 1000 };

    fn entry(value: &str, expires: Option<Instant>) -> Entry {
        Entry { value: value.into(), expires }
    }

    #[test]
    fn an_entry_is_absent_once_its_time_is_over() {
        let (mut space, now) = (Space::default(), Instant::now());
        let at = now + Duration::from_millis(5);
        space.put("a".into(), entry("1", Some(at)), ROOM, now).unwrap();
        assert!(space.get("a", now + Duration::from_millis(4)).is_some());
        assert!(space.get("a", at).is_none());
    }

    #[test]
    fn a_full_space_makes_room_from_what_is_over_and_else_refuses() {
        let (mut space, now) = (Space::default(), Instant::now());
        let later = now + Duration::from_secs(1);
        space.put("old".into(), entry(&"x".repeat(100), Some(later)), ROOM, now).unwrap();
        let refused = space.put("new".into(), entry(&"y".repeat(100), None), ROOM, now).unwrap_err();
        assert_eq!(refused, CapabilityError::Denied("the stage's 300 bytes of storage (`kv_kib`) are used up".into()));
        space.put("new".into(), entry(&"y".repeat(100), None), ROOM, later).unwrap();
        assert_eq!(space.bytes, cost("new", &[0; 100]));
    }

    #[test]
    fn replacing_and_removing_give_the_bytes_back() {
        let (mut space, now) = (Space::default(), Instant::now());
        space.put("a".into(), entry("long value", None), ROOM, now).unwrap();
        space.put("a".into(), entry("v", None), ROOM, now).unwrap();
        assert_eq!(space.bytes, cost("a", b"v"));
        space.remove("a");
        assert_eq!(space.bytes, 0);
    }

    #[test]
    fn a_counter_keeps_the_life_that_its_first_increment_gave_it() {
        let (mut space, now) = (Space::default(), Instant::now());
        let ttl = Some(Duration::from_secs(1));
        assert_eq!(space.increment("n".into(), 2, ttl, ROOM, now), Ok(2));
        let late = now + Duration::from_millis(900);
        assert_eq!(space.increment("n".into(), 3, ttl, ROOM, late), Ok(5));
        assert_eq!(space.increment("n".into(), 1, ttl, ROOM, now + Duration::from_secs(1)), Ok(1));
    }

    fn of(tenant: &str) -> Namespace {
        Namespace::of_tenant("p", tidegate_types::TenantId::new(tenant))
    }

    async fn fill(kv: &MemoryKv, tenant: &str, ttl: Option<Duration>) -> Result<(), CapabilityError> {
        kv.set(&of(tenant), "k".into(), vec![b'x'; 135], ttl, 1000).await
    }

    #[tokio::test]
    async fn what_is_over_makes_room_for_everybody() {
        let kv = MemoryKv::new(300);
        fill(&kv, "a", Some(Duration::from_millis(1))).await.unwrap();
        std::thread::sleep(Duration::from_millis(2));
        fill(&kv, "b", None).await.unwrap();
        assert!(kv.spaces.read().get(&of("a")).is_none(), "nothing is left of it");
        assert_eq!(kv.used.load(Ordering::Relaxed), 200);
        let full = fill(&kv, "c", None).await.unwrap_err();
        let why = "the 300 bytes of storage of all plugins (`plugins.kv_mib`) are used up";
        assert_eq!(full, CapabilityError::Denied(why.into()));
        assert_eq!(kv.get_many(&of("b"), &["k".into()], 200).await.unwrap(), [Some(vec![b'x'; 135])]);
    }

    #[tokio::test]
    async fn who_only_looks_or_removes_leaves_nothing_behind() {
        let kv = MemoryKv::new(1000);
        let keys = ["k".to_owned(), "l".to_owned()];
        assert_eq!(kv.get_many(&of("a"), &keys, 0).await.unwrap(), [None::<Vec<u8>>, None]);
        kv.delete(&of("a"), "k").await.unwrap();
        assert!(kv.spaces.read().is_empty());
        fill(&kv, "a", None).await.unwrap();
        kv.delete(&of("a"), "k").await.unwrap();
        assert_eq!(kv.used.load(Ordering::Relaxed), 0, "what it had is given back");
    }

    #[tokio::test]
    async fn more_than_may_be_brought_back_is_refused() {
        let kv = MemoryKv::new(1000);
        fill(&kv, "a", None).await.unwrap();
        let twice = ["k".to_owned(), "k".to_owned()];
        assert_eq!(kv.get_many(&of("a"), &twice, 270).await.unwrap().len(), 2);
        assert!(matches!(kv.get_many(&of("a"), &twice, 269).await, Err(CapabilityError::Invalid(_))));
    }

    #[test]
    fn a_text_is_no_counter_and_a_counter_does_not_wrap() {
        let (mut space, now) = (Space::default(), Instant::now());
        space.put("t".into(), entry("text", None), ROOM, now).unwrap();
        assert!(matches!(space.increment("t".into(), 1, None, ROOM, now), Err(CapabilityError::Invalid(_))));
        space.put("m".into(), entry(&i64::MAX.to_string(), None), ROOM, now).unwrap();
        assert!(matches!(space.increment("m".into(), 1, None, ROOM, now), Err(CapabilityError::Invalid(_))));
    }
}
