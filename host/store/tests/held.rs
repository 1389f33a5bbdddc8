//! Somebody else holds what is asked for: an operator who left a transaction open, a gateway that froze in the middle of one, a
//! program that reads for long. And calls that nobody waits for any more.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests, which clippy does not take for tests")]

mod support;

use futures_util::FutureExt;
use sqlx::{Any, Executor, Row};
use std::time::{Duration, Instant};
use support::{Fresh, MOST, key, on_each};
use tidegate_store::conversations::{At, Conversation, Conversations, NewResponse, Put, Turn};
use tidegate_store::{Added, Db, KeepError, Keys, Kv, Place, Space, StoreError};
use tidegate_types::TenantId;
use tokio::task::JoinSet;

const CAP: u64 = 1 << 20;
const ANN: Space<'static> = Space { owner: "ann", plugin: "p" };

/// For a machine that is busy with other tests.
const LONG: Duration = Duration::from_secs(60);

async fn count(of: impl Executor<'_, Database = Any>, what: &'static str) -> i64 {
    sqlx::query(what).fetch_one(of).await.unwrap().get(0)
}

/// Waits until a number is as `is` says.
async fn until(pool: &sqlx::AnyPool, what: &'static str, is: impl Fn(i64) -> bool) -> i64 {
    let began = Instant::now();
    loop {
        let found = count(pool, what).await;
        if is(found) {
            return found;
        }
        assert!(began.elapsed() < LONG, "{what}: {found}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Polls a call again and again, and lets it go at a moment that `is_time` finds.
async fn dropped_when<T>(call: impl Future<Output = T>, mut is_time: impl AsyncFnMut() -> bool) {
    let mut call = Box::pin(call);
    while call.as_mut().now_or_never().is_none() {
        tokio::time::sleep(Duration::from_millis(5)).await;
        if is_time().await {
            return;
        }
    }
}

const WAITING: &str =
    "SELECT COUNT(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'";
const LEFT_OPEN: &str =
    "SELECT COUNT(*) FROM pg_stat_activity WHERE datname = current_database() AND state LIKE 'idle in transaction%'";

/// Of more callers than there are connections, none of whom waits.
#[tokio::test(flavor = "multi_thread")]
async fn what_plugins_wait_for_in_postgres_holds_up_nothing_else_and_the_server_ends_it() {
    on_each(|fresh| async move {
        if fresh.name != "postgres" {
            return;
        }
        let (kv, pool) = (Kv::new(&fresh.db, CAP), fresh.raw().await);
        kv.set(ANN, "k", b"1", None, CAP).await.unwrap();
        let mut other = pool.begin().await.unwrap();
        let lock = "LOCK TABLE plugin_values, plugin_spaces IN ACCESS EXCLUSIVE MODE";
        sqlx::query(lock).execute(&mut *other).await.unwrap();
        let keys = ["k".to_owned()];
        let mut calls = JoinSet::new();
        for _ in 0..10 {
            let (sets, gets, keys) = (kv.clone(), kv.clone(), keys.clone());
            calls.spawn(async move { while sets.set(ANN, "k", b"2", None, CAP).await.is_err() {} });
            calls.spawn(async move { while gets.get_many(ANN, &keys, CAP).await.is_err() {} });
        }
        until(&pool, WAITING, |waiting| waiting >= 5).await;
        calls.shutdown().await;
        let began = Instant::now();
        fresh.db.ping().await.unwrap();
        // The pool would let it wait for five.
        assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
        until(&pool, WAITING, |waiting| waiting == 0).await;
        let (set, got) = tokio::join!(kv.set(ANN, "k", b"3", None, CAP), kv.get_many(ANN, &keys, CAP));
        for error in [set.unwrap_err(), got.unwrap_err()] {
            assert!(matches!(&error, KeepError::Store(error) if error.is_held()), "{error}");
        }
        other.rollback().await.unwrap();
        assert_eq!(kv.get_many(ANN, &keys, CAP).await.unwrap(), [Some(b"1".to_vec())], "what was given up is not done");
        kv.set(ANN, "k", b"4", None, CAP).await.unwrap();
        pool.close().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_that_freezes_in_the_middle_of_a_write_lets_others_write() {
    const IN_THE_MIDDLE: &str = "SELECT COUNT(*) FROM pg_stat_activity WHERE datname = current_database() \
         AND state = 'idle in transaction' AND query LIKE '%FROM plugin_values%'";
    on_each(|fresh| async move {
        if fresh.name != "postgres" {
            return;
        }
        let another = Db::open(&fresh.place).await.unwrap();
        let (kv, other, pool) = (Kv::new(&fresh.db, CAP), Kv::new(&another, CAP), fresh.raw().await);
        // On a busy machine a statement may be answered between the look and the next poll, which then goes past the middle.
        let mut frozen = Box::pin(kv.increment(ANN, "n", 1, None, CAP));
        let mut whole = 0;
        while count(&pool, IN_THE_MIDDLE).await == 0 {
            if let Some(done) = frozen.as_mut().now_or_never() {
                (whole, frozen) = (done.unwrap(), Box::pin(kv.increment(ANN, "n", 1, None, CAP)));
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let write = async { while other.increment(ANN, "n", 2, None, CAP).await.is_err() {} };
        tokio::time::timeout(LONG, write).await.expect("the server lets go of what it held");
        let error = frozen.await.unwrap_err();
        assert!(matches!(error, KeepError::Store(StoreError::Unavailable(_))), "{error}");
        assert_eq!(kv.increment(ANN, "n", 0, None, CAP).await.unwrap(), whole + 2);
        pool.close().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_has_thirteen_connections_to_postgres_at_most() {
    on_each(|fresh| async move {
        if fresh.name != "postgres" {
            return;
        }
        let (kv, conversations, pool) =
            (Kv::new(&fresh.db, CAP), Conversations::new(fresh.db.clone()), fresh.raw().await);
        let mut other = pool.begin().await.unwrap();
        let lock = "LOCK TABLE plugin_values, conversations IN ACCESS EXCLUSIVE MODE";
        sqlx::query(lock).execute(&mut *other).await.unwrap();
        let mut calls = JoinSet::new();
        for _ in 0..15 {
            let (kv, conversations) = (kv.clone(), conversations.clone());
            calls.spawn(async move { while kv.get_many(ANN, &["k".to_owned()], CAP).await.is_err() {} });
            calls.spawn(async move { while conversations.get(&TenantId::new("ann"), "c").await.is_err() {} });
        }
        until(&pool, WAITING, |waiting| waiting >= 13).await;
        tokio::time::sleep(Duration::from_millis(200)).await;
        assert_eq!(count(&pool, WAITING).await, 13);
        other.rollback().await.unwrap();
        calls.join_all().await;
        pool.close().await;
    })
    .await;
}

/// Nor are there any but these at the server for long, whatever a statement waits for that nobody waits for any more.
#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_is_given_up_is_soon_none_of_the_servers() {
    on_each(|fresh| async move {
        if fresh.name != "postgres" {
            return;
        }
        let (conversations, pool) = (Conversations::new(fresh.db.clone()), fresh.raw().await);
        let mut other = pool.begin().await.unwrap();
        sqlx::query("LOCK TABLE conversations IN ACCESS EXCLUSIVE MODE").execute(&mut *other).await.unwrap();
        let mut reads = JoinSet::new();
        for _ in 0..8 {
            let conversations = conversations.clone();
            reads.spawn(async move { conversations.get(&TenantId::new("ann"), "c").await.map(drop) });
        }
        until(&pool, WAITING, |waiting| waiting == 8).await;
        reads.shutdown().await;
        until(&pool, WAITING, |waiting| waiting == 0).await;
        fresh.db.ping().await.expect("others come in their place");
        other.rollback().await.unwrap();
        pool.close().await;
    })
    .await;
}

/// As of a caller who is gone. What came after it on that connection would be in its transaction, and lost with it.
#[tokio::test(flavor = "multi_thread")]
async fn a_write_that_is_dropped_as_it_begins_leaves_no_transaction_open() {
    on_each(|fresh| async move {
        if fresh.name != "postgres" {
            return;
        }
        let (conversations, pool, ann) =
            (Conversations::new(fresh.db.clone()), fresh.raw().await, TenantId::new("ann"));
        let (id, metadata) = ("c".into(), "{}".into());
        let made = Conversation { id, title: String::new(), metadata, leaf: String::new(), created_ms: 1 };
        let has_begun = async || count(&pool, LEFT_OPEN).await > 0;
        dropped_when(conversations.create(&ann, &made, &[]), has_begun).await;
        until(&pool, LEFT_OPEN, |open| open == 0).await;
        pool.close().await;
    })
    .await;
}

/// What they would do first is nothing that anybody waits for: others would find no connection until it was done.
#[tokio::test(flavor = "multi_thread")]
async fn writes_that_were_dropped_while_all_connections_were_taken_are_in_nobodys_way() {
    const BEGUN: &str = "SELECT COUNT(*) FROM pg_stat_activity WHERE datname = current_database() \
         AND (query = 'BEGIN' OR query = 'ROLLBACK')";
    on_each(|fresh| async move {
        if fresh.name != "postgres" {
            return;
        }
        let (conversations, pool, ann) =
            (Conversations::new(fresh.db.clone()), fresh.raw().await, TenantId::new("ann"));
        let mut other = pool.begin().await.unwrap();
        sqlx::query("LOCK TABLE conversations IN ACCESS EXCLUSIVE MODE").execute(&mut *other).await.unwrap();
        let mut reads = JoinSet::new();
        for _ in 0..8 {
            let (conversations, ann) = (conversations.clone(), ann.clone());
            reads.spawn(async move { conversations.get(&ann, "c").await.unwrap() });
        }
        until(&pool, WAITING, |waiting| waiting == 8).await;
        let mut writes: Vec<_> = (0..100).map(|_| Box::pin(conversations.purge(1))).collect();
        assert!(writes.iter_mut().all(|write| write.as_mut().now_or_never().is_none()));
        // For whatever they began to come to the line of those who wait for a connection.
        tokio::time::sleep(Duration::from_millis(100)).await;
        drop(writes);
        other.commit().await.unwrap();
        fresh.db.ping().await.unwrap();
        reads.join_all().await;
        assert_eq!(count(&pool, BEGUN).await, 0, "nobody waits for these");
        pool.close().await;
    })
    .await;
}

/// Of one tenant, by an operator, say: another's values are removed, and it finds room.
#[tokio::test(flavor = "multi_thread")]
async fn a_space_that_somebody_holds_stops_the_sweep_of_no_other() {
    const MOMENT: Option<Duration> = Some(Duration::from_millis(1));
    on_each(|fresh| async move {
        if fresh.name != "postgres" {
            return;
        }
        // Each value costs 64 bytes, its key and itself.
        let (kv, pool) = (Kv::new(&fresh.db, 105 * 70), fresh.raw().await);
        let cid = Space { owner: "cid", plugin: "p" };
        for n in 0..100 {
            kv.set(ANN, &format!("k{n:03}"), b"12", MOMENT, CAP).await.unwrap();
        }
        for owner in ["dan", "eve", "fay", "gus", "bob"] {
            kv.set(Space { owner, plugin: "p" }, "k000", b"12", MOMENT, CAP).await.unwrap();
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
        let mut other = pool.begin().await.unwrap();
        let hold = "SELECT 1 FROM plugin_spaces WHERE owner <> 'bob' FOR UPDATE";
        sqlx::query(hold).execute(&mut *other).await.unwrap();
        kv.set(cid, "k000", b"12", MOMENT, CAP).await.expect("bob's gave way");
        assert_eq!(count(&pool, "SELECT COUNT(*) FROM plugin_values WHERE owner = 'bob'").await, 0);
        other.rollback().await.unwrap();
        let mut other = pool.begin().await.unwrap();
        sqlx::query("SELECT 1 FROM plugin_spaces WHERE owner = 'ann' FOR UPDATE").execute(&mut *other).await.unwrap();
        tokio::time::sleep(Duration::from_millis(10)).await;
        let error = kv.sweep().await.unwrap_err();
        assert!(matches!(&error, KeepError::Store(error) if error.is_held()), "{error}");
        assert_eq!(count(&pool, "SELECT COUNT(*) FROM plugin_values WHERE owner <> 'ann'").await, 0);
        other.rollback().await.unwrap();
        assert_eq!(kv.sweep().await.unwrap(), 100);
        pool.close().await;
    })
    .await;
}

/// In SQLite's files.
fn is_in_files(fresh: &Fresh, word: &str) -> bool {
    let Place::Folder(folder) = &fresh.place else { return false };
    let files = std::fs::read_dir(folder).unwrap().map(|file| std::fs::read(file.unwrap().path()).unwrap());
    let bytes: Vec<u8> = files.flatten().collect();
    bytes.windows(word.len()).any(|found| found == word.as_bytes())
}

#[tokio::test]
async fn what_was_deleted_while_somebody_reads_is_wiped_once_they_do_not() {
    const WORD: &str = "canary-of-a-reader";
    on_each(|fresh| async move {
        if fresh.name != "sqlite" {
            return;
        }
        let (kv, pool) = (Kv::new(&fresh.db, CAP), fresh.raw().await);
        kv.set(ANN, "k", WORD.as_bytes(), None, CAP).await.unwrap();
        kv.sweep().await.unwrap();
        let mut reader = pool.begin().await.unwrap();
        assert_eq!(count(&mut *reader, "SELECT COUNT(*) FROM plugin_values").await, 1);
        kv.delete(ANN, "k").await.unwrap();
        assert!(matches!(kv.sweep().await, Err(KeepError::Store(StoreError::LogInUse))));
        assert!(is_in_files(&fresh, WORD), "who reads may need it");
        reader.rollback().await.unwrap();
        kv.sweep().await.unwrap();
        assert!(!is_in_files(&fresh, WORD));
        pool.close().await;
    })
    .await;
}

#[tokio::test]
async fn what_a_sweep_that_was_dropped_did_not_wipe_is_wiped_by_the_next() {
    const WORD: &str = "canary-of-a-sweep";
    on_each(|fresh| async move {
        if fresh.name != "sqlite" {
            return;
        }
        let (kv, pool) = (Kv::new(&fresh.db, CAP), fresh.raw().await);
        kv.set(ANN, "k", WORD.as_bytes(), None, CAP).await.unwrap();
        kv.sweep().await.unwrap();
        let mut reader = pool.begin().await.unwrap();
        assert_eq!(count(&mut *reader, "SELECT COUNT(*) FROM plugin_values").await, 1);
        kv.delete(ANN, "k").await.unwrap();
        let dropped = tokio::time::timeout(Duration::from_millis(100), kv.sweep()).await;
        assert!(dropped.is_err(), "it waits for the reader");
        reader.rollback().await.unwrap();
        let until = Instant::now() + LONG;
        while is_in_files(&fresh, WORD) && Instant::now() < until {
            kv.sweep().await.unwrap();
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert!(!is_in_files(&fresh, WORD));
        pool.close().await;
    })
    .await;
}

#[tokio::test]
async fn what_was_deleted_by_a_call_that_was_dropped_as_it_was_done_is_wiped() {
    const WORD: &str = "canary-of-a-drop";
    on_each(|fresh| async move {
        if fresh.name != "sqlite" {
            return;
        }
        let (kv, pool) = (Kv::new(&fresh.db, CAP), fresh.raw().await);
        kv.set(ANN, "k", WORD.as_bytes(), None, CAP).await.unwrap();
        kv.sweep().await.unwrap();
        let is_done = async || count(&pool, "SELECT COUNT(*) FROM plugin_values").await == 0;
        dropped_when(kv.delete(ANN, "k"), is_done).await;
        assert!(is_done().await);
        assert!(is_in_files(&fresh, WORD), "in its pages, or in the log");
        kv.sweep().await.unwrap();
        assert!(!is_in_files(&fresh, WORD));
        pool.close().await;
    })
    .await;
}

#[tokio::test]
async fn a_text_that_was_over_when_a_number_replaced_it_is_wiped() {
    const WORD: &str = "canary-of-a-text-that-was-over";
    on_each(|fresh| async move {
        if fresh.name != "sqlite" {
            return;
        }
        let kv = Kv::new(&fresh.db, CAP);
        kv.set(ANN, "k", WORD.as_bytes(), Some(Duration::from_secs(1)), CAP).await.unwrap();
        kv.sweep().await.unwrap();
        tokio::time::sleep(Duration::from_millis(1100)).await;
        assert_eq!(kv.increment(ANN, "k", 1, None, CAP).await.unwrap(), 1);
        kv.sweep().await.unwrap();
        assert!(!is_in_files(&fresh, WORD));
    })
    .await;
}

#[tokio::test]
async fn what_was_purged_while_somebody_reads_is_counted_and_wiped_once_they_do_not() {
    const WORD: &str = "canary-of-a-conversation";
    on_each(|fresh| async move {
        if fresh.name != "sqlite" {
            return;
        }
        let (conversations, pool, ann) =
            (Conversations::new(fresh.db.clone()), fresh.raw().await, TenantId::new("ann"));
        let (id, metadata) = ("c".into(), "{}".into());
        let made = Conversation { id, title: WORD.into(), metadata, leaf: String::new(), created_ms: 1 };
        conversations.create(&ann, &made, &[]).await.unwrap();
        conversations.wipe().await.unwrap();
        let mut reader = pool.begin().await.unwrap();
        assert_eq!(count(&mut *reader, "SELECT COUNT(*) FROM conversations").await, 1);
        conversations.delete(&ann, "c").await.unwrap();
        assert_eq!(conversations.purge(i64::MAX).await.unwrap().conversations, 1);
        assert!(matches!(conversations.wipe().await, Err(StoreError::LogInUse)));
        reader.rollback().await.unwrap();
        assert_eq!(conversations.purge(i64::MAX).await.unwrap(), Default::default());
        conversations.wipe().await.unwrap();
        assert!(!is_in_files(&fresh, WORD));
        pool.close().await;
    })
    .await;
}

/// One that is a single transaction holds SQLite's only lock for as long as it takes, and removes nothing where its end fails.
#[tokio::test]
async fn a_purge_is_made_of_steps_each_of_which_lasts() {
    const FAILS: &str = "CREATE TRIGGER fails BEFORE DELETE ON conversations WHEN old.id = 'last' \
         BEGIN SELECT RAISE(ABORT, 'it does not go'); END";
    on_each(|fresh| async move {
        if fresh.name != "sqlite" {
            return;
        }
        let (conversations, pool, ann) =
            (Conversations::new(fresh.db.clone()), fresh.raw().await, TenantId::new("ann"));
        for n in 0..300 {
            let id = if n == 299 { "last".into() } else { format!("c{n:03}") };
            let (title, metadata, leaf) = (String::new(), "{}".into(), String::new());
            let made = Conversation { id: id.clone(), title, metadata, leaf, created_ms: 1 };
            conversations.create(&ann, &made, &[]).await.unwrap();
            conversations.delete(&ann, &id).await.unwrap();
        }
        sqlx::query(FAILS).execute(&pool).await.unwrap();
        conversations.purge(i64::MAX).await.unwrap_err();
        assert_eq!(count(&pool, "SELECT COUNT(*) FROM conversations").await, 300 - 256);
        sqlx::query("DROP TRIGGER fails").execute(&pool).await.unwrap();
        assert_eq!(conversations.purge(i64::MAX).await.unwrap().conversations, 300 - 256);
        pool.close().await;
    })
    .await;
}

/// Whoever waits for it has looked before, if at all, and looks again.
#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_is_taken_back_is_not_made_anew_and_a_name_is_given_once() {
    on_each(|fresh| async move {
        if fresh.name != "postgres" {
            return;
        }
        let (keys, pool) = (Keys::new(fresh.db.clone()), fresh.raw().await);
        assert_eq!(keys.add(&key("a", "h1"), MOST).await.unwrap(), Added::Done);
        let mut other = pool.begin().await.unwrap();
        for statement in [
            "LOCK TABLE api_keys, projects IN SHARE ROW EXCLUSIVE MODE",
            "UPDATE api_keys SET revoked_ms = 7 WHERE name = 'a'",
        ] {
            sqlx::query(statement).execute(&mut *other).await.unwrap();
        }
        let (rotating, mut adding) = (keys.clone(), JoinSet::new());
        let rotated = tokio::spawn(async move { rotating.rotate(&key("a", "h2"), "h1", 50, MOST).await });
        for hash in ["h3", "h4"] {
            let keys = keys.clone();
            adding.spawn(async move { keys.add(&key("b", hash), MOST).await.unwrap() });
        }
        until(&pool, WAITING, |waiting| waiting == 3).await;
        other.commit().await.unwrap();
        assert_eq!(rotated.await.unwrap().unwrap(), Added::Refused, "there is none any more to take the place of");
        let added = adding.join_all().await;
        assert_eq!(added.iter().filter(|added| **added == Added::Done).count(), 1, "{added:?}");
        let valid = keys.all().await.unwrap().into_iter().filter(|key| key.revoked_ms.is_none());
        assert_eq!(valid.map(|key| key.name).collect::<Vec<_>>(), ["b"]);
        pool.close().await;
    })
    .await;
}

/// A response is deleted while another gateway writes one that goes on from it: one of the two waits for the other, and sees what
/// it did.
#[tokio::test(flavor = "multi_thread")]
async fn who_deletes_a_response_and_who_goes_on_from_it_see_each_other() {
    on_each(|fresh| async move {
        if fresh.name != "postgres" {
            return;
        }
        let (store, ann, pool) = (Conversations::new(fresh.db.clone()), TenantId::new("ann"), fresh.raw().await);
        let turn = |id: &str, previous: &str| {
            let (id, previous, status, body) = (id.into(), previous.into(), "completed".into(), "{}".into());
            let response = NewResponse { id, previous, status, body, used: None };
            Turn { conversation: "t".into(), at: At::Leaf, response, input: vec![], output: vec![], listed: false }
        };
        let holding = async || {
            let mut other = pool.begin().await.unwrap();
            sqlx::query("UPDATE conversations SET version = version + 1").execute(&mut *other).await.unwrap();
            other
        };
        assert_eq!(store.put(&ann, &turn("first", "")).await.unwrap(), Put::Written);
        // It is being written.
        let mut other = holding().await;
        let (deleting, whose) = (store.clone(), ann.clone());
        let deleted = tokio::spawn(async move { deleting.delete_response(&whose, "first").await.unwrap() });
        until(&pool, WAITING, |waiting| waiting == 1).await;
        let next = "INSERT INTO responses SELECT tenant, 'next', conversation, id, leaf, status, body, created_ms, 0 FROM responses";
        sqlx::query(next).execute(&mut *other).await.unwrap();
        other.commit().await.unwrap();
        let mut gone: Vec<String> = deleted.await.unwrap().into_iter().map(|deleted| deleted.id).collect();
        gone.sort_unstable();
        assert_eq!(gone, ["first", "next"]);
        // It is being deleted.
        assert_eq!(store.put(&ann, &turn("second", "")).await.unwrap(), Put::Written);
        let mut other = holding().await;
        let (writing, late) = (store.clone(), turn("late", "second"));
        let put = tokio::spawn(async move { writing.put(&ann, &late).await.unwrap() });
        until(&pool, WAITING, |waiting| waiting == 1).await;
        sqlx::query("UPDATE responses SET deleted_ms = 2").execute(&mut *other).await.unwrap();
        other.commit().await.unwrap();
        assert_eq!(put.await.unwrap(), Put::Deleted);
        pool.close().await;
    })
    .await;
}
