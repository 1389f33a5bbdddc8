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
use std::net::TcpStream;
use std::time::{Duration, Instant};

const LEASE_MS: u64 = 4000;

impl Server {
    fn start(redis: &Redis, folder: &std::path::Path) -> Self {
        let config = folder.join("tidegate.toml");
        let (url, hash) = (redis.url(), blake3::hash(b"tg-ann"));
        let text = format!(
            "[server]\nlisten = \"127.0.0.1:0\"\n[pipeline]\n[engine]\nkv_cache_mib = 16\n\
             [shared]\nurl = \"{url}\"\nlease_ms = {LEASE_MS}\ndeadline_ms = 1000\n\
             [[keys]]\nname = \"ann\"\nhash = \"blake3:{hash}\"\nlimits = {{ concurrency = 1 }}\n"
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

    /// A stream that takes a while.
    fn begin(&self) -> TcpStream {
        let body = json!({"model": "tidegate-starter", "stream": true, "max_tokens": 900, "logit_bias": {"2": -100},
            "messages": [{"role": "user", "content": "Tell me a story."}]})
        .to_string();
        self.send(&format!(
            "POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\nauthorization: Bearer tg-ann\r\n\
             content-type: application/json\r\nx-tidegate-resumable: true\r\nconnection: close\r\n\
             content-length: {}\r\n\r\n{body}",
            body.len()
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
    let [mut one, two] = [0, 1].map(|i| Server::start(&redis, folders[i].path()));
    let started = Instant::now();
    let (stream, running) = loop {
        let mut running = one.begin();
        let heard = read(&mut running, |heard| heard.contains("id: 3\n") || heard.contains("HTTP/1.1 429"));
        let stream = heard.lines().find_map(|line| line.strip_prefix("x-tidegate-stream-id: ")).map(str::to_owned);
        // Both have to find the server first.
        let known = stream.as_ref().is_some_and(|stream| redis.ask("KEYS *").contains(stream.as_str()));
        if let (Some(stream), true) = (stream, known && redis.ask("KEYS *").contains(":running:key:ann")) {
            break (stream, running);
        }
        assert!(started.elapsed() < Duration::from_secs(30), "{heard}");
        std::thread::sleep(Duration::from_millis(100));
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
