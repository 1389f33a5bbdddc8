//! What a server checks of the tools that a plugin offers.

use crate::host::fake::values::Values;
use crate::types::ToolDef;

const MAX_TOOLS: usize = 128;
const MAX_NAME_BYTES: usize = 64;

/// Checks a list of tools as a server does, which takes all of it or none.
///
/// # Panics
/// When a server would refuse it: there are too many, a name is none that every model's format carries or is there twice,
/// a schema is no JSON object, or all schemas together have more values than a server keeps.
#[expect(clippy::panic, reason = "a test helper fails its test")]
pub fn assert_tools_are_taken(tools: &[ToolDef]) {
    if let Err(why) = check(tools) {
        panic!("a server refuses these tools: {why}");
    }
}

fn check(tools: &[ToolDef]) -> Result<(), String> {
    if tools.len() > MAX_TOOLS {
        return Err(format!("{} tools; at most {MAX_TOOLS}", tools.len()));
    }
    let mut values = Values::of_result();
    for (at, ToolDef { name, input_schema, .. }) in tools.iter().enumerate() {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
        if name.is_empty() || name.len() > MAX_NAME_BYTES || !name.chars().all(is_plain) {
            return Err(format!("tool name {name:?} is not [A-Za-z0-9_-]{{1,{MAX_NAME_BYTES}}}"));
        }
        if !values.take(input_schema, &format!("the schema of tool `{name}`"))?.is_object() {
            return Err(format!("the schema of tool `{name}` is not an object"));
        }
        if tools[..at].iter().any(|other| other.name == *name) {
            return Err(format!("tool `{name}` is there twice"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::ToolHints;

    fn tool(name: &str, input_schema: &str) -> ToolDef {
        let (hints, attrs) = (ToolHints::PURE, Vec::new());
        ToolDef { name: name.into(), description: String::new(), input_schema: input_schema.into(), hints, attrs }
    }

    #[test]
    fn tools_that_a_server_refuses_are_told() {
        let zeros = |count: usize| format!("{{\"enum\":[{}0]}}", "0,".repeat(count - 1));
        assert_tools_are_taken(&[tool("a", &zeros(8190)), tool("b", &zeros(8190))]);
        for (tools, why) in [
            (vec![tool("a", &zeros(8190)), tool("b", &zeros(8191))], "the schema of tool `b` has too many values"),
            (vec![tool("a b", "{}")], "tool name \"a b\""),
            (vec![tool("", "{}")], "tool name \"\""),
            (vec![tool(&"a".repeat(65), "{}")], "[A-Za-z0-9_-]{1,64}"),
            (vec![tool("a", "{}"), tool("a", "{}")], "tool `a` is there twice"),
            (vec![tool("a", "[]")], "the schema of tool `a` is not an object"),
            (vec![tool("a", "{")], "the schema of tool `a` is not JSON"),
            (vec![tool("a", "{}"); 129], "129 tools; at most 128"),
        ] {
            let said = check(&tools).unwrap_err();
            assert!(said.contains(why), "{why}: {said}");
        }
    }
}
