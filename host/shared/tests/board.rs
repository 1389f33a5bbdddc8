//! What gateways say to each other, on a server of the test's own.
#![allow(clippy::expect_used, clippy::unwrap_used, clippy::panic, missing_docs)]

#[path = "../../../tests/src/redis.rs"]
#[allow(dead_code, reason = "each file of tests takes what it needs of it")]
mod redis;

use redis::Redis;
use std::time::{Duration, Instant};
use tidegate_shared::{Config, LogSettings, Shared};

fn gateway(redis: &Redis) -> Shared {
    let config = Config {
        url: redis.url(),
        password: None,
        authority: None,
        prefix: "test".into(),
        gateways: 2,
        deadline: Duration::from_secs(1),
        lease: Duration::from_secs(4),
    };
    Shared::start(config, LogSettings::default()).unwrap()
}

/// What the others say, once the server has been found.
async fn post(gateway: &Shared, note: &str) -> Vec<String> {
    let started = Instant::now();
    loop {
        if let Some(others) = gateway.board().post("b", note).await {
            return others;
        }
        assert!(started.elapsed() < Duration::from_secs(60), "the server is not found");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_gateway_reads_what_the_others_say_now_while_they_are_there() {
    let Some(redis) = Redis::start() else { return };
    let [one, two] = [gateway(&redis), gateway(&redis)];
    assert_eq!(post(&one, "1: a b\nc").await, Vec::<String>::new());
    assert_eq!(post(&two, "").await, ["1: a b\nc"]);
    assert_eq!(post(&one, "new").await, [""]);
    assert_eq!(post(&two, "x").await, ["new"]);
    drop(one);
    let gone = Instant::now();
    while !post(&two, "x").await.is_empty() {
        assert!(gone.elapsed() < Duration::from_secs(60), "it is heard for ever");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
