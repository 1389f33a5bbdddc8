//! Budgets by what they allow and tell.

use super::*;

/// 2026-11-21 12:00:00 UTC.
const NOON: u64 = 1_795_262_400_000;

fn payer<'a>(tenant: &'a str, key: &'a str) -> Payer<'a> {
    Payer { tenant, project: None, key }
}

fn ids(alerts: Vec<Alert>) -> Vec<String> {
    alerts.into_iter().map(|alert| alert.id).collect()
}

fn budgets(daily: u64, monthly: u64) -> Budgets {
    let mut budgets = Budgets::default();
    let budget = Budget { daily: Some(daily), monthly: Some(monthly), soft_percent: 80 };
    budgets.of_tenant("t", budget, Spent::default(), NOON);
    budgets
}

#[test]
fn what_runs_beside_each_other_cannot_spend_the_same_money() {
    let mut budgets = budgets(100, 1000);
    budgets.reserve(&payer("t", "k"), 60, NOON).unwrap();
    let refused = budgets.reserve(&payer("t", "k"), 60, NOON).unwrap_err();
    assert_eq!((refused.window, refused.limit, refused.spent, refused.resets_s), ("day", 100, 60, DAY_S / 2));
    assert!(budgets.settle(&payer("t", "k"), 60, 10, NOON).is_empty());
    budgets.reserve(&payer("t", "k"), 90, NOON).unwrap();
    assert!(budgets.reserve(&payer("other", "k"), u64::MAX, NOON).is_ok(), "who has no budget has no bound");
}

#[test]
fn a_projects_budget_is_beside_its_tenants() {
    let mut budgets = budgets(100, 1000);
    let budget = Budget { daily: Some(30), monthly: None, soft_percent: 0 };
    budgets.of_project("proj_p", budget, Spent::default(), NOON);
    let of = |project| Payer { tenant: "t", project, key: "k" };
    budgets.reserve(&of(Some("proj_p")), 30, NOON).unwrap();
    let refused = budgets.reserve(&of(Some("proj_p")), 1, NOON).unwrap_err();
    assert_eq!((refused.scope, &*refused.name, refused.spent), ("project", "proj_p", 30));
    budgets.reserve(&of(Some("proj_other")), 70, NOON).unwrap();
    assert_eq!(budgets.reserve(&of(None), 1, NOON).unwrap_err().scope, "tenant");
    let alerts = budgets.settle(&of(Some("proj_p")), 30, 30, NOON);
    assert_eq!(alerts.iter().map(|alert| &*alert.id).collect::<Vec<_>>(), ["project:proj_p:2026-11-21:hard:30"]);
}

#[test]
fn a_bound_is_told_of_once_in_its_window_and_a_new_day_begins_at_zero() {
    let mut budgets = budgets(100, 1000);
    assert_eq!(ids(budgets.settle(&payer("t", "k"), 0, 80, NOON)), ["tenant:t:2026-11-21:soft:100"]);
    assert!(ids(budgets.settle(&payer("t", "k"), 0, 10, NOON)).is_empty());
    assert_eq!(ids(budgets.settle(&payer("t", "k"), 0, 10, NOON)), ["tenant:t:2026-11-21:hard:100"]);
    assert!(budgets.reserve(&payer("t", "k"), 1, NOON).is_err());
    let tomorrow = NOON + DAY_S * 1000;
    budgets.reserve(&payer("t", "k"), 100, tomorrow).unwrap();
    budgets.settle(&payer("t", "k"), 100, 0, tomorrow);
    assert!(budgets.reserve(&payer("t", "k"), 1, NOON).is_ok(), "yesterday's clock counts as today's");
    assert!(budgets.reserve(&payer("t", "k"), 100, NOON).is_err(), "and does not begin a day anew");
}

#[test]
fn other_budgets_go_on_with_what_runs_and_what_was_spent() {
    let mut before = budgets(100, 1000);
    before.reserve(&payer("t", "k"), 60, NOON).unwrap();
    before.settle(&payer("t", "k"), 0, 30, NOON);
    let mut after = Budgets::default();
    let budget = Budget { daily: Some(100), monthly: None, soft_percent: 80 };
    // The database knows of less for the tenant than was spent, and the key had no budget until now.
    after.of_tenant("t", budget, Spent { day: 10, month: 10 }, NOON);
    after.of_key("k", budget, Spent::default(), NOON);
    assert!(after.go_on_from(before, NOON).is_empty());
    assert_eq!(after.reserve(&payer("t", "k"), 11, NOON).unwrap_err().spent, 90);
    after.reserve(&payer("t", "k"), 10, NOON).unwrap();
    assert_eq!(after.reserve(&payer("other", "k"), 31, NOON).unwrap_err().spent, 70);
    assert_eq!(after.settle(&payer("t", "k"), 60, 50, NOON).len(), 1, "80 of 100 is the soft bound");
    after.settle(&payer("t", "k"), 10, 0, NOON);
    assert!(after.reserved.is_empty());
    // What others have spent is only in the database.
    let mut later = Budgets::default();
    later.of_tenant("t", budget, Spent { day: 95, month: 95 }, NOON);
    assert!(later.go_on_from(after, NOON).is_empty());
    assert!(later.reserve(&payer("t", "k"), 6, NOON).is_err());
}

#[test]
fn what_others_have_set_aside_is_set_aside() {
    let (mut here, mut there) = (budgets(100, 1000), budgets(100, 1000));
    here.reserve(&payer("t", "k"), 70, NOON).unwrap();
    there.set_aside_elsewhere(&here.set_aside());
    assert_eq!(there.reserve(&payer("t", "k"), 31, NOON).unwrap_err().spent, 70);
    assert_eq!(here.set_aside().len(), 1, "only what is bounded");
    here.settle(&payer("t", "k"), 70, 0, NOON);
    there.set_aside_elsewhere(&here.set_aside());
    there.reserve(&payer("t", "k"), 100, NOON).unwrap();
}

