//! What the server computes: a script by its hash. A connection begins with all of them known.

use redis::Cmd;

pub(crate) struct Script {
    text: String,
    hash: String,
}

impl Script {
    pub(crate) fn new(text: String) -> Self {
        let hash = redis::Script::new(&text).get_hash().to_owned();
        Self { text, hash }
    }

    /// Makes it known.
    pub(crate) fn load(&self) -> Cmd {
        let mut command = redis::cmd("SCRIPT");
        command.arg("LOAD").arg(&self.text);
        command
    }

    /// Runs it with these keys; its arguments follow.
    pub(crate) fn call(&self, keys: &[String]) -> Cmd {
        let mut command = redis::cmd("EVALSHA");
        command.arg(&self.hash).arg(keys.len()).arg(keys);
        command
    }
}
