use super::*;

fn answers(keys: usize, bytes: usize) -> Arc<Answers> {
    Arc::new(Answers::new(IdempotencyLimits { keys, bytes }))
}

fn new(answers: &Arc<Answers>, id: u8, now: Instant) -> Begun {
    match answers.claim([id; 32], [id; 32], now) {
        Claim::New(begun) => begun,
        _ => panic!("{id} is not new"),
    }
}

fn word(answers: &Arc<Answers>, id: u8, fingerprint: u8, now: Instant) -> &'static str {
    match answers.claim([id; 32], [fingerprint; 32], now) {
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
    assert_eq!(answers.lock().bytes, 0);
    new(&answers, 5, now).keep(40, now + seconds(60));
    assert_eq!(word(&answers, 5, 5, now + seconds(59)), "same");
    assert_eq!(word(&answers, 5, 5, now + seconds(60)), "gone", "some are given again for a short time only");
    assert_eq!(answers.lock().bytes, 0);
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
    assert_eq!((table.entries.len(), table.bytes, table.kept.len()), (2, 2, 2));
    assert!(table.order.len() <= 4, "{}", table.order.len());
}
