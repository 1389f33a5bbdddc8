//! Streams that are cut anywhere and gone on with: nothing is lost, nothing comes twice.

use crate::conversations::Keeping;
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;
use tidegate_tests::{BARE, Gateway, ask, with_model};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// What one connection said before it was cut: the stream's id, and the whole events with theirs.
struct Heard {
    stream_id: Option<String>,
    events: Vec<(u64, String)>,
}

/// Sends a request, reads at most `cut` bytes, and goes away.
async fn hear(gateway: &Gateway, request: &str, cut: usize) -> Heard {
    let mut socket = TcpStream::connect(gateway.addr).await.unwrap();
    socket.write_all(request.as_bytes()).await.unwrap();
    let mut bytes = Vec::new();
    while bytes.len() < cut {
        let mut piece = vec![0; (cut - bytes.len()).min(4096)];
        match socket.read(&mut piece).await.unwrap() {
            0 => break,
            read => bytes.extend_from_slice(&piece[..read]),
        }
    }
    let text = String::from_utf8_lossy(&bytes).into_owned();
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    assert!(head.is_empty() || head.starts_with("HTTP/1.1 200") || text.len() < 15, "{text}");
    let whole_head = text.contains("\r\n\r\n");
    let stream_id = head.lines().find_map(|line| line.strip_prefix("x-tidegate-stream-id: ")).filter(|_| whole_head);
    Heard { stream_id: stream_id.map(str::to_owned), events: whole_events(&unchunked(body)) }
}

/// The bytes of a chunked body, as far as they came.
fn unchunked(mut body: &str) -> String {
    let mut out = String::new();
    while let Some((size, rest)) = body.split_once("\r\n") {
        let Ok(size) = usize::from_str_radix(size, 16) else { break };
        out.push_str(rest.get(..size).unwrap_or(rest));
        body = rest.get(size + 2..).unwrap_or("");
    }
    out
}

fn whole_events(body: &str) -> Vec<(u64, String)> {
    let (whole, _cut) = body.rsplit_once("\n\n").unwrap_or(("", body));
    let events = whole.split("\n\n").filter(|event| !event.is_empty() && !event.starts_with(':'));
    events
        .map(|event| {
            let (id, data) = event.split_once('\n').unwrap();
            (id.strip_prefix("id: ").unwrap().parse().unwrap(), data.strip_prefix("data: ").unwrap().to_owned())
        })
        .collect()
}

fn begin(seed: u64) -> String {
    let mut request = with_model(ask("Tell me a story about a lighthouse."));
    request["stream"] = true.into();
    request["max_tokens"] = 60.into();
    request["seed"] = seed.into();
    request["logit_bias"] = serde_json::json!({"2": -100});
    let body = request.to_string();
    format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n\
         x-tidegate-resumable: true\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
}

fn go_on(stream_id: &str, seen: u64) -> String {
    format!(
        "GET /v1/streams/{stream_id} HTTP/1.1\r\nhost: 127.0.0.1\r\nlast-event-id: {seen}\r\nconnection: close\r\n\r\n"
    )
}

/// The text that the events say, without what differs between two requests of the same words.
fn said(events: &[(u64, String)]) -> String {
    let text = |data: &String| {
        let event: serde_json::Value = serde_json::from_str(data).unwrap_or_default();
        event["choices"][0]["delta"]["content"].as_str().unwrap_or_default().to_owned()
    };
    events.iter().map(|(_, data)| text(data)).collect()
}

/// Reads one stream over connections that are cut after these many bytes, then to its end.
async fn read_in_pieces(gateway: &Gateway, seed: u64, cuts: &[usize]) -> Vec<(u64, String)> {
    let first = hear(gateway, &begin(seed), 1200 + cuts[0]).await;
    let stream_id = first.stream_id.expect("the head came whole");
    let mut events = first.events;
    for cut in cuts[1..].iter().copied().chain([usize::MAX]) {
        let seen = events.last().map_or(0, |(id, _)| *id);
        events.extend(hear(gateway, &go_on(&stream_id, seen), cut).await.events);
    }
    events
}

#[tokio::test(flavor = "multi_thread")]
async fn cut_at_any_byte_a_stream_goes_on_where_it_was() {
    let gateway = Arc::new(Gateway::start(BARE).await);
    let reading: Vec<_> = (0..24_u64)
        .map(|i| {
            let gateway = Arc::clone(&gateway);
            // Spread over all bytes of an event, and of the frames around it; the same in each run.
            let cuts: Vec<usize> = (0..5).map(|k| ((i * 5 + k) * 2_654_435_761 % 900) as usize).collect();
            tokio::spawn(async move {
                let pieces = read_in_pieces(&gateway, i % 6, &cuts).await;
                let whole = read_in_pieces(&gateway, i % 6, &[usize::MAX >> 1]).await;
                (cuts, pieces, whole)
            })
        })
        .collect();
    for reading in reading {
        let (cuts, pieces, whole) = reading.await.unwrap();
        let numbers: Vec<u64> = pieces.iter().map(|(id, _)| *id).collect();
        assert_eq!(numbers, (1..=numbers.len() as u64).collect::<Vec<_>>(), "cut at {cuts:?}");
        assert_eq!(pieces.last().unwrap().1, "[DONE]");
        assert_eq!(said(&pieces), said(&whole), "cut at {cuts:?}");
        assert!(said(&whole).len() > 60);
    }
}

/// The generation went on while nobody read.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_left_comes_back_to_a_whole_answer() {
    let gateway = Gateway::start(BARE).await;
    let first = hear(&gateway, &begin(3), 1400).await;
    let stream_id = first.stream_id.expect("the head came whole");
    let late = loop {
        let rest = hear(&gateway, &go_on(&stream_id, 0), usize::MAX).await;
        if rest.events.last().is_some_and(|(_, data)| data == "[DONE]") {
            break rest.events;
        }
    };
    assert!(late.len() > 60, "{} events", late.len());
    assert!(said(&late).starts_with(&said(&first.events)));
}

/// A request whose body comes while the server stops: another gateway can still take it.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_new_is_begun_in_the_background_while_the_server_stops() {
    let Keeping { gateway, folder: _folder, .. } = Keeping::start("[pipeline]\n").await;
    let body = json!({"model": "tidegate-starter", "input": "Hello!", "background": true}).to_string();
    let mut socket = TcpStream::connect(gateway.addr).await.unwrap();
    let head = format!(
        "POST /v1/responses HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\
         expect: 100-continue\r\n\r\n",
        body.len()
    );
    socket.write_all(head.as_bytes()).await.unwrap();
    // It is in work then: a connection without a request is closed at once.
    let mut goes_on = [0; "HTTP/1.1 100 Continue\r\n\r\n".len()];
    socket.read_exact(&mut goes_on).await.unwrap();
    assert!(goes_on.starts_with(b"HTTP/1.1 100"), "{}", String::from_utf8_lossy(&goes_on));
    socket.write_all(&body.as_bytes()[..10]).await.unwrap();
    let (address, stop) = (gateway.addr, tokio::spawn(gateway.running.stop(Duration::from_secs(20))));
    while TcpStream::connect(address).await.is_ok() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    socket.write_all(&body.as_bytes()[10..]).await.unwrap();
    let mut answer = Vec::new();
    socket.read_to_end(&mut answer).await.unwrap();
    assert!(answer.starts_with(b"HTTP/1.1 503"), "{}", String::from_utf8_lossy(&answer));
    stop.await.unwrap();
}
