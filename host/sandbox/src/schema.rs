//! A JSON Schema validator for plugin configs: what schemars, pydantic, zod and TypeBox write, by draft 2020-12 and with
//! the older forms of drafts 7 and 2019-09. A schema with another keyword is refused, so that no check is promised and not
//! made; `format` promises none. Each message names the key.
//!
//! One difference from JSON Schema: an object with `properties` refuses other keys unless a schema allows them (see
//! `known`). A misspelt key in a config is a mistake, not an extension.
//!
//! A schema comes from a plugin's author, who may mean harm: it is read in time and memory that grow with its text, and
//! checked within a number of steps. Read `read` first, then `check`.

mod canonical;
mod check;
mod contents;
mod in_place;
mod integer;
mod keyword;
mod known;
mod node;
mod number;
mod pattern;
mod read;
mod reference;
mod scalar;
#[cfg(test)]
mod tests;

pub(crate) use known::NO_SUCH_KEY;
use serde_json::Value;

/// Where a schema or a config is wrong, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Violation {
    /// `.words[2]`; empty for the whole.
    pub(crate) path: String,
    pub(crate) message: String,
}

type Outcome = Result<(), Violation>;

fn wrong(path: &str, message: impl Into<String>) -> Violation {
    Violation { path: path.into(), message: message.into() }
}

/// Whether this host understands the schema of a config: all of it, and it describes an object.
pub(crate) fn check_schema(schema: &Value) -> Outcome {
    match reference::describes_object(&read::read(schema)?) {
        true => Ok(()),
        false => Err(wrong("", "a config is an object: `\"type\": \"object\"`")),
    }
}

/// Holds a value against a schema that [`check_schema`] accepted, and gives it as a plugin is given it: where the schema says
/// `integer`, `5.0` as `5`.
pub(crate) fn validate(schema: &Value, mut value: Value) -> Result<Value, Violation> {
    let integers = check::check(&read::read(schema)?, &value)?;
    integer::write(&mut value, &integers);
    Ok(value)
}
