//! The books through ends, crashes, full disks and databases that come and go.

// Helpers fail as the tests that call them do.
#![allow(clippy::unwrap_used)]

mod support;

use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use support::{Failure, Shelf, charge, crash, drained, ledger, prices};
use tidegate_ledger::{Budget, Budgets, CallKind, Charge, Drain, Event, Journal, JournalLimits, Ledger, Spent};

#[tokio::test]
async fn a_generation_is_billed_once_however_it_ends() {
    let folder = tempfile::tempdir().unwrap();
    let (ledger, shelf) = (ledger(folder.path(), 1 << 20, Budgets::default()), Shelf::default());
    let answered = charge(&ledger, "answered");
    answered.reserve("m", 10, 100).unwrap();
    answered.tally().add_output(3);
    answered.reserve("m", 20, 100).unwrap();
    answered.tally().add_output(4);
    answered.settle("answered");
    answered.settle("failed");
    drop(answered);
    let gone = charge(&ledger, "gone");
    gone.reserve("m", 10, 100).unwrap();
    gone.tally().add_output(5);
    drop(gone);
    drop(charge(&ledger, "never began"));
    assert!(drained(&ledger, &shelf).await);
    let outputs = shelf.outputs();
    assert_eq!(outputs.len(), 2, "{outputs:?}");
    assert_eq!(outputs["answered"], (7, "answered".into()));
    assert_eq!(outputs["gone"], (5, "client-gone".into()));
    assert_eq!(shelf.entries()[0].amount(), 7);
    assert_eq!(ledger.num_open(), 0);
}

#[tokio::test]
async fn a_crash_bills_what_the_last_mark_says_and_only_once() {
    let folder = tempfile::tempdir().unwrap();
    let ledger_before = ledger(folder.path(), 1 << 20, Budgets::default());
    let (open, ended) = (charge(&ledger_before, "open"), charge(&ledger_before, "ended"));
    for charge in [&open, &ended] {
        charge.reserve("m", 10, 100).unwrap();
        charge.tally().add_output(7);
    }
    ended.settle("answered");
    ledger_before.flush().unwrap();
    open.tally().add_output(1000);
    let left = crash(folder.path());
    let shelf = Shelf::default();
    for _ in 0..3 {
        let after = ledger(left.path(), 1 << 20, Budgets::default());
        assert!(drained(&after, &shelf).await);
        let outputs = shelf.outputs();
        assert_eq!(outputs["open"], (7, "recovered".into()));
        assert_eq!(outputs["ended"], (7, "answered".into()));
    }
}

#[tokio::test]
async fn another_process_cannot_write_the_same_journal() {
    let folder = tempfile::tempdir().unwrap();
    let _first = Journal::open(folder.path(), JournalLimits::default()).unwrap();
    let second = Journal::open(folder.path(), JournalLimits::default()).unwrap_err();
    assert!(second.to_string().contains("in use by another process"), "{second}");
}

