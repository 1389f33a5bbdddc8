//! A stream guard's first look (`stream-glance`). It is asked for without a future, with the text and one number, so it costs less than a call
//! (`docs/decisions/0033`). Invariant: whatever becomes of a glance but an answer, the guard is asked as ever.

use super::call::{counts_down, has_room};
use super::{Plugin, StreamPool};
use crate::capability::for_line;
use crate::failure;
use crate::meter::EnterAgain;
use crate::pool::Lease;
use crate::stage::{CallContext, CallError, Inspection, StageKind, Window};
use crate::stages::InspectWindow;
use std::sync::atomic::Ordering;
use std::time::Instant;
use tidegate_types::Retention;

/// Windows about which a guard is asked in full behind a glance that failed or took long: no text can have more of it.
const IN_FULL: u32 = 1_000;

/// Why there is no answer where one was asked for.
enum Failure {
    TakesLong,
    Failed(CallError),
}

impl Plugin {
    /// Whether it has glances.
    pub fn exports_glance(&self) -> bool {
        self.blueprint.stages.stream_glance.is_some()
    }

    /// Whether it is asked for them: it must be such that it may be entered on its caller's stack.
    pub fn is_asked_for_glances(&self) -> bool {
        self.exports_glance() && self.blueprint.direct
    }

    /// What it says of a window at a glance; `None` where it has to be asked ([`Self::inspect_window_in`]). For windows with text that
    /// waits, which are not the last of their text, and of texts of which it remembers nothing.
    pub fn glance_in(&self, pool: &mut StreamPool, ctx: &CallContext, window: &Window<'_>) -> Option<Inspection> {
        let may_keep = ctx.retention == Retention::Kept;
        if !self.is_asked_for_glances() || !may_keep || counts_down(&self.in_full) || !has_room() {
            return None;
        }
        let lease = self.pool_in(pool, ctx).lease_idle()?;
        match self.glance_of(lease, ctx.began.unwrap_or_else(Instant::now), window) {
            Ok(said) => return said,
            Err(Failure::TakesLong) => {}
            // As of calls: who asks about what, and what others use, is not its doing.
            Err(Failure::Failed(CallError::Memory { .. } | CallError::Full { .. })) => return None,
            Err(Failure::Failed(why)) => {
                let why = why.to_string();
                tracing::warn!(request = %ctx.request_id, "at a glance {}; it is asked in full", for_line(&why));
            }
        }
        self.in_full.store(IN_FULL, Ordering::Relaxed);
        None
    }

    /// The same for the tools of authors: of an instance that is made where none is idle, and whatever became of those before. What takes
    /// long has no answer.
    ///
    /// # Errors
    /// What a server logs.
    pub async fn glance(&self, ctx: &CallContext, window: &Window<'_>) -> Result<Option<Inspection>, CallError> {
        if !self.is_asked_for_glances() || !has_room() {
            return Ok(None);
        }
        let pool = self.pool(ctx);
        let until = Instant::now() + self.blueprint.limits.wall;
        let lease = pool.lease(&ctx.caller.tenant, ctx.caller.class, until).await?;
        match self.glance_of(lease, Instant::now(), window) {
            Ok(said) => Ok(said),
            Err(Failure::TakesLong) => Ok(None),
            Err(Failure::Failed(why)) => Err(why),
        }
    }

    /// Asks an instance, which serves others then, but where it failed.
    fn glance_of(
        &self,
        mut lease: Lease<'_>,
        began: Instant,
        window: &Window<'_>,
    ) -> Result<Option<Inspection>, Failure> {
        let _running = self.blueprint.clock.running();
        let cpu = self.blueprint.call_cpu(StageKind::StreamGuard);
        lease.instance.begin(cpu, began);
        let instance = &mut *lease.instance;
        let store = &mut instance.store;
        store.data_mut().meter.enter_directly();
        let guest = instance.guests.stream_glance(store);
        let said = guest.and_then(|guest| guest.call_glance(&mut *store, window.text, window.settled));
        store.data_mut().settle();
        let bad = |message: String| Failure::Failed(CallError::BadResult { plugin: self.name().into(), message });
        let said = match said {
            Ok(None) => None,
            Ok(Some(through)) => {
                let call = InspectWindow { carry: &[], window: window.clone() };
                Some(Inspection::pass(call.watermark(through).map_err(bad)? as usize))
            }
            Err(error) => {
                return Err(match error.downcast_ref() {
                    Some(EnterAgain::TakesLong) => Failure::TakesLong,
                    Some(EnterAgain::Acts) => bad("it logs or counts".into()),
                    None => Failure::Failed(failure::of_call(&error, store.data(), cpu)),
                });
            }
        };
        lease.keep(began);
        Ok(said)
    }
}
