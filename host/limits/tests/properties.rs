//! What holds whatever callers do and whenever.
#![allow(clippy::expect_used, clippy::unwrap_used, clippy::panic, missing_docs)]

use proptest::prelude::*;
use std::collections::VecDeque;
use std::time::Duration;
use tidegate_limits::meter::{Charge, Meter};
use tidegate_limits::{Bounds, Claim, Limiter, Reservation, Subject};
use tidegate_types::{Counted, Quota, TenantId};

const MINUTE_MS: u64 = 60_000;

fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

fn limiter() -> Limiter {
    Limiter::new(Bounds { users_per_tenant: 100 })
}

fn key(name: &str) -> Subject {
    Subject::Key(name.into())
}

fn claim<'a>(subject: &Subject, quota: &'a Quota) -> Claim<'a> {
    Claim { subject: subject.clone(), quota }
}

/// One caller's step: some time passes, it asks for tokens, and an earlier request of its ends with a share used.
type Step = (u64, u64, bool, u64);

fn steps(len: usize) -> impl Strategy<Value = Vec<Step>> {
    let pause = prop_oneof![3 => 0_u64..50, 2 => 50_u64..2000, 1 => 2000_u64..90_000];
    proptest::collection::vec((pause, 0_u64..400, any::<bool>(), 0_u64..=400), 1..len)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Charged when let in, whatever was reserved and corrected meanwhile.
    #[test]
    fn no_window_sees_more_than_its_rate_and_a_burst(rate in 1_u64..500, steps in steps(120)) {
        let quota = Quota { tokens_per_minute: Some(rate), requests_per_minute: Some(rate), ..Quota::default() };
        let (mut limiter, who) = (limiter(), key("k"));
        let mut now = 0;
        let mut running: VecDeque<(u64, u64, Reservation)> = VecDeque::new();
        let mut used: Vec<(u64, u64)> = Vec::new();
        let mut requests: Vec<(u64, u64)> = Vec::new();
        for (pause, tokens, ends, share) in steps {
            now += pause;
            if let Ok(reservation) = limiter.reserve(&[claim(&who, &quota)], tokens, ms(now)) {
                running.push_back((now, tokens, reservation));
                requests.push((now, 1));
            }
            if ends && let Some((since, tokens, reservation)) = running.pop_front() {
                let spent = tokens * share / 400;
                limiter.settle(reservation, spent, ms(now));
                used.push((since, spent));
            }
        }
        used.extend(running.iter().map(|(since, tokens, _)| (*since, *tokens)));
        used.sort_unstable();
        for series in [used, requests] {
            for (i, (from, _)) in series.iter().enumerate() {
                let mut sum = 0;
                for (to, amount) in &series[i..] {
                    sum += amount;
                    // sum <= burst + rate * window, in parts of a minute.
                    prop_assert!(sum * MINUTE_MS <= rate * MINUTE_MS + rate * (to - from), "{sum} in {}", to - from);
                }
            }
        }
    }

    /// The meter is at every moment where one would be that had known from the start what each charge came to.
    #[test]
    fn a_correction_leaves_what_a_meter_would_have_that_had_known(
        rate in 1_u64..500, steps in steps(60), newest in any::<bool>(),
    ) {
        let mut meter = Meter::new(rate, ms(0));
        let mut now = 0;
        let mut known: Vec<(u64, u64)> = Vec::new();
        let mut open: VecDeque<(usize, u64, Charge)> = VecDeque::new();
        for (pause, tokens, ends, share) in steps {
            now += pause;
            // Some thirty minima are kept apart; more open charges than that are the next property's.
            if open.len() < 16 {
                open.push_back((known.len(), tokens, meter.reserve(tokens, ms(now))));
                known.push((now, tokens));
            }
            if ends && let Some((idx, tokens, charge)) = if newest { open.pop_back() } else { open.pop_front() } {
                known[idx].1 = tokens * share / 400;
                meter.correct(charge, known[idx].1, ms(now));
            }
            let (mut level, mut at) = (0_u64, 0);
            for (then, amount) in &known {
                level = level.saturating_sub((then - at) * rate) + amount * MINUTE_MS;
                at = *then;
            }
            level = level.saturating_sub((now - at) * rate);
            prop_assert_eq!(meter.used(ms(now)), level.div_ceil(MINUTE_MS));
        }
    }

    /// However many are open at once and in whatever order they end: never below what knowing would have left.
    #[test]
    fn a_correction_never_gives_back_too_much(
        rate in 1_u64..500, steps in steps(200), order in proptest::collection::vec(any::<u16>(), 200),
    ) {
        let mut meter = Meter::new(rate, ms(0));
        let mut now = 0;
        let mut known: Vec<(u64, u64)> = Vec::new();
        let mut open: Vec<(usize, u64, Charge)> = Vec::new();
        for ((pause, tokens, ends, share), pick) in steps.into_iter().zip(order) {
            now += pause;
            open.push((known.len(), tokens, meter.reserve(tokens, ms(now))));
            known.push((now, tokens));
            if ends {
                let (idx, tokens, charge) = open.swap_remove(usize::from(pick) % open.len());
                known[idx].1 = tokens * share / 400;
                meter.correct(charge, known[idx].1, ms(now));
            }
            let (mut level, mut at) = (0_u64, 0);
            for (then, amount) in &known {
                level = level.saturating_sub((then - at) * rate) + amount * MINUTE_MS;
                at = *then;
            }
            level = level.saturating_sub((now - at) * rate);
            prop_assert!(meter.used(ms(now)) >= level.div_ceil(MINUTE_MS));
        }
    }

    /// Nothing leaks: once all have ended and the minute has passed, everything may be asked for again.
    #[test]
    fn what_has_ended_leaves_nothing_behind(steps in steps(100)) {
        let quota = Quota { tokens_per_minute: Some(1000), concurrency: Some(5), ..Quota::default() };
        let (mut limiter, who) = (limiter(), key("k"));
        let mut now = 0;
        let mut running = VecDeque::new();
        for (pause, tokens, ends, share) in steps {
            now += pause;
            running.extend(limiter.reserve(&[claim(&who, &quota)], tokens, ms(now)));
            prop_assert!(running.len() <= 5);
            if ends && let Some(reservation) = running.pop_front() {
                limiter.settle(reservation, share, ms(now));
            }
        }
        running.drain(..).for_each(|reservation| limiter.settle(reservation, 0, ms(now)));
        now += 10 * MINUTE_MS;
        for _ in 0..5 {
            running.push_back(limiter.reserve(&[claim(&who, &quota)], 200, ms(now)).unwrap());
        }
        prop_assert_eq!(limiter.reserve(&[claim(&who, &quota)], 1, ms(now)).unwrap_err().used, 1000);
    }
}

