//! One suite for all that keeps `kv`: a plugin cannot tell memory from either database.

use super::PATIENCE;
use std::sync::Arc;
use std::time::Duration;
use tidegate::outside::kv::StoreKv;
use tidegate_sandbox::capability::{CapabilityError, KvStore, MemoryKv, Namespace};
use tidegate_store::{Db, Place};
use tidegate_tests::postgres::Database;
use tidegate_types::TenantId;

const QUOTA: u64 = 10_000;
const SOON: Option<Duration> = Some(Duration::from_millis(1));

type Kv = Arc<dyn KvStore>;

/// Runs `test`, whose name is for its database, on each kind of storage with so many bytes.
async fn on_each(name: &str, cap: u64, test: impl AsyncFn(&'static str, Kv)) {
    test("memory", Arc::new(MemoryKv::new(cap))).await;
    let folder = tempfile::tempdir().unwrap();
    test("sqlite", stored(&Place::Folder(folder.path().into()), cap).await).await;
    let Some(database) = Database::new(&format!("kv_{name}")) else { return };
    test("postgres", stored(&Place::Postgres(database.url()), cap).await).await;
}

async fn stored(place: &Place, cap: u64) -> Kv {
    Arc::new(StoreKv::with_patience(&Db::open(place).await.unwrap(), cap, PATIENCE))
}

fn of(plugin: &str, tenant: &str) -> Namespace {
    Namespace::of_tenant(plugin, TenantId::new(tenant))
}

fn ann() -> Namespace {
    of("p", "ann")
}

async fn get(kv: &Kv, space: &Namespace, key: &str) -> Option<String> {
    let found = kv.get_many(space, &[key.to_owned()], u64::MAX).await.unwrap();
    found.into_iter().next().unwrap().map(|value| String::from_utf8(value).unwrap())
}

async fn set(kv: &Kv, key: &str, value: &str, ttl: Option<Duration>) -> Result<(), CapabilityError> {
    kv.set(&ann(), key.into(), value.into(), ttl, QUOTA).await
}

async fn add(kv: &Kv, key: &str, delta: i64, ttl: Option<Duration>) -> Result<i64, CapabilityError> {
    kv.increment(&ann(), key.into(), delta, ttl, QUOTA).await
}

async fn over() {
    tokio::time::sleep(Duration::from_millis(10)).await;
}

fn denied(why: &str) -> CapabilityError {
    CapabilityError::Denied(why.into())
}

fn invalid(why: &str) -> CapabilityError {
    CapabilityError::Invalid(why.into())
}

#[tokio::test]
async fn a_value_is_its_plugins_and_its_owners() {
    on_each("apart", 1 << 20, async |name, kv| {
        for (plugin, tenant) in [("p", "ann"), ("p", "bob"), ("q", "ann"), ("ann", "p")] {
            let value = format!("{plugin} of {tenant}").into_bytes();
            kv.set(&of(plugin, tenant), "k".into(), value, None, QUOTA).await.unwrap();
        }
        kv.delete(&of("q", "ann"), "k").await.unwrap();
        kv.delete(&of("nobody", "ann"), "k").await.unwrap();
        for (plugin, tenant, expected) in [
            ("p", "ann", Some("p of ann")),
            ("p", "bob", Some("p of bob")),
            ("q", "ann", None),
            ("ann", "p", Some("ann of p")),
        ] {
            assert_eq!(get(&kv, &of(plugin, tenant), "k").await.as_deref(), expected, "{name}: {plugin} of {tenant}");
        }
        set(&kv, "k", "again", None).await.unwrap();
        assert_eq!(get(&kv, &ann(), "k").await.unwrap(), "again", "{name}");
    })
    .await;
}

#[tokio::test]
async fn a_value_is_absent_at_once_when_its_time_is_over() {
    on_each("over", 1 << 20, async |name, kv| {
        set(&kv, "soon", "1", SOON).await.unwrap();
        set(&kv, "now", "1", Some(Duration::ZERO)).await.unwrap();
        set(&kv, "later", "1", Some(Duration::from_secs(3600))).await.unwrap();
        set(&kv, "never", "1", Some(Duration::MAX)).await.unwrap();
        set(&kv, "renewed", "1", SOON).await.unwrap();
        set(&kv, "renewed", "2", None).await.unwrap();
        over().await;
        for (key, expected) in
            [("soon", None), ("now", None), ("later", Some("1")), ("never", Some("1")), ("renewed", Some("2"))]
        {
            assert_eq!(get(&kv, &ann(), key).await.as_deref(), expected, "{name}: {key}");
        }
    })
    .await;
}

#[tokio::test]
async fn a_number_keeps_the_life_of_its_first_increment_and_nothing_else_is_one() {
    on_each("numbers", 1 << 20, async |name, kv| {
        let long = Some(Duration::from_secs(3600));
        assert_eq!(add(&kv, "n", 2, Some(Duration::from_secs(3))).await, Ok(2), "{name}");
        assert_eq!(add(&kv, "n", -5, long).await, Ok(-3), "{name}");
        assert_eq!(get(&kv, &ann(), "n").await.unwrap(), "-3", "{name}");
        set(&kv, "text", "text", None).await.unwrap();
        assert_eq!(add(&kv, "text", 1, None).await, Err(invalid("`text` is not a number")), "{name}");
        set(&kv, "empty", "", None).await.unwrap();
        assert_eq!(add(&kv, "empty", 1, None).await, Err(invalid("`empty` is not a number")), "{name}");
        set(&kv, "most", "9223372036854775807", None).await.unwrap();
        let why = "`most` is 9223372036854775807; adding 1 overflows";
        assert_eq!(add(&kv, "most", 1, None).await, Err(invalid(why)), "{name}");
        assert_eq!(get(&kv, &ann(), "most").await.unwrap(), "9223372036854775807", "{name}");
        set(&kv, "padded", "+0012", SOON).await.unwrap();
        set(&kv, "padded", "+0012", long).await.unwrap();
        assert_eq!(add(&kv, "padded", 1, None).await, Ok(13), "{name}");
        tokio::time::sleep(Duration::from_millis(3100)).await;
        assert_eq!(add(&kv, "n", 1, None).await, Ok(1), "{name}: it began anew");
    })
    .await;
}

#[tokio::test]
async fn a_full_namespace_refuses_and_what_is_over_or_replaced_makes_room() {
    on_each("quota", 1 << 20, async |name, kv| {
        let put = async |key: &str, len: usize, ttl| kv.set(&ann(), key.into(), vec![b'x'; len], ttl, 400).await;
        let full = Err(denied("the stage's 400 bytes of storage (`kv_kib`) are used up"));
        // 200 and 200.
        put("a", 135, None).await.unwrap();
        put("b", 135, None).await.unwrap();
        assert_eq!(put("c", 0, None).await, full, "{name}");
        assert_eq!(put("a", 136, None).await, full, "{name}");
        assert_eq!(kv.increment(&ann(), "n".into(), 1, None, 400).await, full.clone().map(|()| 0), "{name}");
        put("a", 34, SOON).await.unwrap();
        over().await;
        put("c", 135, None).await.unwrap();
        assert_eq!(get(&kv, &ann(), "a").await, None, "{name}");
        assert_eq!(put("d", 1, None).await, full, "{name}");
        kv.delete(&ann(), "b").await.unwrap();
        kv.delete(&ann(), "b").await.unwrap();
        put("d", 135, None).await.unwrap();
        // Another's is another's.
        kv.set(&of("p", "bob"), "a".into(), vec![b'x'; 335], None, 400).await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn what_all_have_is_bounded_and_what_is_over_makes_room_for_everybody() {
    on_each("cap", 300, async |name, kv| {
        let set = async |of: &Namespace, ttl| kv.set(of, "k".into(), vec![b'x'; 135], ttl, 1000).await;
        let fill = async |tenant: &str, ttl| set(&of("p", tenant), ttl).await;
        fill("ann", SOON).await.unwrap();
        over().await;
        fill("bob", None).await.unwrap();
        let why = "the 300 bytes of storage of all plugins (`plugins.kv_mib`) are used up, and its tenant has its share of them";
        let of_project = Namespace { owner: TenantId::new("proj_bob"), ..of("p", "bob") };
        assert_eq!(set(&of_project, None).await, Err(denied(why)), "{name}");
        fill("bob", None).await.unwrap();
        assert_eq!(get(&kv, &of("p", "bob"), "k").await.unwrap().len(), 135, "{name}");
    })
    .await;
}

/// Each value is 200 bytes.
#[tokio::test]
async fn a_tenant_that_keeps_all_there_is_leaves_others_their_share_however_many_projects_it_has() {
    on_each("shares", 600, async |name, kv| {
        let set = async |of: &Namespace, key: &str| kv.set(of, key.into(), vec![b'x'; 135], None, 1000).await.is_ok();
        let of_project = |n: usize| Namespace { owner: TenantId::new(format!("proj_{n}")), ..of("p", "many") };
        let (few, late) = (of("p", "few"), of("p", "late"));
        let mut taken = Vec::new();
        for n in 0..4 {
            taken.push(set(&of_project(n), "k").await);
        }
        taken.extend([set(&few, "k").await, set(&few, "l").await]);
        taken.extend([set(&late, "k").await, set(&late, "l").await]);
        assert_eq!(taken, [true, true, true, false, true, false, true, false], "{name}");
        for n in 0..3 {
            kv.delete(&of_project(n), "k").await.unwrap();
        }
        assert!(set(&few, "l").await && !set(&few, "m").await, "{name}");
    })
    .await;
}

#[tokio::test]
async fn several_keys_come_in_their_order_and_no_more_bytes_than_asked_for() {
    on_each("many", 1 << 20, async |name, kv| {
        for (key, value) in [("a", "1"), ("b", "22"), ("c", "")] {
            set(&kv, key, value, None).await.unwrap();
        }
        set(&kv, "over", "1", SOON).await.unwrap();
        over().await;
        let keys = ["b", "none", "c", "over", "b", "a"].map(str::to_owned);
        let some = |value: &str| Some(value.as_bytes().to_vec());
        let expected = [some("22"), None, some(""), None, some("22"), some("1")];
        assert_eq!(kv.get_many(&ann(), &keys, 5).await.unwrap(), expected, "{name}");
        let why = "more than 4 bytes at once; ask for fewer keys";
        assert_eq!(kv.get_many(&ann(), &keys, 4).await, Err(invalid(why)), "{name}");
        assert_eq!(kv.get_many(&ann(), &keys, 2).await.unwrap_err(), invalid(&why.replace('4', "2")), "{name}");
        assert!(kv.get_many(&ann(), &[], 0).await.unwrap().is_empty(), "{name}");
        let many: Vec<String> = (0..1024).map(|n| format!("key-{n}")).chain(["a".to_owned()]).collect();
        assert_eq!(kv.get_many(&ann(), &many[1..], 9).await.unwrap().pop().unwrap(), some("1"), "{name}");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn increments_at_once_are_summed_exactly() {
    on_each("sums", 1 << 20, async |name, kv| {
        let all = (0..8).map(|_| {
            let kv = Arc::clone(&kv);
            tokio::spawn(async move {
                for _ in 0..10 {
                    add(&kv, "n", 7, None).await.unwrap();
                }
            })
        });
        for counted in futures_util::future::join_all(all).await {
            counted.unwrap();
        }
        assert_eq!(add(&kv, "n", 0, None).await, Ok(560), "{name}");
    })
    .await;
}
