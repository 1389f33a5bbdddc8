//! That something is another tenant's costs its asker the same work as that it never was: the same statements, so that not
//! even the time of an answer tells them apart. The paths are those of the route table that name what is in the store.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod server;

use serde_json::{Value, json};
use server::Server;
use std::fs::File;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Once nothing was logged for so long, what a request does in the store has been.
const LINGER: Duration = Duration::from_millis(300);

/// What callers have, in the names of its tables.
const TABLES: &[&str] = &["conversations", "messages", "responses", "feedback", "summaries"];

struct Program {
    server: Server,
    log: PathBuf,
}

impl Program {
    fn start(folder: &Path, postgres: Option<&str>) -> Self {
        let key =
            |name: &str| format!("[[keys]]\nname = \"{name}\"\nhash = \"blake3:{}\"\n", blake3::hash(name.as_bytes()));
        let store = match postgres {
            Some(_) => "[store]\npath = \"data\"\npostgres_env = \"STORE_OF_THIS_TEST\"\n",
            None => "[store]\npath = \"data\"\n",
        };
        let text = format!("[server]\nlisten = \"127.0.0.1:0\"\n{store}[pipeline]\n{}{}", key("ann"), key("eve"));
        let (config, log) = (folder.join("tidegate.toml"), folder.join("log"));
        std::fs::write(&config, text).unwrap();
        let mut command = Server::command(&config);
        command.env("RUST_LOG", "warn,sqlx::query=trace").env("NO_COLOR", "1").stderr(File::create(&log).unwrap());
        postgres.map(|url| command.env("STORE_OF_THIS_TEST", url));
        let program = Self { server: Server::run(&mut command), log };
        // What it tidies up when it has started is not of a request. It looks for deleted messages last.
        let started = Instant::now();
        while !program.statements(0).iter().any(|statement| statement.contains("FROM messages WHERE deleted_ms")) {
            assert!(started.elapsed() < Duration::from_secs(30), "{:?}", std::fs::read_to_string(&program.log));
            std::thread::sleep(LINGER);
        }
        program.linger();
        program
    }

    fn linger(&self) {
        let (mut logged, mut since) = (0, Instant::now());
        while since.elapsed() < LINGER {
            let now = std::fs::metadata(&self.log).unwrap().len();
            if now != logged {
                (logged, since) = (now, Instant::now());
            }
            std::thread::sleep(LINGER / 30);
        }
    }

    /// What was asked of these tables since the log had so many bytes.
    fn statements(&self, since: usize) -> Vec<String> {
        let log = std::fs::read(&self.log).unwrap();
        let text = String::from_utf8_lossy(&log[since..]).into_owned();
        let queries = text.lines().filter_map(|line| line.split_once("sqlx::query: ")).map(|(_, query)| query);
        let ours = queries.filter(|query| TABLES.iter().any(|table| query.contains(table)));
        ours.map(statement).collect()
    }

    /// A status, a body, and what was asked of the store for it.
    fn ask(&self, key: &str, method: &str, path: &str, body: &Value) -> (u16, String, Vec<String>) {
        let before = std::fs::metadata(&self.log).unwrap().len() as usize;
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let mut socket = TcpStream::connect(&self.server.addr).unwrap();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\nauthorization: Bearer {key}\r\n\
             content-type: application/json\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        socket.write_all((head + &body).as_bytes()).unwrap();
        let mut answer = String::new();
        socket.read_to_string(&mut answer).unwrap();
        self.linger();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned(), self.statements(before))
    }

    fn make(&self, key: &str, path: &str, body: Value) -> Value {
        let (status, answer, asked) = self.ask(key, "POST", path, &body);
        assert_eq!(status, 200, "{path}: {answer}");
        assert!(!asked.is_empty(), "nothing is logged of {path}");
        serde_json::from_str(&answer).unwrap()
    }
}

/// A statement and how many rows it gave. What is said besides is how long it took, and of SQLite how many rows the last
/// change was of.
fn statement(query: &str) -> String {
    let (statement, rest) = query.split_once(" rows_affected=").unwrap_or((query, ""));
    let rows = rest.split(' ').find(|word| word.starts_with("rows_returned="));
    format!("{statement} {}", rows.unwrap_or_default())
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_else(|| panic!("no text: {value}")).to_owned()
}

