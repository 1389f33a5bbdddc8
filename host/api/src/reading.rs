//! Reading large bodies. What is small is read where it arrived; the tree of a large one takes milliseconds to build, which
//! the other requests of a connection's thread do not wait for. At once as many are read as there are cores, and the others
//! wait in order.

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

/// What `parse` makes of a body.
pub(crate) async fn read<T, F>(body: Bytes, parse: F) -> Result<T, Reject>
where
    T: Send + 'static,
    F: FnOnce(&[u8]) -> Result<T, Reject> + Send + 'static,
{
    if body.len() <= SMALL_BYTES {
        return parse(&body);
    }
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
    use std::thread::{ThreadId, current};

    #[tokio::test]
    async fn only_what_is_large_is_read_on_another_thread() {
        let thread = |_: &[u8]| -> Result<ThreadId, Reject> { Ok(current().id()) };
        let body = |num_bytes| Bytes::from(vec![b' '; num_bytes]);
        assert_eq!(read(body(SMALL_BYTES), thread).await.unwrap(), current().id());
        assert_ne!(read(body(SMALL_BYTES + 1), thread).await.unwrap(), current().id());
        let refuse = |_: &[u8]| Err::<(), _>(Reject::invalid("a", "no"));
        assert_eq!(read(body(SMALL_BYTES + 1), refuse).await.unwrap_err().message, "no");
    }
}
