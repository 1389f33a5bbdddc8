//! `/v1/memories`: what plugins remember of a caller is shown to that caller, and forgotten when it asks for that.

use crate::conversations::send;
use crate::talk::until;
use hyper::Method;
use serde_json::{Value, json};
use std::path::Path;
use tidegate_tests::Gateway;

/// Two callers of one tenant and one of another, and a memory. Its name is its own: other tests count the calls of the same
/// guest, and figures are the process's.
fn config(guest: &str, more: &str) -> String {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("guests/dist/{guest}.wasm"));
    let key = |name: &str, tenant: &str| {
        let hash = blake3::hash(name.as_bytes());
        format!("[[keys]]\nname = \"{name}\"\ntenant = \"{tenant}\"\nhash = \"blake3:{hash}\"\n")
    };
    let keys = [key("ann", "acme"), key("bob", "acme"), key("eve", "evil")].concat();
    format!(
        "{keys}[[pipeline.stage]]\nplugin = \"own-{guest}\"\nfile = \"{}\"\nstages = [\"memory\"]\n{more}\n\
         [pipeline.stage.limits]\nwall_ms = 20000\n",
        file.display()
    )
}

async fn known(gateway: &Gateway, key: &str, question: &str) -> Vec<Value> {
    let path = format!("/v1/memories?q={}", question.replace(' ', "+"));
    let answer = send(gateway, Method::GET, &path, key, None).await;
    assert_eq!(answer.status, 200, "{:?}", answer.body);
    answer.json()["data"].as_array().unwrap().clone()
}

/// The same, once there is something.
async fn remembered(gateway: &Gateway, key: &str, question: &str) -> Vec<Value> {
    until("it is remembered", async || Some(known(gateway, key, question).await).filter(|found| !found.is_empty()))
        .await
}

async fn forget(gateway: &Gateway, key: &str, ids: &Value) -> (u16, Value) {
    let answer = send(gateway, Method::POST, "/v1/memories/forget", key, Some(&json!({"ids": ids}))).await;
    (answer.status, answer.json())
}

async fn say(gateway: &Gateway, key: &str, text: &str) -> u64 {
    let body = json!({"model": "tidegate-starter", "max_tokens": 4, "messages": [{"role": "user", "content": text}]});
    let answer = send(gateway, Method::POST, "/v1/chat/completions", key, Some(&body)).await;
    assert_eq!(answer.status, 200, "{:?}", answer.body);
    answer.json()["usage"]["prompt_tokens"].as_u64().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_reads_what_is_remembered_of_it_and_has_it_forgotten() {
    let gateway = Gateway::start(&config("remembers", "[pipeline.stage.grants]\nkv_kib = 64")).await;
    let (said, question) = ("The harbour of Kelso opens at nine.", "When does the harbour of Kelso open?");
    let alone = say(&gateway, "ann", said).await;
    let found = remembered(&gateway, "ann", question).await;
    assert_eq!((&found[0]["id"], &found[0]["text"]), (&json!("own-remembers/line-0"), &json!(said)));
    // It is the caller's own: not another's of the tenant, and not another tenant's.
    let ids = json!([found[0]["id"]]);
    for other in ["bob", "eve"] {
        assert!(known(&gateway, other, question).await.is_empty(), "{other}");
        assert_eq!(forget(&gateway, other, &ids).await.1["forgotten"], 0, "{other}");
    }
    // Asked of a memory that is not there, none forgets.
    assert_eq!(forget(&gateway, "ann", &json!(["nobody/line-0", "line-0"])).await.1["forgotten"], 0);
    assert_eq!(known(&gateway, "ann", question).await, found);
    let told = forget(&gateway, "ann", &ids).await;
    assert_eq!(told, (200, json!({"object": "memories.forgotten", "forgotten": 1})));
    assert!(known(&gateway, "ann", question).await.is_empty());
    // And nothing of it comes into a prompt.
    assert_eq!(say(&gateway, "ann", said).await, alone);
}

/// What is refused in part is refused as a whole: what the caller may have forgotten is still there.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_forgotten_where_one_of_the_memories_is_not_the_callers() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("guests/dist/honest.wasm");
    let more = format!(
        "[pipeline.stage.grants]\nkv_kib = 64\n[pipeline.stage.limits]\nwall_ms = 20000\n\
         [[keys]]\nname = \"low\"\nplugins = [\"own-remembers\"]\nhash = \"blake3:{}\"\n\
         [[pipeline.stage]]\nplugin = \"behind\"\nfile = \"{}\"\nstages = [\"memory\"]\n",
        blake3::hash(b"low"),
        file.display()
    );
    let gateway = Gateway::start(&config("remembers", &more)).await;
    let (said, question) = ("The harbour of Leith opens at ten.", "When does the harbour of Leith open?");
    say(&gateway, "low", said).await;
    let found = remembered(&gateway, "low", question).await;
    let ids = json!([found[0]["id"], "behind/line-0"]);
    let (status, refused) = forget(&gateway, "low", &ids).await;
    assert_eq!((status, &refused["error"]["param"]), (403, &json!("ids")), "{refused}");
    assert_eq!(known(&gateway, "low", question).await, found);
    assert_eq!(forget(&gateway, "low", &json!([found[0]["id"]])).await.1["forgotten"], 1);
}

