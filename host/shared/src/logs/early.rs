//! Logs that give way in their gateway before their time: the server lets go of them too, and has no more of a gateway's logs
//! than that.

use super::{Core, PAUSE};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;

/// Names that wait for a server which is away. What is more goes by itself, in its time.
pub(super) const MAX_NAMES: usize = 1 << 14;

/// Names that go together.
const MAX_TOGETHER: usize = 256;

/// For readers who are about to read the last of it.
const GRACE: Duration = Duration::from_secs(1);

impl Core {
    pub(super) fn let_go(&self, id: &str) {
        let _ = self.given_way.try_send(id.to_owned());
    }
}

/// Tells the server. Runs for ever.
pub(super) async fn take_back(core: Arc<Core>, mut names: mpsc::Receiver<String>) {
    let mut ids = Vec::new();
    while names.recv_many(&mut ids, MAX_TOGETHER).await > 0 {
        // What is still copied is named again behind that, and what was begun anew is another log.
        ids.retain(|id| !core.written.lock().contains_key(id));
        while !ids.is_empty() && !core.take_back(&ids, GRACE).await {
            tokio::time::sleep(PAUSE).await;
        }
        ids.clear();
    }
}
