//! An upstream against scripted servers over real sockets: those that follow the protocol, those that bend it,
//! and those that break.

// Helpers of tests may fail like tests.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use serde_json::{Value, json};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tidegate_types::{Chat, Delta, DeltaKind, Fault, FinishReason, Reject, RejectKind, RequestId, Usage};
use tidegate_upstream::{ApiKey, Reader, Upstream, UpstreamConfig, UpstreamEvent};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

fn chat() -> Chat {
    let body = br#"{"model":"mine","messages":[{"role":"user","content":"hi"}],"max_tokens":50,"stream":true}"#;
    tidegate_wire::parse_chat(body).unwrap().chat
}

/// Reads one request; gives its head in lower case and its body.
async fn read_request(stream: &mut TcpStream) -> Option<(String, String)> {
    let mut bytes = Vec::new();
    loop {
        if let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            let head = String::from_utf8_lossy(&bytes[..end]).to_lowercase();
            let length = head.split("content-length: ").nth(1).and_then(|rest| rest.lines().next());
            if bytes.len() - end - 4 >= length.map_or(0, |length| length.parse().unwrap()) {
                return Some((head, String::from_utf8_lossy(&bytes[end + 4..]).into_owned()));
            }
        }
        if stream.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
    }
}

struct Server {
    address: SocketAddr,
    requests: mpsc::Receiver<(String, String)>,
    connections: Arc<AtomicUsize>,
}

/// A server that answers every request with `answer`, written in pieces of `step` bytes. It closes the
/// connection after an answer that has no clean end.
async fn server(answer: String, step: usize) -> Server {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (seen, requests) = mpsc::channel(100);
    let connections = Arc::new(AtomicUsize::new(0));
    let count = connections.clone();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            count.fetch_add(1, Ordering::SeqCst);
            stream.set_nodelay(true).unwrap();
            let (seen, answer) = (seen.clone(), answer.clone());
            tokio::spawn(async move {
                while let Some(request) = read_request(&mut stream).await {
                    seen.send(request).await.unwrap();
                    for piece in answer.as_bytes().chunks(step) {
                        stream.write_all(piece).await.unwrap();
                    }
                    if !(answer.ends_with("\r\n0\r\n\r\n") || answer.contains("content-length")) {
                        return;
                    }
                }
            });
        }
    });
    Server { address, requests, connections }
}

fn upstream(address: SocketAddr) -> Upstream {
    let mut config = UpstreamConfig::new("east", format!("http://{address}/v1"), "theirs");
    config.api_key = Some(ApiKey::new("sk-secret"));
    Upstream::new(config).unwrap()
}

/// A response of one chunk for each event; with a clean end, or without.
fn stream(events: &[&str], clean: bool) -> String {
    let mut text =
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n".to_owned();
    for event in events {
        let event = format!("data: {event}\n\n");
        text += &format!("{:x}\r\n{event}\r\n", event.len());
    }
    if clean { text + "0\r\n\r\n" } else { text }
}

fn plain(status: &str, kind: &str, body: &str) -> String {
    format!("HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {}\r\n\r\n{body}", body.len())
}

/// All events of one answer, and the error that ended it.
async fn ask(upstream: &Upstream) -> (Vec<UpstreamEvent>, Option<Reject>) {
    let mut events = Vec::new();
    let mut stream = match upstream.generate(&chat(), &RequestId::new("req_1"), 1).await {
        Ok(stream) => stream,
        Err(reject) => return (events, Some(reject)),
    };
    while let Some(event) = stream.next().await {
        match event {
            Ok(event) => events.push(event),
            Err(reject) => {
                assert!(stream.next().await.is_none());
                return (events, Some(reject));
            }
        }
    }
    (events, None)
}

fn delta(kind: DeltaKind) -> UpstreamEvent {
    UpstreamEvent::Delta(Delta { choice: 0, kind })
}

fn text(text: &str) -> UpstreamEvent {
    delta(DeltaKind::Text { text: text.into(), logprobs: Vec::new() })
}

fn stop() -> UpstreamEvent {
    delta(DeltaKind::Finish(FinishReason::Stop))
}

const ROLE: &str = r#"{"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}"#;
const A: &str = r#"{"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null}]}"#;
const B: &str = r#"{"choices":[{"index":0,"delta":{"content":"b"},"finish_reason":null}]}"#;
const STOP: &str = r#"{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}"#;
const USAGE: &str = r#"{"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":2,"total_tokens":11}}"#;

