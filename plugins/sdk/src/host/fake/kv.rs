//! Key-value storage in the memory of a test.

use super::{hand_over, may_keep, monotonic_ms};
use crate::plugin::Error;
use std::cell::RefCell;
use std::collections::BTreeMap;

const MAX_KEY_BYTES: usize = 512;
const MAX_KEYS: usize = 1024;
/// What an entry costs beside its key and value.
const ENTRY_BYTES: usize = 64;

#[derive(Default)]
struct Storage {
    entries: BTreeMap<String, Entry>,
    quota_bytes: Option<usize>,
}

struct Entry {
    value: Vec<u8>,
    expires_ms: Option<u64>,
}

thread_local! {
    static STORAGE: RefCell<Storage> = RefCell::default();
}

/// Storage without what is past its time.
fn with<T>(f: impl FnOnce(&mut Storage) -> T) -> T {
    let now = monotonic_ms();
    STORAGE.with_borrow_mut(|storage| {
        storage.entries.retain(|_, entry| entry.expires_ms.is_none_or(|at| at > now));
        f(storage)
    })
}

/// The keys in storage, in order.
pub fn kv_keys() -> Vec<String> {
    with(|storage| storage.entries.keys().cloned().collect())
}

/// Caps storage: keys and values together, and 64 bytes for each of them.
pub fn limit_kv(bytes: usize) {
    with(|storage| storage.quota_bytes = Some(bytes));
}

impl Storage {
    fn put(&mut self, key: &str, entry: Entry) -> Result<(), Error> {
        let cost = |key: &str, entry: &Entry| key.len() + entry.value.len() + ENTRY_BYTES;
        let others: usize = self.entries.iter().filter(|(k, _)| *k != key).map(|(k, entry)| cost(k, entry)).sum();
        match self.quota_bytes.filter(|quota| others + cost(key, &entry) > *quota) {
            Some(quota) => Err(Error::Denied(format!("the stage's {quota} bytes of storage (`kv_kib`) are used up"))),
            None => {
                self.entries.insert(key.into(), entry);
                Ok(())
            }
        }
    }
}

pub(in crate::host) fn get(key: &str) -> Result<Option<Vec<u8>>, Error> {
    hand_over("kv.get", &[&key]);
    check(&[key])?;
    Ok(with(|storage| storage.entries.get(key).map(|entry| entry.value.clone())))
}

pub(in crate::host) fn get_many(keys: &[String]) -> Result<Vec<Option<Vec<u8>>>, Error> {
    hand_over("kv.get-many", &[&keys]);
    check(keys)?;
    with(|storage| {
        let found = || keys.iter().map(|key| storage.entries.get(key).map(|entry| &entry.value));
        let bytes: usize = found().flatten().map(Vec::len).sum();
        match storage.quota_bytes.filter(|quota| keys.len() > 1 && bytes > *quota) {
            Some(quota) => Err(Error::InvalidInput(format!("more than {quota} bytes at once; ask for fewer keys"))),
            None => Ok(found().map(Option::<&Vec<u8>>::cloned).collect()),
        }
    })
}

pub(in crate::host) fn set(key: &str, value: &[u8], ttl_ms: Option<u64>) -> Result<(), Error> {
    hand_over("kv.set", &[&key, &value]);
    check(&[key])?;
    may_keep()?;
    let entry = Entry { value: value.to_vec(), expires_ms: expiry(ttl_ms) };
    with(|storage| storage.put(key, entry))
}

/// The time to live is the first one's, which later ones leave alone.
pub(in crate::host) fn increment(key: &str, delta: i64, ttl_ms: Option<u64>) -> Result<i64, Error> {
    hand_over("kv.increment", &[&key]);
    check(&[key])?;
    may_keep()?;
    with(|storage| {
        let (number, expires_ms) = match storage.entries.get(key) {
            Some(entry) => (number(key, &entry.value)?, entry.expires_ms),
            None => (0, expiry(ttl_ms)),
        };
        let overflow = || Error::InvalidInput(format!("`{key}` is {number}; adding {delta} overflows"));
        let sum: i64 = number.checked_add(delta).ok_or_else(overflow)?;
        storage.put(key, Entry { value: sum.to_string().into_bytes(), expires_ms })?;
        Ok(sum)
    })
}

