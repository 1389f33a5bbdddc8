//! One class of the queue: a counter and a line of items for each tenant.
//!
//! Counters are fixed-point in `u128`, so no sum of tokens can overflow them and no weight rounds a token away.

use crate::queue::Ticket;
use std::collections::{BTreeMap, VecDeque};
use tidegate_types::TenantId;

/// One unit of cost at weight 1. At least `u32::MAX`, so that one token at the largest weight still counts.
const UNIT: u128 = 1 << 32;

#[derive(Clone, Debug)]
struct Waiting<T> {
    ticket: Ticket,
    item: T,
}

#[derive(Clone, Debug)]
struct Tenant<T> {
    served: u128,
    waiting: VecDeque<Waiting<T>>,
    /// Items waiting here, put back, or in service.
    num_active: usize,
}

/// The waiting items of one class.
#[derive(Clone, Debug)]
pub struct Lane<T> {
    tenants: BTreeMap<TenantId, Tenant<T>>,
    /// Items that were in service before, by ticket; they go first.
    returned: BTreeMap<Ticket, (TenantId, T)>,
    /// The lowest counter that a tenant may come back with; never falls.
    floor: u128,
    num_waiting: usize,
}

impl<T> Default for Lane<T> {
    fn default() -> Self {
        Self { tenants: BTreeMap::new(), returned: BTreeMap::new(), floor: 0, num_waiting: 0 }
    }
}

impl<T> Lane<T> {
    pub(crate) fn push(&mut self, tenant: &TenantId, ticket: Ticket, item: T) {
        self.enter(tenant).waiting.push_back(Waiting { ticket, item });
        self.num_waiting += 1;
    }

    pub(crate) fn put_back(&mut self, tenant: &TenantId, ticket: Ticket, item: T) {
        // The item was in service, so its tenant is active and keeps its counter.
        self.returned.insert(ticket, (tenant.clone(), item));
        self.num_waiting += 1;
    }

    pub(crate) fn peek_where(&self, may: &impl Fn(&T) -> bool) -> Option<&T> {
        let returned = self.returned.values().map(|(_, item)| item).find(|item| may(item));
        returned.or_else(|| Some(&self.tenants.get(self.next_tenant(may)?)?.waiting.front()?.item))
    }

    pub(crate) fn pop_where(&mut self, may: &impl Fn(&T) -> bool) -> Option<T> {
        let returned = self.returned.iter().find(|(_, (_, item))| may(item)).map(|(ticket, _)| *ticket);
        let item = match returned.and_then(|ticket| self.returned.remove(&ticket)) {
            Some((_, item)) => item,
            None => {
                let tenant = self.next_tenant(may)?.clone();
                self.floor = self.floor.max(self.lowest_waiting().unwrap_or_default());
                self.tenants.get_mut(&tenant)?.waiting.pop_front()?.item
            }
        };
        self.num_waiting -= 1;
        Some(item)
    }

    pub(crate) fn remove(&mut self, tenant: &TenantId, is_it: impl Fn(&T) -> bool) -> Option<T> {
        let item = self.remove_returned(&is_it).or_else(|| self.remove_waiting(tenant, &is_it))?;
        self.num_waiting -= 1;
        self.release(tenant);
        Some(item)
    }

    pub(crate) fn charge(&mut self, tenant: &TenantId, weight: u32, cost: u64) {
        if let Some(tenant) = self.tenants.get_mut(tenant) {
            tenant.served += u128::from(cost) * UNIT / u128::from(weight.max(1));
        }
    }

    pub(crate) fn release(&mut self, tenant: &TenantId) {
        let Some(leaving) = self.tenants.get_mut(tenant) else { return };
        leaving.num_active = leaving.num_active.saturating_sub(1);
        let served = leaving.served;
        if leaving.num_active == 0 {
            self.leave(served);
        }
    }

    pub(crate) fn served(&self, tenant: &TenantId) -> u128 {
        self.tenants.get(tenant).map_or(self.floor, |tenant| tenant.served)
    }

    pub(crate) fn len(&self) -> usize {
        self.num_waiting
    }

    pub(crate) fn num_tenants(&self) -> usize {
        self.tenants.len()
    }

    /// Counts one more item of the tenant; one that was idle is lifted, so that idling gains no credit: to the lowest of those
    /// who wait. One whose item stays in service for long is not served meanwhile, and no measure for others.
    fn enter(&mut self, tenant: &TenantId) -> &mut Tenant<T> {
        let lowest = self.lowest_waiting().or_else(|| self.lowest_active());
        let floor = self.floor.max(lowest.unwrap_or_default());
        let entering = self.tenants.entry(tenant.clone()).or_insert_with(|| Tenant {
            served: floor,
            waiting: VecDeque::new(),
            num_active: 0,
        });
        if entering.num_active == 0 {
            entering.served = entering.served.max(floor);
        }
        entering.num_active += 1;
        entering
    }

    /// A tenant went idle: moves the floor, and forgets idle tenants that would be lifted anyway.
    fn leave(&mut self, served: u128) {
        self.floor = self.floor.max(self.lowest_active().unwrap_or(served));
        let floor = self.floor;
        self.tenants.retain(|_, tenant| tenant.num_active > 0 || tenant.served > floor);
    }

    fn lowest_waiting(&self) -> Option<u128> {
        self.tenants.values().filter(|tenant| !tenant.waiting.is_empty()).map(|tenant| tenant.served).min()
    }

    fn lowest_active(&self) -> Option<u128> {
        self.tenants.values().filter(|tenant| tenant.num_active > 0).map(|tenant| tenant.served).min()
    }

    /// The tenant with the lowest counter among those whose first item may go; ties go to the earliest ticket.
    fn next_tenant(&self, may: &impl Fn(&T) -> bool) -> Option<&TenantId> {
        let heads = self.tenants.iter().filter_map(|(id, tenant)| {
            let head = tenant.waiting.front().filter(|head| may(&head.item))?;
            Some(((tenant.served, head.ticket), id))
        });
        heads.min_by_key(|(key, _)| *key).map(|(_, id)| id)
    }

    fn remove_returned(&mut self, is_it: &impl Fn(&T) -> bool) -> Option<T> {
        let ticket = self.returned.iter().find(|(_, (_, item))| is_it(item)).map(|(ticket, _)| *ticket)?;
        self.returned.remove(&ticket).map(|(_, item)| item)
    }

    fn remove_waiting(&mut self, tenant: &TenantId, is_it: &impl Fn(&T) -> bool) -> Option<T> {
        let line = &mut self.tenants.get_mut(tenant)?.waiting;
        let position = line.iter().position(|waiting| is_it(&waiting.item))?;
        line.remove(position).map(|waiting| waiting.item)
    }
}
