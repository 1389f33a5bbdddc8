//! The object that a response is.

use crate::items::usage;
use crate::report;
use serde_json::{Map, Value, json};
use tidegate_types::{FinishReason, Reject, Report, Usage};

/// What is known of a response from its beginning.
#[derive(Clone, Debug)]
pub struct Head {
    /// Names it within its tenant.
    pub id: String,
    /// Unix seconds.
    pub created: u64,
    /// Who answers.
    pub model: String,
    /// Whether it is kept.
    pub store: bool,
    /// What amounts are in.
    pub currency: String,
    /// What it repeats of the request.
    pub echo: Map<String, Value>,
}

/// How a response ended.
#[derive(Clone, Debug, PartialEq)]
pub enum Ended {
    /// The model has ended its answer.
    Finished(FinishReason),
    /// It broke off.
    Failed(Reject),
    /// Somebody asked for its end.
    Cancelled,
}

impl Ended {
    /// The wire's word for it.
    pub fn status(&self) -> &'static str {
        match self {
            Self::Finished(FinishReason::Stop | FinishReason::ToolCalls) => "completed",
            Self::Finished(FinishReason::Length | FinishReason::ContentFilter) => "incomplete",
            Self::Failed(_) => "failed",
            Self::Cancelled => "cancelled",
        }
    }

    /// OpenAI knows no event for a cancelled response: like an incomplete one it is the last word.
    pub(super) fn event(&self) -> &'static str {
        match self.status() {
            "completed" => "response.completed",
            "failed" => "response.failed",
            _ => "response.incomplete",
        }
    }
}

impl Head {
    /// The object while it is made, or once it has `ended`, with its items.
    pub(super) fn object(
        &self,
        status: &str,
        ended: Option<(&Ended, u64)>,
        output: Vec<Value>,
        counted: Option<Usage>,
        known: &Report,
    ) -> Value {
        let incomplete = match ended {
            Some((Ended::Finished(FinishReason::Length), _)) => json!({"reason": "max_output_tokens"}),
            Some((Ended::Finished(FinishReason::ContentFilter), _)) => json!({"reason": "content_filter"}),
            _ => Value::Null,
        };
        let error = match ended {
            Some((Ended::Failed(reject), _)) => failure(reject),
            _ => Value::Null,
        };
        let completed = ended.filter(|(ended, _)| ended.status() == "completed").map(|(_, at)| at);
        let mut object = json!({"id": self.id, "object": "response", "created_at": self.created,
            "completed_at": completed, "status": status, "error": error, "incomplete_details": incomplete,
            "model": self.model, "output": output, "store": self.store, "usage": counted.map(usage)});
        if let Value::Object(members) = &mut object {
            members.extend(self.echo.clone());
            // Not in OpenAI's API.
            members.insert("context".into(), json!({"left_out": known.left_out, "summarized": known.summarized}));
            members.extend(report::members(known, &self.currency));
        }
        object
    }
}

fn failure(reject: &Reject) -> Value {
    json!({"code": reject.code.as_deref().unwrap_or("server_error"), "message": reject.message})
}

/// The object of a response that was being made, once it is known that it never will be.
pub fn failed_object(body: &str, reject: &Reject) -> String {
    let mut object: Value = serde_json::from_str(body).unwrap_or_else(|_| json!({"object": "response"}));
    object["status"] = "failed".into();
    object["error"] = failure(reject);
    object.to_string()
}

/// The object of a response without one item of its output, and without the calls that the last of them tells.
pub fn without_item(body: &str, item: &str) -> String {
    let mut object: Value = serde_json::from_str(body).unwrap_or_else(|_| json!({"object": "response"}));
    let Some(output) = object.get_mut("output").and_then(Value::as_array_mut) else { return object.to_string() };
    let was_last = output.last().is_some_and(|last| last["id"] == item);
    output.retain(|shown| shown["id"] != item);
    if let (true, Some(members)) = (was_last, object.as_object_mut()) {
        members.remove("tool_calls");
    }
    object.to_string()
}

/// What a response that is not kept is told to be, where somebody asks for its end.
pub fn status_of(id: &str, status: &str) -> String {
    json!({"id": id, "object": "response", "status": status, "output": []}).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_item_is_left_out_with_what_is_told_of_the_last() {
        let body =
            json!({"id": "r", "output": [{"id": "a", "x": 1}, {"id": "b"}], "tool_calls": [{"arguments": "{}"}]});
        let without = |item: &str| serde_json::from_str::<Value>(&without_item(&body.to_string(), item)).unwrap();
        let calls = json!([{"arguments": "{}"}]);
        assert_eq!(without("a"), json!({"id": "r", "output": [{"id": "b"}], "tool_calls": calls}));
        assert_eq!(without("b"), json!({"id": "r", "output": [{"id": "a", "x": 1}]}));
        assert_eq!(without("c"), body);
        assert_eq!(without_item(r#"{"status":"failed"}"#, "a"), r#"{"status":"failed"}"#);
    }
}
