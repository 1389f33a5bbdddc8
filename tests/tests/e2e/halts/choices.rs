//! Answers of several choices of which a guard ends one: the others go on, and once they have ended nobody waits for the rest of
//! that one, which an upstream cannot be told to leave out.

use super::blocks;
use crate::talk::until;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use tidegate_tests::{Gateway, ask, events, finish_reason, joined, with_model};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

/// An event of one choice: what it says, or that it has ended.
fn said(choice: u64, text: Option<&str>) -> String {
    let (delta, finish) = match text {
        Some(text) => (json!({"content": text}), Value::Null),
        None => (json!({}), "stop".into()),
    };
    let choices = json!([{"index": choice, "delta": delta, "finish_reason": finish}]);
    event(&json!({"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": choices}))
}

fn event(event: &Value) -> String {
    format!("data: {event}\n\n")
}

/// A server that says `first` and then leaves its answer open: either it says the `rest`, or it breaks off where nobody has
/// left it for ten seconds.
struct Upstream {
    model: String,
    /// How often somebody has left it.
    left: Arc<Semaphore>,
}

impl Upstream {
    async fn start(first: &[(u64, Option<&str>)], rest: Option<String>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let model = format!(
            "[[models]]\nname = \"tidegate-starter\"\nupstream = \"http://{}/v1\"\n",
            listener.local_addr().unwrap()
        );
        let first: String = first.iter().map(|(choice, text)| said(*choice, *text)).collect();
        let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n";
        let (first, left) = (format!("{head}{first}"), Arc::new(Semaphore::new(0)));
        let leaving = Arc::clone(&left);
        tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                tokio::spawn(say(socket, first.clone(), rest.clone(), Arc::clone(&leaving)));
            }
        });
        Self { model, left }
    }
}

async fn say(mut socket: TcpStream, first: String, rest: Option<String>, left: Arc<Semaphore>) {
    let _ = socket.read(&mut vec![0; 65536]).await;
    let _ = socket.write_all(first.as_bytes()).await;
    if let Some(rest) = rest {
        // What comes later is not there when the first is read.
        tokio::time::sleep(Duration::from_millis(300)).await;
        let _ = socket.write_all(rest.as_bytes()).await;
        return;
    }
    let mut end = [0];
    tokio::select! {
        _ = socket.read(&mut end) => left.add_permits(1),
        () = tokio::time::sleep(Duration::from_secs(10)) => {}
    }
}

/// What a client has of two choices: their texts, why they ended, and the tokens that it pays for.
async fn read(gateway: &Gateway, stream: bool) -> ([String; 2], [String; 2], [u64; 2]) {
    let mut request = with_model(ask("Hello!"));
    (request["n"], request["stream"]) = (2.into(), stream.into());
    if stream {
        request["stream_options"] = json!({"include_usage": true});
    }
    let answer = gateway.post("/v1/chat/completions", &request).await;
    assert_eq!(answer.status, 200, "{:?}", answer.body);
    let tokens = |usage: &Value| ["prompt_tokens", "completion_tokens"].map(|of| usage[of].as_u64().unwrap());
    if !stream {
        let body = answer.json();
        let choice = |of: usize| &body["choices"].as_array().unwrap()[of];
        let text = |of| choice(of)["message"]["content"].as_str().unwrap_or_default().to_owned();
        let finish = |of| choice(of)["finish_reason"].as_str().unwrap().to_owned();
        return ([0, 1].map(text), [0, 1].map(finish), tokens(&body["usage"]));
    }
    let events = events(&answer.body);
    assert!(events.iter().all(|event| event["error"].is_null()), "{events:?}");
    let finish = |of| finish_reason(&events, of).as_str().unwrap().to_owned();
    ([0, 1].map(|of| joined(&events, of)), [0, 1].map(finish), tokens(&events.last().unwrap()["usage"]))
}

/// So long that guards are asked about it at once, also where the client reads no stream.
const HALTED: Option<&str> = Some(concat!(
    "All about herons, of which much is to be said: that they stand in water, on one leg or on two, and wait, and that nobody ",
    "who has seen one wait has ever had the patience to find out for what it does; that they nest in trees, many of them in one, ",
    "and that other birds do well to leave those trees to them."
));
const FINE: Option<&str> = Some("Fine.");

/// Whichever ends first, and whichever of them it is.
#[tokio::test(flavor = "multi_thread")]
async fn nobody_waits_for_the_rest_of_a_choice_that_a_guard_has_halted() {
    for (halted, said) in [
        (0, [(0, HALTED), (1, FINE), (1, None)]),
        (0, [(1, FINE), (1, None), (0, HALTED)]),
        (1, [(1, HALTED), (0, FINE), (0, None)]),
        (1, [(0, FINE), (0, None), (1, HALTED)]),
    ] {
        let upstream = Upstream::start(&said, None).await;
        let gateway = Gateway::start(&(upstream.model + &blocks("about"))).await;
        for stream in [true, false] {
            let (mut texts, mut finish) = (["Fine.", "Fine."], ["stop", "stop"]);
            (texts[halted], finish[halted]) = ("All ", "content_filter");
            let (read, ended, [_, made]) = read(&gateway, stream).await;
            assert_eq!((read.each_ref().map(String::as_str), ended.each_ref().map(String::as_str)), (texts, finish));
            let estimated = HALTED.unwrap().len().div_ceil(4) + 1;
            assert_eq!(made, estimated as u64, "{said:?}, stream: {stream}");
        }
        until("both are left", async || (upstream.left.available_permits() == 2).then_some(())).await;
    }
}

/// Where the server has ended it too, it says next what all of it cost.
#[tokio::test(flavor = "multi_thread")]
async fn where_a_halted_choice_has_ended_by_itself_the_answer_costs_what_its_upstream_says() {
    let usage = json!({"prompt_tokens": 70, "completion_tokens": 900, "total_tokens": 970});
    let told = event(&json!({"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [],
        "usage": usage}));
    let said = [(0, HALTED), (0, Some("and so on")), (0, None), (1, FINE), (1, None)];
    let upstream = Upstream::start(&said, Some(format!("{told}data: [DONE]\n\n"))).await;
    let gateway = Gateway::start(&(upstream.model + &blocks("about"))).await;
    for stream in [true, false] {
        let (texts, _, tokens) = read(&gateway, stream).await;
        assert_eq!((texts.each_ref().map(String::as_str), tokens), (["All ", "Fine."], [70, 900]), "stream: {stream}");
    }
}
