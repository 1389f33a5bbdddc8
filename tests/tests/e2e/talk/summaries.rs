//! Summaries of what no longer fits a model: made behind answers, used when turns are left out, and never in silence.

use super::{Store, asked, on_each, said, talk, until};
use crate::conversations::{get, items, new_conversation, post, send};
use crate::usage::today_s;
use hyper::Method;
use serde_json::{Value, json};
use std::time::Duration;
use tidegate_tests::Gateway;
use tidegate_tests::stand_in::{Said, StandIn};

/// The words `word-N` of a text, each once.
fn words(text: &str) -> String {
    let mut found: Vec<&str> = Vec::new();
    for word in text.split(|c: char| !c.is_alphanumeric() && c != '-').filter(|word| word.starts_with("word-")) {
        if !found.contains(&word) {
            found.push(word);
        }
    }
    found.join(" ")
}

/// Talks with a small window; sums up which words it was shown.
async fn upstream() -> StandIn {
    StandIn::start(|_, body| match body["model"].as_str() {
        Some("sums") => said(body, &format!("In short: {}", words(&super::text_of(body)))),
        Some("broken") => Said::raw(500, "{}"),
        _ => said(body, "Yes."),
    })
    .await
}

fn models(upstream: &StandIn) -> String {
    let rest: String = ["sums", "broken"].iter().map(|name| upstream.model(name)).collect();
    let price = "price = { input = 1.0, output = 1.0 }\n";
    format!("{}context_tokens = 400\n{rest}{price}", upstream.model("chat"))
}

const SUMMARIES: &str = "[store.summaries]\nmodel = \"sums\"\n[pipeline]\n";

fn message(n: usize) -> Value {
    json!({"message_id": n.to_string(), "content": format!("This is word-{n}, {}", "and so on ".repeat(12))})
}

/// Says so much that much of it does not fit, and goes on until what is left out has been summed up, in three summaries at
/// least; gives the number of the last message. A summary that is due while the one before is still being written is made
/// behind a later answer.
async fn long_talk(gateway: &Gateway, upstream: &StandIn, id: &str) -> usize {
    let mut num_messages = 0;
    until("a summary of what is left out", async || {
        let done = talk(gateway, id, message(num_messages)).await;
        num_messages += 1;
        let is_long = num_messages >= 12 && asked(upstream, "sums").len() >= 3;
        let is_summed_up = done["left_out"].as_u64().unwrap() >= 6 && done["summarized"] == done["left_out"];
        (is_long && is_summed_up).then_some(num_messages - 1)
    })
    .await
}

