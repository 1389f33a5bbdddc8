//! The one path that every call takes: lease an instance of the caller's tenant, enter the guest under a wall and a CPU limit,
//! name the failure or check the result, and keep the instance only after a call that went well, and where it may keep what
//! it has seen.
//!
//! A small guest that begins configured, and so asks the host for nothing that it would wait for, is entered on the caller's
//! own stack, and not on a fiber's, which is cold, as is the way there and back. There it cannot give the thread to others: what
//! takes longer than a tick of the clock, or is about to do what cannot be undone, ends there and is entered again, in another
//! instance and on a fiber. So are the next calls of the same owner (`docs/decisions/0032`).

use super::Plugin;
use crate::bindings::tidegate::plugin::types as wit;
use crate::capability::Namespace;
use crate::engine::FIBER_STACK;
use crate::failure;
use crate::instance::{Instance, KnownCaller};
use crate::meter::EnterAgain;
use crate::pool::{Lease, Pool};
use crate::stage::{CallContext, CallError};
use crate::stages::{Answer, StageCall};
use crate::within::{Within, within};
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidegate_types::{Retention, TenantId};

/// Of its time a call that waited for an instance for more than this part, one in so many, had too little. It says nothing of the
/// plugin where others were answered meanwhile.
const QUEUED: u32 = 10;
/// Of what a guest has used that is entered again so much is not counted: it is for nothing, and not the guest's choice. What is more
/// counts, or it would end that much later than its limit is.
const NOT_COUNTED: Duration = Duration::from_millis(8);

/// Why an attempt has no answer.
enum NoAnswer<'p> {
    Failed(CallError),
    /// It has to be made again, on a fiber and in another instance than this one.
    Again(Lease<'p>, Again),
}

impl From<CallError> for NoAnswer<'_> {
    fn from(error: CallError) -> Self {
        Self::Failed(error)
    }
}

/// What is known of an attempt that is made again.
#[derive(Clone, Copy)]
struct Again {
    /// CPU time that counts.
    used: Duration,
    was_queued: bool,
}

/// How long a call may take.
#[derive(Clone, Copy)]
struct Wall {
    began: Instant,
    limit: Duration,
}

impl Plugin {
    pub(super) async fn call<C: StageCall>(&self, ctx: &CallContext, call: C) -> Result<C::Out, CallError> {
        let pool = self.pool(ctx);
        self.call_in(&pool, ctx, call).await
    }

    pub(super) async fn call_in<C: StageCall>(
        &self,
        pool: &Arc<Pool>,
        ctx: &CallContext,
        call: C,
    ) -> Result<C::Out, CallError> {
        if !self.stages.contains(&C::STAGE) {
            let message = format!("the stage {} is not exported or not configured", C::STAGE.as_str());
            return Err(CallError::Plugin { plugin: self.name().into(), case: "unsupported", message });
        }
        let began = ctx.began.unwrap_or_else(Instant::now);
        let wall = Wall { began, limit: ctx.deadline.min(self.blueprint.limits.wall) };
        let mut lease = pool.lease(&ctx.caller.tenant, ctx.caller.class, began + wall.limit).await?;
        let mut again = None;
        loop {
            match self.attempt(lease, ctx, &call, wall, again).await {
                Ok(answer) => return Ok(answer),
                Err(NoAnswer::Failed(error)) => return Err(error),
                Err(NoAnswer::Again(left, what)) => {
                    // Others have waited for the thread, and this call may wait no more.
                    tokio::task::yield_now().await;
                    if Instant::now() >= began + wall.limit + left.made_in {
                        return Err(self.too_late(left.pool(), wall, what.was_queued));
                    }
                    // Boxed: it is rare, and large.
                    lease = Box::pin(left.renew()).await?;
                    again = Some(what);
                }
            }
        }
    }

