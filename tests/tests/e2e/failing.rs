//! Plugins that fail, by kind of stage and by `on_error`, and guards that fail in the middle of an answer: what the client
//! has then, what is counted, and what leaves without a verdict.

mod absent;
mod windows;

use crate::halts::chunk;
use crate::stages::{counted, metrics};
use crate::talk::until;
use crate::tool_turns::{calls, find, is_told, says, whole};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tidegate_sandbox::stage::StageKind;
use tidegate_tests::stand_in::{StandIn, embeddings};
use tidegate_tests::{Gateway, ask, with_model};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

const CHAT: &str = "/v1/chat/completions";
const VECTORS: &str = "/v1/embeddings";

/// What the config says, and a name for it: counters are of the whole process, and so a plugin has a name for each case.
const ON_ERROR: [(&str, &str); 4] = [
    ("", "default"),
    ("on_error = \"closed\"\n", "closed"),
    ("on_error = \"open\"\n", "open"),
    ("on_error = \"skip\"\n", "skip"),
];

/// A guest under a name of its own. It may take its time, but for its CPU.
fn stage(guest: &str, name: &str, kind: &str, more: &str, limits: &str) -> String {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("guests/dist/{guest}.wasm"));
    format!(
        "[[pipeline.stage]]\nplugin = \"{name}\"\nfile = {file:?}\nstages = [\"{kind}\"]\n{more}\n\
         [pipeline.stage.limits]\nwall_ms = 20000\n{limits}\n"
    )
}

pub(crate) fn failures(name: &str, kind: &str, case: &str) -> String {
    format!("tidegate_plugin_failures_total{{plugin=\"{name}\",stage=\"{kind}\",case=\"{case}\"}}")
}

