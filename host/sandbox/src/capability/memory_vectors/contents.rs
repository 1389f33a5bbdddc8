//! What is kept at one time, to go back to: for tests of plugins that begin with the same again and again.

use super::{Collection, Entries, MemoryVectors};

/// What [`MemoryVectors`] kept at one time.
#[derive(Clone, Default)]
pub struct Contents(Vec<(Collection, Entries)>);

impl MemoryVectors {
    /// All that is kept now.
    pub fn contents(&self) -> Contents {
        let all = self.collections.read();
        Contents(all.entries.iter().map(|(collection, entries)| (collection.clone(), entries.clone())).collect())
    }

    /// Keeps that again and nothing else. No call may be under way: what that changes would be lost.
    pub fn put_back(&self, contents: &Contents) {
        let mut all = self.collections.write();
        for (collection, entries) in std::mem::take(&mut all.entries) {
            all.resize(&collection, 0, bytes(&entries));
        }
        for (collection, entries) in &contents.0 {
            all.resize(collection, bytes(entries), 0);
            all.entries.insert(collection.clone(), entries.clone());
        }
    }
}

fn bytes(entries: &Entries) -> usize {
    entries.iter().map(|(id, entry)| entry.bytes(id)).sum()
}
