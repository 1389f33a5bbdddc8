//! The program itself: what it prints, what it refuses, how it stops, and that its engine may die.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod check;
mod commands;
mod engine;
mod hangup;
mod memory;
mod model;
#[path = "../server/signal.rs"]
mod signal;
mod start;

use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread::JoinHandle;
use std::time::Duration;

const PROGRAM: &str = env!("CARGO_BIN_EXE_tidegate");

fn tidegate(args: &[&str]) -> Command {
    let mut command = Command::new(PROGRAM);
    command.args(args).env("XDG_CACHE_HOME", std::env::temp_dir().join("tidegate-tests-cache"));
    command
}

/// Runs to the end; gives the exit status and everything it said.
fn run(args: &[&str]) -> (bool, String) {
    let Output { status, stdout, stderr } = tidegate(args).output().unwrap();
    (status.success(), String::from_utf8_lossy(&stdout).into_owned() + &String::from_utf8_lossy(&stderr))
}

/// A running server; killed when dropped.
struct Server {
    child: Child,
    facts: Vec<String>,
    addr: String,
    /// Reads what it says later, which must not block it.
    later: Option<JoinHandle<Vec<String>>>,
}

impl Server {
    fn start(args: &[&str]) -> Self {
        Self::run(&mut tidegate(args))
    }

    fn run(command: &mut Command) -> Self {
        Self::run_logging_to(Stdio::null(), command)
    }

    fn run_logging_to(log: impl Into<Stdio>, command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(log).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut facts = Vec::new();
        loop {
            let line = lines.next().expect("the server ended").unwrap();
            let last = line.starts_with("try ");
            facts.push(line);
            if last {
                break;
            }
        }
        let later = std::thread::spawn(move || lines.map_while(Result::ok).collect());
        let listening = facts.iter().find(|fact| fact.starts_with("listening ")).unwrap();
        let addr = listening.split("//").nth(1).unwrap().split(' ').next().unwrap().to_owned();
        Self { child, facts, addr, later: Some(later) }
    }

    /// Waits for its end; gives what it said after its facts.
    fn last_words(&mut self) -> Vec<String> {
        assert!(self.child.wait().unwrap().success());
        self.later.take().expect("asked once").join().unwrap()
    }

    /// Sends a chat; the socket has the answer to read.
    fn ask(&self, question: &str, more: Value) -> TcpStream {
        let mut body = json!({"model": "tidegate-starter", "messages": [{"role": "user", "content": question}]});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        self.send("/v1/chat/completions", &body)
    }

    fn send(&self, path: &str, body: &Value) -> TcpStream {
        let body = body.to_string();
        self.request(&format!("POST {path}"), &format!("content-length: {}\r\n\r\n{body}", body.len()))
    }

    fn get(&self, path: &str) -> TcpStream {
        self.request(&format!("GET {path}"), "\r\n")
    }

    fn request(&self, what: &str, rest: &str) -> TcpStream {
        let mut socket = TcpStream::connect(&self.addr).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
        let common = format!("host: {}\r\ncontent-type: application/json\r\nconnection: close", self.addr);
        socket.write_all(format!("{what} HTTP/1.1\r\n{common}\r\n{rest}").as_bytes()).unwrap();
        socket
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn read_all(mut socket: TcpStream) -> String {
    let mut text = String::new();
    socket.read_to_string(&mut text).unwrap();
    text
}

/// The text of a streamed answer.
fn streamed_text(answer: &str) -> String {
    assert!(answer.contains("data: [DONE]"), "{answer}");
    let events = answer.lines().filter_map(|line| line.strip_prefix("data: ")).filter(|data| *data != "[DONE]");
    events
        .map(|event| serde_json::from_str::<Value>(event).unwrap())
        .filter_map(|event| event["choices"][0]["delta"]["content"].as_str().map(str::to_owned))
        .collect()
}

const LONG: &str = r#"{"stream": true, "max_tokens": 700, "logit_bias": {"2": -100}, "seed": 5, "temperature": 0.9}"#;

fn write(folder: &Path, name: &str, text: &str) -> PathBuf {
    let path = folder.join(name);
    std::fs::write(&path, text).unwrap();
    path
}

/// A model of the tests.
fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/models").join(name)
}
