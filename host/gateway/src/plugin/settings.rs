//! A plugin's settings, a line each, as its schema has them. It has been read by the sandbox; what a line cannot say, such
//! as an alternative of whole objects, is left to the schema.

use serde_json::Value;

/// References that are followed, one after the other, and alternatives that are looked at of one schema.
const MAX_STEPS: usize = 8;
/// Words that a setting is one of are named where there are no more.
const MAX_WORDS: usize = 16;
/// Alternatives inside alternatives.
const MAX_DEPTH: usize = 3;

pub(super) fn lines(root: &Value) -> Vec<String> {
    let settings = resolved(root, root)["properties"].as_object().into_iter().flatten();
    let line = |(name, schema): (&String, &Value)| {
        let target = resolved(root, schema);
        let said = |keyword: &str| schema.get(keyword).or_else(|| target.get(keyword));
        let default = said("default").map_or("no default".into(), |value| format!("default {value}"));
        let about = said("description").and_then(Value::as_str).map(|about| format!(". {about}")).unwrap_or_default();
        let mut kinds = Vec::new();
        collect_kinds(root, schema, MAX_DEPTH, &mut kinds);
        let kinds = match said("enum").and_then(Value::as_array) {
            Some(words) if words.len() <= MAX_WORDS => {
                words.iter().map(Value::to_string).collect::<Vec<_>>().join(" or ")
            }
            _ if kinds.is_empty() => "any".to_owned(),
            _ => kinds.join(" or "),
        };
        format!("setting        {name}: {kinds}, {default}{about}")
    };
    settings.map(line).collect()
}

/// What a `$ref` leads to in the end, where it is a pointer into the document.
fn resolved<'s>(root: &'s Value, schema: &'s Value) -> &'s Value {
    let step = |at: &'s Value| root.pointer(at["$ref"].as_str()?.strip_prefix('#')?);
    let steps = std::iter::successors(Some(schema), |at| step(at)).take(MAX_STEPS);
    steps.last().unwrap_or(schema)
}

/// The types that a value may have, each once.
fn collect_kinds<'s>(root: &'s Value, schema: &'s Value, depth: usize, kinds: &mut Vec<&'s str>) {
    let schema = resolved(root, schema);
    let names = match &schema["type"] {
        Value::Array(names) => names.iter().collect(),
        name => vec![name],
    };
    for name in names.into_iter().filter_map(Value::as_str) {
        if !kinds.contains(&name) {
            kinds.push(name);
        }
    }
    if depth > 0 && schema["type"].is_null() {
        let inner = ["allOf", "anyOf", "oneOf"].iter().filter_map(|keyword| schema[keyword].as_array()).flatten();
        inner.take(MAX_STEPS).for_each(|part| collect_kinds(root, part, depth - 1, kinds));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_setting_is_told_of_wherever_its_schema_is() {
        let schema = json!({
            "$ref": "#/$defs/Config",
            "$defs": {
                "Config": {"type": "object", "properties": {
                    "word": {"type": "string", "default": "a", "description": "What to look for."},
                    "mode": {"$ref": "#/$defs/Mode", "default": "fast"},
                    "limit": {"anyOf": [{"type": "integer"}, {"type": "null"}, {"$ref": "#/$defs/Mode"}]},
                    "list": {"type": ["array", "null"]},
                    "free": true,
                    "action": {"type": "string", "enum": ["block", "flag"], "default": "flag"},
                    "many": {"type": "string", "enum": (0..99).map(|n| n.to_string()).collect::<Vec<_>>()},
                }},
                "Mode": {"description": "How.", "oneOf": [{"type": "string", "const": "fast"}, {"type": "string"}]},
            },
        });
        let expected = [
            "setting        word: string, default \"a\". What to look for.",
            "setting        mode: string, default \"fast\". How.",
            "setting        limit: integer or null or string, no default",
            "setting        list: array or null, no default",
            "setting        free: any, no default",
            "setting        action: \"block\" or \"flag\", default \"flag\"",
            "setting        many: string, no default",
        ];
        assert_eq!(lines(&schema), expected);
    }

    #[test]
    fn a_schema_that_leads_around_ends() {
        let around = json!({"properties": {"a": {"$ref": "#/properties/b"}, "b": {"$ref": "#/properties/a"}}});
        assert_eq!(lines(&around).len(), 2);
        let many: Vec<Value> = (0..100).map(|_| json!({"$ref": "#/properties/a"})).collect();
        assert_eq!(lines(&json!({"properties": {"a": {"anyOf": many}}})), ["setting        a: any, no default"]);
    }
}
