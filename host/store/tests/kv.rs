//! What plugins keep in `kv`, on each database: that it is counted right, whoever writes at once, and that what nobody can
//! read any more goes. What a plugin sees of it is tested for all suppliers alike, in `tests/tests/e2e/kv`.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests, which clippy does not take for tests")]

mod support;

use futures_util::future::join_all;
use sqlx::Row;
use std::sync::Arc;
use std::time::{Duration, Instant};
use support::{Fresh, on_each};
use tidegate_store::{Db, KeepError, KeptProject, Kv, Place, Projects, Space};

const CAP: u64 = 1 << 20;
const ANN: Space<'static> = Space { owner: "ann", plugin: "p" };
const SOON: Option<Duration> = Some(Duration::from_millis(1));

/// A value of one byte under a key of one costs this.
const SMALLEST: u64 = 66;

/// As another gateway has it.
async fn another(fresh: &Fresh) -> Kv {
    Kv::new(&Db::open(&fresh.place).await.unwrap(), CAP)
}

/// How many values there are, the bytes that they cost, and those that the spaces say.
async fn counted(fresh: &Fresh) -> [i64; 3] {
    let pool = fresh.raw().await;
    let values =
        "SELECT COUNT(*), CAST(COALESCE(SUM(LENGTH(key) + LENGTH(value) + 64), 0) AS BIGINT) FROM plugin_values";
    let spaces = "SELECT CAST(COALESCE(SUM(bytes), 0) AS BIGINT) FROM plugin_spaces";
    let (values, spaces) = (sqlx::query(values).fetch_one(&pool).await, sqlx::query(spaces).fetch_one(&pool).await);
    let (values, spaces) = (values.unwrap(), spaces.unwrap());
    pool.close().await;
    [values.get(0), values.get(1), spaces.get(0)]
}