#[test]
fn a_refusal_by_one_limit_charges_none() {
    let (mut limiter, wide, narrow) = (limiter(), key("k"), Subject::Tenant(TenantId::new("t")));
    let [many, few] = [100, 10].map(|rate| Quota { tokens_per_minute: Some(rate), ..Quota::default() });
    let denied = limiter.reserve(&[claim(&wide, &many), claim(&narrow, &few)], 20, ms(0)).unwrap_err();
    assert_eq!((denied.subject, denied.limit, denied.requested, denied.retry_after), (narrow, 10, 20, None));
    let alone = limiter.reserve(&[claim(&wide, &many)], 100, ms(0)).unwrap();
    assert_eq!(alone.allowances().tokens.unwrap().remaining, 0);
    limiter.settle(alone, 0, ms(0));
}

#[test]
fn of_several_refusals_the_longest_is_told_and_the_tightest_allowance() {
    let mut limiter = limiter();
    let quota =
        Quota { requests_per_minute: Some(2), tokens_per_minute: Some(600), concurrency: Some(2), ..Quota::default() };
    let who = [claim(&key("k"), &quota)];
    let running = [(); 2].map(|()| limiter.reserve(&who, 30, ms(0)).unwrap());
    let denied = limiter.reserve(&who, 30, ms(0)).unwrap_err();
    assert_eq!((denied.counted, denied.retry_after), (Counted::Requests, Some(Duration::from_secs(30))));
    assert_eq!(denied.allowances.requests.unwrap().reset, Duration::from_secs(60));
    assert_eq!(denied.allowances.tokens.unwrap().remaining, 540);
    let denied = limiter.reserve(&who, 30, ms(MINUTE_MS)).unwrap_err();
    assert_eq!((denied.counted, denied.limit, denied.used), (Counted::Concurrency, 2, 2));
    running.into_iter().for_each(|reservation| limiter.settle(reservation, 30, ms(MINUTE_MS)));
    let _ = limiter.reserve(&who, 30, ms(MINUTE_MS)).unwrap();
}

