//! `/v1/memories`: what plugins remember of a caller. Not in OpenAI's API.

use crate::conversations::for_each;
use crate::field::{list, missing, refuse, short_string};
use crate::json::parse;
use crate::path::Path;
use bytes::Bytes;
use serde_json::{Value, json};
use tidegate_types::{Memory, Reject};

/// Memories that are forgotten by one request.
const MAX_IDS: usize = 100;
const MAX_ID_BYTES: usize = 1024;

/// Reads the ids in the body of `POST /v1/memories/forget`.
pub fn parse_forget(body: &[u8]) -> Result<Vec<String>, Reject> {
    let mut ids = None;
    for_each(parse(body)?, &Path::ROOT, |key, node, at| {
        if key != "ids" {
            return Ok(false);
        }
        let nodes = list(node, at)?;
        if nodes.is_empty() || nodes.len() > MAX_IDS {
            let found = nodes.len();
            let message = |param: &str| format!("`{param}` must have 1 to {MAX_IDS} ids, not {found}");
            return Err(refuse(at, "invalid_value", message));
        }
        let read = nodes.into_iter().enumerate().map(|(idx, node)| short_string(node, &at.index(idx), MAX_ID_BYTES));
        ids = Some(read.collect::<Result<_, _>>()?);
        Ok(true)
    })?;
    ids.ok_or_else(|| missing(&Path::ROOT.key("ids"), "the ids of the memories, as `GET /v1/memories` gives them"))
}

/// The body of `GET /v1/memories`.
pub fn list_body(memories: &[Memory]) -> Bytes {
    let shown: Vec<Value> = memories.iter().map(shown).collect();
    json!({"object": "list", "data": shown}).to_string().into()
}

/// The answer to `POST /v1/memories/forget`.
pub fn forgotten_body(forgotten: u32) -> Bytes {
    json!({"object": "memories.forgotten", "forgotten": forgotten}).to_string().into()
}

fn shown(memory: &Memory) -> Value {
    json!({"object": "memory", "id": memory.id, "text": memory.text, "score": memory.score})
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(body: &str, expected: Result<&[&str], &str>) {
        let read = parse_forget(body.as_bytes()).map_err(|reject| reject.message);
        match expected {
            Ok(ids) => assert_eq!(read.unwrap(), ids),
            Err(part) => assert!(read.clone().unwrap_err().contains(part), "{body}: {read:?}"),
        }
    }

    #[test]
    fn ids_are_read_and_what_is_none_is_named() {
        check(r#"{"ids": ["notes/line-0", "names/name"]}"#, Ok(&["notes/line-0", "names/name"]));
        check("{}", Err("`ids` is required"));
        check(r#"{"ids": []}"#, Err("1 to 100 ids, not 0"));
        check(r#"{"ids": "all"}"#, Err("`ids` must be a list"));
        check(r#"{"ids": [1]}"#, Err("`ids[0]` must be a string"));
        check(r#"{"ids": [""]}"#, Err("`ids[0]` must not be empty"));
        check(r#"{"ids": ["a"], "plugin": "x"}"#, Err("`plugin` is not supported"));
    }
}