#[tokio::test]
async fn a_journal_that_cannot_be_written_refuses_new_work_and_loses_no_old() {
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().join("journal");
    // Each record takes a file of its own, and there is no folder for it.
    let (ledger, shelf) = (ledger(&place, 1, Budgets::default()), Shelf::default());
    let running = charge(&ledger, "running");
    running.reserve("m", 10, 100).unwrap();
    let aside = folder.path().join("aside");
    std::fs::rename(&place, &aside).unwrap();
    let refused = charge(&ledger, "refused").reserve("m", 1, 1).unwrap_err();
    assert_eq!(refused.code.as_deref(), Some("storage_full"));
    running.tally().add_output(9);
    running.settle("answered");
    tokio::time::timeout(Duration::from_secs(20), async {
        while ledger.health().is_ok() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        std::fs::rename(&aside, &place).unwrap();
        while ledger.health().is_err() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await
    .unwrap();
    let next = charge(&ledger, "next");
    next.reserve("m", 1, 1).unwrap();
    next.tally().add_output(1);
    next.settle("answered");
    assert!(drained(&ledger, &shelf).await);
    assert_eq!(
        shelf.outputs().into_iter().map(|(name, (output, _))| (name, output)).collect::<Vec<_>>(),
        [("next".to_owned(), 1), ("running".to_owned(), 9)]
    );
}

/// Waits until the ledger says that its journal can be written, or not.
async fn until_written(ledger: &Ledger, is_written: bool) {
    let changed = async {
        while ledger.health().is_ok() != is_written {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), changed).await.unwrap();
}

#[tokio::test]
async fn a_mark_that_could_not_be_written_is_written_once_it_can() {
    let folder = tempfile::tempdir().unwrap();
    let (place, aside) = (folder.path().join("journal"), folder.path().join("aside"));
    let before = ledger(&place, 1, Budgets::default());
    let running = charge(&before, "running");
    running.reserve("m", 10, 100).unwrap();
    std::fs::rename(&place, &aside).unwrap();
    running.tally().add_output(7);
    running.called(running.tool("web", "search"));
    until_written(&before, false).await;
    std::fs::rename(&aside, &place).unwrap();
    until_written(&before, true).await;
    before.flush().unwrap();
    let (left, shelf) = (crash(&place), Shelf::default());
    assert!(drained(&ledger(left.path(), 1 << 20, Budgets::default()), &shelf).await);
    assert_eq!(shelf.outputs()["running"], (7, "recovered".into()));
    assert_eq!(shelf.entries()[0].amount(), 7 + 50);
}

#[tokio::test]
async fn an_end_that_waits_for_room_keeps_the_file_with_its_beginning() {
    let folder = tempfile::tempdir().unwrap();
    let (ledger_before, shelf) = (ledger(folder.path(), 1, Budgets::default()), Shelf::default());
    let ended = charge(&ledger_before, "ended");
    ended.reserve("m", 10, 100).unwrap();
    ended.tally().add_output(7);
    ledger_before.flush().unwrap();
    let other = charge(&ledger_before, "other");
    other.reserve("m", 10, 100).unwrap();
    other.settle("answered");
    // Each record takes a file of its own, and where the next would be there is one.
    let names = std::fs::read_dir(folder.path()).unwrap().map(|file| file.unwrap().file_name().into_string().unwrap());
    let last =
        names.filter_map(|name| name.strip_prefix("usage-")?.strip_suffix(".journal")?.parse::<u64>().ok()).max();
    let next = folder.path().join(format!("usage-{:010}.journal", last.unwrap() + 1));
    std::fs::write(&next, "").unwrap();
    ended.settle("answered");
    assert_eq!((ledger_before.num_open(), ledger_before.health().is_ok()), (0, false));
    assert!(drained(&ledger_before, &shelf).await);
    let left = crash(folder.path());
    let after = Shelf::default();
    after.0.lock().behind.clone_from(&shelf.0.lock().behind);
    assert!(drained(&ledger(left.path(), 1, Budgets::default()), &after).await);
    assert_eq!(after.outputs()["ended"], (7, "recovered".into()));
    // Without a crash it is written as it was, once there is room.
    std::fs::remove_file(&next).unwrap();
    until_written(&ledger_before, true).await;
    assert!(drained(&ledger_before, &shelf).await);
    assert_eq!(shelf.outputs()["ended"], (7, "answered".into()));
    let files = std::fs::read_dir(folder.path()).unwrap().count();
    assert!(files <= 4, "{files}");
}

#[tokio::test]
async fn files_that_the_database_has_are_deleted_but_for_those_of_open_generations() {
    let folder = tempfile::tempdir().unwrap();
    let (ledger, shelf) = (ledger(folder.path(), 1000, Budgets::default()), Shelf::default());
    let long = charge(&ledger, "long");
    long.reserve("m", 10, 100).unwrap();
    let files = || std::fs::read_dir(folder.path()).unwrap().count();
    for i in 0..100 {
        let short = charge(&ledger, &format!("short-{i}"));
        short.reserve("m", 10, 100).unwrap();
        short.tally().add_input(1);
        short.settle("answered");
    }
    assert!(drained(&ledger, &shelf).await);
    assert!(files() > 8, "{}", files());
    long.tally().add_input(1);
    long.settle("answered");
    assert!(drained(&ledger, &shelf).await);
    assert!(files() <= 4, "{}", files());
    assert_eq!(shelf.outputs().len(), 101);
}

#[tokio::test]
async fn a_backlog_is_caught_up_with_for_as_long_as_it_shrinks() {
    const PATIENCE: Duration = Duration::from_millis(400);
    let folder = tempfile::tempdir().unwrap();
    let limits = JournalLimits { read_bytes: 2000, ..JournalLimits::default() };
    let journal = Journal::open(folder.path(), limits).unwrap();
    let ledger = Ledger::start(journal, prices(), Budgets::default()).unwrap();
    for i in 0..240 {
        let charge = charge(&ledger, &format!("g{i}"));
        charge.reserve("m", 10, 100).unwrap();
        charge.tally().add_output(1);
        charge.settle("answered");
    }
    let (shelf, began) = (Shelf::default(), Instant::now());
    shelf.0.lock().pause = PATIENCE / 4;
    assert!(Drain::new(Arc::clone(&ledger), shelf.clone()).catch_up(PATIENCE).await);
    assert!(began.elapsed() > PATIENCE, "{:?} is no backlog", began.elapsed());
    assert_eq!(shelf.outputs().len(), 240);
}

#[tokio::test]
async fn a_budget_is_spent_by_what_was_used_and_told_of_through_the_journal() {
    let folder = tempfile::tempdir().unwrap();
    let mut budgets = Budgets::default();
    let budget = Budget { daily: Some(100), monthly: None, soft_percent: 50 };
    budgets.of_tenant("t", budget, Spent::default(), 0);
    let (ledger, shelf) = (ledger(folder.path(), 1 << 20, budgets), Shelf::default());
    let first = charge(&ledger, "first");
    first.reserve("m", 0, 80).unwrap();
    let second = charge(&ledger, "second");
    let refused = second.reserve("m", 0, 30).unwrap_err();
    assert_eq!(refused.code.as_deref(), Some("insufficient_quota"));
    assert!(refused.message.contains("tenant `t`") && refused.retry_after_s.is_some(), "{}", refused.message);
    first.tally().add_output(60);
    first.settle("answered");
    second.reserve("m", 0, 30).unwrap();
    drop(second);
    assert!(drained(&ledger, &shelf).await);
    let alerts = shelf.0.lock().events.iter().filter(|event| matches!(event, Event::Alert(_))).count();
    assert_eq!(alerts, 1);
}

#[tokio::test]
async fn changed_budgets_know_what_running_generations_set_aside() {
    let folder = tempfile::tempdir().unwrap();
    let of = |daily| {
        let mut budgets = Budgets::default();
        budgets.of_tenant("t", Budget { daily: Some(daily), monthly: None, soft_percent: 0 }, Spent::default(), 0);
        budgets
    };
    let ledger = ledger(folder.path(), 1 << 20, Budgets::default());
    // Begun before there was a budget.
    let first = charge(&ledger, "first");
    first.reserve("m", 0, 50).unwrap();
    ledger.replace(prices(), of(100));
    let second = charge(&ledger, "second");
    assert!(second.reserve("m", 0, 60).is_err());
    second.reserve("m", 0, 40).unwrap();
    ledger.replace(prices(), of(120));
    let third = charge(&ledger, "third");
    assert!(third.reserve("m", 0, 31).is_err());
    first.tally().add_output(5);
    first.settle("answered");
    ledger.replace(prices(), of(120));
    third.reserve("m", 0, 75).unwrap();
    assert!(charge(&ledger, "fourth").reserve("m", 0, 1).is_err());
}

/// What a run of the ledger does.
#[derive(Clone, Debug)]
enum Step {
    Begin,
    Tokens(usize, u64),
    Call(usize),
    Mark,
    End(usize),
    Drain,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => Just(Step::Begin),
        6 => (0_usize..8, 1_u64..50).prop_map(|(which, tokens)| Step::Tokens(which, tokens)),
        2 => (0_usize..8).prop_map(Step::Call),
        2 => Just(Step::Mark),
        3 => (0_usize..8).prop_map(Step::End),
        1 => Just(Step::Drain),
    ]
}

fn failure() -> impl Strategy<Value = Failure> {
    prop_oneof![Just(Failure::Before), Just(Failure::After)]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever happened, wherever the newest file was torn off, and whenever the database failed: each generation is
    /// billed at most once and never for more than was generated; and what had ended in the files, exactly.
    #[test]
    fn nothing_is_billed_twice_or_for_more_than_was_generated(
        steps in prop::collection::vec(step(), 1..60),
        failures in prop::collection::vec(failure(), 0..6),
        torn in 0_u64..400,
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async move {
            let folder = tempfile::tempdir().unwrap();
            let shelf = Shelf::default();
            shelf.0.lock().failures = failures;
            let before = ledger(folder.path(), 700, Budgets::default());
            let mut running: Vec<(String, Charge)> = Vec::new();
            let mut generated: BTreeMap<String, u64> = BTreeMap::new();
            let mut called: BTreeMap<String, u64> = BTreeMap::new();
            for step in steps {
                match step {
                    Step::Begin => {
                        let name = format!("g{}", generated.len());
                        let charge = charge(&before, &name);
                        charge.reserve("m", 1, 1).unwrap();
                        charge.tally().add_input(1);
                        before.flush().unwrap();
                        generated.insert(name.clone(), 0);
                        running.push((name, charge));
                    }
                    Step::Tokens(which, tokens) if which < running.len() => {
                        running[which].1.tally().add_output(tokens);
                        *generated.get_mut(&running[which].0).unwrap() += tokens;
                    }
                    Step::Call(which) if which < running.len() => {
                        let (name, charge) = &running[which];
                        charge.called(charge.tool("web", "search"));
                        *called.entry(name.clone()).or_default() += 1;
                    }
                    Step::End(which) if which < running.len() => running.remove(which).1.settle("answered"),
                    Step::Mark => before.flush().unwrap(),
                    Step::Drain => assert!(drained(&before, &shelf).await),
                    Step::Tokens(..) | Step::Call(_) | Step::End(_) => {}
                }
            }
            let left = crash(folder.path());
            let newest = std::fs::read_dir(left.path()).unwrap().map(|file| file.unwrap().path())
                .filter(|path| path.extension().is_some_and(|kind| kind == "journal")).max().unwrap();
            // A database never has what a disk has lost, so nothing is torn off that was drained.
            if shelf.0.lock().behind.is_empty() {
                let file = std::fs::OpenOptions::new().write(true).open(newest).unwrap();
                let length = file.metadata().unwrap().len();
                file.set_len(length.saturating_sub(torn)).unwrap();
            }
            drop(before);
            let after = ledger(left.path(), 700, Budgets::default());
            assert!(drained(&after, &shelf).await);
            for (name, (billed, _)) in shelf.outputs() {
                assert!(billed <= generated[&name], "{name}: {billed} of {}", generated[&name]);
            }
            for entry in shelf.entries() {
                let (name, billed) = (entry.opening.generation.clone(), entry.calls.count(CallKind::Tool));
                assert!(billed <= called.get(&name).copied().unwrap_or_default(), "{name}: {billed} calls");
                assert!(entry.outcome == "recovered" || billed == called.get(&name).copied().unwrap_or_default(), "{name}");
            }
            if torn == 0 {
                assert_eq!(shelf.outputs().len(), generated.len());
            }
        });
    }
}
