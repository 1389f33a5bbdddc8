//! What of a plugin's folders was said in the log: plugins list and read them again and again, and a line for each time
//! would bury all others.

use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};

/// Further documents and folders are not said: where so much cannot be read, the first lines say what is wrong.
const MAX_SAID: usize = 1000;

/// What can be wrong with a document or folder, each apart: that one can be listed says nothing of its names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Wrong {
    /// It cannot be read.
    Read,
    /// What lies in it cannot be listed.
    List,
    /// What it is cannot be told.
    About,
    /// A name in it cannot be shown.
    Name,
    /// It lies too deep.
    Depth,
}

/// Documents and folders by their paths, with what was said of each.
#[derive(Default)]
pub(super) struct Said(Mutex<BTreeMap<String, BTreeSet<Wrong>>>);

impl Said {
    /// Whether it is to be said now.
    pub(super) fn is_new(&self, path: &str, wrong: Wrong) -> bool {
        let mut said = self.0.lock();
        match said.get_mut(path) {
            Some(known) => known.insert(wrong),
            None => said.len() < MAX_SAID && said.insert(path.to_owned(), [wrong].into()).is_none(),
        }
    }

    /// It is well again: the next time it is not is news.
    pub(super) fn is_over(&self, path: &str, wrong: Wrong) {
        let mut said = self.0.lock();
        if let Some(known) = said.get_mut(path)
            && known.remove(&wrong)
            && known.is_empty()
        {
            said.remove(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_said_once_until_it_is_well_again() {
        let said = Said::default();
        let is_new = |path: &str| said.is_new(path, Wrong::Read);
        assert!(is_new("docs/a") && is_new("docs/b") && !is_new("docs/a"));
        said.is_over("docs/a", Wrong::Read);
        assert!(is_new("docs/a") && !is_new("docs/b"));
        let new = (0..2 * MAX_SAID).filter(|n| is_new(&n.to_string())).count();
        assert_eq!(new, MAX_SAID - 2);
    }

    #[test]
    fn each_thing_that_is_wrong_with_one_is_news_of_its_own() {
        let said = Said::default();
        assert!(said.is_new("docs", Wrong::List) && said.is_new("docs", Wrong::Name));
        said.is_over("docs", Wrong::List);
        assert!(said.is_new("docs", Wrong::List) && !said.is_new("docs", Wrong::Name));
        said.is_over("docs", Wrong::Name);
        said.is_over("docs", Wrong::List);
        assert!(said.0.lock().is_empty(), "what is well takes no room of others");
    }
}