/// An open memory that fails is passed over where an answer is made; here that would read as nothing known.
#[tokio::test(flavor = "multi_thread")]
async fn a_memory_that_fails_says_so_to_who_asks_what_it_knows() {
    for (trap, status) in [("memory", 503), ("observer", 200)] {
        let gateway = Gateway::start(&config("honest", &format!("config = {{ trap = \"{trap}\" }}"))).await;
        let answer = send(&gateway, Method::GET, "/v1/memories?q=x&limit=1", "ann", None).await;
        assert_eq!(answer.status, status, "{:?}", answer.body);
        match status {
            503 => assert_eq!(answer.error().2, "memory_failed"),
            _ => assert_eq!(answer.json()["data"].as_array().unwrap().len(), 1),
        }
    }
}

/// They call plugins as an answer does, and so they count as one.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_asked_of_memories_counts_for_the_limits_of_its_caller() {
    let limited = config("honest", "").replacen("tenant", "limits = { requests_per_minute = 1 }\ntenant", 2);
    let gateway = Gateway::start(&limited).await;
    let ask = async |key: &str| send(&gateway, Method::GET, "/v1/memories?q=x", key, None).await;
    let ids = json!({"ids": ["own-honest/i0"]});
    let forget = async |key: &str| send(&gateway, Method::POST, "/v1/memories/forget", key, Some(&ids)).await;
    assert_eq!((ask("ann").await.status, forget("bob").await.status), (200, 200));
    for refused in [ask("ann").await, forget("ann").await, ask("bob").await, forget("bob").await] {
        assert_eq!((refused.status, refused.error().2), (429, json!("rate_limit_exceeded")));
    }
    for _ in 0..3 {
        assert_eq!((ask("eve").await.status, forget("eve").await.status), (200, 200), "nothing bounds this one");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_asked_badly_is_refused_by_its_name() {
    let gateway = Gateway::start(&config("honest", "")).await;
    for path in ["/v1/memories", "/v1/memories?q=+", "/v1/memories?q=x&limit=0", "/v1/memories?q=x&limit=101"] {
        assert_eq!(send(&gateway, Method::GET, path, "ann", None).await.status, 400, "{path}");
    }
    assert_eq!(forget(&gateway, "ann", &json!([])).await.0, 400);
    // Without a memory nothing is known and nothing to forget.
    let bare = Gateway::start(tidegate_tests::BARE).await;
    assert!(known(&bare, "", "x").await.is_empty());
    assert_eq!(forget(&bare, "", &json!(["a/b"])).await.1["forgotten"], 0);
}
