//! Bytes that are no record, and records that would be none.

// Helpers fail as the tests that call them do.
#![allow(clippy::unwrap_used)]

mod support;

use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use support::{Shelf, charge, charge_of, crash, drained, ledger, prices};
use tidegate_ledger::{Budgets, Charge, Journal, JournalLimits, Ledger, read_journal};

fn settle(charge: &Charge) {
    charge.reserve("m", 10, 100).unwrap();
    charge.tally().add_output(7);
    charge.settle("answered");
}

#[tokio::test]
async fn what_is_too_long_to_be_read_back_is_refused_and_stops_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let (ledger, shelf) = (ledger(folder.path(), 1 << 20, Budgets::default()), Shelf::default());
    settle(&charge(&ledger, "before"));
    let long = charge_of(&ledger, "long", Some("x".repeat(70_000)));
    long.reserve("m", 10, 100).unwrap_err();
    drop(long);
    settle(&charge(&ledger, "after"));
    ledger.health().unwrap();
    assert!(drained(&ledger, &shelf).await);
    assert_eq!(shelf.outputs().into_keys().collect::<Vec<_>>(), ["after", "before"]);
    assert_eq!(read_journal(folder.path()).unwrap().num_damaged, 0);
}

fn newest(folder: &Path) -> PathBuf {
    let files = std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().path());
    files.filter(|path| path.extension().is_some_and(|kind| kind == "journal")).max().unwrap()
}

/// The end of a generation as it lies in a journal.
fn end_of_another() -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    let ledger = ledger(folder.path(), 1 << 20, Budgets::default());
    settle(&charge(&ledger, "forged"));
    let bytes = std::fs::read(newest(folder.path())).unwrap();
    let opening = 8 + u32::from_le_bytes(bytes[..4].try_into().unwrap()) as usize;
    bytes[opening..].to_vec()
}

#[tokio::test]
async fn behind_damage_nothing_of_a_file_is_believed_and_the_next_file_is() {
    const READ: u64 = 4096;
    let folder = tempfile::tempdir().unwrap();
    let limits = JournalLimits { read_bytes: READ, ..JournalLimits::default() };
    let journal = Journal::open(folder.path(), limits).unwrap();
    let (ledger, shelf) = (Ledger::start(journal, prices(), Budgets::default()).unwrap(), Shelf::default());
    settle(&charge(&ledger, "before"));
    let path = newest(folder.path());
    let damaged_at = std::fs::metadata(&path).unwrap().len();
    settle(&charge_of(&ledger, "damaged", Some("x".repeat(2 * READ as usize))));
    let mut file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    // Where the next read would begin, a text that its caller chose has what is a record everywhere else.
    for (at, bytes) in [(damaged_at, vec![0xff; 4]), (READ, end_of_another())] {
        file.seek(SeekFrom::Start(at)).unwrap();
        file.write_all(&bytes).unwrap();
    }
    assert!(drained(&ledger, &shelf).await);
    settle(&charge(&ledger, "after"));
    assert!(drained(&ledger, &shelf).await);
    assert_eq!(shelf.outputs().into_keys().collect::<Vec<_>>(), ["after", "before"]);
    assert_ne!(newest(folder.path()), path);
}

/// Of a folder that was restored, the database knows more than there is: what comes then would lie where it has been already.
#[tokio::test]
async fn a_folder_that_was_restored_loses_nothing_of_what_comes_then() {
    let (folder, shelf) = (tempfile::tempdir().unwrap(), Shelf::default());
    let names = |shelf: &Shelf| -> Vec<String> {
        let mut names: Vec<_> = shelf.entries().into_iter().map(|entry| entry.opening.generation).collect();
        names.sort();
        // A database keeps what comes twice once.
        names.dedup();
        names
    };
    let first = ledger(folder.path(), 1 << 20, Budgets::default());
    settle(&charge(&first, "a"));
    assert!(drained(&first, &shelf).await);
    let earlier = crash(folder.path());
    drop(first);
    // Several starts further, and then back.
    for name in ["b", "c"] {
        let later = ledger(folder.path(), 1 << 20, Budgets::default());
        (0..20).for_each(|i| settle(&charge(&later, &format!("{name}{i:02}"))));
        assert!(drained(&later, &shelf).await);
    }
    let before = names(&shelf);
    let restored = ledger(earlier.path(), 1 << 20, Budgets::default());
    (0..3).for_each(|i| settle(&charge(&restored, &format!("d{i}"))));
    assert!(drained(&restored, &shelf).await);
    settle(&charge(&restored, "d3"));
    assert!(drained(&restored, &shelf).await);
    drop(restored);
    let again = ledger(earlier.path(), 1 << 20, Budgets::default());
    settle(&charge(&again, "e"));
    assert!(drained(&again, &shelf).await);
    let came = ["d0", "d1", "d2", "d3", "e"].map(str::to_owned);
    assert_eq!(names(&shelf), [before, came.to_vec()].concat());
    assert_eq!(shelf.0.lock().behind.len(), 2, "it has another name since");
}
