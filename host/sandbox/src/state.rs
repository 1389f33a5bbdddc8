//! What a store holds beside the guest: whose instance it is, what it may still use in this call, and the counters
//! that say afterwards why a call ended. Host functions (`capability/`) are methods of [`HostState`].

use crate::blueprint::Blueprint;
use crate::capability::{CapabilityError, LogBudget, Meters, Namespace};
use crate::config::Fixed;
use crate::engine::{CORE_INSTANCES, ELEMENT_BYTES, FREE_ELEMENTS, MEMORIES, TABLE_ELEMENTS, TABLES};
use crate::meter::CpuMeter;
use crate::registry::Registry;
use crate::slots::share_of;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;
use tidegate_fair::Owner;
use tidegate_types::{Caller, RequestId, Retention, TenantId};
use wasmtime::ResourceLimiter;

/// The data of one store.
pub(crate) struct HostState {
    pub(crate) blueprint: Arc<Blueprint>,
    pub(crate) namespace: Namespace,
    pub(crate) meter: CpuMeter,
    pub(crate) memory: MemoryAccount,
    pub(crate) log: LogBudget,
    pub(crate) meters: Meters,
    pub(crate) request: Option<RequestId>,
    /// Whose work the call is; set where models may be asked.
    pub(crate) caller: Option<Arc<Caller>>,
    /// Gateways that the request has come through.
    pub(crate) hops: u8,
    /// Who may be denied what; the namespace is of a project of it.
    pub(crate) tenant: TenantId,
    /// Whether something of what the call sees may be kept.
    pub(crate) retention: Retention,
    /// When the call is out of wall time.
    pub(crate) until: Instant,
    phase: Phase,
}

/// What the instance is for.
pub(crate) enum Phase {
    /// `describe` only: capabilities are denied, and the first use of one is kept.
    Describe {
        /// The function that was called.
        used: Option<&'static str>,
    },
    /// `configure`.
    Configure {
        /// How many random bytes were drawn, where those follow from a seed.
        drawn: u64,
    },
    /// Stage calls, and what comes before any.
    Serve,
}

impl HostState {
    pub(crate) fn new(blueprint: Arc<Blueprint>, namespace: Namespace, phase: Phase) -> Self {
        let tenant = namespace.share.clone();
        let memory = MemoryAccount {
            limit: blueprint.limits.memory_bytes,
            held: 0,
            denied: None,
            registry: blueprint.registry.clone(),
            owner: share_of(tenant.clone()),
        };
        let (log, meter) = (LogBudget::new(blueprint.limits.log_bytes), CpuMeter::new(blueprint.clock.clone()));
        Self {
            blueprint,
            namespace,
            meter,
            memory,
            log,
            meters: Meters::default(),
            request: None,
            caller: None,
            hops: 0,
            tenant,
            retention: Retention::Kept,
            until: Instant::now(),
            phase,
        }
    }

    /// Ends a call: says what its bounds cut off. Where that is nothing, or was said, it says nothing.
    pub(crate) fn settle(&mut self) {
        self.settle_meters();
        self.settle_log();
    }

    /// The next call is of this tenant.
    pub(crate) fn serve(&mut self, tenant: &TenantId) {
        let last = std::mem::replace(&mut self.tenant, tenant.clone());
        self.meters.change(last, tenant);
    }

    pub(crate) fn is_describing(&self) -> bool {
        matches!(self.phase, Phase::Describe { .. })
    }

    /// Notes that the guest called a capability; `describe` must not.
    pub(crate) fn use_capability(&mut self, function: &'static str) {
        if let Phase::Describe { used } = &mut self.phase {
            used.get_or_insert(function);
        }
    }

    /// Notes the use of a granted capability, and refuses it to `describe` and to a tenant that it is withheld from.
    pub(crate) fn allow(&mut self, capability: &'static str, function: &'static str) -> Result<(), CapabilityError> {
        self.use_capability(function);
        if self.is_describing() || self.withholds(capability) {
            return Err(CapabilityError::Denied(format!("`{capability}` is not granted here")));
        }
        Ok(())
    }

