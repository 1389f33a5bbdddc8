//! The places of one call's requests, which bound how many a plugin has at once. Tenants share them as they share instances
//! ([`Slots`]): whoever asks a service that hangs leaves each of the others its share.
//!
//! Invariant: each request that is on its way has a place, and so has each call that keeps bodies, of which it keeps no more
//! bytes than its instance could take. What a request leaves is for the next one of its call, and is given back when the call
//! has all its answers: else any number of calls, each with bodies, would wait for one slow answer.

use crate::capability::CapabilityError;
use crate::slots::{Slot, Slots};
use parking_lot::Mutex;
use std::sync::Arc;
use tidegate_fair::Owner;
use tokio::sync::Semaphore;

/// The places of one call. Dropping it gives them back.
pub(super) struct Places {
    slots: Arc<Slots>,
    owner: Owner,
    held: Mutex<Vec<Slot>>,
    /// How many of those no request has.
    free: Semaphore,
    /// Bytes of bodies that the call may have.
    most_bytes: usize,
    kept_bytes: Mutex<usize>,
}

/// A request's place; dropped, it is another's of the same call.
pub(super) struct Place<'p>(&'p Semaphore);

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.add_permits(1);
    }
}

impl Places {
    /// Of a call by `owner`, which has none yet, and whose instance could take so many bytes of bodies.
    pub(super) fn new(slots: Arc<Slots>, owner: Owner, most_bytes: usize) -> Self {
        let (held, kept_bytes) = (Mutex::default(), Mutex::default());
        Self { slots, owner, held, free: Semaphore::new(0), most_bytes, kept_bytes }
    }

    /// Waits for a place: one that its call has, or a new one, whichever is there first. Dropping the future gives up both.
    pub(super) async fn place(&self) -> Option<Place<'_>> {
        let slot = tokio::select! {
            biased;
            Ok(own) = self.free.acquire() => {
                own.forget();
                None
            }
            slot = self.slot() => Some(slot?),
        };
        self.held.lock().extend(slot);
        Some(Place(&self.free))
    }

    /// Keeps a body for the call, where its instance could take it beside the others.
    pub(super) fn keep(&self, body: Vec<u8>) -> Result<Vec<u8>, CapabilityError> {
        let mut kept_bytes = self.kept_bytes.lock();
        let (all, most) = (kept_bytes.saturating_add(body.len()), self.most_bytes);
        if all > most {
            let message = format!(
                "the bodies that one call of `http` brings have {all} bytes with this one; at most {most}, which is all that an \
                 instance has (limits.memory_mib): ask for less, or for fewer at once"
            );
            return Err(CapabilityError::Invalid(message));
        }
        *kept_bytes = all;
        Ok(body)
    }

    async fn slot(&self) -> Option<Slot> {
        match self.slots.take_or_queue(&self.owner) {
            Ok(slot) => Some(slot),
            Err(waiting) => waiting.await.ok(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slots::share_of;
    use futures_util::FutureExt;
    use tidegate_types::TenantId;

    fn of(slots: &Arc<Slots>, tenant: &str) -> Places {
        Places::new(slots.clone(), share_of(TenantId::new(tenant)), 10)
    }

    #[tokio::test]
    async fn a_call_passes_a_place_on_and_keeps_it_until_it_is_over() {
        let slots = Slots::new(1);
        let (call, next) = (of(&slots, "a"), of(&slots, "a"));
        let first = call.place().await.unwrap();
        let (mut second, mut of_next) = (Box::pin(call.place()), Box::pin(next.place()));
        assert!(second.as_mut().now_or_never().is_none() && of_next.as_mut().now_or_never().is_none());
        drop(first);
        drop(second.as_mut().now_or_never().flatten().expect("what the first has left"));
        assert!(of_next.as_mut().now_or_never().is_none(), "the call may have bodies");
        assert_eq!(slots.held(), 1);
        drop(second);
        drop(call);
        assert!(of_next.now_or_never().flatten().is_some());
    }

    #[test]
    fn a_call_keeps_no_more_bytes_than_its_instance_could_take() {
        let call = of(&Slots::new(1), "a");
        assert_eq!(call.keep(vec![1; 6]), Ok(vec![1; 6]));
        let Err(CapabilityError::Invalid(why)) = call.keep(vec![1; 5]) else { panic!("11 of 10") };
        assert!(why.contains("11 bytes with this one; at most 10, ") && why.contains("limits.memory_mib"), "{why}");
        assert_eq!(call.keep(vec![1; 4]), Ok(vec![1; 4]), "what was not kept takes nothing");
        assert!(call.keep(vec![1]).is_err());
    }

    #[tokio::test]
    async fn who_gives_up_loses_no_place() {
        let slots = Slots::new(1);
        let (call, next) = (of(&slots, "a"), of(&slots, "a"));
        let place = call.place().await.unwrap();
        let mut given_up = Box::pin(next.place());
        assert!(given_up.as_mut().now_or_never().is_none());
        drop(place);
        drop(call);
        drop(given_up);
        assert_eq!(slots.held(), 0, "it came to who had gone");
        assert!(next.place().now_or_never().flatten().is_some());
    }
}
