//! The pools of one plugin, by owner. Owners are named by the config or by an issuer that it trusts, and there may be many
//! that call once: a pool that is empty and that nobody has is forgotten, and made again for its owner's next call.

use crate::pool::Pool;
use parking_lot::RwLock;
use std::collections::BTreeMap;
use std::sync::Arc;
use tidegate_types::TenantId;

/// Pools by owner. Invariant: an owner never has two, so nobody forgets one that a call has. In order: of few owners one is
/// found with less code than a hash takes, and each call looks for one.
#[derive(Default)]
pub(crate) struct Pools(RwLock<BTreeMap<TenantId, Arc<Pool>>>);

impl Pools {
    /// The pool of `owner`.
    pub(crate) fn get_or_make(&self, owner: &TenantId, make: impl FnOnce() -> Arc<Pool>) -> Arc<Pool> {
        if let Some(pool) = self.0.read().get(owner) {
            return Arc::clone(pool);
        }
        Arc::clone(self.0.write().entry(owner.clone()).or_insert_with(make))
    }

    /// All there are now.
    pub(crate) fn all(&self) -> Vec<Arc<Pool>> {
        self.0.read().values().cloned().collect()
    }

    /// Forgets those that are empty and that nobody has: while this may write, nobody comes to have another.
    pub(crate) fn forget_unused(&self) {
        let is_unused = |pool: &Arc<Pool>| pool.is_empty() && Arc::strong_count(pool) == 1;
        if self.0.read().values().any(is_unused) {
            self.0.write().retain(|_, pool| !is_unused(pool));
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::plugin::tests::{by, load};
    use crate::sandbox::Snapshot;
    use std::time::{Duration, Instant};
    use tidegate_types::Class;

    #[tokio::test]
    async fn a_pool_is_forgotten_when_it_is_empty_and_nobody_has_it() {
        let plugin = load(2, Snapshot::Never).unwrap();
        let num_pools = || {
            plugin.pools.forget_unused();
            plugin.pools.all().len()
        };
        let (pool, until) = (plugin.pool(&by("a")), Instant::now() + Duration::from_secs(60));
        let lease = pool.lease(&pool.share().tenant, Class::default(), until).await.unwrap();
        assert_eq!(num_pools(), 1, "a call has it");
        lease.keep(Instant::now());
        drop(pool);
        assert_eq!(num_pools(), 1, "it has an instance");
        let pool = plugin.pool(&by("a"));
        assert!(pool.drop_oldest());
        assert_eq!(num_pools(), 1, "a call is about to have it");
        drop(pool);
        let is_swept = async {
            while !plugin.pools.all().is_empty() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), is_swept).await.expect("it is forgotten");
        let pool = plugin.pool(&by("a"));
        pool.lease(&pool.share().tenant, Class::default(), until).await.unwrap().keep(Instant::now());
    }
}
