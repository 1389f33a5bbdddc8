//! A conversation as a model shall see it.

use crate::chat::Message;

/// What was said before, in front of what is asked now.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Transcript {
    /// Oldest first. Those of the history are named [`Transcript::earlier`] or [`Transcript::pinned`].
    pub messages: Vec<Message>,
    /// Messages of the history that are not here.
    pub left_out: LeftOut,
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
    pub absent: LeftOut,
}

/// How many messages of a history a model does not see.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeftOut {
    /// Since there are more than are read, or than fit: for them a summary stands.
    pub long: u64,
    /// Since no model takes them, however much fits: a call without its outcome, or that without the
    /// call. This asks for no summary.
    pub lone: u64,
}

impl LeftOut {
    /// All of them.
    pub fn total(self) -> u64 {
        self.long + self.lone
    }
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
        numbered(id, 'h')
    }

    /// Whether a message of this id is one of a history that may not be left out.
    pub fn is_pinned(id: &str) -> bool {
        numbered(id, 'p').is_some()
    }

    /// Where a message of this id stands in what its caller sent; not where it was added to that.
    pub fn own_index(id: &str) -> Option<usize> {
        numbered(id, 'm')
    }

    /// Whether a message of this id may be left out. Callers' own are `m0`, `m1`, ...; those of plugins have a slash.
    pub fn may_leave_out(id: &str) -> bool {
        Self::earlier_index(id).is_some()
    }
}

/// The number of an id as this program writes it: no sign, no zeros in front, and none that no request could reach.
fn numbered(id: &str, letter: char) -> Option<usize> {
    let digits = id.strip_prefix(letter)?;
    let is_plain = digits == "0" || !digits.starts_with(['0', '+']);
    digits.parse::<u32>().ok().filter(|_| is_plain).map(|number| number as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_read_as_it_is_written_only() {
        for (id, number) in [("m0", Some(0)), ("m12", Some(12)), ("m4294967295", Some(4_294_967_295))] {
            assert_eq!(Transcript::own_index(id), number, "{id}");
        }
        assert_eq!(Transcript::earlier_index(&Transcript::earlier(12)), Some(12));
        for n in ["", "+5", "-5", "007", "00", "1/2", "x", "18446744073709551615", "4294967296"] {
            assert_eq!(Transcript::own_index(&format!("m{n}")), None, "{n}");
            assert_eq!(Transcript::earlier_index(&format!("h{n}")), None, "{n}");
            assert!(!Transcript::may_leave_out(&format!("h{n}")), "{n}");
        }
    }

    #[test]
    fn only_a_history_may_be_left_out() {
        assert!(Transcript::may_leave_out(&Transcript::earlier(12)));
        for id in [Transcript::pinned(1), "m1".into(), "h".into(), "haystack/7".into(), "h1/2".into()] {
            assert!(!Transcript::may_leave_out(&id), "{id}");
        }
        for (id, is_pinned) in [("p1", true), ("h1", false), ("m1", false), ("plugin/1", false)] {
            assert_eq!(Transcript::is_pinned(id), is_pinned, "{id}");
        }
    }
}
