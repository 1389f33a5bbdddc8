//! Which keys an object may have. The rule is that of `unevaluatedProperties: false`, applied once to each object, when all
//! schemas have spoken: a key that one of them names is known, wherever it is in the schema (`$ref`, `allOf`, the fitting
//! ones of `anyOf` and `oneOf`, `if` and its branch), and so is every key where one of them allows others. An object of
//! which none names keys is free; so is what one of `anyOf` allows that names none, though another does. Coming last, the
//! rule decides no `anyOf` and no `not`: what passes here is valid by JSON Schema too.

use super::check::{Check, Checked, Failure};
use super::node::NodeIdx;
use serde_json::{Map, Value};
use std::collections::{HashMap, VecDeque};

/// Names that a misspelt one is compared with, and that a message lists.
const MAX_NAMES: usize = 50;
/// What is said of a key that is not known; after it stands what may have been meant.
pub(crate) const NO_SUCH_KEY: &str = "there is no such key";
/// Bytes of a name that is compared.
const MAX_COMPARED: usize = 64;

type Object = Map<String, Value>;

/// A schema that spoke of an object's keys.
#[derive(Clone, Copy)]
pub(super) struct Seen {
    /// By its address: the value stays where it is while it is checked.
    object: *const Object,
    node: NodeIdx,
    /// It spoke of every key.
    is_all: bool,
    /// It names keys and says nothing of others, which are a mistake then. An `if` closes nothing: a test is no description of all there are.
    closes: bool,
}

/// That a schema holds which names no keys: what it allows is free, whatever others name.
pub(super) fn is_free(seen: &[Seen]) -> bool {
    seen.iter().all(|seen| !seen.closes)
}

/// Leaves what a schema knows, and lets other keys be.
pub(super) fn open(seen: &mut [Seen]) {
    seen.iter_mut().for_each(|seen| seen.closes = false);
}

impl Check<'_> {
    /// Notes that a schema speaks of an object's keys.
    pub(super) fn note(&mut self, at: NodeIdx, object: &Object) {
        let rules = &self.schema.nodes[at].object;
        let (names_keys, is_all) = (rules.names_keys(), rules.additional.is_some());
        if names_keys || is_all {
            let closes = names_keys && !is_all && self.num_tests == 0;
            self.seen.push(Seen { object: std::ptr::from_ref(object), node: at, is_all, closes });
        }
    }

    /// `unevaluatedProperties`: of the keys that neither this schema nor one inside it has spoken of, since `first`.
    pub(super) fn unevaluated(&mut self, at: NodeIdx, first: usize, object: &Object) -> Checked {
        let Some(rest) = self.schema.nodes[at].object.unevaluated else { return Ok(()) };
        self.spend((self.seen.len() - first) as u64)?;
        let mut inner = Vec::new();
        for seen in self.seen[first..].iter_mut().filter(|seen| seen.object == std::ptr::from_ref(object)) {
            // What it says of other keys stands for all that is inside of it.
            seen.closes = false;
            inner.push(*seen);
        }
        if self.schema.nodes[rest].is_false {
            return self.only_known(&inner, object);
        }
        for (name, value) in object {
            if !self.is_known(&inner, name)? {
                self.under(format_args!(".{name}"), |check| check.node(rest, value))?;
            }
        }
        self.seen.push(Seen { object: std::ptr::from_ref(object), node: at, is_all: true, closes: false });
        Ok(())
    }

    /// Every object of the value, the outermost first.
    pub(super) fn unknown_keys(&mut self, value: &Value) -> Checked {
        let mut by_object: HashMap<*const Object, Vec<Seen>> = HashMap::new();
        for seen in std::mem::take(&mut self.seen) {
            by_object.entry(seen.object).or_default().push(seen);
        }
        let mut rest = VecDeque::from([(String::new(), value)]);
        while let Some((path, value)) = rest.pop_front() {
            match value {
                Value::Object(object) => {
                    let seen = by_object.remove(&std::ptr::from_ref(object)).unwrap_or_default();
                    self.path.clone_from(&path);
                    if !is_free(&seen) {
                        self.only_known(&seen, object)?;
                    }
                    rest.extend(object.iter().map(|(name, value)| (format!("{path}.{name}"), value)));
                }
                Value::Array(items) => {
                    let items = items.iter().enumerate();
                    rest.extend(items.map(|(index, item)| (format!("{path}[{index}]"), item)));
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn only_known(&mut self, seen: &[Seen], object: &Object) -> Checked {
        let mut nodes: Vec<Seen> = seen.to_vec();
        nodes.sort_unstable_by_key(|seen| (!seen.is_all, seen.node));
        nodes.dedup_by_key(|seen| (seen.is_all, seen.node));
        for name in object.keys() {
            if !self.is_known(&nodes, name)? {
                let schema = self.schema;
                let names = nodes.iter().flat_map(|seen| schema.nodes[seen.node].object.property_names());
                return self.under(format_args!(".{name}"), |check| check.no_such_key(names, name));
            }
        }
        Ok(())
    }

    fn is_known(&mut self, seen: &[Seen], name: &str) -> Result<bool, Failure> {
        let schema = self.schema;
        for seen in seen {
            self.spend(1)?;
            let rules = &schema.nodes[seen.node].object;
            if seen.is_all || rules.property(name).is_some() {
                return Ok(true);
            }
            for (pattern, _) in rules.patterns() {
                if self.matches(pattern, name)? {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// The key is the last of the path.
    pub(super) fn no_such_key<'n>(&mut self, names: impl Iterator<Item = &'n str>, name: &str) -> Checked {
        let mut names: Vec<&str> = names.filter(|name| name.len() <= MAX_COMPARED).take(MAX_NAMES).collect();
        names.sort_unstable();
        names.dedup();
        self.spend(names.len() as u64)?;
        let compared = names.iter().filter(|_| name.len() <= MAX_COMPARED);
        let nearest = compared.map(|known| (distance(name, known), *known)).min();
        self.fail(match nearest {
            Some((far, known)) if far <= known.len().div_ceil(2) => {
                format!("{NO_SUCH_KEY}; did you mean `{known}`?")
            }
            _ if names.is_empty() => format!("{NO_SUCH_KEY}; none is taken here"),
            _ => format!("{NO_SUCH_KEY}; there are {}", names.join(", ")),
        })
    }
}

/// Edits between two names (Levenshtein).
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, to) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(from != *to);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}
