//! Servers that hang, clients that do not wait for them, and when to come back.

// Helpers of tests may fail like tests.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::net::SocketAddr;
use std::time::{Duration, Instant};
use support::*;
use tidegate_types::{DeltaKind, FinishReason, RejectKind};
use tidegate_upstream::{Attempts, BreakerConfig, Replicas, RetryConfig};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::time::timeout;

/// A server may take twenty seconds, so that what nobody waited one for says nothing of it.
fn slow() -> RetryConfig {
    RetryConfig { start_timeout: Duration::from_secs(20), ..quick() }
}

/// Whether the request was answered in the time that its client has.
async fn answered(replicas: &Replicas, patience: Duration) -> bool {
    match timeout(patience, ask(replicas, true, 1)).await {
        Ok(outcome) => {
            assert_eq!((outcome.events, outcome.error), (whole(), None));
            true
        }
        Err(_) => false,
    }
}

#[tokio::test]
async fn a_server_that_hangs_is_left_alone_though_its_clients_give_up_first() {
    let (hangs, well) = (Server::start(|_| Act::Hang("")).await, Server::start(|_| good()).await);
    let breaker = BreakerConfig { failures: 3, pause: Duration::from_secs(600) };
    let both = replicas(&[hangs.address, well.address], slow(), &breaker);
    // Who leaves at once says nothing of it.
    let mut left = 0;
    while left < 6 {
        left += usize::from(!answered(&both, Duration::from_millis(20)).await);
    }
    assert!(both.is_available());
    tokio::time::sleep(Duration::from_millis(200)).await;
    let before = hangs.seen();
    for _ in 0..60 {
        answered(&both, Duration::from_secs(3)).await;
    }
    assert_eq!(hangs.seen() - before, 3);
}

/// Nobody's requests shall take the last server away from others.
#[tokio::test]
async fn the_only_server_is_not_left_alone_because_its_clients_leave() {
    let alone = Server::start(|_| Act::Hang("")).await;
    let breaker = BreakerConfig { failures: 1, pause: Duration::from_secs(600) };
    let alone = replicas(&[alone.address], slow(), &breaker);
    for _ in 0..3 {
        assert!(!answered(&alone, Duration::from_millis(1500)).await);
    }
    assert!(alone.is_available());
}

/// One failure opens the breaker, and nobody waits for long.
fn strict() -> (RetryConfig, BreakerConfig) {
    let (start_timeout, whole_timeout) = (Duration::from_secs(1), Duration::from_secs(1));
    let retry = RetryConfig { start_timeout, whole_timeout, retries: 0, ..quick() };
    (retry, BreakerConfig { failures: 1, pause: Duration::from_secs(600) })
}

async fn is_timed_out(replicas: &Replicas, stream: bool) -> bool {
    ask(replicas, stream, 1).await.error.is_some_and(|reject| reject.kind == RejectKind::UpstreamTimeout)
}

/// A stream begins soon, and an answer in one piece when all of it is made.
#[tokio::test]
async fn an_answer_in_one_piece_has_a_time_of_its_own_and_is_not_worth_another_when_that_is_over() {
    let whole = r#"{"choices":[{"index":0,"message":{"content":"a"},"finish_reason":"stop"}]}"#;
    let answer = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{whole}",
        whole.len()
    );
    let head: &'static str = answer[..answer.len() - whole.len()].to_owned().leak();
    let slow = Server::start(move |_| Act::Late(Duration::from_millis(1500), answer.clone())).await;
    let start_timeout = Duration::from_millis(300);
    let retry = RetryConfig { start_timeout, deadline: start_timeout, ..quick() };
    let patient = replicas(&[slow.address], retry.clone(), &never());
    let outcome = ask(&patient, false, 1).await;
    assert_eq!((outcome.events, outcome.error), (vec![text("a"), delta(DeltaKind::Finish(FinishReason::Stop))], None));
    let late = ask(&patient, true, 1).await.error.unwrap();
    assert_eq!((late.kind, late.is_final), (RejectKind::UpstreamTimeout, false));
    let hasty = RetryConfig { whole_timeout: start_timeout, ..retry };
    for said in ["", head] {
        let server = Server::start(move |_| Act::Hang(said)).await;
        let late = ask(&replicas(&[server.address], hasty.clone(), &never()), false, 1).await.error.unwrap();
        assert_eq!((late.kind, late.is_final), (RejectKind::UpstreamTimeout, true), "{said:?}: {late:?}");
    }
}

