use super::space::END_BYTES;
use super::*;

/// Of one that has it all to itself.
fn room(held: &Mutex<Places>) -> Room<'_> {
    Room { before: 0, quota: 300, owner: share_of(TenantId::new("a")), held, cap: 1000 }
}

fn entry(value: &str, expires: Option<Instant>) -> Entry {
    Entry { value: value.into(), expires }
}

#[test]
fn an_entry_is_absent_once_its_time_is_over() {
    let held = Mutex::new(Places::new(1000));
    let room = &room(&held);
    let (mut space, now) = (Space::default(), Instant::now());
    let at = now + Duration::from_millis(5);
    space.put("a".into(), entry("1", Some(at)), room, now).unwrap();
    assert!(space.get("a", now + Duration::from_millis(4)).is_some());
    assert!(space.get("a", at).is_none());
}

#[test]
fn a_full_space_makes_room_from_what_is_over_and_else_refuses() {
    let held = Mutex::new(Places::new(1000));
    let room = &room(&held);
    let (mut space, now) = (Space::default(), Instant::now());
    let later = now + Duration::from_secs(1);
    space.put("old".into(), entry(&"x".repeat(100), Some(later)), room, now).unwrap();
    let refused = space.put("new".into(), entry(&"y".repeat(100), None), room, now).unwrap_err();
    assert_eq!(refused, CapabilityError::Denied("the stage's 300 bytes of storage (`kv_kib`) are used up".into()));
    space.put("new".into(), entry(&"y".repeat(100), None), room, later).unwrap();
    assert_eq!(space.bytes, cost("new", &entry(&"y".repeat(100), None)));
}

#[test]
fn replacing_and_removing_give_the_bytes_back() {
    let held = Mutex::new(Places::new(1000));
    let room = &room(&held);
    let (mut space, now) = (Space::default(), Instant::now());
    space.put("a".into(), entry("long value", None), room, now).unwrap();
    space.put("a".into(), entry("v", None), room, now).unwrap();
    assert_eq!(space.bytes, cost("a", &entry("v", None)));
    space.put("a".into(), entry("v", Some(now)), room, now).unwrap();
    assert_eq!(space.bytes, cost("a", &entry("v", None)) + END_BYTES);
    space.remove("a");
    assert_eq!(space.bytes, 0);
}

#[test]
fn a_counter_keeps_the_life_that_its_first_increment_gave_it() {
    let held = Mutex::new(Places::new(1000));
    let room = &room(&held);
    let (mut space, now) = (Space::default(), Instant::now());
    let ttl = Some(Duration::from_secs(1));
    assert_eq!(space.increment("n".into(), 2, ttl, room, now), Ok(2));
    let late = now + Duration::from_millis(900);
    assert_eq!(space.increment("n".into(), 3, ttl, room, late), Ok(5));
    assert_eq!(space.increment("n".into(), 1, ttl, room, now + Duration::from_secs(1)), Ok(1));
}

fn of(tenant: &str) -> Namespace {
    Namespace::of_tenant("p", TenantId::new(tenant))
}

async fn fill(kv: &MemoryKv, tenant: &str, ttl: Option<Duration>) -> Result<(), CapabilityError> {
    kv.set(&of(tenant), "k".into(), vec![b'x'; 135], ttl, 1000).await
}

#[tokio::test]
async fn what_is_over_makes_room_for_everybody() {
    let kv = MemoryKv::new(300);
    fill(&kv, "a", Some(Duration::from_millis(1))).await.unwrap();
    std::thread::sleep(Duration::from_millis(2));
    fill(&kv, "b", None).await.unwrap();
    assert!(kv.spaces.read().get(&of("a")).is_none(), "nothing is left of it");
    assert_eq!(kv.held.lock().held(), 200);
    let full = kv.set(&of("b"), "l".into(), vec![b'x'; 135], None, 1000).await.unwrap_err();
    let why =
        "the 300 bytes of storage of all plugins (`plugins.kv_mib`) are used up, and its tenant has its share of them";
    assert_eq!(full, CapabilityError::Denied(why.into()));
    assert_eq!(kv.get_many(&of("b"), &["k".into()], 200).await.unwrap(), [Some(vec![b'x'; 135])]);
}