    /// Whether the tenant's calls go without a capability.
    pub(crate) fn withholds(&self, capability: &str) -> bool {
        let withheld = self.blueprint.grants.withheld.get(&self.tenant);
        withheld.is_some_and(|names| names.contains(capability))
    }

    /// Refuses to keep something where nothing of the request may be kept. Not dropped silently: a plugin that counts, or
    /// that its caller relies on to remember, must know that it did not.
    pub(crate) fn may_keep(&self) -> Result<(), CapabilityError> {
        match self.retention {
            Retention::Kept => Ok(()),
            Retention::Nothing => {
                let message = "nothing of this request may be kept (zero retention)";
                Err(CapabilityError::Denied(message.into()))
            }
        }
    }

    /// The capability that `describe` called, if any.
    pub(crate) fn used_while_describing(&self) -> Option<&'static str> {
        match self.phase {
            Phase::Describe { used } => used,
            Phase::Configure { .. } | Phase::Serve => None,
        }
    }

    pub(crate) fn enter(&mut self, phase: Phase) {
        self.phase = phase;
    }

    /// Where so many more bytes begin in the chance of a test. What `configure` draws is the same in each instance, or a call's
    /// outcome would depend on which of them it finds.
    pub(crate) fn draw(&mut self, len: u64, fixed: &Fixed) -> (&'static str, u64) {
        match &mut self.phase {
            Phase::Configure { drawn } => ("configure", std::mem::replace(drawn, *drawn + len)),
            Phase::Describe { .. } | Phase::Serve => ("calls", fixed.drawn.fetch_add(len, Ordering::Relaxed)),
        }
    }
}

/// Also of a call that did not come to its end, whose client went away or which ran out of time.
impl Drop for HostState {
    fn drop(&mut self) {
        self.settle();
    }
}

/// Linear memory of one instance and its tables. A refusal, of a table's growth too, is kept, so that it is not taken for the trap that
/// follows from it.
pub(crate) struct MemoryAccount {
    limit: usize,
    held: usize,
    denied: Option<Denied>,
    registry: Arc<Registry>,
    /// Whose share of all memory it is.
    owner: Owner,
}

/// A refused growth.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Denied {
    /// Over the instance's own limit.
    Instance {
        /// Bytes that it would have had.
        asked: usize,
    },
    /// All instances together are at the sandbox's limit.
    Host,
    /// A table with more than [`TABLE_ELEMENTS`].
    Table {
        /// Elements that it would have had.
        asked: usize,
    },
}

/// The error with which a guest ends that was refused memory.
#[derive(Debug, thiserror::Error)]
#[error("the memory limit is used up")]
struct MemorySpent;

impl MemoryAccount {
    pub(crate) fn denied(&self) -> Option<Denied> {
        self.denied
    }

    /// Bytes that the instance has.
    pub(crate) fn held(&self) -> usize {
        self.held
    }

    /// Lets the instance have so much more than it has, and no more than `most`, whatever its limit was.
    pub(crate) fn allow_more(&mut self, bytes: usize, most: usize) {
        self.limit = self.limit.max(self.held.saturating_add(bytes).min(most));
    }

    /// What all instances together may hold.
    pub(crate) fn host_limit(&self) -> usize {
        self.registry.max_bytes()
    }
}

impl HostState {
    /// Counts memory that the guest has asked for; an error where that is more than it may have.
    fn book(&mut self, grown: usize) -> wasmtime::Result<bool> {
        let account = &mut self.memory;
        let asked = account.held.saturating_add(grown);
        account.denied = if asked > account.limit {
            Some(Denied::Instance { asked })
        } else if !account.registry.reserve_bytes(&account.owner, grown) {
            Some(Denied::Host)
        } else {
            account.held = asked;
            self.blueprint.note_memory(asked);
            return Ok(true);
        };
        // An error, unlike `false`, ends the guest here: it cannot go on half-grown.
        Err(MemorySpent.into())
    }
}

impl Drop for MemoryAccount {
    fn drop(&mut self) {
        self.registry.release_bytes(&self.owner, self.held);
    }
}

