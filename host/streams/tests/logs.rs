//! What readers see, however they come and go.
#![allow(clippy::expect_used, clippy::unwrap_used, clippy::panic, missing_docs)]

use bytes::Bytes;
use proptest::prelude::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;
use tidegate_streams::{CUT, Cursor, Full, LOST, Limits, Missed, StreamId, Streams, Writer};
use tidegate_types::{Caller, ProjectId, Reject, TenantId};

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
fn a_reader_that_goes_away_waits_no_more() {
    let streams = Streams::new(Limits::default());
    let (id, _writer) = streams.open(&tenant("a")).unwrap();
    let log = streams.find(&tenant("a"), id.as_str()).unwrap();
    let counter = Arc::new(Counter::default());
    for _ in 0..2 {
        let mut cursor = log.read_after(0).unwrap();
        let waker = Waker::from(Arc::clone(&counter));
        assert!(cursor.poll_next(&mut Context::from_waker(&waker)).is_pending());
        drop(waker);
        assert_eq!(Arc::strong_count(&counter), 2, "the log keeps it");
        drop(cursor);
        assert_eq!(Arc::strong_count(&counter), 1);
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
    let (id, mut writer) = streams.open(&tenant("a")).unwrap();
    let log = Arc::clone(writer.log());
    let mut cursor = log.read_after(0).unwrap();
    writer.append(event(1));
    drop(writer);
    assert_eq!(drain(&mut cursor), [(1, event(1))]);
    assert_eq!(poll(&mut cursor), Poll::Ready(None));
    let end = log.outcome().unwrap().unwrap_err();
    assert_eq!(end.code.as_deref(), Some(LOST));
    assert_eq!(cursor.unsaid(), Some(end), "no event says it");
    assert!(streams.find(&tenant("a"), id.as_str()).is_some(), "what was said can be read");
}

#[test]
fn a_log_that_came_to_nothing_was_never_there() {
    let streams = Streams::new(Limits::default());
    let writer = streams.open_as(&tenant("a"), "stream_a").unwrap();
    assert!(matches!(streams.open_as(&tenant("a"), "stream_a"), Err(Full::Taken)));
    let mut early = writer.log().read_after(0).unwrap();
    drop(writer);
    assert!(streams.find(&tenant("a"), "stream_a").is_none());
    assert_eq!(poll(&mut early), Poll::Ready(None));
    assert!(early.unsaid().is_some(), "who was there is told");
    let mut again = streams.open_as(&tenant("a"), "stream_a").unwrap();
    again.append(event(1));
    again.end(Ok(()));
    let log = streams.find(&tenant("a"), "stream_a").unwrap();
    assert_eq!(drain(&mut log.read_after(0).unwrap()), [(1, event(1))]);
}

#[test]
fn an_end_that_no_event_says_is_told_to_readers() {
    let streams = Streams::new(Limits::default());
    let reject = Reject::invalid("model", "no").code("model_not_found");
    for (events, unsaid) in [(0, Some(reject.clone())), (1, None)] {
        let (_, mut writer) = streams.open(&tenant("a")).unwrap();
        let mut cursor = writer.log().read_after(0).unwrap();
        (0..events).for_each(|i| writer.append(event(i)));
        assert_eq!(cursor.unsaid(), None, "it runs");
        writer.end(Err(reject.clone()));
        drain(&mut cursor);
        assert_eq!((cursor.outcome(), cursor.unsaid()), (Some(Err(reject.clone())), unsaid), "{events} events");
    }
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
fn who_is_forgotten_ends_and_is_found_no_more() {
    let streams = Streams::new(Limits::default());
    let mut writer = streams.open_as(&tenant("a"), "stream_a").unwrap();
    writer.append(event(1));
    streams.forget(&tenant("b"), vec!["stream_a".into()]);
    assert!(streams.find(&tenant("a"), "stream_a").is_some(), "another's is as one that never was");
    assert!(writer.poll_stopped(&mut Context::from_waker(Waker::noop())).is_pending());
    streams.forget(&tenant("a"), vec!["stream_none".into(), "stream_a".into()]);
    assert!(streams.find(&tenant("a"), "stream_a").is_none());
    assert!(writer.poll_stopped(&mut Context::from_waker(Waker::noop())).is_ready());
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
fn of_a_tenant_that_has_as_many_as_it_may_those_that_ended_first_give_way() {
    let streams = Streams::new(Limits { per_tenant: 2, ..Limits::default() });
    let ended = |id: &str| {
        let mut writer = streams.open_as(&tenant("a"), id).unwrap();
        writer.append(event(1));
        writer.end(Ok(()));
    };
    ["one", "two", "three"].into_iter().for_each(ended);
    let is_there = |id: &str| streams.find(&tenant("a"), id).is_some();
    assert_eq!(["one", "two", "three"].map(is_there), [false, true, true]);
    let running = ["four", "five"].map(|id| streams.open_as(&tenant("a"), id).unwrap());
    assert!(matches!(streams.open_as(&tenant("a"), "six"), Err(Full::Tenant(2))), "what runs does not");
    drop(running);
    ended("six");
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
    assert_eq!(streams.bytes(), 80, "who ends sees to what ended before");
    let (_, mut running) = streams.open(&tenant("a")).unwrap();
    assert!(streams.find(&tenant("a"), ids[0].as_str()).is_none(), "the oldest gave way");
    assert!(streams.find(&tenant("a"), ids[2].as_str()).is_some());
    running.append(Bytes::from(vec![b'x'; 200]));
    let refused = streams.open(&tenant("a")).err();
    assert_eq!(refused, Some(Full::Bytes { bytes: 200, share: 100 }), "running logs do not give way");
    drop(running);
    assert!(streams.open(&tenant("a")).is_ok());
}

/// Each tenant has half of what all may hold; whoever holds more pays for it alone.
#[test]
fn a_tenant_whose_logs_fill_all_there_is_gives_way_and_is_refused_alone() {
    let streams = Streams::new(Limits { total_bytes: 100, ..Limits::default() });
    let holds = |of: &str, bytes: usize| {
        let (id, mut writer) = streams.open(&tenant(of)).unwrap();
        writer.append(Bytes::from(vec![b'x'; bytes]));
        (id, writer)
    };
    let ended = |of: &str, bytes: usize| {
        let (id, writer) = holds(of, bytes);
        writer.end(Ok(()));
        id
    };
    let is_there = |of: &str, id: &StreamId| streams.find(&tenant(of), id.as_str()).is_some();
    let (theirs, first, second) = (ended("b", 40), ended("a", 30), ended("a", 40));
    // Of whoever holds the most, though what is another's ended before.
    let (_, one) = holds("a", 60);
    assert!(is_there("b", &theirs) && !is_there("a", &first) && is_there("a", &second));
    let (_, two) = holds("b", 5);
    assert!(is_there("b", &theirs) && !is_there("a", &second));
    for _ in 0..2 {
        let refused = streams.open(&tenant("a")).err();
        assert_eq!(refused, Some(Full::Bytes { bytes: 60, share: 50 }));
        assert!(matches!(streams.open_unnamed(&tenant("a")), Err(Full::Bytes { .. })));
    }
    let (_, three) = holds("b", 4);
    drop((one, two, three));
}

/// Projects are made by their tenant: with many of them it has no more.
#[test]
fn the_projects_of_a_tenant_have_one_share_together() {
    let streams = Streams::new(Limits { total_bytes: 100, per_tenant: 6, ..Limits::default() });
    let of = |name: &str| Caller { project: ProjectId::new(name), ..Caller::local() };
    let held: Vec<Writer> = (0..5)
        .map(|n| {
            let (_, mut writer) = streams.open(&of(&format!("proj_{n}"))).unwrap();
            writer.append(Bytes::from(vec![b'x'; 18]));
            writer
        })
        .collect();
    let (theirs, mut writer) = streams.open(&tenant("b")).unwrap();
    writer.append(Bytes::from(vec![b'x'; 20]));
    writer.end(Ok(()));
    assert_eq!(streams.open(&of("proj_5")).err(), Some(Full::Bytes { bytes: 90, share: 50 }));
    assert!(streams.find(&tenant("b"), theirs.as_str()).is_some() && streams.open(&tenant("b")).is_ok());
    // Nobody finds what is another project's, and the number of logs is the tenant's too.
    drop(held);
    let (id, one) = streams.open(&of("proj_0")).unwrap();
    assert!(streams.find(of("proj_0").owner(), id.as_str()).is_some());
    assert!(streams.find(of("proj_1").owner(), id.as_str()).is_none());
    let more: Vec<Writer> = (1..6).map(|n| streams.open(&of(&format!("proj_{n}"))).unwrap().1).collect();
    assert_eq!(streams.open(&of("proj_9")).err(), Some(Full::Tenant(6)));
    drop((one, more));
}

#[test]
fn logs_that_run_grow_to_twice_of_what_there_is_and_then_in_place_of_what_they_hold() {
    let streams = Streams::new(Limits { total_bytes: 100, ..Limits::default() });
    let (_, mut greedy) = streams.open(&tenant("a")).unwrap();
    let (_, mut modest) = streams.open(&tenant("b")).unwrap();
    for _ in 0..100 {
        greedy.append(Bytes::from(vec![b'x'; 10]));
        assert!(streams.bytes() <= 200);
    }
    (0..4).for_each(|_| modest.append(Bytes::from(vec![b'x'; 10])));
    assert_eq!(modest.log().first_kept(), 1, "who has less than its share keeps all of it");
    assert!(greedy.log().first_kept() > 70);
}

#[test]
fn a_log_of_who_holds_too_much_loses_as_much_as_it_takes() {
    let streams = Streams::new(Limits { total_bytes: 100, ..Limits::default() });
    let [mut one, mut two] = [0, 1].map(|_| streams.open(&tenant("a")).unwrap().1);
    let (_, mut modest) = streams.open(&tenant("b")).unwrap();
    let say = |writer: &mut Writer, times: usize| {
        (0..times).for_each(|_| writer.append(Bytes::from(vec![b'x'; 10])));
    };
    say(&mut one, 12);
    say(&mut two, 8);
    say(&mut modest, 4);
    say(&mut one, 1);
    say(&mut two, 2);
    assert_eq!([&one, &two, &modest].map(|writer| writer.log().first_kept()), [2, 3, 1]);
}

/// The end of an answer repeats all of it, and who has read what came before misses nothing.
#[test]
fn an_event_of_more_than_a_log_holds_pushes_out_nothing_and_goes_before_what_is_younger() {
    let streams = Streams::new(Limits { log_bytes: 30, ..Limits::default() });
    let (_, mut writer) = streams.open(&tenant("a")).unwrap();
    let log = Arc::clone(writer.log());
    let mut cursor = log.read_after(0).unwrap();
    let large = Bytes::from(vec![b'x'; 500]);
    writer.append(event(1));
    writer.append(event(2));
    writer.append(large.clone());
    assert_eq!(streams.bytes(), 514, "it is counted");
    assert_eq!(drain(&mut cursor), [(1, event(1)), (2, event(2)), (3, large.clone())]);
    writer.append(event(4));
    writer.append(event(5));
    assert_eq!((log.first_kept(), streams.bytes()), (1, 528));
    assert_eq!(drain(&mut cursor).len(), 2);
    (6..9).for_each(|i| writer.append(event(i)));
    assert_eq!((log.first_kept(), streams.bytes()), (5, 28));
    writer.append(large.clone());
    writer.end(Ok(()));
    assert_eq!(drain(&mut cursor).last(), Some(&(9, large)));
    assert_eq!((log.outcome(), cursor.unsaid()), (Some(Ok(())), None));
}

/// A text, a tool call and an answer end with several events each that say all of it again, and nobody reads between them.
#[test]
fn what_comes_together_is_there_together_and_stays_for_as_long_as_what_follows() {
    let streams = Streams::new(Limits { log_bytes: 64 << 10, ..Limits::default() });
    let (_, mut writer) = streams.open(&tenant("a")).unwrap();
    let mut cursor = writer.log().read_after(0).unwrap();
    let say = |writer: &mut Writer, times: usize| (0..times).for_each(|_| writer.append(Bytes::from(vec![b'x'; 1024])));
    let again = || vec![Bytes::from(vec![b'y'; 25_000]); 3];
    say(&mut writer, 40);
    assert_eq!(drain(&mut cursor).len(), 40);
    writer.append_together(again());
    say(&mut writer, 60);
    let sizes = |cursor: &mut Cursor| drain(cursor).iter().map(|(_, event)| event.len()).collect::<Vec<_>>();
    assert_eq!(sizes(&mut cursor), [vec![25_000; 3], vec![1024; 60]].concat());
    writer.append_together(again());
    writer.append(Bytes::from(vec![b'z'; 30_000]));
    writer.end(Ok(()));
    assert_eq!(sizes(&mut cursor), [vec![25_000; 3], vec![30_000]].concat());
    assert_eq!(poll(&mut cursor), Poll::Ready(None));
    assert_eq!(cursor.unsaid(), None);
}

/// Of an answer with many tool calls, say.
#[test]
fn a_log_holds_no_more_than_its_bound_beside_the_large_events_that_came_last() {
    const LIMIT: usize = 64 << 10;
    let streams = Streams::new(Limits { log_bytes: LIMIT, ..Limits::default() });
    let (_, mut writer) = streams.open(&tenant("a")).unwrap();
    for round in 0..40 {
        writer.append_together(vec![Bytes::from(vec![b'y'; 10_000]); 3]);
        (0..round).for_each(|i| writer.append(event(i)));
        assert!(streams.bytes() <= LIMIT + 4 * 30_000, "{}", streams.bytes());
    }
}

/// What ends an answer is as large as that, and there may be many of them at once.
#[test]
fn what_is_large_has_the_bound_of_all_logs_and_ends_a_log_that_has_no_room_for_it() {
    const TOTAL: usize = 1 << 20;
    let streams = Streams::new(Limits { log_bytes: 64 << 10, total_bytes: TOTAL, ..Limits::default() });
    let large = Bytes::from(vec![b'x'; 200_000]);
    let mut cut = Vec::new();
    let running: Vec<Writer> = (0..50)
        .map(|_| {
            let (_, mut writer) =
                streams.open(&tenant("a")).unwrap_or_else(|full| panic!("{full}: {}", streams.bytes()));
            writer.append(event(1));
            writer
        })
        .collect();
    for mut writer in running {
        let mut cursor = writer.log().read_after(0).unwrap();
        writer.append_together(vec![large.clone(); 3]);
        assert!(streams.bytes() <= 2 * TOTAL, "{}", streams.bytes());
        writer.append(event(2));
        let seen = drain(&mut cursor).len();
        assert_eq!(poll(&mut cursor).is_ready(), seen == 1, "readers of what is cut wait for nothing");
        if let Some(reject) = writer.cut() {
            assert_eq!((seen, reject.code.as_deref()), (1, Some(CUT)));
            assert_eq!((cursor.unsaid(), cursor.outcome()), (Some(reject.clone()), Some(Err(reject))));
            assert_eq!(writer.log().outcome(), None, "what is made goes on");
        } else {
            assert_eq!(seen, 5);
        }
        cut.push(writer);
    }
    let was_cut: Vec<bool> = cut.iter().map(|writer| writer.cut().is_some()).collect();
    assert_eq!(was_cut, [vec![false; 3], vec![true; 47]].concat());
    // Nobody opens another: what ends makes room for what runs, and another tenant has its share.
    let (_, mut other) = streams.open(&tenant("b")).unwrap();
    other.append(large.clone());
    assert!(other.cut().is_none());
    let mut cut = cut.into_iter();
    cut.by_ref().take(3).for_each(|writer| writer.end(Ok(())));
    assert!(streams.bytes() < 3 * TOTAL / 2, "{}", streams.bytes());
    cut.for_each(|writer| writer.end(Ok(())));
    assert!(streams.bytes() < TOTAL, "{}", streams.bytes());
}

/// It is the last that it can say, and its readers have had what is older.
#[test]
fn what_is_large_goes_in_place_of_what_its_log_holds() {
    let streams = Streams::new(Limits { log_bytes: 20, total_bytes: 100, ..Limits::default() });
    let (_, mut writer) = streams.open(&tenant("a")).unwrap();
    for (size, first_kept) in [(150, 1), (140, 2), (30, 2), (100, 3)] {
        writer.append(Bytes::from(vec![b'x'; size]));
        assert_eq!((writer.cut(), writer.log().first_kept()), (None, first_kept), "{size}");
        assert!(streams.bytes() <= 200);
    }
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

fn has_room(writer: &mut Writer, bytes: usize) -> bool {
    writer.poll_room(bytes, &mut Context::from_waker(Waker::noop())).is_ready()
}

#[test]
fn a_writer_waits_for_the_reader_that_it_writes_for_and_for_no_other() {
    let streams = Streams::new(Limits { log_bytes: 30, ..Limits::default() });
    let (_, mut writer) = streams.open(&tenant("a")).unwrap();
    writer.append(event(1));
    let [mut own, mut other] = [0, 0].map(|seen| writer.log().read_after(seen).unwrap());
    own.pace();
    (2..=4).for_each(|i| writer.append(event(i)));
    assert_eq!((writer.log().first_kept(), streams.bytes()), (1, 28));
    let counter = Arc::new(Counter::default());
    let waker = Waker::from(Arc::clone(&counter));
    let mut cx = Context::from_waker(&waker);
    assert!(has_room(&mut writer, 2) && writer.poll_room(7, &mut cx).is_pending());
    // What is unread stays, whoever does not wait.
    writer.append(event(5));
    assert_eq!((writer.log().first_kept(), streams.bytes()), (1, 35));
    assert!(writer.poll_room(7, &mut cx).is_pending());
    assert_eq!(poll(&mut other), Poll::Ready(Some(Ok((1, event(1))))));
    assert_eq!(counter.0.load(Ordering::SeqCst), 0);
    assert_eq!(poll(&mut own), Poll::Ready(Some(Ok((1, event(1))))));
    assert_eq!(counter.0.load(Ordering::SeqCst), 1, "it is woken once");
    assert!(writer.poll_room(7, &mut cx).is_pending(), "four are unread");
    assert_eq!(poll(&mut own), Poll::Ready(Some(Ok((2, event(2))))));
    assert!(has_room(&mut writer, 7));
    (6..=9).for_each(|i| writer.append(event(i)));
    assert_eq!(writer.log().first_kept(), 3);
    assert!(writer.poll_room(7, &mut cx).is_pending());
    let woken = counter.0.load(Ordering::SeqCst);
    drop(own);
    assert_eq!(counter.0.load(Ordering::SeqCst), woken + 1, "who is gone is waited for no more");
    assert!(has_room(&mut writer, 1000));
    writer.append(event(10));
    assert!(matches!(poll(&mut other), Poll::Ready(Some(Err(Missed { .. })))), "it was too slow");
}

#[test]
fn who_reads_all_there_is_has_what_is_larger_than_its_log() {
    let streams = Streams::new(Limits { log_bytes: 30, ..Limits::default() });
    let (_, mut writer) = streams.open(&tenant("a")).unwrap();
    let mut own = writer.log().read_after(0).unwrap();
    own.pace();
    for i in 0..20 {
        assert!(has_room(&mut writer, 500));
        writer.append(Bytes::from(vec![b'x'; 500]));
        assert!(!has_room(&mut writer, 7));
        assert_eq!(drain(&mut own).len(), 1, "{i}");
    }
    writer.log().stop();
    writer.append(event(1));
    assert!(has_room(&mut writer, 1000), "the end is asked for");
}

/// Its stream goes on as fast as it is read.
#[test]
fn a_tenant_that_holds_too_much_waits_for_its_own_readers() {
    let streams = Streams::new(Limits { total_bytes: 100, ..Limits::default() });
    let (_, mut greedy) = streams.open(&tenant("a")).unwrap();
    let (_, mut writer) = streams.open(&tenant("a")).unwrap();
    let mut own = writer.log().read_after(0).unwrap();
    own.pace();
    (0..3).for_each(|i| writer.append(event(i)));
    greedy.append(Bytes::from(vec![b'x'; 179]));
    assert!(!has_room(&mut writer, 7));
    for i in 0..20 {
        drain(&mut own);
        assert!(has_room(&mut writer, 7), "{i}");
        writer.append(event(i % 10));
        assert!(!has_room(&mut writer, 7) && streams.bytes() <= 200, "{i}: {}", streams.bytes());
    }
}

proptest! {
    /// However slowly and in whatever order: nothing is lost, and the log holds no more than its bound.
    #[test]
    fn a_reader_that_is_waited_for_sees_everything(
        steps in prop::collection::vec((0_usize..5, 0_usize..4), 1..80), log_bytes in 20_usize..200,
    ) {
        let streams = Streams::new(Limits { log_bytes, ..Limits::default() });
        let (_, mut writer) = streams.open(&tenant("a")).unwrap();
        let mut own = writer.log().read_after(0).unwrap();
        own.pace();
        let (mut written, mut seen) = (0, Vec::new());
        for (appended, read) in steps {
            for _ in 0..appended {
                let next = event(written + 1);
                if has_room(&mut writer, next.len()) {
                    written += 1;
                    writer.append(next);
                }
            }
            prop_assert!(streams.bytes() <= log_bytes);
            for _ in 0..read {
                if let Poll::Ready(Some(Ok(event))) = poll(&mut own) {
                    seen.push(event);
                }
            }
        }
        writer.end(Ok(()));
        seen.extend(drain(&mut own));
        let expected: Vec<(u64, Bytes)> = (1..=written).map(|i| (i as u64, event(i))).collect();
        prop_assert_eq!(seen, expected);
    }

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
    fn bytes_are_counted_exactly(sizes in prop::collection::vec(0_usize..50, 0..40), log_bytes in 50_usize..200) {
        let streams = Streams::new(Limits { log_bytes, keep: Duration::ZERO, ..Limits::default() });
        let (_, mut writer) = streams.open(&tenant("a")).unwrap();
        let log = Arc::clone(writer.log());
        for size in &sizes {
            writer.append(Bytes::from(vec![0; *size]));
            prop_assert!(streams.bytes() <= log_bytes);
        }
        let missed = log.read_after(0).err().map_or(0, |missed| missed.first_kept - 1) as usize;
        prop_assert_eq!(streams.bytes(), sizes[missed..].iter().sum::<usize>());
        drop((writer, log));
        prop_assert_eq!(Streams::new(Limits::default()).bytes(), 0);
    }
}

/// That would be work under the lock of all logs, for what is not taken.
#[test]
fn for_a_log_that_is_cut_nothing_gives_way() {
    let streams = Streams::new(Limits { log_bytes: 20, total_bytes: 100, ..Limits::default() });
    let [(_, mut greedy), (_, mut cut), (ended, mut ends)] = [(); 3].map(|()| streams.open(&tenant("a")).unwrap());
    greedy.append(Bytes::from(vec![b'x'; 200]));
    let large = || Bytes::from(vec![b'x'; 50]);
    cut.append(large());
    assert!(cut.cut().is_some());
    ends.append(event(1));
    ends.end(Ok(()));
    cut.append(large());
    assert!(streams.find(&tenant("a"), ended.as_str()).is_some());
    assert_eq!(streams.bytes(), 200 + event(1).len());
}
