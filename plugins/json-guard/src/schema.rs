//! A JSON Schema as the guard checks it: a subset of draft 2020-12, read once. What is not in the subset is refused
//! by name: passing over it would promise a check that nobody makes.

use crate::json::Json;
use crate::number::Number;

/// Index of a node.
pub type NodeIdx = usize;

/// A schema.
#[derive(Debug)]
pub struct Schema {
    /// The first is the root.
    pub nodes: Vec<Node>,
}

/// What one subschema asks for. The default asks for nothing.
#[derive(Debug, Default)]
pub struct Node {
    /// `false`: nothing is valid.
    pub never: bool,
    /// Names of types; empty for any.
    pub types: Vec<Type>,
    pub one_of_values: Option<Vec<Json>>,
    pub only: Option<Json>,
    pub properties: Vec<(String, NodeIdx)>,
    pub required: Vec<String>,
    /// What other members must be.
    pub additional: Option<NodeIdx>,
    pub items: Option<NodeIdx>,
    pub unique_items: bool,
    pub bounds: Vec<(Bound, Number)>,
    pub reference: Option<NodeIdx>,
    pub all_of: Vec<NodeIdx>,
    pub any_of: Vec<NodeIdx>,
    pub one_of: Vec<NodeIdx>,
    pub not: Option<NodeIdx>,
}

/// A type's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Type {
    Null,
    Boolean,
    Integer,
    Number,
    String,
    Array,
    Object,
}

impl Type {
    const NAMES: [(&str, Self); 7] = [
        ("null", Self::Null),
        ("boolean", Self::Boolean),
        ("integer", Self::Integer),
        ("number", Self::Number),
        ("string", Self::String),
        ("array", Self::Array),
        ("object", Self::Object),
    ];

    fn named(name: &str) -> Option<Self> {
        Self::NAMES.iter().find(|(known, _)| *known == name).map(|(_, kind)| *kind)
    }

    /// The name.
    pub fn as_str(self) -> &'static str {
        Self::NAMES.iter().find(|(_, kind)| *kind == self).map_or("", |(name, _)| name)
    }
}

/// A bound on a number or a count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    Minimum,
    Maximum,
    ExclusiveMinimum,
    ExclusiveMaximum,
    MinLength,
    MaxLength,
    MinItems,
    MaxItems,
    MinProperties,
    MaxProperties,
}

const BOUNDS: [(&str, Bound); 10] = [
    ("minimum", Bound::Minimum),
    ("maximum", Bound::Maximum),
    ("exclusiveMinimum", Bound::ExclusiveMinimum),
    ("exclusiveMaximum", Bound::ExclusiveMaximum),
    ("minLength", Bound::MinLength),
    ("maxLength", Bound::MaxLength),
    ("minItems", Bound::MinItems),
    ("maxItems", Bound::MaxItems),
    ("minProperties", Bound::MinProperties),
    ("maxProperties", Bound::MaxProperties),
];

/// Keywords that say something to people, and where definitions are.
const ANNOTATIONS: &[&str] = &[
    "$schema",
    "$id",
    "$comment",
    "$defs",
    "definitions",
    "title",
    "description",
    "default",
    "examples",
    "deprecated",
    "readOnly",
    "writeOnly",
];

/// What the first says, the second leaves alone: to pass over the first while the second is checked would refuse what the schema
/// allows.
const EXCEPTED: [(&str, &str); 3] =
    [("properties", "additionalProperties"), ("patternProperties", "additionalProperties"), ("prefixItems", "items")];

impl Schema {
    /// Reads a schema; keywords of `ignored` are passed over.
    ///
    /// # Errors
    /// What is unknown or malformed, and where, as a JSON pointer.
    pub fn new(json: &Json, ignored: &[String]) -> Result<Self, String> {
        let mut compiler = Compiler { root: json, ignored, nodes: Vec::new(), known: Vec::new() };
        compiler.node("#", json)?;
        let schema = Self { nodes: compiler.nodes };
        schema.check_ends()?;
        Ok(schema)
    }

