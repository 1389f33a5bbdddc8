//! Traces: the program's spans as a collector gets them, in the client's trace, with the upstream told of it, and
//! without a word that anybody wrote.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "server/signal.rs"]
mod signal;
#[path = "traces/stand_in.rs"]
mod stand_in;

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message;
use stand_in::{LASTS, streaming, taking};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::Receiver;
use std::time::Duration;

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const PARENT: &str = "00f067aa0ba902b7";
const CANARY: &str = "canary5b20fe";
/// Of a stage whose calls are to end well on a busy machine.
const LIMITS: &str = "limits = { wall_ms = 20000, cpu_ms = 5000 }\n";

/// An upstream's.
const ANSWER: &str = r#"{"id":"x","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,
    "message":{"role":"assistant","content":"Here."},"finish_reason":"stop"}]}"#;

/// A guest of the tests.
fn stage(guest: &str, more: &str) -> String {
    let guests = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/guests/dist");
    let file = guests.join(format!("{guest}.wasm"));
    format!("[[pipeline.stage]]\nplugin = \"{guest}\"\nfile = \"{}\"\n{more}\n{LIMITS}", file.display())
}

fn start(folder: &std::path::Path, config: &str) -> (Child, String) {
    std::fs::write(folder.join("tidegate.toml"), format!("[server]\nlisten = \"127.0.0.1:0\"\n{config}")).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    command
        .args(["serve", "--config"])
        .arg(folder.join("tidegate.toml"))
        .env("XDG_CACHE_HOME", std::env::temp_dir().join("tidegate-tests-cache"))
        .env_remove("RUST_LOG");
    let mut program = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut said = BufReader::new(program.stdout.take().unwrap()).lines();
    let line = said.find_map(|line| line.unwrap().strip_prefix("listening http://").map(str::to_owned)).unwrap();
    std::thread::spawn(move || said.for_each(drop));
    (program, line.split(' ').next().unwrap().to_owned())
}

fn ask(addr: &str, model: &str, stream: bool, more: &str) {
    let body = format!(
        "{{\"model\":\"{model}\",\"stream\":{stream},\"max_tokens\":48,\"temperature\":0,\
         \"messages\":[{{\"role\":\"user\",\"content\":\"What is Tidegate? {CANARY}\"}}]}}"
    );
    post(addr, "/v1/chat/completions", &body, more);
}

/// Gives the answer, with its head.
fn post(addr: &str, path: &str, body: &str, more: &str) -> String {
    let mut socket = TcpStream::connect(addr).unwrap();
    write!(
        socket,
        "POST {path} HTTP/1.1\r\nhost: {addr}\r\nconnection: close\r\n{more}\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
    .unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    answer
}

fn get(addr: &str, path: &str) -> String {
    let mut socket = TcpStream::connect(addr).unwrap();
    write!(socket, "GET {path} HTTP/1.1\r\nhost: {addr}\r\nconnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).unwrap();
    answer
}

/// A request with a method that its sender made up.
fn ask_strangely(addr: &str, path: &str) {
    let mut socket = TcpStream::connect(addr).unwrap();
    write!(socket, "{CANARY} {path} HTTP/1.1\r\nhost: {addr}\r\nconnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 40"), "{answer}");
}

/// Asks the program to stop, which sends what is left; gives all spans that the collector at `addr` got.
fn spans(mut program: Child, addr: &str, collector: &Receiver<(String, Vec<u8>)>) -> Vec<Span> {
    signal::send(program.id(), "TERM");
    program.wait().unwrap();
    // It takes one request at a time, in order: this is behind all others.
    write!(TcpStream::connect(addr).unwrap(), "GET /last HTTP/1.1\r\n\r\n").unwrap();
    let mut spans = Vec::new();
    loop {
        let (head, body) = collector.recv_timeout(Duration::from_secs(60)).unwrap();
        if head.starts_with("get /last") {
            return spans;
        }
        assert!(head.starts_with("post /v1/traces"), "{head}");
        assert!(!body.windows(CANARY.len()).any(|at| at == CANARY.as_bytes()), "a span repeats what a caller wrote");
        let request = ExportTraceServiceRequest::decode(&*body).unwrap();
        let scopes = request.resource_spans.into_iter().flat_map(|resource| resource.scope_spans);
        spans.extend(scopes.flat_map(|scope| scope.spans));
    }
}

fn value<'a>(span: &'a Span, key: &str) -> Option<&'a Value> {
    span.attributes.iter().find(|attribute| attribute.key == key)?.value.as_ref()?.value.as_ref()
}

