//! Logs that one gateway writes and others read, on a server of each test's own.
#![allow(clippy::expect_used, clippy::unwrap_used, clippy::panic, missing_docs)]

#[path = "../../../tests/src/redis.rs"]
#[allow(dead_code, reason = "each file of tests takes what it needs of it")]
mod redis;

use bytes::Bytes;
use redis::Redis;
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tidegate_limits::shared::SharedLimits;
use tidegate_limits::{Claim, Subject};
use tidegate_shared::{Config, LogSettings, Shared};
use tidegate_streams::{CUT, Cursor, Found, Limits, Streams, Writer};
use tidegate_types::{Quota, TenantId};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};

/// Of gateways that are gone, or silent for a while, in their test: short, since the test waits for that.
const LEASE: Duration = Duration::from_secs(4);

/// For what comes at once, on a machine that does much else.
const LONG: Duration = Duration::from_secs(60);

/// One gateway: its own logs, and its way to those of others.
struct Gateway {
    streams: Streams,
    shared: Shared,
}

impl Gateway {
    fn start(redis: &Redis, limits: Limits) -> Self {
        Self::at(redis.url(), limits)
    }

    fn hasty(redis: &Redis) -> Self {
        Self::with(redis.url(), Limits::default(), LEASE)
    }

    fn at(url: String, limits: Limits) -> Self {
        Self::with(url, limits, 5 * LEASE)
    }

    fn with(url: String, limits: Limits, lease: Duration) -> Self {
        let config = Config {
            url,
            password: None,
            authority: None,
            prefix: "test".into(),
            gateways: 2,
            deadline: lease / 4,
            lease,
        };
        let shared = Shared::start(config, LogSettings { keep: limits.keep }).unwrap();
        let mut streams = Streams::new(limits);
        streams.share(Some(shared.logs()));
        Self { streams, shared }
    }

    fn open(&self, id: &str) -> Writer {
        let writer = self.streams.open_as(&ann(), id).unwrap();
        self.streams.tell(id, &writer);
        writer
    }

