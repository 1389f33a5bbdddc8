//! A prompt guard's first look, held to what the guard does when it is asked.

use super::is_streamed;
use crate::plugin::fixture::Ask;
use crate::plugin::workbench::{World, context};
use anyhow::{Context, bail};
use serde_json::Value;

/// Fails where a guard that allows a case's prompt at a glance did more about it when it was asked: `outcome` has what it said and counted then.
pub(in crate::plugin) async fn hold_glance(world: &World, ask: &Ask, outcome: &Value) -> anyhow::Result<()> {
    let Ask::Prompt(prompt) = ask else { return Ok(()) };
    let is_allowed = world.plugin.glance_prompt(&context(is_streamed(ask)), &prompt.messages).await;
    let is_allowed = is_allowed.context("at a glance")?;
    match more(outcome).filter(|_| is_allowed) {
        Some(what) => bail!("at a glance it allows the prompt and finds nothing; asked about it, it {what}"),
        None => Ok(()),
    }
}

/// What it did beside that it allowed the prompt.
fn more(outcome: &Value) -> Option<String> {
    if let Some(error) = outcome["error"].as_str() {
        return Some(format!("fails: {error}"));
    }
    let some = |what: &Value| match what {
        Value::Array(items) => !items.is_empty(),
        Value::Object(entries) => !entries.is_empty(),
        _ => false,
    };
    let what = match outcome["action"].as_str() {
        Some("rewrite") => "rewrites some of it",
        Some("respond") => "answers in the model's place",
        Some("refuse") => "refuses it",
        _ if some(&outcome["findings"]) => "has findings",
        _ if some(&outcome["attrs"]) => "has attributes",
        _ if some(&outcome["counted"]) => return Some(format!("counts {}", outcome["counted"])),
        _ => return None,
    };
    Some(what.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_glance_is_held_to_all_that_a_guard_does() {
        let after = |key: &str, value: Value| {
            let mut outcome = json!({"action": "allow", "findings": [], "attrs": {}, "counted": {}, "text": "a"});
            outcome[key] = value;
            more(&outcome)
        };
        assert_eq!(after("text", json!("b")), None);
        for (key, value, what) in [
            ("action", json!("rewrite"), "rewrites some of it"),
            ("action", json!("respond"), "answers in the model's place"),
            ("action", json!("refuse"), "refuses it"),
            ("findings", json!(["g:x"]), "has findings"),
            ("attrs", json!({"g/a": 1}), "has attributes"),
            ("counted", json!({"seen": 2}), r#"counts {"seen":2}"#),
        ] {
            assert_eq!(after(key, value).as_deref(), Some(what));
        }
        assert_eq!(more(&json!({"error": "no"})).as_deref(), Some("fails: no"));
    }
}