fn text(span: &Span, key: &str) -> String {
    match value(span, key) {
        Some(Value::StringValue(text)) => text.clone(),
        Some(Value::IntValue(n)) => n.to_string(),
        Some(other) => format!("{other:?}"),
        None => String::new(),
    }
}

/// No text that looks like one: nobody adds those up.
fn number(span: &Span, key: &str) -> Option<u64> {
    value(span, key).map(|value| match value {
        Value::IntValue(n) => u64::try_from(*n).unwrap(),
        other => panic!("{key}: {other:?}"),
    })
}

fn duration(span: &Span) -> Duration {
    Duration::from_nanos(span.end_time_unix_nano - span.start_time_unix_nano)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The headers of a client's trace, of which the second is whatever somebody wrote.
fn trace_headers(sampled: bool) -> String {
    format!("traceparent: 00-{TRACE}-{PARENT}-0{}\r\ntracestate: a={CANARY}\r\n", u8::from(sampled))
}

#[test]
fn a_request_and_its_parts_are_spans_in_the_clients_trace() {
    let (addr, collector) = taking("");
    let folder = tempfile::tempdir().unwrap();
    let config = format!(
        "[traces]\nendpoint = \"http://{addr}\"\nservice = \"gate\"\n[[pipeline.stage]]\nplugin = \"pii-guard\"\n{LIMITS}"
    );
    let (program, gateway) = start(folder.path(), &config);
    ask(&gateway, "tidegate-starter", true, &trace_headers(true));
    let spans = spans(program, &addr, &collector);
    assert!(spans.iter().all(|span| hex(&span.trace_id) == TRACE), "{spans:#?}");
    let server = spans.iter().find(|span| hex(&span.parent_span_id) == PARENT).expect("a span below the client's");
    assert_eq!(server.name, "POST /v1/chat/completions");
    assert_eq!(text(server, "http.response.status_code"), "200");
    assert_eq!(text(server, "gen_ai.request.model"), "tidegate-starter");
    assert_eq!(text(server, "tidegate.tenant"), "local");
    assert!(number(server, "gen_ai.usage.output_tokens") > Some(1), "{server:#?}");
    let below = |name: &str, stage: &str| {
        let of = |span: &&Span| span.name == name && text(span, "stage") == stage;
        let found: Vec<_> = spans.iter().filter(of).collect();
        assert_eq!(found.len(), 1, "{name} {stage}: {spans:#?}");
        assert_eq!(found[0].parent_span_id, server.span_id, "{name} {stage}");
        assert!(found[0].end_time_unix_nano <= server.end_time_unix_nano);
        found[0]
    };
    assert_eq!(text(below("plugin", "prompt-guard"), "outcome"), "ok");
    let guard = below("plugin", "stream-guard");
    let count = |key: &str| number(guard, key).unwrap();
    assert!(count("calls") > 0 && count("calls") + count("prefiltered") > 2, "one span for all windows: {guard:#?}");
    let engine = below("engine", "");
    assert_eq!(number(engine, "prompt_tokens"), number(server, "gen_ai.usage.input_tokens"), "{engine:#?}");
    assert_eq!(number(engine, "choices"), Some(1), "{engine:#?}");
}

/// Those that are asked beside the path, and behind the answer, too.
#[test]
fn each_kind_of_stage_has_its_span_in_the_clients_trace() {
    let kinds = ["router", "retriever", "memory", "output-guard", "observer"];
    let (addr, collector) = taking("");
    let folder = tempfile::tempdir().unwrap();
    let config = format!(
        "[traces]\nendpoint = \"http://{addr}\"\n{}{}{}[[pipeline.stage]]\nplugin = \"calculator\"\n{LIMITS}",
        stage("honest", &format!("stages = {kinds:?}")),
        stage("tarries", "stages = [\"prompt-guard\"]\nwhen = \"during-prefill\""),
        stage("watches", "stages = [\"stream-guard\"]"),
    );
    let (program, gateway) = start(folder.path(), &config);
    ask(&gateway, "auto", false, &trace_headers(true));
    let spans = spans(program, &addr, &collector);
    assert!(spans.iter().all(|span| hex(&span.trace_id) == TRACE), "{spans:#?}");
    let server = spans.iter().find(|span| hex(&span.parent_span_id) == PARENT).expect("a span below the client's");
    let behind = |what: &str| spans.iter().find(|span| span.name == "background" && text(span, "what") == what);
    let (memory, observer) = (behind("memory").expect("a memory's"), behind("observer").expect("an observer's"));
    assert!([memory, observer].iter().all(|span| span.parent_span_id == server.span_id));
    let of = |kind: &'static str| spans.iter().filter(move |span| span.name == "plugin" && text(span, "stage") == kind);
    for (kind, verdict) in [
        ("prompt-guard", "allow"),
        ("output-guard", "allow"),
        ("stream-guard", "pass"),
        ("router", ""),
        ("tool-provider", ""),
        ("retriever", ""),
        ("memory", ""),
        ("observer", ""),
    ] {
        let mut all = of(kind).peekable();
        assert!(all.peek().is_some(), "{kind}: {spans:#?}");
        assert!(
            all.all(|span| (text(span, "outcome"), text(span, "verdict")) == ("ok".into(), verdict.into())),
            "{kind}"
        );
    }
    let parents = |kind: &'static str| of(kind).map(|span| span.parent_span_id.clone()).collect::<Vec<_>>();
    assert!(parents("prompt-guard").iter().all(|parent| *parent == server.span_id));
    assert!(parents("observer").iter().eq([&observer.span_id]));
    assert!(parents("memory").contains(&server.span_id) && parents("memory").contains(&memory.span_id));
}

/// Its outcome is the case of its failure, by which it is counted too.
#[test]
fn a_call_that_fails_has_its_span_too() {
    for kind in ["retriever", "stream-guard"] {
        let (addr, collector) = taking("");
        let folder = tempfile::tempdir().unwrap();
        let more = format!("stages = [\"{kind}\"]\non_error = \"open\"\nconfig = {{ trap = \"{kind}\" }}");
        let config = format!("[traces]\nendpoint = \"http://{addr}\"\n{}", stage("honest", &more));
        let (program, gateway) = start(folder.path(), &config);
        ask(&gateway, "tidegate-starter", false, &trace_headers(true));
        let spans = spans(program, &addr, &collector);
        let server = spans.iter().find(|span| hex(&span.parent_span_id) == PARENT).expect("a span below the client's");
        let calls: Vec<&Span> = spans.iter().filter(|span| span.name == "plugin").collect();
        assert_eq!(calls.len(), 1, "{spans:#?}");
        let told = ["name", "stage", "outcome", "verdict"].map(|key| text(calls[0], key));
        assert_eq!(told, ["honest", kind, "trap", ""]);
        assert_eq!(calls[0].parent_span_id, server.span_id);
    }
}

/// What waits when the guard ends the answer has waited all the same.
#[test]
fn a_stream_guards_span_says_how_long_its_calls_took_and_text_waited() {
    for (config, verdict) in [("hold = \"8\"", "pass"), ("hold = \"8\", halt = \".\"", "halt")] {
        let (addr, collector) = taking("");
        let folder = tempfile::tempdir().unwrap();
        let more = format!("stages = [\"stream-guard\"]\nconfig = {{ {config} }}");
        let config = format!("[traces]\nendpoint = \"http://{addr}\"\n{}", stage("watches", &more));
        let (program, gateway) = start(folder.path(), &config);
        ask(&gateway, "tidegate-starter", true, &trace_headers(true));
        let spans = spans(program, &addr, &collector);
        let guard = spans.iter().find(|span| text(span, "stage") == "stream-guard").expect("the guard's span");
        assert_eq!(text(guard, "verdict"), verdict, "{guard:#?}");
        let figure = |key: &str| number(guard, key).unwrap();
        let lasted = guard.end_time_unix_nano - guard.start_time_unix_nano;
        for (key, nanos) in [("us", 1_000), ("held_ms", 1_000_000)] {
            assert!((nanos..=lasted).contains(&(figure(key) * nanos)), "{key}: {guard:#?}");
        }
    }
}

/// One that is asked once: who reads no stream waits for its call alone.
#[test]
fn the_span_of_a_guard_that_holds_a_stream_says_for_how_long() {
    let late = stage("tarries", "stages = [\"prompt-guard\"]\nwhen = \"during-prefill\"");
    let whole = stage("honest", "stages = [\"output-guard\"]");
    for (stage, text_of, kind) in [(late, "tarry 1000", "prompt-guard"), (whole, "What is Tidegate?", "output-guard")] {
        for stream in [true, false] {
            let (addr, collector) = taking("");
            let folder = tempfile::tempdir().unwrap();
            let (program, gateway) = start(folder.path(), &format!("[traces]\nendpoint = \"http://{addr}\"\n{stage}"));
            let body = format!(
                "{{\"model\":\"tidegate-starter\",\"stream\":{stream},\"max_tokens\":48,\"temperature\":0,\
                 \"messages\":[{{\"role\":\"user\",\"content\":\"{text_of}\"}}]}}"
            );
            post(&gateway, "/v1/chat/completions", &body, &trace_headers(true));
            let spans = spans(program, &addr, &collector);
            let server =
                spans.iter().find(|span| hex(&span.parent_span_id) == PARENT).expect("a span below the client's");
            let guard = spans.iter().find(|span| text(span, "stage") == kind).expect("the guard's span");
            let held = number(guard, "held_ms").map(|ms| ms * 1_000_000);
            let lasted = server.end_time_unix_nano - server.start_time_unix_nano;
            assert_eq!(held.is_some(), stream, "{kind}, stream: {stream}: {guard:#?}");
            assert!(held.is_none_or(|held| (1_000_000..=lasted).contains(&held)), "{kind}: {guard:#?}");
        }
    }
}

/// Whatever it said of it.
#[test]
fn a_guard_that_keeps_back_more_than_it_may_has_not_ended_well() {
    for (on_error, unjudged) in [("open", true), ("closed", false)] {
        let (addr, collector) = taking("");
        let folder = tempfile::tempdir().unwrap();
        let more = format!("stages = [\"stream-guard\"]\non_error = \"{on_error}\"\nconfig = {{ hold = \"4096\" }}");
        let guard = stage("watches", &more).replace("limits = {", "limits = { holdback_bytes = 8,");
        let (program, gateway) = start(folder.path(), &format!("[traces]\nendpoint = \"http://{addr}\"\n{guard}"));
        ask(&gateway, "tidegate-starter", true, &trace_headers(true));
        let figures = get(&gateway, "/metrics");
        let spans = spans(program, &addr, &collector);
        let guard = spans.iter().find(|span| text(span, "stage") == "stream-guard").expect("the guard's span");
        assert_eq!([text(guard, "outcome"), text(guard, "verdict")], ["holdback-cap", "pass"], "{on_error}");
        assert_eq!(figures.contains("case=\"holdback-cap\""), unjudged, "{on_error}: {figures}");
        assert_eq!(figures.contains("tidegate_holdback_halts_total{"), !unjudged, "{on_error}: {figures}");
    }
}

#[test]
fn an_upstream_is_told_of_the_trace_and_a_client_may_leave_it() {
    let (addr, collector) = taking("");
    let (upstream, asked) = taking(ANSWER);
    let folder = tempfile::tempdir().unwrap();
    let config = format!(
        "[traces]\nendpoint = \"http://{addr}\"\n[pipeline]\n[[models]]\nname = \"m\"\nupstream = \"http://{upstream}/v1\"\n"
    );
    let (program, gateway) = start(folder.path(), &config);
    ask(&gateway, "m", false, &trace_headers(true));
    ask(&gateway, "m", false, &trace_headers(false));
    let spans = spans(program, &addr, &collector);
    // The span of the one that was sampled, told to the upstream as the parent of what it does.
    let client = spans.iter().find(|span| span.name == "upstream").expect("the upstream's span");
    let posts: Vec<_> = asked.try_iter().filter(|(head, _)| head.starts_with("post ")).collect();
    assert_eq!(posts.len(), 2);
    assert!(posts.iter().all(|(head, _)| !head.contains(CANARY)), "{posts:?}");
    assert!(posts[0].0.contains(&format!("traceparent: 00-{TRACE}-{}-01", hex(&client.span_id))), "{}", posts[0].0);
    assert!(posts[1].0.contains(&format!("traceparent: 00-{TRACE}-")), "{}", posts[1].0);
    assert_eq!(spans.iter().filter(|span| span.name == "upstream").count(), 1, "the other was not sampled");
}

/// Its head is there long before its end.
#[test]
fn the_span_of_an_upstream_lasts_until_its_answer_was_read() {
    let ((addr, collector), upstream) = (taking(""), streaming());
    let folder = tempfile::tempdir().unwrap();
    let config = format!(
        "[traces]\nendpoint = \"http://{addr}\"\n[pipeline]\n[[models]]\nname = \"m\"\nupstream = \"http://{upstream}/v1\"\n"
    );
    let (program, gateway) = start(folder.path(), &config);
    ask(&gateway, "m", true, &trace_headers(true));
    let spans = spans(program, &addr, &collector);
    let client = spans.iter().find(|span| span.name == "upstream").expect("the upstream's span");
    assert!(duration(client) >= LASTS, "{client:#?}");
}

/// Its model's turn is a part of it.
#[test]
fn the_span_of_a_prompt_lasts_until_its_answer_was_made() {
    let (addr, collector) = taking("");
    let folder = tempfile::tempdir().unwrap();
    let (program, gateway) = start(folder.path(), &format!("[traces]\nendpoint = \"http://{addr}\"\n[pipeline]\n"));
    let asked = r#"{"model":"tidegate-starter","max_tokens":16,"temperature":0,"prompt":["Once","Twice"]}"#;
    post(&gateway, "/v1/completions", asked, &trace_headers(true));
    let spans = spans(program, &addr, &collector);
    let server = spans.iter().find(|span| hex(&span.parent_span_id) == PARENT).expect("a span below the client's");
    let prompts: Vec<&Span> = spans.iter().filter(|span| span.name == "prompt").collect();
    let mut places: Vec<_> = prompts.iter().map(|prompt| number(prompt, "index")).collect();
    places.sort();
    assert_eq!(places, [Some(0), Some(1)], "{spans:#?}");
    for prompt in prompts {
        let is_its = |span: &&Span| span.name == "engine" && span.parent_span_id == prompt.span_id;
        let engine = spans.iter().find(is_its).expect("its model's turn");
        let ends = [engine, prompt, server].map(|span| span.end_time_unix_nano);
        assert!(ends.is_sorted(), "{ends:?}: {spans:#?}");
    }
}

/// It is answered long before.
#[test]
fn the_span_of_a_response_in_the_background_lasts_until_that_was_made() {
    let ((addr, collector), upstream) = (taking(""), streaming());
    let folder = tempfile::tempdir().unwrap();
    let config = format!(
        "[traces]\nendpoint = \"http://{addr}\"\n[pipeline]\n[[models]]\nname = \"m\"\nupstream = \"http://{upstream}/v1\"\n\
         [store]\npath = \"{}\"\n",
        folder.path().join("kept.db").display()
    );
    let (program, gateway) = start(folder.path(), &config);
    let asked = r#"{"model":"m","background":true,"input":"Where?"}"#;
    let begun = post(&gateway, "/v1/responses", asked, &trace_headers(true));
    assert!(begun.contains(r#""status":"in_progress""#), "{begun}");
    let id = begun.split('"').find(|word| word.starts_with("resp_")).expect("its id");
    let is_made = |_| {
        std::thread::sleep(Duration::from_millis(20));
        get(&gateway, &format!("/v1/responses/{id}")).contains(r#""status":"completed""#)
    };
    assert!((0..3000).any(is_made), "it is not made");
    let spans = spans(program, &addr, &collector);
    let named = |name: &str| spans.iter().find(|span| span.name == name).expect("a span of that name");
    let (server, client) = (named("POST /v1/responses"), named("upstream"));
    assert_eq!(client.parent_span_id, server.span_id);
    assert!(duration(client) >= LASTS && client.end_time_unix_nano <= server.end_time_unix_nano, "{spans:#?}");
}

/// A title is asked of a model when the request is over, and is of its trace all the same.
#[test]
fn what_is_written_behind_an_answer_is_in_the_clients_trace() {
    let (addr, collector) = taking("");
    let (upstream, asked) = taking(ANSWER);
    let folder = tempfile::tempdir().unwrap();
    let config = format!(
        "[traces]\nendpoint = \"http://{addr}\"\n[pipeline]\n[[models]]\nname = \"m\"\nupstream = \"http://{upstream}/v1\"\n\
         [store]\npath = \"{}\"\n[store.titles]\nmodel = \"m\"\n",
        folder.path().join("kept.db").display()
    );
    let (program, gateway) = start(folder.path(), &config);
    let headers = trace_headers(true);
    let made = post(&gateway, "/v1/conversations", "{}", &headers);
    let id = made.split("\"id\":\"").nth(1).and_then(|rest| rest.split('"').next()).unwrap();
    let request = format!("{{\"model\":\"m\",\"conversation\":\"{id}\",\"input\":\"Where?\"}}");
    post(&gateway, "/v1/responses", &request, &headers);
    for _ in ["the answer", "its title"] {
        asked.recv_timeout(Duration::from_secs(60)).unwrap();
    }
    let spans = spans(program, &addr, &collector);
    assert!(spans.iter().all(|span| hex(&span.trace_id) == TRACE), "{spans:#?}");
    let named = |name: &str| spans.iter().filter(|span| span.name == name).collect::<Vec<_>>();
    let (request, behind) = (named("POST /v1/responses")[0], named("background")[0]);
    assert_eq!((text(behind, "what"), &behind.parent_span_id), ("title".into(), &request.span_id));
    assert!(named("upstream").iter().any(|span| span.parent_span_id == behind.span_id), "{spans:#?}");
}

#[test]
fn a_method_that_somebody_made_up_is_in_no_span() {
    let (addr, collector) = taking("");
    let folder = tempfile::tempdir().unwrap();
    let (program, gateway) = start(folder.path(), &format!("[traces]\nendpoint = \"http://{addr}\"\n[pipeline]\n"));
    ask_strangely(&gateway, "/v1/models");
    ask_strangely(&gateway, "/nowhere");
    let spans = spans(program, &addr, &collector);
    let methods: Vec<_> = spans.iter().map(|span| text(span, "http.request.method")).collect();
    assert_eq!(methods, ["_OTHER", "_OTHER"], "{spans:#?}");
    assert!(spans.iter().all(|span| span.name == "HTTP none"), "{spans:#?}");
}

#[test]
fn a_collector_that_is_away_holds_nobody_up() {
    let away = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let (mut program, gateway) = start(folder.path(), &format!("[traces]\nendpoint = \"http://{away}\"\n[pipeline]\n"));
    ask(&gateway, "tidegate-starter", false, "");
    let stopping = std::time::Instant::now();
    signal::send(program.id(), "TERM");
    assert!(program.wait().unwrap().success());
    assert!(stopping.elapsed() < Duration::from_secs(30), "it ends without the collector");
}
