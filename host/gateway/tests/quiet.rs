//! What callers write is in no log, whatever is logged; and of who wants nothing kept it is in no file. What is in the log
//! are the calls of plugins, as spans of their request.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};

const CANARY: &str = "canary9c41d7";

/// Sends a request; gives the answer.
fn send(addr: &str, path: &str, id: &str, body: &str) -> String {
    let mut socket = TcpStream::connect(addr).unwrap();
    let request = format!(
        "POST {path} HTTP/1.1\r\nhost: {addr}\r\nconnection: close\r\nx-request-id: {id}\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    socket.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).unwrap();
    answer
}

fn in_files(folder: &Path, what: &str) -> usize {
    let in_one = |path: &Path| match path.is_dir() {
        true => in_files(path, what),
        false => std::fs::read(path).unwrap().windows(what.len()).filter(|found| *found == what.as_bytes()).count(),
    };
    std::fs::read_dir(folder).unwrap().map(|entry| in_one(&entry.unwrap().path())).sum()
}

#[test]
fn what_callers_write_is_in_no_log_and_unkept_in_no_file() {
    let folder = tempfile::tempdir().unwrap();
    let config = "[server]\nlisten = \"127.0.0.1:0\"\n[store]\npath = \"data\"\n[tenants.local]\nzero_retention = true\n\
                  [[pipeline.stage]]\nplugin = \"pii-guard\"\n";
    std::fs::write(folder.path().join("tidegate.toml"), config).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    command.args(["serve", "--config"]).arg(folder.path().join("tidegate.toml"));
    command
        .env("RUST_LOG", "debug")
        .env("NO_COLOR", "1")
        .env("XDG_CACHE_HOME", std::env::temp_dir().join("tidegate-tests-cache"));
    let log = std::fs::File::create(folder.path().join("log")).unwrap();
    let mut program = command.stdout(Stdio::piped()).stderr(log.try_clone().unwrap()).spawn().unwrap();
    let mut said = BufReader::new(program.stdout.take().unwrap()).lines();
    let line = said.find_map(|line| line.unwrap().strip_prefix("listening http://").map(str::to_owned)).unwrap();
    let addr = line.split(' ').next().unwrap();
    let model = "\"model\":\"tidegate-starter\"";
    let requests = [
        ("/v1/chat/completions", format!("{{{model},\"messages\":[{{\"role\":\"user\",\"content\":\"{CANARY}\"}}]}}")),
        ("/v1/responses", format!("{{{model},\"input\":\"{CANARY}\",\"metadata\":{{\"k\":\"{CANARY}\"}}}}")),
        ("/v1/responses", format!("{{{model},\"input\":\"{CANARY}\",\"stream\":true}}")),
        ("/v1/responses", format!("{{{model},\"input\":[{{\"role\":\"{CANARY}\",\"content\":\"x\"}}]}}")),
        ("/v1/conversations", format!("{{\"title\":\"{CANARY}\"}}")),
    ];
    let statuses = ["200", "200", "200", "400", "403"];
    for (i, ((path, body), status)) in requests.iter().zip(statuses).enumerate() {
        let answer = send(addr, path, &format!("asked-{i}"), body);
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{path}: {answer}");
    }
    program.kill().unwrap();
    program.wait().unwrap();
    for i in 0..requests.len() {
        assert!(in_files(folder.path(), &format!("asked-{i}")) > 0, "request {i} is in the log");
    }
    assert_eq!(in_files(folder.path(), CANARY), 0);
    for (id, stage) in [("asked-0", "prompt-guard"), ("asked-2", "stream-guard")] {
        let span = format!("request{{id={id}}}:plugin{{name=pii-guard stage=\"{stage}\" outcome=\"ok\"}}");
        assert!(in_files(folder.path(), &span) > 0, "{span} is in the log");
    }
}
