//! What plugins ask models is the caller's: it is billed once, and counts for the limits of the model that is asked.

use crate::tool_turns::{calls, is_told, says, whole};
use hyper::Request;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tidegate_tests::stand_in::{Said, StandIn, completion, embeddings};
use tidegate_tests::{Answer, Gateway, ask, collect};

const PRICE: &str = "price = { input = 1.0, cached_input = 1.0, output = 2.0 }\n";

/// A server of four models: one that calls the guest's tool, one that is asked by it, vectors, labels. Of these, labels say
/// how many tokens they had; vectors do not. Vectors and labels are asked of the own engine too.
async fn server() -> StandIn {
    StandIn::start(|path, body| match (path, body["model"].as_str().unwrap_or_default()) {
        ("/v1/embeddings", _) => embeddings(body),
        ("/v1/moderations", _) => Said::json(&json!({
            "results": [{"flagged": false, "category_scores": {"hate": 0.0}}], "usage": {"prompt_tokens": 3},
        })),
        (_, "judge") => completion("It is known."),
        _ if is_told(body) => says("Done."),
        _ => whole(&calls("complete", "\"small hello there\""), "tool_calls", 10, 8),
    })
    .await
}

fn config(service: &StandIn, folder: &Path, limits: &str) -> String {
    let hash = blake3::hash(b"tg-one");
    let models: String = ["main", "judge", "far"].map(|name| service.model(name) + PRICE).concat();
    let labels = service.model("labels") + PRICE + limits + "\n" + &crate::classifiers::model("moderation", PRICE);
    let guest = Path::new(env!("CARGO_MANIFEST_DIR")).join("guests/dist/reaches.wasm");
    let wall = "[pipeline.stage.limits]\nwall_ms = 20000\ncpu_ms = 5000\n[pipeline.stage.grants]\n";
    format!(
        "[[keys]]\nname = \"one\"\nhash = \"blake3:{hash}\"\ntenant = \"t\"\n{models}{labels}\n{}{PRICE}\
         [store]\npath = {:?}\n\
         [[pipeline.stage]]\nplugin = \"moderation-guard\"\nstages = [\"prompt-guard\"]\n{wall}\
         models = {{ moderation = \"labels\" }}\n\
         [[pipeline.stage]]\nplugin = \"near\"\nfile = {:?}\nstages = [\"prompt-guard\"]\n\
         config = {{ action = \"flag\" }}\n{wall}models = {{ moderation = \"moderation\" }}\n{}{}\
         [[pipeline.stage]]\nplugin = \"reaches\"\nfile = {guest:?}\nstages = [\"tool-provider\"]\n{wall}\
         random = true\nsecrets = {{ key = \"PATH\" }}\nvectors = {{ notes = \"read\" }}\n\
         http = {{ origins = [\"http://127.0.0.1:9\"], networks = [\"127.0.0.1\"] }}\ncontent = true\nmodels = {{ small = \"judge\" }}\n",
        crate::embeddings::model(""),
        folder.display().to_string(),
        shipped("moderation-guard"),
        router("far", wall),
        router("embedding", wall),
    )
}

/// A shipped plugin that a stage of another name runs too.
fn shipped(plugin: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../plugins/dist/{plugin}.wasm"))
}

/// A router that has vectors of one example and of each question made.
fn router(embedder: &str, wall: &str) -> String {
    format!(
        "[[pipeline.stage]]\nplugin = \"by-{embedder}\"\nfile = {:?}\nconfig = {{ default = [\"main\"], \
         routes = [{{ name = \"one\", models = [\"main\"], utterances = [\"good evening\"] }}] }}\n{wall}\
         kv_kib = 1024\nmodels = {{ embedder = \"{embedder}\" }}\n",
        shipped("semantic-router"),
    )
}

async fn send(gateway: &Gateway, mut request: Request<http_body_util::Full<bytes::Bytes>>) -> Answer {
    request.headers_mut().insert("authorization", "Bearer tg-one".parse().unwrap());
    collect(gateway.send(request).await).await
}

async fn chat(gateway: &Gateway) -> Answer {
    let mut body = ask("Hello!");
    body["model"] = "auto".into();
    send(gateway, gateway.json_request("/v1/chat/completions", &body)).await
}

