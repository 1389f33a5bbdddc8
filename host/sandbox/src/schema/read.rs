//! Reads a schema: every keyword of every subschema, also of those that nothing refers to, is one that is checked or one
//! that only tells (an annotation). Every subschema is kept with where it stands, for `reference` to find.

use super::keyword;
use super::node::{Node, NodeIdx, Schema};
use super::number::Bound;
use super::pattern::Patterns;
use super::reference::Reference;
use super::{Outcome, Violation, wrong};
use serde_json::{Map, Value};
use std::collections::{BTreeMap, HashMap};
use std::fmt::{Arguments, Write};

/// Schemas inside each other.
const MAX_DEPTH: usize = 32;
const MAX_NODES: usize = 10_000;
/// Bytes of the path to a schema: it is kept for each `$ref`.
const MAX_PATH: usize = keyword::MAX_NAME;

/// Keywords that say something to people and to forms. `format` is one of them by the standard, and so are `content...`;
/// `discriminator` is OpenAPI's, and tells which of a `oneOf` it will be.
const ANNOTATIONS: [&str; 14] = [
    "$schema",
    "$comment",
    "title",
    "description",
    "default",
    "examples",
    "deprecated",
    "readOnly",
    "writeOnly",
    "format",
    "contentEncoding",
    "contentMediaType",
    "contentSchema",
    "discriminator",
];

pub(super) fn read(root: &Value) -> Result<Schema, Violation> {
    let mut reader = Reader {
        nodes: Vec::new(),
        patterns: Patterns::default(),
        places: HashMap::new(),
        names: HashMap::new(),
        references: Vec::new(),
        base: root,
        path: String::new(),
        depth: 0,
    };
    reader.schema(root)?;
    super::reference::resolve(reader)
}

pub(super) struct Reader<'s> {
    pub(super) nodes: Vec<Node>,
    pub(super) patterns: Patterns,
    /// Which of the document's values are schemas, by their address.
    pub(super) places: HashMap<*const Value, NodeIdx>,
    /// By `$id`, and by `$anchor` with its `#`.
    pub(super) names: HashMap<String, NodeIdx>,
    pub(super) references: Vec<Reference<'s>>,
    /// What a `$ref` that begins with `#` starts from: the nearest schema around it with an `$id`, or the root.
    base: &'s Value,
    path: String,
    depth: usize,
}

type Members<'s> = &'s Map<String, Value>;

impl<'s> Reader<'s> {
    fn schema(&mut self, schema: &'s Value) -> Result<NodeIdx, Violation> {
        let at = self.nodes.len();
        if at == MAX_NODES {
            return Err(self.wrong(format!("it has more than {MAX_NODES} schemas")));
        }
        if self.path.len() > MAX_PATH {
            return Err(self.wrong(format!("its keys up to here have more than {MAX_PATH} bytes")));
        }
        self.nodes.push(Node::default());
        self.places.insert(std::ptr::from_ref(schema), at);
        match schema {
            Value::Bool(holds) => self.nodes[at].is_false = !holds,
            Value::Object(_) if self.depth == MAX_DEPTH => {
                return Err(self.wrong(format!("it is nested more than {MAX_DEPTH} deep")));
            }
            Value::Object(members) => self.members(at, schema, members)?,
            _ => return Err(self.wrong("a schema is an object or a boolean")),
        }
        Ok(at)
    }

    fn members(&mut self, at: NodeIdx, schema: &'s Value, members: Members<'s>) -> Outcome {
        let outer = self.base;
        // A fragment alone names a place, and is no document of its own.
        if members.get("$id").and_then(Value::as_str).is_some_and(|id| !id.starts_with('#')) {
            self.base = schema;
        }
        self.depth += 1;
        for (keyword, value) in members {
            self.under(format_args!(".{keyword}"), |reader| reader.keyword(at, members, keyword, value))?;
        }
        self.depth -= 1;
        self.base = outer;
        Ok(())
    }

    fn keyword(&mut self, at: NodeIdx, members: Members<'s>, keyword: &str, value: &'s Value) -> Outcome {
        let is_known = self.name(at, keyword, value)?
            || self.in_place(at, keyword, value)?
            || self.object(at, keyword, value)?
            || self.array(at, members, keyword, value)?
            || self.scalar(at, keyword, value)?
            || ANNOTATIONS.contains(&keyword)
            || keyword.starts_with("x-");
        match is_known {
            true => Ok(()),
            false => {
                Err(self.wrong("this host does not check this keyword; see the contract's README for those it does"))
            }
        }
    }

