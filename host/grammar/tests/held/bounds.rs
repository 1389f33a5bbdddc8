//! What a model could go on with for ever: white space comes to an end, and what people and models write does not come to it.

use super::values::said_of;
use super::{follows, hermes, layout, tools};
use serde_json::{Value, json};

/// Objects and lists in each other, so many.
fn nested(levels: usize) -> Value {
    (0..levels).fold(json!({"n": -12.5e3, "none": [], "text": "a  b"}), |inner, level| match level % 2 {
        0 => json!({"list": [1, inner], "empty": {}}),
        _ => json!({"inner": inner, "is": true}),
    })
}

/// As `json.dumps` of Python and `JSON.stringify` do, too.
fn indented(value: &Value, by: &str) -> String {
    let by_two = serde_json::to_string_pretty(value).unwrap();
    let lines = by_two.lines().map(|line| {
        let text = line.trim_start();
        by.repeat((line.len() - text.len()) / 2) + text
    });
    lines.collect::<Vec<_>>().join("\n")
}

fn any_style(value: &Value) -> Vec<String> {
    let spaced = value.to_string().replace(':', ": ").replace(',', ", ");
    let mut styles = vec![value.to_string(), spaced];
    styles.extend(["  ", "    ", "\t"].map(|by| indented(value, by)));
    styles.push(indented(value, "  ").replace('\n', "\r\n"));
    styles
}

#[test]
fn json_may_be_written_in_any_of_the_usual_styles() {
    let node = json!({"type": "object", "additionalProperties": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": ["number", "string", "boolean"]},
        {"type": "array", "items": {"anyOf": [{"type": "integer"}, {"$ref": "#/$defs/node"}]}}]}});
    let typed = json!({"$ref": "#/$defs/node", "$defs": {"node": node}});
    // A list in an object indents twice.
    let value = nested(5);
    assert!(indented(&value, "x").contains("\nxxxxxxxxx\"n\""), "nine levels");
    for text in any_style(&value) {
        for schema in [json!({"type": "object"}), typed.clone()] {
            assert_eq!(said_of(schema, &[&text]), [text.as_str()]);
        }
    }
    let call = json!({"name": "any-thing", "arguments": value});
    for text in any_style(&call) {
        assert!(follows(&tools(hermes(), true, None).source(), &format!("«\n{text}\n»")), "{text}");
    }
}

#[test]
fn white_space_comes_to_an_end_wherever_it_may_be() {
    let long = format!("\n\n{}", " ".repeat(40));
    let source = layout(json!({"type": "array", "items": {"type": "integer"}})).source();
    for outside in [" [1]", "\n[1]", "[1] ", "[1]\n"] {
        assert!(!follows(&source, outside), "{outside:?}");
    }
    for (before, behind) in [("[", "1]"), ("[1", ",2]"), ("[1,", "2]"), ("[1", "]")] {
        assert!(follows(&source, &format!("{before}{long}{behind}")), "{before:?}");
        assert!(!follows(&source, &format!("{before}{long} ")), "{before:?}");
        assert!(!follows(&source, &format!("{before}{long}\n")), "{before:?}");
        assert!(!follows(&source, &format!("{before}\n\n\n")), "{before:?}");
    }
    let source = tools(hermes(), true, None).source();
    for before in ["«", "«{", r#"«{"name""#, r#"«{"name": "find","#] {
        assert!(follows(&source, &format!("{before}{long}")), "{before:?}");
        assert!(!follows(&source, &format!("{before}{long} ")), "{before:?}");
        assert!(!follows(&source, &format!("{before}     ")), "{before:?}");
    }
}
