//! What is kept at one time, to go back to: for tests of plugins that begin with the same again and again.

use super::{MemoryKv, Mutex, Namespace, Space};
use std::sync::Arc;

/// What [`MemoryKv`] kept at one time.
#[derive(Clone, Default)]
pub struct Contents(Vec<(Namespace, Space)>);

impl MemoryKv {
    /// All that is kept now.
    pub fn contents(&self) -> Contents {
        let spaces = self.spaces.read();
        Contents(spaces.iter().map(|(name, space)| (name.clone(), space.lock().clone())).collect())
    }

    /// Keeps that again and nothing else. No call may be under way: what that changes would be lost.
    pub fn put_back(&self, contents: &Contents) {
        let mut spaces = self.spaces.write();
        for (name, space) in spaces.drain() {
            self.book(&name.share, space.lock().bytes, 0);
        }
        for (name, space) in &contents.0 {
            self.book(&name.share, 0, space.bytes);
            spaces.insert(name.clone(), Arc::new(Mutex::new(space.clone())));
        }
    }
}
