//! [`Places`]: a bound on what tenants hold together, which a full house puts only to those who have their share.
//!
//! Whoever fills all places would otherwise shut out everybody else, whatever order those inside are served in. So past
//! the limit there is still room for an owner who holds nothing, or who stays within its share: the limit, divided by
//! weight among those who hold something in its class or a better one. Owners are told apart by class, too. However
//! many owners there are, no more is taken once twice the limit is held.
//!
//! Where one owner alone asks, its share is the limit, and that is all it gets.

use crate::queue::Owner;
use std::collections::BTreeMap;
use tidegate_types::{Class, TenantId};

#[derive(Clone, Copy, Debug)]
struct Holding {
    amount: usize,
    weight: u32,
}

/// Places, and who holds how many.
#[derive(Clone, Debug)]
pub struct Places {
    limit: usize,
    held: usize,
    holders: BTreeMap<(Class, TenantId), Holding>,
}

impl Places {
    /// Places that nobody holds yet.
    pub fn new(limit: usize) -> Self {
        Self { limit, held: 0, holders: BTreeMap::new() }
    }

    /// How many are held.
    pub fn held(&self) -> usize {
        self.held
    }

    /// Whether `owner` may take so many more at once. One who holds nothing may take any number, or what is larger than
    /// a share would wait for ever.
    pub fn has_room(&self, owner: &Owner, amount: usize) -> bool {
        if self.held.saturating_add(amount) <= self.limit {
            return true;
        }
        let own = self.holders.get(&key(owner)).map_or(0, |holding| holding.amount);
        let fits = own == 0 || own.saturating_add(amount) as u128 <= self.share(owner);
        fits && self.held < self.limit.saturating_mul(2)
    }

    /// Takes so many, which there must be room for.
    pub fn take(&mut self, owner: &Owner, amount: usize) {
        let weight = owner.weight.max(1);
        let holding = self.holders.entry(key(owner)).or_insert(Holding { amount: 0, weight });
        holding.amount += amount;
        holding.weight = weight;
        self.held += amount;
    }

    /// Gives back what was taken.
    pub fn give_back(&mut self, owner: &Owner, amount: usize) {
        let key = key(owner);
        let Some(holding) = self.holders.get_mut(&key) else { return };
        debug_assert!(holding.amount >= amount, "{owner:?} gives back more than it took");
        let amount = amount.min(holding.amount);
        holding.amount -= amount;
        self.held -= amount;
        if holding.amount == 0 {
            self.holders.remove(&key);
        }
    }

    fn share(&self, owner: &Owner) -> u128 {
        let (own, weight) = (key(owner), u128::from(owner.weight.max(1)));
        let others = self.holders.iter().filter(|(key, _)| key.0 <= owner.class && **key != own);
        let all = weight + others.map(|(_, holding)| u128::from(holding.weight)).sum::<u128>();
        self.limit as u128 * weight / all
    }
}

fn key(owner: &Owner) -> (Class, TenantId) {
    (owner.class, owner.tenant.clone())
}
