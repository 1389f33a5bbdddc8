//! Two programs that share one Redis, and one of them is killed.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

#[path = "../../../tests/src/redis.rs"]
#[allow(dead_code, reason = "each file of tests takes what it needs of it")]
mod redis;
mod server;

use redis::Redis;
use serde_json::json;
use server::Server;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

const LEASE_MS: u64 = 4000;

/// An upstream that says some words and then nothing: its answer does not end before it shall.
fn endless() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for socket in listener.incoming() {
            let mut socket = socket.unwrap();
            std::thread::spawn(move || {
                let mut piece = [0; 4096];
                let _ = socket.read(&mut piece);
                let word = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"word \"}}]}\n\n";
                let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n";
                let _ = socket.write_all((head.to_owned() + &word.repeat(5)).as_bytes());
                // Until its reader is gone.
                while socket.read(&mut piece).is_ok_and(|read| read > 0) {}
            });
        }
    });
    addr
}

impl Server {
    fn start(redis: &Redis, upstream: SocketAddr, folder: &std::path::Path) -> Self {
        let config = folder.join("tidegate.toml");
        let (url, hash, other) = (redis.url(), blake3::hash(b"tg-ann"), blake3::hash(b"tg-prometheus"));
        let text = format!(
            "[server]\nlisten = \"127.0.0.1:0\"\n[pipeline]\n\
             [[models]]\nname = \"endless\"\nupstream = \"http://{upstream}/v1\"\n\
             [shared]\nurl = \"{url}\"\nlease_ms = {LEASE_MS}\ndeadline_ms = 1000\n\
             [[keys]]\nname = \"ann\"\nhash = \"blake3:{hash}\"\nlimits = {{ concurrency = 1 }}\n\
             [[keys]]\nname = \"prometheus\"\nhash = \"blake3:{other}\"\nendpoints = [\"metrics\"]\n"
        );
        std::fs::write(&config, text).unwrap();
        Self::with(&config)
    }

    fn send(&self, request: &str) -> TcpStream {
        let mut socket = TcpStream::connect(&self.addr).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        socket.write_all(request.as_bytes()).unwrap();
        socket
    }

    /// Whether it has found the server that counts.
    fn counts_with_others(&self) -> bool {
        let head = "GET /metrics HTTP/1.1\r\nhost: a\r\nauthorization: Bearer tg-prometheus";
        read(&mut self.send(&format!("{head}\r\nconnection: close\r\n\r\n")), |_| false)
            .contains("\ntidegate_shared_up 1\n")
    }

    /// A stream that goes on.
    fn begin(&self) -> TcpStream {
        let body = json!({"model": "endless", "stream": true,
            "messages": [{"role": "user", "content": "Tell me a story."}]})
        .to_string();
        self.send(&format!(
            "POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\nauthorization: Bearer tg-ann\r\n\
             content-type: application/json\r\nx-tidegate-resumable: true\r\nconnection: close\r\n\
             content-length: {}\r\n\r\n{body}",
            body.len()
        ))
    }

    fn cancel(&self, stream: &str) -> TcpStream {
        self.send(&format!(
            "POST /v1/streams/{stream}/cancel HTTP/1.1\r\nhost: a\r\nauthorization: Bearer tg-ann\r\n\
             content-length: 0\r\nconnection: close\r\n\r\n"
        ))
    }

    fn go_on(&self, stream: &str) -> TcpStream {
        self.send(&format!(
            "GET /v1/streams/{stream} HTTP/1.1\r\nhost: a\r\nauthorization: Bearer tg-ann\r\nconnection: close\r\n\r\n"
        ))
    }
}

/// Reads until `enough`, or the end.
fn read(socket: &mut TcpStream, enough: impl Fn(&str) -> bool) -> String {
    let (mut heard, mut piece) = (Vec::new(), [0; 4096]);
    loop {
        let read = socket.read(&mut piece).unwrap();
        heard.extend_from_slice(&piece[..read]);
        let text = String::from_utf8_lossy(&heard).into_owned();
        if read == 0 || enough(&text) {
            return text;
        }
    }
}

#[test]
fn what_a_killed_gateway_held_is_free_and_its_stream_has_an_end() {
    let Some(redis) = Redis::start() else { return };
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let upstream = endless();
    let [mut one, two] = [0, 1].map(|i| Server::start(&redis, upstream, folders[i].path()));
    let started = Instant::now();
    // Both have to find the server first.
    while !(one.counts_with_others() && two.counts_with_others()) {
        assert!(started.elapsed() < Duration::from_secs(60), "the server is not found");
        std::thread::sleep(Duration::from_millis(50));
    }
    let (stream, running) = loop {
        let mut running = one.begin();
        let heard = read(&mut running, |heard| heard.contains("id: 3\n") || heard.contains("HTTP/1.1 429"));
        let stream = heard.lines().find_map(|line| line.strip_prefix("x-tidegate-stream-id: ")).map(str::to_owned);
        // It is copied to the server behind its reader.
        std::thread::sleep(Duration::from_millis(100));
        let keys = redis.ask("KEYS *");
        match stream {
            Some(stream) if keys.contains(&stream) && keys.contains(":running:key:ann") => break (stream, running),
            Some(stream) => drop(read(&mut one.cancel(&stream), |_| false)),
            None => {}
        }
        assert!(started.elapsed() < Duration::from_secs(60), "{heard}");
    };
    let mut elsewhere = two.go_on(&stream);
    read(&mut elsewhere, |heard| heard.contains("id: 3\n"));
    assert!(read(&mut two.begin(), |_| false).contains("HTTP/1.1 429"), "the place is taken by a request elsewhere");
    one.child.kill().unwrap();
    one.child.wait().unwrap();
    let killed = Instant::now();
    drop(running);
    let rest = read(&mut elsewhere, |_| false);
    assert!(rest.contains("\"code\":\"stream_lost\"") && !rest.contains("[DONE]"), "{rest}");
    let late = read(&mut two.go_on(&stream), |_| false);
    assert!(late.contains("id: 3\n") && late.contains("\"code\":\"stream_lost\""), "{late}");
    while read(&mut two.begin(), |heard| heard.contains("\r\n\r\n")).contains("HTTP/1.1 429") {
        std::thread::sleep(Duration::from_millis(50));
        assert!(killed.elapsed() < Duration::from_secs(20), "its place is taken for ever");
    }
}
