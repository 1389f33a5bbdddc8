//! A loaded plugin, and the one path that every call takes: lease an instance of the caller's tenant, enter the guest
//! under a wall and a CPU limit, name the failure or check the result, and keep the instance only after a call that
//! went well, and where it may keep what it has seen. What differs between stages is in `stages/`.

use crate::blueprint::Blueprint;
use crate::capability::Namespace;
use crate::failure;
use crate::instance::{Instance, KnownCaller};
use crate::load;
use crate::pool::{Lease, Makings, Pool};
use crate::pools::Pools;
use crate::registry::Work;
use crate::sandbox::Core;
use crate::stage::{
    CallContext, CallError, Candidate, Chunk, Decision, Descriptor, Exchange, Inspection, MemoryItem, Output, Prompt,
    Query, Question, RouteRequest, StageKind, Summary, VectorAccess, Verdict, Window,
};
use crate::stages::{
    Answer, CallTool, Forget, InspectOutput, InspectOutside, InspectPrompt, InspectWindow, ListTools, OnComplete,
    Recall, Remember, Retrieve, Route, StageCall,
};
use crate::state::{HostState, Phase};
use crate::within::{Within, within};
use std::collections::BTreeSet;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tidegate_types::{Message, Retention, TenantId, ToolCall, ToolDef, ToolOutcome};

/// Of its time a call that waited for an instance for more than this part, one in so many, had too little. It says nothing of the
/// plugin where others were answered meanwhile.
const QUEUED: u32 = 10;

/// A loaded plugin. Its methods are the stages of the contract; calls may run side by side.
pub struct Plugin {
    core: Arc<Core>,
    blueprint: Arc<Blueprint>,
    descriptor: Descriptor,
    stages: BTreeSet<StageKind>,
    capabilities: BTreeSet<&'static str>,
    pub(crate) pools: Arc<Pools>,
    /// What is made in them beside calls; ends with the plugin.
    makings: Arc<Makings>,
    /// Whose pool it is that tenants share.
    everyone: TenantId,
    most_cpu_ns: AtomicU64,
}

/// Where the windows of one text are judged, from the first one on. Begins empty.
#[derive(Default)]
pub struct StreamPool(Option<Arc<Pool>>);

impl std::fmt::Debug for StreamPool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("StreamPool")
    }
}

impl Plugin {
    pub(crate) fn new(
        core: Arc<Core>,
        blueprint: Arc<Blueprint>,
        descriptor: Descriptor,
        capabilities: BTreeSet<&'static str>,
    ) -> Self {
        let stages = blueprint.stages.kinds();
        let pools = Arc::default();
        core.registry.enroll(&pools);
        blueprint.clock.look_in_time_for(blueprint.least_cpu());
        let makings = Arc::default();
        let (everyone, most_cpu_ns) = (TenantId::new("*"), AtomicU64::new(0));
        Self { core, blueprint, descriptor, stages, capabilities, pools, makings, everyone, most_cpu_ns }
    }

    /// Its name in the config.
    pub fn name(&self) -> &str {
        &self.blueprint.name
    }

    /// What it says of itself.
    pub fn descriptor(&self) -> &Descriptor {
        &self.descriptor
    }

