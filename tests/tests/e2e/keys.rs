//! API keys: who may ask, and what is kept apart.

use hyper::Request;
use serde_json::json;
use tidegate_tests::{Gateway, ask, collect, with_model};

fn config() -> String {
    let key = |name: &str, key: &str| {
        format!("[[keys]]\nname = \"{name}\"\nhash = \"blake3:{}\"\n", blake3::hash(key.as_bytes()))
    };
    let metrics = key("prometheus", "tg-prometheus") + "endpoints = [\"metrics\"]\n";
    format!("{}{}{metrics}[pipeline]\n", key("alpha", "tg-alpha"), key("beta", "tg-beta"))
}

async fn chat(gateway: &Gateway, authorization: Option<&str>, question: &str) -> tidegate_tests::Answer {
    let system = "You are a helpful assistant that answers in short and friendly sentences, always.";
    let mut body = with_model(ask(question));
    body["messages"].as_array_mut().unwrap().insert(0, json!({"role": "system", "content": system}));
    let mut request = gateway.json_request("/v1/chat/completions", &body);
    if let Some(value) = authorization {
        request.headers_mut().insert("authorization", value.parse().unwrap());
    }
    collect(gateway.send(request).await).await
}

async fn read(gateway: &Gateway, authorization: &str, path: &str) -> tidegate_tests::Answer {
    let request = Request::get(gateway.url(path)).header("authorization", authorization);
    collect(gateway.send(request.body(Default::default()).unwrap()).await).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_without_a_valid_key_is_refused() {
    let gateway = Gateway::start(&config()).await;
    for authorization in [None, Some("Bearer tg-wrong"), Some("Basic dGc="), Some("Bearer "), Some("tg-alpha")] {
        let answer = chat(&gateway, authorization, "Hello!").await;
        assert_eq!(answer.status, 401, "{authorization:?}");
        assert_eq!(answer.error().2, "invalid_api_key");
    }
    assert_eq!(chat(&gateway, Some("Bearer tg-alpha"), "Hello!").await.status, 200);
    let models = Request::get(gateway.url("/v1/models")).body(Default::default()).unwrap();
    assert_eq!(gateway.send(models).await.status(), 401);
    assert_eq!(gateway.get("/livez").await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_tenant_never_finds_anothers_prompt_in_the_cache() {
    let gateway = Gateway::start(&config()).await;
    let cached = |answer: &tidegate_tests::Answer| {
        answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap()
    };
    assert_eq!(cached(&chat(&gateway, Some("Bearer tg-alpha"), "Who are you?").await), 0);
    assert_eq!(cached(&chat(&gateway, Some("Bearer tg-beta"), "Who are you?").await), 0);
    assert!(cached(&chat(&gateway, Some("Bearer tg-alpha"), "Who are you?").await) > 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_carry_the_tenant_and_the_class() {
    // Metrics are of the whole process, and this tenant is of no other test.
    let key =
        format!("[[keys]]\nname = \"measured\"\nhash = \"blake3:{}\"\nclass = \"batch\"\n", blake3::hash(b"tg-m"));
    let gateway = Gateway::start(&format!("{key}{}", config())).await;
    assert_eq!(chat(&gateway, Some("Bearer tg-m"), "Hello!").await.status, 200);
    let metrics = read(&gateway, "Bearer tg-prometheus", "/metrics").await;
    let metrics = String::from_utf8_lossy(&metrics.body).into_owned();
    let whose = "{model=\"tidegate-starter\",tenant=\"measured\",class=\"batch\"";
    let line = format!("tidegate_requests_total{whose},outcome=\"answered\"}} 1");
    assert!(metrics.lines().any(|found| found == line), "no {line} in\n{metrics}");
    for name in ["tidegate_input_tokens_total", "tidegate_output_tokens_total", "tidegate_request_seconds_count"] {
        let line = format!("{name}{whose}}} ");
        assert!(metrics.lines().any(|found| found.starts_with(&line)), "no {line} in\n{metrics}");
    }
}

/// They name every tenant.
#[tokio::test(flavor = "multi_thread")]
async fn metrics_are_for_keys_that_name_them_and_those_read_nothing_else() {
    let gateway = Gateway::start(&config()).await;
    let refused = read(&gateway, "Bearer tg-beta", "/metrics").await;
    assert_eq!((refused.status, refused.error().2), (403, json!("not_admin")));
    assert!(refused.error().0.contains("`metrics` among the `endpoints`"));
    assert_eq!(read(&gateway, "Bearer tg-prometheus", "/metrics").await.status, 200);
    assert_eq!(read(&gateway, "Bearer tg-prometheus", "/v1/models").await.status, 403);
}
