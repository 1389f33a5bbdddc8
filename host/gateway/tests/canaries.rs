//! Of who wants nothing kept, nothing of the content is anywhere: not in a file that the gateway writes, not in its
//! database, not in a shared Redis, not in its log with everything switched on. A canary goes through every way in; then
//! every file is searched for it, in each form that it could have been written in. Another word, of a caller of whom things
//! may be kept, takes the same ways and is found, so that finding nothing means something.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

#[path = "canaries/forms.rs"]
mod forms;
#[path = "canaries/kept.rs"]
mod kept;
#[path = "../../../tests/src/redis.rs"]
#[allow(dead_code, reason = "each file of tests takes what it needs of it")]
mod redis;
mod server;
#[path = "server/signal.rs"]
mod signal;
#[path = "../../../tests/src/stand_in.rs"]
#[allow(dead_code, reason = "each file of tests takes what it needs of it")]
mod stand_in;
#[path = "canaries/ways.rs"]
mod ways;

use kept::Kept;
use serde_json::{Value, json};
use server::Server;
use stand_in::{Said, StandIn, completion, embeddings, last_text};
use std::time::{Duration, Instant};
use ways::{Caller, ways};

/// Of the content that must be nowhere.
const CANARY: &str = "canary7f3a9c41e6";
/// Of the content that may be kept.
const CONTROL: &str = "control58d20be7b1";

/// A model that calls a tool with what it was asked, and repeats what it is told; and some that fail, repeating it too.
fn answer(path: &str, body: &Value) -> Said {
    let said = last_text(body);
    match (path, body["model"].as_str()) {
        ("/v1/embeddings", _) => embeddings(body),
        ("/v1/completions", _) => {
            Said::json(&json!({"id": "x", "object": "text_completion", "created": 1, "model": "m",
            "choices": [{"index": 0, "text": format!("You said {}", body["prompt"]), "finish_reason": "stop"}]}))
        }
        (_, Some("breaks")) => Said::raw(500, json!({"error": {"message": format!("no {said}")}}).to_string()),
        (_, Some("refuses")) => Said::raw(400, json!({"error": {"message": format!("bad {said}")}}).to_string()),
        (_, Some("mumbles")) => Said::raw(200, json!({"choices": said, "error": said}).to_string()),
        (_, Some("babbles")) => Said::raw(200, format!("{{\"choices\": {said}")),
        _ if said.contains("call a tool") && body["tools"].is_array() => call(&said),
        _ => completion(&format!("You said: {said}")),
    }
}

fn call(said: &str) -> Said {
    let arguments = json!({"expression": said}).to_string();
    let call = json!({"id": "c", "type": "function", "function": {"name": "calculator", "arguments": arguments}});
    Said::json(&json!({"id": "x", "object": "chat.completion", "created": 1, "model": "m",
        "choices": [{"index": 0, "finish_reason": "tool_calls",
            "message": {"role": "assistant", "content": null, "tool_calls": [call]}}]}))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_who_wants_nothing_kept_nothing_is_in_any_file_on_sqlite() {
    check(Kept::in_files()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_who_wants_nothing_kept_nothing_is_in_any_table_on_postgres() {
    let Some(kept) = Kept::in_postgres() else { return };
    check(kept).await;
}

async fn check(kept: Kept) {
    let upstream = StandIn::start(answer).await;
    let server = kept.serve(&upstream);
    let conversation = ways::conversation(&server);
    // Each way for each caller, before anybody of whom things may be kept has taken it: what is found then, is theirs.
    for caller in [Caller::TENANT, Caller::PROJECT, Caller::REQUEST] {
        for way in ways(caller, CANARY, &conversation) {
            way.go(&server);
        }
    }
    for way in ways(Caller::KEPT, CONTROL, &conversation) {
        way.go(&server);
    }
    wait("what may be kept is in the database", || kept.count(CONTROL) > 0);
    wait("what may be kept is in the shared logs", || kept.count_shared(CONTROL).is_none_or(|count| count > 0));
    // What is written behind answers has had its time: the control's title was found by the same model.
    wait("the title is there", || server_says(&server, &conversation));
    kept.assert_nowhere(CANARY, "while it runs");
    kept.stop(server);
    kept.assert_nowhere(CANARY, "after its end");
    assert!(kept.log_lines() > 1000, "the log has {} lines; is everything switched on?", kept.log_lines());
    // The next program, that takes over what is there, writes nothing of it either.
    let again = kept.serve(&upstream);
    kept.stop(again);
    kept.assert_nowhere(CANARY, "after the next start");
}

fn server_says(server: &Server, conversation: &str) -> bool {
    let text = ways::get(server, Caller::KEPT, &format!("/v1/conversations/{conversation}"));
    text.contains("You said")
}

fn wait(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < Duration::from_secs(60), "never: {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}
