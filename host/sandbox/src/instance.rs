//! One live guest: a store and the functions that it exports. Made by [`Instance::bare`] (to be described) or
//! [`Instance::configured`] (to serve); entered by the stages, never by two calls at once.

use crate::bindings::exports::tidegate::plugin as exports;
use crate::blueprint::Blueprint;
use crate::failure;
use crate::stage::CallError;
use crate::state::HostState;
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::OwnedSemaphorePermit;
use wasmtime::Store;

/// A guest. The store is dropped before the permit that counts it.
pub(crate) struct Instance {
    pub(crate) store: Store<HostState>,
    pub(crate) guests: Guests,
    pub(crate) calls: u32,
    pub(crate) born: Instant,
    /// The last caller's key name and its pseudonym: one key usually makes many calls.
    pub(crate) caller: Option<(Arc<str>, String)>,
    _slot: Option<OwnedSemaphorePermit>,
}

/// The functions of the stages that the plugin serves.
pub(crate) struct Guests {
    meta: exports::meta::Guest,
    pub(crate) prompt_guard: Option<exports::prompt_guard::Guest>,
    pub(crate) stream_guard: Option<exports::stream_guard::Guest>,
    pub(crate) router: Option<exports::router::Guest>,
    pub(crate) tool_provider: Option<exports::tool_provider::Guest>,
    pub(crate) retriever: Option<exports::retriever::Guest>,
}

impl Instance {
    /// An instance that is not configured yet.
    pub(crate) async fn bare(state: HostState, slot: Option<OwnedSemaphorePermit>) -> wasmtime::Result<Self> {
        let blueprint = state.blueprint.clone();
        let mut store = Store::new(blueprint.pre.engine(), state);
        store.limiter(|state| state);
        store.set_hostcall_fuel(blueprint.limits.output_bytes);
        store.epoch_deadline_callback(|mut context| context.data_mut().meter.tick());
        restart(&mut store, blueprint.configure_ticks());
        let instance = match blueprint.pre.instantiate_async(&mut store).await {
            Ok(instance) => instance,
            // The state knows why, when the guest was too large to begin with.
            Err(error) => return Err(refused_memory(&store).unwrap_or(error)),
        };
        let guests = Guests::load(&mut store, &instance, &blueprint)?;
        Ok(Self { store, guests, calls: 0, born: Instant::now(), caller: None, _slot: slot })
    }

    /// An instance that may serve calls.
    pub(crate) async fn configured(state: HostState, slot: Option<OwnedSemaphorePermit>) -> Result<Self, CallError> {
        let blueprint = state.blueprint.clone();
        let made = Self::bare(state, slot).await;
        let mut instance = made.map_err(|error| failure::of_start(&error, &blueprint))?;
        let wall = blueprint.configure_wall();
        let configured =
            tokio::time::timeout(wall, instance.guests.meta.call_configure(&mut instance.store, &blueprint.config))
                .await;
        instance.store.data_mut().settle_log();
        match configured {
            Ok(Ok(Ok(()))) => Ok(instance),
            Ok(Ok(Err(error))) => Err(failure::of_plugin(&blueprint.name, error)),
            Ok(Err(error)) => Err(failure::of_call(&error, instance.store.data(), blueprint.configure_cpu)),
            Err(_) => Err(CallError::Deadline { plugin: blueprint.name.to_string(), clock: "wall", limit: wall }),
        }
    }

    /// What the plugin says of itself.
    pub(crate) async fn describe(&mut self) -> wasmtime::Result<String> {
        let said = self.guests.meta.call_describe(&mut self.store).await;
        self.store.data_mut().settle_log();
        said
    }

    /// Gives the next stage call its CPU time.
    pub(crate) fn restart(&mut self, ticks: u64) {
        self.calls += 1;
        restart(&mut self.store, ticks);
    }
}

fn restart(store: &mut Store<HostState>, ticks: u64) {
    store.data_mut().meter.restart(ticks);
    store.set_epoch_deadline(1);
}

fn refused_memory(store: &Store<HostState>) -> Option<wasmtime::Error> {
    let state = store.data();
    state.memory.denied().map(|denied| failure::of_memory(denied, state).into())
}

impl Guests {
    fn load(
        store: &mut Store<HostState>,
        instance: &wasmtime::component::Instance,
        blueprint: &Blueprint,
    ) -> wasmtime::Result<Self> {
        let stages = &blueprint.stages;
        macro_rules! load {
            ($stage:ident) => {
                stages.$stage.as_ref().map(|indices| indices.load(&mut *store, instance)).transpose()?
            };
        }
        Ok(Self {
            meta: stages.meta.load(&mut *store, instance)?,
            prompt_guard: load!(prompt_guard),
            stream_guard: load!(stream_guard),
            router: load!(router),
            tool_provider: load!(tool_provider),
            retriever: load!(retriever),
        })
    }
}