#[test]
fn idle_subjects_are_forgotten_however_many_come() {
    let mut limiter = limiter();
    let quota = Quota { requests_per_minute: Some(60), ..Quota::default() };
    let tenants: Vec<TenantId> = (0..4).map(|i| TenantId::new(format!("t{i}"))).collect();
    for i in 0..200_000_u64 {
        let now = Duration::from_millis(i);
        let user = Subject::User(tenants[i as usize % 4].clone(), u128::from(i));
        if let Ok(reservation) = limiter.reserve(&[claim(&user, &quota)], 1, now) {
            limiter.settle(reservation, 1, now);
        }
        // 100 of each tenant, those who share, and twice that before a sweep.
        assert!(limiter.num_subjects() <= 808, "{}", limiter.num_subjects());
    }
}

#[test]
fn users_that_there_is_no_room_for_share_one_limit_and_others_keep_theirs() {
    let mut limiter = limiter();
    let quota = Quota { requests_per_minute: Some(1), ..Quota::default() };
    let user = |tenant: &str, id| Subject::User(TenantId::new(tenant), id);
    let mut ask = |who| {
        limiter.reserve(&[claim(&who, &quota)], 0, ms(0)).map(|reservation| limiter.settle(reservation, 0, ms(0)))
    };
    for id in 0..100 {
        ask(user("a", id)).unwrap();
    }
    ask(user("a", 100)).unwrap();
    let denied = ask(user("a", 101)).unwrap_err();
    assert_eq!(denied.subject, Subject::OtherUsers(TenantId::new("a")));
    ask(user("b", 101)).unwrap();
    assert!(ask(user("a", 5)).is_err());
}

/// Looking for room for one subject must not forget another that the same request is about to be counted for.
#[test]
fn making_room_for_a_user_forgets_nothing_of_the_request_that_brings_it() {
    let mut limiter = Limiter::new(Bounds { users_per_tenant: 1 });
    let [one, many] = [1, 1000].map(|rate| Quota { requests_per_minute: Some(rate), ..Quota::default() });
    let user = |id| Subject::User(TenantId::new("t"), id);
    let _busy = limiter.reserve(&[claim(&user(0), &many)], 0, ms(0)).unwrap();
    let mut ask = |id, at| limiter.reserve(&[claim(&key("k"), &one), claim(&user(id), &many)], 0, ms(at));
    let first = ask(1, 2000).unwrap();
    let denied = ask(2, 4000).unwrap_err();
    assert_eq!((denied.subject, denied.counted), (key("k"), Counted::Requests));
    limiter.settle(first, 0, ms(5000));
    let both = [claim(&key("k"), &one), claim(&user(3), &many)];
    assert!(limiter.reserve(&both, 0, ms(6000)).is_err(), "the end of a request gives back no request");
}

#[test]
fn what_is_not_limited_for_a_while_is_not_charged_for() {
    let (mut limiter, who) = (limiter(), key("k"));
    let limited = Quota { tokens_per_minute: Some(60), requests_per_minute: Some(60), ..Quota::default() };
    let free = Quota { concurrency: Some(9), ..Quota::default() };
    let mut ask = |quota: &Quota, at: u64| {
        let asked = limiter.reserve(&[claim(&who, quota)], 50, ms(at));
        asked.map(|reservation| limiter.settle(reservation, 50, ms(at))).map_err(|denial| denial.retry_after)
    };
    assert_eq!(ask(&limited, 0), Ok(()));
    for _ in 0..1_000 {
        assert_eq!(ask(&free, 10_000), Ok(()));
    }
    // Of the first 50 there are 10 left to leak.
    assert_eq!(ask(&limited, 30_000), Err(Some(ms(10_000))));
    assert_eq!(ask(&free, 60_000), Ok(()));
    assert_eq!(ask(&limited, 60_000), Ok(()));
}
