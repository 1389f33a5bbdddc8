//! A gateway that is killed while it is written to: what it said that it has is there at its next start. And one whose
//! disk is full: it holds nothing of what it refuses.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod server;

use serde_json::{Value, json};
use server::Server;
use std::fs::OpenOptions;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const KILLS: usize = 4;
/// What each writer has had acknowledged when the gateway is killed; the next is under way then.
const WRITES: usize = 12;

/// Status and body; nothing where the gateway went away before both were there.
fn ask(addr: &str, key: &str, method: &str, path: &str, body: &str) -> Option<(u16, String)> {
    let mut socket = TcpStream::connect(addr).ok()?;
    socket.set_read_timeout(Some(Duration::from_secs(60))).ok()?;
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: a\r\nauthorization: Bearer {key}\r\ncontent-type: application/json\r\n\
         connection: close\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    socket.write_all(head.as_bytes()).ok()?;
    let mut answer = String::new();
    socket.read_to_string(&mut answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "))?.parse::<usize>().ok()?;
    (body.len() == length).then(|| (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned()))
}

/// `data` is where it keeps what it keeps.
fn config(folder: &Path, data: &Path) -> PathBuf {
    let config = folder.join("tidegate.toml");
    // Nobody answers there: a message is kept, whatever becomes of its answer.
    let text = format!(
        "[server]\nlisten = \"127.0.0.1:0\"\n[store]\npath = {:?}\n[pipeline]\n\
         [[models]]\nname = \"m\"\nupstream = \"http://127.0.0.1:9/v1\"\n\
         [[keys]]\nname = \"root\"\nhash = \"blake3:{}\"\nadmin = true\n",
        data.display().to_string(),
        blake3::hash(b"tg-root")
    );
    std::fs::write(&config, text).unwrap();
    config
}

fn conversation(addr: &str) -> String {
    let (status, body) = ask(addr, "tg-root", "POST", "/v1/conversations", "{}").unwrap();
    assert_eq!(status, 200, "{body}");
    serde_json::from_str::<Value>(&body).unwrap()["id"].as_str().unwrap().to_owned()
}

/// What was acknowledged: texts of messages, and keys.
type Acknowledged = Arc<Mutex<Vec<String>>>;

/// Writes until the gateway is gone; `write` gives path, body, and what is to be found again, as the answer says.
fn writer(
    addr: &str,
    kept: &Acknowledged,
    write: impl Fn(usize) -> (String, Value) + Send + 'static,
    found: impl Fn(usize, &Value) -> String + Send + 'static,
) -> std::thread::JoinHandle<()> {
    let (addr, kept) = (addr.to_owned(), Arc::clone(kept));
    std::thread::spawn(move || {
        for number in 0.. {
            let (path, body) = write(number);
            let Some((status, answer)) = ask(&addr, "tg-root", "POST", &path, &body.to_string()) else { return };
            assert_eq!(status, 200, "{path}: {answer}");
            kept.lock().unwrap().push(found(number, &serde_json::from_str(&answer).unwrap()));
        }
    })
}

#[test]
fn what_was_acknowledged_before_a_kill_is_there_after_it() {
    let folder = tempfile::tempdir().unwrap();
    let config = config(folder.path(), &folder.path().join("data"));
    let (mut conversations, mut texts, mut keys) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..KILLS {
        let mut server = Server::with(&config);
        let all: [Acknowledged; 3] = Default::default();
        let [items, messages] = [conversation(&server.addr), conversation(&server.addr)];
        conversations.extend([items.clone(), messages.clone()]);
        let item = move |n: usize| {
            let item = json!({"type": "message", "role": "user", "content": format!("item-{round}-{n}.")});
            (format!("/v1/conversations/{items}/items"), json!({"items": [item]}))
        };
        let message = move |n: usize| {
            let body = json!({"message_id": format!("m{n}"), "content": format!("message-{round}-{n}."), "model": "m"});
            (format!("/v1/conversations/{messages}/messages"), body)
        };
        let key =
            move |n: usize| ("/admin/keys".to_owned(), json!({"name": format!("key-{round}-{n}"), "tenant": "t"}));
        let writers = [
            writer(&server.addr, &all[0], item, move |n, _| format!("item-{round}-{n}.")),
            writer(&server.addr, &all[1], message, move |n, _| format!("message-{round}-{n}.")),
            writer(&server.addr, &all[2], key, |_, made| made["key"].as_str().unwrap().to_owned()),
        ];
        let began = Instant::now();
        while all.iter().any(|kept| kept.lock().unwrap().len() < WRITES) {
            assert!(began.elapsed() < Duration::from_secs(120), "{all:?}");
            std::thread::sleep(Duration::from_millis(1));
        }
        server.child.kill().unwrap();
        server.child.wait().unwrap();
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        let [items, messages, made] = all.map(|kept| std::mem::take(&mut *kept.lock().unwrap()));
        texts.extend(items.into_iter().chain(messages));
        keys.extend(made);
    }
    let server = Server::with(&config);
    let export = |id: &String| {
        let (status, body) =
            ask(&server.addr, "tg-root", "GET", &format!("/v1/conversations/{id}/export"), "").unwrap();
        assert_eq!(status, 200, "{body}");
        body
    };
    let exported: String = conversations.iter().map(export).collect();
    let lost: Vec<_> = texts.iter().filter(|text| !exported.contains(*text)).collect();
    assert!(lost.is_empty(), "{lost:?} of {}", texts.len());
    for key in &keys {
        let (status, body) = ask(&server.addr, key, "GET", "/v1/models", "").unwrap();
        assert_eq!(status, 200, "{body}");
    }
    println!("{KILLS} kills, {} writes of messages and {} keys acknowledged, 0 lost", texts.len(), keys.len());
}

/// A disk of its own, where this user may make one.
struct Disk<'a>(&'a Path);

