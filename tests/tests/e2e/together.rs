//! Guards beside each other, guards beside the engine, and the channels that guards see.

use crate::{one_read, talk};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tidegate_pipeline::ModelBackend;
use tidegate_tests::stand_in::{StandIn, completion};
use tidegate_tests::{Gateway, ask, events, finish_reason, joined, with_model};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

fn stage(guest: &str, name: &str, stages: &str, more: &str) -> String {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("guests/dist/{guest}.wasm"));
    let holdback = if stages == "stream-guard" { "holdback_bytes = 100000\n" } else { "" };
    format!(
        "[[pipeline.stage]]\nplugin = \"{name}\"\nfile = \"{}\"\nstages = [\"{stages}\"]\n{more}\n\
         [pipeline.stage.limits]\nwall_ms = 20000\n{holdback}",
        file.display()
    )
}

pub(crate) fn watches(name: &str, config: &str) -> String {
    stage("watches", name, "stream-guard", &format!("config = {{ {config} }}"))
}

/// A service that answers with `status` once it is let, and counts who waits there at the same time.
pub(crate) struct Gate {
    address: SocketAddr,
    pub(crate) open: Arc<Semaphore>,
    waiting: Arc<AtomicUsize>,
    most: Arc<AtomicUsize>,
}

pub(crate) async fn gate(status: &'static str) -> Gate {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let gate = Gate { address, open: Arc::new(Semaphore::new(0)), waiting: Arc::default(), most: Arc::default() };
    let (open, waiting, most) = (Arc::clone(&gate.open), Arc::clone(&gate.waiting), Arc::clone(&gate.most));
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let (open, waiting, most) = (Arc::clone(&open), Arc::clone(&waiting), Arc::clone(&most));
            tokio::spawn(async move {
                let mut head = vec![0; 4096];
                let _ = stream.read(&mut head).await;
                most.fetch_max(waiting.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                open.acquire().await.unwrap().forget();
                waiting.fetch_sub(1, Ordering::SeqCst);
                let answer = format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
                let _ = stream.write_all(answer.as_bytes()).await;
            });
        }
    });
    gate
}

/// A prompt guard that asks a gate.
pub(crate) fn asks(gate: &Gate, name: &str, when: &str) -> String {
    let address = gate.address;
    let more = format!(
        "config = {{ url = \"http://{address}/\" }}\nwhen = \"{when}\"\n[pipeline.stage.grants]\nrandom = true\n\
         content = true\nsecrets = {{ key = \"PATH\" }}\nvectors = {{ notes = \"read\" }}\n\
         models = {{ small = \"tidegate-starter\" }}\n\
         http = {{ origins = [\"http://{address}\"], networks = [\"127.0.0.1/32\"], timeout_ms = 60000 }}"
    );
    stage("reaches", name, "prompt-guard", &more)
}

async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    talk::until(what, async || holds().then_some(())).await;
}

