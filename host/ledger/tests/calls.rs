//! Calls of tools and retrievers in the books: set aside before they are made, billed once they were answered, kept
//! through a crash.

// Helpers fail as the tests that call them do.
#![allow(clippy::unwrap_used)]

mod support;

use support::{Shelf, charge, crash, drained, ledger};
use tidegate_ledger::{Budget, Budgets, CallKind, Event, Spent, read_journal};

/// A tenant that may spend so many billionths in a day.
fn budgets(daily: u64) -> Budgets {
    let mut budgets = Budgets::default();
    let budget = Budget { daily: Some(daily), monthly: None, soft_percent: 0 };
    budgets.of_tenant("t", budget, Spent::default(), 0);
    budgets
}

#[tokio::test]
async fn a_call_is_billed_at_its_price_beside_the_tokens() {
    let folder = tempfile::tempdir().unwrap();
    let (ledger, shelf) = (ledger(folder.path(), 1 << 20, Budgets::default()), Shelf::default());
    let charge = charge(&ledger, "g");
    let retrieval = charge.retrieval("library");
    charge.reserve_calls("auto", std::slice::from_ref(&retrieval)).unwrap();
    charge.called(retrieval);
    charge.reserve("m", 10, 100).unwrap();
    charge.tally().add_output(7);
    for tool in ["search", "fetch", "search"] {
        let call = charge.tool("web", tool);
        charge.reserve_calls("m", std::slice::from_ref(&call)).unwrap();
        charge.called(call);
    }
    charge.called(charge.tool("free", "add"));
    charge.settle("answered");
    assert_eq!(charge.billed(), Some(7 + 30 + 2 * 50 + 20));
    assert!(drained(&ledger, &shelf).await);
    let entries = shelf.entries();
    let [entry] = &entries[..] else { panic!("{entries:?}") };
    assert_eq!((entry.opening.model.as_str(), entry.amount()), ("m", 157));
    assert_eq!((entry.calls.count(CallKind::Tool), entry.calls.count(CallKind::Retrieval)), (4, 1));
    assert_eq!(entry.calls.amount(), 150);
    let contents = read_journal(folder.path()).unwrap();
    assert_eq!(contents.ended.iter().map(|(_, entry)| entry).collect::<Vec<_>>(), [entry]);
}

#[tokio::test]
async fn what_was_only_called_is_billed_too_and_what_was_not_answered_is_not() {
    let folder = tempfile::tempdir().unwrap();
    let (ledger, shelf) = (ledger(folder.path(), 1 << 20, Budgets::default()), Shelf::default());
    for (name, answered) in [("answered", true), ("failed", false)] {
        let charge = charge(&ledger, name);
        let retrieval = charge.retrieval("library");
        charge.reserve_calls("m", std::slice::from_ref(&retrieval)).unwrap();
        if answered {
            charge.called(retrieval);
        }
    }
    // What costs nothing is not even written down before there is a turn.
    let free = charge(&ledger, "free");
    free.reserve_calls("m", &[free.retrieval("folder")]).unwrap();
    assert_eq!(ledger.num_open(), 0);
    free.called(free.retrieval("folder"));
    drop(free);
    assert!(drained(&ledger, &shelf).await);
    let billed: Vec<_> =
        shelf.entries().iter().map(|entry| (entry.opening.generation.clone(), entry.amount())).collect();
    assert_eq!(billed, [("answered".to_owned(), 30)]);
}

#[tokio::test]
async fn a_crash_bills_the_calls_that_the_last_mark_has() {
    let folder = tempfile::tempdir().unwrap();
    let before = ledger(folder.path(), 1 << 20, Budgets::default());
    let open = charge(&before, "open");
    open.reserve_calls("auto", &[open.retrieval("library")]).unwrap();
    open.called(open.retrieval("library"));
    before.flush().unwrap();
    // Another model is found: the generation begins again in the journal, and the retrieval stays.
    open.reserve("m", 1, 1).unwrap();
    let begun_again = crash(folder.path());
    open.called(open.tool("web", "search"));
    before.flush().unwrap();
    let marked = crash(folder.path());
    for (left, amount) in [(&begun_again, 30), (&marked, 80)] {
        let shelf = Shelf::default();
        for _ in 0..2 {
            let after = ledger(left.path(), 1 << 20, Budgets::default());
            assert!(drained(&after, &shelf).await);
            let entries = shelf.entries();
            let [entry] = &entries[..] else { panic!("{entries:?}") };
            assert_eq!((entry.amount(), entry.outcome.as_str()), (amount, "recovered"));
        }
    }
}

#[tokio::test]
async fn a_budget_holds_for_calls_and_a_turn_sets_aside_the_dearest_that_is_offered() {
    let folder = tempfile::tempdir().unwrap();
    let (ledger, shelf) = (ledger(folder.path(), 1 << 20, budgets(100)), Shelf::default());
    let first = charge(&ledger, "first");
    first.offer([first.tool("web", "fetch"), first.tool("web", "search")]);
    first.reserve("m", 0, 40).unwrap();
    // 40 for the answer and 50 for a search are set aside.
    let second = charge(&ledger, "second");
    let refused = second.reserve("m", 0, 11).unwrap_err();
    assert_eq!(refused.code.as_deref(), Some("insufficient_quota"));
    second.reserve("m", 0, 10).unwrap();
    first.tally().add_output(5);
    let search = || first.tool("web", "search");
    first.reserve_calls("m", &[search()]).unwrap();
    first.called(search());
    // 5 and 50 are used of 90: a fetch goes, another search does not.
    assert!(first.reserve_calls("m", &[search()]).is_err());
    first.reserve_calls("m", &[first.tool("web", "fetch")]).unwrap();
    first.called(first.tool("web", "fetch"));
    first.settle("answered");
    drop(second);
    assert!(charge(&ledger, "third").reserve("m", 0, 26).is_err());
    charge(&ledger, "fourth").reserve("m", 0, 25).unwrap();
    assert!(drained(&ledger, &shelf).await);
    assert_eq!(shelf.entries()[0].amount(), 75);
    // Of the third, which is refused for what is spent; the others were for what was set aside.
    let alerts: Vec<_> = shelf.0.lock().events.iter().filter(|event| event.used().is_none()).cloned().collect();
    let [Event::Alert(alert)] = &alerts[..] else { panic!("{alerts:?}") };
    assert_eq!((&*alert.bound, alert.spent, alert.limit), ("hard", 75, 100));
}
