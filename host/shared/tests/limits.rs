//! Limits of several gateways, on a server of each test's own.
#![allow(clippy::expect_used, clippy::unwrap_used, clippy::panic, missing_docs)]

#[path = "../../../tests/src/redis.rs"]
#[allow(dead_code, reason = "each file of tests takes what it needs of it")]
mod redis;

use redis::Redis;
use std::time::{Duration, Instant};
use tidegate_limits::shared::{SharedLimits, SharedReservation};
use tidegate_limits::{Bounds, Claim, Denial, Limiter, Subject};
use tidegate_shared::{Config, Limits, LogSettings, Shared};
use tidegate_types::{Counted, Quota, TenantId};

/// Of a gateway whose leases end, or whose server is away, in its test: short, since the test waits for that.
const LEASE: Duration = Duration::from_secs(4);
const DEADLINE: Duration = Duration::from_secs(1);

/// One gateway's part of it, once it has found the server, which has far more time than an answer takes.
async fn gateway(redis: &Redis) -> Shared {
    gateway_with(redis, 5 * DEADLINE, 5 * LEASE).await
}

async fn hasty_gateway(redis: &Redis) -> Shared {
    gateway_with(redis, DEADLINE, LEASE).await
}

async fn gateway_with(redis: &Redis, deadline: Duration, lease: Duration) -> Shared {
    let config = Config {
        url: redis.url(),
        password: None,
        authority: None,
        prefix: "test".into(),
        gateways: 2,
        deadline,
        lease,
    };
    let shared = Shared::start(config, LogSettings::default()).unwrap();
    found(&shared.limits()).await;
    shared.limits().settled().await;
    shared
}

