//! What plugins keep in `vectors`, wherever the operator keeps it: one suite for memory and both databases, which a plugin cannot
//! tell apart; and what the store is for: restarts, several gateways. `shipped/semantic_cache.rs` has the same with a plugin.

use futures_util::future::join_all;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidegate::config::Config;
use tidegate::outside::vectors::StoreVectors;
use tidegate_sandbox::capability::{
    CapabilityError, Collection, MemoryVectors, VectorEntry, VectorHit, VectorRefusal, VectorStore,
};
use tidegate_store::{Db, Place};
use tidegate_tests::postgres::Database;
use tidegate_types::TenantId;

/// For a database on a machine that is busy with other tests.
const PATIENCE: Duration = Duration::from_secs(60);

const OWN: usize = 2_000;
const ALL: usize = 3_000;

type Vectors = Arc<dyn VectorStore>;

/// Runs `test`, whose name is for its database, on each kind of storage.
async fn on_each(name: &str, test: impl AsyncFn(&'static str, Vectors)) {
    test("memory", Arc::new(MemoryVectors::new(OWN, ALL))).await;
    let folder = tempfile::tempdir().unwrap();
    test("sqlite", stored(&Place::Folder(folder.path().into())).await).await;
    let Some(database) = Database::new(&format!("vectors_{name}")) else { return };
    test("postgres", stored(&Place::Postgres(database.url())).await).await;
}

async fn stored(place: &Place) -> Arc<StoreVectors> {
    let db = Db::open(place).await.unwrap();
    Arc::new(StoreVectors::with_patience(&db, OWN as u64, ALL as u64, PATIENCE))
}

fn of(tenant: &str) -> Collection {
    Collection::of_tenant("notes", TenantId::new(tenant))
}

fn entry(id: &str, vector: &[f32], kind: &str) -> VectorEntry {
    VectorEntry { id: id.into(), vector: vector.into(), payload: vec![("kind".into(), kind.into())] }
}

async fn put(store: &dyn VectorStore, of: &Collection, entries: &[VectorEntry]) -> Result<(), CapabilityError> {
    store.put(of, entries.to_vec()).await
}

async fn hits(store: &dyn VectorStore, of: &Collection, vector: &[f32], filter: &[(&str, &str)]) -> Vec<VectorHit> {
    store.ready(of).await.unwrap();
    let filter = filter.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect();
    store.search(of, vector.to_vec(), 9, filter).await.unwrap()
}

async fn ids(store: &dyn VectorStore, of: &Collection, vector: &[f32]) -> String {
    hits(store, of, vector, &[]).await.into_iter().map(|hit| hit.id).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_put_is_found_as_it_was_put_nearest_first() {
    on_each("found", async |name, store| {
        let store = store.as_ref();
        let ann = of("ann");
        assert_eq!(ids(store, &ann, &[1.0]).await, "", "{name}");
        let entries = [entry("f", &[-1.0, 0.1], "a"), entry("n", &[9.0, 1.0], "a"), entry("m", &[1.0, 1.0], "b")];
        put(store, &ann, &entries).await.unwrap();
        assert_eq!(ids(store, &ann, &[0.1, 0.0]).await, "nmf", "{name}");
        let found = hits(store, &ann, &[1.0, 0.0], &[("kind", "b")]).await;
        assert_eq!((found.len(), &found[0].payload), (1, &entries[2].payload), "{name}");
        assert_eq!(ids(store, &ann, &[1.0, 0.0, 0.0]).await, "", "{name}: other dimensions");
        assert_eq!(ids(store, &of("bob"), &[0.1, 0.0]).await, "", "{name}: another's");
        let other = Collection { name: "other".into(), ..ann.clone() };
        assert_eq!(ids(store, &other, &[0.1, 0.0]).await, "", "{name}: another collection");
        put(store, &ann, &[entry("n", &[-1.0, 0.0], "c")]).await.unwrap();
        assert_eq!(ids(store, &ann, &[0.1, 0.0]).await, "mfn", "{name}: replaced");
        assert_eq!(store.delete(&ann, vec!["m".into(), "m".into(), "?".into()]).await, Ok(1), "{name}");
        assert_eq!(store.delete(&of("bob"), vec!["n".into()]).await, Ok(0), "{name}");
        assert_eq!(ids(store, &ann, &[0.1, 0.0]).await, "fn", "{name}");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn all_are_put_or_none_within_the_same_bounds_and_words() {
    on_each("bounds", async |name, store| {
        let store = store.as_ref();
        let ann = of("ann");
        let text = "x".repeat(600);
        // Each is some 800 bytes.
        let big = |id: &str| entry(id, &[1.0], &text);
        let put = async |of: &Collection, entries: &[VectorEntry]| put(store, of, entries).await;
        let odd = put(&ann, &[entry("a", &[1.0], ""), entry("b", &[1.0, 2.0], "")]).await;
        assert_eq!(odd, Err(VectorRefusal::Dimensions(2).into()), "{name}");
        let own = CapabilityError::from(VectorRefusal::Quota(OWN as u64));
        assert_eq!(put(&ann, &["a", "b", "c"].map(big)).await, Err(own.clone()), "{name}");
        assert_eq!(ids(store, &ann, &[1.0]).await, "", "{name}");
        put(&ann, &["a", "b"].map(big)).await.unwrap();
        put(&ann, &["a", "b"].map(big)).await.unwrap();
        let other = Collection { name: "other".into(), ..ann.clone() };
        assert_eq!(put(&other, &[big("c")]).await, Err(own), "{name}: of all collections");
        put(&of("bob"), &[big("a")]).await.unwrap();
        let all = CapabilityError::from(VectorRefusal::Cap(ALL as u64));
        let of_project = Collection { owner: TenantId::new("proj_bob"), ..of("bob") };
        assert_eq!(put(&of_project, &["a", "b"].map(big)).await, Err(all.clone()), "{name}");
        put(&of("cid"), &[big("a")]).await.unwrap();
        assert_eq!(put(&of("cid"), &[big("b")]).await, Err(all), "{name}: a third is its share");
        assert_eq!(store.delete(&of("cid"), vec!["a".into()]).await, Ok(1), "{name}");
        assert_eq!(store.delete(&ann, vec!["a".into()]).await, Ok(1), "{name}");
        put(&ann, &[entry("b", &[2.0], "small")]).await.unwrap();
        put(&of_project, &[big("a")]).await.unwrap();
        assert_eq!(store.delete(&ann, vec!["b".into()]).await, Ok(1), "{name}");
        put(&ann, &[entry("d", &[1.0, 2.0, 3.0], "")]).await.unwrap();
        assert_eq!(ids(store, &ann, &[1.0, 2.0, 3.0]).await, "d", "{name}: an empty one takes any dimensions");
    })
    .await;
}

/// Whoever asks at the same time.
#[tokio::test(flavor = "multi_thread")]
async fn who_has_put_something_finds_it() {
    on_each("own", async |name, store| {
        let tasks = (0..8_u8).map(|n| {
            let store = Arc::clone(&store);
            tokio::spawn(async move {
                let (ann, id) = (of("ann"), char::from(b'a' + n).to_string());
                for round in 0..12 {
                    put(store.as_ref(), &ann, &[entry(&id, &[1.0], &round.to_string())]).await.unwrap();
                    let found = hits(store.as_ref(), &ann, &[1.0], &[("kind", &round.to_string())]).await;
                    assert!(found.iter().any(|hit| hit.id == id), "{name}: {id} {round}: {found:?}");
                    assert_eq!(store.delete(&ann, vec![id.clone()]).await, Ok(1));
                    let found = ids(store.as_ref(), &ann, &[1.0]).await;
                    assert!(!found.contains(&id), "{name}: {id} {round}: {found}");
                }
            })
        });
        for task in join_all(tasks).await {
            task.unwrap();
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn gateways_with_one_postgres_find_what_the_others_put_and_not_what_they_deleted() {
    let Some(database) = Database::new("vectors_gateways") else { return };
    let place = Place::Postgres(database.url());
    let (one, two) = (stored(&place).await, stored(&place).await);
    let ann = of("ann");
    put(one.as_ref(), &ann, &[entry("a", &[1.0], ""), entry("b", &[1.0], "")]).await.unwrap();
    assert_eq!(ids(two.as_ref(), &ann, &[1.0]).await, "ab");
    put(two.as_ref(), &ann, &[entry("c", &[1.0], "")]).await.unwrap();
    one.delete(&ann, vec!["a".into()]).await.unwrap();
    for gateway in [&one, &two, &stored(&place).await] {
        assert_eq!(ids(gateway.as_ref(), &ann, &[1.0]).await, "bc");
    }
}

#[tokio::test]
async fn a_store_that_is_gone_is_unavailable_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let db = Db::open(&Place::Folder(folder.path().into())).await.unwrap();
    let store = StoreVectors::new(&db, OWN as u64, ALL as u64);
    assert!(store.waits(), "who uses it takes no place of those that compute");
    let ann = of("ann");
    put(&store, &ann, &[entry("a", &[1.0], "")]).await.unwrap();
    db.close().await;
    let began = Instant::now();
    let errors = [
        store.ready(&ann).await.unwrap_err(),
        put(&store, &ann, &[entry("b", &[1.0], "")]).await.unwrap_err(),
        store.delete(&ann, vec!["a".into()]).await.unwrap_err(),
    ];
    let is_told = |error: &CapabilityError| matches!(error, CapabilityError::Unavailable(why) if why.contains("the server's store"));
    assert!(errors.iter().all(is_told), "{errors:?}");
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
}

/// And asks no store.
#[tokio::test(flavor = "multi_thread")]
async fn a_check_says_where_plugins_keep_vectors() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let fact = "vectors   of plugins in the store, 256 MiB at most; they outlive a restart";
    for (kv, more) in [("memory", ", and what they keep in `kv` does not"), ("store", "")] {
        let text = format!("[store]\npath = {data:?}\n[plugins]\nvectors = \"store\"\nkv = {kv:?}\n");
        let config = Config::parse(&text).unwrap();
        let facts = tokio::task::spawn_blocking(move || tidegate::check(&config)).await.unwrap().unwrap();
        assert!(facts.contains(&format!("{fact}{more}")), "{facts:?}");
    }
    assert!(!data.exists());
}
