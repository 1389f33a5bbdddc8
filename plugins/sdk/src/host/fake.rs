//! The host's functions in memory, for tests on the machine itself. One set per thread, empty at first.
//!
//! The clock stands still unless a test moves it, so that tests are repeatable.

mod outside;

pub(super) use outside::{classify, complete, delete_vectors, embed, http, put, random_bytes, search, secret_names};
pub use outside::{grant_secrets, on_classify, on_complete, on_embed, on_http, take_requests};

use super::log::Level;
use crate::plugin::Error;
use crate::types::Attrs;
use std::cell::RefCell;
use std::collections::BTreeMap;

pub(super) use super::documents::Entry;

#[derive(Default)]
struct Fake {
    now_ms: u64,
    log: Vec<(Level, String)>,
    log_fields: Vec<Attrs>,
    counts: BTreeMap<String, u64>,
    kv: BTreeMap<String, Vec<u8>>,
    kv_quota_bytes: Option<usize>,
    files: BTreeMap<String, (u64, Vec<u8>)>,
    reads: Vec<String>,
}

thread_local! {
    static FAKE: RefCell<Fake> = RefCell::default();
}

fn with<T>(f: impl FnOnce(&mut Fake) -> T) -> T {
    FAKE.with(|fake| f(&mut fake.borrow_mut()))
}

/// Moves the clock.
pub fn advance_ms(ms: u64) {
    with(|f| f.now_ms += ms);
}

/// Puts a file, changed at `modified_unix_ms`.
pub fn put_file(path: &str, modified_unix_ms: u64, bytes: &[u8]) {
    with(|f| f.files.insert(path.into(), (modified_unix_ms, bytes.to_vec())));
}

/// Removes a file.
pub fn remove_file(path: &str) {
    with(|f| f.files.remove(path));
}

/// Paths that were read since the last call, in order.
pub fn take_reads() -> Vec<String> {
    with(|f| std::mem::take(&mut f.reads))
}

/// Lines that were written since the last call.
pub fn take_log() -> Vec<(Level, String)> {
    with(|f| std::mem::take(&mut f.log))
}

/// Fields of the lines that were written since the last call, in the order of the lines.
pub fn take_log_fields() -> Vec<Attrs> {
    with(|f| std::mem::take(&mut f.log_fields))
}

/// What a counter stands at.
pub fn counted(name: &str) -> u64 {
    with(|f| f.counts.get(name).copied().unwrap_or_default())
}

/// The keys in storage, in order.
pub fn kv_keys() -> Vec<String> {
    with(|f| f.kv.keys().cloned().collect())
}

/// Caps storage: keys and values together.
pub fn limit_kv(bytes: usize) {
    with(|f| f.kv_quota_bytes = Some(bytes));
}

pub(super) fn now_unix_ms() -> u64 {
    with(|f| f.now_ms)
}

pub(super) fn monotonic_ms() -> u64 {
    with(|f| f.now_ms)
}

pub(super) fn write_log(level: Level, message: &str, fields: &[(String, String)]) {
    with(|f| {
        f.log.push((level, message.into()));
        f.log_fields.push(fields.to_vec());
    });
}

pub(super) fn count(name: &str, delta: u64) {
    with(|f| *f.counts.entry(name.into()).or_default() += delta);
}

pub(super) fn observe(name: &str, _value: f64) {
    count(name, 1);
}

pub(super) fn get(key: &str) -> Result<Option<Vec<u8>>, Error> {
    Ok(with(|f| f.kv.get(key).cloned()))
}

pub(super) fn get_many(keys: &[String]) -> Result<Vec<Option<Vec<u8>>>, Error> {
    Ok(with(|f| keys.iter().map(|key| f.kv.get(key).cloned()).collect()))
}

pub(super) fn set(key: &str, value: &[u8], _ttl_ms: Option<u64>) -> Result<(), Error> {
    with(|f| {
        let others: usize = f.kv.iter().filter(|(k, _)| *k != key).map(|(k, v)| k.len() + v.len()).sum();
        if f.kv_quota_bytes.is_some_and(|quota| others + key.len() + value.len() > quota) {
            return Err(Error::Denied("the quota is used up".into()));
        }
        f.kv.insert(key.into(), value.to_vec());
        Ok(())
    })
}

pub(super) fn increment(key: &str, delta: i64, _ttl_ms: Option<u64>) -> Result<i64, Error> {
    with(|f| {
        let text = f.kv.get(key).map(|v| String::from_utf8_lossy(v).into_owned()).unwrap_or("0".into());
        let old: i64 = text.parse().map_err(|_| Error::InvalidInput(format!("`{key}` is not a number")))?;
        let sum = old.saturating_add(delta);
        f.kv.insert(key.into(), sum.to_string().into_bytes());
        Ok(sum)
    })
}

pub(super) fn delete(key: &str) -> Result<(), Error> {
    with(|f| f.kv.remove(key));
    Ok(())
}

pub(super) fn list(after: Option<&str>, limit: u32) -> Result<Vec<Entry>, Error> {
    let entry = |(path, (modified, bytes)): (&String, &(u64, Vec<u8>))| Entry {
        path: path.clone(),
        size_bytes: bytes.len() as u64,
        modified_unix_ms: *modified,
    };
    let behind = |path: &str| after.is_none_or(|after| path > after);
    Ok(with(|f| f.files.iter().filter(|(path, _)| behind(path)).take(limit as usize).map(entry).collect()))
}

pub(super) fn read(path: &str, offset: u64, len: u32) -> Result<Vec<u8>, Error> {
    with(|f| {
        f.reads.push(path.into());
        let (_, bytes) = f.files.get(path).ok_or_else(|| Error::InvalidInput(format!("no file `{path}`")))?;
        let rest = bytes.get(usize::try_from(offset).unwrap_or(usize::MAX)..).unwrap_or_default();
        Ok(rest.iter().take(len as usize).copied().collect())
    })
}
