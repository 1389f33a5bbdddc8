//! Turns and patience, with calls that do as they are told; what the database does is tested in `tests/tests/e2e/kv`.

use super::super::at_store::{AWAY, Access, BUSY};
use super::*;
use metrics_exporter_prometheus::PrometheusBuilder;
use std::future::pending;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use tidegate_store::Place;
use tidegate_types::TenantId;
use tokio::sync::Semaphore;

const LONG: Duration = Duration::from_secs(60);

/// On a database in `folder`.
async fn stored(folder: &tempfile::TempDir, patience: Duration, pause: Duration) -> Arc<StoreKv> {
    let db = Db::open(&Place::Folder(folder.path().into())).await.unwrap();
    let at_store = AtStore::with_gate(Arc::new(Gate::new(2, pause)), patience, Kept::Kv);
    Arc::new(StoreKv { at_store, ..StoreKv::with_patience(&db, 1 << 20, patience) })
}

/// The same store and gate, for calls that wait for so long.
fn with_patience(kv: &StoreKv, patience: Duration) -> StoreKv {
    let at_store = AtStore::with_gate(Arc::clone(&kv.at_store.gate), patience, Kept::Kv);
    StoreKv { kv: kv.kv.clone(), cap: kv.cap, at_store }
}

/// What these calls are refused for.
fn nothing(_: &KeepError) -> Option<CapabilityError> {
    None
}

fn of(tenant: &str) -> Namespace {
    Namespace::of_tenant("p", TenantId::new(tenant))
}

async fn get(kv: &StoreKv, tenant: &str) -> Result<Option<Vec<u8>>, CapabilityError> {
    kv.get_many(&of(tenant), &["k".to_owned()], 99).await.map(|mut values| values.remove(0))
}

async fn set(kv: &StoreKv, tenant: &str) -> Result<(), CapabilityError> {
    kv.set(&of(tenant), "k".into(), b"1".to_vec(), None, 1000).await
}

/// As a plugin whose index is in many keys.
#[tokio::test]
async fn a_plugin_that_asks_again_and_again_waits_once_for_a_store_that_does_not_answer() {
    let folder = tempfile::tempdir().unwrap();
    let asked_in = async |kv: &StoreKv, access: &dyn Fn() -> Access| {
        let reached = AtomicUsize::new(0);
        let mut errors = Vec::new();
        for _ in 0..5 {
            let call = |_: &_| {
                reached.fetch_add(1, Ordering::SeqCst);
                pending::<Result<(), KeepError>>()
            };
            errors.push(kv.at_store.turn(access(), call, nothing).await.unwrap_err());
        }
        let late = errors.iter().filter(|error| matches!(error, CapabilityError::Timeout(_))).count();
        let busy = CapabilityError::Unavailable(BUSY.into());
        (reached.into_inner(), late, errors.iter().filter(|error| **error == busy).count())
    };
    let short = Duration::from_millis(20);
    let kv = stored(&folder, short, LONG).await;
    assert_eq!(asked_in(&kv, &|| kv.at_store.gate.to_write(&of("ann"))).await, (1, 1, 0));
    let kv = stored(&folder, short, LONG).await;
    assert_eq!(asked_in(&kv, &|| Gate::to_read(&of("ann"))).await, (1, 1, 0));
    let why = set(&kv, "ann").await.unwrap_err();
    assert_eq!(why, CapabilityError::Unavailable(AWAY.into()), "nor does anybody else wait");
    // Where nobody is to wait for the next try, each is one: the first two have the turns, and the others wait for these.
    let kv = stored(&folder, short, Duration::ZERO).await;
    let (reached, late, busy) = asked_in(&kv, &|| Gate::to_read(&of("ann"))).await;
    assert!(reached >= 2 && late == reached && late + busy == 5, "{reached} {late} {busy}");
}

#[tokio::test]
async fn a_store_that_answers_again_is_asked_by_all() {
    let folder = tempfile::tempdir().unwrap();
    let kv = stored(&folder, LONG, Duration::from_millis(300)).await;
    kv.at_store.gate.failed();
    kv.at_store.gate.timed_out(&kv.at_store.gate.to_write(&of("ann")));
    let began = std::time::Instant::now();
    while set(&kv, "ann").await.is_err() {
        assert!(began.elapsed() < LONG);
        tokio::task::yield_now().await;
    }
    set(&kv, "ann").await.unwrap();
    assert_eq!(get(&kv, "ann").await, Ok(Some(b"1".to_vec())));
}