    fn too_late(&self, pool: &Pool, Wall { began, limit }: Wall, was_queued: bool) -> CallError {
        match was_queued && pool.has_answered_since(began) {
            true => pool.busy(),
            false => CallError::Deadline { plugin: self.name().into(), clock: "wall", limit },
        }
    }

    /// One way through an instance; `again` where it is not the first.
    async fn attempt<'p, C: StageCall>(
        &self,
        mut lease: Lease<'p>,
        ctx: &CallContext,
        call: &C,
        wall: Wall,
        again: Option<Again>,
    ) -> Result<C::Out, NoAnswer<'p>> {
        let Wall { began, limit } = wall;
        let retention = retention::<C>(ctx);
        let _running = self.blueprint.clock.running();
        let until = began + limit + lease.made_in;
        let entered = if lease.is_late { Instant::now() } else { began };
        let left = if lease.is_late { until.saturating_duration_since(entered) } else { limit };
        let cpu = self.blueprint.call_cpu(C::STAGE);
        lease.instance.restart(cpu, entered);
        let pool = lease.pool();
        let meter = &mut lease.instance.store.data_mut().meter;
        match again {
            None if self.is_direct::<C>(pool) => meter.enter_directly(),
            None => {}
            Some(Again { used, .. }) => meter.go_on_from(used),
        }
        let Within { answer, waited } = self.enter(&mut lease.instance, ctx, call, until, left).await;
        let carried = again.map_or(Duration::ZERO, |again| again.used);
        self.note_cpu(lease.instance.store.data().meter.used().saturating_sub(carried));
        let was_queued = again.map_or(limit.saturating_sub(left) > limit / QUEUED, |again| again.was_queued);
        let answer = answer.ok_or_else(|| self.too_late(lease.pool(), wall, was_queued))?;
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
        match answer {
            Ok(Ok(raw)) => {
                let bad = |message| said(CallError::BadResult { plugin: self.name().into(), message });
                let checked = call.check(raw, &self.descriptor).map_err(bad)?;
                settle(lease);
                Ok(checked)
            }
            Ok(Err(error)) => {
                settle(lease);
                Err(said(failure::of_plugin(self.name(), error)).into())
            }
            Err(error) if error.is::<EnterAgain>() => {
                lease.pool().on_fibers.begin();
                let used = lease.instance.store.data_mut().meter.end_directly().saturating_sub(NOT_COUNTED);
                Err(NoAnswer::Again(lease, Again { used, was_queued }))
            }
            Err(error) => Err(said(failure::of_call(&error, lease.instance.store.data(), cpu)).into()),
        }
    }

    /// Whether the first attempt at a call is made on this stack.
    fn is_direct<C: StageCall>(&self, pool: &Pool) -> bool {
        C::DIRECT.is_some() && self.blueprint.direct && !pool.on_fibers.is_taken() && has_room()
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
        let is_direct = state.meter.is_direct();
        let context = wit::Context {
            request_id: ctx.request_id.as_str(),
            caller: self.pseudonym(caller, ctx),
            deadline_ms: left.as_millis().try_into().unwrap_or(u32::MAX),
            streaming: ctx.streaming,
            attrs: &[],
        };
        if let Some(enter) = C::DIRECT.filter(|_| is_direct) {
            return Within { answer: Some(enter(call, store, guests, context)), waited: false };
        }
        within(until, pin!(call.enter(store, guests, context))).await
    }

    /// Whose instances serve a call: the caller's own, or everyone's.
    pub(super) fn owner<'a>(&'a self, ctx: &'a CallContext) -> &'a TenantId {
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

/// Whether as much is left of this stack as a fiber has.
pub(super) fn has_room() -> bool {
    stacker::remaining_stack().is_some_and(|left| left >= FIBER_STACK)
}

/// What holds for a stage's call. Observers see nothing of the content: they may keep what they see.
fn retention<C: StageCall>(ctx: &CallContext) -> Retention {
    if C::STAGE.sees_content() { ctx.retention } else { Retention::Kept }
}
