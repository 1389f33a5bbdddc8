use super::*;

fn answers(keys: usize, bytes: usize) -> Arc<Answers> {
    Arc::new(Answers::new(IdempotencyLimits { keys, bytes }))
}

fn new(answers: &Arc<Answers>, id: u8, now: Instant) -> Begun {
    new_of(answers, Some("t"), [id; 32], now)
}

fn new_of(answers: &Arc<Answers>, whose: Option<&str>, id: Id, now: Instant) -> Begun {
    match answers.claim(id, id, whose.map(TenantId::new).as_ref(), now) {
        Claim::New(begun) => begun,
        _ => panic!("{id:?} is not new"),
    }
}

fn word(answers: &Arc<Answers>, id: u8, fingerprint: u8, now: Instant) -> &'static str {
    match answers.claim([id; 32], [fingerprint; 32], Some(&TenantId::new("t")), now) {
        Claim::New(_) => "new",
        Claim::Same(_) => "same",
        Claim::Gone => "gone",
        Claim::Other => "other",
        Claim::Full => "full",
    }
}

fn seconds(n: u64) -> Duration {
    Duration::from_secs(n)
}

#[test]
fn a_key_stands_for_its_first_request_until_that_fails() {
    let (answers, now) = (answers(10, 100), Instant::now());
    let begun = new(&answers, 1, now);
    assert_eq!((word(&answers, 1, 1, now), word(&answers, 1, 2, now)), ("same", "other"));
    drop(begun);
    let begun = new(&answers, 1, now);
    begun.keep(10, now + KEY_AGE);
    assert_eq!((word(&answers, 1, 1, now), word(&answers, 1, 2, now)), ("same", "other"));
    assert_eq!(word(&answers, 1, 1, now + KEY_AGE), "new", "a day later it is forgotten");
}

#[test]
fn answers_make_room_and_their_keys_are_refused_then() {
    let (answers, now) = (answers(10, 100), Instant::now());
    for id in 1..=3 {
        new(&answers, id, now).keep(40, now + seconds(u64::from(id)) + KEY_AGE);
    }
    assert_eq!([1, 2, 3].map(|id| word(&answers, id, id, now)), ["gone", "same", "same"]);
    new(&answers, 4, now).keep(1000, now + KEY_AGE * 2);
    assert_eq!([2, 3, 4].map(|id| word(&answers, id, id, now)), ["gone", "gone", "gone"]);
    assert_eq!(answers.lock().bytes(), 0);
    new(&answers, 5, now).keep(40, now + seconds(60));
    assert_eq!(word(&answers, 5, 5, now + seconds(59)), "same");
    assert_eq!(word(&answers, 5, 5, now + seconds(60)), "gone", "some are given again for a short time only");
    assert_eq!(answers.lock().bytes(), 0);
}

#[test]
fn keys_make_room_but_for_those_that_run() {
    let (answers, now) = (answers(2, 100), Instant::now());
    let (one, two) = (new(&answers, 1, now), new(&answers, 2, now));
    assert_eq!(word(&answers, 3, 3, now), "full");
    two.keep(1, now + KEY_AGE);
    let three = new(&answers, 3, now);
    assert_eq!(word(&answers, 1, 1, now), "same");
    assert_eq!(word(&answers, 2, 2, now), "full");
    drop((one, three));
    for id in 0..100 {
        new(&answers, id, now).keep(1, now + KEY_AGE);
    }
    let table = answers.lock();
    assert_eq!((table.sizes(), table.bytes()), ([2, 2, 2], 2));
}

#[test]
fn what_one_tenant_sends_pushes_out_its_own_and_nobodys_goes_first() {
    let (answers, now) = (answers(40, 4000), Instant::now());
    let id = |tenant: u8, n: u16| {
        let mut id = [tenant; 32];
        id[..2].copy_from_slice(&n.to_le_bytes());
        id
    };
    let make = |tenant: Option<&str>, first: u8, n: u16, bytes: usize| {
        new_of(&answers, tenant, id(first, n), now).keep(bytes, now + KEY_AGE);
    };
    let known = |tenant: &str, first: u8, n: u16| {
        let claim = answers.claim(id(first, n), id(first, n), Some(&TenantId::new(tenant)), now);
        matches!(claim, Claim::Same(_))
    };
    (0..10).for_each(|n| make(Some("b"), 1, n, 10));
    (0..1000).for_each(|n| make(Some("a"), 2, n, 100));
    assert!((0..10).all(|n| known("b", 1, n)), "another tenant's requests pushed out a key");
    assert!(known("a", 2, 999) && !known("a", 2, 900));
    // Long answers push out those of who sends them, too.
    (0..10).for_each(|n| make(Some("c"), 3, n, 3900));
    assert!((0..10).all(|n| known("b", 1, n)), "another tenant's answers pushed out one");
    (0..10_000).for_each(|n| make(None, 4, n, 0));
    assert!((0..10).all(|n| known("b", 1, n)) && (1..10).all(|n| answers.lock().entries.contains_key(&id(3, n))));
    let table = answers.lock();
    assert!(table.sizes()[0] <= 40 && table.bytes() <= 4000, "{:?} {}", table.sizes(), table.bytes());
}

/// Not a look through all of them for each. The two are compared with each other, since machines differ and are busy.
#[test]
fn a_full_table_takes_new_keys_about_as_fast_as_one_with_room() {
    const KEYS: u32 = 10_000;
    let (answers, now) = (answers(KEYS as usize, 1 << 30), Instant::now());
    let take = |from: u32| {
        let begun = Instant::now();
        for n in from..from + KEYS {
            let mut id = [0; 32];
            id[..4].copy_from_slice(&n.to_le_bytes());
            new_of(&answers, Some("t"), id, now).keep(1, now + KEY_AGE);
        }
        begun.elapsed()
    };
    let (filling, full) = (take(0), take(KEYS));
    assert!(full < filling * 20, "{filling:?} while there was room, {full:?} without");
    assert_eq!(answers.lock().sizes(), [KEYS as usize; 3]);
}