#[tokio::test]
async fn an_answer_streams_through_whatever_the_pieces_of_the_network() {
    for step in [1, 7, 100_000] {
        let server = server(stream(&[ROLE, A, B, STOP, USAGE, "[DONE]"], true), step).await;
        let (events, error) = ask(&upstream(server.address)).await;
        let usage =
            UpstreamEvent::Usage(Usage { input_tokens: 9, cached_tokens: 0, output_tokens: 2, ..Default::default() });
        assert_eq!((events, error), (vec![text("a"), text("b"), stop(), usage], None));
    }
}

#[tokio::test]
async fn the_request_is_what_the_server_expects() {
    let mut server = server(stream(&[STOP, "[DONE]"], true), 1000).await;
    ask(&upstream(server.address)).await;
    let (head, body) = server.requests.recv().await.unwrap();
    assert!(head.starts_with("post /v1/chat/completions http/1.1"), "{head}");
    assert!(
        head.contains("authorization: bearer sk-secret")
            && head.contains("x-request-id: req_1")
            && head.contains("x-tidegate-hops: 1"),
        "{head}"
    );
    let expected = json!({"model": "theirs", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 50,
        "stream": true, "stream_options": {"include_usage": true}});
    assert_eq!(serde_json::from_str::<Value>(&body).unwrap(), expected);
}