/// What a counter of a plugin stands at; 0 where it was never counted.
pub(crate) async fn count(gateway: &Gateway, counter: &str, name: &str) -> u64 {
    let start = format!("{counter}{{plugin=\"{name}\"}} ");
    let text = metrics(gateway).await;
    text.lines().find_map(|line| line.strip_prefix(&start)).map_or(0, |value| value.parse().unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stage_of_any_kind_that_traps_ends_its_request_or_is_passed_over_as_on_error_says() {
    for (kind, traps_in, is_guard) in [
        ("prompt-guard", "prompt-guard", true),
        ("stream-guard", "stream-guard", true),
        ("output-guard", "output-guard", true),
        ("retriever", "retriever", false),
        ("memory", "memory", false),
        ("tool-provider", "tool-list", false),
        ("router", "router", false),
    ] {
        for (on_error, said) in ON_ERROR {
            let upstream = StandIn::start(|_, _| says("Hello.")).await;
            let name = format!("traps-{kind}-{said}");
            let more = format!("{on_error}config = {{ trap = \"{traps_in}\" }}");
            let models = format!("{}{}", upstream.model("alpha"), upstream.model("beta"));
            let gateway = Gateway::start(&(models + &stage("honest", &name, kind, &more, ""))).await;
            let mut request = ask("Hello!");
            request["model"] = if kind == "router" { "auto".into() } else { "alpha".into() };
            let answer = gateway.post(CHAT, &request).await;
            if said == "closed" || (said == "default" && is_guard) {
                assert_eq!((answer.status, answer.error().2), (503, json!("plugin_failed")), "{name}");
                assert!(answer.headers.contains_key("retry-after"), "{name}");
            } else {
                assert_eq!((answer.text().as_str(), &answer.json()["model"]), ("Hello.", &json!("alpha")), "{name}");
                let asked = &upstream.asked(CHAT)[0];
                assert_eq!(asked["messages"], json!([{"role": "user", "content": "Hello!"}]), "{name}");
                assert!(asked["tools"].is_null(), "{name}: {asked}");
            }
            counted(&gateway, &failures(&name, kind, "trap"), 1).await;
        }
    }
}

/// Its `configure` refuses. Where a router has no opinion the models are asked in the order of the config.
#[tokio::test(flavor = "multi_thread")]
async fn a_plugin_that_cannot_be_loaded_ends_requests_as_a_guard_and_is_passed_over_as_anything_else_by_default() {
    for kind in StageKind::ALL {
        let is_guard = matches!(kind, StageKind::PromptGuard | StageKind::StreamGuard | StageKind::OutputGuard);
        let upstream = StandIn::start(|_, _| says("Hello.")).await;
        let (kind, name) = (kind.as_str(), format!("no-load-{}", kind.as_str()));
        let models = format!("{}{}", upstream.model("alpha"), upstream.model("beta"));
        let stage = stage("honest", &name, kind, "config = { refuse = true }", "");
        let gateway = Gateway::start(&(models + &stage)).await;
        let facts = gateway.running.facts.join("\n");
        assert!(facts.contains(&format!("{name} DID NOT LOAD")), "{facts}");
        let mut request = ask("Hello!");
        request["model"] = if kind == "router" { "auto".into() } else { "alpha".into() };
        let answer = gateway.post(CHAT, &request).await;
        if is_guard {
            assert_eq!((answer.status, answer.error().2), (503, json!("plugin_failed")), "{name}");
        } else {
            assert_eq!((answer.text().as_str(), &answer.json()["model"]), ("Hello.", &json!("alpha")), "{name}");
        }
        let counter = failures(&name, kind, "load");
        until(&counter, async || metrics(&gateway).await.contains(&counter).then_some(())).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tool_that_traps_is_told_to_the_model_unless_it_is_closed() {
    for (on_error, said) in ON_ERROR {
        let upstream = StandIn::start(|_, body| match is_told(body) {
            true => says("The tool is broken."),
            false => whole(&calls("echo", "{}"), "tool_calls", 10, 8),
        })
        .await;
        let name = format!("traps-tool-{said}");
        let more = format!("{on_error}config = {{ trap = \"tool-provider\" }}");
        let config =
            format!("{}{}", upstream.model("tidegate-starter"), stage("honest", &name, "tool-provider", &more, ""));
        let gateway = Gateway::start(&config).await;
        let answer = gateway.chat(ask("Hello!")).await;
        if said == "closed" {
            assert_eq!((answer.status, answer.error().2), (503, json!("plugin_failed")));
            let mut request = with_model(ask("Hello!"));
            request["stream"] = true.into();
            let streamed = gateway.post(CHAT, &request).await;
            assert_eq!((streamed.status, streamed.error().2), (503, json!("plugin_failed")));
            assert_eq!(upstream.asked(CHAT).len(), 2, "nobody is told");
        } else {
            let (text, _) = streamed(&gateway, &Semaphore::new(0)).await;
            let expected = "The tool is broken.";
            assert_eq!((answer.text().as_str(), text.as_str()), (expected, expected), "{name}");
            let told = upstream.asked(CHAT)[1]["messages"][2].clone();
            assert_eq!((&told["role"], &told["content"]), (&json!("tool"), &json!("the tool failed")), "{name}");
        }
        counted(&gateway, &failures(&name, "tool-provider", "trap"), 2).await;
    }
}

/// A model that says these pieces, each once it is let.
struct Paced {
    address: SocketAddr,
    go: Arc<Semaphore>,
}

impl Paced {
    async fn start(pieces: Vec<String>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let paced = Self { address: listener.local_addr().unwrap(), go: Arc::new(Semaphore::new(0)) };
        let (pieces, go) = (Arc::new(pieces), Arc::clone(&paced.go));
        tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                tokio::spawn(say(socket, Arc::clone(&pieces), Arc::clone(&go)));
            }
        });
        paced
    }

    fn model(&self) -> String {
        format!("[[models]]\nname = \"tidegate-starter\"\nupstream = \"http://{}/v1\"\n", self.address)
    }
}

async fn say(mut socket: TcpStream, pieces: Arc<Vec<String>>, go: Arc<Semaphore>) -> std::io::Result<()> {
    let _ = socket.read(&mut vec![0; 65536]).await?;
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n";
    socket.write_all(head.as_bytes()).await?;
    for piece in pieces.iter() {
        go.acquire().await.unwrap().forget();
        socket.write_all(chunk(&json!({"content": piece}), &Value::Null).as_bytes()).await?;
    }
    let end = chunk(&json!({}), &"stop".into());
    socket.write_all(format!("{end}data: [DONE]\n\n").as_bytes()).await
}

/// The text of a stream, and its last event. Whenever the client has more of the text, `go` has one more permit.
async fn streamed(gateway: &Gateway, go: &Semaphore) -> (String, Value) {
    let mut request = with_model(ask("Hello!"));
    request["stream"] = true.into();
    // Headers wait a moment for the first word.
    go.add_permits(1);
    let response = gateway.send(gateway.json_request(CHAT, &request)).await;
    assert_eq!(response.status(), 200);
    let (mut body, mut read) = (response.into_body(), Vec::new());
    let (mut text, mut last) = (String::new(), Value::Null);
    while let Some(frame) = body.frame().await {
        read.extend_from_slice(frame.unwrap().data_ref().unwrap());
        while let Some(at) = read.windows(2).position(|two| two == b"\n\n") {
            let event: Vec<u8> = read.drain(..at + 2).collect();
            let event = std::str::from_utf8(&event).unwrap().trim();
            let Some(event) = event.strip_prefix("data: ").filter(|event| *event != "[DONE]") else { continue };
            last = serde_json::from_str(event).unwrap();
            if let Some(more) = last["choices"][0]["delta"]["content"].as_str().filter(|more| !more.is_empty()) {
                text.push_str(more);
                go.add_permits(1);
            }
        }
    }
    (text, last)
}

/// Guards that fail at the word `unsafe`, alone and beside another one that sees the same text.
fn at_a_word(way: &str, name: &str, on_error: &str) -> (String, &'static str) {
    let watches = |config: &str| {
        let more = format!("{on_error}config = {{ {config} = \"unsafe\" }}");
        stage("watches", name, "stream-guard", &more, "cpu_ms = 100")
    };
    match way {
        "trap" => (watches("trap"), "trap"),
        "loop" => (watches("loop"), "deadline"),
        "beside" => (watches("trap") + &stage("watches", &format!("{name}-other"), "stream-guard", "", ""), "trap"),
        _ => (stage("lies", name, "stream-guard", on_error, ""), "bad-result"),
    }
}

/// Who lets one answer go without a verdict has not said so of all that are given again.
#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_left_without_a_verdict_is_not_given_again() {
    for (said, is_kept) in [("All is unsafe", false), ("All is well", true)] {
        let (guard, _) = at_a_word("trap", &format!("kept-{is_kept}"), "on_error = \"open\"\n");
        assert_given_again(&guard, said, is_kept).await;
    }
    let more = "on_error = \"open\"\nconfig = { refuse = true }";
    assert_given_again(&stage("honest", "kept-by-absent", "output-guard", more, ""), "All is well", false).await;
}

