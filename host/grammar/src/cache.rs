//! Compiled grammars that were used of late, a bounded number of them.
//!
//! They are kept by tenant: what one has compiled tells nothing to another, and where there are too many the tenant with
//! the most of them loses the one that it has not used for longest. Of tenants that have as many, who has not used its own
//! for longest does.

use std::cmp::Reverse;
use std::collections::HashMap;
use tidegate_types::TenantId;

/// Names a grammar's source.
pub(crate) type Digest = [u8; 32];

/// Values by tenant and digest.
#[derive(Debug)]
pub(crate) struct Cache<T> {
    most: usize,
    clock: u64,
    kept: HashMap<TenantId, HashMap<Digest, (u64, T)>>,
}

impl<T: Clone> Cache<T> {
    pub(crate) fn new(most: usize) -> Self {
        Self { most, clock: 0, kept: HashMap::new() }
    }

    pub(crate) fn get(&mut self, tenant: &TenantId, digest: &Digest) -> Option<T> {
        self.clock += 1;
        let (used, value) = self.kept.get_mut(tenant)?.get_mut(digest)?;
        *used = self.clock;
        Some(value.clone())
    }

    pub(crate) fn put(&mut self, tenant: &TenantId, digest: Digest, value: T) {
        self.clock += 1;
        self.kept.entry(tenant.clone()).or_default().insert(digest, (self.clock, value));
        while self.kept.values().map(HashMap::len).sum::<usize>() > self.most {
            self.drop_one();
        }
    }

    fn drop_one(&mut self) {
        let oldest =
            |of_tenant: &HashMap<Digest, (u64, T)>| of_tenant.iter().map(|(digest, (used, _))| (*used, *digest)).min();
        let by_size = self.kept.iter().max_by_key(|(_, of_tenant)| (of_tenant.len(), Reverse(oldest(of_tenant))));
        let Some((tenant, (_, digest))) = by_size.and_then(|(tenant, all)| Some((tenant.clone(), oldest(all)?))) else {
            return;
        };
        let Some(of_tenant) = self.kept.get_mut(&tenant) else { return };
        of_tenant.remove(&digest);
        if of_tenant.is_empty() {
            self.kept.remove(&tenant);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_fills_the_cache_loses_its_own() {
        let (small, large) = (TenantId::new("small"), TenantId::new("large"));
        let mut cache = Cache::new(8);
        cache.put(&small, [0; 32], 0);
        (1..=100).for_each(|n| cache.put(&large, [n; 32], n));
        assert_eq!(cache.get(&small, &[0; 32]), Some(0));
        assert_eq!(cache.get(&large, &[100; 32]), Some(100));
        assert_eq!(cache.get(&large, &[93; 32]), None, "eight in all");
        assert_eq!(cache.get(&small, &[100; 32]), None, "nobody finds another's");
    }

    #[test]
    fn where_all_have_as_many_nobody_loses_what_has_just_come() {
        let tenants: Vec<_> = (0..20).map(|n| TenantId::new(format!("t{n}"))).collect();
        let mut cache = Cache::new(8);
        for (n, tenant) in tenants.iter().enumerate() {
            cache.put(tenant, [0; 32], n);
            assert_eq!(cache.get(tenant, &[0; 32]), Some(n));
        }
        assert_eq!(tenants.iter().filter(|tenant| cache.get(tenant, &[0; 32]).is_some()).count(), 8);
    }

    #[test]
    fn what_was_used_of_late_stays() {
        let tenant = TenantId::new("t");
        let mut cache = Cache::new(2);
        cache.put(&tenant, [1; 32], 1);
        cache.put(&tenant, [2; 32], 2);
        assert_eq!(cache.get(&tenant, &[1; 32]), Some(1));
        cache.put(&tenant, [3; 32], 3);
        assert_eq!((cache.get(&tenant, &[1; 32]), cache.get(&tenant, &[2; 32])), (Some(1), None));
    }
}
