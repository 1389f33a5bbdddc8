//! One live guest: a store and the functions that it exports. Made by [`Instance::bare`] (to be described) or
//! [`Instance::configured`] (to serve); entered by the stages, never by two calls at once.

use crate::bindings::direct::exports::tidegate::plugin as direct;
use crate::bindings::exports::tidegate::plugin as exports;
use crate::blueprint::Blueprint;
use crate::engine::HANDLES;
use crate::failure;
use crate::slots::Slot;
use crate::stage::{CallError, StageKind};
use crate::state::{HostState, Phase};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidegate_types::Caller;
use wasmtime::{Error, Store, component};

/// A guest. The store is dropped before the place that counts it.
pub(crate) struct Instance {
    pub(crate) store: Store<HostState>,
    pub(crate) guests: Guests,
    pub(crate) calls: u32,
    pub(crate) born: Instant,
    /// The last caller: one usually makes many calls.
    pub(crate) caller: Option<KnownCaller>,
    slot: Option<Slot>,
}

/// A caller, and what a guest knows it by.
pub(crate) struct KnownCaller {
    pub(crate) key_name: Arc<str>,
    pub(crate) user: Option<Arc<str>>,
    pub(crate) pseudonym: String,
}

impl KnownCaller {
    /// Whether it is this one. By address: a name that moved costs a hash.
    pub(crate) fn is(&self, caller: &Caller) -> bool {
        Arc::ptr_eq(&self.key_name, &caller.key_name)
            && match (&self.user, &caller.user) {
                (Some(known), Some(user)) => Arc::ptr_eq(known, user),
                (known, user) => known.is_none() && user.is_none(),
            }
    }
}

/// The functions that the component exports, each looked up and typed when it is first needed: most instances serve
/// one stage.
pub(crate) struct Guests {
    blueprint: Arc<Blueprint>,
    instance: component::Instance,
    meta: exports::meta::Guest,
    prompt_guard: Option<exports::prompt_guard::Guest>,
    stream_guard: Option<exports::stream_guard::Guest>,
    router: Option<exports::router::Guest>,
    tool_provider: Option<exports::tool_provider::Guest>,
    retriever: Option<exports::retriever::Guest>,
    output_guard: Option<exports::output_guard::Guest>,
    memory: Option<exports::memory::Guest>,
    observer: Option<exports::observer::Guest>,
    direct_prompt_guard: Option<direct::prompt_guard::Guest>,
    direct_stream_guard: Option<direct::stream_guard::Guest>,
    prompt_glance: Option<direct::prompt_glance::Guest>,
    stream_glance: Option<direct::stream_glance::Guest>,
}

impl Instance {
    /// An instance that is not configured yet.
    pub(crate) async fn bare(state: HostState, slot: Option<Slot>) -> wasmtime::Result<Self> {
        let blueprint = state.blueprint.clone();
        let mut store = Store::new(blueprint.pre.engine(), state);
        store.limiter(|state| state);
        store.set_hostcall_fuel(blueprint.limits.output_bytes);
        store.set_max_component_handles(HANDLES);
        store.epoch_deadline_callback(|mut context| context.data_mut().meter.tick());
        restart(&mut store, blueprint.configure_cpu, Instant::now());
        let instance = match blueprint.pre.instantiate_async(&mut store).await {
            Ok(instance) => instance,
            // The state knows why, when the guest was too large to begin with.
            Err(error) => return Err(refused_memory(&store).unwrap_or(error)),
        };
        let guests = Guests::new(&mut store, instance, blueprint)?;
        Ok(Self { store, guests, calls: 0, born: Instant::now(), caller: None, slot })
    }

    /// Ends it, and leaves its slot to another in its place.
    pub(crate) fn into_slot(self) -> Option<Slot> {
        self.slot
    }

    /// An instance that may serve calls.
    pub(crate) async fn configured(state: HostState, slot: Option<Slot>) -> Result<Self, CallError> {
        let blueprint = state.blueprint.clone();
        let made = tokio::time::timeout(blueprint.configure_wall(), async {
            let made = Self::bare(state, slot).await;
            let mut instance = made.map_err(|error| failure::of_start(&error, &blueprint))?;
            if !blueprint.is_configured {
                instance.configure().await?;
            }
            Ok::<_, CallError>(instance)
        });
        made.await.unwrap_or_else(|_| Err(failure::of_slow_start(&blueprint)))
    }

