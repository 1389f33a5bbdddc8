//! What plugins keep in `vectors`, on each database: that copies which follow it have what it has, whoever writes at once, that it
//! is counted right, and that what nobody needs goes. What a plugin sees of it is tested for all suppliers alike, in
//! `tests/tests/e2e/vectors.rs`.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests, which clippy does not take for tests")]

mod support;

use futures_util::future::join_all;
use sqlx::Row;
use std::collections::BTreeMap;
use std::sync::Arc;
use support::{Fresh, on_each};
use tidegate_store::{
    Changes, Collection, Cursor, Db, KeepError, KeptProject, KeptVector, Place, Projects, VectorChange, Vectors,
};

const CAP: u64 = 1 << 20;
const ANN: Collection<'static> = Collection { owner: "ann", name: "notes" };
const COST: u64 = 200;
/// What is left of one whose id has one byte, once it is deleted.
const DELETED: i64 = 129;

/// As another gateway has it.
async fn another(fresh: &Fresh) -> Vectors {
    Vectors::new(&Db::open(&fresh.place).await.unwrap(), CAP)
}

fn entry(id: &str, number: f32) -> KeptVector {
    KeptVector { id: id.into(), vector: vec![number, 1.0], payload: vec![("k".into(), "1".into())], cost: COST }
}

/// A copy of what an owner has.
#[derive(Default)]
struct Copy {
    cursor: Option<Cursor>,
    entries: BTreeMap<(String, String), KeptVector>,
    /// How often it was made anew.
    anew: usize,
}

impl Copy {
    async fn follow(&mut self, vectors: &Vectors, owner: &str) -> &BTreeMap<(String, String), KeptVector> {
        loop {
            match vectors.changes(owner, self.cursor.as_ref()).await.unwrap() {
                Changes::None => {
                    (self.cursor, self.entries) = (None, BTreeMap::new());
                    return &self.entries;
                }
                Changes::Anew => (self.cursor, self.entries, self.anew) = (None, BTreeMap::new(), self.anew + 1),
                Changes::Some { changes, cursor, is_last } => {
                    changes.into_iter().for_each(|(name, change)| self.take(name, change));
                    self.cursor = Some(cursor);
                    if is_last {
                        return &self.entries;
                    }
                }
            }
        }
    }

    fn take(&mut self, name: String, change: VectorChange) {
        match change {
            VectorChange::Put(entry) => _ = self.entries.insert((name, entry.id.clone()), entry),
            VectorChange::Deleted(id) => _ = self.entries.remove(&(name, id)),
        }
    }

    async fn ids(&mut self, vectors: &Vectors) -> String {
        self.follow(vectors, "ann").await.keys().map(|(_, id)| id.as_str()).collect()
    }
}

/// The bytes of what an owner has, and of what it has deleted, as its row says; which are those of its entries.
async fn counted(fresh: &Fresh, owner: &str) -> [i64; 2] {
    let pool = fresh.raw().await;
    let entries = "SELECT CAST(COALESCE(SUM(CASE WHEN vector IS NULL THEN 0 ELSE cost END), 0) AS BIGINT), \
         CAST(COALESCE(SUM(CASE WHEN vector IS NULL THEN cost ELSE 0 END), 0) AS BIGINT) FROM plugin_vectors WHERE owner = $1";
    let row = "SELECT CAST(COALESCE(SUM(bytes), 0) AS BIGINT), CAST(COALESCE(SUM(deleted_bytes), 0) AS BIGINT) \
         FROM plugin_vector_owners WHERE owner = $1";
    let entries = sqlx::query(entries).bind(owner).fetch_one(&pool).await.unwrap();
    let row = sqlx::query(row).bind(owner).fetch_one(&pool).await.unwrap();
    let said = [row.get(0), row.get(1)];
    assert_eq!([entries.get::<i64, _>(0), entries.get(1)], said, "{}", fresh.name);
    pool.close().await;
    said
}

/// As if what was deleted had been so for long.
async fn age(fresh: &Fresh) {
    let pool = fresh.raw().await;
    let aging = "UPDATE plugin_vectors SET deleted_ms = 1 WHERE deleted_ms IS NOT NULL";
    sqlx::query(aging).execute(&pool).await.unwrap();
    pool.close().await;
}

