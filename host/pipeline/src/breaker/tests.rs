use super::Admission::{Refused, Trial, Usual};
use super::*;
use std::sync::atomic::AtomicU64;

fn breaker() -> (Breaker, TenantId, Instant) {
    let config = BreakerConfig { failures: 2, within: Duration::from_secs(10), pause: Duration::from_secs(5) };
    (Breaker::new(config), TenantId::new("a"), Instant::now())
}

/// Of a request of its own.
fn note(breaker: &Breaker, tenant: &TenantId, admission: Admission, outcome: Outcome, now: Instant) -> bool {
    let attempt = Attempt { breaker, tenant, request: own(), admission, has_ended: false };
    attempt.end(outcome, now)
}

fn begin<'b>(breaker: &'b Breaker, tenant: &'b TenantId, now: Instant) -> Option<Attempt<'b>> {
    breaker.begin(tenant, own(), now)
}

/// To a request of its own.
fn admits(breaker: &Breaker, tenant: &TenantId, now: Instant) -> Admission {
    breaker.admits(tenant, own(), now)
}

fn own() -> &'static RequestId {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    Box::leak(Box::new(RequestId::new(COUNT.fetch_add(1, Ordering::Relaxed).to_string())))
}

fn s(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

#[test]
fn it_opens_after_failures_within_the_time_and_closes_after_a_call_that_is_fine() {
    let (breaker, a, now) = breaker();
    assert!(!note(&breaker, &a, Usual, Outcome::Failed, now));
    assert!(!note(&breaker, &a, Usual, Outcome::Failed, now + s(11)), "the first one is forgotten");
    assert!(note(&breaker, &a, Usual, Outcome::Failed, now + s(12)));
    assert_eq!(admits(&breaker, &a, now + s(16)), Refused);
    assert_eq!(admits(&breaker, &a, now + s(17)), Trial, "one call after the pause");
    assert_eq!(admits(&breaker, &a, now + s(17)), Refused, "and only one");
    note(&breaker, &a, Trial, Outcome::Fine, now + s(18));
    assert_eq!([admits(&breaker, &a, now + s(18)), admits(&breaker, &a, now + s(18))], [Usual, Usual]);
    assert!(!breaker.is_troubled());
}

/// An answer has many windows, a request many answers.
#[test]
fn a_request_counts_once_however_often_it_meets_the_failure() {
    let (breaker, a, now) = breaker();
    // Clients name them, and may give all the same name.
    let [one, other] = ["app"; 2].map(RequestId::new);
    let fails = |request, at| breaker.begin(&a, request, at).unwrap().end(Outcome::Failed, at);
    assert!((0..5).all(|n| !fails(&one, now + s(n))));
    assert!(breaker.has_failures(&a));
    assert!(fails(&other, now + s(13)), "the last of the first one's is 9 s ago");
    assert_eq!(admits(&breaker, &a, now + s(14)), Refused);
}

#[test]
fn a_failure_of_the_call_after_the_pause_opens_it_again() {
    let (breaker, a, now) = breaker();
    note(&breaker, &a, Usual, Outcome::Failed, now);
    note(&breaker, &a, Usual, Outcome::Failed, now);
    assert!(!note(&breaker, &a, Usual, Outcome::Failed, now), "it is left out already");
    assert_eq!(admits(&breaker, &a, now + s(5)), Trial);
    assert!(note(&breaker, &a, Trial, Outcome::Failed, now + s(6)), "once more");
    assert_eq!(admits(&breaker, &a, now + s(10)), Refused);
    assert_eq!(admits(&breaker, &a, now + s(11)), Trial);
}

/// It asks about its prompts at once.
#[test]
fn calls_of_the_trials_request_go_beside_it_and_decide_nothing() {
    let (breaker, a, now) = breaker();
    note(&breaker, &a, Usual, Outcome::Failed, now);
    note(&breaker, &a, Usual, Outcome::Failed, now);
    // Clients name them, and may give all the same name.
    let [one, other] = ["app"; 2].map(RequestId::new);
    let begin = |request| breaker.begin(&a, request, now + s(5));
    let trial = begin(&one).unwrap();
    let [fine, failing, late] = [(); 3].map(|()| begin(&one).expect("it is of the same request"));
    fine.end(Outcome::Fine, now + s(6));
    assert!(begin(&other).is_none(), "the trial decides");
    assert!(!failing.end(Outcome::Failed, now + s(6)) && begin(&other).is_none());
    assert!(trial.end(Outcome::Failed, now + s(6)));
    assert!(begin(&one).is_none(), "the pause is for all");
    late.end(Outcome::Fine, now + s(7));
    assert_eq!([admits(&breaker, &a, now + s(10)), admits(&breaker, &a, now + s(11))], [Refused, Trial]);
}

#[test]
fn a_call_that_says_nothing_of_the_plugin_leaves_the_trial_to_the_next_one() {
    let (breaker, a, now) = breaker();
    note(&breaker, &a, Usual, Outcome::Failed, now);
    assert!(!note(&breaker, &a, Usual, Outcome::Unknown, now));
    assert!(note(&breaker, &a, Usual, Outcome::Failed, now), "it makes no failure good");
    note(&breaker, &a, Usual, Outcome::Unknown, now + s(1));
    assert_eq!(admits(&breaker, &a, now + s(2)), Refused, "one that began before shortens no pause");
    assert_eq!(admits(&breaker, &a, now + s(5)), Trial);
    note(&breaker, &a, Trial, Outcome::Unknown, now + s(6));
    assert_eq!([admits(&breaker, &a, now + s(6)), admits(&breaker, &a, now + s(6))], [Trial, Refused]);
    note(&breaker, &a, Trial, Outcome::Fine, now + s(7));
    assert_eq!(admits(&breaker, &a, now + s(7)), Usual);
}

#[test]
fn a_call_after_the_pause_that_is_cut_off_leaves_the_trial_to_the_next_one() {
    let config = BreakerConfig { failures: 1, pause: s(3600), ..BreakerConfig::default() };
    let (breaker, a, now) = (Breaker::new(config), TenantId::new("a"), Instant::now());
    assert!(begin(&breaker, &a, now).unwrap().end(Outcome::Failed, now));
    let over = now + s(3600);
    let trial = begin(&breaker, &a, over).unwrap();
    assert!(begin(&breaker, &a, over).is_none(), "the others wait for what it says");
    drop(trial);
    let next = begin(&breaker, &a, over).expect("it said nothing");
    assert!(begin(&breaker, &a, over).is_none(), "one at a time");
    next.end(Outcome::Fine, over);
    drop(begin(&breaker, &a, over).expect("it is closed"));
    assert!(begin(&breaker, &a, over).is_some());
}

#[test]
fn a_usual_call_that_is_cut_off_shortens_no_pause() {
    let (breaker, a, now) = breaker();
    let cut_off = begin(&breaker, &a, now).unwrap();
    note(&breaker, &a, Usual, Outcome::Failed, now);
    note(&breaker, &a, Usual, Outcome::Failed, now);
    drop(cut_off);
    assert!(begin(&breaker, &a, now + s(4)).is_none());
}

#[test]
fn a_usual_call_that_ends_well_after_it_opened_closes_nothing() {
    let (breaker, a, now) = breaker();
    let [late, later] = [(); 2].map(|()| begin(&breaker, &a, now).unwrap());
    note(&breaker, &a, Usual, Outcome::Failed, now);
    note(&breaker, &a, Usual, Outcome::Failed, now);
    late.end(Outcome::Fine, now + s(1));
    assert_eq!(admits(&breaker, &a, now + s(4)), Refused);
    assert_eq!(admits(&breaker, &a, now + s(5)), Trial);
    later.end(Outcome::Fine, now + s(6));
    assert_eq!(admits(&breaker, &a, now + s(6)), Refused, "the trial decides");
    note(&breaker, &a, Trial, Outcome::Fine, now + s(7));
    assert_eq!(admits(&breaker, &a, now + s(7)), Usual);
}

/// Others may be under way since before it opened.
#[test]
fn a_trial_that_takes_long_is_waited_for_and_it_alone_decides() {
    let (breaker, a, now) = breaker();
    let late = begin(&breaker, &a, now).unwrap();
    note(&breaker, &a, Usual, Outcome::Failed, now);
    note(&breaker, &a, Usual, Outcome::Failed, now);
    assert_eq!([admits(&breaker, &a, now + s(5)), admits(&breaker, &a, now + s(5))], [Trial, Refused]);
    assert_eq!(admits(&breaker, &a, now + s(60)), Refused, "it has not decided");
    assert!(!late.end(Outcome::Failed, now + s(60)), "it was let through before");
    assert_eq!(admits(&breaker, &a, now + s(60)), Refused);
    note(&breaker, &a, Trial, Outcome::Fine, now + s(61));
    assert_eq!(admits(&breaker, &a, now + s(61)), Usual);
}

#[test]
fn a_usual_call_that_fails_after_it_opened_makes_no_pause_longer() {
    let (breaker, a, now) = breaker();
    let [late, later] = [(); 2].map(|()| begin(&breaker, &a, now).unwrap());
    note(&breaker, &a, Usual, Outcome::Failed, now);
    note(&breaker, &a, Usual, Outcome::Failed, now);
    assert!(![late.end(Outcome::Failed, now + s(3)), later.end(Outcome::Failed, now + s(5))].contains(&true));
    assert_eq!(admits(&breaker, &a, now + s(5)), Trial);
}

#[test]
fn a_tenant_that_does_not_call_again_is_forgotten() {
    let (breaker, a, now) = breaker();
    let [b, c] = ["b", "c"].map(TenantId::new);
    note(&breaker, &a, Usual, Outcome::Failed, now);
    note(&breaker, &b, Usual, Outcome::Failed, now);
    note(&breaker, &b, Usual, Outcome::Failed, now);
    assert_eq!([admits(&breaker, &c, now + s(11)), admits(&breaker, &b, now + s(4))], [Usual, Refused]);
    assert!(!breaker.has_failures(&a) && breaker.has_failures(&b));
    assert_eq!(admits(&breaker, &c, now + s(16)), Usual);
    assert!(!breaker.is_troubled());
}

#[test]
fn one_tenants_failures_are_its_own() {
    let (breaker, a, now) = breaker();
    note(&breaker, &a, Usual, Outcome::Failed, now);
    note(&breaker, &a, Usual, Outcome::Failed, now);
    assert_eq!(admits(&breaker, &a, now), Refused);
    assert_eq!(admits(&breaker, &TenantId::new("b"), now), Usual);
}

#[test]
fn without_a_number_it_never_opens_and_knows_of_the_last_failure() {
    let breaker = Breaker::new(BreakerConfig { failures: 0, ..BreakerConfig::default() });
    let (a, now) = (TenantId::new("a"), Instant::now());
    for _ in 0..100 {
        assert!(!note(&breaker, &a, Usual, Outcome::Failed, now));
    }
    assert_eq!(admits(&breaker, &a, now), Usual);
    assert!(breaker.has_failures(&a));
    assert_eq!(breaker.lock().of[&a].failures.len(), 1);
    note(&breaker, &a, Usual, Outcome::Fine, now + breaker.config.within + s(1));
    assert!(!breaker.has_failures(&a));
}