    /// A schema that refers to itself at the same place of the value would be checked for ever.
    fn check_ends(&self) -> Result<(), String> {
        let mut ended = vec![false; self.nodes.len()];
        for _ in 0..=self.nodes.len() {
            for (at, node) in self.nodes.iter().enumerate() {
                ended[at] = node.in_place().all(|other| ended[other]);
            }
        }
        if ended.iter().all(|ended| *ended) {
            return Ok(());
        }
        Err("a `$ref` leads back to itself without going into a property or an item".into())
    }
}

impl Node {
    /// Subschemas of the same value.
    fn in_place(&self) -> impl Iterator<Item = NodeIdx> {
        let lists = [&self.all_of, &self.any_of, &self.one_of];
        lists.into_iter().flatten().copied().chain(self.reference).chain(self.not)
    }
}

struct Compiler<'a> {
    root: &'a Json,
    ignored: &'a [String],
    nodes: Vec<Node>,
    /// What is read already, by its place.
    known: Vec<(String, NodeIdx)>,
}

impl<'a> Compiler<'a> {
    fn node(&mut self, place: &str, json: &'a Json) -> Result<NodeIdx, String> {
        if let Some((_, at)) = self.known.iter().find(|(known, _)| known == place) {
            return Ok(*at);
        }
        let at = self.nodes.len();
        self.nodes.push(Node::default());
        self.known.push((place.to_owned(), at));
        let node = match json {
            Json::Bool(allowed) => Node { never: !allowed, ..Node::default() },
            Json::Object(members) => {
                self.check_neighbours(place, members)?;
                let mut node = Node::default();
                for (keyword, value) in members {
                    self.keyword(&mut node, place, keyword, value)?;
                }
                node
            }
            other => return Err(format!("{place}: is {}; a schema is an object or a boolean", other.kind())),
        };
        self.nodes[at] = node;
        Ok(at)
    }

    /// Whether what is passed over is no exception of what is checked.
    fn check_neighbours(&self, place: &str, members: &[(String, Json)]) -> Result<(), String> {
        let value = |name: &str| members.iter().find(|(keyword, _)| keyword == name).map(|(_, value)| value);
        for (keyword, neighbour) in EXCEPTED {
            let is_read = keyword == "properties" && !self.is_ignored(keyword);
            let refuses = value(neighbour).is_some_and(|value| !allows_all(value)) && !self.is_ignored(neighbour);
            if value(keyword).is_some() && !is_read && refuses {
                return Err(format!(
                    "{place}/{keyword}: this guard would not check `{keyword}`, and `{neighbour}` beside it refuses what \
                     that allows; take both out, or name both in `ignored_keywords`"
                ));
            }
        }
        Ok(())
    }

    fn is_ignored(&self, keyword: &str) -> bool {
        self.ignored.iter().any(|ignored| ignored == keyword)
    }

    fn keyword(&mut self, node: &mut Node, place: &str, keyword: &'a str, value: &'a Json) -> Result<(), String> {
        if self.is_ignored(keyword) {
            return Ok(());
        }
        let at = format!("{place}/{keyword}");
        match keyword {
            "type" => node.types = types(&at, value)?,
            "enum" => node.one_of_values = Some(list(&at, value)?.to_vec()),
            "const" => node.only = Some(value.clone()),
            "properties" => node.properties = self.named(&at, value)?,
            "required" => node.required = texts(&at, value)?,
            "additionalProperties" => node.additional = Some(self.node(&at, value)?),
            "items" => node.items = Some(self.node(&at, value)?),
            "uniqueItems" => node.unique_items = boolean(&at, value)?,
            "allOf" => node.all_of = self.several(&at, value)?,
            "anyOf" => node.any_of = self.several(&at, value)?,
            "oneOf" => node.one_of = self.several(&at, value)?,
            "not" => node.not = Some(self.node(&at, value)?),
            "$ref" => node.reference = Some(self.reference(&at, value)?),
            _ => return self.other(node, &at, keyword, value),
        }
        Ok(())
    }

