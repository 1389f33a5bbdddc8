//! A conversation as a model shall see it.

use crate::chat::Message;

/// What was said before, in front of what is asked now.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Transcript {
    /// Oldest first. Those of the history are named [`Transcript::earlier`] or [`Transcript::pinned`].
    pub messages: Vec<Message>,
    /// Messages of the history that are not here.
    pub left_out: u64,
    /// Whether earlier messages may be left out where they do not fit the model.
    pub may_shorten: bool,
    /// Of the beginning of the history, for when some of it is left out.
    pub summary: Option<Summary>,
}

/// What the beginning of a history says in short.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// In the words of a model: text from outside.
    pub text: String,
    /// It covers the messages of the transcript that are named [`Transcript::earlier`] of a smaller number.
    pub through: usize,
    /// And so many of those that are not in the transcript.
    pub absent: u64,
}

impl Transcript {
    /// The id of the `n`th message of a history.
    pub fn earlier(n: usize) -> String {
        format!("h{n}")
    }

    /// The id of the `n`th message of a history, when it may not be left out.
    pub fn pinned(n: usize) -> String {
        format!("p{n}")
    }

    /// Which message of a history has this id, where it may be left out.
    pub fn earlier_index(id: &str) -> Option<usize> {
        id.strip_prefix('h').filter(|_| Self::may_leave_out(id))?.parse().ok()
    }

    /// Where a message of this id stands in what its caller sent; not where it was added to that.
    pub fn own_index(id: &str) -> Option<usize> {
        id.strip_prefix('m')?.parse().ok()
    }

    /// Whether a message of this id may be left out. Callers' own are `m0`, `m1`, ...; those of plugins have a slash.
    pub fn may_leave_out(id: &str) -> bool {
        id.strip_prefix('h').is_some_and(|n| !n.is_empty() && n.bytes().all(|byte| byte.is_ascii_digit()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_history_may_be_left_out() {
        assert!(Transcript::may_leave_out(&Transcript::earlier(12)));
        for id in [Transcript::pinned(1), "m1".into(), "h".into(), "haystack/7".into(), "h1/2".into()] {
            assert!(!Transcript::may_leave_out(&id), "{id}");
        }
    }
}
