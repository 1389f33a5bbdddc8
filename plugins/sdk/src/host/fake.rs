//! The host's functions in memory, for tests on the machine itself. One set per thread, empty at first.
//!
//! What the host refuses is refused here as well, with the bounds that it has by default; what it ends a call for (see
//! `fake/handed.rs`) fails the test. A plugin that [`crate::testing::plugin`] makes is held to its descriptor. What is
//! the operator's to grant is open to every test, secrets and what is scripted aside: any alias, collection and mount.
//!
//! The clock stands still unless a test moves it, so that tests are repeatable.

pub(super) mod documents;
mod handed;
pub(super) mod http;
pub(super) mod kv;
mod outside;
mod params;
mod target;
pub(crate) mod values;
pub(super) mod vectors;

pub use documents::{put_file, remove_file, take_reads};
pub use http::{on_http, take_requests};
pub use kv::{kv_keys, limit_kv};
pub(super) use outside::{classify, complete, embed, random_bytes, secret_names};
pub use outside::{grant_secrets, on_classify, on_complete, on_embed};

use super::log::Level;
use crate::descriptor::{Capability, Descriptor};
use crate::json::quote;
use crate::plugin::Error;
use crate::types::Attrs;
use handed::hand_over;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

/// The host's default of what one call may log. Where a call begins and ends is not known here: the cap is each line's.
const LOG_BYTES: usize = 16 << 10;

#[derive(Default)]
struct Fake {
    now_ms: u64,
    log: Vec<(Level, String)>,
    log_fields: Vec<Attrs>,
    counts: BTreeMap<String, u64>,
    declared: Option<Declared>,
    keeps_nothing: bool,
}

/// What the plugins of a test declare, all of them together.
#[derive(Default)]
struct Declared {
    metrics: BTreeSet<String>,
    secrets: bool,
}

thread_local! {
    static FAKE: RefCell<Fake> = RefCell::default();
}

fn with<T>(f: impl FnOnce(&mut Fake) -> T) -> T {
    FAKE.with(|fake| f(&mut fake.borrow_mut()))
}

/// Refuses what a plugin of this descriptor does not declare, as the host does: metrics, which are left out and logged, and
/// secrets. [`crate::testing::plugin`] calls it; until something does, all of them are taken.
pub fn hold_to(descriptor: &Descriptor) {
    with(|f| {
        let declared = f.declared.get_or_insert_default();
        declared.metrics.extend(descriptor.declared_metrics().map(str::to_owned));
        declared.secrets |= descriptor.declares(Capability::Secrets);
    });
}

/// From here on the requests are ones of which nothing may be kept (zero retention): what is to stay is refused,
/// `kv::set`, `kv::increment` and `vectors::put`. What is there can still be read and deleted. A host writes no words of
/// such a request to its log, and has a new instance for the next one; here both stay, so that a test can look at them.
pub fn keep_nothing() {
    with(|f| f.keeps_nothing = true);
}

/// Refuses what would stay of a request that keeps nothing.
fn may_keep() -> Result<(), Error> {
    match with(|f| f.keeps_nothing) {
        true => Err(Error::Denied("nothing of this request may be kept (zero retention)".into())),
        false => Ok(()),
    }
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
    let of_fields = fields.iter().map(|(key, value)| logged_bytes(key) + logged_bytes(value) + 2);
    let bytes = logged_bytes(message) + of_fields.sum::<usize>();
    let (level, message, fields) = if bytes > LOG_BYTES {
        let over = format!("1 log lines of {bytes} bytes are over this call's log_bytes = {LOG_BYTES}");
        (Level::Warn, over, Attrs::new())
    } else {
        (level, message.to_owned(), fields.to_vec())
    };
    with(|f| {
        f.log.push((level, message));
        f.log_fields.push(fields);
    });
}

/// About what a text takes in a log that quotes it.
fn logged_bytes(text: &str) -> usize {
    quote(text).len() - 2
}

pub(super) fn count(name: &str, delta: u64) {
    if may_meter(name) {
        with(|f| *f.counts.entry(name.into()).or_default() += delta);
    }
}

pub(super) fn observe(name: &str, value: f64) {
    if value.is_finite() {
        return count(name, 1);
    }
    write_log(Level::Warn, &format!("an observation is {value}, which no histogram has a place for"), &[]);
}

fn may_meter(name: &str) -> bool {
    let may = with(|f| f.declared.as_ref().is_none_or(|declared| declared.metrics.contains(name)));
    if !may {
        write_log(Level::Warn, &format!("metric `{name}` is not declared in the descriptor"), &[]);
    }
    may
}

/// Whether a plugin that is held to its descriptor names secrets there.
fn may_have_secrets() -> bool {
    with(|f| f.declared.as_ref().is_none_or(|declared| declared.secrets))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::{kv, log, metrics, vectors};

    #[test]
    fn metrics_that_the_descriptor_does_not_declare_are_refused_and_logged() {
        metrics::count("any", 1);
        assert_eq!(counted("any"), 1, "of a test that names no descriptor nothing is known");
        hold_to(&Descriptor::new("probe", "0.1.0", "A probe").metric("hits", "things found"));
        metrics::count("hits", 2);
        metrics::observe("hist", 1.0);
        assert_eq!((counted("hits"), counted("hist")), (2, 0));
        assert_eq!(take_log(), [(Level::Warn, "metric `hist` is not declared in the descriptor".to_owned())]);
    }

    #[test]
    fn of_a_request_that_keeps_nothing_nothing_stays_and_what_is_there_can_be_read_and_deleted() {
        let refused =
            |answer: Result<(), Error>| matches!(answer, Err(Error::Denied(why)) if why.contains("may be kept"));
        let entry = || vectors::Entry { id: "a".into(), vector: vec![1.0], payload: Attrs::new() };
        kv::set("old", b"1", None).unwrap();
        vectors::put("notes", &[entry()]).unwrap();
        keep_nothing();
        assert!(refused(kv::set("new", b"1", None)) && refused(kv::increment("old", 1, None).map(|_| ())));
        assert!(refused(vectors::put("notes", &[vectors::Entry { id: "b".into(), ..entry() }])));
        assert!(
            matches!(kv::set("", b"1", None), Err(Error::InvalidInput(_))),
            "a key that is none is looked at first"
        );
        assert_eq!((kv_keys(), kv::get("old")), (vec!["old".to_owned()], Ok(Some(b"1".to_vec()))));
        assert_eq!(vectors::search("notes", &[1.0], 9, &Attrs::new()).unwrap().len(), 1);
        assert_eq!((kv::delete("old"), vectors::delete("notes", &["a".into()])), (Ok(()), Ok(1)));
    }

    #[test]
    fn an_observation_that_is_no_number_is_refused_and_logged() {
        [1.5, f64::NAN, f64::INFINITY].iter().for_each(|value| metrics::observe("took_ms", *value));
        assert_eq!((counted("took_ms"), take_log().len()), (1, 2));
    }

    #[test]
    fn of_a_line_that_is_over_what_a_call_may_log_nothing_is_there() {
        log::write(Level::Info, "fits", &[("key".to_owned(), "x".repeat(LOG_BYTES - 9))]);
        log::write(Level::Info, "is over", &[("key".to_owned(), "\"".repeat(LOG_BYTES / 2))]);
        let lines = take_log();
        assert_eq!(lines[0], (Level::Info, "fits".to_owned()));
        assert_eq!(lines[1].0, Level::Warn);
        assert!(lines[1].1.contains("over this call's log_bytes"), "{lines:?}");
        assert_eq!(take_log_fields()[1], []);
    }
}