    fn other(&self, node: &mut Node, at: &str, keyword: &str, value: &Json) -> Result<(), String> {
        if let Some((_, bound)) = BOUNDS.iter().find(|(name, _)| *name == keyword) {
            let Json::Number(number) = value else { return Err(format!("{at}: is {}, not a number", value.kind())) };
            node.bounds.push((*bound, *number));
            return Ok(());
        }
        if ANNOTATIONS.contains(&keyword) {
            return Ok(());
        }
        Err(format!("{at}: this guard does not check `{keyword}`; take it out, or name it in `ignored_keywords`"))
    }

    fn named(&mut self, at: &str, value: &'a Json) -> Result<Vec<(String, NodeIdx)>, String> {
        let Json::Object(members) = value else { return Err(format!("{at}: is {}, not an object", value.kind())) };
        let mut named = Vec::with_capacity(members.len());
        for (name, schema) in members {
            named.push((name.clone(), self.node(&format!("{at}/{}", escaped(name)), schema)?));
        }
        Ok(named)
    }

    fn several(&mut self, at: &str, value: &'a Json) -> Result<Vec<NodeIdx>, String> {
        let schemas = list(at, value)?.iter().enumerate();
        schemas.map(|(idx, schema)| self.node(&format!("{at}/{idx}"), schema)).collect()
    }

    /// `#`, `#/$defs/NAME` and `#/definitions/NAME`.
    fn reference(&mut self, at: &str, value: &'a Json) -> Result<NodeIdx, String> {
        let Json::Text(target) = value else { return Err(format!("{at}: is {}, not a string", value.kind())) };
        if target == "#" {
            return self.node("#", self.root);
        }
        let inside = ["$defs", "definitions"].iter().find_map(|keyword| {
            let name = target.strip_prefix("#/")?.strip_prefix(keyword)?.strip_prefix('/')?;
            self.root.get(keyword)?.get(&name.replace("~1", "/").replace("~0", "~"))
        });
        let Some(schema) = inside else {
            return Err(format!("{at}: `{target}` is not `#` or one of the schema's own `#/$defs/...`"));
        };
        self.node(target, schema)
    }
}

/// Whether a schema asks for nothing.
fn allows_all(schema: &Json) -> bool {
    match schema {
        Json::Bool(allowed) => *allowed,
        Json::Object(members) => members.is_empty(),
        _ => false,
    }
}

/// A key as a step of a JSON pointer.
pub(crate) fn escaped(key: &str) -> String {
    key.replace('~', "~0").replace('/', "~1")
}

fn types(at: &str, value: &Json) -> Result<Vec<Type>, String> {
    let names = match value {
        Json::Text(name) => vec![name.clone()],
        other => texts(at, other)?,
    };
    let known = |name: String| Type::named(&name).ok_or_else(|| format!("{at}: `{name}` is no type"));
    names.into_iter().map(known).collect()
}

fn boolean(at: &str, value: &Json) -> Result<bool, String> {
    match value {
        Json::Bool(value) => Ok(*value),
        other => Err(format!("{at}: is {}, not a boolean", other.kind())),
    }
}

fn texts(at: &str, value: &Json) -> Result<Vec<String>, String> {
    let text = |item: &Json| match item {
        Json::Text(text) => Ok(text.clone()),
        other => Err(format!("{at}: holds {}, not only strings", other.kind())),
    };
    list(at, value)?.iter().map(text).collect()
}