async fn over() {
    tokio::time::sleep(Duration::from_millis(5)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_several_gateways_add_at_once_is_summed_exactly() {
    on_each(|fresh| async move {
        let gateways = [Kv::new(&fresh.db, CAP), another(&fresh).await, another(&fresh).await];
        let writers = (0..9).map(|n: usize| {
            let kv = gateways[n % 3].clone();
            tokio::spawn(async move {
                for _ in 0..20 {
                    kv.increment(ANN, "n", 3, None, CAP).await.unwrap();
                    kv.set(ANN, &format!("own-{n}"), &vec![b'x'; n], None, CAP).await.unwrap();
                    kv.delete(ANN, "shared").await.unwrap();
                    kv.set(ANN, "shared", &[b'y'; 9], None, CAP).await.unwrap();
                }
            })
        });
        for writer in join_all(writers).await {
            writer.unwrap();
        }
        assert_eq!(gateways[1].increment(ANN, "n", 0, None, CAP).await.unwrap(), 9 * 20 * 3, "{}", fresh.name);
        let [values, cost, said] = counted(&fresh).await;
        assert_eq!((values, cost), (11, said), "{}", fresh.name);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_quota_is_not_passed_by_two_gateways_at_once() {
    on_each(|fresh| async move {
        let gateways = [Kv::new(&fresh.db, CAP), another(&fresh).await];
        let sets = (0..12_usize).map(|n| {
            let kv = gateways[n % 2].clone();
            async move { kv.set(ANN, &format!("{n:x}"), b"1", None, 5 * SMALLEST + 10).await }
        });
        let done = join_all(sets).await;
        let refused = done.iter().filter(|done| matches!(done, Err(KeepError::Quota))).count();
        assert_eq!((done.iter().filter(|done| done.is_ok()).count(), refused), (5, 7), "{}: {done:?}", fresh.name);
        let bytes = 5 * SMALLEST as i64;
        assert_eq!(counted(&fresh).await, [5, bytes, bytes], "{}", fresh.name);
    })
    .await;
}

/// A gateway of before knows of no shares; that of a project of the config was a guess.
#[tokio::test]
async fn whoever_changes_what_is_kept_says_whose_share_it_counts_for() {
    on_each(|fresh| async move {
        let (kv, pool) = (Kv::new(&fresh.db, CAP), fresh.raw().await);
        let share = async || -> String {
            let row = sqlx::query("SELECT share FROM plugin_spaces WHERE owner = 'ann'").fetch_one(&pool).await;
            row.unwrap().get(0)
        };
        let before = "INSERT INTO plugin_spaces (owner, plugin, bytes) VALUES ('ann', 'p', 0)";
        sqlx::query(before).execute(&pool).await.unwrap();
        kv.of_share("tenant").set(ANN, "a", b"1", None, CAP).await.unwrap();
        assert_eq!(share().await, "tenant", "{}", fresh.name);
        kv.set(ANN, "b", b"1", SOON, CAP).await.unwrap();
        over().await;
        assert_eq!(kv.sweep().await.unwrap(), 1);
        assert_eq!(share().await, "tenant", "{}: a sweep says nothing of it", fresh.name);
        pool.close().await;
    })
    .await;
}

#[tokio::test]
async fn the_cap_counts_what_another_gateway_keeps() {
    on_each(|fresh| async move {
        let [one, two] = [fresh.db.clone(), Db::open(&fresh.place).await.unwrap()].map(|db| Kv::new(&db, 3 * SMALLEST));
        let bob = Space { owner: "bob", plugin: "p" };
        one.set(ANN, "a", b"1", None, CAP).await.unwrap();
        two.set(bob, "a", b"1", None, CAP).await.unwrap();
        two.set(bob, "b", b"1", SOON, CAP).await.unwrap();
        over().await;
        two.set(bob, "c", b"1", None, CAP).await.unwrap();
        assert!(matches!(two.set(bob, "d", b"1", None, CAP).await, Err(KeepError::Cap)), "{}", fresh.name);
        // What becomes no larger needs no room.
        two.set(bob, "c", b"2", None, CAP).await.unwrap();
        one.delete(ANN, "a").await.unwrap();
        two.set(bob, "d", b"1", None, CAP).await.unwrap();
        assert_eq!(counted(&fresh).await[0], 3, "{}", fresh.name);
    })
    .await;
}

/// More than one step removes.
#[tokio::test]
async fn what_is_over_makes_room_and_a_sweep_leaves_nothing_of_it() {
    on_each(|fresh| async move {
        const MANY: usize = 600;
        let kv = Kv::new(&fresh.db, CAP);
        let quota = SMALLEST * MANY as u64 + 4 * MANY as u64;
        for n in 0..MANY {
            kv.set(ANN, &format!("{n:03x}"), b"1", SOON, quota).await.unwrap();
        }
        over().await;
        kv.set(ANN, "large", &[b'x'; 30_000], None, quota).await.unwrap();
        kv.set(Space { owner: "bob", ..ANN }, "a", b"1", SOON, quota).await.unwrap();
        over().await;
        assert!(kv.sweep().await.unwrap() > 0, "{}", fresh.name);
        let bytes = 5 + 30_000 + 64;
        assert_eq!(counted(&fresh).await, [1, bytes, bytes], "{}", fresh.name);
        assert_eq!(kv.sweep().await.unwrap(), 0);
        kv.delete(ANN, "large").await.unwrap();
        assert_eq!(counted(&fresh).await, [0, 0, 0], "{}", fresh.name);
    })
    .await;
}

/// As many as a plugin that counts for each caller leaves behind.
#[tokio::test]
async fn all_that_is_over_makes_room_for_one_large_value() {
    on_each(|fresh| async move {
        const MANY: i64 = 6_000;
        const SQLITE: &str = "WITH RECURSIVE n(i) AS (SELECT 10000 UNION ALL SELECT i + 1 FROM n WHERE i < 15999) \
             INSERT INTO plugin_values (owner, plugin, key, value, ends_ms) \
             SELECT 'ann', 'p', CAST(i AS BLOB), CAST('1' AS BLOB), 1 FROM n";
        const POSTGRES: &str = "INSERT INTO plugin_values (owner, plugin, key, value, ends_ms) \
             SELECT 'ann', 'p', CONVERT_TO(CAST(i AS TEXT), 'UTF8'), CONVERT_TO('1', 'UTF8'), 1 \
             FROM GENERATE_SERIES(10000, 15999) AS i";
        const SPACE: &str = "INSERT INTO plugin_spaces (owner, plugin, bytes) VALUES ('ann', 'p', 420000)";
        let pool = fresh.raw().await;
        for statement in [if fresh.name == "sqlite" { SQLITE } else { POSTGRES }, SPACE] {
            sqlx::query(statement).execute(&pool).await.unwrap();
        }
        pool.close().await;
        assert_eq!(counted(&fresh).await, [MANY, 420_000, 420_000], "{}", fresh.name);
        let kv = Kv::new(&fresh.db, CAP);
        kv.set(ANN, "large", &[b'x'; 400_000], None, 420_000).await.unwrap();
        let large = 5 + 400_000 + 64;
        assert!(counted(&fresh).await[1..].iter().all(|bytes| (large..=420_000).contains(bytes)), "{}", fresh.name);
        // As small, but not over: nothing gives way to it.
        assert!(matches!(kv.set(ANN, "more", &[b'x'; 20_000], None, 420_000).await, Err(KeepError::Quota)));
        assert_eq!(counted(&fresh).await, [1, large, large], "{}", fresh.name);
    })
    .await;
}

/// It stands before a value that somebody else changes, and its caller leaves.
#[tokio::test]
async fn what_nobody_waits_for_any_more_changes_nothing() {
    on_each(|fresh| async move {
        let kv = Kv::new(&fresh.db, CAP);
        kv.set(ANN, "k", b"new", None, CAP).await.unwrap();
        let pool = fresh.raw().await;
        let mut other = pool.begin().await.unwrap();
        sqlx::query("UPDATE plugin_spaces SET bytes = bytes").execute(&mut *other).await.unwrap();
        let caller = Arc::new(());
        let (set, add, delete) = (kv.of_caller(&caller), kv.of_caller(&caller), kv.of_caller(&caller));
        let calls = [
            tokio::spawn(async move { set.set(ANN, "k", b"old", None, CAP).await }),
            tokio::spawn(async move { add.increment(ANN, "n", 1, None, CAP).await.map(drop) }),
            tokio::spawn(async move { delete.delete(ANN, "k").await }),
        ];
        tokio::time::sleep(Duration::from_millis(50)).await;
        drop(caller);
        other.commit().await.unwrap();
        for call in join_all(calls).await {
            assert!(matches!(call.unwrap(), Err(KeepError::GivenUp)), "{}", fresh.name);
        }
        let found = kv.get_many(ANN, &["k", "n"].map(str::to_owned), CAP).await.unwrap();
        assert_eq!(found, [Some(b"new".to_vec()), None], "{}", fresh.name);
        let caller = Arc::new(());
        kv.of_caller(&caller).set(ANN, "k", b"newer", None, CAP).await.unwrap();
        pool.close().await;
    })
    .await;
}

/// In SQLite's files, that is; of Postgres' its operator knows.
#[tokio::test]
async fn what_was_deleted_is_over_or_was_replaced_is_in_no_file_after_a_sweep() {
    on_each(|fresh| async move {
        let Place::Folder(folder) = &fresh.place else { return };
        let kv = Kv::new(&fresh.db, CAP);
        let words = ["canary-deleted", "canary-over", "canary-replaced"];
        let in_files = || {
            let files = std::fs::read_dir(folder).unwrap().map(|file| std::fs::read(file.unwrap().path()).unwrap());
            let bytes: Vec<u8> = files.flatten().collect();
            words.map(|word| bytes.windows(word.len()).any(|found| found == word.as_bytes()))
        };
        for (round, word) in words.into_iter().enumerate() {
            let ttl = if word == "canary-over" { SOON } else { None };
            kv.set(ANN, "k", word.as_bytes(), ttl, CAP).await.unwrap();
            over().await;
            assert!(in_files()[round], "{word} is found while it is there");
            match word {
                "canary-deleted" => kv.delete(ANN, "k").await.unwrap(),
                "canary-replaced" => kv.set(ANN, "k", b"another", None, CAP).await.unwrap(),
                _ => {}
            }
            assert!(in_files()[round], "{word} is in the log");
            kv.sweep().await.unwrap();
            assert!(!in_files()[round], "{word}");
        }
    })
    .await;
}

#[tokio::test]
async fn what_an_archived_project_had_goes_and_no_other_projects() {
    on_each(|fresh| async move {
        let (kv, projects) = (Kv::new(&fresh.db, CAP), Projects::new(fresh.db.clone()));
        for id in ["proj_a", "proj_b"] {
            let (id, tenant, settings) = (id.to_owned(), "t".into(), "{}".into());
            let project =
                KeptProject { id, tenant, settings, created_ms: 1, created_by: "root".into(), archived_ms: None };
            assert!(projects.add(&project, 9).await.unwrap());
        }
        for owner in ["proj_a", "proj_b", "t"] {
            for plugin in ["p", "q"] {
                kv.set(Space { owner, plugin }, "k", b"1", None, CAP).await.unwrap();
            }
        }
        assert_eq!(kv.sweep().await.unwrap(), 0);
        projects.archive("proj_a", 5, |_, _| true).await.unwrap();
        assert_eq!(kv.sweep().await.unwrap(), 2, "{}", fresh.name);
        let keys = ["k".to_owned()];
        for (owner, expected) in [("proj_a", None), ("proj_b", Some(b"1".to_vec())), ("t", Some(b"1".to_vec()))] {
            let found = kv.get_many(Space { owner, plugin: "q" }, &keys, CAP).await.unwrap();
            assert_eq!(found, [expected], "{}: {owner}", fresh.name);
        }
        let bytes = 4 * SMALLEST as i64;
        assert_eq!(counted(&fresh).await, [4, bytes, bytes], "{}", fresh.name);
    })
    .await;
}

#[tokio::test]
async fn bytes_come_back_as_they_are_after_the_database_was_closed() {
    on_each(|fresh| async move {
        let kv = another(&fresh).await;
        let keys = ["\0", "a\0b", "ä", "'; DROP TABLE plugin_values; --", "a"].map(str::to_owned);
        let values: [&[u8]; 5] = [b"\0\0", &[0xff, 0xfe, 0], b"", "ä".as_bytes(), b"007"];
        for (key, value) in keys.iter().zip(values) {
            kv.set(ANN, key, value, None, CAP).await.unwrap();
        }
        drop(kv);
        let kv = another(&fresh).await;
        let found = kv.get_many(ANN, &keys, CAP).await.unwrap();
        assert_eq!(found, values.map(|value| Some(value.to_vec())), "{}", fresh.name);
        assert_eq!(kv.increment(ANN, "a", 1, None, CAP).await.unwrap(), 8, "{}", fresh.name);
    })
    .await;
}

/// `cargo test --release -p tidegate-store --test kv -- --ignored --nocapture`
#[tokio::test]
#[ignore = "measures, and prints what a call costs"]
async fn what_a_call_costs() {
    const CALLS: usize = 500;
    on_each(|fresh| async move {
        let (kv, keys) = (Kv::new(&fresh.db, CAP), ["k".to_owned()]);
        let many: Vec<String> = (0..64).map(|n| format!("k{n}")).collect();
        for key in &many {
            kv.set(ANN, key, &[b'x'; 100], None, CAP).await.unwrap();
        }
        let mut times: [Vec<Duration>; 4] = Default::default();
        for n in 0..CALLS {
            let value = vec![b'x'; 100 + n % 7];
            times[0].push(timed(kv.set(ANN, "k", &value, None, CAP)).await);
            times[1].push(timed(kv.get_many(ANN, &keys, CAP)).await);
            times[2].push(timed(kv.get_many(ANN, &many, CAP)).await);
            times[3].push(timed(kv.increment(ANN, "n", 1, None, CAP)).await);
        }
        for (what, times) in ["set", "get", "get of 64 keys", "increment"].into_iter().zip(&mut times) {
            times.sort_unstable();
            let at = |percent: usize| times[CALLS * percent / 100].as_micros();
            println!("{}: {what}: median {} us, p99 {} us", fresh.name, at(50), at(99));
        }
    })
    .await;
}

async fn timed<T>(call: impl Future<Output = Result<T, KeepError>>) -> Duration {
    let began = Instant::now();
    call.await.unwrap();
    began.elapsed()
}
