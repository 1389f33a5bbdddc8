//! `webhook-guard` and the service that it asks.

use super::{counted, stage, stage_as};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use tidegate_tests::stand_in::{Said, StandIn, completion, last_text};
use tidegate_tests::{Gateway, ask, events, finish_reason, joined};

/// What a service says about the words that it is shown.
fn judge(body: &Value) -> Value {
    let text = body["messages"][0]["texts"][0]["text"].as_str().unwrap_or_default();
    match text {
        _ if text.contains("forbidden") => {
            json!({"verdict": "refuse", "message": "Not here.", "reason": "policy 7",
                   "findings": [{"category": "violence", "severity": "high", "score": 0.9}]})
        }
        _ if text.contains("4711") => {
            json!({"verdict": "redact", "redactions": [{"find": "4711", "with": "[number]"}]})
        }
        _ if text.contains("odd") => {
            json!({"verdict": "allow", "findings": [{"category": "oddness", "severity": "low"}]})
        }
        _ => json!({"verdict": "allow"}),
    }
}

/// A model that says what it was asked, behind a guard.
async fn echoing(check: impl Fn(&Value) -> Said + Send + Sync + 'static) -> StandIn {
    StandIn::start(move |path, body| match path {
        "/check" => check(body),
        _ => completion(&last_text(body)),
    })
    .await
}

fn guarded(service: &StandIn, stages: &str, more: &str) -> String {
    let config =
        format!("{more}\nstages = [{stages}]\nconfig = {{ url = \"{}/check\", timeout_ms = 30000 }}", service.origin());
    let grants = format!("[pipeline.stage.grants]\n{}\n", service.http_grant());
    format!("{}{}{grants}", service.model("tidegate-starter"), stage("webhook-guard", &config))
}

#[tokio::test(flavor = "multi_thread")]
async fn prompts_go_as_the_service_says() {
    let service = echoing(|body| Said::json(&judge(body))).await;
    let observer = stage_as("sees-webhook", "audit-observer", "config = { only_findings = true }");
    let config = guarded(&service, "\"prompt-guard\"", "") + &observer;
    let gateway = Gateway::start(&config).await;
    assert_eq!(gateway.chat(ask("Hello!")).await.text(), "Hello!");
    assert_eq!(gateway.chat(ask("PIN 4711, not 4712")).await.text(), "PIN [number], not 4712");
    let events = gateway.stream(ask("4711")).await;
    assert_eq!(joined(&events, 0), "[number]");
    let refused = gateway.chat(ask("forbidden")).await;
    assert_eq!((refused.status, refused.error().2), (400, "content_filter".into()));
    assert_eq!(refused.error().0, "Not here.");
    assert_eq!(gateway.chat(ask("an odd question")).await.text(), "an odd question");
    // Of the one that was refused, too.
    counted(&gateway, "sees-webhook", "requests_recorded", 2).await;
    assert_eq!(service.asked("/check").len(), 5);
    let asked = &service.asked("/check")[0];
    assert_eq!((&asked["stage"], &asked["messages"][0]["role"]), (&json!("prompt"), &json!("user")));
    assert!(!asked["caller"].as_str().unwrap().is_empty() && !asked["request"].as_str().unwrap().is_empty());
}