async fn found(limits: &Limits) {
    let quota = Quota { requests_per_minute: Some(1_000_000), ..Quota::default() };
    let subject = Subject::Key("probe".into());
    let started = Instant::now();
    while limits.reserve(&[Claim { subject: subject.clone(), quota: &quota }], 0).await.is_none() {
        assert!(started.elapsed() < Duration::from_secs(60), "the server is not found");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

type Asked = Option<Result<SharedReservation, Box<Denial>>>;

async fn ask(shared: &Shared, who: &str, quota: &Quota, tokens: u64) -> Asked {
    let subject = Subject::Key(who.into());
    shared.limits().reserve(&[Claim { subject, quota }], tokens).await
}

fn admitted(asked: Asked) -> SharedReservation {
    asked.expect("an answer").unwrap_or_else(|denial| panic!("{denial:?}"))
}

fn denied(asked: Asked) -> Denial {
    *asked.expect("an answer").err().expect("a refusal")
}

#[tokio::test(flavor = "multi_thread")]
async fn gateways_together_let_through_what_one_would() {
    let Some(redis) = Redis::start() else { return };
    let gateways = [gateway(&redis).await, gateway(&redis).await, gateway(&redis).await];
    let quota = Quota { requests_per_minute: Some(30), tokens_per_minute: Some(1200), ..Quota::default() };
    let started = Instant::now();
    let mut asking = tokio::task::JoinSet::new();
    for n in 0..150 {
        let (limits, quota) = (gateways[n % 3].limits(), quota.clone());
        asking.spawn(async move {
            let claim = Claim { subject: Subject::Key("ann".into()), quota: &quota };
            limits.reserve(&[claim], 50).await.expect("an answer").ok()
        });
    }
    // Kept, or what they were charged would be given back.
    let let_in: Vec<SharedReservation> = asking.join_all().await.into_iter().flatten().collect();
    let let_in = let_in.len();
    // 24 requests of 50 tokens are the burst; what was refilled meanwhile is added.
    let refilled = started.elapsed().as_secs() as usize + 1;
    assert!((24..=24 + refilled).contains(&let_in), "{let_in} were let in");
}

#[tokio::test(flavor = "multi_thread")]
async fn all_limits_of_a_request_are_asked_at_once_and_a_refusal_charges_none() {
    let Some(redis) = Redis::start() else { return };
    let shared = gateway(&redis).await;
    let [wide, narrow] = [(600, 200), (2, 100)].map(|(requests, tokens)| Quota {
        requests_per_minute: Some(requests),
        tokens_per_minute: Some(tokens),
        ..Quota::default()
    });
    let (key, tenant) = (Subject::Key("ann".into()), Subject::Tenant(TenantId::new("acme")));
    let claims = [Claim { subject: key.clone(), quota: &wide }, Claim { subject: tenant.clone(), quota: &narrow }];
    let (before, begun) = (redis.num_scripts(), Instant::now());
    // What has leaked away of so many tokens a minute, and half a token for another clock.
    let leaked = |a_minute: f64| (begun.elapsed().as_secs_f64() * a_minute / 60.0 + 0.5) as u64;
    let first = admitted(shared.limits().reserve(&claims, 60).await);
    assert_eq!(redis.num_scripts() - before, 1);
    let (requests, tokens) = (first.allowances.requests.unwrap(), first.allowances.tokens.unwrap());
    assert_eq!((requests.limit, requests.remaining, tokens.limit, tokens.remaining), (2, 1, 100, 40));
    assert!((35..=36).contains(&tokens.reset.as_secs()), "{:?}", tokens.reset);
    let second = denied(shared.limits().reserve(&claims, 60).await);
    assert_eq!((second.subject, second.counted, second.limit), (tenant.clone(), Counted::Tokens, 100));
    let (used, requested) = (second.used, second.requested);
    assert!((60_u64.saturating_sub(leaked(100.0))..=60).contains(&used) && requested == 60, "{used}, {requested}");
    let (retry_after, passed) = (second.retry_after.unwrap().as_secs(), begun.elapsed().as_secs());
    assert!((11_u64.saturating_sub(passed)..=12).contains(&retry_after), "{retry_after}");
    let never = denied(shared.limits().reserve(&claims, 101).await);
    assert_eq!((never.counted, never.retry_after), (Counted::Tokens, None));
    // Two refusals have charged the key nothing.
    let alone = [Claim { subject: key, quota: &wide }];
    let remaining = async || admitted(shared.limits().reserve(&alone, 0).await).allowances.tokens.unwrap().remaining;
    let left = remaining().await;
    assert!((140..=140 + leaked(200.0)).contains(&left), "{left}");
    shared.limits().settled().await;
    let before = redis.num_scripts();
    first.charged.settle(10);
    shared.limits().settled().await;
    assert_eq!(redis.num_scripts() - before, 1);
    // As much leaks away in 15 seconds.
    let left = remaining().await;
    assert!(left >= 190, "{left}: nothing was given back");
}

/// A small generator of the same numbers in each run.
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *state >> 33
}

/// The script is the limiter of one process in another language: whatever is asked, let in, ended, and in which order.
#[tokio::test(flavor = "multi_thread")]
async fn the_server_counts_as_the_limiter_of_one_process_does() {
    let Some(redis) = Redis::start() else { return };
    let shared = gateway(&redis).await;
    let quota = Quota { tokens_per_minute: Some(3000), requests_per_minute: Some(6000), ..Quota::default() };
    let mut local = Limiter::new(Bounds { users_per_tenant: 1 });
    let (subject, begun) = (Subject::Key("ann".into()), Instant::now());
    let claims = [Claim { subject: subject.clone(), quota: &quota }];
    let (mut running, mut state, mut differed) = (Vec::new(), 7, 0);
    // Both are not asked at the same moment: what leaks away in the longest time between may be the difference.
    let mut slack = 2;
    for step in 0..600 {
        if next(&mut state).is_multiple_of(20) {
            tokio::time::sleep(Duration::from_millis(next(&mut state) % 120)).await;
        }
        let tokens = next(&mut state) % 500;
        let asked = Instant::now();
        let here = local.reserve(&claims, tokens, begun.elapsed());
        let there = shared.limits().reserve(&claims, tokens).await.expect("an answer");
        slack = slack.max(2 + asked.elapsed().as_millis() as u64 / 20);
        match (here, there) {
            (Ok(mut here), Ok(mut there)) => {
                let left = [here.allowances(), there.allowances].map(|left| left.tokens.unwrap().remaining);
                assert!(left[0].abs_diff(left[1]) <= slack, "{left:?} in step {step}");
                let more = next(&mut state) % 400;
                if more < 100 {
                    local.raise(&mut here, more, begun.elapsed());
                    there.charged.raise(more);
                    shared.limits().settled().await;
                }
                running.push((here, there, if more < 100 { tokens + more } else { tokens }));
            }
            (Err(here), Err(there)) => {
                assert_eq!((here.counted, here.requested), (there.counted, there.requested));
                assert!(here.used.abs_diff(there.used) <= slack, "{} and {} in step {step}", here.used, there.used);
            }
            // A moment lies between the two questions.
            (Ok(here), Err(_)) => {
                local.settle(here, 0, begun.elapsed());
                differed += 1;
            }
            (Err(_), Ok(there)) => {
                there.charged.settle(0);
                shared.limits().settled().await;
                differed += 1;
            }
        }
        if running.len() > 12 || next(&mut state).is_multiple_of(3) && !running.is_empty() {
            let pick = usize::try_from(next(&mut state)).unwrap() % running.len();
            let (here, there, tokens) = running.swap_remove(pick);
            let used = next(&mut state) % (tokens + 20);
            local.settle(here, used, begun.elapsed());
            there.charged.settle(used);
            shared.limits().settled().await;
        }
    }
    assert!(differed < 20, "{differed}");
}

fn rate(per_minute: u64) -> Quota {
    Quota { tokens_per_minute: Some(per_minute), requests_per_minute: Some(per_minute), ..Quota::default() }
}

#[tokio::test(flavor = "multi_thread")]
async fn at_a_lower_rate_nobody_waits_for_more_than_a_minutes_amount() {
    let Some(redis) = Redis::start() else { return };
    let gateway = gateway(&redis).await;
    let _much = admitted(ask(&gateway, "ann", &rate(600_000), 600_000).await);
    for _ in 0..3 {
        let wait = denied(ask(&gateway, "ann", &rate(6_000), 3_000).await).retry_after.unwrap();
        // A quarter more so that not all come back at once.
        assert!(wait > Duration::from_secs(20) && wait < Duration::from_secs(40), "{wait:?}");
    }
}

/// As while a config is rolled out.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_charged_at_one_rate_is_not_forgotten_at_another() {
    let Some(redis) = Redis::start() else { return };
    let [low, high] = [gateway(&redis).await, gateway(&redis).await];
    let small = admitted(ask(&low, "ann", &rate(6_000), 1_000).await);
    let _large = admitted(ask(&high, "ann", &rate(600_000), 590_000).await);
    denied(ask(&high, "ann", &rate(600_000), 590_000).await);
    small.charged.settle(1_000);
    low.limits().settled().await;
    denied(ask(&high, "ann", &rate(600_000), 590_000).await);
    denied(ask(&low, "ann", &rate(6_000), 1_000).await);
    denied(ask(&high, "ann", &rate(600_000), 590_000).await);
    // Nor where a gateway has no limit.
    let free = Quota { concurrency: Some(9), ..Quota::default() };
    let _free = admitted(ask(&low, "ann", &free, 1_000).await);
    denied(ask(&high, "ann", &rate(600_000), 590_000).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_gateway_holds_ends_with_it_and_not_before() {
    let Some(redis) = Redis::start() else { return };
    let two = gateway(&redis).await;
    let quota = Quota { concurrency: Some(1), ..Quota::default() };
    let mut took = Vec::new();
    // A busy machine may renew late, or look late, but not each time.
    while !took.iter().any(|took| (LEASE / 2..3 * LEASE).contains(took)) {
        assert!(took.len() < 5, "{took:?}");
        let one = hasty_gateway(&redis).await;
        let held = admitted(ask(&one, "ann", &quota, 0).await);
        // For longer than a lease, which is renewed.
        for _ in 0..12 {
            let full = denied(ask(&two, "ann", &quota, 0).await);
            assert_eq!((full.counted, full.used, full.retry_after), (Counted::Concurrency, 1, Some(Duration::ZERO)));
            tokio::time::sleep(LEASE / 10).await;
        }
        // Killed: nothing is said, and nothing renewed.
        std::mem::forget(held);
        let gone = Instant::now();
        drop(one);
        while ask(&two, "ann", &quota, 0).await.expect("an answer").is_err() {
            assert!(gone.elapsed() < Duration::from_secs(60), "it is held for ever");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        took.push(gone.elapsed());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_goes_away_while_it_is_asked_has_taken_nothing() {
    let Some(redis) = Redis::start() else { return };
    let shared = gateway(&redis).await;
    let quota = Quota { concurrency: Some(1), ..Quota::default() };
    let limits = shared.limits();
    for _ in 0..20 {
        let claims = [Claim { subject: Subject::Key("ann".into()), quota: &quota }];
        let mut asking = limits.reserve(&claims, 0);
        tokio::select! {
            biased;
            _ = &mut asking => {}
            () = std::future::ready(()) => {}
        }
    }
    let started = Instant::now();
    while ask(&shared, "ann", &quota, 0).await.expect("an answer").is_err() {
        assert!(started.elapsed() < 5 * LEASE / 2, "its place is held until the lease ends");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// What a further turn may cost was never counted where the server could not be asked, and is not given back at the end.
#[tokio::test(flavor = "multi_thread")]
async fn a_raise_that_the_server_did_not_take_is_not_given_back() {
    let Some(redis) = Redis::start() else { return };
    let shared = hasty_gateway(&redis).await;
    // A second of waiting leaks a sixtieth of it.
    let quota = Quota { tokens_per_minute: Some(1_000_000), ..Quota::default() };
    let held = admitted(ask(&shared, "ann", &quota, 600_000).await);
    let mut raised = admitted(ask(&shared, "ann", &quota, 1000).await);
    redis.stall();
    assert!(ask(&shared, "ann", &quota, 0).await.is_none());
    raised.charged.raise(300_000);
    shared.limits().settled().await;
    redis.go_on();
    found(&shared.limits()).await;
    raised.charged.settle(1000);
    shared.limits().settled().await;
    let left = admitted(ask(&shared, "ann", &quota, 0).await).allowances.tokens.unwrap().remaining;
    assert!(left < 600_000, "{left}");
    // One that was taken is.
    let mut raised = admitted(ask(&shared, "ann", &quota, 0).await);
    raised.charged.raise(200_000);
    shared.limits().settled().await;
    let less = admitted(ask(&shared, "ann", &quota, 0).await).allowances.tokens.unwrap().remaining;
    assert!(less + 150_000 < left, "{less}");
    raised.charged.settle(0);
    shared.limits().settled().await;
    let back = admitted(ask(&shared, "ann", &quota, 0).await).allowances.tokens.unwrap().remaining;
    assert!(back > less + 150_000, "{back}");
    drop(held);
}

/// Nobody waits for long, the first one neither, and nobody waits again until it is back.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_killed_or_stalled_is_done_without_and_found_again() {
    let Some(mut redis) = Redis::start() else { return };
    let shared = hasty_gateway(&redis).await;
    let quota = Quota { requests_per_minute: Some(100), concurrency: Some(5), ..Quota::default() };
    let held = admitted(ask(&shared, "ann", &quota, 0).await);
    for fault in ["killed", "stalled"] {
        let mut tries = 0;
        loop {
            if fault == "killed" {
                redis.kill()
            } else {
                redis.stall()
            }
            let started = Instant::now();
            assert!(ask(&shared, "ann", &quota, 0).await.is_none(), "{fault}");
            let first = started.elapsed();
            for _ in 0..1000 {
                assert!(ask(&shared, "ann", &quota, 0).await.is_none(), "{fault}");
            }
            let rest = started.elapsed() - first;
            if fault == "killed" {
                redis.revive()
            } else {
                redis.go_on()
            }
            found(&shared.limits()).await;
            // A busy machine may take longer, but not each time.
            if first < 2 * DEADLINE && rest < DEADLINE {
                break;
            }
            tries += 1;
            assert!(tries < 5, "{fault}: {first:?} for the first, {rest:?} for the rest");
        }
    }
    // What was asked of the stalled one it did when it went on; nobody renews that.
    tokio::time::sleep(LEASE + DEADLINE).await;
    // The one that ran all the while counts on a server that had forgotten it.
    let four: Vec<SharedReservation> = {
        let mut four = Vec::new();
        for _ in 0..4 {
            four.push(admitted(ask(&shared, "ann", &quota, 0).await));
        }
        four
    };
    assert_eq!(denied(ask(&shared, "ann", &quota, 0).await).used, 5);
    drop((held, four));
}