async fn summaries(gateway: &Gateway, id: &str) -> Vec<Value> {
    let export = gateway.get(&format!("/v1/conversations/{id}/export")).await;
    let text = String::from_utf8(export.body.to_vec()).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    lines.filter(|line| line["object"] == "summary").collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_left_out_is_summed_up_and_the_metadata_says_so() {
    on_each("summaries", |store| async move {
        let upstream = upstream().await;
        let gateway = store.gateway(&models(&upstream), SUMMARIES).await;
        let id = new_conversation(&gateway).await;
        let last = long_talk(&gateway, &upstream, &id).await;
        let prompt = asked(&upstream, "chat").pop().unwrap();
        assert!(prompt.contains("Summary of what was said before"), "{prompt}");
        assert!(words(&prompt).starts_with("word-0 word-1 word-2 "), "{prompt}");
        assert!(!prompt.contains("This is word-0,") && prompt.contains(&format!("This is word-{last},")), "{prompt}");
        // Each goes on from the one before: the last was not shown how it began.
        let shown = asked(&upstream, "sums");
        assert!(!shown.last().unwrap().contains("This is word-0,"));

        // The other endpoint says the same, in its object and in a header.
        let body =
            json!({"model": "chat", "input": "Is it?", "conversation": id, "truncation": "auto", "store": false});
        let answer = gateway.post("/v1/responses", &body).await;
        let context = answer.json()["context"].clone();
        assert!(context["summarized"].as_u64().unwrap() > 0, "{context}");
        assert_eq!(answer.headers["x-tidegate-summarized"].to_str().unwrap(), context["summarized"].to_string());
        // Who wants nothing left out is given no summary either.
        let whole = json!({"model": "chat", "input": "Is it?", "conversation": id, "store": false});
        let whole = post(&gateway, "/v1/responses", whole).await;
        assert_eq!(whole["context"], json!({"left_out": 0, "summarized": 0}));

        // They are billed as what they are, and survive.
        until("the bill", async || {
            let shown = asked(&upstream, "sums").len();
            let day = format!("/v1/usage?start_time={}&group_by=kind", today_s());
            let results = get(&gateway, &day).await["data"][0]["results"].clone();
            let of = |kind: &str| results.as_array()?.iter().find(|result| result["kind"] == kind).cloned();
            (of("summary")?["num_model_requests"] == shown as u64).then_some(())
        })
        .await;
        gateway.running.stop(Duration::from_secs(5)).await;
        let again = store.gateway(&models(&upstream), SUMMARIES).await;
        let done = talk(&again, &id, message(1000)).await;
        assert!(done["summarized"].as_u64().unwrap() > 0, "{done}");
        // A question so long that turns have to go that nobody has summed up yet.
        let long = json!({"message_id": "long", "content": "and so on ".repeat(75)});
        let done = talk(&again, &id, long).await;
        let (left_out, summarized) = (done["left_out"].as_u64().unwrap(), done["summarized"].as_u64().unwrap());
        assert!(left_out > summarized && summarized > 0, "{done}");
        again.running.stop(Duration::from_secs(5)).await;
    })
    .await;
}

/// All that a model takes of such a history fits: a summary would be paid for behind each answer, and stand for nothing.
#[tokio::test(flavor = "multi_thread")]
async fn what_no_model_takes_is_no_reason_for_a_summary() {
    on_each("summaries_lone", |store| async move {
        let upstream = upstream().await;
        let models = format!("{}{}", models(&upstream), upstream.model("wide"));
        let gateway = store.gateway(&models, SUMMARIES).await;
        let id = new_conversation(&gateway).await;
        let lone = json!({"type": "function_call_output", "call_id": "never", "output": "3 boats"});
        post(&gateway, &format!("/v1/conversations/{id}/items"), json!({"items": [lone]})).await;
        for n in 0..6 {
            let wide = json!({"message_id": format!("wide-{n}"), "model": "wide", "content": "Is it?"});
            let done = talk(&gateway, &id, wide).await;
            assert_eq!((&done["left_out"], &done["summarized"]), (&json!(1), &json!(0)), "{done}");
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
        assert!(asked(&upstream, "sums").is_empty());
        // Where there is one, it stands for that too, but only where turns are left out.
        long_talk(&gateway, &upstream, &id).await;
        let body =
            json!({"model": "wide", "input": "Is it?", "conversation": id, "truncation": "auto", "store": false});
        let answer = post(&gateway, "/v1/responses", body).await;
        assert_eq!(answer["context"], json!({"left_out": 1, "summarized": 0}));
        assert!(!asked(&upstream, "wide").pop().unwrap().contains("Summary of what was said before"));
        gateway.running.stop(Duration::from_secs(5)).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_summary_is_of_its_branch_and_goes_with_what_it_covers() {
    on_each("summaries_branch", |store| async move {
        let upstream = upstream().await;
        let gateway = store.gateway(&models(&upstream), SUMMARIES).await;
        let id = new_conversation(&gateway).await;
        long_talk(&gateway, &upstream, &id).await;
        let all = items(&gateway, &id, "limit=100").await;
        let leaf = all.last().unwrap()["id"].as_str().unwrap().to_owned();

        // An edit of the second question: what is behind it was never said on that branch.
        let edit = json!({"message_id": "edit", "content": "This is word-77.", "parent_id": all[1]["id"]});
        talk(&gateway, &id, edit).await;
        let filler: Vec<Value> = (0..18)
            .map(|n| json!({"role": if n % 2 == 0 { "user" } else { "assistant" }, "content": "filler ".repeat(20)}))
            .collect();
        post(&gateway, &format!("/v1/conversations/{id}/items"), json!({"items": filler})).await;
        let done = talk(&gateway, &id, json!({"message_id": "other", "content": "Is it?"})).await;
        assert!(done["left_out"].as_u64().unwrap() > 0 && done["summarized"] == 0, "{done}");
        assert!(!asked(&upstream, "chat").pop().unwrap().contains("In short"));

        // Back on the first branch it holds, until something that it covers is deleted.
        let back = format!("/v1/conversations/{id}/items/{leaf}");
        post(&gateway, &back, json!({"current": true})).await;
        let done = talk(&gateway, &id, json!({"message_id": "back", "content": "Is it?"})).await;
        assert!(done["summarized"].as_u64().unwrap() > 0, "{done}");
        assert!(!words(&asked(&upstream, "chat").pop().unwrap()).contains("word-77"));
        // What is being written still is not once the server has stopped.
        gateway.running.stop(Duration::from_secs(5)).await;
        let gateway = store.gateway(&models(&upstream), SUMMARIES).await;
        let first = format!("/v1/conversations/{id}/items/{}", all[0]["id"].as_str().unwrap());
        assert_eq!(send(&gateway, Method::DELETE, &first, "", None).await.status, 200);
        assert!(summaries(&gateway, &id).await.is_empty());
        let done = talk(&gateway, &id, json!({"message_id": "gone", "content": "Is it?"})).await;
        assert_eq!((&done["type"], &done["summarized"]), (&json!("done"), &json!(0)), "{done}");
        // The next one is made of what is left.
        let anew =
            until("a summary", async || Some(summaries(&gateway, &id).await).filter(|anew| !anew.is_empty())).await;
        assert!(anew.iter().all(|summary| words(&summary.to_string()).starts_with("word-1 ")), "{anew:?}");
        gateway.running.stop(Duration::from_secs(5)).await;
    })
    .await;
}

/// The canary is in the summary, so that finding nothing means something.
#[tokio::test(flavor = "multi_thread")]
async fn summaries_are_deleted_and_purged_with_their_conversation() {
    on_each("summaries_purge", |store| async move {
        if !store.is_sqlite() {
            return;
        }
        let upstream = upstream().await;
        let more = format!("purge_after_days = 0\n{SUMMARIES}");
        let gateway = store.gateway(&models(&upstream), &more).await;
        let id = new_conversation(&gateway).await;
        long_talk(&gateway, &upstream, &id).await;
        assert!(in_files(&store, "In short: word-0") > 0);
        let path = format!("/v1/conversations/{id}");
        assert_eq!(send(&gateway, Method::DELETE, &path, "", None).await.status, 200);
        gateway.running.stop(Duration::from_secs(5)).await;
        let again = store.gateway(&models(&upstream), &more).await;
        until("it is gone", async || (in_files(&store, "In short: word-0") == 0).then_some(())).await;
        again.running.stop(Duration::from_secs(5)).await;
    })
    .await;
}

fn in_files(store: &Store, canary: &str) -> usize {
    crate::conversations::in_files(store.folder.path(), canary)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_that_fails_to_sum_up_hurts_nobody() {
    on_each("summaries_broken", |store| async move {
        let upstream = upstream().await;
        let broken = "[store.summaries]\nmodel = \"broken\"\n[pipeline]\n";
        let gateway = store.gateway(&models(&upstream), broken).await;
        let id = new_conversation(&gateway).await;
        let mut done = Value::Null;
        for n in 0..12 {
            done = talk(&gateway, &id, message(n)).await;
        }
        assert_eq!((&done["type"], &done["stored"], &done["summarized"]), (&json!("done"), &json!(true), &json!(0)));
        assert!(done["left_out"].as_u64().unwrap() > 0, "{done}");
        until("it is tried", async || (!asked(&upstream, "broken").is_empty()).then_some(())).await;
        assert!(summaries(&gateway, &id).await.is_empty());
        gateway.running.stop(Duration::from_secs(5)).await;
    })
    .await;
}

/// Of who wants nothing kept nothing is summed up, and nobody pays for, or reads, another tenant's.
#[tokio::test(flavor = "multi_thread")]
async fn summaries_are_their_tenants_and_nobodys_who_wants_nothing_kept() {
    on_each("summaries_tenants", |store| async move {
        let upstream = upstream().await;
        let key = |name: &str| format!("[[keys]]\nname = \"{name}\"\nhash = \"blake3:{}\"\n", blake3::hash(name.as_bytes()));
        let keys = format!("{}{}{}", key("ann"), key("eve"), key("quiet"));
        let top = format!("{}{keys}[tenants.quiet]\nzero_retention = true\n", models(&upstream));
        let gateway = store.gateway(&top, SUMMARIES).await;
        let ask = async |key: &str, path: &str, body: Value| send(&gateway, Method::POST, path, key, Some(&body)).await;
        let id = ask("ann", "/v1/conversations", json!({})).await.json()["id"].as_str().unwrap().to_owned();
        let one = |n: usize| json!({"model": "chat", "truncation": "auto", "conversation": id, "input": message(n)["content"]});
        let mut n = 0;
        until("a summary", async || {
            let mut unkept = json!({"model": "chat", "input": format!("canary-{n} {}", "and so on ".repeat(200)), "truncation": "auto"});
            assert_ne!(ask("quiet", "/v1/responses", unkept.clone()).await.status, 500);
            (unkept["store"], unkept["conversation"]) = (json!(false), json!(id));
            assert_ne!(ask("ann", "/v1/responses", unkept).await.status, 500);
            let last = ask("ann", "/v1/responses", one(n)).await.json();
            n += 1;
            (n >= 12 && last["context"]["summarized"].as_u64().unwrap() > 0).then_some(())
        })
        .await;
        assert!(!asked(&upstream, "sums").iter().any(|shown| shown.contains("canary-")));
        for path in ["", "/items", "/export"] {
            let path = format!("/v1/conversations/{id}{path}");
            assert_eq!(send(&gateway, Method::GET, &path, "eve", None).await.status, 404);
        }
        assert_eq!(ask("eve", "/v1/responses", one(99)).await.status, 404);
        let kinds = async |key: &str| {
            let day = format!("/v1/usage?start_time={}&group_by=kind", today_s());
            let results = send(&gateway, Method::GET, &day, key, None).await.json()["data"][0]["results"].clone();
            results.as_array().unwrap().iter().map(|result| result["kind"].clone()).collect::<Vec<Value>>()
        };
        until("the bill", async || kinds("ann").await.contains(&json!("summary")).then_some(())).await;
        assert!(!kinds("eve").await.contains(&json!("summary")) && !kinds("quiet").await.contains(&json!("summary")));
        gateway.running.stop(Duration::from_secs(5)).await;
    })
    .await;
}

/// Guards see what is summed up, and what a summary says.
#[tokio::test(flavor = "multi_thread")]
async fn guards_stand_before_and_behind_the_model_that_sums_up() {
    on_each("summaries_guarded", |store| async move {
        let upstream = StandIn::start(|_, body| match body["model"].as_str() {
            Some("sums") => said(body, "Card 4111 1111 1111 1111 was named."),
            _ => said(body, "Yes."),
        })
        .await;
        let guard =
            "[[pipeline.stage]]\nplugin = \"pii-guard\"\n[pipeline.stage.limits]\nwall_ms = 20000\ncpu_ms = 5000\n";
        let more = format!("[store.summaries]\nmodel = \"sums\"\n{guard}");
        let gateway = store.gateway(&models(&upstream), &more).await;
        let id = new_conversation(&gateway).await;
        talk(&gateway, &id, json!({"message_id": "pii", "content": "I am ann@example.com."})).await;
        long_talk(&gateway, &upstream, &id).await;
        let shown = asked(&upstream, "sums").concat();
        assert!(shown.contains("[email]") && !shown.contains("ann@example.com"), "{shown}");
        let prompt = asked(&upstream, "chat").pop().unwrap();
        assert!(prompt.contains("Card [card] was named") && !prompt.contains("4111"), "{prompt}");
        gateway.running.stop(Duration::from_secs(5)).await;
    })
    .await;
}

/// One that was written before a guard was there is screened where it is used.
#[tokio::test(flavor = "multi_thread")]
async fn a_summary_is_text_from_outside() {
    on_each("summaries_outside", |store| async move {
        let upstream = StandIn::start(|_, body| match body["model"].as_str() {
            Some("sums") => said(body, "Card 4111 1111 1111 1111 was named."),
            _ => said(body, "Yes."),
        })
        .await;
        let gateway = store.gateway(&models(&upstream), SUMMARIES).await;
        let id = new_conversation(&gateway).await;
        long_talk(&gateway, &upstream, &id).await;
        assert!(asked(&upstream, "chat").pop().unwrap().contains("Card 4111"));
        gateway.running.stop(Duration::from_secs(5)).await;
        let guard =
            "[[pipeline.stage]]\nplugin = \"pii-guard\"\n[pipeline.stage.limits]\nwall_ms = 20000\ncpu_ms = 5000\n";
        let again = store.gateway(&models(&upstream), &format!("[store.summaries]\nmodel = \"sums\"\n{guard}")).await;
        let done = talk(&again, &id, message(1000)).await;
        let prompt = asked(&upstream, "chat").pop().unwrap();
        assert!(prompt.contains("Card [card] was named") && !prompt.contains("4111"), "{prompt}");
        let outcomes = done["guards"].as_array().unwrap();
        assert!(outcomes.iter().any(|one| one["about"] == "context" && one["action"] == "rewrite"), "{done}");
        again.running.stop(Duration::from_secs(5)).await;
    })
    .await;
}

/// The own engine sums up, too, in as many pieces as it takes.
#[tokio::test(flavor = "multi_thread")]
async fn the_starter_sums_up() {
    on_each("summaries_starter", |store| async move {
        let more = "[store.summaries]\nmodel = \"tidegate-starter\"\nmax_tokens = 48\nrecent_turns = 1\nfrom_percent = 1\n[pipeline]\n";
        let gateway = store.gateway("", more).await;
        let id = new_conversation(&gateway).await;
        let pair = json!([{"role": "user", "content": "What is a tide? ".repeat(120)}, {"role": "assistant", "content": "Water that comes and goes."}]);
        post(&gateway, &format!("/v1/conversations/{id}/items"), json!({"items": pair})).await;
        talk(&gateway, &id, json!({"message_id": "1", "content": "What is Tidegate?", "model": "tidegate-starter"})).await;
        let made = until("a summary", async || summaries(&gateway, &id).await.pop()).await;
        assert_eq!((&made["covers"], &made["model"]), (&json!(2), &json!("tidegate-starter")));
        assert!(!made["text"].as_str().unwrap().is_empty());
        gateway.running.stop(Duration::from_secs(5)).await;
    })
    .await;
}
