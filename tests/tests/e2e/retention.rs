//! Of who wants nothing kept, plugins keep nothing either: no memory, no answer in a cache. Whoever wants it is a tenant, a
//! project, or a request.

use crate::conversations::send;
use crate::talk::until;
use hyper::Method;
use serde_json::{Value, json};
use std::path::Path;
use std::time::Duration;
use tidegate_tests::stand_in::{StandIn, completion, embeddings, last_text};
use tidegate_tests::{Answer, Gateway};

const CANARY: &str = "canaryc3317e";

fn keys() -> String {
    let key = |name: &str, more: &str| {
        let hash = blake3::hash(name.as_bytes());
        format!("[[keys]]\nname = \"{name}\"\nhash = \"blake3:{hash}\"\n{more}\n")
    };
    [
        key("loud", "tenant = \"acme\""),
        key("quiet", "tenant = \"acme\"\nproject = \"quiet\""),
        key("mute", "tenant = \"mute\""),
        "[tenants.acme.projects.quiet]\nzero_retention = true\n[tenants.mute]\nzero_retention = true\n".to_owned(),
    ]
    .concat()
}

async fn ask(gateway: &Gateway, key: &str, text: &str, more: Value) -> Answer {
    let mut body = json!({"model": "tidegate-starter", "max_tokens": 4,
        "messages": [{"role": "user", "content": text}]});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let answer = send(gateway, Method::POST, "/v1/chat/completions", key, Some(&body)).await;
    assert_eq!(answer.status, 200, "{:?}", answer.body);
    answer
}

async fn respond(gateway: &Gateway, key: &str, text: &str) {
    let body = json!({"model": "tidegate-starter", "input": text, "store": false, "max_output_tokens": 4});
    let answer = send(gateway, Method::POST, "/v1/responses", key, Some(&body)).await;
    assert_eq!(answer.status, 200, "{:?}", answer.body);
}

/// What the memory knows of a key.
async fn known(gateway: &Gateway, key: &str) -> usize {
    let answer = send(gateway, Method::GET, &format!("/v1/memories?q={CANARY}"), key, None).await;
    assert_eq!(answer.status, 200, "{:?}", answer.body);
    answer.json()["data"].as_array().unwrap().len()
}

#[tokio::test(flavor = "multi_thread")]
async fn no_memory_remembers_who_wants_nothing_kept() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("guests/dist/remembers.wasm");
    let config = format!(
        "{}[[pipeline.stage]]\nplugin = \"unkept-remembers\"\nfile = \"{}\"\nstages = [\"memory\"]\n\
         [pipeline.stage.grants]\nkv_kib = 64\n[pipeline.stage.limits]\nwall_ms = 20000\n",
        keys(),
        file.display()
    );
    let gateway = Gateway::start(&config).await;
    let said = format!("The word is {CANARY} today.");
    for (key, more) in [("quiet", json!({})), ("mute", json!({})), ("loud", json!({"store": false}))] {
        ask(&gateway, key, &said, more.clone()).await;
        respond(&gateway, key, &said).await;
    }
    // What is written, is written in the order of asking: once this is there, all that came before would be.
    ask(&gateway, "loud", &format!("Later {CANARY} came."), json!({})).await;
    until("it is known", async || (known(&gateway, "loud").await > 0).then_some(())).await;
    assert_eq!(known(&gateway, "loud").await, 1, "the request that may be kept, and no other");
    assert_eq!((known(&gateway, "quiet").await, known(&gateway, "mute").await), (0, 0));
}

fn is_hit(answer: &Answer) -> bool {
    answer.headers.contains_key("x-tidegate-answered-by")
}

#[tokio::test(flavor = "multi_thread")]
async fn no_answer_to_who_wants_nothing_kept_is_in_the_cache() {
    let service = StandIn::start(move |path, body| match path {
        "/v1/embeddings" => embeddings(body),
        _ => completion(&format!("You said: {}", last_text(body))),
    })
    .await;
    let models: String = ["tidegate-starter", "vectors"].map(|name| service.model(name)).concat();
    let config = format!(
        "{}{models}[[pipeline.stage]]\nplugin = \"semantic-cache\"\non_error = \"closed\"\n\
         [pipeline.stage.grants]\nkv_kib = 4096\nvectors = {{ answers = \"write\" }}\nmodels = {{ embedder = \"vectors\" }}\n\
         [pipeline.stage.limits]\nwall_ms = 20000\n",
        keys()
    );
    let gateway = Gateway::start(&config).await;
    let question = format!("When does {CANARY} open?");
    let unkept = json!({"store": false});
    for _ in 0..3 {
        for (key, more) in [("quiet", json!({})), ("mute", json!({})), ("loud", unkept.clone())] {
            assert!(!is_hit(&ask(&gateway, key, &question, more).await), "{key}");
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    // Asked by who may be remembered it is kept, for its own project; and found by a request that leaves nothing.
    until("it is kept", async || is_hit(&ask(&gateway, "loud", &question, json!({})).await).then_some(())).await;
    assert!(is_hit(&ask(&gateway, "loud", &question, unkept).await));
    assert!(!is_hit(&ask(&gateway, "quiet", &question, json!({})).await));
}