/// As a tenant with hundreds of instances that read.
#[tokio::test]
async fn who_waits_in_vain_for_a_turn_says_nothing_of_the_store() {
    let folder = tempfile::tempdir().unwrap();
    let kv = stored(&folder, Duration::from_millis(50), LONG).await;
    let (read, write) = (Gate::to_read(&of("ann")), kv.at_store.gate.to_write(&of("ann")));
    let held = [
        kv.at_store.gate.enter(&read).await,
        kv.at_store.gate.enter(&read).await,
        kv.at_store.gate.enter(&write).await,
    ];
    let busy = CapabilityError::Unavailable(BUSY.into());
    assert_eq!(tokio::join!(get(&kv, "ann"), set(&kv, "ann")), (Err(busy.clone()), Err(busy)));
    drop(held);
    let kv = with_patience(&kv, LONG);
    set(&kv, "ann").await.unwrap();
    assert_eq!(get(&kv, "ann").await, Ok(Some(b"1".to_vec())), "nobody takes the store for away");
    assert_eq!(get(&kv, "bob").await, Ok(None));
}

/// As with two rows that somebody holds in Postgres, or another program with SQLite's one lock.
#[tokio::test]
async fn who_waits_in_vain_for_a_turn_that_a_late_write_has_waits_once() {
    let folder = tempfile::tempdir().unwrap();
    // Its late calls keep their turns for ten times as long.
    let kv = stored(&folder, Duration::from_secs(1), LONG).await;
    let held = async |tenant: &str| {
        let access = kv.at_store.gate.to_write(&of(tenant));
        kv.at_store.turn(access, |_: &_| pending::<Result<(), KeepError>>(), nothing).await.unwrap_err()
    };
    for error in <[_; 2]>::from(tokio::join!(held("ann"), held("cid"))) {
        assert!(matches!(error, CapabilityError::Timeout(_)), "{error}");
    }
    let (busy, away) = (CapabilityError::Unavailable(BUSY.into()), CapabilityError::Unavailable(AWAY.into()));
    let short = with_patience(&kv, Duration::from_millis(20));
    for tenant in ["bob", "dan"] {
        assert_eq!(set(&short, tenant).await, Err(busy.clone()), "nobody has said so of {tenant}");
        assert_eq!(set(&short, tenant).await, Err(away.clone()), "{tenant} has waited");
    }
    assert_eq!(get(&with_patience(&kv, LONG), "bob").await, Ok(None), "who reads does");
}

#[tokio::test]
async fn a_tenants_read_is_next_however_many_another_has_waiting_in_its_projects() {
    let folder = tempfile::tempdir().unwrap();
    let kv = stored(&folder, LONG, LONG).await;
    let (asked, order) = (Arc::new(AtomicUsize::new(0)), Arc::new(Mutex::new(Vec::new())));
    let all = of("many");
    let (held, first) =
        (kv.at_store.gate.enter(&Gate::to_read(&all)).await, kv.at_store.gate.enter(&Gate::to_read(&all)).await);
    let project = |n: usize| Namespace { owner: TenantId::new(format!("proj_{n}")), ..of("many") };
    let reads: Vec<_> = (0..6)
        .map(project)
        .chain([of("few")])
        .map(|name| {
            let (kv, asked, order) = (Arc::clone(&kv), Arc::clone(&asked), Arc::clone(&order));
            tokio::spawn(async move {
                asked.fetch_add(1, Ordering::SeqCst);
                let share = name.share.clone();
                let call = move |_: &_| async move {
                    order.lock().unwrap().push(share.to_string());
                    Ok::<(), KeepError>(())
                };
                kv.at_store.turn(Gate::to_read(&name), call, nothing).await
            })
        })
        .collect();
    while asked.load(Ordering::SeqCst) < reads.len() {
        tokio::task::yield_now().await;
    }
    drop(first);
    for read in reads {
        read.await.unwrap().unwrap();
    }
    drop(held);
    let place = order.lock().unwrap().iter().position(|share| share == "few");
    assert!(place.is_some_and(|place| place < 2), "{place:?}: {order:?}");
}

