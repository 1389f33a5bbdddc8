//! What is kept for whom. Where there is too much in all, it is whoever has the most that makes room: what one tenant sends
//! pushes out nothing of another's that has less.

use super::Id;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use tidegate_types::TenantId;

/// Things of tenants, each tenant's in the order of `K`, and each with a weight.
pub(super) struct Shares<K> {
    of: HashMap<TenantId, Share<K>>,
    /// Tenants by what theirs weigh together.
    ranks: BTreeSet<(usize, TenantId)>,
    weight: usize,
}

struct Share<K> {
    things: BTreeMap<K, (Id, usize)>,
    weight: usize,
}

impl<K> Default for Shares<K> {
    fn default() -> Self {
        Self { of: HashMap::new(), ranks: BTreeSet::new(), weight: 0 }
    }
}

impl<K: Ord + Copy> Shares<K> {
    /// What all of them weigh.
    pub(super) fn weight(&self) -> usize {
        self.weight
    }

    /// The first thing of the tenant whose weigh the most.
    pub(super) fn first_of_heaviest(&self) -> Option<(K, Id)> {
        let (_, whose) = self.ranks.last()?;
        let (at, (id, _)) = self.of.get(whose)?.things.first_key_value()?;
        Some((*at, *id))
    }

    pub(super) fn put(&mut self, whose: &TenantId, at: K, id: Id, weight: usize) {
        self.take(whose, at);
        let share = self.of.entry(whose.clone()).or_insert_with(|| Share { things: BTreeMap::new(), weight: 0 });
        self.ranks.remove(&(share.weight, whose.clone()));
        share.things.insert(at, (id, weight));
        share.weight += weight;
        self.weight += weight;
        self.ranks.insert((share.weight, whose.clone()));
    }

    /// Forgets a thing, where it is there.
    pub(super) fn take(&mut self, whose: &TenantId, at: K) {
        let Some(share) = self.of.get_mut(whose) else { return };
        let Some((_, weight)) = share.things.remove(&at) else { return };
        self.ranks.remove(&(share.weight, whose.clone()));
        share.weight -= weight;
        self.weight -= weight;
        if share.things.is_empty() {
            self.of.remove(whose);
        } else {
            self.ranks.insert((share.weight, whose.clone()));
        }
    }
}
