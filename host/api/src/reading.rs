//! Reading large bodies. What is small is read where it arrived; the tree of a large one takes milliseconds to build, which
//! the other requests of a connection's thread do not wait for: it is long work, which has turns (`tidegate-turns`).

use crate::receive::Room;
use bytes::Bytes;
use tidegate_turns::in_turn;
use tidegate_types::Reject;

/// Read where it arrived: that takes about a millisecond at most.
const SMALL_BYTES: usize = 256 << 10;

/// What `parse` makes of a body. One that waits for its turn takes as much room as one that arrives.
pub(crate) async fn read<T, F>(room: Room<'_>, body: Bytes, parse: F) -> Result<T, Reject>
where
    T: Send + 'static,
    F: FnOnce(&[u8]) -> Result<T, Reject> + Send + 'static,
{
    if body.len() <= SMALL_BYTES {
        return parse(&body);
    }
    let mut held = room.held();
    held.grow(body.len())?;
    let num_bytes = body.len();
    Box::pin(in_turn((room.caller, num_bytes), (), move |_| parse(&body))).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::receive::Bodies;
    use std::thread::{ThreadId, available_parallelism, current};
    use tidegate_turns::{LONG_WORK, Owner};
    use tidegate_types::{Caller, RejectKind, TenantId};

    #[tokio::test]
    async fn only_what_is_large_is_read_on_another_thread() {
        let thread = |_: &[u8]| -> Result<ThreadId, Reject> { Ok(current().id()) };
        let body = |num_bytes| Bytes::from(vec![b' '; num_bytes]);
        let (bodies, caller) = (Bodies::new(2 * SMALL_BYTES), Caller::local());
        let room = bodies.room(&caller);
        assert_eq!(read(room, body(SMALL_BYTES), thread).await.unwrap(), current().id());
        assert_ne!(read(room, body(SMALL_BYTES + 1), thread).await.unwrap(), current().id());
        let refuse = |_: &[u8]| Err::<(), _>(Reject::invalid("a", "no"));
        assert_eq!(read(room, body(SMALL_BYTES + 1), refuse).await.unwrap_err().message, "no");
    }

    #[tokio::test]
    async fn what_waits_takes_room_until_it_is_read_or_nobody_waits_any_more() {
        let bodies = Bodies::new(3 * SMALL_BYTES);
        let [caller, other] = ["a", "b"].map(|tenant| Caller { tenant: TenantId::new(tenant), ..Caller::local() });
        let mut turns = Vec::new();
        for _ in 0..available_parallelism().map_or(1, usize::from) {
            turns.push(LONG_WORK.take(&Owner::of(&caller), 1).await);
        }
        let wait = |caller| read(bodies.room(caller), Bytes::from(vec![b' '; 2 * SMALL_BYTES]), |_: &[u8]| Ok(()));
        let mut first = Box::pin(wait(&caller));
        assert!(futures_util::poll!(&mut first).is_pending());
        let full = wait(&caller).await.unwrap_err();
        assert_eq!((full.kind, full.retry_after_s), (RejectKind::Unavailable, Some(1)));
        let mut others = Box::pin(wait(&other));
        assert!(futures_util::poll!(&mut others).is_pending(), "another tenant's body has room");
        drop(first);
        let second = wait(&caller);
        drop(turns);
        let (second, others) = futures_util::future::join(second, others).await;
        second.and(others).unwrap();
        assert_eq!(bodies.held(), 0);
    }
}
