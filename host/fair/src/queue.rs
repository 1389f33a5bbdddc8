//! [`FairQueue`]: one [`Lane`] for each class; a better class always goes first.

use crate::lane::Lane;
use std::collections::BTreeMap;
use tidegate_types::{Caller, Class, TenantId};

/// Whose work it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// Whose share is used.
    pub tenant: TenantId,
    /// Which lane; counters of one class do not touch another's.
    pub class: Class,
    /// Share relative to the other tenants of the class; 0 counts as 1.
    pub weight: u32,
}

impl Owner {
    /// Whose a caller's work is.
    pub fn of(caller: &Caller) -> Self {
        Self { tenant: caller.tenant.clone(), class: caller.class, weight: caller.weight }
    }

    /// Whose share it is where classes share one lane: a tenant's in a class, which weighs as much as the class is worth. Nobody waits
    /// there without end while a better class goes on asking.
    #[must_use]
    pub fn in_one_lane(&self) -> Self {
        let worth = match self.class {
            Class::Interactive => 4,
            Class::Standard => 2,
            Class::Batch => 1,
        };
        let tenant = TenantId::new(format!("{}/{}", self.class.as_str(), self.tenant));
        Self { tenant, class: Class::default(), weight: self.weight.max(1).saturating_mul(worth) }
    }
}

/// The place that an item got when it was pushed. It is kept for [`FairQueue::put_back`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket(pub(crate) u64);

/// Items of many tenants, in the order in which they shall be served.
///
/// An item is *waiting* from [`push`](Self::push) to [`pop`](Self::pop) and *in service* from there to
/// [`release`](Self::release); a tenant is active while it has either. The caller bounds the number of items.
#[derive(Clone, Debug)]
pub struct FairQueue<T> {
    lanes: BTreeMap<Class, Lane<T>>,
    next_ticket: u64,
}

impl<T> Default for FairQueue<T> {
    fn default() -> Self {
        Self { lanes: BTreeMap::new(), next_ticket: 0 }
    }
}

impl<T> FairQueue<T> {
    /// An empty queue.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds an item behind the others of its tenant.
    pub fn push(&mut self, owner: &Owner, item: T) -> Ticket {
        let ticket = Ticket(self.next_ticket);
        self.next_ticket += 1;
        self.lanes.entry(owner.class).or_default().push(&owner.tenant, ticket, item);
        ticket
    }

    /// Brings back an item that was in service and must start again, to the front of its class: it has been
    /// chosen once already. Several such items keep the order of their tickets.
    pub fn put_back(&mut self, owner: &Owner, ticket: Ticket, item: T) {
        self.lanes.entry(owner.class).or_default().put_back(&owner.tenant, ticket, item);
    }

    /// The item that [`pop`](Self::pop) would take.
    pub fn peek(&self) -> Option<&T> {
        self.peek_where(|_| true)
    }

    /// The first item in order that `may` go, where each tenant stands behind its own first item.
    pub fn peek_where(&self, may: impl Fn(&T) -> bool) -> Option<&T> {
        self.lanes.values().find_map(|lane| lane.peek_where(&may))
    }

    /// Takes the item that [`peek_where`](Self::peek_where) gives into service.
    pub fn pop_where(&mut self, may: impl Fn(&T) -> bool) -> Option<T> {
        self.lanes.values_mut().find_map(|lane| lane.pop_where(&may))
    }

    /// Takes the next item into service.
    pub fn pop(&mut self) -> Option<T> {
        self.pop_where(|_| true)
    }

    /// Removes a waiting item of `owner`; it counts as released.
    pub fn remove(&mut self, owner: &Owner, is_it: impl Fn(&T) -> bool) -> Option<T> {
        self.lanes.get_mut(&owner.class)?.remove(&owner.tenant, is_it)
    }

    /// Adds `cost` (in tokens, or whatever the caller shares out) to what the owner was served.
    pub fn charge(&mut self, owner: &Owner, cost: u64) {
        if let Some(lane) = self.lanes.get_mut(&owner.class) {
            lane.charge(&owner.tenant, owner.weight, cost);
        }
    }

    /// An item in service is done, well or badly.
    pub fn release(&mut self, owner: &Owner) {
        if let Some(lane) = self.lanes.get_mut(&owner.class) {
            lane.release(&owner.tenant);
        }
    }

    /// The owner's counter: cost over weight, comparable within a class only.
    pub fn served(&self, owner: &Owner) -> u128 {
        self.lanes.get(&owner.class).map_or(0, |lane| lane.served(&owner.tenant))
    }

    /// Number of waiting items.
    pub fn len(&self) -> usize {
        self.lanes.values().map(Lane::len).sum()
    }

    /// Whether no item waits.
    pub fn is_empty(&self) -> bool {
        self.lanes.values().all(|lane| lane.len() == 0)
    }

    /// Tenants whose counters are kept: the active ones, and idle ones that are ahead of the others.
    pub fn num_tenants(&self) -> usize {
        self.lanes.values().map(Lane::num_tenants).sum()
    }
}
