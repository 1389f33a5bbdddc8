//! Several servers of one model, over real sockets, and what is sent again: servers that refuse, break, hang and lie, and
//! how many requests each of them saw.

// Helpers of tests may fail like tests.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use support::*;
use tidegate_types::{Form, RejectKind, Usage};
use tidegate_upstream::{Attempts, BreakerConfig, Replicas, RetryConfig, UpstreamConfig, UpstreamEvent};
use tokio::task::JoinSet;
use tokio::time::timeout;

#[tokio::test]
async fn what_failed_before_anything_of_its_answer_is_sent_again() {
    for (what, first) in [
        ("503", status("503 Busy")),
        ("502", status("502 Bad")),
        ("504", status("504 Late")),
        ("529", status("529 Overloaded")),
        ("408", status("408 Slow")),
        ("429 with a second to wait", status("429 Many\r\nretry-after: 1")),
        ("a reset within the head", Act::Reset),
        ("a close without a word", Act::Say(String::new())),
        ("a stream without an event", stream(&[])),
        ("a stream cut before the first text", stream(&[ROLE])),
        ("a stream cut behind a count before the first text", stream(&[ROLE, COUNTED, COUNTED])),
    ] {
        let (waits, mut fastest) = (what.contains("second to wait"), Duration::MAX);
        // Others may take a second too, on a machine that does much else, but not always.
        for _ in 0..5 {
            let first = first.clone();
            let server = Server::start(move |n| if n == 0 { first.clone() } else { good() }).await;
            let begun = Instant::now();
            let outcome = ask(&replicas(&[server.address], quick(), &never()), true, 1).await;
            fastest = fastest.min(begun.elapsed());
            assert_eq!((outcome.events, outcome.error), (whole(), None), "{what}");
            assert_eq!((outcome.attempts, server.seen()), (2, 2), "{what}");
            if waits || fastest < Duration::from_secs(1) {
                break;
            }
        }
        assert_eq!(fastest >= Duration::from_secs(1), waits, "{what}: {fastest:?}");
    }
}

/// The first server's count is no part of the answer, and what the second says stands in its order.
#[tokio::test]
async fn what_was_counted_before_the_first_text_is_told_with_it() {
    let counting = [ROLE, COUNTED, COUNTED, A, STOP, "[DONE]"];
    let server = Server::start(move |n| stream(&counting[..if n == 0 { 2 } else { 6 }])).await;
    let outcome = ask(&replicas(&[server.address], quick(), &never()), true, 1).await;
    let counted = UpstreamEvent::Usage(Usage { input_tokens: 9, ..Usage::default() });
    assert_eq!((outcome.events, outcome.error), ([vec![counted], whole()].concat(), None));
    assert_eq!((outcome.attempts, server.seen()), (2, 2));
}