/// Requests, tokens read and tokens written of each model, once there are as many requests as `wanted` together.
async fn used(gateway: &Gateway, since: u64, wanted: u64) -> BTreeMap<String, [u64; 3]> {
    let path = format!("/v1/usage?start_time={since}&group_by=model");
    let mut models = BTreeMap::new();
    for _ in 0..1_000 {
        let body = send(gateway, Request::get(gateway.url(&path)).body(Default::default()).unwrap()).await.json();
        models = BTreeMap::<_, [u64; 3]>::new();
        // A day may end meanwhile.
        let buckets = body["data"].as_array().into_iter().flatten();
        for result in buckets.flat_map(|bucket| bucket["results"].as_array().unwrap()) {
            let sums = models.entry(result["model"].as_str().unwrap().to_owned()).or_default();
            for (sum, name) in sums.iter_mut().zip(["num_model_requests", "input_tokens", "output_tokens"]) {
                *sum += result[name].as_u64().unwrap();
            }
        }
        if models.values().map(|[requests, ..]| requests).sum::<u64>() >= wanted {
            return models;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("{wanted} requests were not seen: {models:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_plugins_ask_models_is_billed_to_the_caller_once() {
    let (service, folder) = (server().await, tempfile::tempdir().unwrap());
    let gateway = Gateway::start(&config(&service, folder.path(), "")).await;
    let since = tidegate_tests::issuer::now_s() / 86_400 * 86_400;
    let answer = chat(&gateway).await;
    assert_eq!((answer.status, answer.text().as_str()), (200, "Done."), "{:?}", answer.body);
    // The examples and the question, of each router: two of each embedder. What the user and what the tool said, of each
    // classifier.
    let models = used(&gateway, since, 10).await;
    let requests: Vec<(&str, u64)> = models.iter().map(|(model, [requests, ..])| (model.as_str(), *requests)).collect();
    let expected = [("embedding", 2), ("far", 2), ("judge", 1), ("labels", 2), ("main", 1), ("moderation", 2)];
    assert_eq!(requests, expected);
    assert_eq!((models["labels"], models["judge"]), ([2, 3 + 3, 0], [1, 7, 5]));
    for near in ["embedding", "moderation"] {
        let [_, read, written] = models[near];
        assert!(read > 6 && written == 0, "{models:?}");
    }
    // Four bytes are taken for a token where a server does not count: of `good evening`, and of `Hello!` with one example, by which
    // what was kept is known to be this model's.
    assert_eq!(models["far"], [2, 3 + (2 + 3), 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_models_limits_hold_for_what_plugins_ask_it() {
    let (service, folder) = (server().await, tempfile::tempdir().unwrap());
    let gateway = Gateway::start(&config(&service, folder.path(), "limits = { requests_per_minute = 2 }\n")).await;
    assert_eq!(chat(&gateway).await.status, 200);
    let refused = chat(&gateway).await;
    assert_eq!((refused.status, refused.error().2), (503, json!("plugin_failed")), "{:?}", refused.body);
    assert_eq!(service.asked("/v1/moderations").len(), 2);
}

/// The guard's time is over, and nobody waits for the labels any more.
#[tokio::test(flavor = "multi_thread")]
async fn labels_that_come_too_late_are_billed_too() {
    let late = |path: &str, _: &Value| match path {
        "/v1/moderations" => Said::raw(200, "{}").after(Duration::from_secs(600)),
        _ => completion("Hello."),
    };
    let (service, folder) = (StandIn::start(late).await, tempfile::tempdir().unwrap());
    let config = format!(
        "[[keys]]\nname = \"one\"\nhash = \"blake3:{}\"\ntenant = \"t\"\n{}{PRICE}{}{PRICE}[store]\npath = {:?}\n\
         [[pipeline.stage]]\nplugin = \"moderation-guard\"\nstages = [\"prompt-guard\"]\nlimits = {{ wall_ms = 3000 }}\n\
         grants = {{ models = {{ moderation = \"labels\" }} }}\n",
        blake3::hash(b"tg-one"),
        service.model("main"),
        service.model("labels"),
        folder.path().display().to_string()
    );
    let gateway = Gateway::start(&config).await;
    let since = tidegate_tests::issuer::now_s() / 86_400 * 86_400;
    let chat = json!({"model": "main", "messages": [{"role": "user", "content": "Hello!"}]});
    let refused = send(&gateway, gateway.json_request("/v1/chat/completions", &chat)).await;
    assert_eq!((refused.status, refused.error().2), (503, json!("plugin_failed")), "{:?}", refused.body);
    assert_eq!(service.asked("/v1/moderations").len(), 1);
    assert_eq!(used(&gateway, since, 1).await["labels"], [1, 2, 0], "of `Hello!`, four bytes for a token");
}