fn list<'a>(at: &str, value: &'a Json) -> Result<&'a [Json], String> {
    match value {
        Json::List(items) if !items.is_empty() || at.ends_with("required") => Ok(items),
        Json::List(_) => Err(format!("{at}: is empty")),
        other => Err(format!("{at}: is {}, not an array", other.kind())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json::parse;

    #[test]
    fn what_it_does_not_check_is_refused_by_name() {
        let check = |text: &str, expected: &str| {
            let problem = Schema::new(&parse(text).unwrap(), &[]).unwrap_err();
            assert!(problem.contains(expected), "{problem}");
        };
        check(r#"{"properties":{"a":{"pattern":"x"}}}"#, "#/properties/a/pattern: this guard does not check `pattern`");
        check(r#"{"format":"date"}"#, "ignored_keywords");
        check(r#"{"type":"text"}"#, "`text` is no type");
        check(r#"{"items":3}"#, "#/items: is an integer");
        check(r#"{"enum":[]}"#, "#/enum: is empty");
        check(r#"{"minLength":"1"}"#, "#/minLength: is a string");
        check(r#"{"uniqueItems":"true"}"#, "#/uniqueItems: is a string, not a boolean");
        check(r##"{"$ref":"#/properties/a"}"##, "is not `#` or one of");
        check(r##"{"$ref":"#"}"##, "leads back to itself");
        check(r##"{"$ref":"#/$defs/a","$defs":{"a":{"anyOf":[{"$ref":"#/$defs/a"}]}}}"##, "leads back to itself");
        let ignored = ["format".to_owned()];
        assert!(Schema::new(&parse(r#"{"format":"date"}"#).unwrap(), &ignored).is_ok());
    }

    #[test]
    fn what_is_to_be_ignored_is_so_where_the_guard_knows_it_too() {
        let ignored = ["minLength", "uniqueItems", "properties"].map(str::to_owned);
        let schema = r#"{"minLength":"1","uniqueItems":true,"properties":{"a":{"pattern":"x"}},"required":["a"]}"#;
        let root = &Schema::new(&parse(schema).unwrap(), &ignored).unwrap().nodes[0];
        assert!(root.bounds.is_empty() && !root.unique_items && root.properties.is_empty());
        assert_eq!(root.required, ["a"]);
    }

    #[test]
    fn what_another_keyword_leaves_alone_is_not_ignored_alone() {
        let read = |text: &str, ignored: &[&str]| {
            let ignored: Vec<String> = ignored.iter().map(|keyword| (*keyword).to_owned()).collect();
            Schema::new(&parse(text).unwrap(), &ignored).map(|_| ())
        };
        let closed = r#""additionalProperties":false"#;
        for (excepted, keyword, neighbour) in [
            (r#""properties":{"a":{}}"#, "properties", closed),
            (r#""patternProperties":{"^x-":{}}"#, "patternProperties", closed),
            (r#""prefixItems":[{"type":"string"}]"#, "prefixItems", r#""items":false"#),
        ] {
            let both = format!("{{\"anyOf\":[{{{excepted},{neighbour}}}]}}");
            let problem = read(&both, &[keyword]).unwrap_err();
            assert!(problem.starts_with(&format!("#/anyOf/0/{keyword}: ")), "{problem}");
            assert!(problem.ends_with("take both out, or name both in `ignored_keywords`"), "{problem}");
            let named = ["additionalProperties", "items"];
            assert_eq!(read(&both, &[&[keyword][..], &named].concat()), Ok(()), "{both}");
            for harmless in [both.replace("false", "true"), both.replace("false", "{}"), format!("{{{excepted}}}")] {
                assert_eq!(read(&harmless, &[keyword]), Ok(()), "{harmless}");
            }
        }
        let problem = read(&format!("{{\"patternProperties\":{{}},{closed}}}"), &[]).unwrap_err();
        assert!(problem.contains("name both"), "what mends nothing is not advised: {problem}");
        assert_eq!(read(&format!("{{\"properties\":{{}},{closed}}}"), &[]), Ok(()));
    }

    #[test]
    fn a_schema_may_refer_to_itself_further_down() {
        let tree = r##"{"type":"object","properties":{"next":{"$ref":"#"}}}"##;
        assert_eq!(Schema::new(&parse(tree).unwrap(), &[]).unwrap().nodes.len(), 2);
    }
}
