//! One thing for each key, the same for all who have it: what bounds how much goes on at once, or says the most that there was.
//! It outlives whoever was the first to ask: a read of a folder that is away has no end, and the plugin that began it may be gone,
//! loaded anew and asking again. Invariant: what somebody has is what the next one is given; a key of which nobody has anything
//! takes no room for long.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

/// What `make` makes, once for each key that is in use.
pub(crate) struct PerKey<K, T> {
    make: fn() -> T,
    given: Mutex<BTreeMap<K, Weak<T>>>,
}

impl<K: Ord, T> PerKey<K, T> {
    pub(crate) fn new(make: fn() -> T) -> Self {
        Self { make, given: Mutex::default() }
    }

    /// That of a key. Who uses it keeps it.
    pub(crate) fn of(&self, key: K) -> Arc<T> {
        let mut given = self.given.lock();
        if let Some(known) = given.get(&key).and_then(Weak::upgrade) {
            return known;
        }
        given.retain(|_, of_key| of_key.strong_count() > 0);
        let made = Arc::new((self.make)());
        given.insert(key, Arc::downgrade(&made));
        made
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::Semaphore;

    #[test]
    fn what_is_in_use_is_the_same_however_often_it_is_asked_for_and_what_is_not_is_forgotten() {
        let rights = PerKey::new(|| Semaphore::new(2));
        let held = rights.of("a").try_acquire_owned().unwrap();
        assert_eq!((rights.of("a").available_permits(), rights.of("b").available_permits()), (1, 2));
        drop(held);
        assert_eq!((rights.of("a").available_permits(), rights.given.lock().len()), (2, 1));
    }
}