    /// Gives a bare instance the operator's config.
    pub(crate) async fn configure(&mut self) -> Result<(), CallError> {
        let blueprint = self.store.data().blueprint.clone();
        self.store.data_mut().enter(Phase::Configure { drawn: 0 });
        let called = self.guests.meta.call_configure(&mut self.store, &blueprint.config);
        let configured = tokio::time::timeout(blueprint.configure_wall(), called).await;
        self.store.data_mut().settle();
        self.store.data_mut().enter(Phase::Serve);
        match configured {
            Ok(Ok(Ok(()))) => Ok(()),
            Ok(Ok(Err(error))) => Err(failure::of_plugin(&blueprint.name, error)),
            Ok(Err(error)) => Err(failure::of_trial(&error, self.store.data())),
            Err(_) => Err(failure::of_slow_start(&blueprint)),
        }
    }

    /// Checks that every stage has the contract's types.
    pub(crate) fn check_types(&mut self) -> wasmtime::Result<()> {
        let kinds = self.store.data().blueprint.stages.kinds();
        kinds.into_iter().try_for_each(|stage| self.guests.look_up(stage, &mut self.store))
    }

    /// What the plugin says of itself.
    pub(crate) async fn describe(&mut self) -> wasmtime::Result<String> {
        let said = self.guests.meta.call_describe(&mut self.store).await;
        self.store.data_mut().settle();
        said
    }

    /// Gives the next stage call, which enters the guest at `now`, its CPU time.
    pub(crate) fn restart(&mut self, cpu: Duration, now: Instant) {
        self.calls += 1;
        self.begin(cpu, now);
    }

    /// The same for what is no call: it does not wear the instance.
    pub(crate) fn begin(&mut self, cpu: Duration, now: Instant) {
        restart(&mut self.store, cpu, now);
    }
}

fn restart(store: &mut Store<HostState>, cpu: Duration, now: Instant) {
    store.data_mut().meter.restart(cpu, now);
    store.set_epoch_deadline(1);
}

fn refused_memory(store: &Store<HostState>) -> Option<Error> {
    let state = store.data();
    state.memory.denied().map(|denied| failure::of_memory(denied, state).into())
}

macro_rules! stage {
    ($stage:ident: $guest:ty) => {
        /// The stage's functions. An error when it is not exported, or not as the contract has it.
        pub(crate) fn $stage(&mut self, store: &mut Store<HostState>) -> wasmtime::Result<&$guest> {
            match &mut self.$stage {
                Some(guest) => Ok(guest),
                none => {
                    let indices = self.blueprint.stages.$stage.as_ref();
                    let indices = indices.ok_or_else(|| Error::msg("the stage is not exported"))?;
                    Ok(none.insert(indices.load(store, &self.instance)?))
                }
            }
        }
    };
}

impl Guests {
    fn new(
        store: &mut Store<HostState>,
        instance: component::Instance,
        blueprint: Arc<Blueprint>,
    ) -> wasmtime::Result<Self> {
        Ok(Self {
            meta: blueprint.stages.meta.load(store, &instance)?,
            blueprint,
            instance,
            prompt_guard: None,
            stream_guard: None,
            router: None,
            tool_provider: None,
            retriever: None,
            output_guard: None,
            memory: None,
            observer: None,
            direct_prompt_guard: None,
            direct_stream_guard: None,
            prompt_glance: None,
            stream_glance: None,
        })
    }

    /// The component's instance.
    pub(crate) fn instance(&self) -> &component::Instance {
        &self.instance
    }

    stage!(prompt_guard: exports::prompt_guard::Guest);
    stage!(stream_guard: exports::stream_guard::Guest);
    stage!(router: exports::router::Guest);
    stage!(tool_provider: exports::tool_provider::Guest);
    stage!(retriever: exports::retriever::Guest);
    stage!(output_guard: exports::output_guard::Guest);
    stage!(memory: exports::memory::Guest);
    stage!(observer: exports::observer::Guest);
    stage!(direct_prompt_guard: direct::prompt_guard::Guest);
    stage!(direct_stream_guard: direct::stream_guard::Guest);
    stage!(prompt_glance: direct::prompt_glance::Guest);
    stage!(stream_glance: direct::stream_glance::Guest);

    fn look_up(&mut self, stage: StageKind, store: &mut Store<HostState>) -> wasmtime::Result<()> {
        match stage {
            StageKind::PromptGuard => {
                if self.blueprint.stages.prompt_glance.is_some() {
                    self.prompt_glance(store)?;
                }
                self.prompt_guard(store).map(|_| ())
            }
            StageKind::StreamGuard => {
                if self.blueprint.stages.stream_glance.is_some() {
                    self.stream_glance(store)?;
                }
                self.stream_guard(store).map(|_| ())
            }
            StageKind::Router => self.router(store).map(|_| ()),
            StageKind::ToolProvider => self.tool_provider(store).map(|_| ()),
            StageKind::Retriever => self.retriever(store).map(|_| ()),
            StageKind::OutputGuard => self.output_guard(store).map(|_| ()),
            StageKind::Memory => self.memory(store).map(|_| ()),
            StageKind::Observer => self.observer(store).map(|_| ()),
        }
    }
}
