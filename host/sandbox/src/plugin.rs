//! A loaded plugin. Read next: `plugin/call.rs`, the one path that every call takes; what differs between stages is in
//! `stages/`.

mod call;
mod glance;

use crate::blueprint::Blueprint;
use crate::capability::Namespace;
use crate::instance::Instance;
use crate::load;
use crate::pool::{Makings, Pool};
use crate::pools::Pools;
use crate::registry::Work;
use crate::sandbox::Core;
use crate::stage::{
    CallContext, CallError, Candidate, Chunk, Decision, Descriptor, Exchange, Inspection, MemoryItem, Output, Prompt,
    Query, Question, RouteRequest, StageKind, Summary, VectorAccess, Verdict, Window,
};
use crate::stages::{
    CallTool, Forget, InspectOutput, InspectOutside, InspectPrompt, InspectWindow, ListTools, OnComplete, Recall,
    Remember, Retrieve, Route,
};
use crate::state::{HostState, Phase};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tidegate_types::{Message, TenantId, ToolCall, ToolDef, ToolOutcome};

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
        let everyone = TenantId::new("*");
        let most_cpu_ns = AtomicU64::new(0);
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

    /// CPU time that one call of a stage may take.
    pub fn call_cpu(&self, stage: StageKind) -> Duration {
        self.blueprint.call_cpu(stage)
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
        let pool = self.pool_in(pool, ctx);
        self.call_in(pool, ctx, InspectWindow { carry, window }).await
    }

    fn pool_in<'p>(&self, pool: &'p mut StreamPool, ctx: &CallContext) -> &'p Arc<Pool> {
        pool.0.take_if(|pool| !pool.serves(&self.blueprint, self.owner(ctx)));
        pool.0.get_or_insert_with(|| self.pool(ctx))
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