/// It has no head before all of it is made: who asks for long ones shall take the last server from nobody.
#[tokio::test]
async fn what_comes_in_one_piece_and_takes_too_long_leaves_the_last_server_to_others() {
    let servers = [Server::start(|_| Act::Hang("")).await, Server::start(|_| Act::Hang("")).await];
    let (retry, breaker) = strict();
    let both = replicas(&[servers[0].address, servers[1].address], retry, &breaker);
    for _ in 0..3 {
        assert!(is_timed_out(&both, false).await);
    }
    let vectors = both.vectors(&about("x"), &sending(1), &Attempts::default()).await;
    assert_eq!(vectors.unwrap_err().kind, RejectKind::UpstreamTimeout);
    let seen = [servers[0].seen(), servers[1].seen()];
    assert!(seen == [1, 3] || seen == [3, 1], "the first to fail is left alone, the last one is not: {seen:?}");
    assert!(both.is_available());
    // A stream that does not begin, where nothing else does, is the server's own failure.
    assert!(is_timed_out(&both, true).await);
    assert!(!both.is_available());
}

/// Prompts that take long are no sign of a server that hangs, while others see their tokens come.
#[tokio::test]
async fn a_server_that_streams_to_others_is_not_left_alone_because_some_wait_in_vain() {
    let busy = Server::start(|n| if n == 0 { Act::Talk } else { Act::Hang("") }).await;
    let (retry, breaker) = strict();
    let alone = replicas(&[busy.address], retry, &breaker);
    let mut answer = alone.generate(chat(true), sending(1), &Attempts::default()).await.unwrap();
    let mut next = async || assert!(answer.next().await.unwrap().is_ok());
    next().await;
    for _ in 0..2 {
        let waiting = is_timed_out(&alone, true);
        tokio::pin!(waiting);
        let timed_out = loop {
            tokio::select! {
                timed_out = &mut waiting => break timed_out,
                () = next() => {}
            }
        };
        assert!(timed_out && alone.is_available());
    }
}

#[tokio::test]
async fn an_attempt_that_got_little_of_the_time_of_all_says_nothing_of_its_server() {
    let servers = [Server::start(|_| Act::Hang("")).await, Server::start(|_| Act::Hang("")).await];
    let retry = RetryConfig {
        start_timeout: Duration::from_millis(3000),
        deadline: Duration::from_millis(3050),
        budget_percent: 100,
        ..quick()
    };
    let breaker = BreakerConfig { failures: 1, pause: Duration::from_secs(600) };
    // The little is 50 ms of the 150 that count, and may be more on a machine that does much else, but not always.
    for _ in 0..5 {
        let both = replicas(&[servers[0].address, servers[1].address], retry.clone(), &breaker);
        let outcome = ask(&both, true, 1).await;
        assert!(outcome.error.is_some() && outcome.attempts <= 2);
        if outcome.attempts == 2 && both.is_available() {
            return;
        }
    }
    panic!("one had its time, the other had not");
}

/// A server that sends its head and a role before it reads the prompt.
async fn early_head(pause: Duration, rest: &'static [&'static str]) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let _ = stream.read(&mut vec![0; 65536]).await;
            let _ = stream.write_all(format!("{HEAD}data: {ROLE}\n\n").as_bytes()).await;
            tokio::time::sleep(pause).await;
            for event in rest {
                let _ = stream.write_all(format!("data: {event}\n\n").as_bytes()).await;
            }
            // Until the other side is gone.
            let _ = stream.read(&mut [0; 16]).await;
        }
    });
    address
}

async fn ask_with(address: SocketAddr, start_timeout: Duration, idle_timeout: Duration) -> Outcome {
    let retry = RetryConfig { start_timeout, idle_timeout, retries: 0, ..quick() };
    ask(&replicas(&[address], retry, &never()), true, 1).await
}

/// With a head first or without, an answer has begun with its first event.
#[tokio::test]
async fn a_server_has_its_time_to_begin_behind_a_head_too() {
    let (short, pause, long) = (Duration::from_millis(200), Duration::from_millis(600), Duration::from_secs(60));
    let outcome = ask_with(early_head(pause, &[A, STOP, "[DONE]"]).await, long, short).await;
    assert_eq!((outcome.events, outcome.error), (whole(), None));
    let begun = Instant::now();
    // What has begun has a time of its own.
    let outcome = ask_with(early_head(Duration::ZERO, &[A]).await, long, short).await;
    assert_eq!(outcome.events, [text("a")]);
    assert_eq!(outcome.error.unwrap().kind, RejectKind::UpstreamTimeout);
    let outcome = ask_with(early_head(long, &[]).await, short, long).await;
    assert_eq!(outcome.error.unwrap().kind, RejectKind::UpstreamTimeout);
    assert!(begun.elapsed() < Duration::from_secs(30));
}

#[tokio::test]
async fn of_all_servers_that_say_when_to_come_back_the_first_is_told() {
    for seconds in [[60, 7], [7, 60]] {
        let [one, other] = seconds.map(|seconds| status(&format!("503 Busy\r\nretry-after: {seconds}")));
        let servers = [Server::start(move |_| one.clone()).await, Server::start(move |_| other.clone()).await];
        let both = replicas(&[servers[0].address, servers[1].address], quick(), &never());
        for _ in 0..4 {
            let outcome = ask(&both, true, 1).await;
            assert_eq!((outcome.attempts, outcome.error.unwrap().retry_after_s), (2, Some(7)));
        }
    }
}
