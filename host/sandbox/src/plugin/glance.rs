//! A guard's first look at a stream's window (`stream-glance`) or a prompt (`prompt-glance`). It is asked for without a future, with the text
//! and hardly more, so it costs less than a call (`docs/decisions/0033`, 0035). Invariant: whatever becomes of a glance but an answer, the guard
//! is asked as ever.

use super::call::has_room;
use super::{Plugin, StreamPool};
use crate::bindings::tidegate::plugin::types as wit;
use crate::capability::for_line;
use crate::convert;
use crate::failure;
use crate::instance::Guests;
use crate::meter::EnterAgain;
use crate::pool::{Lease, Pool};
use crate::stage::{CallContext, CallError, Inspection, StageKind, Window};
use crate::stages::InspectWindow;
use crate::state::HostState;
use std::sync::Arc;
use std::time::Instant;
use tidegate_types::{Message, Part, Retention};
use wasmtime::Store;

/// Messages of a prompt that is asked about at a glance: each costs the guest a place of its memory, however short it is.
const MAX_MESSAGES: usize = 64;

/// Why there is no answer where one was asked for.
enum Failure {
    TakesLong,
    Failed(CallError),
}

/// One function of a guard's first look, with its input.
trait Glance {
    const STAGE: StageKind;
    type Raw;
    /// What there is to say; nothing where the guard has to be asked.
    type Out;

    fn enter(&self, store: &mut Store<HostState>, guests: &mut Guests) -> wasmtime::Result<Self::Raw>;
    fn check(&self, raw: Self::Raw) -> Result<Option<Self::Out>, String>;
}

impl Glance for Window<'_> {
    const STAGE: StageKind = StageKind::StreamGuard;
    type Raw = Option<u32>;
    type Out = Inspection;

    fn enter(&self, store: &mut Store<HostState>, guests: &mut Guests) -> wasmtime::Result<Option<u32>> {
        guests.stream_glance(store)?.call_glance(store, self.text, self.settled)
    }

    fn check(&self, raw: Option<u32>) -> Result<Option<Inspection>, String> {
        let Some(through) = raw else { return Ok(None) };
        let call = InspectWindow { carry: &[], window: self.clone() };
        Ok(Some(Inspection::pass(call.watermark(through)? as usize)))
    }
}

/// Who says what, in a prompt's order.
struct Said<'a>(Vec<(wit::RoleParam<'static>, &'a str)>);

impl<'a> Said<'a> {
    /// Of messages that are nothing but a text each, and not many.
    fn of(messages: &'a [Message]) -> Option<Self> {
        let said = |message: &'a Message| match &message.parts[..] {
            [Part::Text(text)] => Some((convert::role_param(&message.role), text.as_str())),
            _ => None,
        };
        let said = (messages.len() <= MAX_MESSAGES).then(|| messages.iter().map(said).collect());
        said.flatten().map(Self)
    }
}

impl Glance for Said<'_> {
    const STAGE: StageKind = StageKind::PromptGuard;
    type Raw = bool;
    type Out = ();

    fn enter(&self, store: &mut Store<HostState>, guests: &mut Guests) -> wasmtime::Result<bool> {
        guests.prompt_glance(store)?.call_glance_prompt(store, &self.0)
    }

    fn check(&self, raw: bool) -> Result<Option<()>, String> {
        Ok(raw.then_some(()))
    }
}

impl Plugin {
    /// Whether it has glances as a guard of this kind.
    pub fn exports_glance(&self, kind: StageKind) -> bool {
        match kind {
            StageKind::PromptGuard => self.blueprint.stages.prompt_glance.is_some(),
            StageKind::StreamGuard => self.blueprint.stages.stream_glance.is_some(),
            _ => false,
        }
    }

    /// Whether it is asked for them: it must be such that it may be entered on its caller's stack.
    pub fn is_asked_for_glances(&self, kind: StageKind) -> bool {
        self.exports_glance(kind) && self.blueprint.direct
    }

    /// What it says of a window at a glance; `None` where it has to be asked ([`Self::inspect_window_in`]). For windows with text that
    /// waits, which are not the last of their text, and of texts of which it remembers nothing.
    pub fn glance_in(&self, pool: &mut StreamPool, ctx: &CallContext, window: &Window<'_>) -> Option<Inspection> {
        if !self.may_glance(ctx, StageKind::StreamGuard) {
            return None;
        }
        self.answer_of(self.pool_in(pool, ctx), ctx, window)
    }

