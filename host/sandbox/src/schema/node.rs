//! A schema as it is checked: its subschemas in one list that refer to each other by index, so that `$ref` may lead
//! anywhere, and every text that needs reading read once. `read` makes it, `check` holds a value against it.

use super::number::Bound;
use regex::Regex;
use serde_json::Number;
use std::collections::{BTreeMap, HashSet};

pub(super) type NodeIdx = usize;
pub(super) type PatternIdx = usize;

pub(super) const ROOT: NodeIdx = 0;

#[derive(Debug)]
pub(super) struct Schema {
    /// The root first.
    pub(super) nodes: Vec<Node>,
    pub(super) patterns: Vec<Pattern>,
}

#[derive(Debug)]
pub(super) struct Pattern {
    /// As the author wrote it.
    pub(super) source: String,
    pub(super) regex: Regex,
}

/// One subschema. The default holds for every value, as `true` and `{}` do.
#[derive(Debug, Default)]
pub(super) struct Node {
    /// The schema `false`.
    pub(super) is_false: bool,
    /// Of any type if there is none.
    pub(super) types: Vec<Type>,
    pub(super) constant: Option<Choices>,
    pub(super) choices: Option<Choices>,
    pub(super) bounds: Vec<(Bound, Number)>,
    pub(super) characters: Count,
    pub(super) pattern: Option<PatternIdx>,
    pub(super) array: ArrayRules,
    pub(super) object: ObjectRules,
    pub(super) in_place: InPlace,
}

#[derive(Debug, Default)]
pub(super) struct ArrayRules {
    pub(super) count: Count,
    /// `prefixItems`, which was an array in `items` once.
    pub(super) prefix: Vec<NodeIdx>,
    /// The items after those.
    pub(super) items: Option<NodeIdx>,
    pub(super) are_unique: bool,
}

#[derive(Debug, Default)]
pub(super) struct ObjectRules {
    pub(super) count: Count,
    /// Empty is not the same as absent: it names no key, and so allows none.
    pub(super) properties: Option<BTreeMap<String, NodeIdx>>,
    pub(super) patterns: Option<Vec<(PatternIdx, NodeIdx)>>,
    pub(super) additional: Option<NodeIdx>,
    pub(super) unevaluated: Option<NodeIdx>,
    /// `propertyNames`: of every key, as a string.
    pub(super) names: Option<NodeIdx>,
    pub(super) required: Vec<String>,
    pub(super) dependent_required: Vec<(String, Vec<String>)>,
}

impl ObjectRules {
    pub(super) fn property(&self, name: &str) -> Option<NodeIdx> {
        self.properties.as_ref()?.get(name).copied()
    }

    pub(super) fn property_names(&self) -> impl Iterator<Item = &str> {
        self.properties.iter().flat_map(BTreeMap::keys).map(String::as_str)
    }

    pub(super) fn patterns(&self) -> impl Iterator<Item = (PatternIdx, NodeIdx)> {
        self.patterns.iter().flatten().copied()
    }

    /// It says which keys there are, so that another is a mistake.
    pub(super) fn names_keys(&self) -> bool {
        self.properties.is_some() || self.patterns.is_some()
    }
}

/// Subschemas of the same value: the in-place applicators.
#[derive(Debug, Default)]
pub(super) struct InPlace {
    pub(super) reference: Option<NodeIdx>,
    pub(super) all_of: Vec<NodeIdx>,
    pub(super) any_of: Vec<NodeIdx>,
    pub(super) one_of: Vec<NodeIdx>,
    pub(super) not: Option<NodeIdx>,
    pub(super) condition: Option<NodeIdx>,
    pub(super) then: Option<NodeIdx>,
    pub(super) otherwise: Option<NodeIdx>,
    pub(super) dependent: Vec<(String, NodeIdx)>,
}

impl InPlace {
    pub(super) fn all(&self) -> impl Iterator<Item = NodeIdx> {
        let lists = [&self.all_of, &self.any_of, &self.one_of].into_iter().flatten().copied();
        let single = [self.reference, self.not, self.condition, self.then, self.otherwise];
        lists.chain(single.into_iter().flatten()).chain(self.dependent.iter().map(|(_, part)| *part))
    }
}

/// Values that are allowed.
#[derive(Debug)]
pub(super) struct Choices {
    /// Each in its [`canonical`](super::canonical) form.
    pub(super) texts: HashSet<String>,
    pub(super) shown: String,
}

/// How many there may be, of characters, items or keys.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Count {
    pub(super) least: Option<u64>,
    pub(super) most: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Type {
    Null,
    Boolean,
    Integer,
    Number,
    String,
    Array,
    Object,
}

impl Type {
    const ALL: [Self; 7] =
        [Self::Null, Self::Boolean, Self::Integer, Self::Number, Self::String, Self::Array, Self::Object];

    pub(super) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == name)
    }

    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Boolean => "boolean",
            Self::Integer => "integer",
            Self::Number => "number",
            Self::String => "string",
            Self::Array => "array",
            Self::Object => "object",
        }
    }
}