/// A body that the path takes.
fn body(method: &str, pattern: &str) -> Value {
    if method != "POST" {
        return Value::Null;
    }
    match pattern.rsplit('/').next().unwrap() {
        "items" => json!({"items": [{"role": "user", "content": "x"}]}),
        "feedback" => json!({"rating": 1}),
        "messages" => json!({"message_id": "9", "content": "x"}),
        "{}" if pattern.contains("/items/") => json!({"pinned": true}),
        _ => json!({}),
    }
}

fn check(program: &Program) {
    let items = json!([{"role": "user", "content": "Hello!"}]);
    let made = |key| text(&program.make(key, "/v1/conversations", json!({"items": items}))["id"]);
    let (theirs, own) = (made("ann"), made("eve"));
    let listed = program.ask("ann", "GET", &format!("/v1/conversations/{theirs}/items"), &Value::Null).1;
    let item = text(&serde_json::from_str::<Value>(&listed).unwrap()["data"][0]["id"]);
    let asked = json!({"model": "tidegate-starter", "input": "Hello!", "max_output_tokens": 1});
    let response = text(&program.make("ann", "/v1/responses", asked)["id"]);
    let never = |kind: &str| format!("{kind}_{}", "0".repeat(32));
    let mut checked = 0;
    let mut same = |method: &str, pattern: &str, path: &str, nowhere: &str| {
        let body = body(method, pattern);
        let (status, answer, asked) = program.ask("eve", method, path, &body);
        let (_, nobodys, for_nobody) = program.ask("eve", method, nowhere, &body);
        assert_eq!((status, &answer), (404, &nobodys), "{method} {pattern}");
        assert!(!asked.is_empty(), "{method} {pattern} asks nothing of the store");
        assert_eq!(asked, for_nobody, "{method} {pattern}");
        checked += 1;
    };
    for (method, pattern, _) in tidegate_api::routes().filter(|(_, pattern, _)| pattern.contains("{}")) {
        let method = method.as_str();
        if pattern.starts_with("/v1/responses/") {
            let of = |id: &str| pattern.replacen("{}", id, 1);
            same(method, pattern, &of(&response), &of(&never("resp")));
        } else if pattern.starts_with("/v1/conversations/") {
            let of = |id: &str, item: &str| pattern.replacen("{}", id, 1).replacen("{}", item, 1);
            same(method, pattern, &of(&theirs, &item), &of(&never("conv"), &never("msg")));
            if pattern.contains("/items/{}") {
                // Of one's own conversation, an item of another's.
                same(method, pattern, &of(&own, &item), &of(&own, &never("msg")));
            }
        }
    }
    eprintln!("{checked} requests for what is another's, each with the statements of one for nothing");
    assert!(checked >= 20, "{checked}");
}

#[test]
fn what_is_anothers_is_looked_for_as_what_never_was() {
    let folder = tempfile::tempdir().unwrap();
    check(&Program::start(folder.path(), None));
}

#[test]
fn what_is_anothers_is_looked_for_as_what_never_was_in_postgres() {
    let Ok(server) = std::env::var("TIDEGATE_TEST_POSTGRES") else {
        return tidegate_skipped::skipped!("on Postgres: TIDEGATE_TEST_POSTGRES names no server");
    };
    let name = format!("tidegate_apart_{}", std::process::id());
    let run = |statement: String| {
        let psql = std::process::Command::new("psql").arg(&server).args(["-qc", &statement]).status();
        assert!(psql.unwrap().success(), "{statement}");
    };
    run(format!("CREATE DATABASE {name}"));
    let folder = tempfile::tempdir().unwrap();
    let (base, _) = server.rsplit_once('/').unwrap();
    let checked = std::panic::catch_unwind(|| check(&Program::start(folder.path(), Some(&format!("{base}/{name}")))));
    run(format!("DROP DATABASE {name} WITH (FORCE)"));
    checked.unwrap_or_else(|failed| std::panic::resume_unwind(failed));
}
