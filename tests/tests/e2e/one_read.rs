//! Events that come together are judged together, and leave as they came.

use crate::halts::{blocks, stage};
use crate::together::watches;
use http_body_util::BodyExt;
use serde_json::{Value, json};
use std::sync::Arc;
use tidegate_tests::{Gateway, ask, events, finish_reason, joined, with_model};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

/// A server that streams events of these texts to whoever asks, those of each read in one write. The first goes at once,
/// each other, and the end, when it is let.
pub async fn model(name: &str, reads: Vec<Vec<String>>, let_go: &Arc<Semaphore>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let chunk = |delta: Value, finish: Value| {
        let choices = json!([{"index": 0, "delta": delta, "finish_reason": finish}]);
        let event =
            json!({"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": choices});
        format!("data: {event}\n\n")
    };
    let said = |texts: &Vec<String>| texts.iter().map(|text| chunk(json!({"content": text}), Value::Null)).collect();
    let mut writes: Vec<String> = reads.iter().map(said).collect();
    writes[0].insert_str(0, "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n");
    writes.push(format!("{}data: [DONE]\n\n", chunk(json!({}), "stop".into())));
    let let_go = Arc::clone(let_go);
    tokio::spawn(async move {
        while let Ok((mut socket, _)) = listener.accept().await {
            let _ = socket.read(&mut vec![0; 65536]).await;
            for (idx, write) in writes.iter().enumerate() {
                if idx > 0 {
                    let_go.acquire().await.unwrap().forget();
                }
                let _ = socket.write_all(write.as_bytes()).await;
            }
        }
    });
    format!("[[models]]\nname = \"{name}\"\nupstream = \"http://{address}/v1\"\n")
}

/// The texts of the events that have come so far.
pub fn texts(body: &[u8]) -> Vec<String> {
    let events = std::str::from_utf8(body).unwrap().split("\n\n").filter_map(|event| event.strip_prefix("data: "));
    let events = events.filter_map(|event| serde_json::from_str::<Value>(event).ok());
    let text = |event: Value| Some(event["choices"][0]["delta"]["content"].as_str()?.to_owned());
    events.filter_map(text).filter(|text| !text.is_empty()).collect()
}

async fn calls(gateway: &Gateway, plugin: &str) -> Option<u64> {
    let metrics = String::from_utf8(gateway.get("/metrics").await.body.to_vec()).unwrap();
    let figure = format!("tidegate_plugin_call_seconds_count{{plugin=\"{plugin}\",stage=\"stream-guard\"}} ");
    metrics.lines().find_map(|line| line.strip_prefix(&figure)?.parse().ok())
}

#[tokio::test(flavor = "multi_thread")]
async fn five_events_of_one_read_are_one_call_and_five_events() {
    let reads = [["Two ", "events."].as_slice(), &["Then ", "fi", "ve", " of ", "them."]];
    let reads = reads.map(|read| read.iter().map(|text| (*text).to_owned()).collect::<Vec<String>>());
    let let_go = Arc::new(Semaphore::new(0));
    let model = model("tidegate-starter", reads.to_vec(), &let_go).await;
    let gateway = Gateway::start(&format!("{model}{}", watches("one-read", ""))).await;
    let mut request = with_model(ask("Hello!"));
    request["stream"] = true.into();
    let mut body = gateway.send(gateway.json_request("/v1/chat/completions", &request)).await.into_body();
    let (mut sent, mut seen) = (Vec::new(), Vec::new());
    for read in reads {
        sent.extend(read);
        while texts(&seen).len() < sent.len() {
            seen.extend_from_slice(&body.frame().await.unwrap().unwrap().into_data().unwrap());
        }
        let_go.add_permits(1);
    }
    seen.extend_from_slice(&body.collect().await.unwrap().to_bytes());
    assert_eq!(texts(&seen), sent);
    assert_eq!(finish_reason(&events(&seen), 0), "stop");
    // Of the first read each alone, since none had come together before, and the end.
    assert_eq!(calls(&gateway, "one-read").await, Some(2 + 1 + 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn however_events_come_together_a_client_reads_the_same() {
    const SAID: &str = "Write to john@example.com about secretword.";
    let let_go = Arc::new(Semaphore::new(10_000));
    let mut models = String::new();
    let mut names = Vec::new();
    for (len, together) in [(1, 1), (1, 3), (1, 40), (3, 2), (3, 40), (11, 40)] {
        let pieces = SAID.as_bytes().chunks(len).map(|piece| String::from_utf8(piece.to_vec()).unwrap());
        let reads = pieces.collect::<Vec<String>>().chunks(together).map(<[String]>::to_vec).collect();
        let name = format!("by-{len}-{together}");
        models.push_str(&model(&name, reads, &let_go).await);
        names.push(name);
    }
    for (guard, expected, finish) in [
        (stage("pii-guard", ""), "Write to [email] about secretword.", "stop"),
        (blocks("secretword"), "Write to john@example.com about ", "content_filter"),
    ] {
        let gateway = Gateway::start(&format!("{models}{guard}")).await;
        for name in &names {
            let mut request = ask("Hello!");
            request["model"] = name.as_str().into();
            let events = gateway.stream(request).await;
            assert_eq!((joined(&events, 0).as_str(), finish_reason(&events, 0)), (expected, finish.into()), "{name}");
        }
    }
}
