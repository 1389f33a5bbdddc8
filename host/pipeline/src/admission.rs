//! Places for requests in work, shared among tenants by the rule of [`Places`].

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tidegate_fair::{Owner, Places};
use tidegate_types::Caller;

/// The places. Clones count together.
#[derive(Clone)]
pub(crate) struct Admission(Arc<Mutex<Places>>);

/// A place, until it is dropped.
pub(crate) struct Place {
    admission: Admission,
    owner: Owner,
}

impl Admission {
    pub(crate) fn new(limit: usize) -> Self {
        Self(Arc::new(Mutex::new(Places::new(limit))))
    }

    /// A place for a request of this caller's; `None` where all are taken and its tenant has its share of them.
    pub(crate) fn enter(&self, caller: &Caller) -> Option<Place> {
        let owner = Owner { tenant: caller.tenant.clone(), class: caller.class, weight: caller.weight };
        let mut places = self.places();
        let has_room = places.has_room(&owner, 1);
        if has_room {
            places.take(&owner, 1);
        }
        drop(places);
        has_room.then(|| Place { admission: self.clone(), owner })
    }

    fn places(&self) -> MutexGuard<'_, Places> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.admission.places().give_back(&self.owner, 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_types::TenantId;

    #[test]
    fn who_fills_all_places_finds_none_and_others_do() {
        let admission = Admission::new(2);
        let [a, b] = ["a", "b"].map(|tenant| Caller { tenant: TenantId::new(tenant), ..Caller::local() });
        let mut held: Vec<_> = (0..100).map_while(|_| admission.enter(&a)).collect();
        assert_eq!(held.len(), 2);
        held.extend(admission.enter(&b));
        assert!(held.len() == 3 && admission.enter(&a).is_none() && admission.enter(&b).is_none());
        held.clear();
        assert!(admission.enter(&a).is_some(), "what is dropped is free again");
    }
}