/// What failed may be back in a moment.
#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_was_made_without_what_failed_is_not_given_again() {
    for (kind, failing) in [("retriever", "retriever"), ("memory", "memory"), ("tool-provider", "tool-list")] {
        for (trap, is_kept) in [(failing, false), ("nothing", true)] {
            let more = format!("on_error = \"open\"\nconfig = {{ trap = \"{trap}\" }}");
            let lacks = stage("honest", &format!("lacks-{kind}-{is_kept}"), kind, &more, "");
            assert_given_again(&lacks, "All is well", is_kept).await;
        }
    }
}

/// Whether a cache keeps what is said beside `stage`.
async fn assert_given_again(stage: &str, said: &'static str, is_kept: bool) {
    let upstream = StandIn::start(move |path, body| match path {
        VECTORS => embeddings(body),
        _ => says(said),
    })
    .await;
    let models: String = ["tidegate-starter", "vectors"].map(|name| upstream.model(name)).concat();
    let cache = "[[pipeline.stage]]\nplugin = \"semantic-cache\"\n[pipeline.stage.grants]\nkv_kib = 4096\n\
                 vectors = { answers = \"write\" }\nmodels = { embedder = \"vectors\" }\n\
                 [pipeline.stage.limits]\nwall_ms = 20000\n";
    let gateway = Gateway::start(&format!("{models}{cache}{stage}")).await;
    let is_hit = async || {
        let answer = gateway.chat(ask("Is all well?")).await;
        assert_eq!(answer.text(), said);
        answer.headers.contains_key("x-tidegate-answered-by")
    };
    if is_kept {
        until("it is kept", async || is_hit().await.then_some(())).await;
    } else {
        for _ in 0..5 {
            assert!(!is_hit().await, "{stage}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

/// The client has what was judged before; then an error and no more, or the window without a verdict and all that follows.
#[tokio::test(flavor = "multi_thread")]
async fn a_stream_guard_that_fails_in_mid_stream_ends_it_or_lets_one_window_go_unjudged() {
    let pieces = ["All is well. ", "unsafe", " And on."];
    for way in ["trap", "loop", "beside", "lie"] {
        for (on_error, said) in ON_ERROR {
            let name = format!("mid-{way}-{said}");
            let (guards, case) = at_a_word(way, &name, on_error);
            let upstream = Paced::start(pieces.map(str::to_owned).into()).await;
            let gateway = Gateway::start(&(upstream.model() + &guards)).await;
            let (text, last) = streamed(&gateway, &upstream.go).await;
            let unjudged = count(&gateway, "tidegate_unjudged_bytes_total", &name).await;
            if ["default", "closed"].contains(&said) {
                assert_eq!(
                    (text.as_str(), &last["error"]["code"]),
                    (pieces[0], &json!("plugin_failed")),
                    "{name}: {last}"
                );
                assert_eq!(unjudged, 0, "{name}");
            } else {
                assert_eq!((text, &last["choices"][0]["finish_reason"]), (pieces.concat(), &json!("stop")), "{name}");
                assert_eq!(unjudged, "unsafe".len() as u64, "{name}");
            }
            counted(&gateway, &failures(&name, "stream-guard", case), 1).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_guard_that_fails_on_a_whole_answer_withholds_it_or_lets_it_go_unjudged() {
    let said_by_model = "All is well. unsafe";
    for way in ["trap", "loop", "beside", "lie"] {
        for (on_error, said) in ON_ERROR {
            let name = format!("whole-{way}-{said}");
            let (guards, case) = at_a_word(way, &name, on_error);
            let upstream = StandIn::start(move |_, _| says(said_by_model)).await;
            let gateway = Gateway::start(&(upstream.model("tidegate-starter") + &guards)).await;
            let answer = gateway.chat(ask("Hello!")).await;
            let unjudged = count(&gateway, "tidegate_unjudged_bytes_total", &name).await;
            if ["default", "closed"].contains(&said) {
                assert_eq!((answer.status, answer.error().2, unjudged), (503, json!("plugin_failed"), 0), "{name}");
            } else {
                assert_eq!((answer.text().as_str(), unjudged), (said_by_model, said_by_model.len() as u64), "{name}");
            }
            counted(&gateway, &failures(&name, "stream-guard", case), 1).await;
        }
    }
}

/// What it kept back until then was kept back all the same.
#[tokio::test(flavor = "multi_thread")]
async fn text_that_waits_when_its_guard_halts_is_counted_as_kept_back() {
    let config = "config = { hold = \"8\", halt = \"unsafe\" }";
    let upstream = Paced::start(vec!["All is well. ".into(), "unsafe".into()]).await;
    let guard = stage("watches", "holds-then-halts", "stream-guard", config, "");
    let gateway = Gateway::start(&(upstream.model() + &guard)).await;
    let (text, last) = streamed(&gateway, &upstream.go).await;
    let finish = &last["choices"][0]["finish_reason"];
    assert_eq!((text.as_str(), finish), ("All i[halted in text]", &json!("content_filter")));
    assert_eq!(count(&gateway, "tidegate_plugin_holdback_seconds_count", "holds-then-halts").await, 1);
}

/// As long as the answer was being made, however that ended.
#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_waits_for_its_output_guard_when_the_client_goes_is_counted_as_kept_back() {
    let upstream = Paced::start(vec!["All is well. ".into(), "More.".into()]).await;
    let guard = stage("honest", "left-at-output", "output-guard", "", "");
    let gateway = Arc::new(Gateway::start(&(upstream.model() + &guard)).await);
    let mut request = with_model(ask("Hello!"));
    request["stream"] = true.into();
    let asking = Arc::clone(&gateway);
    let answer = tokio::spawn(async move { asking.post(CHAT, &request).await });
    upstream.go.add_permits(1);
    until("the first piece is said", async || (upstream.go.available_permits() == 0).then_some(())).await;
    // That it is read cannot be seen from here.
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(count(&gateway, "tidegate_plugin_holdback_seconds_count", "left-at-output").await, 0);
    answer.abort();
    counted(&gateway, "tidegate_plugin_holdback_seconds_count{plugin=\"left-at-output\"}", 1).await;
    assert!(!metrics(&gateway).await.contains("tidegate_plugin_call_seconds_count{plugin=\"left-at-output\""));
}

/// The guard would keep all of it until the end, and may keep 8 bytes.
#[tokio::test(flavor = "multi_thread")]
async fn a_guard_that_withholds_more_than_its_cap_ends_the_answer_or_lets_the_oldest_go_unjudged() {
    let pieces = ["a", "b", "c"].map(|letter| letter.repeat(100));
    for (on_error, said) in ON_ERROR {
        for stream in [true, false] {
            let name = format!("hoards-{said}-{}", if stream { "streamed" } else { "whole" });
            let more = format!("{on_error}config = {{ hold = \"4096\" }}");
            let guard = stage("watches", &name, "stream-guard", &more, "holdback_bytes = 8");
            let guard = guard + "[pipeline.stage.breaker]\nfailures = 1\n";
            let upstream = Paced::start(pieces.clone().into()).await;
            upstream.go.add_permits(pieces.len());
            let gateway = Gateway::start(&(upstream.model() + &guard)).await;
            let (text, choice) = if stream {
                let (text, last) = streamed(&gateway, &upstream.go).await;
                (text, last["choices"][0].clone())
            } else {
                let answer = gateway.chat(ask("Hello!")).await;
                (answer.text(), answer.json()["choices"][0].clone())
            };
            let unjudged = count(&gateway, "tidegate_unjudged_bytes_total", &name).await;
            let halts = count(&gateway, "tidegate_holdback_halts_total", &name).await;
            let (all, finish) = (pieces.concat(), choice["finish_reason"].as_str().unwrap());
            if ["default", "closed"].contains(&said) {
                assert_eq!((text.as_str(), finish, unjudged, halts), ("", "content_filter", 0, 1), "{name}");
            } else {
                assert_eq!((text.as_str(), finish, unjudged, halts), (all.as_str(), "stop", 300 - 8, 0), "{name}");
            }
            let failed = metrics(&gateway).await.contains(&failures(&name, "stream-guard", "holdback-cap"));
            assert_eq!(failed, unjudged > 0, "{name}: it has failed where its text leaves all the same");
            let paused = failures(&name, "stream-guard", "paused");
            assert!(
                !metrics(&gateway).await.contains(&paused),
                "{name}: how much there is to keep back is not its doing"
            );
        }
    }
}

/// A guard's redaction of a tool call's arguments that leaves no JSON is a failure as any other: whoever runs the tool would
/// be given what it cannot read.
#[tokio::test(flavor = "multi_thread")]
async fn a_redaction_that_leaves_no_json_of_arguments_is_a_failure_of_its_guard() {
    const ARGUMENTS: &str = "{\"of\": \"what is spoilt\"}";
    for (on_error, said) in ON_ERROR {
        let upstream = StandIn::start(|_, _| whole(&calls("find", ARGUMENTS), "tool_calls", 10, 8)).await;
        let name = format!("spoils-{said}");
        let stage = stage("lies", &name, "stream-guard", on_error, "");
        let gateway = Gateway::start(&(upstream.model("tidegate-starter") + &stage)).await;
        let mut request = ask("Find it.");
        request.as_object_mut().unwrap().extend(find().as_object().unwrap().clone());
        let answer = gateway.chat(request).await;
        if matches!(said, "closed" | "default") {
            assert_eq!((answer.status, answer.error().2), (503, json!("plugin_failed")), "{name}");
        } else {
            let message = &answer.json()["choices"][0]["message"];
            assert_eq!(message["tool_calls"][0]["function"]["arguments"], ARGUMENTS, "{name}: without its opinion");
        }
        counted(&gateway, &failures(&name, "stream-guard", "bad-result"), 1).await;
    }
}

/// What no server could do, though each edit for itself looks well: as for any result that breaks the contract, `on_error`
/// decides, it is counted as a failure and not as a rewrite, and the breaker takes the guard out.
#[tokio::test(flavor = "multi_thread")]
async fn edits_that_cannot_be_made_are_a_failure_of_their_guard() {
    for (i, lie) in ["drop: all", "drop: twice", "put: after one that was dropped", "param"].into_iter().enumerate() {
        for (on_error, said) in ON_ERROR {
            let upstream = StandIn::start(|_, _| says("Hello.")).await;
            let name = format!("edits-{i}-{said}");
            let guard = stage("lies", &name, "prompt-guard", on_error, "");
            let breaker = "[pipeline.stage.breaker]\nfailures = 2\nwithin_ms = 600000\npause_ms = 600000\n";
            let gateway = Gateway::start(&(upstream.model("tidegate-starter") + &guard + breaker)).await;
            for _ in 0..3 {
                let answer = gateway.chat(ask(lie)).await;
                if ["default", "closed"].contains(&said) {
                    assert_eq!((answer.status, answer.error().2), (503, json!("plugin_failed")), "{name}");
                } else {
                    assert_eq!(answer.text(), "Hello.", "{name}");
                    let asked = upstream.asked(CHAT).pop().unwrap();
                    assert_eq!(asked["messages"], json!([{"role": "user", "content": lie}]), "{name}");
                }
            }
            counted(&gateway, &failures(&name, "prompt-guard", "bad-result"), 2).await;
            counted(&gateway, &failures(&name, "prompt-guard", "paused"), 1).await;
            let verdicts = format!("tidegate_plugin_verdicts_total{{plugin=\"{name}\"");
            assert!(!metrics(&gateway).await.contains(&verdicts), "{name}: it decided nothing");
        }
    }
}

/// Each text of a request for vectors has one of its own. That is no fault of the guard's, which stays for chats.
#[tokio::test(flavor = "multi_thread")]
async fn a_guard_that_puts_and_drops_messages_where_vectors_are_asked_for_has_failed_for_this_request_alone() {
    for (on_error, said) in ON_ERROR {
        let upstream = StandIn::start(|path, body| if path == CHAT { says("Hello.") } else { embeddings(body) }).await;
        let name = format!("moves-texts-{said}");
        let guard = stage("lies", &name, "prompt-guard", on_error, "");
        let breaker = "[pipeline.stage.breaker]\nfailures = 1\nwithin_ms = 600000\npause_ms = 600000\n";
        let gateway = Gateway::start(&(upstream.model("tidegate-starter") + &guard + breaker)).await;
        let texts = json!(["the truth about edits", "x"]);
        let answer = gateway.post(VECTORS, &json!({"model": "tidegate-starter", "input": texts})).await;
        if ["default", "closed"].contains(&said) {
            let (message, _, code) = answer.error();
            assert_eq!((answer.status, code), (503, json!("plugin_failed")), "{name}");
            assert!(message.contains(&format!("`{name}`")) && message.contains("`replace-text`"), "{message}");
            assert!(upstream.asked(VECTORS).is_empty(), "{name}: no text has left");
        } else {
            assert_eq!((answer.status, &upstream.asked(VECTORS)[0]["input"]), (200, &texts), "{name}");
        }
        counted(&gateway, &failures(&name, "prompt-guard", "unfit"), 1).await;
        assert_eq!(gateway.chat(ask("fine")).await.text(), "Hello.", "{name}: it is asked still");
        assert!(!metrics(&gateway).await.contains(&failures(&name, "prompt-guard", "paused")), "{name}");
    }
}

/// The model is at work, or would be asked; nothing of it leaves without the verdict of a closed guard.
#[tokio::test(flavor = "multi_thread")]
async fn a_guard_that_fails_while_the_model_reads_ends_the_request_or_is_passed_over() {
    for (text, case) in [("tarry 50 panic", "trap"), ("tarry 60000", "deadline")] {
        for (on_error, said) in ON_ERROR {
            let upstream = StandIn::start(|_, _| says("Hello.")).await;
            let name = format!("late-{case}-{said}");
            let more = format!("{on_error}when = \"during-prefill\"");
            let guard = stage("tarries", &name, "prompt-guard", &more, "cpu_ms = 500");
            let own = "[[models]]\nname = \"own\"\npath = \"bundled\"\n";
            let gateway = Gateway::start(&format!("{own}{}{guard}", upstream.model("other"))).await;
            for (model, stream) in [("own", false), ("own", true), ("other", false), ("other", true)] {
                let mut request = ask(text);
                (request["model"], request["stream"], request["max_tokens"]) = (model.into(), stream.into(), 4.into());
                let answer = gateway.post(CHAT, &request).await;
                if ["default", "closed"].contains(&said) {
                    assert_eq!((answer.status, answer.error().2), (503, json!("plugin_failed")), "{name} {model}");
                } else {
                    assert_eq!(answer.status, 200, "{name} {model}: {:?}", answer.body);
                }
            }
            let asked = if ["default", "closed"].contains(&said) { 0 } else { 2 };
            assert_eq!(upstream.asked(CHAT).len(), asked, "{name}: nobody is asked before the verdict");
            counted(&gateway, &failures(&name, "prompt-guard", case), 4).await;
        }
    }
}
