//! What the logs of gateways hold, at the server and where they are read, and what holds of one that could not be shared to its
//! end; on a server of each test's own.
#![allow(clippy::expect_used, clippy::unwrap_used, clippy::panic, missing_docs)]

#[path = "../../../tests/src/redis.rs"]
#[allow(dead_code, reason = "each file of tests takes what it needs of it")]
mod redis;

use bytes::Bytes;
use redis::Redis;
use std::future::poll_fn;
use std::time::{Duration, Instant};
use tidegate_shared::{Config, LogSettings, Shared};
use tidegate_streams::{CUT, Cursor, Found, Limits, Streams, Writer};
use tidegate_types::TenantId;

const LEASE: Duration = Duration::from_secs(4);

/// For whatever must happen at all.
const PATIENCE: Duration = Duration::from_secs(60);

/// One gateway: its own logs, and its way to those of others.
struct Gateway {
    streams: Streams,
    shared: Shared,
}

impl Gateway {
    fn start(redis: &Redis, lease: Duration, limits: Limits) -> Self {
        let (url, deadline) = (redis.url(), Duration::from_secs(1));
        let config =
            Config { url, password: None, authority: None, prefix: "test".into(), gateways: 2, deadline, lease };
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

    async fn find(&self, id: &str) -> Found {
        let mut found = None;
        until(id, async || {
            found = self.streams.find_anywhere(&ann(), id).await.ok().flatten();
            found.is_some()
        })
        .await;
        found.unwrap()
    }

    async fn read(&self, id: &str) -> Cursor {
        self.find(id).await.read_after(0).unwrap()
    }
}

fn ann() -> TenantId {
    TenantId::new("ann")
}

async fn until(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let started = Instant::now();
    while !is_so().await {
        assert!(started.elapsed() < PATIENCE, "{what}: not in time");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// The next event; or nothing, and the code of the end.
async fn next(cursor: &mut Cursor) -> Result<Bytes, String> {
    let next = tokio::time::timeout(PATIENCE, poll_fn(|cx| cursor.poll_next(cx))).await.expect("something");
    let code = || cursor.outcome().unwrap().unwrap_err().code.unwrap_or_default();
    next.map(|event| event.unwrap().event).ok_or_else(code)
}

async fn is_stopped(writer: &mut Writer) {
    tokio::time::timeout(PATIENCE, poll_fn(|cx| writer.poll_stopped(cx))).await.expect("the writer is told");
}

fn filled(byte: usize, bytes: usize) -> Bytes {
    vec![u8::try_from(byte).unwrap(); bytes].into()
}

/// Also what it lets go while the server is away, and of what is still copied then.
#[tokio::test(flavor = "multi_thread")]
async fn the_server_has_the_logs_that_a_gateway_has_and_no_more() {
    let Some(redis) = Redis::start() else { return };
    let few_bytes = Limits { total_bytes: 1 << 20, ..Limits::default() };
    let few_logs = Limits { per_tenant: 4, ..Limits::default() };
    for (what, limits) in [("bytes", few_bytes), ("logs", few_logs)] {
        let one = Gateway::start(&redis, LEASE, limits);
        let two = Gateway::start(&redis, LEASE, Limits::default());
        let id = |n: usize| format!("stream_{what}_{n}");
        // What is still copied gives way once the server is known to be away.
        let write = async |n: usize| {
            let mut writer = None;
            until("room", async || {
                writer = one.streams.open_as(&ann(), &id(n)).ok();
                writer.is_some()
            })
            .await;
            let mut writer = writer.unwrap();
            one.streams.tell(&id(n), &writer);
            (0..3).for_each(|part| writer.append(filled(part, 100_000)));
            writer.end(Ok(()));
        };
        let alike = async |upto: usize| {
            let mut kept = 0;
            for n in 0..upto {
                until(&id(n), async || {
                    let is_here = one.streams.find(&ann(), &id(n)).is_some();
                    let there = two.streams.find_anywhere(&ann(), &id(n)).await;
                    there.is_ok_and(|there| there.is_some() == is_here)
                })
                .await;
                kept += usize::from(one.streams.find(&ann(), &id(n)).is_some());
            }
            assert!((1..upto).contains(&kept), "{kept} of {upto} {what}");
        };
        for n in 0..8 {
            write(n).await;
            one.shared.logs().settled().await;
            two.find(&id(n)).await;
        }
        alike(8).await;
        redis.stall();
        for n in 8..16 {
            write(n).await;
        }
        tokio::time::sleep(Duration::from_secs(3)).await;
        redis.go_on();
        alike(16).await;
    }
}

/// Bytes that the server has sent.
fn sent(redis: &Redis) -> usize {
    let stats = redis.ask("INFO stats");
    let sent = stats.lines().find_map(|line| line.strip_prefix("total_net_output_bytes:"));
    sent.unwrap().trim().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn large_events_have_one_room_for_all_readers_and_small_ones_pass_them() {
    let Some(redis) = Redis::start() else { return };
    let [one, two] = [(); 2].map(|()| Gateway::start(&redis, 5 * LEASE, Limits::default()));
    let write = |id: &str, event: Bytes| {
        let mut writer = one.open(id);
        writer.append(event);
        writer.end(Ok(()));
    };
    let (id, event) = (|n: usize| format!("stream_{n}"), |n: usize| filled(n, 30 << 20));
    (0..3).for_each(|n| write(&id(n), event(n)));
    write("stream_small", filled(9, 9));
    one.shared.logs().settled().await;
    let before = sent(&redis);
    let mut slow = Vec::new();
    for n in 0..3 {
        slow.push(two.read(&id(n)).await);
    }
    let mut last = 0;
    until("what readers take ahead", async || {
        tokio::time::sleep(Duration::from_millis(500)).await;
        let now = sent(&redis) - before;
        let is_all = now > 60 << 20 && now - last < 100_000;
        last = now;
        is_all
    })
    .await;
    assert!(last < 65 << 20, "{last} bytes are held for three readers that take nothing");
    assert_eq!(next(&mut two.read("stream_small").await).await.unwrap(), filled(9, 9));
    // Who goes away leaves room, and so does what was read.
    drop(slow.remove(0));
    for (n, mut cursor) in slow.into_iter().enumerate() {
        assert!(next(&mut cursor).await.unwrap() == event(n + 1), "not as it was written");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_event_waits_for_room_until_it_has_left_and_not_for_ever() {
    let Some(redis) = Redis::start() else { return };
    let [one, two] = [(); 2].map(|()| Gateway::start(&redis, LEASE, Limits::default()));
    let mut writer = one.open("stream_a");
    writer.append(filled(1, 40 << 20));
    writer.end(Ok(()));
    one.shared.logs().settled().await;
    let held = next(&mut two.read("stream_a").await).await.unwrap();
    let started = Instant::now();
    assert_eq!(next(&mut two.read("stream_a").await).await.unwrap_err(), "stream_interrupted");
    assert!(started.elapsed() >= 4 * LEASE, "{:?}", started.elapsed());
    drop(held);
    assert!(next(&mut two.read("stream_a").await).await.unwrap() == filled(1, 40 << 20));
}

/// Larger than is shared, and than its own gateway has room for.
#[tokio::test(flavor = "multi_thread")]
async fn a_log_that_is_cut_for_readers_elsewhere_is_still_ended_and_forgotten_from_there() {
    let Some(redis) = Redis::start() else { return };
    let two = Gateway::start(&redis, LEASE, Limits::default());
    for (bytes, total_bytes) in [((64 << 20) + 1, 256 << 20), (3 << 20, 1 << 20)] {
        let one = Gateway::start(&redis, LEASE, Limits { total_bytes, ..Limits::default() });
        let ids = ["stopped", "forgotten"].map(|what| format!("stream_{what}_{bytes}"));
        let mut writers = Vec::new();
        for id in &ids {
            let mut writer = one.open(id);
            writer.append(filled(1, 9));
            let mut live = two.read(id).await;
            writer.append(filled(2, bytes));
            assert_eq!(next(&mut live).await.unwrap(), filled(1, 9));
            assert_eq!(next(&mut live).await.unwrap_err(), CUT);
            writers.push(writer);
        }
        tokio::time::sleep(LEASE * 3 / 2).await;
        let found = two.find(&ids[0]).await;
        assert!(found.outcome().is_none(), "it goes on");
        found.stop().await.unwrap();
        is_stopped(&mut writers[0]).await;
        writers.remove(0).end(Ok(()));
        until("its end", async || two.find(&ids[0]).await.outcome().is_some()).await;
        two.streams.forget(&ann(), vec![ids[1].clone()]);
        is_stopped(&mut writers[0]).await;
    }
}

/// The server was away while the log went on, and lacks what came before an event that it never gets.
#[tokio::test(flavor = "multi_thread")]
async fn a_log_that_cannot_go_on_where_the_server_has_a_gap_asks_it_no_more_than_another() {
    let Some(mut redis) = Redis::start() else { return };
    let one = Gateway::start(&redis, LEASE, Limits { log_bytes: 20_000, ..Limits::default() });
    let two = Gateway::start(&redis, LEASE, Limits::default());
    let mut writer = one.open("stream_a");
    (0..3).for_each(|n| writer.append(filled(n, 9)));
    two.find("stream_a").await;
    redis.kill();
    writer.append(filled(3, (64 << 20) + 1));
    (4..9).for_each(|n| writer.append(filled(n, 4000)));
    assert_eq!(writer.log().first_kept(), 4);
    redis.revive();
    until("its end elsewhere", async || match two.find("stream_a").await.read_after(3) {
        Ok(mut cursor) => next(&mut cursor).await.is_err_and(|code| code == CUT),
        Err(_) => false,
    })
    .await;
    let before = redis.num_scripts();
    tokio::time::sleep(LEASE / 2).await;
    let asked = redis.num_scripts() - before;
    assert!(asked < 50, "{asked} scripts within half a lease");
    writer.end(Ok(()));
    tokio::time::timeout(PATIENCE, one.shared.logs().settled()).await.expect("its copy ends with it");
}
