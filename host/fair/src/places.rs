//! [`Places`]: a bound on what tenants hold together, which a full house puts only to those who have their share.
//!
//! Whoever fills all places would otherwise shut out everybody else, whatever order those inside are served in. So past
//! the limit there is still room for an owner who holds nothing, or who stays within its share: the limit, divided by
//! weight among those who hold something in its class or a better one. Owners are told apart by class, too. However
//! many owners there are, and however much they ask for, no more than twice the limit is held; or the limit and one amount
//! that is larger than that by itself.
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
    holders: BTreeMap<Class, BTreeMap<TenantId, Holding>>,
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

    /// Whether `owner` may take so many more at once. One who holds nothing may take any number while no more than the limit
    /// is held, or what is larger than a share would wait for ever.
    pub fn has_room(&self, owner: &Owner, amount: usize) -> bool {
        self.missing(owner, amount) == 0
    }

    /// Whether there will be room for so many more when `owner` has given back as much as `own`, and all others together
    /// as much as `others`. Their shares may grow by that: then there is room for more.
    pub fn will_have_room(&self, owner: &Owner, amount: usize, own: usize, others: usize) -> bool {
        self.missing_after(owner, amount, own, others) == 0
    }

    /// How much others must give back before `owner` may take so much more; 0 where there is room. Shares may grow
    /// meanwhile: then less is enough.
    pub fn missing(&self, owner: &Owner, amount: usize) -> usize {
        self.missing_after(owner, amount, 0, 0)
    }

    fn missing_after(&self, owner: &Owner, amount: usize, own: usize, others: usize) -> usize {
        let held = self.held.saturating_sub(own.saturating_add(others));
        let left = self.amount_of(owner).saturating_sub(own);
        missing(self.limit, held, Part { held: left, share: self.share(owner) }, amount)
    }

    /// Whether `owner` may keep what it has no use for at present: within the limit everybody may, past it who has no more
    /// than its share.
    pub fn may_keep(&self, owner: &Owner) -> bool {
        self.held <= self.limit || self.amount_of(owner) as u128 <= self.share(owner)
    }

    fn amount_of(&self, owner: &Owner) -> usize {
        self.holding(owner).map_or(0, |holding| holding.amount)
    }

    /// Takes so many, which there must be room for.
    pub fn take(&mut self, owner: &Owner, amount: usize) {
        let weight = owner.weight.max(1);
        self.held += amount;
        let holders = self.holders.entry(owner.class).or_default();
        match holders.get_mut(&owner.tenant) {
            Some(holding) => *holding = Holding { amount: holding.amount + amount, weight },
            None => {
                holders.insert(owner.tenant.clone(), Holding { amount, weight });
            }
        }
    }

    /// Takes or gives back what one holds more or less than before.
    pub fn change(&mut self, owner: &Owner, before: usize, after: usize) {
        match after.checked_sub(before) {
            Some(0) => {}
            Some(grown) => self.take(owner, grown),
            None => self.give_back(owner, before - after),
        }
    }

    /// Gives back what was taken.
    pub fn give_back(&mut self, owner: &Owner, amount: usize) {
        let Some(holders) = self.holders.get_mut(&owner.class) else { return };
        let Some(holding) = holders.get_mut(&owner.tenant) else { return };
        debug_assert!(holding.amount >= amount, "{owner:?} gives back more than it took");
        let amount = amount.min(holding.amount);
        holding.amount -= amount;
        self.held -= amount;
        if holding.amount == 0 {
            holders.remove(&owner.tenant);
        }
    }

    fn holding(&self, owner: &Owner) -> Option<&Holding> {
        self.holders.get(&owner.class)?.get(&owner.tenant)
    }

    fn share(&self, owner: &Owner) -> u128 {
        let weight = u128::from(owner.weight.max(1));
        let all: u128 =
            self.holders.range(..=owner.class).flat_map(|(_, holders)| holders.values()).map(weight_of).sum();
        let own = self.holding(owner).map_or(0, weight_of);
        self.limit as u128 * weight / (weight + all - own)
    }
}

fn weight_of(holding: &Holding) -> u128 {
    holding.weight.into()
}

/// Of what is held, what one owner has, and what it may have past the limit.
#[derive(Clone, Copy, Debug)]
pub struct Part {
    /// What it has.
    pub held: usize,
    /// The limit, divided by weight among those who hold something and this one.
    pub share: u128,
}

/// The rule of [`Places`], for those who count in some other way: how much others must give back before one of them may take
/// `amount` more.
pub fn missing(limit: usize, held: usize, own: Part, amount: usize) -> usize {
    let past_limit = held.saturating_add(amount).saturating_sub(limit);
    let fits_share = own.held == 0 || own.held.saturating_add(amount) as u128 <= own.share;
    if past_limit == 0 || !fits_share {
        return past_limit;
    }
    // What is larger than the limit would find no room below twice as much while anybody holds anything.
    let amount = amount.min(limit.max(1));
    held.saturating_add(amount).saturating_sub(limit.saturating_mul(2))
}
