//! How much of the same may go on at once, also past whoever began it. A read of a folder that is away has no end: the plugin
//! that asked for it may be gone, loaded anew and asking again. Invariant: rights are the same for as long as one of them is in
//! use or somebody has them; a key with neither takes no room for long.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

/// As many at once for each key, by what `R` says.
pub(crate) struct Rights<K, R> {
    make: fn() -> R,
    given: Mutex<BTreeMap<K, Weak<R>>>,
}

impl<K: Ord, R> Rights<K, R> {
    pub(crate) fn new(make: fn() -> R) -> Self {
        Self { make, given: Mutex::default() }
    }

    /// Those of a key. Who uses one keeps them.
    pub(crate) fn of(&self, key: K) -> Arc<R> {
        let mut given = self.given.lock();
        if let Some(known) = given.get(&key).and_then(Weak::upgrade) {
            return known;
        }
        given.retain(|_, rights| rights.strong_count() > 0);
        let rights = Arc::new((self.make)());
        given.insert(key, Arc::downgrade(&rights));
        rights
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::Semaphore;

    #[test]
    fn what_goes_on_counts_however_often_rights_are_asked_for_and_what_has_ended_is_forgotten() {
        let rights = Rights::new(|| Semaphore::new(2));
        let held = rights.of("a").try_acquire_owned().unwrap();
        assert_eq!((rights.of("a").available_permits(), rights.of("b").available_permits()), (1, 2));
        drop(held);
        assert_eq!((rights.of("a").available_permits(), rights.given.lock().len()), (2, 1));
    }
}
