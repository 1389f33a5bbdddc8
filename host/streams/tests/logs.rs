//! What readers see, however they come and go.
#![allow(clippy::expect_used, clippy::unwrap_used, clippy::panic, missing_docs)]

use bytes::Bytes;
use proptest::prelude::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;
use tidegate_streams::{Cursor, Full, Limits, Missed, Streams};
use tidegate_types::TenantId;

fn tenant(name: &str) -> TenantId {
    TenantId::new(name)
}

fn poll(cursor: &mut Cursor) -> Poll<Option<Result<(u64, Bytes), Missed>>> {
    let polled = cursor.poll_next(&mut Context::from_waker(Waker::noop()));
    polled.map(|next| next.map(|event| event.map(|event| (event.number, event.event))))
}

/// Everything that is there now.
fn drain(cursor: &mut Cursor) -> Vec<(u64, Bytes)> {
    let mut seen = Vec::new();
    while let Poll::Ready(Some(Ok(event))) = poll(cursor) {
        seen.push(event);
    }
    seen
}

fn event(i: usize) -> Bytes {
    Bytes::from(format!("event {i}"))
}

#[derive(Default)]
struct Counter(AtomicUsize);

impl Wake for Counter {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn a_reader_waits_is_woken_and_sees_the_end() {
    let streams = Streams::new(Limits::default());
    let (id, mut writer) = streams.open(&tenant("a")).unwrap();
    let log = streams.find(&tenant("a"), id.as_str()).unwrap();
    let mut cursor = log.read_after(0).unwrap();
    let counter = Arc::new(Counter::default());
    let waker = Waker::from(Arc::clone(&counter));
    assert!(cursor.poll_next(&mut Context::from_waker(&waker)).is_pending());
    assert!(cursor.poll_next(&mut Context::from_waker(&waker)).is_pending());
    writer.append(event(1));
    assert_eq!(counter.0.load(Ordering::SeqCst), 1, "one reader is woken once");
    assert_eq!(poll(&mut cursor), Poll::Ready(Some(Ok((1, event(1))))));
    assert!(cursor.poll_next(&mut Context::from_waker(&waker)).is_pending());
    writer.end(Ok(()));
    assert_eq!(counter.0.load(Ordering::SeqCst), 2);
    assert_eq!(poll(&mut cursor), Poll::Ready(None));
    assert!(log.outcome().unwrap().is_ok());
    let mut late = log.read_after(0).unwrap();
    assert_eq!(drain(&mut late), [(1, event(1))]);
    let mut beyond = log.read_after(99).unwrap();
    assert_eq!(poll(&mut beyond), Poll::Ready(None));
}

#[test]
fn a_writer_that_vanishes_ends_its_log_with_an_error() {
    let streams = Streams::new(Limits::default());
    let (_, writer) = streams.open(&tenant("a")).unwrap();
    let log = Arc::clone(writer.log());
    let mut cursor = log.read_after(0).unwrap();
    drop(writer);
    assert_eq!(poll(&mut cursor), Poll::Ready(None));
    assert!(log.outcome().unwrap().is_err());
}

#[test]
fn a_stop_reaches_the_writer() {
    let streams = Streams::new(Limits::default());
    let (_, mut writer) = streams.open(&tenant("a")).unwrap();
    let counter = Arc::new(Counter::default());
    let waker = Waker::from(Arc::clone(&counter));
    assert!(writer.poll_stopped(&mut Context::from_waker(&waker)).is_pending());
    writer.log().stop();
    assert_eq!(counter.0.load(Ordering::SeqCst), 1);
    assert!(writer.poll_stopped(&mut Context::from_waker(&waker)).is_ready());
}

#[test]
fn a_log_is_its_tenants_alone() {
    let streams = Streams::new(Limits { per_tenant: 2, ..Limits::default() });
    let (id, _first) = streams.open(&tenant("a")).unwrap();
    let (other, _second) = streams.open(&tenant("a")).unwrap();
    assert_ne!(id, other);
    assert!(streams.find(&tenant("b"), id.as_str()).is_none());
    assert!(streams.find(&tenant("a"), "stream_0").is_none());
    assert!(matches!(streams.open(&tenant("a")), Err(Full::Tenant(2))));
    assert!(streams.open(&tenant("b")).is_ok());
}

#[test]
fn an_ended_log_is_kept_for_its_time() {
    let streams = Streams::new(Limits { keep: Duration::ZERO, ..Limits::default() });
    let (id, writer) = streams.open(&tenant("a")).unwrap();
    assert!(streams.find(&tenant("a"), id.as_str()).is_some(), "a running log stays");
    writer.end(Ok(()));
    assert!(streams.find(&tenant("a"), id.as_str()).is_none());
}

#[test]
fn all_logs_together_are_bounded_and_what_ended_first_gives_way() {
    let streams = Streams::new(Limits { total_bytes: 100, ..Limits::default() });
    let mut ids = Vec::new();
    for _ in 0..3 {
        let (id, mut writer) = streams.open(&tenant("a")).unwrap();
        writer.append(Bytes::from(vec![b'x'; 40]));
        writer.end(Ok(()));
        ids.push(id);
    }
    assert_eq!(streams.bytes(), 120);
    let (_, mut running) = streams.open(&tenant("a")).unwrap();
    assert_eq!(streams.bytes(), 80);
    assert!(streams.find(&tenant("a"), ids[0].as_str()).is_none(), "the oldest gave way");
    assert!(streams.find(&tenant("a"), ids[2].as_str()).is_some());
    running.append(Bytes::from(vec![b'x'; 200]));
    assert!(matches!(streams.open(&tenant("b")), Err(Full::Bytes(100))), "running logs do not give way");
    drop(running);
    assert!(streams.open(&tenant("b")).is_ok());
}

#[test]
fn a_log_that_is_full_drops_its_oldest_events_and_says_so() {
    let streams = Streams::new(Limits { log_bytes: 30, ..Limits::default() });
    let (_, mut writer) = streams.open(&tenant("a")).unwrap();
    let log = Arc::clone(writer.log());
    let mut slow = log.read_after(0).unwrap();
    (1..=10).for_each(|i| writer.append(event(i)));
    assert!(streams.bytes() <= 30);
    let Poll::Ready(Some(Err(Missed { first_kept }))) = poll(&mut slow) else { panic!("it missed nothing") };
    assert!(log.read_after(first_kept - 2).is_err());
    let mut resumed = log.read_after(first_kept - 1).unwrap();
    assert_eq!(drain(&mut resumed).first().map(|(number, _)| *number), Some(first_kept));
    drop((writer, slow, resumed, log));
}

proptest! {
    /// Readers that are cut at any moment and come back see every event once and in order.
    #[test]
    fn cut_and_resumed_readers_lose_and_repeat_nothing(
        steps in prop::collection::vec((0_usize..5, 0_usize..4, any::<bool>()), 1..60),
    ) {
        let streams = Streams::new(Limits::default());
        let (_, mut writer) = streams.open(&tenant("a")).unwrap();
        let log = Arc::clone(writer.log());
        let (mut written, mut seen) = (0, Vec::new());
        let mut cursor = log.read_after(0).unwrap();
        for (appended, read, cut) in steps {
            for _ in 0..appended {
                written += 1;
                writer.append(event(written));
            }
            for _ in 0..read {
                if let Poll::Ready(Some(Ok(event))) = poll(&mut cursor) {
                    seen.push(event);
                }
            }
            if cut {
                cursor = log.read_after(seen.last().map_or(0, |(number, _)| *number)).unwrap();
            }
        }
        writer.end(Ok(()));
        seen.extend(drain(&mut cursor));
        let expected: Vec<(u64, Bytes)> = (1..=written).map(|i| (i as u64, event(i))).collect();
        prop_assert_eq!(seen, expected);
    }

    /// The count of bytes is exact, whatever is appended, dropped and forgotten.
    #[test]
    fn bytes_are_counted_exactly(sizes in prop::collection::vec(0_usize..50, 0..40), log_bytes in 1_usize..200) {
        let streams = Streams::new(Limits { log_bytes, keep: Duration::ZERO, ..Limits::default() });
        let (_, mut writer) = streams.open(&tenant("a")).unwrap();
        let log = Arc::clone(writer.log());
        for size in &sizes {
            writer.append(Bytes::from(vec![0; *size]));
            prop_assert!(streams.bytes() <= log_bytes.max(*size));
        }
        let missed = log.read_after(0).err().map_or(0, |missed| missed.first_kept - 1) as usize;
        prop_assert_eq!(streams.bytes(), sizes[missed..].iter().sum::<usize>());
        drop((writer, log));
        prop_assert_eq!(Streams::new(Limits::default()).bytes(), 0);
    }
}