    /// The log, once it can be found.
    async fn find(&self, id: &str) -> Found {
        let started = Instant::now();
        loop {
            if let Some(found) = self.look(&ann(), id).await {
                return found;
            }
            assert!(started.elapsed() < LONG, "{id} is nowhere");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// The log, if there is one, once the server can be asked: it is not for a moment when an answer was late.
    async fn look(&self, tenant: &TenantId, id: &str) -> Option<Found> {
        let started = Instant::now();
        loop {
            if let Ok(found) = self.streams.find_anywhere(tenant, id).await {
                return found;
            }
            assert!(started.elapsed() < LONG, "the server is not found");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Waits until there is no such log.
    async fn lose(&self, id: &str) {
        let started = Instant::now();
        while self.look(&ann(), id).await.is_some() {
            assert!(started.elapsed() < LONG, "{id} is still found");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

fn ann() -> TenantId {
    TenantId::new("ann")
}

fn event(number: u64) -> Bytes {
    Bytes::from(format!("data: {number}\n\n"))
}

fn append(writer: &mut Writer, numbers: std::ops::RangeInclusive<u64>) {
    numbers.for_each(|number| writer.append(event(number)));
}

/// Everything to the end, and what the end is: the code of its error, or nothing.
async fn read(mut cursor: Cursor) -> (Vec<u64>, Option<String>) {
    let reading = async {
        let mut numbers = Vec::new();
        while let Some(next) = poll_fn(|cx| cursor.poll_next(cx)).await {
            let next = next.expect("nothing is missing");
            assert_eq!(next.event, event(next.number));
            numbers.push(next.number);
        }
        let outcome = cursor.outcome().expect("it has ended");
        // All ends here but the good ones come from elsewhere than the log.
        assert_eq!(cursor.unsaid(), outcome.clone().err());
        (numbers, outcome.err().map(|reject| reject.code.unwrap_or_default()))
    };
    tokio::time::timeout(LONG, reading).await.expect("an end")
}

/// The first so many.
async fn first(cursor: &mut Cursor, count: usize) -> Vec<u64> {
    let mut numbers = Vec::new();
    for _ in 0..count {
        let next = tokio::time::timeout(LONG, poll_fn(|cx| cursor.poll_next(cx))).await;
        numbers.push(next.expect("an event").unwrap().unwrap().number);
    }
    numbers
}

#[tokio::test(flavor = "multi_thread")]
async fn another_gateway_reads_a_log_from_any_event_while_it_is_written_and_when_it_has_ended() {
    let Some(redis) = Redis::start() else { return };
    let [one, two] = [(); 2].map(|()| Gateway::start(&redis, Limits::default()));
    let mut writer = one.open("stream_a");
    let found = two.find("stream_a").await;
    assert!(found.outcome().is_none() && matches!(found, Found::Elsewhere(_)));
    let mut live = found.read_after(0).unwrap();
    append(&mut writer, 1..=3);
    assert_eq!(first(&mut live, 3).await, [1, 2, 3]);
    append(&mut writer, 4..=400);
    let resumed = two.find("stream_a").await.read_after(2).unwrap();
    // Seen at its own gateway, and not copied yet.
    let ahead = two.find("stream_a").await.read_after(399).unwrap();
    let beyond = two.find("stream_a").await.read_after(u64::MAX).unwrap();
    writer.end(Ok(()));
    assert_eq!(read(ahead).await, (vec![400], None));
    assert_eq!(read(beyond).await, (vec![], None));
    assert_eq!(read(live).await, ((4..=400).collect(), None));
    assert_eq!(read(resumed).await, ((3..=400).collect(), None));
    let started = Instant::now();
    while two.find("stream_a").await.outcome().is_none() {
        assert!(started.elapsed() < LONG);
    }
    for seen in [0, 7, 128, 399, 400] {
        let late = two.find("stream_a").await.read_after(seen).unwrap();
        assert_eq!(read(late).await, ((seen + 1..=400).collect(), None));
    }
    // The gateway that wrote it stops; the log stays.
    let Gateway { streams, shared } = one;
    drop(streams);
    shared.close().await;
    assert_eq!(read(two.find("stream_a").await.read_after(398).unwrap()).await, (vec![399, 400], None));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_is_its_tenants_alone_and_of_some_tenants_nothing_leaves() {
    let Some(redis) = Redis::start() else { return };
    let [one, two] = [(); 2].map(|()| Gateway::start(&redis, Limits::default()));
    let mut writer = one.open("stream_a");
    append(&mut writer, 1..=1);
    two.find("stream_a").await;
    let bob = TenantId::new("bob");
    assert!(two.look(&bob, "stream_a").await.is_none());
    assert!(two.look(&bob, "stream_none").await.is_none());
    let (id, mut secret) = one.streams.open(&ann()).unwrap();
    append(&mut secret, 1..=1);
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(one.look(&ann(), id.as_str()).await.is_some());
    assert!(two.look(&ann(), id.as_str()).await.is_none());
    let keys = redis.ask("KEYS *");
    assert!(keys.contains("stream_a") && !keys.contains(id.as_str()), "{keys}");
}

#[tokio::test(flavor = "multi_thread")]
async fn any_gateway_ends_a_log_and_forgets_it() {
    let Some(redis) = Redis::start() else { return };
    let [one, two] = [(); 2].map(|()| Gateway::start(&redis, Limits::default()));
    let mut writer = one.open("stream_a");
    append(&mut writer, 1..=2);
    two.find("stream_a").await.stop().await.unwrap();
    let stopped = poll_fn(|cx| writer.poll_stopped(cx));
    tokio::time::timeout(LONG, stopped).await.expect("the writer is told");
    two.streams.forget(&TenantId::new("bob"), vec!["stream_a".into()]);
    tokio::time::sleep(Duration::from_millis(100)).await;
    two.find("stream_a").await;
    two.streams.forget(&ann(), vec!["stream_none".into(), "stream_a".into()]);
    two.lose("stream_a").await;
    // What is written after that is not found either.
    append(&mut writer, 3..=3);
    writer.end(Ok(()));
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(two.look(&ann(), "stream_a").await.is_none());
    assert!(!redis.ask("KEYS *").contains(":events:"), "nothing of it is left");
}

/// What is deleted while the server is away is forgotten when it is back, and whoever writes it is told.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_forgotten_ends_where_it_is_written_even_if_the_server_was_away() {
    let Some(mut redis) = Redis::start() else { return };
    let [one, two] = [(); 2].map(|()| Gateway::hasty(&redis));
    let mut writer = one.open("stream_a");
    append(&mut writer, 1..=2);
    two.find("stream_a").await;
    redis.kill();
    two.streams.forget(&ann(), vec!["stream_a".into()]);
    tokio::time::sleep(Duration::from_millis(300)).await;
    redis.revive();
    let stopped = poll_fn(|cx| writer.poll_stopped(cx));
    tokio::time::timeout(LONG, stopped).await.expect("the writer is told");
    assert!(two.look(&ann(), "stream_a").await.is_none());
}

/// A first try that came to nothing, and another under the same name, at the same gateway and at the next.
#[tokio::test(flavor = "multi_thread")]
async fn a_log_that_is_begun_anew_has_nothing_of_the_one_before() {
    let Some(redis) = Redis::start() else { return };
    let [one, two] = [(); 2].map(|()| Gateway::hasty(&redis));
    let void = one.open("stream_a");
    two.find("stream_a").await;
    drop(void);
    two.lose("stream_a").await;
    let mut given_up = one.open("stream_a");
    append(&mut given_up, 1..=7);
    let mut elsewhere = two.find("stream_a").await.read_after(0).unwrap();
    assert_eq!(first(&mut elsewhere, 7).await, (1..=7).collect::<Vec<_>>());
    // The other takes it over; of the first nothing comes any more.
    let mut writer = two.open("stream_a");
    append(&mut writer, 1..=2);
    let stopped = poll_fn(|cx| given_up.poll_stopped(cx));
    tokio::time::timeout(LONG, stopped).await.expect("the first is told");
    append(&mut given_up, 8..=9);
    writer.end(Ok(()));
    let third = Gateway::start(&redis, Limits::default());
    assert_eq!(read(third.find("stream_a").await.read_after(0).unwrap()).await, (vec![1, 2], None));
}

/// Where the writer goes away within the answer, readers elsewhere are told so.
#[tokio::test(flavor = "multi_thread")]
async fn a_writer_that_vanishes_is_said_at_every_gateway() {
    let Some(redis) = Redis::start() else { return };
    let [one, two] = [(); 2].map(|()| Gateway::start(&redis, Limits::default()));
    let mut writer = one.open("stream_a");
    append(&mut writer, 1..=3);
    let live = two.find("stream_a").await.read_after(0).unwrap();
    drop(writer);
    assert_eq!(read(live).await, (vec![1, 2, 3], Some("stream_lost".into())));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_whose_gateway_is_gone_ends_with_an_error_and_never_hangs() {
    let Some(redis) = Redis::start() else { return };
    let [one, two] = [(); 2].map(|()| Gateway::hasty(&redis));
    let mut writer = one.open("stream_a");
    append(&mut writer, 1..=5);
    let mut live = two.find("stream_a").await.read_after(0).unwrap();
    assert_eq!(first(&mut live, 5).await, [1, 2, 3, 4, 5]);
    // For longer than a lease: silence alone is no end.
    let silent = tokio::time::timeout(3 * LEASE / 2, poll_fn(|cx| live.poll_next(cx))).await;
    assert!(silent.is_err(), "a gateway that is there keeps its logs");
    // Killed: nothing is said any more. The writer is only kept from saying that it was dropped.
    std::mem::forget(writer);
    drop(one);
    assert_eq!(read(live).await, (vec![], Some("stream_lost".into())));
    let late = two.find("stream_a").await;
    assert_eq!(late.outcome().unwrap().unwrap_err().code.as_deref(), Some("stream_lost"));
    assert_eq!(read(late.read_after(3).unwrap()).await, (vec![4, 5], Some("stream_lost".into())));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_killed_and_forgets_everything_is_told_again() {
    let Some(mut redis) = Redis::start() else { return };
    let [one, two] = [(); 2].map(|()| Gateway::start(&redis, Limits::default()));
    let mut writer = one.open("stream_a");
    append(&mut writer, 1..=50);
    let mut live = two.find("stream_a").await.read_after(0).unwrap();
    assert_eq!(first(&mut live, 50).await, (1..=50).collect::<Vec<_>>());
    redis.kill();
    append(&mut writer, 51..=500);
    assert!(two.streams.find_anywhere(&ann(), "stream_a").await.is_err());
    redis.revive();
    append(&mut writer, 501..=600);
    writer.end(Ok(()));
    assert_eq!(read(live).await, ((51..=600).collect(), None));
    assert_eq!(read(two.find("stream_a").await.read_after(0).unwrap()).await, ((1..=600).collect(), None));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_without_a_server_is_told_to_come_back() {
    let Some(mut redis) = Redis::start() else { return };
    let [one, two] = [(); 2].map(|()| Gateway::hasty(&redis));
    let mut writer = one.open("stream_a");
    append(&mut writer, 1..=5);
    let mut live = two.find("stream_a").await.read_after(0).unwrap();
    assert_eq!(first(&mut live, 5).await, [1, 2, 3, 4, 5]);
    redis.kill();
    assert_eq!(read(live).await, (vec![], Some("stream_interrupted".into())));
}

/// What its gateway has dropped is dropped on the server, and readers are told so.
#[tokio::test(flavor = "multi_thread")]
async fn a_log_is_as_large_on_the_server_as_in_its_gateway() {
    let Some(redis) = Redis::start() else { return };
    let limits = Limits { log_bytes: 20_000, ..Limits::default() };
    let [one, two] = [(); 2].map(|()| Gateway::start(&redis, limits.clone()));
    let mut writer = one.open("stream_a");
    for lot in 0..40 {
        append(&mut writer, lot * 200 + 1..=lot * 200 + 200);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    writer.end(Ok(()));
    let started = Instant::now();
    let found = loop {
        let found = two.find("stream_a").await;
        if found.outcome().is_some() {
            break found;
        }
        assert!(started.elapsed() < LONG);
    };
    let missed = found.read_after(0).err().expect("the first are gone").first_kept;
    let (numbers, end) = read(found.read_after(missed - 1).unwrap()).await;
    assert_eq!((numbers, end), ((missed..=8000).collect(), None));
    assert!(missed > 4000, "{missed}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_goes_some_time_after_its_end() {
    let Some(redis) = Redis::start() else { return };
    let limits = Limits { keep: Duration::from_secs(1), ..Limits::default() };
    let [one, two] = [(); 2].map(|()| Gateway::start(&redis, limits.clone()));
    let mut writer = one.open("stream_a");
    append(&mut writer, 1..=1);
    two.find("stream_a").await;
    // Not while it is written.
    tokio::time::sleep(limits.keep * 3 / 2).await;
    assert!(two.look(&ann(), "stream_a").await.is_some());
    writer.end(Ok(()));
    two.lose("stream_a").await;
}

/// A reader that takes nothing holds up neither the writer nor other readers, and misses nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_slow_reader_is_waited_for_by_nobody() {
    let Some(redis) = Redis::start() else { return };
    let [one, two] = [(); 2].map(|()| Gateway::start(&redis, Limits::default()));
    let mut writer = one.open("stream_a");
    let slow = two.find("stream_a").await.read_after(0).unwrap();
    let quick = two.find("stream_a").await.read_after(0).unwrap();
    append(&mut writer, 1..=5000);
    writer.end(Ok(()));
    let all: Vec<u64> = (1..=5000).collect();
    assert_eq!(read(quick).await, (all.clone(), None));
    assert_eq!(read(slow).await, (all, None));
}

/// A way to the server on which each connection takes so many bytes in a millisecond, each way.
async fn narrow(redis: &Redis, bytes_a_ms: usize) -> String {
    let server = redis.url().strip_prefix("redis://").unwrap().to_owned();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("redis://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((near, _)) = listener.accept().await {
            let far = TcpStream::connect(&server).await.unwrap();
            let ((from_near, to_near), (from_far, to_far)) = (near.into_split(), far.into_split());
            tokio::spawn(trickle(from_near, to_far, bytes_a_ms));
            tokio::spawn(trickle(from_far, to_near, bytes_a_ms));
        }
    });
    url
}

async fn trickle(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, bytes_a_ms: usize) {
    let mut piece = vec![0; 8 * bytes_a_ms];
    while let Ok(read @ 1..) = from.read(&mut piece).await {
        if to.write_all(&piece[..read]).await.is_err() {
            return;
        }
        tokio::time::sleep(Duration::from_millis((read / bytes_a_ms) as u64)).await;
    }
}

/// An event takes longer to the server than a request may wait for its limits, and than a log is waited for.
#[tokio::test(flavor = "multi_thread")]
async fn large_events_hold_up_no_request() {
    let Some(redis) = Redis::start() else { return };
    let gateway = Gateway::at(narrow(&redis, 400).await, Limits::default());
    let quota = Quota { requests_per_minute: Some(1_000_000), ..Quota::default() };
    let claims = [Claim { subject: Subject::Key("ann".into()), quota: &quota }];
    let limits = gateway.shared.limits();
    let started = Instant::now();
    while limits.reserve(&claims, 0).await.is_none() {
        assert!(started.elapsed() < LONG, "the server is not found");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let mut writer = gateway.open("stream_a");
    writer.append(Bytes::from(vec![b'x'; 4 << 20]));
    let began = Instant::now();
    while began.elapsed() < Duration::from_millis(1500) {
        assert!(limits.reserve(&claims, 0).await.is_some(), "after {:?}", began.elapsed());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// All of the log at once would take longer than it is waited for.
#[tokio::test(flavor = "multi_thread")]
async fn a_reader_is_sent_so_many_bytes_at_once_whatever_its_events_have() {
    let Some(redis) = Redis::start() else { return };
    let one = Gateway::start(&redis, Limits::default());
    let two = Gateway::at(narrow(&redis, 1000).await, Limits::default());
    let mut writer = one.open("stream_a");
    (0..40).for_each(|_| writer.append(Bytes::from(vec![b'x'; 50_000])));
    writer.end(Ok(()));
    one.shared.logs().settled().await;
    let mut cursor = two.find("stream_a").await.read_after(0).unwrap();
    assert_eq!(first(&mut cursor, 40).await, (1..=40).collect::<Vec<_>>());
}

/// An event of so many bytes, no two parts of which are alike.
fn large(bytes: usize) -> Bytes {
    (0_u64..).flat_map(|n| n.to_le_bytes()).take(bytes).collect::<Vec<u8>>().into()
}

/// The next event, in time.
async fn next(cursor: &mut Cursor) -> Bytes {
    let next = tokio::time::timeout(LONG, poll_fn(|cx| cursor.poll_next(cx))).await;
    next.expect("an event").unwrap().unwrap().event
}

/// As a whole it would take longer than a log is waited for.
#[tokio::test(flavor = "multi_thread")]
async fn a_large_event_is_read_whole_elsewhere_and_holds_up_no_other_stream() {
    let Some(redis) = Redis::start() else { return };
    let (one, two) =
        (Gateway::at(narrow(&redis, 2000).await, Limits::default()), Gateway::start(&redis, Limits::default()));
    let mut small = one.open("stream_small");
    append(&mut small, 1..=1);
    let mut live = two.find("stream_small").await.read_after(0).unwrap();
    assert_eq!(first(&mut live, 1).await, [1]);
    let event_of = |n: usize| large((3 << 20) + n);
    let (mut writers, mut readers) = (Vec::new(), tokio::task::JoinSet::new());
    let num_whole = Arc::new(AtomicUsize::new(0));
    for n in 0..4 {
        let id = format!("stream_{n}");
        let mut writer = one.open(&id);
        append(&mut writer, 1..=3);
        writers.push(writer);
        let (mut cursor, num_whole) = (two.find(&id).await.read_after(2).unwrap(), Arc::clone(&num_whole));
        readers.spawn(async move {
            assert_eq!(next(&mut cursor).await, event(3));
            assert!(next(&mut cursor).await == event_of(n), "not as it was written");
            num_whole.fetch_add(1, Ordering::SeqCst);
            assert_eq!(next(&mut cursor).await, event(5));
        });
    }
    for (n, writer) in writers.iter_mut().enumerate() {
        writer.append(event_of(n));
        append(writer, 5..=5);
    }
    // All large ones together take the line six seconds: of small ones that wait for a large one each, four come by then.
    let mut before = 0;
    for number in 2..=30 {
        append(&mut small, number..=number);
        assert_eq!(first(&mut live, 1).await, [number]);
        before += usize::from(num_whole.load(Ordering::SeqCst) == 0);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(before >= 9, "{before} events came before a large one");
    while let Some(read) = readers.join_next().await {
        read.unwrap();
    }
    for n in 0..4 {
        let mut behind = two.find(&format!("stream_{n}")).await.read_after(4).unwrap();
        assert_eq!(next(&mut behind).await, event(5));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_event_is_whole_though_the_server_forgot_its_beginning() {
    let Some(mut redis) = Redis::start() else { return };
    let [one, two] = [(); 2].map(|()| Gateway::start(&redis, Limits::default()));
    let mut writer = one.open("stream_a");
    append(&mut writer, 1..=2);
    let mut cursor = two.find("stream_a").await.read_after(0).unwrap();
    assert_eq!(first(&mut cursor, 2).await, [1, 2]);
    writer.append(large(20 << 20));
    tokio::time::sleep(Duration::from_millis(30)).await;
    redis.kill();
    redis.revive();
    append(&mut writer, 4..=4);
    writer.end(Ok(()));
    assert!(next(&mut cursor).await == large(20 << 20), "not as it was written");
    assert_eq!(read(cursor).await, (vec![4], None));
}

/// It ends for those who read it elsewhere, whose gateway is told of it over the same line.
#[tokio::test(flavor = "multi_thread")]
async fn a_log_with_an_event_that_cannot_be_shared_ends_elsewhere_and_no_other_does() {
    let Some(redis) = Redis::start() else { return };
    let two = Gateway::start(&redis, Limits::default());
    // More than is shared, and more than the line takes in the time that there is for a piece.
    for (bytes, line) in [((64 << 20) + 1, redis.url()), (1 << 20, narrow(&redis, 60).await)] {
        let one = Gateway::at(line, Limits::default());
        let id = format!("stream_{bytes}");
        let mut writer = one.open(&id);
        append(&mut writer, 1..=3);
        let live = two.find(&id).await.read_after(0).unwrap();
        writer.append(Bytes::from(vec![b'x'; bytes]));
        assert_eq!(read(live).await, (vec![1, 2, 3], Some(CUT.into())), "{bytes}");
        append(&mut writer, 5..=5);
        let here = one.streams.find(&ann(), &id).unwrap();
        assert_eq!(first(&mut here.read_after(3).unwrap(), 2).await, [4, 5], "at home it goes on");
        assert!(here.outcome().is_none());
        let other = format!("stream_beside_{bytes}");
        let mut beside = one.open(&other);
        append(&mut beside, 1..=1);
        beside.end(Ok(()));
        let beside = two.find(&other).await.read_after(0).unwrap();
        assert_eq!(read(beside).await, (vec![1], None));
    }
}
