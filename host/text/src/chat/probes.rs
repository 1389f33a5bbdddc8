//! What a template takes of past tool calls, found out once by rendering some.

use super::ChatRenderer;
use crate::call_ids::CallIdForm;
use crate::conversation::{ArgumentsForm, CallsForm};
use crate::template::Room;
use serde_json::{Value, json};
use std::time::SystemTime;
use tidegate_types::Role;

/// Ids of probes, of the forms that there are.
const SHORT_ID: &str = "call00001";
const OTHER_SHORT_ID: &str = "call00002";
const LONG_ID: &str = "call_0123456789abcdef01234567";
/// Arguments of probes, as text.
const PROBE_TEXT: &str = "{\"probe\": \"value\"}";

impl ChatRenderer {
    /// In this order: each probe writes its calls as those before it have found.
    pub(super) fn probe_all(&mut self) {
        self.conventions.arguments = self.probe_arguments();
        self.conventions.call_ids = self.probe_call_ids();
        self.conventions.calls = self.probe_calls();
    }

    /// Renders a past tool call both ways. Objects are the rule; text it is where objects fail or are printed
    /// in Python's quotes, and text is not.
    fn probe_arguments(&self) -> ArgumentsForm {
        let fits = |arguments: Value| {
            let rendered = self.probe(vec![called(&[("f", SHORT_ID)], &arguments)]);
            rendered.is_some_and(|text| !text.contains("'probe'") && !text.contains("\\\"probe\\\""))
        };
        let text_fits = || fits(PROBE_TEXT.into());
        if !fits(probe_object()) && text_fits() { ArgumentsForm::Text } else { ArgumentsForm::Object }
    }

    /// Renders a past call with its outcome under both ids.
    fn probe_call_ids(&self) -> CallIdForm {
        let fits = |id: &str| self.probe(vec![self.called(&[("f", id)]), told(id)]).is_some();
        if !fits(LONG_ID) && fits(SHORT_ID) { CallIdForm::Short } else { CallIdForm::Any }
    }

    /// Renders two past calls in one message, which some templates refuse and others show the first of, and in two.
    fn probe_calls(&self) -> CallsForm {
        let [one, two] = [("probe_one", SHORT_ID), ("probe_two", OTHER_SHORT_ID)];
        let fits = |messages: Vec<Value>| {
            self.probe(messages).is_some_and(|text| [one, two].iter().all(|(name, _)| text.contains(name)))
        };
        let together = || fits(vec![self.called(&[one, two]), told(one.1), told(two.1)]);
        let each = || fits(vec![self.called(&[one]), told(one.1), self.called(&[two]), told(two.1)]);
        if !together() && each() { CallsForm::OneEach } else { CallsForm::Together }
    }

    /// A question and what came after it, as the template renders it; `None` where it does not.
    fn probe(&self, after: Vec<Value>) -> Option<String> {
        let question = json!({"role": Role::User.as_str(), "content": "q"});
        let messages: Vec<Value> = std::iter::once(question).chain(after).collect();
        let mut context = self.named_tokens.clone();
        context.insert("messages".to_owned(), messages.into());
        let tool = json!({"name": "f", "description": "d", "parameters": {"type": "object", "properties": {}}});
        context.insert("tools".to_owned(), json!([{"type": "function", "function": tool}]));
        context.insert("add_generation_prompt".to_owned(), false.into());
        self.template.render(&Value::Object(context), true, SystemTime::UNIX_EPOCH, &Room::ALL).ok()
    }

    /// An assistant's message that calls tools, by their names and the ids of the calls.
    fn called(&self, calls: &[(&str, &str)]) -> Value {
        match self.conventions.arguments {
            ArgumentsForm::Object => called(calls, &probe_object()),
            ArgumentsForm::Text => called(calls, &PROBE_TEXT.into()),
        }
    }
}

fn probe_object() -> Value {
    json!({"probe": "value"})
}

fn called(calls: &[(&str, &str)], arguments: &Value) -> Value {
    let call = |(name, id): &(&str, &str)| json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}});
    let calls: Vec<Value> = calls.iter().map(call).collect();
    json!({"role": Role::Assistant.as_str(), "content": "", "tool_calls": calls})
}

/// An outcome; its tool's name is none that is looked for.
fn told(id: &str) -> Value {
    json!({"role": Role::Tool.as_str(), "content": "c", "tool_call_id": id, "name": "f"})
}
