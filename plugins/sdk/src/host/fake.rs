//! The host's functions in memory, for tests on the machine itself. One set per thread, empty at first.
//!
//! What the host refuses is refused here as well, with the bounds that it has by default; what it ends a call for (see
//! `fake/handed.rs`) fails the test. What is
//! the operator's to grant is open to every test, secrets and what is scripted aside: any alias, collection and mount.
//!
//! The clock stands still unless a test moves it, so that tests are repeatable.

pub(super) mod documents;
mod handed;
pub(super) mod http;
pub(super) mod kv;
mod outside;
pub(super) mod vectors;

pub use documents::{put_file, remove_file, take_reads};
pub use http::{on_http, take_requests};
pub use kv::{kv_keys, limit_kv};
pub(super) use outside::{classify, complete, embed, random_bytes, secret_names};
pub use outside::{grant_secrets, on_classify, on_complete, on_embed};

use super::log::Level;
use crate::types::Attrs;
use handed::hand_over;
use std::cell::RefCell;
use std::collections::BTreeMap;

#[derive(Default)]
struct Fake {
    now_ms: u64,
    log: Vec<(Level, String)>,
    log_fields: Vec<Attrs>,
    counts: BTreeMap<String, u64>,
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

/// Lines that were written since the last call.
pub fn take_log() -> Vec<(Level, String)> {
    with(|f| std::mem::take(&mut f.log))
}

/// Fields of the lines that were written since the last call, in the order of the lines.
pub fn take_log_fields() -> Vec<Attrs> {
    with(|f| std::mem::take(&mut f.log_fields))
}

/// What a counter stands at; of what is observed, how often.
pub fn counted(name: &str) -> u64 {
    with(|f| f.counts.get(name).copied().unwrap_or_default())
}

pub(super) fn now_unix_ms() -> u64 {
    with(|f| f.now_ms)
}

pub(super) fn monotonic_ms() -> u64 {
    with(|f| f.now_ms)
}

pub(super) fn write_log(level: Level, message: &str, fields: &[(String, String)]) {
    hand_over("log.write", &[&message, &fields]);
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
