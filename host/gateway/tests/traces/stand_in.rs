//! Servers that stand in for a collector and for upstreams.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::Duration;

/// Takes every request, answers each with `answer`, and hands on head and body.
pub fn taking(answer: &'static str) -> (String, Receiver<(String, Vec<u8>)>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap().to_string();
    let (sender, receiver) = sync_channel(256);
    std::thread::spawn(move || {
        for socket in listener.incoming() {
            let mut reader = BufReader::new(socket.unwrap());
            sender.send(request(&mut reader)).unwrap();
            let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length:";
            write!(reader.get_mut(), "{head} {}\r\n\r\n{answer}", answer.len()).unwrap();
        }
    });
    (addr, receiver)
}

/// From the head of an answer of [`streaming`] to its last event, at least.
pub const LASTS: Duration = Duration::from_millis(400);

const HEAD: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n";
const WORD: &str = r#""delta":{"role":"assistant","content":"Here."},"finish_reason":null"#;
const END: &str = r#""delta":{},"finish_reason":"stop""#;

/// An upstream that begins each answer at once, whatever else it is asked, and takes its time to end it.
pub fn streaming() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for socket in listener.incoming() {
            let mut reader = BufReader::new(socket.unwrap());
            std::thread::spawn(move || {
                request(&mut reader);
                let _ = write!(reader.get_mut(), "{HEAD}{}", event(WORD));
                std::thread::sleep(LASTS);
                // Whoever wanted to know something else may have left.
                let _ = write!(reader.get_mut(), "{}data: [DONE]\n\n", event(END));
            });
        }
    });
    addr
}

fn event(choice: &str) -> String {
    let head = r#""id":"x","object":"chat.completion.chunk","created":1,"model":"m""#;
    format!("data: {{{head},\"choices\":[{{\"index\":0,{choice}}}]}}\n\n")
}

/// Head and body.
fn request(reader: &mut BufReader<TcpStream>) -> (String, Vec<u8>) {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") && reader.read_line(&mut head).unwrap() > 0 {}
    let head = head.to_ascii_lowercase();
    let length = head.split("content-length: ").nth(1).and_then(|rest| rest.lines().next());
    let mut body = vec![0; length.map_or(0, |length| length.trim().parse().unwrap())];
    reader.read_exact(&mut body).unwrap();
    (head, body)
}
