//! A board: each gateway says one thing, and reads what the others say. A note is there as long as its gateway's lease, and
//! as old as the last time that it was said; for what may be a moment late, since nobody waits for it.

use crate::link::Link;
use crate::script::Script;
use std::sync::Arc;
use std::time::Duration;

/// Notes of all gateways.
#[derive(Clone)]
pub struct Board {
    core: Arc<Core>,
}

struct Core {
    link: Arc<Link>,
    post: Script,
}

impl Board {
    pub(crate) fn new(link: Arc<Link>) -> Self {
        let post = Script::new(include_str!("board.lua").to_owned());
        Self { core: Arc::new(Core { link, post }) }
    }

    pub(crate) fn script(&self) -> &Script {
        &self.core.post
    }

    /// How long a note is there after its gateway was heard last.
    pub fn lease(&self) -> Duration {
        self.core.link.config.lease
    }

    /// Says `note` on the board `name`, in place of what this gateway said before; gives what the others say. `None` where
    /// they cannot be asked.
    pub async fn post(&self, name: &str, note: &str) -> Option<Vec<String>> {
        let Core { link, post } = &*self.core;
        let line = link.line()?;
        let lease = u64::try_from(link.config.lease.as_micros()).unwrap_or(u64::MAX);
        let mut command = post.call(&[link.key("board", name)]);
        command.arg(&link.gateway).arg(lease).arg(note);
        let mut connection = line.connection.clone();
        link.within(&line, command.query_async(&mut connection)).await
    }
}
