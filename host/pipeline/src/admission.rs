//! Places for requests in work, and room for the vectors of answers, shared among tenants by the rule of [`Places`].

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tidegate_fair::{Owner, Places};
use tidegate_types::Caller;

/// The places. Clones count together.
#[derive(Clone)]
pub(crate) struct Admission(Arc<Mutex<Places>>);

/// A place, or several, until it is dropped.
pub(crate) struct Place {
    admission: Admission,
    owner: Owner,
    amount: usize,
}

impl Admission {
    pub(crate) fn new(limit: usize) -> Self {
        Self(Arc::new(Mutex::new(Places::new(limit))))
    }

    /// A place for a request of this caller's; `None` where all are taken and its tenant has its share of them.
    pub(crate) fn enter(&self, caller: &Caller) -> Option<Place> {
        self.take(caller, 1)
    }

    /// The same with so many places at once.
    pub(crate) fn take(&self, caller: &Caller, amount: usize) -> Option<Place> {
        let owner = Owner::of(caller);
        let mut places = self.places();
        let has_room = places.has_room(&owner, amount);
        if has_room {
            places.take(&owner, amount);
        }
        drop(places);
        has_room.then(|| Place { admission: self.clone(), owner, amount })
    }

    fn places(&self) -> MutexGuard<'_, Places> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Place {
    /// As many as turned out to be taken, be it more than there is room for.
    pub(crate) fn correct(&mut self, amount: usize) {
        let mut places = self.admission.places();
        match amount.checked_sub(self.amount) {
            Some(more) => places.take(&self.owner, more),
            None => places.give_back(&self.owner, self.amount - amount),
        }
        drop(places);
        self.amount = amount;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.admission.places().give_back(&self.owner, self.amount);
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

    #[test]
    fn what_turns_out_to_be_more_or_less_is_held_as_it_is() {
        let (admission, caller) = (Admission::new(10), Caller::local());
        let held = |admission: &Admission| admission.places().held();
        let mut place = admission.take(&caller, 6).unwrap();
        assert!(admission.take(&caller, 5).is_none());
        for amount in [2, 25, 0, 7] {
            place.correct(amount);
            assert_eq!(held(&admission), amount);
        }
        drop(place);
        assert_eq!(held(&admission), 0);
    }
}