#[tokio::test]
async fn a_connection_serves_the_next_request() {
    let server = server(stream(&[A, STOP, "[DONE]"], true), 1000).await;
    let upstream = upstream(server.address);
    for _ in 0..3 {
        assert_eq!(ask(&upstream).await.1, None);
    }
    assert_eq!(server.connections.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn an_answer_that_breaks_off_is_an_error_after_what_came() {
    let cases = [
        stream(&[ROLE, A], false),
        stream(&[ROLE, A], true),
        stream(&[ROLE, A, "[DONE]"], true),
        stream(&[ROLE, A], true).replace("0\r\n\r\n", "5\r\ndata:\r\n0\r\n\r\n"),
    ];
    for answer in cases {
        let server = server(answer, 1000).await;
        let (events, error) = ask(&upstream(server.address)).await;
        let error = error.unwrap();
        assert_eq!(events, [text("a")]);
        assert_eq!((error.kind, error.fault), (RejectKind::BadUpstream, Fault::Upstream));
        assert_eq!(error.code.as_deref(), Some("upstream_cut"));
        assert!(!error.message.contains("east") && error.cause.unwrap().contains("east"));
    }
}

#[tokio::test]
async fn servers_that_never_say_done_or_do_not_stream_are_understood() {
    let server_one = server(stream(&[A, STOP], true), 1000).await;
    assert_eq!(ask(&upstream(server_one.address)).await, (vec![text("a"), stop()], None));
    let body = r#"{"choices":[{"index":0,"message":{"role":"assistant","content":"a"},"finish_reason":"stop"}]}"#;
    let server_two = server(plain("200 OK", "application/json; charset=utf-8", body), 10).await;
    assert_eq!(ask(&upstream(server_two.address)).await, (vec![text("a"), stop()], None));
}

/// Without the blank line that ends an event, or in the middle of one that adds nothing.
#[tokio::test]
async fn a_complete_answer_is_one_however_its_last_event_ends() {
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n";
    let begun = format!("{head}data: {A}\n\ndata: {STOP}");
    for end in ["", "\n", "\r\n", "\n\ndata: [DONE]", "\n\ndata: [DONE]\n", "\n\ndata: [DO", "\n\ndata: {\"choi"] {
        let server = server(format!("{begun}{end}"), 1000).await;
        assert_eq!(ask(&upstream(server.address)).await, (vec![text("a"), stop()], None), "{end:?}");
    }
    let boom = r#"{"error":{"message":"engine died","code":500}}"#;
    let server = server(format!("{begun}\n\ndata: {boom}\n"), 1000).await;
    assert!(ask(&upstream(server.address)).await.1.unwrap().cause.unwrap().contains("engine died"));
}

#[tokio::test]
async fn a_stream_may_be_longer_than_an_answer_in_one_piece() {
    let with_limit = |address: SocketAddr| {
        let mut config = UpstreamConfig::new("east", format!("http://{address}/v1"), "theirs");
        config.connector.max_response_bytes = 100;
        Upstream::new(config).unwrap()
    };
    let streaming = server(stream(&[A, B, A, STOP, "[DONE]"], true), 50).await;
    let expected = vec![text("a"), text("b"), text("a"), stop()];
    assert_eq!(ask(&with_limit(streaming.address)).await, (expected, None));
    let said = "a".repeat(100);
    let body = format!(r#"{{"choices":[{{"index":0,"message":{{"content":"{said}"}},"finish_reason":"stop"}}]}}"#);
    let whole = server(plain("200 OK", "application/json", &body), 50).await;
    let error = ask(&with_limit(whole.address)).await.1.unwrap();
    assert_eq!(error.code.as_deref(), Some("upstream_answer_too_long"));
}

#[tokio::test]
async fn an_error_within_the_stream_ends_it() {
    let boom = r#"{"error":{"message":"engine died","code":500}}"#;
    let one = server(stream(&[A, boom], true), 1000).await;
    let (events, error) = ask(&upstream(one.address)).await;
    let error = error.unwrap();
    assert_eq!((events, error.kind), (vec![text("a")], RejectKind::BadUpstream));
    assert!(error.cause.unwrap().contains("engine died"));
    let late = r#"{"error":{"message":"prompt too long","param":"messages","code":400}}"#;
    let two = server(stream(&[late], true), 1000).await;
    let error = ask(&upstream(two.address)).await.1.unwrap();
    assert_eq!((error.kind, error.message.as_str()), (RejectKind::Invalid, "prompt too long"));
}

#[tokio::test]
async fn every_status_becomes_what_the_caller_can_act_on() {
    let operator = Fault::Operator;
    let cases = [
        ("400 Bad Request", RejectKind::Invalid, Fault::Client),
        ("422 Unprocessable", RejectKind::Invalid, Fault::Client),
        ("301 Moved", RejectKind::BadUpstream, operator),
        ("401 Unauthorized", RejectKind::BadUpstream, operator),
        ("403 Forbidden", RejectKind::BadUpstream, operator),
        ("404 Not Found", RejectKind::BadUpstream, operator),
        ("408 Timeout", RejectKind::UpstreamTimeout, Fault::Upstream),
        ("429 Too Many Requests", RejectKind::RateLimited, Fault::Upstream),
        ("500 Oops", RejectKind::BadUpstream, Fault::Upstream),
        ("503 Busy", RejectKind::BadUpstream, Fault::Upstream),
        ("529 Overloaded", RejectKind::BadUpstream, Fault::Upstream),
        ("204 No Content", RejectKind::BadUpstream, Fault::Upstream),
    ];
    for (status, kind, fault) in cases {
        let body = if status.starts_with("204") {
            ""
        } else {
            r#"{"error":{"message":"the key sk-secret, no","param":"n","code":"c"}}"#
        };
        let server = server(plain(status, "application/json\r\nretry-after: 7", body), 1000).await;
        let error = ask(&upstream(server.address)).await.1.unwrap();
        assert_eq!((error.kind, error.fault, error.retry_after_s), (kind, fault, Some(7)), "{status}");
        assert!(!error.to_string().contains("sk-secret"), "{error}");
        let passed_on = kind == RejectKind::Invalid;
        assert_eq!(error.message == "the key [key], no", passed_on, "{status}: {}", error.message);
        assert_eq!(error.param.is_some(), passed_on, "{status}");
    }
}

/// Whoever chose the server reads its words, which say more than the callers of a gateway are to know.
#[tokio::test]
async fn a_refusal_for_the_content_is_the_callers_to_mend() {
    for body in [
        r#"{"error":{"code":403,"message":"flagged","metadata":{"flagged_input":"flagged"}}}"#,
        r#"{"code":"permission-denied","error":"flagged: Content violates usage guidelines. Team: flagged"}"#,
    ] {
        for (reader, words) in [(Reader::Caller, false), (Reader::Chooser, true)] {
            let server = server(plain("403 Forbidden", "application/json", body), 1000).await;
            let mut config = UpstreamConfig::new("u", format!("http://{}/v1", server.address), "theirs");
            config.reader = reader;
            let error = ask(&Upstream::new(config).unwrap()).await.1.unwrap();
            assert_eq!((error.kind, error.fault), (RejectKind::ContentFilter, Fault::Client), "{body}");
            assert_eq!(error.message.contains("flagged"), words, "{}", error.message);
        }
    }
}

/// Guards judge the message alone.
#[tokio::test]
async fn a_field_and_a_code_are_names_or_are_not_told() {
    for (param, code, told) in [
        ("messages[0].content", "context_length_exceeded", true),
        ("tools.0.function-name", "E-1", true),
        ("the card 4111 1111 1111 1111", "call me, sk-secret", false),
        ("", "", false),
    ] {
        let body = format!(r#"{{"error":{{"message":"no","param":"{param}","code":"{code}"}}}}"#);
        let server = server(plain("400 Bad Request", "application/json", &body), 1000).await;
        let error = ask(&upstream(server.address)).await.1.unwrap();
        let expected = told.then(|| (param.to_owned(), code.to_owned()));
        assert_eq!(error.param.zip(error.code), expected, "{param}");
    }
}

#[tokio::test]
async fn who_chose_the_server_reads_its_own_words_of_what_it_refuses() {
    for (status, kind) in [
        ("401 Unauthorized", RejectKind::Unauthenticated),
        ("402 Payment Required", RejectKind::Forbidden),
        ("403 Forbidden", RejectKind::Forbidden),
        ("404 Not Found", RejectKind::NotFound),
        ("405 Method Not Allowed", RejectKind::MethodNotAllowed),
    ] {
        let body = r#"{"error":{"message":"the key sk-secret, no"}}"#;
        let server = server(plain(status, "application/json", body), 1000).await;
        let mut config = UpstreamConfig::new("u", format!("http://{}/v1", server.address), "theirs");
        (config.reader, config.api_key) = (Reader::Chooser, Some(ApiKey::new("sk-secret")));
        let error = ask(&Upstream::new(config).unwrap()).await.1.unwrap();
        assert_eq!((error.kind, error.message.as_str()), (kind, "the key [key], no"), "{status}");
    }
}

#[tokio::test]
async fn answers_that_are_none_are_errors() {
    let html = server(plain("200 OK", "text/html", "<p>hello"), 1000).await;
    let error = ask(&upstream(html.address)).await.1.unwrap();
    assert!(error.cause.unwrap().contains("text/html"));
    let nonsense = server(stream(&["{"], true), 1000).await;
    assert_eq!(ask(&upstream(nonsense.address)).await.1.unwrap().kind, RejectKind::BadUpstream);
    let endless = server(stream(&[&"x".repeat(5 << 20)], true), 1 << 16).await;
    assert!(ask(&upstream(endless.address)).await.1.unwrap().cause.unwrap().contains("longer than"));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let error = ask(&upstream(address)).await.1.unwrap();
    assert_eq!(error.code.as_deref(), Some("upstream_unreachable"));
}

#[tokio::test]
async fn usage_that_cannot_be_true_is_not_passed_on() {
    let lie = r#"{"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":5000000,"total_tokens":0}}"#;
    let server = server(stream(&[A, STOP, lie, "[DONE]"], true), 1000).await;
    assert_eq!(ask(&upstream(server.address)).await, (vec![text("a"), stop()], None));
}

#[tokio::test]
async fn dropping_the_answer_closes_the_connection() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let upstream = upstream(listener.local_addr().unwrap());
    let request = async { upstream.generate(&chat(), &RequestId::new("r"), 0).await.unwrap() };
    let (mut answer, mut socket) = tokio::join!(request, async {
        let (mut socket, _) = listener.accept().await.unwrap();
        read_request(&mut socket).await;
        socket.write_all(stream(&[A], false).as_bytes()).await.unwrap();
        socket
    });
    assert_eq!(answer.next().await, Some(Ok(text("a"))));
    drop(answer);
    assert_eq!(socket.read(&mut [0; 1]).await.unwrap_or(0), 0);
}

#[tokio::test]
async fn models_are_listed_and_those_chat_of_which_the_server_does_not_say_that_they_do_something_else() {
    let list = json!({"object": "list", "data": [
        {"id": "chats", "capabilities": ["completions", "chat"]},
        {"id": "embeds", "capabilities": ["embeddings"]},
        {"id": "unsaid"},
        {"id": "said otherwise", "capabilities": {"completion_chat": false}},
    ]});
    let mut server = server(plain("200 OK", "application/json", &list.to_string()), 9).await;
    let models = upstream(server.address).models().await.unwrap();
    let chats: Vec<(&str, bool)> = models.iter().map(|model| (&*model.id, model.chats())).collect();
    assert_eq!(chats, [("chats", true), ("embeds", false), ("unsaid", true), ("said otherwise", true)]);
    assert!(server.requests.recv().await.unwrap().0.starts_with("get /v1/models http/1.1"));
}
