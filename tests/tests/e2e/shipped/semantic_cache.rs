//! `semantic-cache`: answers that were given before, over real sockets.

use super::{Tally, stage};
use crate::conversations::{
    Keeping, ask as tell, get, heard, items, new_conversation, send, text_of as heard_text, texts,
};
use crate::talk::until;
use crate::usage::{clear_of_midnight, today_s};
use hyper::Method;
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tidegate_tests::postgres::Database;
use tidegate_tests::stand_in::{Said, StandIn, completion, embeddings, last_text};
use tidegate_tests::{Answer, Gateway, ask, collect, events, finish_reason, joined};

const CHAT: &str = "/v1/chat/completions";

/// A server that numbers its answers, and makes vectors.
async fn server(embed: impl Fn(&Value) -> Said + Send + Sync + 'static) -> StandIn {
    let count = std::sync::atomic::AtomicUsize::new(0);
    StandIn::start(move |path, body| match path {
        "/v1/embeddings" => embed(body),
        _ => {
            let n = count.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
            completion(&format!("{n}: {}", last_text(body)))
        }
    })
    .await
}

fn cached(service: &StandIn, settings: &str) -> String {
    let models: String = ["tidegate-starter", "other", "vectors"].map(|name| service.model(name)).concat();
    let grants = "[pipeline.stage.grants]\nkv_kib = 4096\nvectors = { answers = \"write\" }\n\
                  models = { embedder = \"vectors\" }\n";
    let config = format!("on_error = \"open\"\nconfig = {{ {settings} }}");
    format!("{models}{}{grants}", stage("semantic-cache", &config))
}

fn is_hit(answer: &Answer) -> bool {
    assert_eq!(answer.status, 200, "{:?}", answer.body);
    let by = answer.headers.get("x-tidegate-answered-by").map(|value| value.to_str().unwrap());
    assert!(by.is_none() || by == Some("semantic-cache"), "{by:?}");
    by.is_some()
}

/// What the model said until it was asked no more: any of these may be what is kept, since answers are kept behind the
/// client's back.
struct Learned {
    first: Answer,
    said: Vec<String>,
}

/// Asks, and asks the same again until it is answered from the cache.
async fn learn(gateway: &Gateway, request: Value) -> Learned {
    let first = gateway.chat(request.clone()).await;
    let mut said = vec![text_of(&first)];
    until(&format!("{request} is kept"), async || {
        let again = gateway.chat(request.clone()).await;
        if !is_hit(&again) {
            said.push(text_of(&again));
            return None;
        }
        Some(())
    })
    .await;
    Learned { first, said }
}

