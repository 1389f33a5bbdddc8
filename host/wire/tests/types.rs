//! A wrong type at any field of a request is refused, and the error names the field. Which types are right is what the
//! schemas say, so that these are true too.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use serde_json::{Map, Value, json};
use std::collections::BTreeSet;
use tidegate_types::Reject;
use tidegate_wire::responses::parse_response;
use tidegate_wire::{parse_chat, parse_completion, schemas};

/// A place in a body: by JSON pointer, as an error names it, and the types that are right there.
struct Place {
    pointer: String,
    param: String,
    right: BTreeSet<String>,
}

struct Schemas(Map<String, Value>);

impl Schemas {
    /// `schema` and all that it is made of or may be.
    fn parts<'a>(&'a self, schema: &'a Value) -> Vec<&'a Value> {
        let named = schema["$ref"].as_str().map(|reference| &self.0[reference.rsplit('/').next().unwrap()]);
        let several = ["anyOf", "oneOf", "allOf"].iter().filter_map(|keyword| schema[*keyword].as_array()).flatten();
        let inner = named.into_iter().chain(several).flat_map(|one| self.parts(one));
        inner.chain([schema]).collect()
    }

    /// All places in `value` of whose types the schemas say something.
    fn places<'a>(&'a self, schemas: &[&'a Value], value: &Value, at: (&str, &str), out: &mut Vec<Place>) {
        let right: BTreeSet<String> = schemas.iter().flat_map(|schema| types(schema)).collect();
        let (pointer, param) = at;
        if right.is_empty() {
            return;
        }
        out.push(Place { pointer: pointer.into(), param: param.into(), right });
        for (key, member) in value.as_object().into_iter().flatten() {
            let rest = |schema: &'a Value| schema.get("additionalProperties").filter(|rest| rest.is_object());
            let known = schemas
                .iter()
                .filter_map(|schema| schema.get("properties").and_then(|all| all.get(key)).or_else(|| rest(schema)));
            let inner: Vec<&Value> = known.flat_map(|schema| self.parts(schema)).collect();
            let dot = if param.is_empty() { "" } else { "." };
            self.places(&inner, member, (&format!("{pointer}/{key}"), &format!("{param}{dot}{key}")), out);
        }
        for (i, item) in value.as_array().into_iter().flatten().enumerate() {
            let inner: Vec<&Value> =
                schemas.iter().filter_map(|schema| schema.get("items")).flat_map(|items| self.parts(items)).collect();
            self.places(&inner, item, (&format!("{pointer}/{i}"), &format!("{param}[{i}]")), out);
        }
    }
}