/// Of one counter in a plugin of one tenant, say, whose row somebody holds.
#[tokio::test]
async fn writes_that_wait_for_each_other_are_in_nobody_elses_way() {
    let folder = tempfile::tempdir().unwrap();
    let kv = stored(&folder, LONG, LONG).await;
    let (gate, reached) = (Arc::new(Semaphore::new(0)), Arc::new(AtomicUsize::new(0)));
    let blocked: Vec<_> = (0..4)
        .map(|_| {
            let (kv, gate, reached) = (Arc::clone(&kv), Arc::clone(&gate), Arc::clone(&reached));
            let call = move |_: &_| async move {
                reached.fetch_add(1, Ordering::SeqCst);
                gate.acquire().await.map(drop).unwrap();
                Ok::<(), KeepError>(())
            };
            tokio::spawn(async move { kv.at_store.turn(kv.at_store.gate.to_write(&of("ann")), call, nothing).await })
        })
        .collect();
    while reached.load(Ordering::SeqCst) == 0 {
        tokio::task::yield_now().await;
    }
    set(&kv, "bob").await.unwrap();
    assert_eq!(get(&kv, "bob").await, Ok(Some(b"1".to_vec())));
    assert_eq!(get(&kv, "ann").await, Ok(None), "who reads waits for no write");
    assert_eq!(reached.load(Ordering::SeqCst), 1, "the others wait for the first one");
    gate.add_permits(1);
    for call in blocked {
        call.await.unwrap().unwrap();
    }
}

/// As an operator's `sqlite3` in the middle of a transaction, whose time is longer than that of who writes.
#[tokio::test]
async fn a_write_that_another_program_holds_up_stops_nobodys_reads() {
    let folder = tempfile::tempdir().unwrap();
    let kv = stored(&folder, LONG, LONG).await;
    set(&kv, "bob").await.unwrap();
    let other = format!("sqlite://{}/tidegate.db", folder.path().display());
    let other = sqlx::AnyPool::connect(&other).await.unwrap();
    let writing = other.begin_with("BEGIN IMMEDIATE").await.unwrap();
    assert_eq!(set(&kv, "ann").await, Err(CapabilityError::Unavailable(AWAY.into())));
    assert_eq!(get(&kv, "bob").await, Ok(Some(b"1".to_vec())));
    assert!(
        !kv.at_store.gate.admits(&kv.at_store.gate.to_write(&of("ann"))),
        "who wrote in vain does not try again at once"
    );
    writing.rollback().await.unwrap();
}

#[tokio::test]
async fn a_write_that_was_too_late_for_its_caller_is_not_overtaken() {
    let folder = tempfile::tempdir().unwrap();
    let kv = stored(&folder, Duration::from_millis(500), Duration::ZERO).await;
    let (gate, done) = (Arc::new(Semaphore::new(0)), Arc::new(Mutex::new(Vec::new())));
    let write = async |what: &'static str, gate: Option<Arc<Semaphore>>| {
        let done = Arc::clone(&done);
        let call = move |_: &_| async move {
            if let Some(gate) = gate {
                gate.acquire().await.map(drop).unwrap();
            }
            done.lock().unwrap().push(what);
            Ok::<(), KeepError>(())
        };
        kv.at_store.turn(kv.at_store.gate.to_write(&of("ann")), call, nothing).await
    };
    write("first", Some(Arc::clone(&gate))).await.unwrap_err();
    write("second", None).await.unwrap_err();
    gate.add_permits(1);
    write("third", None).await.unwrap();
    assert_eq!(*done.lock().unwrap(), ["first", "third"], "what was never begun is given up");
}

#[tokio::test]
async fn a_call_that_its_stage_cuts_off_is_counted() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let _here = metrics::set_default_local_recorder(&recorder);
    let folder = tempfile::tempdir().unwrap();
    let kv = stored(&folder, LONG, LONG).await;
    get(&kv, "ann").await.unwrap();
    assert!(!recorder.handle().render().contains("tidegate_plugin_kv_failures_total"));
    let call = kv.at_store.turn(Gate::to_read(&of("ann")), |_: &_| pending::<Result<(), KeepError>>(), nothing);
    tokio::time::timeout(Duration::from_millis(1), call).await.unwrap_err();
    let told = recorder.handle().render();
    assert!(told.contains("tidegate_plugin_kv_failures_total 1"), "{told}");
}

/// As a guard of one second, in whose first milliseconds it computes.
#[tokio::test]
async fn a_store_that_stalls_is_noticed_also_where_stages_have_no_time_to_wait_for_it() {
    let folder = tempfile::tempdir().unwrap();
    let kv = stored(&folder, Duration::from_millis(30), LONG).await;
    let call = kv.at_store.turn(Gate::to_read(&of("ann")), |_: &_| pending::<Result<(), KeepError>>(), nothing);
    tokio::time::timeout(Duration::from_millis(1), call).await.unwrap_err();
    while kv.at_store.gate.admits(&Gate::to_read(&of("ann"))) {
        tokio::task::yield_now().await;
    }
    assert_eq!(get(&kv, "ann").await, Err(CapabilityError::Unavailable(AWAY.into())));
}
