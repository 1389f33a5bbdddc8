//! Reading large bodies. What is small is read where it arrived; the tree of a large one takes milliseconds to build, which
//! the other requests of a connection's thread do not wait for. At once as many are read as there are cores, and the others
//! wait in order.

use crate::receive::Room;
use bytes::Bytes;
use std::sync::{Arc, LazyLock};
use std::thread::available_parallelism;
use tidegate_types::{Fault, Reject};
use tokio::sync::Semaphore;

/// Read where it arrived: that takes about a millisecond at most.
const SMALL_BYTES: usize = 256 << 10;

/// Of the whole process.
static TURNS: LazyLock<Arc<Semaphore>> =
    LazyLock::new(|| Arc::new(Semaphore::new(available_parallelism().map_or(1, usize::from))));

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
    Box::pin(aside(body, parse)).await
}

async fn aside<T, F>(body: Bytes, parse: F) -> Result<T, Reject>
where
    T: Send + 'static,
    F: FnOnce(&[u8]) -> Result<T, Reject> + Send + 'static,
{
    let broken = |error: String| Reject::internal(Fault::Operator, error);
    let turn = Arc::clone(&TURNS).acquire_owned().await.map_err(|error| broken(error.to_string()))?;
    let reading = tokio::task::spawn_blocking(move || {
        let read = parse(&body);
        drop((body, turn));
        read
    });
    reading.await.map_err(|error| broken(error.to_string()))?
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;
    use std::thread::{ThreadId, current};
    use tidegate_types::RejectKind;

    #[tokio::test]
    async fn only_what_is_large_is_read_on_another_thread() {
        let thread = |_: &[u8]| -> Result<ThreadId, Reject> { Ok(current().id()) };
        let body = |num_bytes| Bytes::from(vec![b' '; num_bytes]);
        let used = AtomicUsize::new(0);
        let room = Room::new(&used, 2 * SMALL_BYTES);
        assert_eq!(read(room, body(SMALL_BYTES), thread).await.unwrap(), current().id());
        assert_ne!(read(room, body(SMALL_BYTES + 1), thread).await.unwrap(), current().id());
        let refuse = |_: &[u8]| Err::<(), _>(Reject::invalid("a", "no"));
        assert_eq!(read(room, body(SMALL_BYTES + 1), refuse).await.unwrap_err().message, "no");
    }

    #[tokio::test]
    async fn what_waits_takes_room_until_it_is_read_or_nobody_waits_any_more() {
        let used = AtomicUsize::new(0);
        let room = Room::new(&used, 3 * SMALL_BYTES);
        let turns = TURNS.acquire_many(TURNS.available_permits() as u32).await.unwrap();
        let wait = || read(room, Bytes::from(vec![b' '; 2 * SMALL_BYTES]), |_: &[u8]| Ok(()));
        let mut first = Box::pin(wait());
        assert!(futures_util::poll!(&mut first).is_pending());
        let full = wait().await.unwrap_err();
        assert_eq!((full.kind, full.retry_after_s), (RejectKind::Unavailable, Some(1)));
        drop(first);
        let second = wait();
        drop(turns);
        second.await.unwrap();
        assert_eq!(used.into_inner(), 0);
    }
}