/// Of a stream or a whole answer.
fn text_of(answer: &Answer) -> String {
    match answer.headers["content-type"] == "text/event-stream" {
        true => joined(&events(&answer.body), 0),
        false => answer.text(),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repeated_question_is_answered_again_streamed_or_not_and_costs_nothing() {
    let service = server(embeddings).await;
    let gateway = Gateway::start(&cached(&service, "")).await;
    let Learned { first, said: by_model } = learn(&gateway, ask("When does the museum open?")).await;
    assert!(!is_hit(&first) && first.json()["usage"]["completion_tokens"] == 5);
    let again = gateway.chat(ask("When does the museum open?")).await;
    assert!(is_hit(&again));
    assert!(by_model.contains(&again.text()), "{by_model:?}: {}", again.text());
    let usage = &again.json()["usage"];
    assert_eq!((&usage["prompt_tokens"], &usage["completion_tokens"]), (&json!(0), &json!(0)));
    let mut request = ask("When does the museum open?");
    request["stream"] = true.into();
    request["stream_options"] = json!({"include_usage": true});
    let streamed = gateway.chat(request).await;
    assert!(is_hit(&streamed));
    let said = events(&streamed.body);
    assert!(by_model.contains(&joined(&said, 0)), "{by_model:?}");
    assert_eq!(finish_reason(&said, 0), "stop");
    assert_eq!(said.last().unwrap()["usage"]["completion_tokens"], 0);
    // What a stream said is kept as well: nothing else was said to this.
    let mut request = ask("And the library?");
    request["stream"] = true.into();
    let by_stream = learn(&gateway, request).await.said;
    let kept = gateway.chat(ask("And the library?")).await;
    assert!(is_hit(&kept) && by_stream.contains(&kept.text()), "{by_stream:?}: {}", kept.text());
}

/// Whom it is redacted for is a matter of who asks, and of the guards of that day.
#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_a_guard_has_changed_is_given_to_nobody_again() {
    let service = server(embeddings).await;
    let words = "stages = [\"stream-guard\"]\nconfig = { words = [\"Sunday\"], action = \"redact\" }";
    let honest = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("guests/dist/honest.wasm");
    let shouts = format!("file = {honest:?}\nstages = [\"output-guard\"]\nconfig = {{ output = \"shout\" }}");
    for (guard, left_alone) in [
        (stage("word-guard", words), "When does the library close?"),
        // Its answer is in capitals before it is put into capitals.
        (stage("shouts", &shouts), "WHEN DOES THE LIBRARY CLOSE?"),
    ] {
        let gateway = Gateway::start(&format!("{guard}{}", cached(&service, "threshold = 1.0"))).await;
        let changed = ask("When does the museum open on Sunday?");
        gateway.chat(changed.clone()).await;
        // An answer that it leaves as it was is kept; by then the other one is, or never will be.
        learn(&gateway, ask(left_alone)).await;
        for _ in 0..5 {
            assert!(!is_hit(&gateway.chat(changed.clone()).await));
        }
    }
}

/// It is none of the model that was asked, and not everybody who may ask that one may ask this.
#[tokio::test(flavor = "multi_thread")]
async fn an_answer_of_a_model_that_stood_in_is_given_to_nobody_again() {
    let service = server(embeddings).await;
    let is_away = Arc::new(AtomicBool::new(true));
    let away = Arc::clone(&is_away);
    let asked = StandIn::start(move |_, body| match away.load(Ordering::SeqCst) {
        true => Said::raw(503, "{}"),
        false => completion(&format!("asked: {}", last_text(body))),
    })
    .await;
    let more = "retry = { retries = 0 }\nbreaker = { failures = 1000 }\nfallbacks = [\"other\"]\n";
    let model = format!("{}{more}", asked.model("tidegate-starter"));
    let config = cached(&service, "").replace(&service.model("tidegate-starter"), &model);
    let gateway = Gateway::start(&config).await;
    let question = "When does the museum open?";
    for n in 0..3 {
        let answer = gateway.chat(ask(question)).await;
        assert!(!is_hit(&answer) && answer.text().ends_with(&format!(": {question}")), "{}", answer.text());
        assert_eq!(answer.json()["model"], "other");
        // An answer of the model that is asked is kept: by then the one before is, or never will be.
        let mut by_itself = ask(&format!("Where is number {n} then?"));
        by_itself["model"] = "other".into();
        learn(&gateway, by_itself).await;
    }
    is_away.store(false, Ordering::SeqCst);
    let by_model = learn(&gateway, ask(question)).await.said;
    assert!(by_model.iter().all(|said| said == &format!("asked: {question}")), "{by_model:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_question_that_means_the_same_is_answered_and_another_is_not() {
    let service = server(embeddings).await;
    let gateway = Gateway::start(&cached(&service, "threshold = 0.8")).await;
    let by_model = learn(&gateway, ask("When does the museum open on Sunday?")).await.said;
    let near = gateway.chat(ask("On Sunday, when will the museum be open?")).await;
    assert!(is_hit(&near));
    assert!(by_model.contains(&near.text()), "{by_model:?}: {}", near.text());
    assert!(!is_hit(&gateway.chat(ask("When does the bakery open on Monday?")).await));
}

/// Each is asked for twice, long enough after it was answered once, and is the model's each time.
#[tokio::test(flavor = "multi_thread")]
async fn what_differs_in_anything_else_is_the_models_to_answer() {
    let service = server(embeddings).await;
    let gateway = Gateway::start(&cached(&service, "max_temperature = 1.0")).await;
    let question = "When does the museum open?";
    learn(&gateway, ask(question)).await;
    let with = |change: Value| {
        let mut request = ask(question);
        request.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        request
    };
    let tools = json!([{"type": "function", "function": {"name": "t", "parameters": {"type": "object"}}}]);
    let earlier = json!([{"role": "system", "content": "Be brief."}, {"role": "user", "content": question}]);
    for change in [
        json!({"temperature": 1.5}),
        json!({"temperature": 0.5}),
        json!({"seed": 7}),
        json!({"max_tokens": 9}),
        json!({"tools": tools}),
        json!({"messages": earlier}),
        json!({"model": "other"}),
        json!({"response_format": {"type": "json_object"}}),
    ] {
        assert!(!is_hit(&gateway.chat(with(change.clone())).await), "{change}");
    }
    // Those that are never kept.
    tokio::time::sleep(Duration::from_millis(500)).await;
    for change in [json!({"temperature": 1.5}), json!({"tools": tools})] {
        assert!(!is_hit(&gateway.chat(with(change.clone())).await), "{change}");
    }
    learn(&gateway, with(json!({"temperature": 0.5}))).await;
    // Who it is for changes no answer where a tenant has one cache.
    assert!(is_hit(&gateway.chat(with(json!({"user": "u-1"}))).await));
}

fn key(name: &str) -> (String, String) {
    let secret = format!("sk-of-{name}");
    let hash = blake3::hash(secret.as_bytes()).to_hex();
    (secret, format!("[[keys]]\nname = \"{name}\"\nhash = \"blake3:{hash}\"\n"))
}

async fn asked_by(gateway: &Gateway, secret: &str, id: &str, question: &str) -> Answer {
    let mut request = ask(question);
    request["model"] = "tidegate-starter".into();
    let mut request = gateway.json_request(CHAT, &request);
    request.headers_mut().insert("authorization", format!("Bearer {secret}").parse().unwrap());
    request.headers_mut().insert("x-request-id", id.parse().unwrap());
    collect(gateway.send(request).await).await
}

/// Asks until it is answered from the cache.
async fn kept_for(gateway: &Gateway, secret: &str, question: &str) {
    until("it is kept", async || is_hit(&asked_by(gateway, secret, "a", question).await).then_some(())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tenants_share_nothing_and_one_request_id_mixes_nothing_up() {
    let service = server(embeddings).await;
    let ((one, first), (two, second)) = (key("one"), key("two"));
    let gateway = Gateway::start(&format!("{first}{second}{}", cached(&service, ""))).await;
    let question = "When does the museum open?";
    kept_for(&gateway, &one, question).await;
    assert!(!is_hit(&asked_by(&gateway, &two, "a", question).await));
    // Many requests under one id, at once: each answer is kept for its own question.
    let questions: Vec<String> = (0..16).map(|n| format!("q{n}x y{n}z w{n}v")).collect();
    let ask_all = || async {
        futures_util::future::join_all(questions.iter().map(|question| asked_by(&gateway, &one, "same", question)))
            .await
    };
    until("all are kept", async || {
        let answers = ask_all().await;
        for (answer, question) in answers.iter().zip(&questions) {
            assert!(answer.text().ends_with(&format!(": {question}")), "{} to {question}", answer.text());
        }
        answers.iter().all(is_hit).then_some(())
    })
    .await;
}

/// One may have passages that the other may not; each has memories of the own.
#[tokio::test(flavor = "multi_thread")]
async fn callers_whose_answers_are_made_of_other_things_share_none() {
    let service = server(embeddings).await;
    let ((one, first), (two, second)) = (key("one"), key("two"));
    let file = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("guests/dist/honest.wasm");
    for (kind, more) in [("retriever", "plugins = []\n"), ("memory", "")] {
        let (keys, cache) =
            (format!("{first}tenant = \"acme\"\n{second}tenant = \"acme\"\n{more}"), cached(&service, ""));
        let brings = stage("own-brings", &format!("file = {file:?}\nstages = [\"{kind}\"]"));
        let gateway = Gateway::start(&format!("{keys}{brings}{cache}")).await;
        let question = "When does the museum open?";
        kept_for(&gateway, &one, question).await;
        assert!(!is_hit(&asked_by(&gateway, &two, "b", question).await), "{kind}");
    }
}

/// What the model was asked is in the books, what the cache answered is not.
#[tokio::test(flavor = "multi_thread")]
async fn an_answer_of_the_cache_is_not_billed() {
    clear_of_midnight().await;
    let (service, folder) = (server(embeddings).await, tempfile::tempdir().unwrap());
    let (secret, entry) = key("billed");
    let store = format!("[store]\npath = {:?}\n", folder.path().display().to_string());
    let gateway = Gateway::start(&format!("{entry}{store}{}", cached(&service, ""))).await;
    let mut hits = 0;
    while hits < 3 {
        hits += u32::from(is_hit(&asked_by(&gateway, &secret, "a", "When does the museum open?").await));
    }
    let asked = service.asked(CHAT).len() as u64;
    // What the cache asks the model that makes vectors is billed as that model's.
    let path = format!("/v1/usage?start_time={}&models=tidegate-starter", today_s());
    let billed = until("the bill", async || {
        let usage = send(&gateway, Method::GET, &path, &secret, None).await.json();
        let billed = usage["data"][0]["results"][0].clone();
        (billed["num_model_requests"] == asked).then_some(billed)
    })
    .await;
    assert_eq!(billed["output_tokens"], 5 * asked);
}

/// Asks in a conversation of its own, as a response that is kept, until the cache answers; gives the response, its
/// conversation, and what the model said until then.
async fn hit_in_a_conversation(gateway: &Gateway, question: &str) -> (Value, String, Vec<String>) {
    let mut said = Vec::new();
    let (response, conversation) = until(&format!("{question} is kept"), async || {
        let conversation = new_conversation(gateway).await;
        let body = json!({"model": "tidegate-starter", "input": question, "conversation": conversation});
        let answer = gateway.post("/v1/responses", &body).await;
        let response = answer.json();
        if is_hit(&answer) {
            return Some((response, conversation));
        }
        said.push(response["output"][0]["content"][0]["text"].as_str().unwrap().to_owned());
        None
    })
    .await;
    (response, conversation, said)
}

/// What the cache answers is a turn of the conversation as any other: it is kept, read again, and gone on from.
#[tokio::test(flavor = "multi_thread")]
async fn an_answer_of_the_cache_is_kept_in_its_conversation() {
    let service = server(embeddings).await;
    let keeping = Keeping::start(&cached(&service, "")).await;
    let (gateway, question) = (&keeping.gateway, "When does the museum open?");
    let (response, conversation, by_model) = hit_in_a_conversation(gateway, question).await;
    let text = response["output"][0]["content"][0]["text"].as_str().unwrap().to_owned();
    assert!(by_model.contains(&text), "{by_model:?}: {text}");
    assert_eq!((&response["status"], &response["store"]), (&json!("completed"), &json!(true)));
    assert_eq!(response["usage"]["output_tokens"], 0);
    assert_eq!(get(gateway, &format!("/v1/responses/{}", response["id"].as_str().unwrap())).await, response);
    assert_eq!(texts(&items(gateway, &conversation, "").await), [question, &text]);

    // By the simple pair, whose first message is the same request: its stream says that it was written.
    let simple = new_conversation(gateway).await;
    let message = json!({"message_id": "1", "content": question, "model": "tidegate-starter"});
    let accepted = tell(gateway, &simple, message).await;
    let events = heard(gateway, &accepted["stream_id"], 0).await;
    let done = &events.last().unwrap().1;
    assert_eq!((&done["type"], &done["stored"]), (&json!("done"), &json!(true)), "{done}");
    assert!(by_model.contains(&heard_text(&events)), "{by_model:?}: {events:?}");
    assert_eq!(texts(&items(gateway, &simple, "").await), [question, &heard_text(&events)]);

    // The next turn is the model's, which is told both: the same words within a conversation are another request.
    let asked = service.asked(CHAT).len();
    let next = json!({"model": "tidegate-starter", "input": question, "conversation": conversation});
    let next = gateway.post("/v1/responses", &next).await;
    assert!(!is_hit(&next));
    let told = &service.asked(CHAT)[asked]["messages"];
    let contents: Vec<&Value> = told.as_array().unwrap().iter().map(|message| &message["content"]).collect();
    assert_eq!(contents, [question, &text, question]);
    assert_eq!(items(gateway, &conversation, "").await.len(), 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_has_its_time_and_a_cut_or_refused_one_is_not_kept() {
    let service = server(embeddings).await;
    let gateway = Gateway::start(&cached(&service, "ttl_s = 2")).await;
    learn(&gateway, ask("When does the museum open?")).await;
    until("its time is over", async || {
        let answer = gateway.chat(ask("When does the museum open?")).await;
        (!is_hit(&answer)).then_some(())
    })
    .await;

    let cut = StandIn::start(|path, body| {
        let said = completion("It opens at ni");
        let text = String::from_utf8(said.body).unwrap().replace("\"stop\"", "\"length\"");
        if path == "/v1/embeddings" { embeddings(body) } else { Said::raw(200, text) }
    })
    .await;
    let words =
        stage("word-guard", "stages = [\"stream-guard\"]\nconfig = { words = [\"museum\"], action = \"block\" }");
    let guarded = cached(&service, "") + &words;
    for (gateway, what) in
        [(Gateway::start(&cached(&cut, "")).await, "cut"), (Gateway::start(&guarded).await, "halted")]
    {
        for _ in 0..3 {
            assert!(!is_hit(&gateway.chat(ask("When does the museum open?")).await), "{what}");
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
    }
}

/// What no model should say costs near answers only.
#[tokio::test(flavor = "multi_thread")]
async fn a_model_of_vectors_that_is_out_of_order_fails_no_request() {
    let one = |numbers: &str| format!(r#"{{"data":[{{"index":0,"embedding":{numbers}}}]}}"#);
    let long = format!("[{}]", vec!["0.5"; 5_000].join(","));
    for (name, said) in [
        ("500", Said::raw(500, one("[1,2]"))),
        ("NaN", Said::raw(200, one("[NaN,1]"))),
        ("infinite", Said::raw(200, one("[1e39,1]"))),
        ("zero", Said::raw(200, one("[0,0]"))),
        ("empty", Said::raw(200, one("[]"))),
        ("too many dimensions", Said::raw(200, one(&long))),
        ("huge", Said::raw(200, vec![b' '; 40 << 20])),
        ("garbage", Said::raw(200, vec![0xff; 99])),
    ] {
        let service = server(move |_| said.clone()).await;
        let gateway = Gateway::start(&cached(&service, "")).await;
        learn(&gateway, ask(&format!("Is it {name}?"))).await;
    }
    // Of changing dimensions: the collection has those of the first.
    let service = server(|body| {
        let numbers = vec![0.5; 2 + body["input"][0].as_str().unwrap().len() % 7];
        Said::json(&json!({"data": [{"index": 0, "embedding": numbers}]}))
    })
    .await;
    let gateway = Gateway::start(&cached(&service, "")).await;
    for question in ["a", "ab", "abc", "abcd"] {
        assert!(!is_hit(&gateway.chat(ask(question)).await), "{question}");
    }
    // Slow: the stage's time is over, and the request goes on.
    let slow = server(|body| embeddings(body).after(Duration::from_secs(20))).await;
    let config = cached(&slow, "").replace("wall_ms = 20000", "wall_ms = 700");
    assert!(!is_hit(&Gateway::start(&config).await.chat(ask("Hello!")).await));
}

/// Prints how often the cache is right about two questions with a model: that of `TIDEGATE_EMBEDDINGS` (a base URL; the
/// model in `TIDEGATE_EMBEDDINGS_MODEL`, the threshold in `TIDEGATE_EMBEDDINGS_THRESHOLD`), else the stand-in, which
/// counts words.
#[tokio::test(flavor = "multi_thread")]
async fn semantic_cache_on_its_labelled_set() {
    let service = server(embeddings).await;
    let named = |name: &str| std::env::var(format!("TIDEGATE_EMBEDDINGS{name}")).ok();
    let url = named("").unwrap_or(format!("{}/v1", service.origin()));
    let model = named("_MODEL").unwrap_or("vectors".into());
    let embedder = format!("[[models]]\nname = \"vectors\"\nupstream = \"{url}\"\nupstream_model = \"{model}\"\n");
    let settings = named("_THRESHOLD").map(|threshold| format!("threshold = {threshold}")).unwrap_or_default();
    let config = cached(&service, &settings).replace(&service.model("vectors"), &embedder);
    let gateway = Gateway::start(&config).await;
    let mut tally = Tally::default();
    for (n, line) in include_str!("../../../../plugins/semantic-cache/labelled.jsonl").lines().enumerate() {
        let line: Value = serde_json::from_str(line).unwrap();
        let pair = |text: &Value| json!({"messages": [{"role": "system", "content": format!("Pair {n}.")}, {"role": "user", "content": text}]});
        learn(&gateway, pair(&line["first"])).await;
        let hit = is_hit(&gateway.chat(pair(&line["second"])).await);
        tally.add(&format!("{} / {}", line["first"], line["second"]), line["same"] == true, hit);
    }
    println!("{tally} of semantic-cache");
    assert!(tally.precision() > 0.3, "{tally}");
    if named("").is_none() {
        let set = format!("{} pairs of questions, {} of which mean the same", tally.len(), tally.wanted());
        super::assert_readme_says("semantic-cache", &tally, &[set]);
    }
}

/// Where plugins keep things in the store.
fn lasting(service: &StandIn) -> String {
    format!("[plugins]\nkv = \"store\"\nvectors = \"store\"\n{}", cached(service, "threshold = 0.8"))
}

const LEARNED: &str = "When does the museum open on Sunday?";
const NEAR: &str = "On Sunday, when will the museum be open?";

#[tokio::test(flavor = "multi_thread")]
async fn a_question_that_means_the_same_is_answered_after_a_restart_where_the_store_has_it() {
    let service = server(embeddings).await;
    let keeping = Keeping::start(&lasting(&service)).await;
    let by_model = learn(&keeping.gateway, ask(LEARNED)).await.said;
    let keeping = keeping.again().await;
    let near = keeping.gateway.chat(ask(NEAR)).await;
    assert!(is_hit(&near) && by_model.contains(&near.text()), "{by_model:?}: {}", near.text());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_question_that_means_the_same_is_answered_at_another_gateway_with_the_same_postgres() {
    let Some(database) = Database::new("cache_gateways") else { return };
    let service = server(embeddings).await;
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let config = lasting(&service);
    let (one, two) =
        tokio::join!(database.gateway(&config, folders[0].path()), database.gateway(&config, folders[1].path()));
    let by_model = learn(&one, ask(LEARNED)).await.said;
    // The answer is kept before the question's vector is; it is not stopped in between.
    one.running.stop(Duration::from_secs(5)).await;
    let near = two.chat(ask(NEAR)).await;
    assert!(is_hit(&near) && by_model.contains(&near.text()), "{by_model:?}: {}", near.text());
    two.running.stop(Duration::from_secs(5)).await;
}