/// Numbers that look random, from a seed.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, most: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % most
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_has_what_the_store_has_however_seldom_it_follows() {
    on_each(|fresh| async move {
        let (vectors, mut numbers) = (Vectors::new(&fresh.db, CAP), Numbers(7));
        let mut copies = [Copy::default(), Copy::default(), Copy::default()];
        let mut wanted: BTreeMap<(String, String), KeptVector> = BTreeMap::new();
        for round in 0..150 {
            let name = ["a", "b"][numbers.below(2)];
            let of = Collection { owner: "ann", name };
            // Some puts are more than a statement takes, and more than a copy is told at once.
            let ids: Vec<String> =
                (0..[1, 3, 40, 150][numbers.below(4)]).map(|_| numbers.below(900).to_string()).collect();
            if numbers.below(3) == 0 {
                let there = ids.iter().collect::<std::collections::BTreeSet<_>>().into_iter();
                let there = there.filter(|id| wanted.remove(&(name.into(), (*id).clone())).is_some()).count();
                assert_eq!(vectors.delete(of, &ids).await.unwrap(), there as u64, "{}: {round}", fresh.name);
            } else {
                let entries: Vec<_> = ids.iter().map(|id| entry(id, round as f32)).collect();
                wanted.extend(entries.iter().map(|entry| ((name.to_owned(), entry.id.clone()), entry.clone())));
                vectors.put(of, entries, wanted.len() as u64 * COST).await.unwrap();
            }
            if round % 25 == 24 {
                age(&fresh).await;
                vectors.sweep().await.unwrap();
            }
            for (n, copy) in copies.iter_mut().enumerate() {
                if round % [1, 7, 40][n] == 0 {
                    assert_eq!(copy.follow(&vectors, "ann").await, &wanted, "{}: {round}, {n}", fresh.name);
                }
            }
        }
        assert!(copies[2].anew > 0, "{}: it has missed what was forgotten", fresh.name);
        assert_ne!(counted(&fresh, "ann").await[0], 0, "{}", fresh.name);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_that_follows_while_several_gateways_write_misses_nothing() {
    on_each(|fresh| async move {
        let gateways = [Vectors::new(&fresh.db, CAP), another(&fresh).await];
        let writers = (0..4_usize).map(|n| {
            let vectors = gateways[n % 2].clone();
            tokio::spawn(async move {
                for round in 0..20 {
                    let ids = [0, 1].map(|of| format!("{n}-{}", (round + of) % 5));
                    vectors.put(ANN, ids.iter().map(|id| entry(id, round as f32)).collect(), CAP).await.unwrap();
                    vectors.delete(ANN, &[format!("{n}-{}", (round + 3) % 5)]).await.unwrap();
                }
            })
        });
        let (writers, mut copy) = (join_all(writers), Copy::default());
        let following = async {
            loop {
                copy.follow(&gateways[1], "ann").await;
                tokio::task::yield_now().await;
            }
        };
        tokio::select! {
            written = writers => written.into_iter().for_each(|writer| writer.unwrap()),
            () = following => {}
        }
        copy.follow(&gateways[1], "ann").await;
        let mut new = Copy::default();
        assert_eq!(&copy.entries, new.follow(&gateways[0], "ann").await, "{}", fresh.name);
        assert!(!copy.entries.is_empty());
        assert_ne!(counted(&fresh, "ann").await[0], 0, "{}", fresh.name);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_deleted_is_forgotten_and_who_missed_it_begins_anew() {
    on_each(|fresh| async move {
        let vectors = Vectors::new(&fresh.db, CAP);
        let (mut follows, mut missed) = (Copy::default(), Copy::default());
        vectors.put(ANN, vec![entry("a", 1.0), entry("b", 1.0), entry("c", 1.0)], CAP).await.unwrap();
        assert_eq!((follows.ids(&vectors).await, missed.ids(&vectors).await), ("abc".into(), "abc".into()));
        vectors.delete(ANN, &["a".into(), "nobody".into()]).await.unwrap();
        assert_eq!(follows.ids(&vectors).await, "bc");
        assert_eq!(vectors.sweep().await.unwrap(), 0, "{}: it is known for a while", fresh.name);
        assert_eq!(counted(&fresh, "ann").await, [2 * COST as i64, DELETED], "{}", fresh.name);
        age(&fresh).await;
        assert_eq!(vectors.sweep().await.unwrap(), 1, "{}", fresh.name);
        assert_eq!(counted(&fresh, "ann").await, [2 * COST as i64, 0], "{}", fresh.name);
        assert_eq!((follows.ids(&vectors).await, follows.anew), ("bc".into(), 0), "{}", fresh.name);
        assert_eq!((missed.ids(&vectors).await, missed.anew), ("bc".into(), 1), "{}", fresh.name);
        vectors.put(ANN, vec![entry("a", 1.0)], 3 * COST).await.unwrap();
        vectors.delete(ANN, &["b".into()]).await.unwrap();
        vectors.put(ANN, vec![entry("b", 1.0)], 3 * COST).await.unwrap();
        assert_eq!(counted(&fresh, "ann").await, [3 * COST as i64, 0], "{}: it is there again", fresh.name);
        assert_eq!((missed.ids(&vectors).await, missed.anew), ("abc".into(), 1), "{}", fresh.name);
    })
    .await;
}

#[tokio::test]
async fn a_copy_that_is_being_made_goes_on_when_what_was_deleted_before_is_forgotten() {
    on_each(|fresh| async move {
        let vectors = Vectors::new(&fresh.db, CAP);
        let entries: Vec<_> = (0..200).map(|n| entry(&n.to_string(), 1.0)).collect();
        vectors.put(ANN, entries, CAP).await.unwrap();
        vectors.delete(ANN, &["7".into()]).await.unwrap();
        let Changes::Some { cursor, is_last: false, .. } = vectors.changes("ann", None).await.unwrap() else {
            panic!("{}: the first piece of two", fresh.name)
        };
        age(&fresh).await;
        assert_eq!(vectors.sweep().await.unwrap(), 1, "{}", fresh.name);
        let next = vectors.changes("ann", Some(&cursor)).await.unwrap();
        assert!(matches!(next, Changes::Some { is_last: true, .. }), "{}: {next:?}", fresh.name);
    })
    .await;
}

#[tokio::test]
async fn what_was_deleted_is_forgotten_sooner_where_it_is_much() {
    on_each(|fresh| async move {
        let vectors = Vectors::new(&fresh.db, 1 << 40);
        let (mut missed, mut follows) = (Copy::default(), Copy::default());
        let ids: Vec<String> = (0..1000).map(|n| format!("{n:0>500}")).collect();
        for round in 0..8 {
            vectors
                .put(ANN, ids.iter().map(|id| entry(&format!("{round}{id}"), 1.0)).collect(), 1 << 40)
                .await
                .unwrap();
            if round == 0 {
                missed.follow(&vectors, "ann").await;
            }
            let gone: Vec<String> = ids.iter().map(|id| format!("{round}{id}")).collect();
            assert_eq!(vectors.delete(ANN, &gone).await.unwrap(), 1000);
            assert!(follows.follow(&vectors, "ann").await.is_empty());
        }
        // The seventh has passed 4 MiB, and the eighth is after eight steps of 512 entries.
        let left = 7 * 629_000 - 8 * 512 * 629 + 629_000;
        assert_eq!(counted(&fresh, "ann").await, [0, left], "{}: the older half was forgotten", fresh.name);
        assert_eq!(follows.anew, 0, "{}", fresh.name);
        assert!(missed.follow(&vectors, "ann").await.is_empty());
        assert_eq!(missed.anew, 1, "{}", fresh.name);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_quota_is_not_passed_by_two_gateways_at_once() {
    on_each(|fresh| async move {
        let gateways = [Vectors::new(&fresh.db, CAP), another(&fresh).await];
        let puts = (0..12_usize).map(|n| {
            let vectors = gateways[n % 2].clone();
            let of = Collection { owner: "ann", name: ["a", "b"][n % 2] };
            async move { vectors.put(of, vec![entry(&format!("{n:x}"), 1.0)], 5 * COST + 10).await }
        });
        let done = join_all(puts).await;
        let refused = done.iter().filter(|done| matches!(done, Err(KeepError::Quota))).count();
        assert_eq!((done.iter().filter(|done| done.is_ok()).count(), refused), (5, 7), "{}: {done:?}", fresh.name);
        assert_eq!(counted(&fresh, "ann").await, [5 * COST as i64, 0], "{}", fresh.name);
    })
    .await;
}

#[tokio::test]
async fn all_owners_together_have_a_limit() {
    on_each(|fresh| async move {
        let vectors = Vectors::new(&fresh.db, 2 * COST);
        let put = async |owner, id: &str| vectors.put(Collection { owner, ..ANN }, vec![entry(id, 1.0)], CAP).await;
        put("ann", "a").await.unwrap();
        put("bob", "a").await.unwrap();
        put("bob", "a").await.unwrap();
        let of_bob = vectors.of_share("bob");
        let project = of_bob.put(Collection { owner: "proj", ..ANN }, vec![entry("a", 1.0)], CAP).await;
        assert!(matches!(project, Err(KeepError::Cap)), "{}", fresh.name);
        assert_eq!(counted(&fresh, "proj").await, [0, 0], "{}", fresh.name);
        put("cid", "a").await.expect("its share");
        assert!(matches!(put("cid", "b").await, Err(KeepError::Cap)), "{}", fresh.name);
        assert_eq!(vectors.delete(Collection { owner: "bob", ..ANN }, &["a".into()]).await.unwrap(), 1);
        put("bob", "b").await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn all_are_put_or_none_and_a_collection_has_the_dimensions_of_its_first() {
    on_each(|fresh| async move {
        let vectors = Vectors::new(&fresh.db, CAP);
        let of = |id: &str, dimensions: usize| KeptVector { vector: vec![1.0; dimensions], ..entry(id, 1.0) };
        let odd = vectors.put(ANN, vec![of("a", 2), of("b", 3)], CAP).await;
        assert!(matches!(odd, Err(KeepError::Dimensions(3))), "{}: {odd:?}", fresh.name);
        let big = vectors.put(ANN, vec![of("a", 2), of("b", 2)], 2 * COST - 1).await;
        assert!(matches!(big, Err(KeepError::Quota)), "{}: {big:?}", fresh.name);
        assert_eq!(Copy::default().ids(&vectors).await, "", "{}", fresh.name);
        vectors.put(ANN, Vec::new(), CAP).await.unwrap();
        vectors.put(ANN, vec![of("a", 2)], CAP).await.unwrap();
        let odd = vectors.put(ANN, vec![of("a", 3)], CAP).await;
        assert!(matches!(odd, Err(KeepError::Dimensions(3))), "{}: {odd:?}", fresh.name);
        vectors.put(Collection { name: "other", ..ANN }, vec![of("c", 3)], CAP).await.unwrap();
        vectors.delete(ANN, &["a".into()]).await.unwrap();
        vectors.put(ANN, vec![of("b", 3), of("b", 3)], CAP).await.unwrap();
        assert_eq!(Copy::default().ids(&vectors).await, "bc", "{}", fresh.name);
    })
    .await;
}

#[tokio::test]
async fn who_does_not_wait_any_more_changes_nothing() {
    on_each(|fresh| async move {
        let vectors = Vectors::new(&fresh.db, CAP);
        vectors.put(ANN, vec![entry("a", 1.0)], CAP).await.unwrap();
        let gone = vectors.of_caller(&Arc::new(()));
        assert!(matches!(gone.put(ANN, vec![entry("b", 1.0)], CAP).await, Err(KeepError::GivenUp)), "{}", fresh.name);
        assert!(matches!(gone.delete(ANN, &["a".into()]).await, Err(KeepError::GivenUp)), "{}", fresh.name);
        assert_eq!(Copy::default().ids(&vectors).await, "a", "{}", fresh.name);
    })
    .await;
}

#[tokio::test]
async fn what_an_archived_project_had_goes_and_no_other_projects() {
    on_each(|fresh| async move {
        let (vectors, projects) = (Vectors::new(&fresh.db, CAP), Projects::new(fresh.db.clone()));
        for id in ["proj_a", "proj_b"] {
            let (id, tenant, settings) = (id.to_owned(), "t".into(), "{}".into());
            let project =
                KeptProject { id, tenant, settings, created_ms: 1, created_by: "root".into(), archived_ms: None };
            assert!(projects.add(&project, 9).await.unwrap());
        }
        let ids: Vec<String> = (0..600).map(|n| n.to_string()).collect();
        let entries: Vec<_> = ids.iter().map(|id| entry(id, 1.0)).collect();
        for owner in ["proj_a", "proj_b", "t"] {
            vectors.put(Collection { owner, ..ANN }, entries.clone(), CAP).await.unwrap();
        }
        let [mut copy, mut late] = [Copy::default(), Copy::default()];
        for copy in [&mut copy, &mut late] {
            assert_eq!(copy.follow(&vectors, "proj_a").await.len(), 600);
        }
        assert_eq!(vectors.sweep().await.unwrap(), 0);
        projects.archive("proj_a", 5, |_, _| true).await.unwrap();
        assert_eq!(vectors.sweep().await.unwrap(), 600, "{}", fresh.name);
        assert!(copy.follow(&vectors, "proj_a").await.is_empty());
        for owner in ["proj_b", "t"] {
            assert_eq!(Copy::default().follow(&vectors, owner).await.len(), 600, "{}: {owner}", fresh.name);
        }
        assert_eq!(counted(&fresh, "proj_a").await, [0, 0], "{}", fresh.name);
        // A request that was on its way: who has not looked meanwhile finds that alone.
        vectors.put(Collection { owner: "proj_a", ..ANN }, vec![entry("z", 1.0)], CAP).await.unwrap();
        assert_eq!(late.follow(&vectors, "proj_a").await.len(), 1, "{}", fresh.name);
    })
    .await;
}

#[tokio::test]
async fn entries_come_back_as_they_are_after_the_database_was_closed() {
    on_each(|fresh| async move {
        let strange = ["\0", "ä", "'; DROP TABLE plugin_vectors; --", "\u{2028}"];
        let entries: Vec<_> = strange
            .iter()
            .map(|id| KeptVector {
                vector: vec![f32::MIN_POSITIVE, -0.0, 1.0e-45, f32::MAX],
                payload: vec![((*id).to_owned(), "{\"a\": \"\\u0000\"}".to_owned()), (String::new(), String::new())],
                ..entry(id, 0.0)
            })
            .collect();
        another(&fresh).await.put(ANN, entries.clone(), CAP).await.unwrap();
        let mut copy = Copy::default();
        let found = copy.follow(&another(&fresh).await, "ann").await;
        assert_eq!(found.len(), 4, "{}", fresh.name);
        for entry in entries {
            assert_eq!(found[&("notes".to_owned(), entry.id.clone())], entry, "{}", fresh.name);
        }
    })
    .await;
}

#[tokio::test]
async fn nothing_of_what_was_deleted_or_replaced_is_left_in_sqlites_files() {
    const WORDS: [&str; 2] = ["canary-deleted", "canary-replaced"];
    let folder = tempfile::tempdir().unwrap();
    let db = Db::open(&Place::Folder(folder.path().to_owned())).await.unwrap();
    let vectors = Vectors::new(&db, CAP);
    for word in WORDS {
        let told = |word: &str| KeptVector { payload: vec![("text".into(), word.into())], ..entry("a", 1.0) };
        vectors.put(ANN, vec![told(word)], CAP).await.unwrap();
        match word {
            "canary-deleted" => _ = vectors.delete(ANN, &["a".into()]).await.unwrap(),
            _ => vectors.put(ANN, vec![told("another")], CAP).await.unwrap(),
        }
        vectors.sweep().await.unwrap();
        for file in std::fs::read_dir(folder.path()).unwrap() {
            let bytes = std::fs::read(file.unwrap().path()).unwrap();
            assert!(!bytes.windows(word.len()).any(|window| window == word.as_bytes()), "{word}");
        }
    }
}