/// Sequences that the engine runs, and tokens that it has generated.
fn engine(gateway: &Gateway) -> (usize, u64) {
    let pipeline = gateway.running.pipeline();
    let model = Arc::clone(pipeline.models().get("tidegate-starter").unwrap());
    match &model.backend {
        ModelBackend::Engine(engine) => {
            let stats = engine.handle.stats();
            (stats.live_jobs, stats.snapshot.counters.generation_tokens)
        }
        ModelBackend::Upstream(_) => panic!("the starter is the engine's"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_guard_during_prefill_lets_generation_begin_and_nothing_leave_and_its_refusal_cancels() {
    let gate = gate("403 Forbidden").await;
    let gateway = Arc::new(Gateway::start(&asks(&gate, "late", "during-prefill")).await);
    let asking = Arc::clone(&gateway);
    let mut request = ask("Tell me a story about a fox.");
    // None ends by itself: what ends early was cancelled.
    (request["max_tokens"], request["n"], request["logit_bias"]) = (900.into(), 4.into(), json!({"2": -100}));
    let answer = tokio::spawn(async move { asking.chat(request).await });
    until("the guard is asked", || gate.waiting.load(Ordering::SeqCst) == 1).await;
    until("the engine generates meanwhile", || engine(&gateway).1 > 0).await;
    assert!(!answer.is_finished(), "nothing leaves before the verdict");
    gate.open.add_permits(1);
    let answer = answer.await.unwrap();
    assert_eq!((answer.status, answer.error().2), (400, "content_filter".into()));
    until("no sequence is left", || engine(&gateway).0 == 0).await;
    let (generated, wanted) = (engine(&gateway).1, 4 * 900);
    assert!(generated < wanted / 2, "{generated} of {wanted} tokens were generated");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_guard_before_keeps_the_engine_waiting_and_both_let_the_same_through() {
    let mut texts = Vec::new();
    for when in ["before", "during-prefill"] {
        let gate = gate("200 OK").await;
        let gateway = Arc::new(Gateway::start(&asks(&gate, "guard", when)).await);
        let asking = Arc::clone(&gateway);
        let answer = tokio::spawn(async move { asking.chat(ask("What is Tidegate?")).await });
        until("the guard is asked", || gate.waiting.load(Ordering::SeqCst) == 1).await;
        if when == "before" {
            tokio::time::sleep(Duration::from_millis(50)).await;
            assert_eq!(engine(&gateway).0, 0, "no job before the verdict");
        }
        gate.open.add_permits(1);
        texts.push(answer.await.unwrap().text());
    }
    assert_eq!(texts[0], texts[1]);
}

/// What goes to another machine waits for the verdict.
#[tokio::test(flavor = "multi_thread")]
async fn a_guard_during_prefill_decides_before_an_upstream_is_asked() {
    let upstream = gate("200 OK").await;
    let gate = gate("403 Forbidden").await;
    gate.open.add_permits(1);
    let models = format!(
        "[[models]]\nname = \"tidegate-starter\"\nupstream = \"http://{}/v1\"\n{}",
        upstream.address,
        asks(&gate, "late", "during-prefill")
    );
    let gateway = Gateway::start(&models).await;
    assert_eq!(gateway.chat(ask("Hello!")).await.status, 400);
    assert_eq!(upstream.most.load(Ordering::SeqCst), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_guard_that_rewrites_is_not_allowed_during_prefill() {
    let honest = stage("honest", "honest", "prompt-guard", "when = \"during-prefill\"");
    let gateway = Gateway::start(&honest).await;
    assert!(gateway.running.facts.join("\n").contains("during-prefill"), "{:?}", gateway.running.facts);
    assert_eq!(gateway.chat(ask("Hello!")).await.status, 503, "it did not load, and guards are closed");
}

#[tokio::test(flavor = "multi_thread")]
async fn prompt_guards_that_do_not_mutate_are_asked_beside_each_other() {
    let gate = gate("200 OK").await;
    let config = format!("{}{}", asks(&gate, "one", "before"), asks(&gate, "two", "before"));
    let gateway = Arc::new(Gateway::start(&config).await);
    let asking = Arc::clone(&gateway);
    let answer = tokio::spawn(async move { asking.chat(ask("Hello!")).await.status });
    until("both are asked at once", || gate.waiting.load(Ordering::SeqCst) == 2).await;
    gate.open.add_permits(2);
    assert_eq!(answer.await.unwrap(), 200);
}

/// Three passages, and a guard that asks a service about each: all of them wait there together.
#[tokio::test(flavor = "multi_thread")]
async fn passages_are_screened_beside_each_other() {
    let gate = gate("200 OK").await;
    let config = format!("{}{}", stage("honest", "honest", "retriever", ""), asks(&gate, "one", "before"));
    let gateway = Arc::new(Gateway::start(&config).await);
    let asking = Arc::clone(&gateway);
    let answer = tokio::spawn(async move { asking.chat(ask("Hello!")).await.status });
    until("the prompt is asked about", || gate.waiting.load(Ordering::SeqCst) == 1).await;
    gate.open.add_permits(1);
    until("all passages are asked about at once", || gate.waiting.load(Ordering::SeqCst) == 3).await;
    gate.open.add_permits(3);
    assert_eq!(answer.await.unwrap(), 200);
}

const FAREWELL: &str = "[halted in text]";

/// What a client reads of a model that says these words, each only when all that `held` bytes do not keep back has come: no
/// two are ever judged at once, however slow the guards are.
pub(crate) async fn drip(stages: &str, words: &[String], held: usize) -> Vec<Value> {
    let let_go = Arc::new(Semaphore::new(0));
    let reads = words.iter().map(|word| vec![word.clone()]).collect();
    let model = one_read::model("tidegate-starter", reads, &let_go).await;
    let gateway = Gateway::start(&format!("{model}{stages}")).await;
    let mut request = with_model(ask("Hello!"));
    request["stream"] = true.into();
    let mut body = gateway.send(gateway.json_request("/v1/chat/completions", &request)).await.into_body();
    let (mut said, mut seen) = (0, Vec::new());
    for word in words {
        said += word.len();
        while one_read::texts(&seen).concat().len() + held < said {
            let Some(frame) = body.frame().await else { return events(&seen) };
            seen.extend_from_slice(&frame.unwrap().into_data().unwrap());
        }
        let_go.add_permits(1);
    }
    seen.extend_from_slice(&body.collect().await.unwrap().to_bytes());
    events(&seen)
}

/// The first holds 60 bytes back, the second halts at a word. Beside each other the second sees the word at once, while
/// the first still holds it: what has left then ends 60 bytes before the word does. One after the other, all before the
/// word would have left. What the second lets go is the first one's to decide on, as the last of the text.
#[tokio::test(flavor = "multi_thread")]
async fn what_leaves_is_the_minimum_of_the_watermarks() {
    let mut words: Vec<String> = (10..50).map(|n| format!("word{n} ")).collect();
    words[30] = "forbidden ".into();
    let whole = words.concat();
    let at = whole.find("forbidden").unwrap();
    let check = |said: &str, left: &str| {
        assert!(whole.starts_with(said) && said.len() <= at, "{said:?}");
        assert!(said.starts_with(left) && !left.is_empty(), "{left:?} of {said:?}");
        assert!(left.len() <= at + words[30].len() - 60, "{left:?} leaves, and the word is at {at}");
    };
    let halts = watches("halts", "halt = \"forbidden\"");

    let told = drip(&format!("{}{halts}", watches("holds", "hold = \"60\"")), &words, 60).await;
    assert_eq!(finish_reason(&told, 0), "content_filter");
    let said = joined(&told, 0);
    let mut texts = told.iter().filter_map(|event| event["choices"][0]["delta"]["content"].as_str());
    let farewell = texts.rfind(|text| text.ends_with(FAREWELL)).expect("an event of its own");
    let left = said.strip_suffix(farewell).expect("the farewell is the last");
    check(said.strip_suffix(FAREWELL).expect("the guard's farewell"), left);

    let told = drip(&format!("{}{halts}", watches("ends", "hold = \"60\", halt = \"[halted\"")), &words, 60).await;
    let said = joined(&told, 0);
    let left = said.strip_suffix(FAREWELL).expect("the second farewell, in place of the first");
    check(left, left);

    let both = format!("{}{}", watches("holds", "hold = \"60\""), watches("more", "hold = \"9\""));
    assert_eq!(joined(&drip(&both, &words, 60).await, 0), whole, "in the end all of it leaves");
}

/// One that keeps nothing back is ahead of one that does. Where that one halts, what the first has let go beyond it never leaves:
/// the farewell stands behind what has left.
#[tokio::test(flavor = "multi_thread")]
async fn a_farewell_is_judged_behind_what_has_left() {
    let mut words: Vec<String> = (10..50).map(|n| format!("word{n} ")).collect();
    words[30] = "forbidden ".into();
    let whole = words.concat();
    let cut = whole.find("forbidden").unwrap() - 60;
    let seam = format!("{}[halted", &whole[cut - 9..cut]);
    let holds = watches("holds-at-seam", "hold = \"60\", halt = \"forbidden\"");
    let ahead = watches("ahead-at-seam", &format!("seam = \"{seam}\""));
    let told = drip(&format!("{holds}{ahead}"), &words, 60).await;
    assert_eq!(joined(&told, 0), format!("{}{FAREWELL}", &whole[..cut]));
    let gateway = Gateway::start("").await;
    let metrics = String::from_utf8(gateway.get("/metrics").await.body.to_vec()).unwrap();
    for name in ["holds-at-seam", "ahead-at-seam"] {
        let halts =
            format!("tidegate_plugin_verdicts_total{{plugin=\"{name}\",stage=\"stream-guard\",verdict=\"halt\"}} 1");
        assert!(metrics.contains(&halts), "{halts} is not in\n{metrics}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn arguments_of_a_tool_call_are_held_until_a_verdict() {
    let mut request = ask("What is 12*12?");
    request["tools"] = json!([{"type": "function", "function": {
        "name": "calculator", "description": "Works out a sum.",
        "parameters": {"type": "object", "properties": {"expression": {"type": "string"}},
            "required": ["expression"]}}}]);
    let gateway = Gateway::start(&watches("args", "halt = \"12*12\"")).await;
    let events = gateway.stream(request.clone()).await;
    assert_eq!(finish_reason(&events, 0), "content_filter", "{events:?}");
    assert!(!format!("{events:?}").contains("tool_calls"), "{events:?}");
    let passes = Gateway::start(&watches("args", "halt = \"something else\"")).await;
    assert_eq!(finish_reason(&passes.stream(request).await, 0), "tool_calls");
}

#[tokio::test(flavor = "multi_thread")]
async fn reasoning_is_a_channel_that_guards_see() {
    const STREAM: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n\
        data: {\"id\":\"1\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"m\",\"choices\":[{\"index\":0,\
\"delta\":{\"role\":\"assistant\",\"reasoning_content\":\"The plan is secret.\"},\"finish_reason\":null}]}\n\n\
        data: {\"id\":\"1\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"m\",\"choices\":[{\"index\":0,\
\"delta\":{\"content\":\"Hello.\"},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n";
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut socket, _)) = listener.accept().await {
            let mut request = vec![0; 65536];
            let _ = socket.read(&mut request).await;
            let _ = socket.write_all(STREAM.as_bytes()).await;
        }
    });
    let model = format!("[[models]]\nname = \"tidegate-starter\"\nupstream = \"http://{address}/v1\"\n");
    for (word, finish) in [("secret", "content_filter"), ("nothing", "stop")] {
        let gateway = Gateway::start(&format!("{model}{}", watches("thoughts", &format!("halt = \"{word}\"")))).await;
        let mut body = with_model(ask("Hello!"));
        body["stream"] = true.into();
        let answer = gateway.post("/v1/chat/completions", &body).await;
        let text = String::from_utf8(answer.body.to_vec()).unwrap();
        assert_eq!(finish_reason(&events(&answer.body), 0), finish, "{text}");
        assert_eq!(text.contains("The plan is secret."), finish == "stop", "{text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_plugin_has_its_figures() {
    let config = format!(
        "{}{}",
        watches("figures-hold", "hold = \"30\""),
        stage("honest", "figures-honest", "prompt-guard", "on_error = \"closed\"")
    );
    let gateway = Gateway::start(&config).await;
    gateway.stream(ask("What is Tidegate?")).await;
    assert_eq!(gateway.chat(ask("refuse")).await.status, 400);
    let metrics = String::from_utf8(gateway.get("/metrics").await.body.to_vec()).unwrap();
    for figure in [
        "tidegate_plugin_call_seconds_count{plugin=\"figures-hold\",stage=\"stream-guard\"}",
        "tidegate_plugin_call_seconds_bucket{plugin=\"figures-honest\",stage=\"prompt-guard\",le=\"120\"} 2",
        "tidegate_plugin_holdback_seconds_count{plugin=\"figures-hold\"}",
        "tidegate_plugin_verdicts_total{plugin=\"figures-honest\",stage=\"prompt-guard\",verdict=\"refuse\"} 1",
        "tidegate_plugin_memory_peak_bytes{plugin=\"figures-honest\"}",
    ] {
        assert!(metrics.contains(figure), "{figure} is not in\n{metrics}");
    }
}

/// The sum of the times that text was kept back for a plugin, in ms, and how many.
async fn held_back(gateway: &Gateway, plugin: &str) -> (f64, u64) {
    let metrics = String::from_utf8(gateway.get("/metrics").await.body.to_vec()).unwrap();
    let value = |of: &str| {
        let start = format!("tidegate_plugin_holdback_seconds_{of}{{plugin=\"{plugin}\"}} ");
        metrics.lines().find_map(|line| line.strip_prefix(&start)?.parse::<f64>().ok()).unwrap_or(0.0)
    };
    (value("sum") * 1000.0, value("count") as u64)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_waits_for_its_output_guard_is_kept_back_and_a_whole_answer_is_not() {
    let gateway = Gateway::start(&stage("honest", "holds-stream", "output-guard", "")).await;
    assert_eq!(gateway.chat(ask("Hello!")).await.status, 200);
    assert_eq!(held_back(&gateway, "holds-stream").await.1, 0);
    gateway.stream(ask("Hello!")).await;
    let (ms, times) = held_back(&gateway, "holds-stream").await;
    assert!(ms > 0.0 && times == 1, "{ms} ms, {times} times");
}

/// As with guards of the answer, who reads no stream waits for the whole of it.
#[tokio::test(flavor = "multi_thread")]
async fn a_guard_during_prefill_keeps_a_stream_back_from_its_first_word() {
    let gate = gate("200 OK").await;
    let gateway = Arc::new(Gateway::start(&asks(&gate, "holds-first", "during-prefill")).await);
    for (stream, held) in [(false, 0), (true, 1)] {
        let (asking, mut request) = (Arc::clone(&gateway), with_model(ask("Tell me a story about a fox.")));
        request["stream"] = stream.into();
        let said = engine(&gateway).1;
        let answer = tokio::spawn(async move { asking.post("/v1/chat/completions", &request).await });
        until("the engine has a word", || gate.waiting.load(Ordering::SeqCst) == 1 && engine(&gateway).1 > said).await;
        tokio::time::sleep(Duration::from_millis(200)).await;
        gate.open.add_permits(1);
        assert_eq!(answer.await.unwrap().status, 200);
        let (ms, times) = held_back(&gateway, "holds-first").await;
        assert!((ms > 0.0) == stream && times == held, "stream: {stream}: {ms} ms, {times} times");
    }
}

/// However that ended.
#[tokio::test(flavor = "multi_thread")]
async fn a_word_that_waits_for_a_guard_during_prefill_when_the_client_goes_is_counted_as_kept_back() {
    let gate = gate("200 OK").await;
    let gateway = Arc::new(Gateway::start(&asks(&gate, "left-at-first", "during-prefill")).await);
    let (asking, mut request) = (Arc::clone(&gateway), with_model(ask("Tell me a story about a fox.")));
    request["stream"] = true.into();
    let said = engine(&gateway).1;
    let answer = tokio::spawn(async move { asking.post("/v1/chat/completions", &request).await });
    until("the engine has a word", || gate.waiting.load(Ordering::SeqCst) == 1 && engine(&gateway).1 > said).await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(held_back(&gateway, "left-at-first").await.1, 0);
    answer.abort();
    talk::until("it is counted", async || (held_back(&gateway, "left-at-first").await.1 == 1).then_some(())).await;
    assert!(held_back(&gateway, "left-at-first").await.0 >= 100.0);
}

/// The other half is for other requests, and no call's time runs out while it waits for one of the same request.
#[tokio::test(flavor = "multi_thread")]
async fn passages_are_screened_by_half_of_a_guards_instances() {
    let gate = gate("200 OK").await;
    let config =
        format!("{}{}instances = 4\n", stage("honest", "honest", "retriever", ""), asks(&gate, "one", "before"));
    let gateway = Arc::new(Gateway::start(&config).await);
    let asking = Arc::clone(&gateway);
    let answer = tokio::spawn(async move { asking.chat(ask("Hello!")).await.status });
    until("the prompt is asked about", || gate.waiting.load(Ordering::SeqCst) == 1).await;
    gate.open.add_permits(1);
    until("two passages are asked about", || gate.waiting.load(Ordering::SeqCst) == 2).await;
    // A third would come meanwhile.
    tokio::time::sleep(Duration::from_millis(300)).await;
    gate.open.add_permits(3);
    assert_eq!((answer.await.unwrap(), gate.most.load(Ordering::SeqCst)), (200, 2));
}

/// Two retrievers of one name call three passages each the same.
#[tokio::test(flavor = "multi_thread")]
async fn passages_of_one_id_keep_their_texts_and_sources() {
    let upstream = StandIn::start(|_, _| completion("Yes.")).await;
    let retrievers = stage("honest", "honest", "retriever", "").repeat(2);
    let gateway = Gateway::start(&format!("{}{retrievers}", upstream.model("tidegate-starter"))).await;
    let message = gateway.chat(ask("Kelso?")).await.json()["choices"][0]["message"].clone();
    let asked = upstream.asked("/v1/chat/completions");
    let told = asked[0]["messages"].to_string();
    assert_eq!(told.matches("[docs/a.txt] about Kelso?").count(), 6, "{told}");
    let cited: Vec<&Value> = message["citations"].as_array().unwrap().iter().map(|note| &note["file_id"]).collect();
    assert_eq!(cited, ["docs/a.txt"; 6]);
}
