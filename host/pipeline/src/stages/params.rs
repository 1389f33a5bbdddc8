//! What prompt guards are told about a request beside its messages: every parameter that can change the answer.

use crate::chat::Stages;
use crate::stage::Stage;
use serde_json::Value;
use tidegate_types::{Chat, Form, ROUTED_MODEL, Sampling, Scope, ToolChoice};

/// What `stage` is told of a request: [`of_chat`], and what is added behind the guards that is not for every caller alike.
/// `tidegate_plugins` names the plugins of a key that has not all, `tidegate_models` the models of one, where a router chooses,
/// and `tidegate_memories` other memories than its own.
pub(super) fn of(chat: &Chat, scope: &Scope, stages: &Stages, stage: &Stage) -> Vec<(String, String)> {
    let mut params = of_chat(chat);
    if let Some(plugins) = &scope.plugins {
        params.push(("tidegate_plugins".into(), Value::from_iter(plugins.iter().map(String::as_str)).to_string()));
    }
    if let Some(models) = scope.models.as_ref().filter(|_| chat.model == ROUTED_MODEL) {
        params.push(("tidegate_models".into(), Value::from_iter(models.iter().map(String::as_str)).to_string()));
    }
    let memories = stages.memories.iter().map(|memory| &memory.stage.name);
    let others: Vec<&str> =
        memories.filter(|name| **name != stage.name && scope.has(name)).map(|name| name.as_ref()).collect();
    if !others.is_empty() {
        params.push(("tidegate_memories".into(), Value::from(others).to_string()));
    }
    params
}

/// Names and JSON: `model` and `form` always, of the others what the caller gave; names are OpenAI's.
fn of_chat(chat: &Chat) -> Vec<(String, String)> {
    // A name needs no `Value` to become JSON.
    let model = serde_json::to_string(chat.model.as_str()).unwrap_or_default();
    let mut params = vec![("model".to_owned(), model)];
    match chat.form {
        Form::Chat => params.push(("form".into(), "\"chat\"".into())),
        Form::Completion { echo } => {
            params.extend([("form".into(), "\"completion\"".into()), ("echo".into(), echo.to_string())]);
        }
    }
    // Most requests give none of them, and this is asked for each guard.
    if chat.sampling != Sampling::default()
        && let Ok(Value::Object(sampling)) = serde_json::to_value(&chat.sampling)
    {
        let given = sampling.into_iter().filter(|(_, value)| !value.is_null() && *value != Value::Array(Vec::new()));
        params.extend(given.map(|(name, value)| (name, value.to_string())));
    }
    if !chat.stop.is_empty() {
        params.push(("stop".into(), Value::from(chat.stop.clone()).to_string()));
    }
    if let Some(tokens) = chat.max_tokens {
        params.push(("max_tokens".into(), tokens.to_string()));
    }
    if chat.n != 1 {
        params.push(("n".into(), chat.n.to_string()));
    }
    let choice = match &chat.tool_choice {
        ToolChoice::Auto => None,
        ToolChoice::None => Some("none".into()),
        ToolChoice::Required => Some("required".into()),
        ToolChoice::Named(name) => Some(serde_json::json!({ "name": name })),
    };
    params.extend(choice.map(|choice: Value| ("tool_choice".to_owned(), choice.to_string())));
    params.extend(chat.parallel_tool_calls.map(|may| ("parallel_tool_calls".to_owned(), may.to_string())));
    params.extend(chat.extra.iter().map(|(name, value)| (name.clone(), value.to_string())));
    params
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use tidegate_types::{Message, Role};

    #[test]
    fn what_can_change_an_answer_is_told_and_what_was_not_given_is_not() {
        let mut chat = Chat { stream: true, ..Chat::new("a \"model\"", vec![Message::text("m0", Role::User, "hi")]) };
        let told = |chat: &Chat| {
            let pairs = of_chat(chat).into_iter().map(|(name, value)| (name, serde_json::from_str(&value).unwrap()));
            Value::Object(pairs.collect())
        };
        assert_eq!(told(&chat), json!({"model": "a \"model\"", "form": "chat"}));
        chat.form = Form::Completion { echo: true };
        chat.sampling = Sampling { temperature: Some(0.5), seed: Some(7), ..Sampling::default() };
        (chat.max_tokens, chat.n, chat.stop) = (Some(9), 2, vec!["x".into()]);
        chat.tool_choice = ToolChoice::Named("add".into());
        chat.parallel_tool_calls = Some(false);
        chat.extra.insert("response_format".into(), json!({"type": "json_object"}));
        let expected = json!({"model": "a \"model\"", "form": "completion", "echo": true, "temperature": 0.5, "seed": 7,
            "max_tokens": 9, "n": 2, "stop": ["x"], "tool_choice": {"name": "add"}, "parallel_tool_calls": false,
            "response_format": {"type": "json_object"}});
        assert_eq!(told(&chat), expected);
    }

    #[test]
    fn what_a_key_has_of_the_models_is_told_where_a_router_chooses_among_them() {
        let scope = Scope { models: Some(["small".to_owned()].into()), ..Scope::default() };
        let stage = crate::stage::tests::shipped();
        let told = |model: &str, scope: &Scope| {
            let params = of(&Chat::new(model, Vec::new()), scope, &Stages::default(), &stage);
            params.into_iter().find(|(name, _)| name == "tidegate_models").map(|(_, models)| models)
        };
        assert_eq!(told("auto", &scope).as_deref(), Some("[\"small\"]"));
        assert_eq!((told("small", &scope), told("auto", &Scope::default())), (None, None));
    }
}