#[tokio::test]
async fn a_tenant_that_keeps_all_there_is_leaves_others_their_share_however_many_projects_it_has() {
    let kv = MemoryKv::new(600);
    let of_project = |n: usize| Namespace { owner: TenantId::new(format!("proj_{n}")), ..of("many") };
    let fill = async |space: &Namespace, key: &str| kv.set(space, key.into(), vec![b'x'; 135], None, 1000).await;
    for n in 0..3 {
        fill(&of_project(n), "k").await.unwrap();
    }
    assert!(fill(&of_project(3), "k").await.is_err(), "it has all there is");
    fill(&of("few"), "k").await.unwrap();
    assert!(fill(&of("few"), "l").await.is_err(), "two of three hundred bytes, and no third");
    fill(&of("new"), "k").await.unwrap();
    for n in 0..3 {
        kv.delete(&of_project(n), "k").await.unwrap();
    }
    fill(&of("few"), "l").await.unwrap();
    assert_eq!(kv.held.lock().held(), 600);
}

#[tokio::test]
async fn in_a_world_whose_clock_stands_still_nothing_is_over() {
    let passed_ms = Arc::<AtomicU64>::default();
    let kv = MemoryKv::with_passed(1000, passed_ms.clone());
    fill(&kv, "a", Some(Duration::from_millis(5))).await.unwrap();
    std::thread::sleep(Duration::from_millis(6));
    let kept = || async { kv.get_many(&of("a"), &["k".into()], 200).await.unwrap()[0].is_some() };
    passed_ms.store(4, Ordering::Relaxed);
    assert!(kept().await, "4 ms have passed there");
    passed_ms.store(5, Ordering::Relaxed);
    assert!(!kept().await);
}

#[tokio::test]
async fn who_only_looks_or_removes_leaves_nothing_behind() {
    let kv = MemoryKv::new(1000);
    let keys = ["k".to_owned(), "l".to_owned()];
    assert_eq!(kv.get_many(&of("a"), &keys, 0).await.unwrap(), [None::<Vec<u8>>, None]);
    kv.delete(&of("a"), "k").await.unwrap();
    assert!(kv.spaces.read().is_empty());
    fill(&kv, "a", None).await.unwrap();
    kv.delete(&of("a"), "k").await.unwrap();
    assert_eq!(kv.held.lock().held(), 0, "what it had is given back");
    assert!(kv.set(&of("b"), "k".into(), vec![b'x'; 135], None, 100).await.is_err());
    assert!(kv.spaces.read().is_empty(), "nor does who put nothing");
}

#[tokio::test]
async fn more_than_may_be_brought_back_is_refused() {
    let kv = MemoryKv::new(1000);
    fill(&kv, "a", None).await.unwrap();
    let twice = ["k".to_owned(), "k".to_owned()];
    assert_eq!(kv.get_many(&of("a"), &twice, 270).await.unwrap().len(), 2);
    assert!(matches!(kv.get_many(&of("a"), &twice, 269).await, Err(CapabilityError::Invalid(_))));
}

#[test]
fn a_text_is_no_counter_and_a_counter_does_not_wrap() {
    let held = Mutex::new(Places::new(1000));
    let room = &room(&held);
    let (mut space, now) = (Space::default(), Instant::now());
    space.put("t".into(), entry("text", None), room, now).unwrap();
    assert!(matches!(space.increment("t".into(), 1, None, room, now), Err(CapabilityError::Invalid(_))));
    space.put("m".into(), entry(&i64::MAX.to_string(), None), room, now).unwrap();
    assert!(matches!(space.increment("m".into(), 1, None, room, now), Err(CapabilityError::Invalid(_))));
}

#[test]
fn what_was_kept_is_there_again_and_nothing_else() {
    let kv = MemoryKv::new(1000);
    let space = |name: &str| Namespace::of_tenant(name, TenantId::new("t"));
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let set = |name: &str, key: &str| {
        runtime.block_on(kv.set(&space(name), key.into(), vec![0; 100], None, 1000)).unwrap();
    };
    let kept = |name: &str, key: &str| {
        runtime.block_on(kv.get_many(&space(name), &[key.to_owned()], 1000)).unwrap()[0].is_some()
    };
    set("one", "a");
    let (before, held) = (kv.contents(), kv.held.lock().held());
    set("one", "b");
    set("two", "c");
    runtime.block_on(kv.delete(&space("one"), "a")).unwrap();
    kv.put_back(&before);
    assert_eq!((kept("one", "a"), kept("one", "b"), kept("two", "c")), (true, false, false));
    assert_eq!(kv.held.lock().held(), held, "what is booked is what is kept");
}
