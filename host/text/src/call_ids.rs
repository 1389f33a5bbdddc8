//! Ids of tool calls in the form that a template takes.
//!
//! Models of Mistral are trained on ids of nine letters and digits, and their templates refuse any other, whoever made it:
//! a caller, another provider, a model that answered before. So an id of another form gets nine in the prompt, a call and its
//! outcome the same; what callers see stays as it was. The nine are a hash of the id, tried again where another id of the
//! conversation has them, in the order of the conversation: one that goes on keeps those that it has, and with them its
//! cached prompt.

use crate::error::TextError;
use crate::veil::Veil;
use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

/// Letters of a short id.
const SHORT_LEN: usize = 9;
const LETTERS: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

/// How a model's template wants the ids of tool calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallIdForm {
    /// Any text.
    Any,
    /// Nine ASCII letters and digits (Mistral).
    Short,
}

impl CallIdForm {
    /// A new id of this form, as unique as the bytes are.
    pub fn write(self, random: &[u8; 12]) -> String {
        let long = random.iter().fold(String::from("call_"), |mut id, byte| {
            use std::fmt::Write;
            let _ = write!(id, "{byte:02x}");
            id
        });
        match self {
            Self::Any => long,
            Self::Short => shortened(&long, 0),
        }
    }
}

/// The ids of one conversation, in a prompt.
#[derive(Debug)]
pub(crate) struct CallIds<'m> {
    form: CallIdForm,
    /// What stands for each id that was met.
    given: HashMap<&'m str, Cow<'m, str>>,
    taken: HashSet<Cow<'m, str>>,
}

impl<'m> CallIds<'m> {
    pub fn new(form: CallIdForm) -> Self {
        Self { form, given: HashMap::new(), taken: HashSet::new() }
    }

    /// What the template gets for this id.
    pub fn veiled(&mut self, id: &'m str, veil: &mut Veil<'_>) -> Result<String, TextError> {
        match self.form {
            CallIdForm::Any => veil.text(id),
            CallIdForm::Short => veil.text(&self.short(id)),
        }
    }

    fn short(&mut self, id: &'m str) -> Cow<'m, str> {
        if let Some(given) = self.given.get(id) {
            return given.clone();
        }
        let own = is_short(id).then_some(Cow::Borrowed(id));
        let hashed = (0_u32..).map(|attempt| Cow::Owned(shortened(id, attempt)));
        let short = own.into_iter().chain(hashed).find(|short| !self.taken.contains(short)).unwrap_or_default();
        self.taken.insert(short.clone());
        self.given.insert(id, short.clone());
        short
    }
}

fn is_short(id: &str) -> bool {
    id.len() == SHORT_LEN && id.bytes().all(|byte| byte.is_ascii_alphanumeric())
}

fn shortened(id: &str, attempt: u32) -> String {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&attempt.to_le_bytes()).update(id.as_bytes());
    let hash = hasher.finalize();
    hash.as_bytes().iter().take(SHORT_LEN).map(|byte| char::from(LETTERS[usize::from(*byte) % LETTERS.len()])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: &str = "call_0123456789abcdef01234567";

    #[test]
    fn an_id_of_nine_letters_and_digits_stays_and_any_other_gets_nine() {
        let mut ids = CallIds::new(CallIdForm::Short);
        assert_eq!(ids.short("D681PevKs"), "D681PevKs");
        for id in [LONG, "", "call_1", "nine-four", "neuf\u{e9}lett", "chatcmpl-tool-5ffc", "0123456789"] {
            let short = ids.short(id).into_owned();
            assert!(is_short(&short), "{id:?} is {short:?}");
            assert_eq!(ids.short(id), short, "the outcome's is the call's");
            assert_eq!(CallIds::new(CallIdForm::Short).short(id), short, "in each turn the same");
        }
    }

    /// An id may be what another one is shortened to; whichever comes first has it.
    #[test]
    fn no_two_ids_of_a_conversation_get_the_same_nine() {
        let hashed = shortened(LONG, 0);
        for order in [[LONG, hashed.as_str()], [hashed.as_str(), LONG]] {
            let mut ids = CallIds::new(CallIdForm::Short);
            let [first, second] = order.map(|id| ids.short(id).into_owned());
            assert_eq!(first, hashed);
            assert!(is_short(&second) && second != first, "{second}");
            assert_eq!(order.map(|id| ids.short(id).into_owned()), [first, second]);
        }
    }

    #[test]
    fn a_new_id_is_of_the_form_that_is_asked_for() {
        let [a, b] = [[7; 12], [8; 12]].map(|random| CallIdForm::Short.write(&random));
        assert!(is_short(&a) && is_short(&b) && a != b, "{a} {b}");
        assert_eq!(CallIdForm::Any.write(&[0xab; 12]), format!("call_{}", "ab".repeat(12)));
    }
}
