//! Titles that a model finds, and that a caller's own word takes the place of.

use super::{asked, on_each, said, talk, until};
use crate::conversations::{get, new_conversation, post, send};
use crate::stages::metrics;
use crate::usage::today_s;
use hyper::Method;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use tidegate_tests::Gateway;
use tidegate_tests::stand_in::{Said, StandIn};
use tokio::sync::Semaphore;

/// Names as often as the gate has permits.
async fn namer(gate: &Arc<Semaphore>) -> StandIn {
    let gate = Arc::clone(gate);
    StandIn::start(move |_, body| match body["model"].as_str() {
        Some("namer") => said(body, "\"Harbour tides.\"").held(&gate),
        Some("broken") => Said::raw(500, "{}"),
        _ => said(body, "At noon."),
    })
    .await
}

fn models(upstream: &StandIn) -> String {
    ["chat", "namer", "broken"].iter().map(|name| upstream.model(name)).collect()
}

async fn title(gateway: &Gateway, id: &str) -> String {
    get(gateway, &format!("/v1/conversations/{id}")).await["title"].as_str().unwrap().to_owned()
}

async fn named(gateway: &Gateway, id: &str) -> String {
    until("a title", async || Some(title(gateway, id).await).filter(|title| !title.is_empty())).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_conversation_is_named_behind_its_first_answer_unless_a_caller_named_it() {
    on_each("titles", |store| async move {
        let gate = Arc::new(Semaphore::new(0));
        let upstream = namer(&gate).await;
        let gateway = store.gateway(&models(&upstream), "[store.titles]\nmodel = \"namer\"\n[pipeline]\n").await;
        let id = new_conversation(&gateway).await;
        let done = talk(&gateway, &id, json!({"message_id": "1", "content": "When is high water?"})).await;
        assert_eq!(done["type"], "done");
        assert_eq!(title(&gateway, &id).await, "", "nobody waits for it");
        gate.add_permits(1);
        assert_eq!(named(&gateway, &id).await, "Harbour tides");
        let prompt = asked(&upstream, "namer").remove(0);
        assert!(prompt.contains("When is high water?") && prompt.contains("At noon."), "{prompt}");
        let found = get(&gateway, "/v1/conversations?q=harbour+TIDES").await;
        assert_eq!((&found["data"][0]["id"], &found["data"][0]["title"]), (&json!(id), &json!("Harbour tides")));

        // A caller's word takes its place, and stays.
        post(&gateway, &format!("/v1/conversations/{id}"), json!({"title": "Mine"})).await;
        talk(&gateway, &id, json!({"message_id": "2", "content": "And low water?"})).await;
        // One that was named before is not named again, and one that is named meanwhile keeps that name.
        let before = post(&gateway, "/v1/conversations", json!({"title": "Named"})).await["id"].clone();
        talk(&gateway, before.as_str().unwrap(), json!({"message_id": "1", "content": "Hello!"})).await;
        let meanwhile = new_conversation(&gateway).await;
        talk(&gateway, &meanwhile, json!({"message_id": "1", "content": "Hello!"})).await;
        until("the namer is asked", async || (asked(&upstream, "namer").len() == 2).then_some(())).await;
        post(&gateway, &format!("/v1/conversations/{meanwhile}"), json!({"title": "Quicker"})).await;
        gate.add_permits(1);
        tokio::time::sleep(Duration::from_millis(800)).await;
        assert_eq!(title(&gateway, &id).await, "Mine");
        assert_eq!(title(&gateway, before.as_str().unwrap()).await, "Named");
        assert_eq!(title(&gateway, &meanwhile).await, "Quicker");
        assert_eq!(asked(&upstream, "namer").len(), 2);
        gateway.running.stop(Duration::from_secs(5)).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_namer_that_works_answers_are_as_ever() {
    on_each("titles_broken", |store| async move {
        let upstream = namer(&Arc::new(Semaphore::new(9))).await;
        let gateway = store.gateway(&models(&upstream), "[store.titles]\nmodel = \"broken\"\n[pipeline]\n").await;
        let id = new_conversation(&gateway).await;
        // It is the process's, and of no other test.
        let counter = "tidegate_behind_pauses_total{kind=\"title\",of=\"model\"} ";
        let pauses =
            async || metrics(&gateway).await.lines().find_map(|line| Some(line.strip_prefix(counter)?.to_owned()));
        let before = pauses().await;
        let begun = std::time::Instant::now();
        for n in 0..8 {
            let id = if n % 2 == 0 { id.clone() } else { new_conversation(&gateway).await };
            let question = json!({"message_id": n.to_string(), "content": "When is high water?"});
            let done = talk(&gateway, &id, question).await;
            assert_eq!((&done["type"], &done["stored"]), (&json!("done"), &json!(true)));
            if n == 0 {
                // Until its failure is known, others may try it too.
                until("it is paused", async || (pauses().await != before).then_some(())).await;
            }
        }
        // It is left alone for 1 s, 2 s, 4 s and so on, by all conversations together.
        let tries = asked(&upstream, "broken").len();
        let most = 1 + (begun.elapsed().as_secs() + 1).ilog2() as usize;
        assert!((1..=most).contains(&tries), "{tries} tries in {:?}", begun.elapsed());
        let mut n = 8;
        until("it is tried again", async || {
            n += 1;
            talk(&gateway, &id, json!({"message_id": n.to_string(), "content": "And now?"})).await;
            (asked(&upstream, "broken").len() > tries).then_some(())
        })
        .await;
        assert_eq!(title(&gateway, &id).await, "");
        gateway.running.stop(Duration::from_secs(5)).await;
    })
    .await;
}

/// What a guard says in a model's place is for whoever asked.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_guard_answers_is_no_title() {
    on_each("titles_guarded", |store| async move {
        let gate = Arc::new(Semaphore::new(9));
        let guest = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("guests/dist/honest.wasm");
        for stage in ["output-guard", "prompt-guard"] {
            let upstream = namer(&gate).await;
            let rest = format!(
                "[store.titles]\nmodel = \"namer\"\n[[pipeline.stage]]\nplugin = \"answers-titles\"\nfile = {guest:?}\n\
                 stages = [\"{stage}\"]\nconfig = {{ output = \"respond\", prompt = \"respond\" }}\n\
                 limits = {{ wall_ms = 20000 }}\n"
            );
            let gateway = store.gateway(&models(&upstream), &rest).await;
            let answers = format!(
                "tidegate_plugin_verdicts_total{{plugin=\"answers-titles\",stage=\"{stage}\",verdict=\"respond\"}} "
            );
            let count = async || {
                let all = metrics(&gateway).await;
                all.lines().find_map(|line| line.strip_prefix(&answers)?.parse::<u64>().ok()).unwrap_or_default()
            };
            let before = count().await;
            let id = new_conversation(&gateway).await;
            talk(&gateway, &id, json!({"message_id": "1", "content": "When is high water?"})).await;
            until("it answers both", async || (count().await >= before + 2).then_some(())).await;
            tokio::time::sleep(Duration::from_millis(300)).await;
            assert_eq!(title(&gateway, &id).await, "", "{stage}");
            gateway.running.stop(Duration::from_secs(5)).await;
        }
    })
    .await;
}

/// The own engine names, too; what it finds is short and its own kind of use.
#[tokio::test(flavor = "multi_thread")]
async fn the_starter_names_conversations() {
    on_each("titles_starter", |store| async move {
        let gateway = store.gateway("", "[store.titles]\nmodel = \"tidegate-starter\"\n[pipeline]\n").await;
        let id = new_conversation(&gateway).await;
        talk(&gateway, &id, json!({"message_id": "1", "content": "What is Tidegate?", "model": "tidegate-starter"}))
            .await;
        let title = named(&gateway, &id).await;
        assert!(title.chars().count() <= 80 && !title.contains('\n'), "{title}");
        let kinds = until("the bill", async || {
            let day = format!("/v1/usage?start_time={}&group_by=kind", today_s());
            let results = get(&gateway, &day).await["data"][0]["results"].as_array()?.clone();
            let kinds: Vec<Value> = results.iter().map(|result| result["kind"].clone()).collect();
            (kinds.len() == 2).then_some(kinds)
        });
        assert_eq!(kinds.await, [json!("generation"), json!("title")]);
        gateway.running.stop(Duration::from_secs(5)).await;
    })
    .await;
}

/// Nobody names what is not kept, nor another tenant's.
#[tokio::test(flavor = "multi_thread")]
async fn who_wants_nothing_kept_is_not_shown_to_the_namer() {
    on_each("titles_quiet", |store| async move {
        let upstream = namer(&Arc::new(Semaphore::new(9))).await;
        let key =
            |name: &str| format!("[[keys]]\nname = \"{name}\"\nhash = \"blake3:{}\"\n", blake3::hash(name.as_bytes()));
        let top =
            format!("{}{}{}[tenants.quiet]\nzero_retention = true\n", models(&upstream), key("quiet"), key("loud"));
        let gateway = store.gateway(&top, "[store.titles]\nmodel = \"namer\"\n[pipeline]\n").await;
        let ask = async |key: &str, path: &str, body: Value| send(&gateway, Method::POST, path, key, Some(&body)).await;
        let id = ask("loud", "/v1/conversations", json!({})).await.json()["id"].as_str().unwrap().to_owned();
        let quiet = json!({"model": "chat", "input": "canary-quiet"});
        assert_eq!(ask("quiet", "/v1/responses", quiet).await.status, 200);
        let unkept = json!({"model": "chat", "input": "canary-unkept", "conversation": id, "store": false});
        assert_eq!(ask("loud", "/v1/responses", unkept).await.status, 200);
        let kept = json!({"model": "chat", "input": "canary-kept", "conversation": id});
        assert_eq!(ask("loud", "/v1/responses", kept).await.status, 200);
        until("the title", async || {
            let found = send(&gateway, Method::GET, &format!("/v1/conversations/{id}"), "loud", None).await.json();
            (found["title"] == "Harbour tides").then_some(())
        })
        .await;
        let shown = asked(&upstream, "namer").concat();
        assert!(shown.contains("canary-kept") && !shown.contains("canary-quiet") && !shown.contains("canary-unkept"));
        let other = send(&gateway, Method::GET, &format!("/v1/conversations/{id}"), "quiet", None).await;
        assert_eq!(other.status, 404);
        gateway.running.stop(Duration::from_secs(5)).await;
    })
    .await;
}