#[test]
fn what_was_spent_before_counts_and_is_told_of_at_the_start_only() {
    let mut budgets = Budgets::default();
    let budget = Budget { daily: None, monthly: Some(100), soft_percent: 80 };
    budgets.of_key("k", budget, Spent { day: 0, month: 90 }, NOON);
    assert_eq!(ids(budgets.go_on_from(Budgets::default(), NOON)), ["key:k:2026-11:soft:100"]);
    assert_eq!(budgets.reserve(&payer("t", "k"), 11, NOON).unwrap_err().window, "month");
    assert!(budgets.settle(&payer("t", "k"), 0, 1, NOON).is_empty());
}

#[test]
fn a_bound_that_others_helped_to_reach_is_told_of() {
    let budget = Budget { daily: Some(100), monthly: None, soft_percent: 80 };
    let (mut here, mut there) = (budgets(100, 1000), budgets(100, 1000));
    for gateway in [&mut here, &mut there] {
        assert!(gateway.settle(&payer("t", "k"), 0, 41, NOON).is_empty());
    }
    let read = |spent| {
        let mut read = Budgets::default();
        read.of_tenant("t", budget, Spent { day: spent, month: spent }, NOON);
        read
    };
    for gateway in [here, there] {
        let mut read_again = read(82);
        assert_eq!(ids(read_again.go_on_from(gateway, NOON)), ["tenant:t:2026-11-21:soft:100"]);
        let mut once_more = read(82);
        assert!(once_more.go_on_from(read_again, NOON).is_empty());
    }
}

#[test]
fn a_limit_that_changes_is_told_of_where_it_is_reached() {
    let of = |limit: u64| {
        let mut budgets = Budgets::default();
        let budget = Budget { daily: Some(limit), monthly: None, soft_percent: 80 };
        budgets.of_tenant("t", budget, Spent { day: 85, month: 85 }, NOON);
        budgets
    };
    let (mut wide, mut narrow, mut wider) = (of(1000), of(80), of(100));
    assert!(wide.go_on_from(Budgets::default(), NOON).is_empty());
    assert_eq!(ids(narrow.go_on_from(wide, NOON)), ["tenant:t:2026-11-21:hard:80"]);
    assert_eq!(ids(wider.go_on_from(narrow, NOON)), ["tenant:t:2026-11-21:soft:100"]);
}

#[test]
fn the_first_refusal_for_what_is_spent_is_told_of() {
    let mut budgets = budgets(100, 1000);
    let refused = |budgets: &mut Budgets, amount| {
        let refused = budgets.reserve(&payer("t", "k"), amount, NOON).unwrap_err();
        refused.alert.map(|alert| (alert.id, alert.spent))
    };
    // What runs may give most of it back, and no budget of 100 ever pays 101.
    budgets.reserve(&payer("t", "k"), 97, NOON).unwrap();
    assert_eq!(refused(&mut budgets, 5), None);
    assert_eq!(refused(&mut budgets, 101), None);
    assert_eq!(budgets.settle(&payer("t", "k"), 97, 97, NOON).len(), 1);
    assert_eq!(refused(&mut budgets, 5), Some(("tenant:t:2026-11-21:hard:100".into(), 97)));
    assert_eq!(refused(&mut budgets, 5), None);
    assert!(budgets.settle(&payer("t", "k"), 0, 3, NOON).is_empty(), "it was told of");
}

#[test]
fn what_costs_nothing_is_allowed_by_a_budget_that_is_overdrawn() {
    let mut budgets = Budgets::default();
    let budget = Budget { daily: Some(100), monthly: None, soft_percent: 80 };
    budgets.of_tenant("t", budget, Spent { day: 150, month: 150 }, NOON);
    budgets.reserve(&payer("t", "k"), 0, NOON).unwrap();
    assert_eq!(budgets.reserve(&payer("t", "k"), 1, NOON).unwrap_err().spent, 150);
}

/// The turn was paid for when it was set aside, and the limit came down behind it.
#[test]
fn a_further_turn_that_needs_no_more_goes_on_under_a_lower_limit() {
    let mut before = budgets(100, 1000);
    before.reserve(&payer("t", "k"), 60, NOON).unwrap();
    let mut after = budgets(50, 1000);
    after.go_on_from(before, NOON);
    after.reserve(&payer("t", "k"), 0, NOON).unwrap();
    assert!(after.reserve(&payer("t", "k"), 1, NOON).is_err());
}

/// Months of 2030 would never end, and no day of now would begin.
#[test]
fn a_clock_that_was_far_ahead_keeps_no_window() {
    let far = NOON + 4 * 366 * DAY_S * 1000;
    let mut before = budgets(100, 1000);
    before.settle(&payer("t", "k"), 0, 60, far);
    // What was spent then counts once more, and no longer than what is spent now.
    before.settle(&payer("t", "k"), 0, 30, NOON);
    assert_eq!(before.reserve(&payer("t", "k"), 20, NOON).unwrap_err().spent, 90);
    let tomorrow = NOON + DAY_S * 1000;
    before.reserve(&payer("t", "k"), 100, tomorrow).unwrap();
    // Who reads what was spent takes that.
    let mut after = budgets(100, 1000);
    let mut ahead = budgets(100, 1000);
    ahead.settle(&payer("t", "k"), 0, 60, far);
    after.go_on_from(ahead, NOON);
    after.reserve(&payer("t", "k"), 100, NOON).unwrap();
}
