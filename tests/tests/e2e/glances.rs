//! A guard that says at a glance how much may leave, or that a prompt is allowed, is asked about what its glance has no answer for, and about
//! ends.

use crate::halts::stage;
use crate::one_read::{model, texts};
use crate::stages::counted;
use crate::tool_turns::whole;
use http_body_util::BodyExt;
use serde_json::json;
use std::path::Path;
use std::sync::Arc;
use tidegate_tests::stand_in::StandIn;
use tidegate_tests::{Gateway, ask, with_model};
use tokio::sync::Semaphore;

/// The guard, under a name of its own: the figures are of all gateways of this process.
fn glances(name: &str, kind: &str) -> String {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("guests/dist/glances.wasm");
    stage(name, &format!("file = {file:?}\nstages = [\"{kind}\"]"))
}

/// What the guard is asked about it puts `asked` in the place of.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_glance_lets_go_leaves_as_it_is_and_the_guard_is_asked_about_all_else() {
    // Each with what the client has read then.
    let pieces = [
        // There is no instance yet.
        ("One ", "asked"),
        ("two ", "askedtwo "),
        ("unsure", "askedtwo asked"),
        ("more", "askedtwo askedmore"),
        // A byte would wait, and none may.
        ("half", "askedtwo askedmoreasked"),
        ("end", "askedtwo askedmoreaskedend"),
    ];
    let let_go = Arc::new(Semaphore::new(0));
    let reads = pieces.map(|(piece, _)| vec![piece.to_owned()]).to_vec();
    let model = model("tidegate-starter", reads, &let_go).await;
    let guard = format!("{}holdback_bytes = 0\n", glances("glanced", "stream-guard"));
    let gateway = Gateway::start(&format!("{model}{guard}")).await;
    let mut request = with_model(ask("Hello!"));
    request["stream"] = true.into();
    let mut body = gateway.send(gateway.json_request("/v1/chat/completions", &request)).await.into_body();
    let mut seen = Vec::new();
    for (_, read) in pieces {
        while texts(&seen).concat() != read {
            seen.extend_from_slice(&body.frame().await.unwrap().unwrap().into_data().unwrap());
        }
        let_go.add_permits(1);
    }
    body.collect().await.unwrap();
    // Three glances; three windows, and the end.
    let calls = "tidegate_plugin_call_seconds_count{plugin=\"glanced\",stage=\"stream-guard\"";
    counted(&gateway, calls, 7).await;
    counted(&gateway, "tidegate_plugin_verdicts_total{plugin=\"glanced\",stage=\"stream-guard\",verdict=\"redact\"", 3)
        .await;
}

/// What the guard is asked about it answers in the model's place.
#[tokio::test(flavor = "multi_thread")]
async fn a_prompt_that_is_allowed_at_a_glance_goes_on_and_the_guard_is_asked_about_all_others() {
    let said = json!({"role": "assistant", "content": "said"});
    let model = StandIn::start(move |_, _| whole(&said, "stop", 1, 1)).await.model("tidegate-starter");
    let gateway = Gateway::start(&(model + &glances("glanced-at-prompts", "prompt-guard"))).await;
    let text = |text: &str| json!({"type": "text", "text": text});
    let of = |content| json!({"messages": [{"role": "user", "content": content}]});
    let from =
        |role: &str| json!({"messages": [{"role": "user", "content": "Hello!"}, {"role": role, "content": "word"}]});
    let long = |bytes: usize| ask(&"word ".repeat(bytes / 5));
    let with_tool = |description: &str| {
        let function = json!({"name": "unsure", "description": description, "parameters": {"type": "object"}});
        let mut asked = ask("word");
        asked["tools"] = json!([{"type": "function", "function": function}]);
        asked
    };
    let prompts = [
        // There is no instance yet.
        (ask("word"), "asked"),
        (ask("word"), "said"),
        (of(json!([text("word")])), "said"),
        (of(json!([text("word"), text("word")])), "asked"),
        (with_tool("unsure"), "said"),
        (with_tool(&"x".repeat(20 << 10)), "asked"),
        (from("system"), "said"),
        (from("assistant"), "asked"),
        (ask("unsure"), "asked"),
        (long(15 << 10), "said"),
        (long(16 << 10), "asked"),
        (ask("panic"), "asked"),
        // For a thousand of them.
        (ask("word"), "asked"),
    ];
    for (prompt, expected) in &prompts {
        let answer = gateway.chat(prompt.clone()).await.json();
        assert_eq!(answer["choices"][0]["message"]["content"], *expected, "{prompt:.200}");
    }
    let of_guard = "{plugin=\"glanced-at-prompts\"";
    let calls = format!("tidegate_plugin_call_seconds_count{of_guard},stage=\"prompt-guard\"");
    counted(&gateway, &calls, prompts.len() as u64).await;
    let glanced = format!("tidegate_plugin_glanced_total{of_guard},stage=\"prompt-guard\"");
    counted(&gateway, &glanced, 5).await;
}
