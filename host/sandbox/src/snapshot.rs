//! A component as it is after `configure`. A plugin that builds tables there (an operator's words as an automaton) does
//! it once, when it is loaded; its instances then begin with the memory that it left, mapped copy-on-write.
//!
//! The component is instrumented so that its memories and globals can be read, configured, read, and written out again
//! with what was read as its initial state. That is done for plugins that are deterministic and use no granted
//! capability: what they are after `configure` depends on component and config alone, and not on tenant or time. Where
//! it cannot be done the plugin is configured for each instance, as ever.

use crate::blueprint::{Blueprint, StageIndices};
use crate::instance::Instance;
use crate::sandbox::Core;
use crate::state::HostState;
use std::collections::BTreeSet;
use std::sync::Arc;
use wasmtime::component::{Lift, WasmList};
use wasmtime::{Error, Store};
use wasmtime_wizer::{ComponentInstanceState, Wizer};

/// The largest memory that is kept in a component.
const MAX_MEMORY: usize = 64 << 20;

/// The blueprint of instances that begin configured; an error says why there is none.
pub(crate) async fn take(
    core: &Core,
    component: &[u8],
    blueprint: &Arc<Blueprint>,
    trial: impl FnOnce(Arc<Blueprint>) -> HostState,
) -> wasmtime::Result<Blueprint> {
    let kinds = blueprint.stages.kinds();
    let wizer = Wizer::new();
    let (context, instrumented) = wizer.instrument_component(component)?;
    let readable = with_component(core, blueprint, &instrumented, &kinds)?;
    let mut instance = Instance::configured(trial(Arc::new(readable)), None).await.map_err(Error::new)?;
    let held = instance.store.data().memory.held();
    if held > MAX_MEMORY {
        return Err(Error::msg(format!("it holds {held} bytes, and at most {MAX_MEMORY} are kept")));
    }
    // What is read are its memories, whole.
    instance.store.set_hostcall_fuel(held.saturating_mul(2).saturating_add(1 << 20));
    instance.restart(u64::MAX);
    let mut reader = Reader { instance: &mut instance, failed: None };
    let configured = wizer.snapshot_component(&context, &mut reader).await?;
    if let Some(error) = reader.failed {
        return Err(error);
    }
    Ok(Blueprint { is_configured: true, ..with_component(core, blueprint, &configured, &kinds)? })
}

fn with_component(
    core: &Core,
    blueprint: &Blueprint,
    bytes: &[u8],
    kinds: &BTreeSet<crate::stage::StageKind>,
) -> wasmtime::Result<Blueprint> {
    let component = core.cache.component(&core.engine, bytes)?;
    let pre = core.linker.instantiate_pre(&component)?;
    let mut stages = StageIndices::find(&pre)?;
    stages.retain(kinds);
    Ok(Blueprint { pre, stages, ..blueprint.clone() })
}

/// Reads an instrumented instance. The trait cannot fail, so the first failure is kept.
struct Reader<'a> {
    instance: &'a mut Instance,
    failed: Option<Error>,
}

impl Reader<'_> {
    async fn call<R: Lift + 'static, T: Default>(
        &mut self,
        instance: &str,
        func: &str,
        used: impl FnOnce(&Store<HostState>, R) -> T,
    ) -> T {
        match self.try_call(instance, func).await {
            Ok(found) => used(&self.instance.store, found),
            Err(error) => {
                self.failed.get_or_insert(error);
                T::default()
            }
        }
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
        self.call(instance, func, |store, list: WasmList<u8>| contents(list.as_le_slice(store))).await;
    }

    async fn call_func_ret_s32(&mut self, instance: &str, func: &str) -> i32 {
        self.call(instance, func, |_, found: i32| found).await
    }

    async fn call_func_ret_s64(&mut self, instance: &str, func: &str) -> i64 {
        self.call(instance, func, |_, found: i64| found).await
    }

    async fn call_func_ret_f32(&mut self, instance: &str, func: &str) -> u32 {
        self.call(instance, func, |_, found: f32| found.to_bits()).await
    }

    async fn call_func_ret_f64(&mut self, instance: &str, func: &str) -> u64 {
        self.call(instance, func, |_, found: f64| found.to_bits()).await
    }
}
