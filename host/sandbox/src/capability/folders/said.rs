//! What of a plugin's folders was said in the log: plugins list and read them again and again, and a line for each time
//! would bury all others.

use parking_lot::Mutex;
use std::collections::BTreeSet;

/// Further ones are not said: where so much cannot be read, the first lines say what is wrong.
const MAX_SAID: usize = 1000;

/// Documents and folders by their paths.
#[derive(Default)]
pub(super) struct Said(Mutex<BTreeSet<String>>);

impl Said {
    /// Whether it is to be said now.
    pub(super) fn is_new(&self, path: &str) -> bool {
        let mut said = self.0.lock();
        said.len() < MAX_SAID && said.insert(path.to_owned())
    }

    /// It is well again: the next time it is not is news.
    pub(super) fn is_over(&self, path: &str) {
        self.0.lock().remove(path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_said_once_until_it_is_well_again() {
        let said = Said::default();
        assert!(said.is_new("docs/a") && said.is_new("docs/b") && !said.is_new("docs/a"));
        said.is_over("docs/a");
        assert!(said.is_new("docs/a") && !said.is_new("docs/b"));
        let new = (0..2 * MAX_SAID).filter(|n| said.is_new(&n.to_string())).count();
        assert_eq!(new, MAX_SAID - 2);
    }
}