pub(in crate::host) fn delete(key: &str) -> Result<(), Error> {
    hand_over("kv.delete", &[&key]);
    check(&[key])?;
    with(|storage| storage.entries.remove(key));
    Ok(())
}

fn check<K: AsRef<str>>(keys: &[K]) -> Result<(), Error> {
    if keys.len() > MAX_KEYS {
        return Err(Error::InvalidInput(format!("{} keys at once; at most {MAX_KEYS}", keys.len())));
    }
    match keys.iter().map(|key| key.as_ref().len()).find(|len| !(1..=MAX_KEY_BYTES).contains(len)) {
        Some(len) => Err(Error::InvalidInput(format!("a key of {len} bytes; keys have 1 to {MAX_KEY_BYTES}"))),
        None => Ok(()),
    }
}

fn number(key: &str, value: &[u8]) -> Result<i64, Error> {
    let number = std::str::from_utf8(value).ok().and_then(|text| text.parse().ok());
    number.ok_or_else(|| Error::InvalidInput(format!("`{key}` is not a number")))
}

fn expiry(ttl_ms: Option<u64>) -> Option<u64> {
    ttl_ms.and_then(|ttl| monotonic_ms().checked_add(ttl))
}

#[cfg(test)]
mod tests {
    use super::super::advance_ms;
    use super::*;
    use crate::host::kv;

    fn is_refused<T>(answer: Result<T, Error>) -> bool {
        matches!(answer, Err(Error::InvalidInput(_)))
    }

    #[test]
    fn what_is_past_its_time_is_gone() {
        kv::set("a", b"1", Some(10)).unwrap();
        kv::set("b", b"1", Some(10)).unwrap();
        kv::set("b", b"2", None).unwrap();
        advance_ms(9);
        assert_eq!(kv::get("a").unwrap().as_deref(), Some(&b"1"[..]));
        advance_ms(1);
        let both = kv::get_many(&["a".into(), "b".into()]).unwrap();
        assert_eq!((both, kv_keys()), (vec![None, Some(b"2".to_vec())], vec!["b".to_owned()]));
    }

    #[test]
    fn a_counters_time_begins_with_its_first_event() {
        assert_eq!(kv::increment("hits", 1, Some(10)), Ok(1));
        advance_ms(9);
        assert_eq!(kv::increment("hits", 1, Some(10)), Ok(2));
        advance_ms(1);
        assert_eq!(kv::increment("hits", 1, None), Ok(1));
    }

    #[test]
    fn a_text_is_no_counter_and_a_counter_does_not_wrap() {
        kv::set("text", b"text", None).unwrap();
        kv::set("most", i64::MAX.to_string().as_bytes(), None).unwrap();
        assert!(is_refused(kv::increment("text", 1, None)) && is_refused(kv::increment("most", 1, None)));
        assert_eq!(kv::increment("most", -1, None), Ok(i64::MAX - 1));
    }

    #[test]
    fn keys_have_bounds() {
        let long = "k".repeat(MAX_KEY_BYTES);
        kv::set(&long, b"", None).unwrap();
        for key in ["", &format!("{long}k")] {
            assert!(is_refused(kv::get(key)) && is_refused(kv::set(key, b"", None)));
            assert!(is_refused(kv::increment(key, 1, None)) && is_refused(kv::delete(key)));
        }
        let many = |count: usize| kv::get_many(&vec!["k".to_owned(); count]);
        assert_eq!(many(MAX_KEYS).unwrap().len(), MAX_KEYS);
        assert!(is_refused(many(MAX_KEYS + 1)));
    }

    #[test]
    fn storage_that_is_full_makes_room_of_what_is_over_only() {
        limit_kv(150);
        kv::set("old", &[b'x'; 80], Some(10)).unwrap();
        assert!(matches!(kv::set("new", b"1", None), Err(Error::Denied(_))));
        assert!(matches!(kv::increment("new", 1, None), Err(Error::Denied(_))));
        assert!(is_refused(kv::get_many(&["old".into(), "old".into()])), "more at once than is kept");
        advance_ms(10);
        kv::set("new", b"1", None).unwrap();
    }
}
