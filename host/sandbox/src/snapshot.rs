//! A component as it is after `configure`. A plugin that builds tables there (an operator's words as an automaton) does
//! it once, when it is loaded; its instances then begin with the memory that it left, mapped copy-on-write.
//!
//! The component is instrumented so that its memories and globals can be read, configured, read, and written out again
//! with what was read as its initial state. That is done for plugins that are deterministic and use no granted
//! capability: what they are after `configure` depends on component and config alone, and not on tenant or time; there is
//! no randomness in it and nobody's data. Where it cannot be done the plugin is configured for each instance, as ever.
//! Invariant: only a `configure` that fails refuses a plugin here, as it would without a snapshot.

use crate::blueprint::{Blueprint, StageIndices};
use crate::engine::{MEMORIES, PAGE};
use crate::failure;
use crate::instance::Instance;
use crate::load::MAX_SMALL;
use crate::sandbox::Core;
use crate::stage::{CallError, StageKind};
use crate::state::HostState;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};
use wasmtime::Error;
use wasmtime::component::{Lift, WasmList};
use wasmtime_wizer::{ComponentInstanceState, Wizer};

/// The largest memory that is kept in a component.
const MAX_MEMORY: usize = 64 << 20;

/// Why there is no snapshot.
pub(crate) enum NoSnapshot {
    /// `configure` has failed.
    Refused(CallError),
    /// It cannot be taken.
    Failed(Error),
}

impl From<Error> for NoSnapshot {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

/// The blueprint of instances that begin configured. `is_accepted` is set once `configure` has succeeded, which is called
/// once: it need not be again where no snapshot comes of it.
pub(crate) async fn take(
    core: &Core,
    component: &[u8],
    blueprint: &Arc<Blueprint>,
    trial: impl Fn(&Blueprint) -> HostState,
    is_accepted: &mut bool,
) -> Result<Blueprint, NoSnapshot> {
    let kinds = blueprint.stages.kinds();
    let wizer = Wizer::new();
    let (context, instrumented) = wizer.instrument_component(component)?;
    // It serves nobody, and has pages beside the plugin's own: what it holds is no plugin's peak.
    let readable = Blueprint { memory_peak: None, ..with_component(core, blueprint, &instrumented, &kinds)? };
    let mut instance = Instance::bare(trial(&readable), None).await?;
    instance.configure().await.map_err(NoSnapshot::Refused)?;
    *is_accepted = true;
    let configured = {
        let mut reader = Reader::of(&mut instance, core.config.max_memory_bytes)?;
        let configured = wizer.snapshot_component(&context, &mut reader).await?;
        reader.failed.map_or(Ok(configured), Err)?
    };
    // There is room for one instance at a time.
    drop(instance);
    // What an interpreter does takes longer than a direct call may, and its instances are dear to make anew.
    let direct = component.len() <= MAX_SMALL;
    let taken = Blueprint { is_configured: true, direct, ..with_component(core, blueprint, &configured, &kinds)? };
    // Should it not start, that is known now and not by the first request.
    let mut first = Instance::configured(trial(&taken), None).await.map_err(Error::new)?;
    first.check_types()?;
    Ok(taken)
}

fn with_component(
    core: &Core,
    blueprint: &Blueprint,
    bytes: &[u8],
    kinds: &BTreeSet<StageKind>,
) -> wasmtime::Result<Blueprint> {
    let component = core.cache.component(&core.engine, bytes)?;
    let pre = core.linker.instantiate_pre(&component)?;
    let mut stages = StageIndices::find(&pre)?;
    stages.retain(kinds);
    Ok(Blueprint { pre, stages, ..blueprint.clone() })
}

/// Reads an instrumented instance. The trait cannot fail, so the first failure is kept, and what could not be read is
/// empty.
struct Reader<'a> {
    instance: &'a mut Instance,
    failed: Option<Error>,
    /// Memories as they were first read: each is asked for twice, and to be read costs it a page.
    memories: HashMap<String, WasmList<u8>>,
}

impl<'a> Reader<'a> {
    /// `most` is the largest memory that the sandbox allows.
    fn of(instance: &'a mut Instance, most: usize) -> wasmtime::Result<Self> {
        let held = instance.store.data().memory.held();
        if held > MAX_MEMORY {
            return Err(Error::msg(format!("it holds {held} bytes, and at most {MAX_MEMORY} are kept")));
        }
        // What is read are its memories, whole.
        instance.store.set_hostcall_fuel(held.saturating_mul(2).saturating_add(1 << 20));
        instance.store.data_mut().memory.allow_more(MEMORIES as usize * PAGE, most);
        instance.restart(Duration::MAX, Instant::now());
        Ok(Self { instance, failed: None, memories: HashMap::new() })
    }

    async fn call<R: Lift + Default + 'static>(&mut self, instance: &str, func: &str) -> R {
        let called = self.try_call(instance, func).await;
        called.unwrap_or_else(|error| self.fail(error))
    }

    fn fail<R: Default>(&mut self, error: Error) -> R {
        // Memory that was refused is known by the store alone.
        let state = self.instance.store.data();
        let error = state.memory.denied().map_or(error, |denied| failure::of_memory(denied, state).into());
        self.failed.get_or_insert(error);
        R::default()
    }

    async fn try_call<R: Lift + 'static>(&mut self, instance: &str, func: &str) -> wasmtime::Result<R> {
        let component = *self.instance.guests.instance();
        let store = &mut self.instance.store;
        let missing = || Error::msg(format!("no {instance}#{func}"));
        let (_, exported) = component.get_export(&mut *store, None, instance).ok_or_else(missing)?;
        let (_, function) = component.get_export(&mut *store, Some(&exported), func).ok_or_else(missing)?;
        let function = component.get_typed_func::<(), (R,)>(&mut *store, function)?;
        Ok(function.call_async(&mut *store, ()).await?.0)
    }
}

impl ComponentInstanceState for Reader<'_> {
    async fn call_func_ret_list_u8(&mut self, instance: &str, func: &str, contents: impl FnOnce(&[u8]) + Send) {
        if !self.memories.contains_key(func) {
            match self.try_call(instance, func).await {
                Ok(memory) => drop(self.memories.insert(func.to_owned(), memory)),
                Err(error) => self.fail(error),
            }
        }
        // Called in any case: what is missing is found by an assertion else.
        contents(self.memories.get(func).map_or(&[], |memory| memory.as_le_slice(&self.instance.store)));
    }

    async fn call_func_ret_s32(&mut self, instance: &str, func: &str) -> i32 {
        self.call(instance, func).await
    }

    async fn call_func_ret_s64(&mut self, instance: &str, func: &str) -> i64 {
        self.call(instance, func).await
    }

    async fn call_func_ret_f32(&mut self, instance: &str, func: &str) -> u32 {
        self.call::<f32>(instance, func).await.to_bits()
    }

    async fn call_func_ret_f64(&mut self, instance: &str, func: &str) -> u64 {
        self.call::<f64>(instance, func).await.to_bits()
    }
}
