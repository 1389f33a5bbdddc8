//! What prompt guards are told about a request beside its messages: every parameter that can change the answer.

use crate::bounds::LengthBounds;
use crate::chat::Stages;
use crate::stage::Stage;
use serde_json::Value;
use tidegate_types::{Chat, Form, Quota, ROUTED_MODEL, Sampling, Scope, ToolChoice};

/// What `stage` is told of a request: [`of_chat`], and what is added behind the guards that is not for every caller alike.
/// `tidegate_plugins` names the plugins of a key that has not all, `tidegate_models` the models of one, where a router chooses,
/// `tidegate_memories` other memories than its own, `tidegate_tools` is `false` where a gateway in front has offered its own
/// tools and this one offers none; `tidegate_max_output_tokens` and `tidegate_max_context_tokens` bound what the caller gets.
pub(super) fn of(chat: &Chat, scope: &Scope, hops: u8, stages: &Stages, stage: &Stage) -> Vec<(String, String)> {
    let mut params = of_chat(chat);
    if hops > 0 && !stages.tools.is_empty() {
        params.push(("tidegate_tools".into(), "false".into()));
    }
    let LengthBounds { context, output } = LengthBounds::of_caller(scope, &Quota::default());
    // An answer that was asked for is as long as that, or refused.
    let output = output.filter(|_| chat.max_tokens.is_none());
    for (name, bound) in [("tidegate_max_context_tokens", context), ("tidegate_max_output_tokens", output)] {
        params.extend(bound.map(|bound| (name.to_owned(), bound.tokens.to_string())));
    }
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
    params.extend(of_sampling(&chat.sampling, chat.form).map(|(name, value)| (name.to_owned(), value)));
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

/// As the caller wrote them: by OpenAI's names, with the digits that tell one number from the next.
fn of_sampling(sampling: &Sampling, form: Form) -> impl Iterator<Item = (&'static str, String)> {
    let real = |real: Option<f32>| real.map(decimal);
    let biases = || sampling.logit_bias.iter().map(|(token, bias)| format!("\"{token}\":{}", decimal(*bias)));
    let bias = (!sampling.logit_bias.is_empty()).then(|| format!("{{{}}}", biases().collect::<Vec<_>>().join(",")));
    let count = sampling.logprobs.map(|count| count.to_string());
    let (logprobs, top_logprobs) = match form {
        Form::Chat => (count.as_ref().map(|_| "true".to_owned()), count),
        Form::Completion { .. } => (count, None),
    };
    let all = [
        ("temperature", real(sampling.temperature)),
        ("top_p", real(sampling.top_p)),
        ("top_k", sampling.top_k.map(|top_k| top_k.to_string())),
        ("min_p", real(sampling.min_p)),
        ("presence_penalty", real(sampling.presence_penalty)),
        ("frequency_penalty", real(sampling.frequency_penalty)),
        ("repetition_penalty", real(sampling.repetition_penalty)),
        ("seed", sampling.seed.map(|seed| (seed as i64).to_string())),
        ("logit_bias", bias),
        ("logprobs", logprobs),
        ("top_logprobs", top_logprobs),
    ];
    all.into_iter().filter_map(|(name, value)| Some((name, value?)))
}

/// 0.2 and not 0.20000000298023224, which is the same number in more digits. Those that callers send are finite.
fn decimal(real: f32) -> String {
    format!("{real:?}")
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
    fn numbers_are_told_as_the_caller_wrote_them() {
        let sampling = Sampling {
            temperature: Some(0.2),
            repetition_penalty: Some(1.0),
            seed: Some(-3_i64 as u64),
            logit_bias: vec![(5, -1.5), (7, 100.0)],
            logprobs: Some(2),
            ..Sampling::default()
        };
        let mut chat = Chat { sampling, ..Chat::new("m", Vec::new()) };
        let told = |chat: &Chat| {
            of_chat(chat).iter().skip(1).map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(" ")
        };
        let expected = "temperature=0.2 repetition_penalty=1.0 seed=-3 logit_bias={\"5\":-1.5,\"7\":100.0}";
        assert_eq!(told(&chat), format!("form=\"chat\" {expected} logprobs=true top_logprobs=2"));
        chat.form = Form::Completion { echo: false };
        assert_eq!(told(&chat), format!("form=\"completion\" echo=false {expected} logprobs=2"));
    }

    #[test]
    fn what_a_key_has_of_the_models_is_told_where_a_router_chooses_among_them() {
        let scope = Scope { models: Some(["small".to_owned()].into()), ..Scope::default() };
        let stage = crate::stage::tests::shipped();
        let told = |model: &str, scope: &Scope| {
            let params = of(&Chat::new(model, Vec::new()), scope, 0, &Stages::default(), &stage);
            params.into_iter().find(|(name, _)| name == "tidegate_models").map(|(_, models)| models)
        };
        assert_eq!(told("auto", &scope).as_deref(), Some("[\"small\"]"));
        assert_eq!((told("small", &scope), told("auto", &Scope::default())), (None, None));
    }

    #[test]
    fn what_a_caller_gets_less_of_than_another_is_told() {
        let key = Quota { max_output_tokens: Some(50), max_context_tokens: Some(900), ..Quota::default() };
        let tenant = Quota { max_output_tokens: Some(70), ..Quota::default() };
        let (scope, stage) = (Scope { key, tenant, ..Scope::default() }, crate::stage::tests::shipped());
        let stages = Stages { tools: vec![crate::stage::tests::shipped()], ..Stages::default() };
        let told = |chat: &Chat, scope: &Scope, hops| {
            let params = of(chat, scope, hops, &stages, &stage).into_iter();
            params.filter(|(name, _)| name.starts_with("tidegate_")).collect::<Vec<_>>()
        };
        let pair = |name: &str, json: &str| (format!("tidegate_{name}"), json.to_owned());
        let (context, output) = (pair("max_context_tokens", "900"), pair("max_output_tokens", "50"));
        let mut chat = Chat::new("m", Vec::new());
        assert_eq!(told(&chat, &scope, 0), [context.clone(), output]);
        chat.max_tokens = Some(20);
        assert_eq!(told(&chat, &scope, 1), [pair("tools", "false"), context]);
        assert_eq!(told(&chat, &Scope::default(), 0), []);
    }
}