#[tokio::test]
async fn what_may_have_been_answered_or_never_will_be_is_not_sent_again() {
    let json = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 999\r\n\r\n{\"choices\":[";
    for (what, act, streamed) in [
        ("400", status("400 Bad Request"), true),
        ("401", status("401 Unauthorized"), true),
        ("404", status("404 Not Found"), true),
        ("500", status("500 Oops"), true),
        ("a redirect", status("301 Moved"), true),
        ("nonsense", stream(&["{"]), true),
        ("an error event", stream(&[r#"{"error":{"message":"boom"}}"#]), true),
        ("a cut behind the first text", stream(&[ROLE, A]), true),
        ("a cut behind the first piece of a call", stream(&[ROLE, PIECE]), true),
        ("a document that is cut", Act::Say(json.into()), true),
        ("a whole answer that never came", Act::Say(String::new()), false),
        ("a whole answer that is cut", Act::Say(json.into()), false),
        ("a whole answer behind a gateway that lost it", status("502 Bad"), false),
        ("a whole answer behind a gateway that did not wait", status("504 Late"), false),
        ("a Retry-After that is too long", status("503 Busy\r\nretry-after: 60"), true),
    ] {
        let server = Server::start(move |_| act.clone()).await;
        let outcome = ask(&replicas(&[server.address], quick(), &never()), streamed, 1).await;
        let error = outcome.error.expect(what);
        assert_eq!((outcome.attempts, server.seen()), (1, 1), "{what}");
        let told = match what {
            "a cut behind the first text" => vec![text("a")],
            "a cut behind the first piece of a call" => vec![UpstreamEvent::Piece(3)],
            _ => Vec::new(),
        };
        assert_eq!(outcome.events, told, "{what}");
        assert_eq!(error.retry_after_s, what.contains("Retry-After").then_some(60), "{what}");
    }
}

#[tokio::test]
async fn the_last_failure_is_the_answer_and_says_how_many_there_were() {
    let server = Server::start(|_| status("503 Busy")).await;
    let outcome = ask(&replicas(&[server.address], quick(), &never()), true, 1).await;
    let error = outcome.error.unwrap();
    assert_eq!((outcome.attempts, server.seen(), error.kind), (3, 3, RejectKind::BadUpstream));
    assert!(error.cause.unwrap().ends_with("(the last of 3 attempts)"));
    let later = Server::start(|_| stream(&[ROLE])).await;
    let outcome = ask(&replicas(&[later.address], quick(), &never()), true, 1).await;
    assert_eq!((outcome.attempts, later.seen(), outcome.code()), (3, 3, "upstream_cut"));
}

/// Each gateway of a chain that sent everything again would multiply with the others.
#[tokio::test]
async fn only_the_first_gateway_of_a_chain_sends_again() {
    let server = Server::start(|_| status("503 Busy")).await;
    let replicas = replicas(&[server.address], quick(), &never());
    assert_eq!(ask(&replicas, true, 2).await.attempts, 1);
    assert_eq!(server.seen(), 1);
}

/// A server that was not reached has not seen the request: no retry is spent on it.
#[tokio::test]
async fn with_one_server_left_every_request_is_answered() {
    let server = Server::start(|_| good()).await;
    let closed = [(); 4].map(|()| closed_port());
    let mut addresses = vec![server.address];
    addresses.extend(closed.iter().map(|socket| socket.local_addr().unwrap()));
    let replicas = replicas(&addresses, RetryConfig { retries: 0, budget_min: 0, ..quick() }, &never());
    for n in 1..=30 {
        let outcome = ask(&replicas, false, 1).await;
        assert_eq!((outcome.events, outcome.error), (whole(), None));
        assert_eq!(server.seen(), n);
    }
}

#[tokio::test]
async fn a_server_that_hangs_is_not_asked_twice_and_another_one_is() {
    const BEGUN: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n";
    let retry = RetryConfig { start_timeout: Duration::from_secs(3), budget_percent: 100, ..quick() };
    let alone = Server::start(|_| Act::Hang("")).await;
    let outcome = ask(&replicas(&[alone.address], retry.clone(), &never()), true, 1).await;
    assert_eq!((outcome.attempts, alone.seen()), (1, 1));
    assert_eq!(outcome.error.unwrap().kind, RejectKind::UpstreamTimeout);

    let (hangs, answers) = (Server::start(|_| Act::Hang("")).await, Server::start(|_| good()).await);
    let both = replicas(&[hangs.address, answers.address], retry, &never());
    // All at once: they wait together.
    let mut asking = JoinSet::new();
    for _ in 0..12 {
        let both = both.clone();
        asking.spawn(async move { assert_eq!(ask(&both, true, 1).await.events, whole()) });
    }
    asking.join_all().await;
    assert!(hangs.seen() > 0 && answers.seen() == 12, "{} and {}", hangs.seen(), answers.seen());

    // The head came in time, and nothing behind it: all of it has an end.
    let silent = Server::start(|_| Act::Hang(BEGUN)).await;
    let retry = RetryConfig { deadline: Duration::from_secs(5), ..quick() };
    let replicas = replicas(&[silent.address], retry, &never());
    let answer = replicas.generate(chat(true), sending(1), &Attempts::default()).await;
    drop(answer.unwrap());
    assert_eq!(replicas.outstanding(), 0);
}

#[tokio::test]
async fn no_attempt_begins_behind_the_deadline() {
    let server = Server::start(|_| status("503 Busy")).await;
    // The pause is five minutes at least.
    let retry = RetryConfig {
        backoff: Duration::from_secs(600),
        max_backoff: Duration::from_secs(600),
        deadline: Duration::from_secs(10),
        start_timeout: Duration::from_secs(10),
        ..quick()
    };
    let replicas = replicas(&[server.address], retry, &never());
    let outcome = timeout(Duration::from_secs(60), ask(&replicas, true, 1)).await.expect("it waits out the pause");
    assert!(outcome.attempts == 1 && outcome.error.is_some(), "{}", outcome.attempts);
    assert_eq!(server.seen() as u32, outcome.attempts);
}

/// Whatever each request may, all of them together send a sick server little more than there were.
#[tokio::test]
async fn a_sick_server_sees_no_storm() {
    const REQUESTS: usize = 400;
    for (what, act) in [("503", status("503 Busy")), ("cut", stream(&[ROLE]))] {
        let server = Server::start(move |_| act.clone()).await;
        let retry = RetryConfig { retries: 10, budget_percent: 20, budget_min: 5, ..quick() };
        let replicas = replicas(&[server.address], retry, &never());
        let asking: Vec<_> = (0..REQUESTS)
            .map(|_| {
                let replicas = replicas.clone();
                tokio::spawn(async move { ask(&replicas, true, 1).await.attempts as usize })
            })
            .collect();
        let mut attempts = 0;
        for asked in asking {
            attempts += asked.await.unwrap();
        }
        println!("{what}: {REQUESTS} requests, {} at the server", server.seen());
        assert_eq!(server.seen(), attempts, "{what}");
        assert!(attempts > REQUESTS && attempts <= REQUESTS * 12 / 10 + 5, "{what}: {attempts}");
    }
}

#[tokio::test]
async fn a_server_that_keeps_failing_is_left_alone_until_a_probe_is_answered() {
    let server = Server::start(|n| if n < 4 { status("503 Busy") } else { good() }).await;
    let breaker = BreakerConfig { failures: 3, pause: Duration::from_secs(2) };
    let replicas = replicas(&[server.address], RetryConfig { retries: 0, ..quick() }, &breaker);
    let mut failing = Instant::now();
    for _ in 0..3 {
        failing = Instant::now();
        assert_eq!(ask(&replicas, true, 1).await.error.unwrap().kind, RejectKind::BadUpstream);
    }
    assert!(!replicas.is_available());
    let refused = ask(&replicas, true, 1).await;
    assert_eq!((refused.code(), refused.attempts, server.seen()), ("upstream_unavailable", 0, 3));
    let refused = refused.error.unwrap();
    assert_eq!(refused.kind, RejectKind::Unavailable);
    assert!((1..=3).contains(&refused.retry_after_s.unwrap()), "{:?}", refused.retry_after_s);

    // What is asked when it is no longer left alone.
    let probe = async || loop {
        let (begun, seen) = (Instant::now(), server.seen());
        let outcome = ask(&replicas, true, 1).await;
        if outcome.code() != "upstream_unavailable" {
            break (begun, outcome);
        }
        assert_eq!(server.seen(), seen);
        assert!(failing.elapsed() < Duration::from_secs(60), "it is left alone for ever");
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    // The probe fails, and the pause is twice as long.
    let (begun, outcome) = probe().await;
    assert_eq!((outcome.error.unwrap().kind, server.seen()), (RejectKind::BadUpstream, 4));
    assert!(failing.elapsed() >= breaker.pause);
    let (_, outcome) = probe().await;
    assert_eq!(outcome.events, whole());
    assert!(begun.elapsed() >= 2 * breaker.pause);
    assert_eq!(ask(&replicas, true, 1).await.events, whole());
}

#[tokio::test]
async fn one_request_at_a_time_tries_a_server_that_was_left_alone() {
    let server = Server::start(|n| if n < 2 { status("503 Busy") } else { Act::Hang("") }).await;
    // A probe that takes longer than a pause keeps nobody else from trying.
    let breaker = BreakerConfig { failures: 2, pause: Duration::from_secs(2) };
    let replicas = replicas(&[server.address], RetryConfig { retries: 0, ..quick() }, &breaker);
    for _ in 0..2 {
        ask(&replicas, true, 1).await;
    }
    let closed = Instant::now();
    while !replicas.is_available() {
        assert!(closed.elapsed() < Duration::from_secs(60), "it is left alone for ever");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    for seen in [3, 4] {
        let probe = tokio::spawn({
            let replicas = replicas.clone();
            async move { ask(&replicas, true, 1).await }
        });
        server.wait_for(seen).await;
        assert_eq!(ask(&replicas, true, 1).await.code(), "upstream_unavailable");
        // Whoever leaves while it is the probe makes room for another.
        probe.abort();
        assert!(probe.await.unwrap_err().is_cancelled());
        assert_eq!(replicas.outstanding(), 0);
    }
}

/// Nobody tries a server again while a test runs.
fn for_good() -> BreakerConfig {
    BreakerConfig { pause: Duration::from_secs(600), ..BreakerConfig::default() }
}

/// A server that fails at once would draw all requests otherwise: it has always the least to do.
#[tokio::test]
async fn requests_go_past_a_server_that_keeps_failing() {
    let (sick, well) = (Server::start(|_| status("500 Oops")).await, Server::start(|_| good()).await);
    let both = replicas(&[sick.address, well.address], quick(), &for_good());
    for _ in 0..60 {
        ask(&both, true, 1).await;
    }
    assert_eq!((sick.seen(), well.seen()), (5, 55));
    // It may be the requests' own fault: the last server is there for everybody.
    let alone = replicas(&[sick.address], quick(), &BreakerConfig::default());
    for _ in 0..20 {
        assert_eq!(ask(&alone, true, 1).await.error.unwrap().kind, RejectKind::BadUpstream);
    }
    assert_eq!(sick.seen(), 25);
    // Nor does what callers do wrong take a server out.
    let refusing = Server::start(|_| status("429 Many\r\nretry-after: 9")).await;
    let two = replicas(&[refusing.address, refusing.address], quick(), &BreakerConfig::default());
    for _ in 0..20 {
        assert_eq!(ask(&two, true, 1).await.error.unwrap().kind, RejectKind::RateLimited);
    }
    assert!(two.is_available());
}

/// It answers at once, and so has always the least to do.
#[tokio::test]
async fn requests_go_past_a_server_that_is_set_up_wrongly() {
    for wrong in ["401 Whose", "404 No Model", "405 No Such", "301 Moved"] {
        let (sick, well) = (Server::start(move |_| status(wrong)).await, Server::start(|_| good()).await);
        let both = replicas(&[sick.address, well.address], quick(), &for_good());
        for n in 0..60 {
            let outcome = ask(&both, n % 2 == 0, 1).await;
            assert_eq!((outcome.events, outcome.error), (whole(), None), "{wrong}");
        }
        assert_eq!((sick.seen(), well.seen()), (5, 60), "{wrong}");
    }
    // Where all are, the last one is there for everybody, and says what is wrong.
    let sick = [Server::start(|_| status("401 Whose")).await, Server::start(|_| status("404 No Model")).await];
    let breaker = BreakerConfig { failures: 1, ..for_good() };
    let both = replicas(&[sick[0].address, sick[1].address], quick(), &breaker);
    for attempts in [2, 1, 1] {
        let outcome = ask(&both, true, 1).await;
        assert_eq!((outcome.code(), outcome.attempts), ("upstream_misconfigured", attempts));
    }
    assert!(both.is_available());
}

/// Whatever another one says meanwhile.
#[tokio::test]
async fn a_request_does_not_come_back_to_a_server_that_is_set_up_wrongly() {
    let [wrong, busy] = [Server::start(|_| status("401 Whose")).await, Server::start(|_| status("429 Many")).await];
    let patient = RetryConfig { budget_min: 1000, ..quick() };
    let both = replicas(&[wrong.address, busy.address], patient, &never());
    let mut returned = 0;
    for _ in 0..40 {
        let before = (wrong.seen(), busy.seen());
        ask(&both, true, 1).await.error.unwrap();
        assert!(wrong.seen() <= before.0 + 1, "it refused the gateway, and was asked again");
        returned += usize::from(busy.seen() > before.1 + 1);
    }
    assert!(returned > 0, "to a server that is busy it may");
}

/// What a caller asks for, or says, may be what the servers refuse: that takes none of them away from others.
#[tokio::test]
async fn a_refusal_that_a_caller_can_bring_about_counts_for_nothing() {
    for (refusal, form) in [
        ("402 Pay", Form::Chat),
        ("403 Not This", Form::Chat),
        ("404 No Such", Form::Completion { echo: false }),
        ("405 No Such", Form::Completion { echo: false }),
    ] {
        let [one, two] = [Server::start(move |_| status(refusal)).await, Server::start(move |_| status(refusal)).await];
        let both = replicas(&[one.address, two.address], quick(), &BreakerConfig::default());
        for _ in 0..20 {
            let mut asked = chat(true);
            Arc::make_mut(&mut asked).form = form;
            let refused = both.generate(asked, sending(1), &Attempts::default()).await.err().unwrap();
            assert_eq!(refused.code.as_deref(), Some("upstream_misconfigured"), "{refusal}");
            assert!(refused.is_final, "{refusal}: it is no use to come back");
        }
        assert_eq!(one.seen() + two.seen(), 20, "{refusal}: each is asked once");
    }
}

/// The one that could not answer now may answer whoever comes again.
#[tokio::test]
async fn a_refusal_is_final_where_no_other_server_could_only_not_answer_now() {
    let [busy, closed] = [Server::start(|_| status("503 Busy")).await, Server::start(|_| status("403 Not This")).await];
    let patient = RetryConfig { budget_min: 1000, ..quick() };
    let both = replicas(&[busy.address, closed.address], patient, &never());
    let mut seen = [false; 2];
    for _ in 0..60 {
        let outcome = ask(&both, true, 1).await;
        let (attempts, refused) = (outcome.attempts, outcome.error.unwrap());
        assert_eq!(refused.code.as_deref(), Some("upstream_misconfigured"), "after {attempts}");
        assert_eq!(refused.is_final, attempts == 1, "after {attempts}");
        seen[usize::from(attempts > 1)] = true;
    }
    assert_eq!(seen, [true; 2], "either is asked first");
}

/// It was made, and may be billed, each time.
#[tokio::test]
async fn an_answer_that_is_too_long_is_final_whatever_another_server_could_not_do() {
    let said = format!(
        r#"{{"choices":[{{"index":0,"message":{{"content":"{}"}},"finish_reason":"stop"}}]}}"#,
        "a".repeat(100)
    );
    let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\n";
    let whole = format!("{head}content-length: {}\r\n\r\n{said}", said.len());
    let long = Server::start(move |_| Act::Say(whole.clone())).await;
    let busy = Server::start(|_| status("503 Busy")).await;
    let config = |address: SocketAddr| {
        let mut config = UpstreamConfig::new("east", format!("http://{address}/v1"), "theirs");
        config.connector.max_response_bytes = 100;
        config
    };
    let patient = RetryConfig { budget_min: 1000, ..quick() };
    let both = Replicas::new("mine", [busy.address, long.address].map(config).to_vec(), patient, &never()).unwrap();
    let mut seen = [false; 2];
    for _ in 0..60 {
        let outcome = ask(&both, false, 1).await;
        let refused = outcome.error.unwrap();
        assert_eq!(refused.code.as_deref(), Some("upstream_answer_too_long"), "after {}", outcome.attempts);
        assert!(refused.is_final, "after {}", outcome.attempts);
        seen[usize::from(outcome.attempts > 1)] = true;
    }
    assert_eq!(seen, [true; 2], "either is asked first");
}

#[tokio::test]
async fn requests_go_where_there_is_less_to_do() {
    const BEGUN: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n";
    let servers = [Server::start(|_| Act::Hang(BEGUN)).await, Server::start(|_| Act::Hang(BEGUN)).await];
    let replicas = replicas(&[servers[0].address, servers[1].address], quick(), &never());
    let mut open = Vec::new();
    for _ in 0..20 {
        open.push(replicas.generate(chat(true), sending(1), &Attempts::default()).await.unwrap());
    }
    assert_eq!((servers[0].seen(), servers[1].seen(), replicas.outstanding()), (10, 10, 20));
    drop(open);
    assert_eq!(replicas.outstanding(), 0);
}

#[tokio::test]
async fn whoever_leaves_during_a_pause_is_forgotten() {
    let server = Server::start(|_| status("503 Busy")).await;
    // Of the pause, up to half is left out.
    let pause = Duration::from_secs(3);
    let retry = RetryConfig { backoff: pause, max_backoff: pause, ..quick() };
    let replicas = replicas(&[server.address], retry, &never());
    let asking = tokio::spawn({
        let replicas = replicas.clone();
        async move { ask(&replicas, true, 1).await }
    });
    server.wait_for(1).await;
    let begun = Instant::now();
    while replicas.outstanding() > 0 {
        assert!(begun.elapsed() < Duration::from_secs(60), "it is still there");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(server.seen(), 1);
    asking.abort();
    tokio::time::sleep(pause + Duration::from_millis(500)).await;
    assert_eq!(server.seen(), 1);
}

#[tokio::test]
async fn questions_about_texts_are_sent_again_too() {
    let body = r#"{"data":[{"index":0,"embedding":[1.0,2.0]}],"usage":{"prompt_tokens":3}}"#;
    let vectors = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}", body.len());
    let server = Server::start(move |n| [Act::Reset, status("503 Busy"), Act::Say(vectors.clone())][n].clone()).await;
    let replicas = replicas(&[server.address], quick(), &never());
    let (asked, attempts) = (about("x"), Attempts::default());
    let made = replicas.vectors(&asked, &sending(1), &attempts).await.unwrap();
    assert_eq!((made, attempts.count(), server.seen()), ((vec![vec![1.0, 2.0]], Some(3)), 3, 3));
    let refusing = Server::start(|_| status("503 Busy")).await;
    let replicas = self::replicas(&[refusing.address], quick(), &never());
    let refused = replicas.classify(&asked, &sending(1), &Attempts::default()).await.unwrap_err();
    assert_eq!((refused.kind, refusing.seen()), (RejectKind::BadUpstream, 3));
    let refused = replicas.classify(&asked, &sending(2), &Attempts::default()).await.unwrap_err();
    assert_eq!((refused.kind, refusing.seen()), (RejectKind::BadUpstream, 4), "another gateway asks again itself");
}

#[tokio::test]
async fn a_model_has_a_server() {
    assert!(Replicas::new("mine", Vec::new(), quick(), &never()).err().unwrap().to_string().contains("1 to 64"));
}

/// Whether what came of a question about a text, if somebody waits half a second for it, may be billed.
async fn may_be_billed(base_url: String) -> bool {
    let retry = RetryConfig { retries: 0, ..quick() };
    let server = UpstreamConfig::new("east", base_url, "theirs");
    let replicas = Replicas::new("mine", vec![server], retry, &never()).unwrap();
    let (asked, sending, attempts) = (about("x"), sending(1), Attempts::default());
    let waiting = replicas.vectors(&asked, &sending, &attempts);
    assert!(!tokio::time::timeout(Duration::from_millis(500), waiting).await.is_ok_and(|made| made.is_ok()));
    attempts.may_be_billed()
}

#[tokio::test]
async fn what_a_server_has_and_does_not_refuse_it_may_bill() {
    const NONSENSE: &str = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}";
    const CUT: &str = "HTTP/1.1 200 OK\r\ncontent-length: 9\r\nconnection: close\r\n\r\n{}";
    for (act, billed) in [
        (Act::Hang(""), true),
        (Act::Hang(CUT), true),
        (Act::Say(NONSENSE.into()), true),
        (Act::Say(CUT.into()), true),
        (Act::Reset, true),
        (status("400 Bad Request"), false),
        (status("429 Too Many Requests"), false),
        (status("500 Internal Server Error"), false),
        // Whoever says so may be in front of a server that goes on.
        (status("502 Bad Gateway"), true),
        (status("504 Gateway Timeout"), true),
        // The wait for the rest of a refusal changes nothing.
        (Act::Hang("HTTP/1.1 429 Too Many Requests\r\ncontent-length: 9\r\n\r\n{}"), false),
    ] {
        let what = format!("{act:?}");
        let server = Server::start(move |_| act.clone()).await;
        assert_eq!(may_be_billed(format!("http://{}/v1", server.address)).await, billed, "{what}");
        assert_eq!(server.seen(), 1);
    }
    let closed = closed_port();
    assert!(!may_be_billed(format!("http://{}/v1", closed.local_addr().unwrap())).await);
    // It speaks no TLS: the request never leaves.
    let server = Server::start(|_| Act::Hang("")).await;
    assert!(!may_be_billed(format!("https://{}/v1", server.address)).await);
}

#[tokio::test]
async fn what_one_server_had_the_next_ones_refusal_does_not_undo() {
    let cut = Server::start(|_| Act::Reset).await;
    let refusing = Server::start(|_| status("429 Too Many Requests")).await;
    let retry = RetryConfig { retries: 1, budget_percent: 100, ..quick() };
    let replicas = self::replicas(&[cut.address, refusing.address], retry, &never());
    // Whichever is asked first.
    for asked_so_far in 1..=20 {
        let attempts = Attempts::default();
        replicas.vectors(&about("x"), &sending(1), &attempts).await.unwrap_err();
        assert_eq!((cut.seen(), refusing.seen()), (asked_so_far, asked_so_far));
        assert!(attempts.may_be_billed());
    }
}