/// The secret is one that every process has. The service repeats it, which the guard never sees: its answer would be one of
/// refusal, with the secret in it.
#[tokio::test(flavor = "multi_thread")]
async fn the_service_gets_its_secret_which_the_plugin_and_the_client_never_see() {
    let secret = std::env::var("PATH").unwrap();
    let refusal = json!({"verdict": "refuse", "message": format!("Not with {secret}.")});
    let service = echoing(move |_| Said::json(&refusal)).await;
    let config = guarded(&service, "\"prompt-guard\"", "").replace("timeout_ms = 30000", "secret = \"token\"")
        + "secrets = { token = \"PATH\" }\n";
    let gateway = Gateway::start(&config).await;
    let refused = gateway.chat(ask("Hello!")).await;
    assert_eq!((refused.status, refused.error().0.as_str()), (400, "Not with [secret]."));
    assert_eq!(service.authorizations("/check"), [json!(format!("Bearer {secret}"))]);
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_go_as_the_service_says_streamed_or_not() {
    let service = echoing(|body| Said::json(&judge(body))).await;
    let gateway = Gateway::start(&guarded(&service, "\"output-guard\"", "")).await;
    assert_eq!(gateway.chat(ask("PIN 4711")).await.text(), "PIN [number]");
    assert_eq!(joined(&gateway.stream(ask("PIN 4711")).await, 0), "PIN [number]");
    let refused = gateway.chat(ask("forbidden")).await;
    assert_eq!(refused.text(), "");
    assert_eq!(refused.json()["choices"][0]["message"]["refusal"], "Not here.");
    let events = gateway.stream(ask("forbidden")).await;
    assert_eq!((joined(&events, 0), finish_reason(&events, 0)), (String::new(), "content_filter".into()));
    assert_eq!(service.asked("/check")[0]["stage"], "answer");
}

/// Slow, out of order, not to be understood, endless: a failure each, and `on_error` decides.
#[tokio::test(flavor = "multi_thread")]
async fn a_service_that_does_not_answer_well_is_a_failure_and_never_an_allow() {
    let nested = format!("{}1{}", "[".repeat(20_000), "]".repeat(20_000));
    let huge = format!("{{\"verdict\":\"allow\",\"reason\":\"{}\"}}", "x".repeat(2 << 20));
    for (name, said) in [
        ("slow", Said::json(&json!({"verdict": "allow"})).after(Duration::from_secs(20))),
        ("500", Said::raw(500, r#"{"verdict":"allow"}"#)),
        ("redirect", Said::raw(302, r#"{"verdict":"allow"}"#)),
        ("nothing", Said::raw(200, "")),
        ("no JSON", Said::raw(200, "<html>allow</html>")),
        ("no UTF-8", Said::raw(200, vec![0xff; 64])),
        ("NaN", Said::raw(200, r#"{"verdict":"allow","findings":[{"category":"x","score":NaN}]}"#)),
        ("nested", Said::raw(200, nested)),
        ("huge", Said::raw(200, huge)),
        ("redacts nothing", Said::json(&json!({"verdict": "redact", "redactions": [{"find": ""}]}))),
    ] {
        for (on_error, status) in [("closed", 503), ("open", 200)] {
            let said = said.clone();
            let service = echoing(move |_| said.clone()).await;
            let more = format!("on_error = \"{on_error}\"");
            let config = guarded(&service, "\"prompt-guard\"", &more);
            let config = if name == "slow" { config.replace("30000", "5000") } else { config };
            let answer = Gateway::start(&config).await.chat(ask("Hello!")).await;
            assert_eq!(answer.status, status, "{name}, {on_error}: {:?}", answer.body);
            assert_eq!(service.asked("/check").len(), 1, "{name}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn many_findings_and_long_redactions_are_followed_or_refused_but_never_let_through() {
    let service = echoing(|body| {
        let finding = json!({"category": "c", "severity": "?", "score": 7.5});
        let redactions = json!([{"find": "a", "with": "b".repeat(1 << 10)}]);
        let text = body["messages"][0]["texts"][0]["text"].as_str().unwrap_or_default();
        match text.len() {
            ..10 => Said::json(&json!({"verdict": "refuse", "findings": vec![finding; 5_000]})),
            _ => Said::json(&json!({"verdict": "redact", "redactions": redactions})),
        }
    })
    .await;
    let gateway = Gateway::start(&guarded(&service, "\"prompt-guard\"", "")).await;
    assert_eq!(gateway.chat(ask("short")).await.status, 400);
    let long = gateway.chat(ask(&"a".repeat(8_000))).await;
    assert_eq!((long.status, long.error().2), (400, "content_filter".into()));
    assert!(gateway.chat(ask(&"a".repeat(20))).await.text().starts_with("bbb"));
}

/// The service answers 200 ms after all of them wait for it.
#[tokio::test(flavor = "multi_thread")]
async fn a_service_of_200_ms_serves_hundreds_of_requests_at_once() {
    const REQUESTS: usize = 300;
    let pause = Duration::from_millis(200);
    let webhook = StandIn::holding(REQUESTS, move |_, _| Said::json(&json!({"verdict": "allow"})).after(pause)).await;
    let model = StandIn::start(|_, body| completion(&last_text(body))).await;
    let config = guarded(&webhook, "\"prompt-guard\"", "").replace(&webhook.model("tidegate-starter"), "")
        + "[[models]]\nname = \"tidegate-starter\"\n"
        + &format!("upstream = \"{}/v1\"\n", model.origin());
    let gateway = Arc::new(Gateway::start(&config.replace("wall_ms = 20000", "wall_ms = 60000")).await);
    let requests: Vec<_> = (0..REQUESTS)
        .map(|n| {
            let gateway = Arc::clone(&gateway);
            tokio::spawn(async move {
                let mut request = ask(&format!("question {n}"));
                request["stream"] = (n % 2 == 0).into();
                request["model"] = "tidegate-starter".into();
                let answer = gateway.post("/v1/chat/completions", &request).await;
                assert_eq!(answer.status, 200, "{:?}", answer.body);
                let text = if n % 2 == 0 { joined(&events(&answer.body), 0) } else { answer.text() };
                assert_eq!(text, format!("question {n}"));
            })
        })
        .collect();
    for request in requests {
        request.await.unwrap();
    }
    assert_eq!((webhook.most_at_once(), webhook.asked("/").len()), (REQUESTS, 0));
    assert_eq!(webhook.asked("/check").len(), REQUESTS);
}