    /// The granted capabilities that its component imports (`kv`, `http`, ...).
    pub fn capabilities(&self) -> &BTreeSet<&'static str> {
        &self.capabilities
    }

    /// Whether it may ask others for something (`http`, `models`): what it sees may leave the machine.
    pub fn asks_others(&self) -> bool {
        load::asks_others(&self.capabilities)
    }

    /// Whether something of what it sees may go on from it: to others, which a database elsewhere is too, or into what it keeps.
    pub fn may_pass_on(&self) -> bool {
        let puts = || self.blueprint.grants.vectors.values().any(|access| *access == VectorAccess::Write);
        let elsewhere = || self.capabilities.contains("vectors") && self.core.config.vectors.waits();
        self.asks_others() || self.capabilities.contains("kv") || puts() || elsewhere()
    }

    /// Whether its calls may wait for what others answer: those that it asks, the database that has its `kv`, or a folder.
    pub fn waits(&self) -> bool {
        self.blueprint.work == Work::Wait
    }

    /// Its live instances of one project, or tenant, at most: more calls at once wait for each other.
    pub fn max_instances(&self) -> usize {
        self.blueprint.max_instances()
    }

    /// The stages that may be called: those it exports, less those that the config leaves out.
    pub fn exported_stages(&self) -> &BTreeSet<StageKind> {
        &self.stages
    }

    /// Whether its instances begin with what `configure` has built, without a call of it.
    pub fn starts_configured(&self) -> bool {
        self.blueprint.is_configured
    }

    /// The most CPU time that one call has used since this was asked last, as its limit counts it: one that is over within a
    /// millisecond or two has used none. For the tools of authors.
    pub fn take_most_cpu(&self) -> Duration {
        Duration::from_nanos(self.most_cpu_ns.swap(0, Ordering::Relaxed))
    }

    /// Names that it does not declare and has counted by since this was asked last, some of them where there are many: known in
    /// the world of a test alone ([`crate::Fixed`]).
    pub fn take_undeclared(&self) -> BTreeSet<String> {
        self.blueprint.undeclared.as_ref().map(|undeclared| undeclared.take()).unwrap_or_default()
    }

    /// The most linear memory, tables included, that one of its instances has had. For the tools of authors.
    pub fn memory_peak(&self) -> usize {
        self.blueprint.memory_peak.as_ref().map_or(0, |peak| peak.load(Ordering::Relaxed))
    }

    fn note_cpu(&self, used: Duration) {
        // Nothing was looked at in most calls, and what is counted by several threads is left alone then.
        if !used.is_zero() {
            self.most_cpu_ns.fetch_max(used.as_nanos() as u64, Ordering::Relaxed);
        }
    }

    /// Lets time pass in the world of a test ([`crate::Fixed`]); the machine's own cannot be hurried.
    pub fn pass_time(&self, time: Duration) {
        if let Some(fixed) = &self.blueprint.fixed {
            fixed.passed_ms.fetch_add(time.as_millis() as u64, Ordering::Relaxed);
        }
    }

    /// Makes an instance, configures it and drops it again: for measuring what one costs.
    pub async fn make_instance(&self) -> Result<(), CallError> {
        let nobody = Namespace::of_tenant(self.blueprint.name.clone(), TenantId::new(""));
        let _trial = self.core.trials.acquire().await;
        let _running = self.blueprint.clock.running();
        let state = HostState::new(self.blueprint.clone(), nobody, Phase::Serve);
        Instance::configured(state, None).await.map(|_| ())
    }

    /// `prompt-guard.inspect-prompt`. Messages that it puts have ids below the plugin's name: `name/...`.
    pub async fn inspect_prompt(&self, ctx: &CallContext, prompt: Prompt<'_>) -> Result<Verdict, CallError> {
        self.call(ctx, InspectPrompt { prompt, plugin: self.name() }).await
    }

    /// The same of a message from outside, alone. A rewrite is of its texts, or is the one edit that drops it.
    pub async fn inspect_outside(&self, ctx: &CallContext, message: &Message) -> Result<Verdict, CallError> {
        self.call(ctx, InspectOutside { message, plugin: self.name() }).await
    }

    /// `stream-guard.inspect-window`; `carry` is what the guard returned for the window before, or empty.
    pub async fn inspect_window(
        &self,
        ctx: &CallContext,
        carry: &[u8],
        window: Window<'_>,
    ) -> Result<Inspection, CallError> {
        self.call(ctx, InspectWindow { carry, window }).await
    }

    /// As [`Self::inspect_window`] for the windows of one text, whose instances are looked up once.
    pub async fn inspect_window_in(
        &self,
        pool: &mut StreamPool,
        ctx: &CallContext,
        carry: &[u8],
        window: Window<'_>,
    ) -> Result<Inspection, CallError> {
        pool.0.take_if(|pool| !pool.serves(&self.blueprint, self.owner(ctx)));
        let pool = pool.0.get_or_insert_with(|| self.pool(ctx));
        self.call_in(pool, ctx, InspectWindow { carry, window }).await
    }

    /// `router.route`
    pub async fn route(
        &self,
        ctx: &CallContext,
        request: RouteRequest<'_>,
        candidates: &[Candidate],
    ) -> Result<Decision, CallError> {
        self.call(ctx, Route { request, candidates }).await
    }

    /// `tool-provider.list-tools`
    pub async fn list_tools(&self, ctx: &CallContext) -> Result<Vec<ToolDef>, CallError> {
        self.call(ctx, ListTools).await
    }

    /// `tool-provider.call-tool`
    pub async fn call_tool(&self, ctx: &CallContext, call: &ToolCall) -> Result<ToolOutcome, CallError> {
        self.call(ctx, CallTool(call)).await
    }

    /// `retriever.retrieve`
    pub async fn retrieve(&self, ctx: &CallContext, query: &Query) -> Result<Vec<Chunk>, CallError> {
        self.call(ctx, Retrieve(query)).await
    }

    /// `output-guard.inspect-output`
    pub async fn inspect_output(&self, ctx: &CallContext, output: Output<'_>) -> Result<Verdict, CallError> {
        self.call(ctx, InspectOutput(output)).await
    }

    /// `memory.recall`
    pub async fn recall(&self, ctx: &CallContext, question: Question<'_>) -> Result<Vec<MemoryItem>, CallError> {
        self.call(ctx, Recall(question)).await
    }

    /// `memory.remember`
    pub async fn remember(&self, ctx: &CallContext, exchange: Exchange<'_>) -> Result<Vec<MemoryItem>, CallError> {
        self.call(ctx, Remember(exchange)).await
    }

    /// `memory.forget`
    pub async fn forget(&self, ctx: &CallContext, ids: &[&str]) -> Result<u32, CallError> {
        self.call(ctx, Forget(ids)).await
    }

    /// `observer.on-complete`
    pub async fn on_complete(&self, ctx: &CallContext, summary: Summary<'_>) -> Result<(), CallError> {
        self.call(ctx, OnComplete(summary)).await
    }

    async fn call<C: StageCall>(&self, ctx: &CallContext, call: C) -> Result<C::Out, CallError> {
        let pool = self.pool(ctx);
        self.call_in(&pool, ctx, call).await
    }

    async fn call_in<C: StageCall>(&self, pool: &Arc<Pool>, ctx: &CallContext, call: C) -> Result<C::Out, CallError> {
        if !self.stages.contains(&C::STAGE) {
            let message = format!("the stage {} is not exported or not configured", C::STAGE.as_str());
            return Err(CallError::Plugin { plugin: self.name().into(), case: "unsupported", message });
        }
        let wall = ctx.deadline.min(self.blueprint.limits.wall);
        let began = ctx.began.unwrap_or_else(Instant::now);
        let until = began + wall;
        let retention = retention::<C>(ctx);
        let mut lease = pool.lease(&ctx.caller.tenant, ctx.caller.class, until).await?;
        let _running = self.blueprint.clock.running();
        let until = until + lease.made_in;
        let entered = if lease.is_late { Instant::now() } else { began };
        let left = if lease.is_late { until.saturating_duration_since(entered) } else { wall };
        lease.instance.restart(self.blueprint.call_cpu(C::STAGE), entered);
        let Within { answer, waited } = self.enter(&mut lease.instance, ctx, &call, until, left).await;
        self.note_cpu(lease.instance.store.data().meter.used());
        let was_queued = wall.saturating_sub(left) > wall / QUEUED;
        let too_late = || match was_queued && pool.has_answered_since(began) {
            true => pool.busy(),
            false => CallError::Deadline { plugin: self.name().into(), clock: "wall", limit: wall },
        };
        let answer = answer.ok_or_else(too_late);
        let said = |error| if retention == Retention::Nothing { failure::without_words(error) } else { error };
        let settle = |lease: Lease<'_>| {
            // A call that waited for nothing has just begun.
            let now = if waited || lease.is_late { Instant::now() } else { began };
            match retention {
                Retention::Kept => lease.keep(now),
                // Its memory has what it saw.
                Retention::Nothing => lease.end(now),
            }
        };
        lease.instance.store.data_mut().settle();
        match answer? {
            Ok(Ok(raw)) => {
                let bad = |message| said(CallError::BadResult { plugin: self.name().into(), message });
                let checked = call.check(raw, &self.descriptor).map_err(bad)?;
                settle(lease);
                Ok(checked)
            }
            Ok(Err(error)) => {
                settle(lease);
                Err(said(failure::of_plugin(self.name(), error)))
            }
            Err(error) => {
                Err(said(failure::of_call(&error, lease.instance.store.data(), self.blueprint.call_cpu(C::STAGE))))
            }
        }
    }

    /// Runs the guest until it answers, fails or is out of time, of which it has `left`.
    async fn enter<C: StageCall>(
        &self,
        instance: &mut Instance,
        ctx: &CallContext,
        call: &C,
        until: Instant,
        left: Duration,
    ) -> Within<Answer<C::Raw>> {
        let Instance { store, guests, caller, .. } = instance;
        let state = store.data_mut();
        // Mostly those of the call before: what is counted by several threads is left alone then.
        if state.request.as_ref() != Some(&ctx.request_id) {
            state.request = Some(ctx.request_id.clone());
        }
        if state.tenant != ctx.caller.tenant {
            state.serve(&ctx.caller.tenant);
        }
        state.until = until;
        state.retention = retention::<C>(ctx);
        if !self.blueprint.grants.models.is_empty() {
            state.caller = Some(Arc::clone(&ctx.caller));
            state.hops = ctx.hops;
        }
        let context = crate::bindings::tidegate::plugin::types::Context {
            request_id: ctx.request_id.as_str(),
            caller: self.pseudonym(caller, ctx),
            deadline_ms: left.as_millis().try_into().unwrap_or(u32::MAX),
            streaming: ctx.streaming,
            attrs: &[],
        };
        within(until, pin!(call.enter(store, guests, context))).await
    }

    /// Whose instances serve a call: the caller's own, or everyone's.
    fn owner<'a>(&'a self, ctx: &'a CallContext) -> &'a TenantId {
        if self.blueprint.shared { &self.everyone } else { ctx.caller.owner() }
    }

    /// The pool of a call's owner. What projects hold is of their tenant's share: else a tenant would have as many shares as
    /// projects.
    pub(crate) fn pool(&self, ctx: &CallContext) -> Arc<Pool> {
        let owner = self.owner(ctx);
        self.pools.get_or_make(owner, || {
            let share = if self.blueprint.shared { &self.everyone } else { &ctx.caller.tenant };
            let plugin = self.blueprint.name.clone();
            let namespace = Namespace { plugin, owner: owner.clone(), share: share.clone() };
            Pool::new(self.blueprint.clone(), namespace, &self.makings)
        })
    }

    /// Who calls, as the guest sees it: the same for every request of one key, or of one person behind an issuer's tokens,
    /// telling nothing else.
    fn pseudonym<'a>(&self, last: &'a mut Option<KnownCaller>, ctx: &CallContext) -> &'a str {
        let caller = &ctx.caller;
        if !last.as_ref().is_some_and(|known| known.is(caller)) {
            let mut digest = blake3::Hasher::new_keyed(&self.core.pseudonym_key);
            let parts = [self.name(), caller.tenant.as_str(), &caller.key_name];
            for part in parts.into_iter().chain(caller.user.as_deref()) {
                digest.update(&(part.len() as u64).to_le_bytes()).update(part.as_bytes());
            }
            let pseudonym = digest.finalize().to_hex()[..16].to_owned();
            *last = Some(KnownCaller { key_name: caller.key_name.clone(), user: caller.user.clone(), pseudonym });
        }
        last.as_ref().map_or("", |known| &known.pseudonym)
    }
}

/// What holds for a stage's call. Observers see nothing of the content: they may keep what they see.
fn retention<C: StageCall>(ctx: &CallContext) -> Retention {
    if C::STAGE.sees_content() { ctx.retention } else { Retention::Kept }
}

impl Drop for Plugin {
    fn drop(&mut self) {
        self.core.registry.leave(Arc::clone(&self.pools));
        self.core.sweeper.wake();
    }
}

impl std::fmt::Debug for Plugin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Plugin").field("name", &self.name()).field("stages", &self.stages).finish_non_exhaustive()
    }
}

#[cfg(test)]
pub(crate) mod tests;