    /// Whether it says at a glance that it allows a prompt of these messages and finds nothing in them; else it has to be asked
    /// ([`Self::inspect_prompt`]).
    pub fn allows_at_a_glance(&self, ctx: &CallContext, messages: &[Message]) -> bool {
        let may_glance = self.may_glance(ctx, StageKind::PromptGuard);
        let Some(said) = may_glance.then(|| Said::of(messages)).flatten() else { return false };
        self.answer_of(&self.pool(ctx), ctx, &said).is_some()
    }

    /// As [`Self::glance_in`] for the tools of authors: of an instance that is made where none is idle, and whatever became of those
    /// before. What takes long has no answer.
    ///
    /// # Errors
    /// What a server logs.
    pub async fn glance(&self, ctx: &CallContext, window: &Window<'_>) -> Result<Option<Inspection>, CallError> {
        self.glance_alone(ctx, window).await
    }

    /// As [`Self::allows_at_a_glance`], in the same way.
    ///
    /// # Errors
    /// What a server logs.
    pub async fn glance_prompt(&self, ctx: &CallContext, messages: &[Message]) -> Result<bool, CallError> {
        let Some(said) = Said::of(messages) else { return Ok(false) };
        Ok(self.glance_alone(ctx, &said).await?.is_some())
    }

    async fn glance_alone<G: Glance>(&self, ctx: &CallContext, glance: &G) -> Result<Option<G::Out>, CallError> {
        if !self.is_asked_for_glances(G::STAGE) || !has_room() {
            return Ok(None);
        }
        let pool = self.pool(ctx);
        let until = Instant::now() + self.blueprint.limits.wall;
        let lease = pool.lease(&ctx.caller.tenant, ctx.caller.class, until).await?;
        match self.glance_of(lease, Instant::now(), glance) {
            Ok(said) => Ok(said),
            Err(Failure::TakesLong) => Ok(None),
            Err(Failure::Failed(why)) if is_of_others(&why) => Ok(None),
            Err(Failure::Failed(why)) => Err(why),
        }
    }

    /// Whether one is asked for of this request.
    fn may_glance(&self, ctx: &CallContext, kind: StageKind) -> bool {
        self.is_asked_for_glances(kind) && ctx.retention == Retention::Kept && has_room()
    }

    /// The answer of an instance that is idle, where it has one.
    fn answer_of<G: Glance>(&self, pool: &Arc<Pool>, ctx: &CallContext, glance: &G) -> Option<G::Out> {
        if pool.in_full.is_taken() {
            return None;
        }
        let lease = pool.lease_idle()?;
        match self.glance_of(lease, ctx.began.unwrap_or_else(Instant::now), glance) {
            Ok(said) => return said,
            // Nor does the call in full hold the thread as long once more.
            Err(Failure::TakesLong) => pool.on_fibers.begin(),
            Err(Failure::Failed(why)) if is_of_others(&why) => return None,
            Err(Failure::Failed(why)) => {
                let why = why.to_string();
                tracing::warn!(request = %ctx.request_id, "at a glance {}; it is asked in full", for_line(&why));
            }
        }
        pool.in_full.begin();
        None
    }

    /// Asks an instance, which serves others then, but where it failed.
    fn glance_of<G: Glance>(
        &self,
        mut lease: Lease<'_>,
        began: Instant,
        glance: &G,
    ) -> Result<Option<G::Out>, Failure> {
        let _running = self.blueprint.clock.running();
        let cpu = self.blueprint.call_cpu(G::STAGE);
        lease.instance.begin(cpu, began);
        let instance = &mut *lease.instance;
        let store = &mut instance.store;
        store.data_mut().meter.enter_directly();
        let said = glance.enter(store, &mut instance.guests);
        store.data_mut().settle();
        let bad = |message: String| Failure::Failed(CallError::BadResult { plugin: self.name().into(), message });
        let said = match said {
            Ok(raw) => glance.check(raw).map_err(bad)?,
            Err(error) => {
                return Err(match error.downcast_ref() {
                    Some(EnterAgain::TakesLong) => Failure::TakesLong,
                    Some(EnterAgain::Acts) => bad("it logs or counts".into()),
                    None => Failure::Failed(failure::of_call(&error, store.data(), cpu)),
                });
            }
        };
        // Without an answer the call in full follows, which counts.
        lease.instance.calls += u32::from(said.is_some());
        lease.keep(began);
        Ok(said)
    }
}

/// As of calls: who asks about what, and what others use, is not the guard's doing.
fn is_of_others(why: &CallError) -> bool {
    matches!(why, CallError::Memory { .. } | CallError::Full { .. })
}
