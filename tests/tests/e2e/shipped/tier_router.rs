//! `tier-router` by what the server tells it of real requests: their class, key, tools, code and length, and the load of its
//! models.

use super::{StandIn, completion};
use crate::conversations::send;
use crate::talk::until;
use hyper::Method;
use serde_json::{Value, json};
use tidegate_pipeline::ModelBackend;
use tidegate_tests::Gateway;

const CHAT: &str = "/v1/chat/completions";

const RULES: &str = r#"
[[pipeline.stage]]
plugin = "tier-router"
[pipeline.stage.config]
default = ["short"]
rules = [
  { classes = ["batch"], models = ["batch"] },
  { keys = ["gold"], models = ["gold"] },
  { tools = true, models = ["tools"] },
  { code = true, models = ["code"] },
  { min_tokens = 200, models = ["long"] },
]
"#;

fn key(name: &str, class: &str) -> String {
    let hash = blake3::hash(name.as_bytes());
    format!("[[keys]]\nname = \"{name}\"\nclass = \"{class}\"\nhash = \"blake3:{hash}\"\n")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_goes_to_the_model_of_the_first_rule_that_fits_it() {
    let models = StandIn::start(|_, body| completion(body["model"].as_str().unwrap())).await;
    let names = ["short", "batch", "gold", "tools", "code", "long"].map(|name| models.model(name)).concat();
    let keys = [key("plain", "standard"), key("gold", "standard"), key("slow", "batch")].concat();
    let gateway = Gateway::start(&format!("{keys}{names}{RULES}")).await;
    let code = "Why does this fail?\n```rust\nfn main() { let x: u8 = 256; }\n```";
    let tools = json!([{"type": "function", "function": {"name": "find", "parameters": {"type": "object"}}}]);
    let long = "word ".repeat(200);
    for (key, words, tools, model) in [
        ("plain", "Hello!", Value::Null, "short"),
        ("plain", &long, Value::Null, "long"),
        ("plain", code, Value::Null, "code"),
        ("plain", code, tools.clone(), "tools"),
        ("gold", code, tools.clone(), "gold"),
        ("slow", &long, tools, "batch"),
    ] {
        let messages = json!([{"role": "user", "content": words}]);
        let body = json!({"model": "auto", "messages": messages, "tools": tools});
        let answer = send(&gateway, Method::POST, CHAT, key, Some(&body)).await;
        assert_eq!((answer.status, answer.text().as_str()), (200, model), "{key}: {words}");
    }
}

/// One sequence runs, and another waits for it.
#[tokio::test(flavor = "multi_thread")]
async fn a_model_whose_queue_is_too_long_is_passed_over_for_the_next() {
    let spare = StandIn::start(|_, _| completion("from the spare")).await;
    let gateway = Gateway::start(&format!(
        "[engine]\nmax_seqs = 1\n[[models]]\nname = \"busy\"\npath = \"bundled\"\n{}\
         [[pipeline.stage]]\nplugin = \"tier-router\"\nconfig = {{ default = [\"busy\", \"spare\"], max_waiting = 1 }}\n",
        spare.model("spare")
    ))
    .await;
    let ask = |model: &str, max_tokens: u32, n: u32| {
        let messages = json!([{"role": "user", "content": "Tell me a story."}]);
        json!({"model": model, "messages": messages, "max_tokens": max_tokens, "n": n, "logit_bias": {"2": -100}})
    };
    let quiet = gateway.post(CHAT, &ask("auto", 1, 1)).await;
    assert_eq!(quiet.json()["model"], "busy", "{:?}", quiet.body);

    let long = gateway.json_request(CHAT, &ask("busy", 700, 8));
    let answering = gateway.send(long);
    let over = async {
        until("sequences wait", async || {
            let pipeline = gateway.running.pipeline();
            let ModelBackend::Engine(engine) = &pipeline.models().get("busy").unwrap().backend else { return None };
            (engine.handle.stats().snapshot.waiting > 1).then_some(())
        })
        .await;
        gateway.post(CHAT, &ask("auto", 1, 1)).await
    };
    tokio::select! {
        _ = answering => panic!("it was answered before anybody was routed"),
        routed = over => assert_eq!(routed.text(), "from the spare"),
    }
}