impl<'a> Disk<'a> {
    fn mount(at: &'a Path) -> Option<Self> {
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", "size=8m", "tmpfs"]).arg(at).output();
        mounted.is_ok_and(|output| output.status.success()).then_some(Self(at))
    }

    fn fill(&self) {
        let mut filler = OpenOptions::new().create(true).append(true).open(self.0.join("filler")).unwrap();
        while filler.write(&[0; 4096]).is_ok_and(|len| len > 0) {}
    }
}

impl Drop for Disk<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(self.0).status();
    }
}

/// What the process has in memory.
fn resident_kib(server: &Server) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.child.id())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

#[test]
fn a_full_disk_costs_no_memory() {
    /// Together many times what the process may grow by.
    const REQUESTS: usize = 1500;
    const BODY: usize = 128 << 10;
    let (folder, data) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let Some(disk) = Disk::mount(data.path()) else {
        tidegate_skipped::skipped!("the memory of a gateway whose disk is full, since this user cannot mount one");
        return;
    };
    let server = Server::with(&config(folder.path(), data.path()));
    let message = json!({"role": "user", "content": "x".repeat(BODY)});
    let body = json!({"model": "m", "max_tokens": 5, "messages": [message]}).to_string();
    let chat = || ask(&server.addr, "tg-root", "POST", "/v1/chat/completions", &body).unwrap();
    let (mut refused, mut before) = (0, 0);
    let began = Instant::now();
    while refused < REQUESTS {
        if refused % 100 == 0 {
            disk.fill();
        }
        let (status, answer) = chat();
        assert!(status >= 500, "{status}: {answer}");
        refused += usize::from(answer.contains("storage_full"));
        if refused == REQUESTS / 5 {
            before = resident_kib(&server);
        }
        assert!(began.elapsed() < Duration::from_secs(180), "{refused} were refused: {answer}");
    }
    let grown = resident_kib(&server).saturating_sub(before);
    println!("{REQUESTS} requests refused with a full disk; {grown} KiB more in memory for the last 4 of 5");
    assert!(grown < 48 << 10, "{grown} KiB more");
}