    /// What schemas are called, and where more of them are. `$id` and `$anchor` tell no more than that.
    fn name(&mut self, at: NodeIdx, keyword: &str, value: &'s Value) -> Result<bool, Violation> {
        match keyword {
            "$ref" => {
                let target = self.must(value.as_str(), "a string")?;
                self.references.push(Reference { from: at, target, base: self.base, path: self.path.clone() });
            }
            "$id" | "$anchor" => {
                let name = self.must(value.as_str(), "a string")?;
                let name = if keyword == "$id" { name.to_owned() } else { format!("#{name}") };
                if self.names.insert(name, at).is_some() {
                    return Err(self.wrong("there is another schema of this name"));
                }
            }
            "$defs" | "definitions" => drop(self.by_name(value)?),
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn in_place(&mut self, at: NodeIdx, keyword: &str, value: &'s Value) -> Result<bool, Violation> {
        match keyword {
            "allOf" => self.nodes[at].in_place.all_of = self.list(value)?,
            "anyOf" => self.nodes[at].in_place.any_of = self.list(value)?,
            "oneOf" => self.nodes[at].in_place.one_of = self.list(value)?,
            "not" => self.nodes[at].in_place.not = Some(self.schema(value)?),
            "if" => self.nodes[at].in_place.condition = Some(self.schema(value)?),
            "then" => self.nodes[at].in_place.then = Some(self.schema(value)?),
            "else" => self.nodes[at].in_place.otherwise = Some(self.schema(value)?),
            "dependentSchemas" => self.nodes[at].in_place.dependent = self.by_name(value)?.into_iter().collect(),
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn object(&mut self, at: NodeIdx, keyword: &str, value: &'s Value) -> Result<bool, Violation> {
        match keyword {
            "properties" => self.nodes[at].object.properties = Some(self.by_name(value)?),
            "patternProperties" => self.nodes[at].object.patterns = Some(self.by_pattern(value)?),
            "additionalProperties" => self.nodes[at].object.additional = Some(self.schema(value)?),
            "unevaluatedProperties" => self.nodes[at].object.unevaluated = Some(self.schema(value)?),
            "propertyNames" => self.nodes[at].object.names = Some(self.schema(value)?),
            "required" => self.nodes[at].object.required = self.must(keyword::names(value), "an array of names")?,
            "dependentRequired" => {
                let names = self.must(keyword::names_by_name(value), "an object of arrays of names")?;
                self.nodes[at].object.dependent_required = names;
            }
            "minProperties" => self.nodes[at].object.count.least = Some(self.count(value)?),
            "maxProperties" => self.nodes[at].object.count.most = Some(self.count(value)?),
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Before draft 2020-12, `items` could be what is `prefixItems` now, and `additionalItems` what is `items`.
    fn array(&mut self, at: NodeIdx, members: Members<'s>, keyword: &str, value: &'s Value) -> Result<bool, Violation> {
        let is_older = members.get("items").is_some_and(Value::is_array);
        match keyword {
            "prefixItems" if is_older => return Err(self.wrong("`items` is an array; it is a schema beside this")),
            "prefixItems" => self.nodes[at].array.prefix = self.list(value)?,
            "items" if is_older => self.nodes[at].array.prefix = self.list(value)?,
            "items" => self.nodes[at].array.items = Some(self.schema(value)?),
            "additionalItems" => {
                let rest = self.schema(value)?;
                // Beside a schema in `items` it says nothing.
                if is_older {
                    self.nodes[at].array.items = Some(rest);
                }
            }
            "uniqueItems" => self.nodes[at].array.are_unique = self.must(value.as_bool(), "true or false")?,
            "minItems" => self.nodes[at].array.count.least = Some(self.count(value)?),
            "maxItems" => self.nodes[at].array.count.most = Some(self.count(value)?),
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn scalar(&mut self, at: NodeIdx, keyword: &str, value: &'s Value) -> Result<bool, Violation> {
        match keyword {
            "type" => self.nodes[at].types = self.must(keyword::types(value), "a type or an array of types")?,
            "const" => self.nodes[at].constant = Some(keyword::constant(value)),
            "enum" => self.nodes[at].choices = Some(self.must(keyword::choices(value), "an array")?),
            "pattern" => {
                let source = self.must(value.as_str(), "a string")?;
                self.nodes[at].pattern = Some(self.patterns.add(source).map_err(|why| self.wrong(why))?);
            }
            "minLength" => self.nodes[at].characters.least = Some(self.count(value)?),
            "maxLength" => self.nodes[at].characters.most = Some(self.count(value)?),
            _ => {
                let Some(bound) = Bound::named(keyword) else { return Ok(false) };
                let number = self.must(keyword::bound(bound, value), keyword::bound_words(bound))?;
                self.nodes[at].bounds.push((bound, number));
            }
        }
        Ok(true)
    }

    fn list(&mut self, value: &'s Value) -> Result<Vec<NodeIdx>, Violation> {
        let parts = self.must(value.as_array().filter(|parts| !parts.is_empty()), "an array of schemas")?;
        let parts = parts.iter().enumerate();
        parts.map(|(index, part)| self.under(format_args!("[{index}]"), |reader| reader.schema(part))).collect()
    }

    fn by_name(&mut self, value: &'s Value) -> Result<BTreeMap<String, NodeIdx>, Violation> {
        let parts = self.must(value.as_object(), "an object")?.iter();
        let mut part = |name: &String, part| self.under(format_args!(".{name}"), |reader| reader.schema(part));
        parts.map(|(name, schema)| Ok((name.clone(), part(name, schema)?))).collect()
    }

    fn by_pattern(&mut self, value: &'s Value) -> Result<Vec<(usize, NodeIdx)>, Violation> {
        let parts = self.must(value.as_object(), "an object")?.iter();
        let read = |(source, part): (&String, &'s Value)| {
            self.under(format_args!(".{source}"), |reader| {
                let pattern = reader.patterns.add(source).map_err(|why| reader.wrong(why))?;
                Ok((pattern, reader.schema(part)?))
            })
        };
        parts.map(read).collect()
    }

    fn count(&self, value: &Value) -> Result<u64, Violation> {
        self.must(keyword::count(value), "a count")
    }

    fn must<T>(&self, read: Option<T>, what: &str) -> Result<T, Violation> {
        read.ok_or_else(|| self.wrong(format!("it is not {what}")))
    }

    fn wrong(&self, message: impl Into<String>) -> Violation {
        wrong(&self.path, message)
    }

    /// One step down, for as long as the work takes.
    fn under<T>(
        &mut self,
        step: Arguments<'_>,
        work: impl FnOnce(&mut Self) -> Result<T, Violation>,
    ) -> Result<T, Violation> {
        let outer = self.path.len();
        // To a string it cannot fail.
        let _ = self.path.write_fmt(step);
        let done = work(self)?;
        self.path.truncate(outer);
        Ok(done)
    }
}