/// The types that a schema names; those of its one value, or of each of its few.
fn types(schema: &Value) -> Vec<String> {
    match (&schema["type"], &schema["const"], &schema["enum"]) {
        (Value::String(one), ..) => vec![one.clone()],
        (Value::Array(some), ..) => some.iter().map(|one| one.as_str().unwrap().to_owned()).collect(),
        (_, Value::Null, Value::Array(some)) => some.iter().map(|one| kind(one).to_owned()).collect(),
        (_, Value::Null, _) => Vec::new(),
        (_, one, _) => vec![kind(one).to_owned()],
    }
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// One of each type but `null`, which is as if nothing was sent. None is empty: what is empty says nothing, either.
fn one_of_each() -> [Value; 6] {
    [json!(true), json!(7), json!(1.5), json!("x"), json!([0]), json!({"x": 0})]
}

fn fits(value: &Value, right: &BTreeSet<String>) -> bool {
    right.contains(kind(value)) || (kind(value) == "integer" && right.contains("number"))
}

/// `bodies` are right, and have all fields of the schema `name` between them. Gives how many wrong ones were refused.
fn all_refused(name: &str, bodies: &[Value], parse: impl Fn(&[u8]) -> Result<(), Reject>) -> usize {
    let schemas = Schemas(schemas().unwrap());
    let parts = schemas.parts(&schemas.0[name]);
    let fields = parts.iter().filter_map(|part| part["properties"].as_object()).flat_map(Map::keys);
    for field in fields {
        assert!(bodies.iter().any(|body| body.get(field).is_some()), "no body of {name} has `{field}`");
    }
    let (mut count, mut accepted) = (0, Vec::new());
    for body in bodies {
        parse(body.to_string().as_bytes()).unwrap();
        let mut places = Vec::new();
        schemas.places(&parts, body, ("", ""), &mut places);
        for Place { pointer, param, right } in places.iter().filter(|place| !place.param.is_empty()) {
            for wrong in one_of_each().into_iter().filter(|wrong| !fits(wrong, right)) {
                let mut body = body.clone();
                *body.pointer_mut(pointer).unwrap() = wrong.clone();
                let refused = parse(body.to_string().as_bytes()).err().map(|reject| reject.param);
                if refused != Some(Some(param.clone())) {
                    accepted.push(format!("{name}: {param} = {wrong}: {refused:?}"));
                }
                count += 1;
            }
        }
    }
    assert!(accepted.is_empty(), "not refused at that field:\n{}", accepted.join("\n"));
    count
}

/// What both endpoints have, with `more`.
fn generation(more: Value) -> Value {
    let mut body = json!({
        "model": "m", "max_tokens": 1, "n": 1, "stop": ["."], "stream": true,
        "stream_options": {"include_usage": true, "include_obfuscation": true},
        "temperature": 1, "top_p": 1, "top_k": 1, "min_p": 0.5, "presence_penalty": 0, "frequency_penalty": 0,
        "repetition_penalty": 1, "seed": 1, "logit_bias": {"1": 1}, "user": "u", "safety_identifier": "s",
        "metadata": {"k": "v"}, "store": false, "prompt_cache_key": "k", "prompt_cache_retention": "24h",
        "service_tier": "auto", "reasoning_effort": "low", "verbosity": "low", "modalities": ["text"],
        "audio": {"voice": "v"}, "prediction": {"type": "content", "content": "x"}, "web_search_options": {},
        "moderation": {"model": "m"},
    });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

#[test]
fn a_wrong_type_at_any_field_of_a_chat_is_refused_at_that_field() {
    let call = json!({"index": 0, "id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}});
    let format = json!({"name": "n", "schema": {"type": "object"}, "strict": true});
    let function = json!({"name": "f", "description": "d", "parameters": {"type": "object"}, "strict": true});
    let body = generation(json!({
        "messages": [
            {"role": "system", "content": "x", "name": "n"},
            {"role": "user", "content": [{"type": "text", "text": "x"}]},
            {"role": "assistant", "content": [{"type": "refusal", "refusal": "x"}], "refusal": "r",
                "reasoning_content": "r", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c", "content": "x"},
        ],
        "max_completion_tokens": 1, "parallel_tool_calls": true, "logprobs": true, "top_logprobs": 1,
        "tools": [{"type": "function", "function": function}],
        "tool_choice": {"type": "function", "function": {"name": "f"}},
        "response_format": {"type": "json_schema", "json_schema": format},
        "chat_template_kwargs": {"enable_thinking": true},
    }));
    let count = all_refused("ChatRequest", &[body], |body| parse_chat(body).map(drop));
    assert!(count > 300, "{count}");
}

#[test]
fn a_wrong_type_at_any_field_of_a_completion_is_refused_at_that_field() {
    let echoed = generation(json!({"prompt": "x", "echo": true, "best_of": 1, "parse_special": true}));
    let counted = json!({"model": "m", "prompt": "x", "logprobs": 1});
    let count = all_refused("CompletionRequest", &[echoed, counted], |body| parse_completion(body).map(drop));
    assert!(count > 150, "{count}");
}

#[test]
fn a_wrong_type_at_any_field_of_a_response_is_refused_at_that_field() {
    let input = json!([
        {"type": "message", "role": "system", "content": "x"},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "x"},
            {"type": "input_image", "image_url": "https://a.example/b.png", "detail": "low"}]},
        {"type": "reasoning", "summary": [{"text": "x"}], "content": [{"text": "x"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": "x"}]},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "x"}]},
    ]);
    let function = json!({"type": "function", "name": "f", "description": "d", "parameters": {}, "strict": true});
    let format = json!({"type": "json_schema", "name": "n", "schema": {}, "strict": true});
    let body = json!({
        "model": "m", "input": input, "instructions": "x", "store": true, "background": true,
        "previous_response_id": "resp_1", "truncation": "auto", "metadata": {"k": "v"}, "tools": [function],
        "tool_choice": {"type": "function", "name": "f"}, "parallel_tool_calls": true, "max_output_tokens": 1,
        "top_logprobs": 1, "temperature": 1, "top_p": 1, "text": {"format": format, "verbosity": "low"},
        "reasoning": {"effort": "low", "summary": "auto"}, "include": ["message.output_text.logprobs"],
        "stream": true, "stream_options": {"include_obfuscation": true},
    });
    let within = json!({"model": "m", "input": "x", "conversation": {"id": "conv_1"}});
    let count = all_refused("ResponseRequest", &[body, within], |body| parse_response(body).map(drop));
    assert!(count > 200, "{count}");
}