impl ResourceLimiter for HostState {
    fn memory_growing(&mut self, current: usize, desired: usize, maximum: Option<usize>) -> wasmtime::Result<bool> {
        if maximum.is_some_and(|maximum| desired > maximum) {
            return Ok(false);
        }
        self.book(desired.saturating_sub(current))
    }

    fn table_growing(&mut self, current: usize, desired: usize, maximum: Option<usize>) -> wasmtime::Result<bool> {
        if maximum.is_some_and(|maximum| desired > maximum) {
            return Ok(false);
        }
        if desired > TABLE_ELEMENTS {
            self.memory.denied = Some(Denied::Table { asked: desired });
            return Err(MemorySpent.into());
        }
        let counted = |elements: usize| elements.saturating_sub(FREE_ELEMENTS) * ELEMENT_BYTES;
        self.book(counted(desired).saturating_sub(counted(current)))
    }

    fn instances(&self) -> usize {
        CORE_INSTANCES as usize
    }

    fn tables(&self) -> usize {
        TABLES as usize
    }

    fn memories(&self) -> usize {
        MEMORIES as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure;
    use crate::plugin::tests::{by, load};
    use crate::sandbox::Snapshot;
    use crate::stage::CallError;
    use std::time::Duration;
    use tidegate_types::Class;

    #[tokio::test]
    async fn tables_take_of_the_memory_that_an_instance_and_all_together_may_have() {
        let plugin = load(1, Snapshot::Never).unwrap();
        let (pool, tenant) = (plugin.pool(&by("a")), TenantId::new("a"));
        let mut lease = pool.lease(&tenant, Class::default(), Instant::now() + Duration::from_secs(60)).await.unwrap();
        let state = lease.instance.store.data_mut();
        let (before, all) = (state.memory.held(), state.memory.registry.held_bytes());
        assert!(state.table_growing(0, FREE_ELEMENTS, None).unwrap());
        assert_eq!(state.memory.held(), before, "most plugins have no larger one");
        assert!(state.table_growing(FREE_ELEMENTS / 2, TABLE_ELEMENTS, None).unwrap());
        let grown = (TABLE_ELEMENTS - FREE_ELEMENTS) * 8;
        assert_eq!((state.memory.held(), state.memory.registry.held_bytes()), (before + grown, all + grown));
        state.memory.limit = before + grown;
        state.table_growing(FREE_ELEMENTS, FREE_ELEMENTS + 1, None).unwrap_err();
        assert!(matches!(state.memory.denied(), Some(Denied::Instance { asked }) if asked == before + grown + 8));
        drop(lease);
        assert_eq!(crate::plugin::tests::registry(&plugin).held_bytes(), 0);
    }

    #[tokio::test]
    async fn a_guest_has_so_many_handles() {
        let plugin = load(1, Snapshot::Never).unwrap();
        let pool = plugin.pool(&by("a"));
        let lease =
            pool.lease(&TenantId::new("a"), Class::default(), Instant::now() + Duration::from_secs(60)).await.unwrap();
        assert_eq!(lease.instance.store.max_component_handles(), crate::engine::HANDLES);
    }

    #[tokio::test]
    async fn a_table_that_is_too_large_ends_its_guest_as_too_much_memory_does() {
        let plugin = load(1, Snapshot::Never).unwrap();
        let (pool, tenant) = (plugin.pool(&by("a")), TenantId::new("a"));
        let mut lease = pool.lease(&tenant, Class::default(), Instant::now() + Duration::from_secs(60)).await.unwrap();
        let state = lease.instance.store.data_mut();
        assert!(state.table_growing(0, TABLE_ELEMENTS, None).unwrap());
        assert!(!state.table_growing(0, 9, Some(8)).unwrap(), "of its own limit it is told, and goes on");
        let error = state.table_growing(0, TABLE_ELEMENTS + 1, None).unwrap_err();
        let failure = failure::of_call(&error, state, Duration::from_secs(1));
        assert!(matches!(&failure, CallError::Trap { message, .. } if message.contains("20001")), "{failure}");
    }
}
