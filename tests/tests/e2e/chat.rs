//! Chat completions on the bundled model, streamed and not.

use serde_json::{Value, json};
use tidegate_tests::{BARE, Gateway, ask, finish_reason, joined};

#[tokio::test(flavor = "multi_thread")]
async fn a_chat_is_answered_and_streamed_alike() {
    let gateway = Gateway::start("").await;
    let answer = gateway.chat(ask("What is Tidegate?")).await;
    assert!(answer.text().contains("Rust program"), "{}", answer.text());
    assert!(answer.headers.contains_key("x-request-id"));
    let body = answer.json();
    assert_eq!(body["object"], "chat.completion");
    assert_eq!(body["choices"][0]["finish_reason"], "stop");
    let usage = &body["usage"];
    assert_eq!(
        usage["total_tokens"].as_u64(),
        Some(usage["prompt_tokens"].as_u64().unwrap() + usage["completion_tokens"].as_u64().unwrap())
    );

    let mut request = ask("What is Tidegate?");
    request["stream_options"] = json!({"include_usage": true});
    let events = gateway.stream(request).await;
    assert_eq!(joined(&events, 0), answer.text());
    assert_eq!(finish_reason(&events, 0), "stop");
    assert_eq!(events[0]["choices"][0]["delta"]["role"], "assistant");
    let last = events.last().unwrap();
    assert_eq!(last["choices"], json!([]));
    assert_eq!(last["usage"]["completion_tokens"], usage["completion_tokens"]);
    assert!(events.len() > 8, "the answer came in {} events", events.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_question_asked_again_finds_its_prompt_in_the_cache() {
    let gateway = Gateway::start(BARE).await;
    let system = "You are a helpful assistant that knows about Tidegate and answers in short sentences.";
    let request = json!({"messages": [
        {"role": "system", "content": system}, {"role": "user", "content": "What is a stream guard?"}]});
    let first = gateway.chat(request.clone()).await.json();
    let second = gateway.chat(request).await.json();
    assert_eq!(first["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
    assert!(second["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap() >= 16);
    assert_eq!(first["choices"][0]["message"], second["choices"][0]["message"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn max_tokens_ends_an_answer_by_length() {
    let gateway = Gateway::start(BARE).await;
    for field in ["max_tokens", "max_completion_tokens"] {
        let mut request = ask("Tell me a story.");
        request[field] = 5.into();
        let body = gateway.chat(request).await.json();
        assert_eq!(body["choices"][0]["finish_reason"], "length");
        assert_eq!(body["usage"]["completion_tokens"], 5);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_string_ends_an_answer_and_is_no_part_of_it() {
    let gateway = Gateway::start(BARE).await;
    let whole = gateway.chat(ask("What is Tidegate?")).await.text();
    let stop: String = whole.chars().skip(20).take(7).collect();
    let mut request = ask("What is Tidegate?");
    request["stop"] = json!([stop, "never said"]);
    let cut = gateway.chat(request.clone()).await;
    assert_eq!(cut.text(), whole[..whole.find(&stop).unwrap()]);
    assert_eq!(cut.json()["choices"][0]["finish_reason"], "stop");
    let events = gateway.stream(request).await;
    assert_eq!(joined(&events, 0), cut.text());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_seed_gives_the_same_text_and_choices_differ() {
    let gateway = Gateway::start(BARE).await;
    let mut request = ask("Tell me a story about a fox.");
    request["temperature"] = json!(1.2);
    request["seed"] = json!(42);
    request["n"] = json!(3);
    let texts = |body: &Value| -> Vec<String> {
        let choices = body["choices"].as_array().unwrap();
        choices.iter().map(|c| c["message"]["content"].as_str().unwrap().to_owned()).collect()
    };
    let first = texts(&gateway.chat(request.clone()).await.json());
    let second = texts(&gateway.chat(request.clone()).await.json());
    assert_eq!(first, second);
    assert_eq!(first.len(), 3);
    assert!(first[0] != first[1] || first[1] != first[2], "three equal answers at temperature 1.2");
    let events = gateway.stream(request).await;
    let streamed: Vec<String> = (0..3).map(|choice| joined(&events, choice)).collect();
    assert_eq!(streamed, first);
}

#[tokio::test(flavor = "multi_thread")]
async fn logprobs_come_with_their_tokens() {
    let gateway = Gateway::start(BARE).await;
    let mut request = ask("What is Tidegate?");
    request["logprobs"] = true.into();
    request["top_logprobs"] = 3.into();
    let answer = gateway.chat(request.clone()).await;
    let text = answer.text();
    let tokens = answer.json()["choices"][0]["logprobs"]["content"].as_array().unwrap().clone();
    let joined_tokens: String = tokens.iter().map(|t| t["token"].as_str().unwrap()).collect();
    assert_eq!(joined_tokens, text);
    for token in &tokens {
        let top = token["top_logprobs"].as_array().unwrap();
        assert_eq!(top.len(), 3);
        assert!(token["logprob"].as_f64().unwrap() <= 0.0);
        assert_eq!(top[0]["token"], token["token"], "greedy takes the most likely");
    }
    let events = gateway.stream(request).await;
    let streamed = events
        .iter()
        .flat_map(|e| e["choices"].as_array().unwrap())
        .flat_map(|c| c["logprobs"]["content"].as_array().cloned().unwrap_or_default());
    assert_eq!(streamed.count(), tokens.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_completion_continues_its_prompt() {
    let gateway = Gateway::start(BARE).await;
    let prompt = "Once upon a time";
    // Outside of a dialogue the model may end at once: its end mark (2) is ruled out.
    let request = json!({"model": tidegate::bundled::STARTER_NAME, "prompt": prompt, "max_tokens": 4, "echo": true,
        "logit_bias": {"2": -100}});
    let body = gateway.post("/v1/completions", &request).await.json();
    assert_eq!(body["object"], "text_completion");
    let text = body["choices"][0]["text"].as_str().unwrap();
    assert!(text.starts_with(prompt) && text.matches(prompt).count() == 1, "{text}");
    assert_eq!(body["usage"]["completion_tokens"], 4);
}

/// Who puts somebody's text into a prompt need not look for marks in it; who renders a dialogue says so.
#[tokio::test(flavor = "multi_thread")]
async fn marks_in_a_completions_prompt_are_text_unless_its_caller_says_that_it_is_rendered() {
    let gateway = Gateway::start(BARE).await;
    let ask = async |path: &str, more: Value| {
        let mut request = json!({"model": tidegate::bundled::STARTER_NAME, "max_tokens": 1});
        request.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        gateway.post(path, &request).await
    };
    let prompt = "<|im_start|><|im_end|>";
    let tokens = async |more: Value| {
        let mut request = json!({"prompt": prompt, "echo": true});
        request.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let body = ask("/v1/completions", request).await.json();
        assert!(body["choices"][0]["text"].as_str().unwrap().starts_with(prompt), "{body}");
        body["usage"]["prompt_tokens"].as_u64().unwrap()
    };
    assert_eq!(tokens(json!({"parse_special": true})).await, 2);
    for as_text in [json!({}), json!({"parse_special": false}), json!({"parse_special": null})] {
        assert!(tokens(as_text.clone()).await > 8, "{as_text}");
    }
    let messages = json!([{"role": "user", "content": "Hello!"}]);
    for (path, more) in [
        ("/v1/completions", json!({"prompt": prompt, "parse_special": "yes"})),
        ("/v1/chat/completions", json!({"messages": messages, "parse_special": true})),
    ] {
        let answer = ask(path, more).await;
        assert_eq!((answer.status, answer.error().1), (400, json!("parse_special")), "{path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn models_are_listed_and_found_by_name() {
    let gateway = Gateway::start(BARE).await;
    let list = gateway.get("/v1/models").await.json();
    let name = list["data"][0]["id"].as_str().unwrap();
    assert_eq!(gateway.get(&format!("/v1/models/{name}")).await.json()["id"], name);
    let card = &list["data"][0];
    assert!(card["max_model_len"].as_u64().unwrap() > 0);
    assert_eq!(card["capabilities"], json!(["completions", "chat", "tools", "logprobs"]));
    let missing = gateway.get("/v1/models/nothing").await;
    assert_eq!(missing.status, 404);
    assert!(missing.error().0.contains("nothing"));
}

#[tokio::test(flavor = "multi_thread")]
async fn probes_and_metrics_answer() {
    let gateway = Gateway::start(BARE).await;
    assert_eq!(gateway.get("/livez").await.status, 200);
    assert_eq!(gateway.get("/readyz").await.status, 200);
    gateway.chat(ask("Hello!")).await;
    let metrics = String::from_utf8(gateway.get("/metrics").await.body.to_vec()).unwrap();
    for name in ["tidegate_requests_total", "tidegate_output_tokens_total", "tidegate_time_to_first_token_seconds"] {
        assert!(metrics.contains(name), "{name} in\n{metrics}");
    }
    // Projects come and go without a bound, and are not for all who read metrics to know.
    let named = metrics.lines().find(|line| line.contains("project=\""));
    assert!(named.is_none(), "{named:?}");
}
