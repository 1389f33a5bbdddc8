//! HTTP/2, by prior knowledge and by ALPN, and TLS.

// Helpers of tests may fail like tests.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use bytes::Bytes;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::Frame;
use hyper::client::conn::{http1, http2};
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::pki_types::{CertificateDer, ServerName};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};
use support::{Running, chat_body, limits, start, text};
use tidegate_api::{Limits, Tls};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

fn request(model: &str, more: &str) -> Request<Full<Bytes>> {
    Request::post("http://localhost/v1/chat/completions")
        .header("content-type", "application/json")
        .body(Full::new(chat_body(model, more).into()))
        .unwrap()
}

async fn text_of(response: Response<hyper::body::Incoming>) -> String {
    String::from_utf8(response.into_body().collect().await.unwrap().to_bytes().to_vec()).unwrap()
}

async fn h2(running: &Running) -> http2::SendRequest<Full<Bytes>> {
    let stream = TcpStream::connect(running.address).await.unwrap();
    let (sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    sender
}

#[tokio::test]
async fn http2_by_prior_knowledge_serves_many_answers_at_once() {
    let running = start(limits(), Vec::new(), None);
    let sender = h2(&running).await;
    let mut answers = tokio::task::JoinSet::new();
    for i in 0..50 {
        let mut sender = sender.clone();
        let more = if i % 2 == 0 { "" } else { r#","stream":true"# };
        answers.spawn(async move {
            let response = sender.send_request(request("m", more)).await.unwrap();
            assert_eq!(response.status(), StatusCode::OK);
            text_of(response).await
        });
    }
    while let Some(answer) = answers.join_next().await {
        let answer = answer.unwrap();
        assert!(answer.contains("hello") || answer.ends_with("data: [DONE]\n\n"), "{answer}");
    }
}

#[tokio::test]
async fn http2_streams_each_event_when_it_comes_and_a_reset_stops_the_work() {
    let mut running = start(limits(), Vec::new(), None);
    let mut sender = h2(&running).await;
    let response =
        tokio::spawn(
            async move { (sender.send_request(request("gated", r#","stream":true"#)).await.unwrap(), sender) },
        );
    running.asked.recv().await.unwrap();
    running.gate.send(text("one")).await.unwrap();
    let (mut response, mut sender) = response.await.unwrap();
    let first = response.frame().await.unwrap().unwrap().into_data().unwrap();
    assert!(String::from_utf8_lossy(&first).contains("\"one\""));
    running.gate.send(text("two")).await.unwrap();
    let second = response.frame().await.unwrap().unwrap().into_data().unwrap();
    assert!(String::from_utf8_lossy(&second).contains("\"two\""));
    drop(response);
    running.all_dropped().await;
    assert_eq!(sender.send_request(request("m", "")).await.unwrap().status(), StatusCode::OK, "the connection lives");
}

/// Its connection, which others may share, goes on.
#[tokio::test]
async fn a_client_that_takes_nothing_of_a_stream_is_given_up_over_http2_too() {
    let mut running = start(Limits { write_timeout: Duration::from_millis(100), ..limits() }, Vec::new(), None);
    let stream = TcpStream::connect(running.address).await.unwrap();
    let mut client = http2::Builder::new(TokioExecutor::new());
    client.initial_stream_window_size(0);
    let (mut sender, connection) = client.handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    // A stream without an end, and a whole answer.
    for (model, more) in [("flood", r#","stream":true"#), ("hang", r#","stream":true"#), ("m", "")] {
        let response = sender.send_request(request(model, more)).await.unwrap();
        running.asked.recv().await.unwrap();
        running.all_dropped().await;
        let mut body = response.into_body();
        let ended = tokio::time::timeout(Duration::from_secs(20), body.frame()).await;
        assert!(ended.unwrap().unwrap().is_err(), "{model}: a stream that was given up looks whole");
    }
    let head = Request::head("http://localhost/livez").body(Full::default()).unwrap();
    assert_eq!(sender.send_request(head).await.unwrap().status(), StatusCode::OK, "the connection lives");
}

/// The kind of the next frame, and its payload.
async fn frame(socket: &mut TcpStream) -> (u8, Vec<u8>) {
    let mut head = [0; 9];
    socket.read_exact(&mut head).await.unwrap();
    let mut payload = vec![0; u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize];
    socket.read_exact(&mut payload).await.unwrap();
    (head[3], payload)
}

/// A window of one byte lets the first piece through to the connection, which holds it; further ones must wait, and not
/// the whole answer be held for as long as the client likes.
#[tokio::test]
async fn a_whole_answer_of_which_a_client_takes_one_byte_is_given_up_over_http2() {
    const DATA: u8 = 0;
    const RST_STREAM: u8 = 3;
    let running = start(Limits { write_timeout: Duration::from_millis(100), ..limits() }, Vec::new(), None);
    let mut socket = TcpStream::connect(running.address).await.unwrap();
    let head = b"\x82\x86\x04\x0d/openapi.json\x01\x09localhost";
    let opening = [
        &b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..],
        // SETTINGS_INITIAL_WINDOW_SIZE is 1.
        b"\0\0\x06\x04\0\0\0\0\0\0\x04\0\0\0\x01",
        // HEADERS of the stream 1: END_STREAM, END_HEADERS.
        &[0, 0, head.len() as u8, 1, 5, 0, 0, 0, 1],
        head,
    ];
    socket.write_all(&opening.concat()).await.unwrap();
    let taken = async {
        let mut taken = 0;
        loop {
            match frame(&mut socket).await {
                (DATA, bytes) => taken += bytes.len(),
                (RST_STREAM, _) => return taken,
                _ => {}
            }
        }
    };
    let taken = tokio::time::timeout(Duration::from_secs(20), taken).await;
    assert_eq!(taken.expect("the answer is held for good"), 1);
}

#[tokio::test]
async fn a_large_whole_answer_arrives_as_it_is_over_both_versions() {
    let running = start(limits(), Vec::new(), None);
    let answered = running.ask(support::get("/openapi.json")).await;
    let request = Request::get("http://localhost/openapi.json").body(Full::default()).unwrap();
    let mut sender = h2(&running).await;
    let response = sender.send_request(request).await.unwrap();
    let length = response.headers()["content-length"].to_str().unwrap().to_owned();
    assert_eq!((answered.header("content-length"), &*length), (Some(&*length), &*answered.body.len().to_string()));
    assert!(answered.body.len() > 50_000, "no large answer");
    assert_eq!(text_of(response).await, answered.body);
}

/// For one event it takes longer than a client may take nothing.
#[tokio::test]
async fn who_reads_a_large_event_little_by_little_is_not_given_up_over_http2() {
    let patience = Duration::from_secs(6);
    let asked = |path: &str, body: String| {
        let request = Request::post(format!("http://localhost{path}")).header("content-type", "application/json");
        request.body(Full::new(Bytes::from(body))).unwrap()
    };
    let mut reading = tokio::task::JoinSet::new();
    for (is_logged, request) in [
        (true, asked("/v1/responses", r#"{"model":"gated","input":"Hello!","stream":true,"store":false}"#.into())),
        (false, asked("/v1/chat/completions", chat_body("gated", r#","stream":true"#))),
    ] {
        let running = start(Limits { write_timeout: patience, ..limits() }, Vec::new(), None);
        let large = "x".repeat(200_000);
        running.gate.send(text(&large)).await.unwrap();
        running.gate.send(support::finish(0)).await.unwrap();
        let address = running.address;
        drop(running.gate);
        let mut client = http2::Builder::new(TokioExecutor::new());
        client.initial_stream_window_size(16 << 10);
        let stream = TcpStream::connect(address).await.unwrap();
        let (mut sender, connection) = client.handshake(TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        let mut response = sender.send_request(request).await.unwrap();
        reading.spawn(async move {
            let (begun, mut taken) = (Instant::now(), Vec::new());
            while let Some(frame) = response.frame().await {
                let frame = frame.unwrap_or_else(|error| panic!("{is_logged}: {error} after {} bytes", taken.len()));
                let piece = frame.into_data().unwrap();
                taken.extend_from_slice(&piece);
                if taken.len() > large.len() {
                    // What says the text once more may come as it likes.
                    continue;
                }
                // Each piece is taken in time, and all of the event is not.
                tokio::time::sleep(patience.mul_f64(1.3 * piece.len() as f64 / large.len() as f64)).await;
            }
            assert!(begun.elapsed() > patience, "it is not taken little by little");
            let taken = String::from_utf8(taken).unwrap();
            assert!(taken.contains(&large), "{is_logged}: {} bytes", taken.len());
            drop((sender, running.server, running.asked));
        });
    }
    reading.join_all().await;
}

#[tokio::test]
async fn a_stream_over_http2_that_waits_for_its_model_is_not_given_up() {
    let mut running = start(Limits { write_timeout: Duration::from_millis(100), ..limits() }, Vec::new(), None);
    let mut sender = h2(&running).await;
    let asked = tokio::spawn(async move { sender.send_request(request("gated", r#","stream":true"#)).await.unwrap() });
    running.asked.recv().await.unwrap();
    running.gate.send(text("one")).await.unwrap();
    let mut response = asked.await.unwrap();
    response.frame().await.unwrap().unwrap();
    tokio::time::sleep(Duration::from_millis(400)).await;
    running.gate.send(text("two")).await.unwrap();
    let second = response.frame().await.unwrap().unwrap().into_data().unwrap();
    assert!(String::from_utf8_lossy(&second).contains("\"two\""));
}

#[tokio::test]
async fn http2_gets_the_same_refusals_and_head_has_no_body() {
    let running = start(limits(), Vec::new(), None);
    let mut sender = h2(&running).await;
    let big = Request::post("http://localhost/v1/chat/completions")
        .header("content-type", "application/json")
        .body(Full::new(Bytes::from(vec![b' '; 2 << 20])))
        .unwrap();
    assert_eq!(sender.send_request(big).await.unwrap().status(), StatusCode::PAYLOAD_TOO_LARGE);
    let missing = sender.send_request(request("missing", "")).await.unwrap();
    assert_eq!(missing.status(), StatusCode::NOT_FOUND);
    let head = Request::head("http://localhost/livez").body(Full::default()).unwrap();
    let head = sender.send_request(head).await.unwrap();
    assert_eq!((head.status(), head.headers()["content-length"].to_str().unwrap()), (StatusCode::OK, "3"));
    assert_eq!(text_of(head).await, "");
}

#[tokio::test]
async fn a_body_that_never_comes_is_told_so_over_http2_and_the_connection_lives() {
    let running = start(Limits { body_timeout: Duration::from_millis(100), ..limits() }, Vec::new(), None);
    let stream = TcpStream::connect(running.address).await.unwrap();
    let (mut sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    // The stream's head does not end it.
    let never = StreamBody::new(futures_util::stream::pending::<Result<Frame<Bytes>, Infallible>>());
    let late = Request::post("http://localhost/v1/chat/completions").header("content-type", "application/json");
    let late = sender.send_request(late.body(BoxBody::new(never)).unwrap()).await.unwrap();
    assert!(late.status() == StatusCode::REQUEST_TIMEOUT && late.headers().contains_key("x-request-id"));
    assert!(text_of(late).await.ends_with(r#""code":"request_timeout"}}"#));
    let next = Request::get("http://localhost/livez").body(BoxBody::new(Full::default())).unwrap();
    assert_eq!(sender.send_request(next).await.unwrap().status(), StatusCode::OK);
}

/// HTTP/2 by itself would answer with the bare status, which nobody finds again.
#[tokio::test]
async fn a_head_that_is_too_long_is_refused_with_a_reason_over_http2_too() {
    let running = start(limits(), Vec::new(), None);
    let mut sender = h2(&running).await;
    let mut ask = async |path: &str, len: usize| {
        let request = Request::get(format!("http://localhost{path}")).header("x", "y".repeat(len));
        let response = sender.send_request(request.body(Full::default()).unwrap()).await.unwrap();
        let id = response.headers().get("x-request-id").cloned();
        (response.status(), id, text_of(response).await)
    };
    for path in ["/livez", "/v1/models", "/nothing"] {
        let (status, id, said) = ask(path, 100_000).await;
        let said: serde_json::Value = serde_json::from_str(&said).unwrap();
        assert_eq!(
            (status, &said["error"]["code"]),
            (StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, &"request_too_large".into())
        );
        assert!(id.is_some(), "{path}: {said}");
    }
    // Beyond what HTTP/2 lets through, it says so itself.
    assert_eq!(ask("/livez", 300_000).await, (StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, None, String::new()));
    assert_eq!(ask("/livez", 60_000).await.0, StatusCode::OK, "the connection lives");
}

fn tls() -> (Tls, CertificateDer<'static>) {
    let certified = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let certificate = certified.cert.der().clone();
    let pem = |label: &str, der: &[u8]| {
        let config = base64(der);
        format!("-----BEGIN {label}-----\n{config}\n-----END {label}-----\n")
    };
    let chain = pem("CERTIFICATE", &certificate);
    let key = pem("PRIVATE KEY", &certified.signing_key.serialize_der());
    (Tls::from_pem(chain.as_bytes(), key.as_bytes(), None).unwrap(), certificate)
}

fn base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for three in bytes.chunks(3) {
        let bits = three.iter().fold(0u32, |bits, byte| bits << 8 | u32::from(*byte)) << (8 * (3 - three.len()));
        let digit = |i: usize| char::from(ALPHABET[(bits >> (18 - 6 * i)) as usize & 63]);
        (0..4).for_each(|i| text.push(if i <= three.len() { digit(i) } else { '=' }));
    }
    text
}

/// A connection over TLS that offers these protocols.
async fn over_tls(
    running: &Running,
    certificate: &CertificateDer<'static>,
    alpn: &[&[u8]],
) -> tokio_rustls::client::TlsStream<TcpStream> {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(certificate.clone()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = alpn.iter().map(|name| name.to_vec()).collect();
    let stream = TcpStream::connect(running.address).await.unwrap();
    let name = ServerName::try_from("localhost").unwrap();
    tokio_rustls::TlsConnector::from(Arc::new(config)).connect(name, stream).await.unwrap()
}

#[tokio::test]
async fn tls_offers_both_versions_by_alpn() {
    let (tls, certificate) = tls();
    let running = start(limits(), Vec::new(), Some(tls));
    for (alpn, http2) in [(&[&b"h2"[..]][..], true), (&[&b"http/1.1"[..]][..], false), (&[][..], false)] {
        let stream = over_tls(&running, &certificate, alpn).await;
        let mut request = request("m", r#","stream":true"#);
        let response = if http2 {
            let (mut sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
            tokio::spawn(connection);
            sender.send_request(request).await.unwrap()
        } else {
            let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.unwrap();
            tokio::spawn(connection);
            request.headers_mut().insert("host", "localhost".parse().unwrap());
            sender.send_request(request).await.unwrap()
        };
        assert_eq!(response.status(), StatusCode::OK);
        assert!(text_of(response).await.ends_with("data: [DONE]\n\n"));
    }
}

#[tokio::test]
async fn who_sends_no_request_is_told_so_through_tls_too() {
    let (tls, certificate) = tls();
    let limits = Limits { header_timeout: Duration::from_secs(4), ..limits() };
    let running = start(limits, Vec::new(), Some(tls));
    for (sent, status, code) in [
        ("GET /li", "408", "request_timeout"),
        ("GET / HTTP/1.1\r\nx: a\r\n b\r\n\r\n", "400", "invalid_http"),
        ("", "", ""),
    ] {
        let mut stream = over_tls(&running, &certificate, &[]).await;
        stream.write_all(sent.as_bytes()).await.unwrap();
        let mut said = Vec::new();
        // A connection that just ends has no last word of TLS either.
        drop(stream.read_to_end(&mut said).await);
        let said = String::from_utf8(said).unwrap();
        assert_eq!(said.split(' ').nth(1).unwrap_or_default(), status, "{said}");
        assert!(said.contains(code) && said.contains("x-request-id: ") != sent.is_empty(), "{said}");
    }
}

#[tokio::test]
async fn plain_text_on_a_tls_port_is_closed() {
    let running = start(limits(), Vec::new(), Some(tls().0));
    let mut client = running.connect().await;
    client.send("GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
    // An alert may come first; then the end.
    let mut rest = Vec::new();
    drop(tokio::io::AsyncReadExt::read_to_end(&mut client.stream, &mut rest).await);
    assert!(!rest.starts_with(b"HTTP"));
}
