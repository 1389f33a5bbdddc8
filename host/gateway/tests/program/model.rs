//! A model behind HTTP for the program to ask: it streams the first piece of its answer, and the rest once the test says so.

use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

pub struct Model {
    /// Its origin.
    pub url: String,
    go_on: SyncSender<()>,
}

impl Model {
    /// Answers one request; its end, too, comes when this is dropped.
    pub fn start(first: &str, rest: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (go_on, told) = sync_channel(1);
        let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n";
        let begin = format!("{head}{}", event(json!({"content": first}), Value::Null));
        let end = [event(json!({"content": rest}), Value::Null), event(json!({}), "stop".into())].concat();
        std::thread::spawn(move || {
            let (mut socket, _) = listener.accept().unwrap();
            read_request(&socket);
            socket.write_all(begin.as_bytes()).unwrap();
            if told.recv().is_ok() {
                socket.write_all(format!("{end}data: [DONE]\n\n").as_bytes()).unwrap();
            }
        });
        Self { url, go_on }
    }

    pub fn go_on(&self) {
        self.go_on.send(()).unwrap();
    }
}

/// Answers each of so many requests with a thought and a text. Gives its origin, and the requests' bodies as they come.
pub fn thinker(requests: usize, thought: &str, text: &str, finish: &str) -> (String, Receiver<Value>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (tell, told) = sync_channel(requests);
    let events = [
        event(json!({"reasoning_content": thought}), Value::Null),
        event(json!({"content": text}), Value::Null),
        event(json!({}), finish.into()),
    ];
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n";
    let answer = format!("{head}{}data: [DONE]\n\n", events.concat());
    std::thread::spawn(move || {
        for _ in 0..requests {
            let (mut socket, _) = listener.accept().unwrap();
            tell.send(serde_json::from_slice(&read_request(&socket)).unwrap()).unwrap();
            socket.write_all(answer.as_bytes()).unwrap();
        }
    });
    (url, told)
}

fn event(delta: Value, finish: Value) -> String {
    let choices = json!([{"index": 0, "delta": delta, "finish_reason": finish}]);
    let event = json!({"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": choices});
    format!("data: {event}\n\n")
}

/// The body, of a request that is read whole: a socket that is closed with something unread loses what was written.
fn read_request(socket: &TcpStream) -> Vec<u8> {
    let mut lines = BufReader::new(socket);
    let mut len = 0;
    loop {
        let mut line = String::new();
        lines.read_line(&mut line).unwrap();
        let line = line.trim_end().to_ascii_lowercase();
        if let Some(bytes) = line.strip_prefix("content-length:") {
            len = bytes.trim().parse().unwrap();
        }
        if line.is_empty() {
            break;
        }
    }
    let mut body = vec![0; len];
    lines.read_exact(&mut body).unwrap();
    body
}
