//! Every way by which a caller's words come in, as requests of a caller.

use crate::server::Server;
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// Who asks, and of whom or of what it is that nothing is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller {
    key: &'static str,
    /// Each of its requests says so itself.
    unkept: bool,
}

impl Caller {
    /// Of whose tenant nothing is kept.
    pub const TENANT: Self = Self { key: "mute", unkept: false };
    /// Of whose project nothing is kept.
    pub const PROJECT: Self = Self { key: "quiet", unkept: false };
    /// Who asks for it.
    pub const REQUEST: Self = Self { key: "loud", unkept: true };
    /// Of whom things may be kept.
    pub const KEPT: Self = Self { key: "loud", unkept: false };

    /// All of them, for a gateway.
    pub fn config() -> String {
        let key = |name: &str, more: &str| {
            let hash = blake3::hash(name.as_bytes());
            format!("[[keys]]\nname = \"{name}\"\nhash = \"blake3:{hash}\"\n{more}\n")
        };
        [
            key("loud", "tenant = \"acme\""),
            key("quiet", "tenant = \"acme\"\nproject = \"quiet\""),
            key("mute", "tenant = \"mute\""),
            "[tenants.acme.projects.quiet]\nzero_retention = true\n[tenants.mute]\nzero_retention = true\n".to_owned(),
        ]
        .concat()
    }
}

/// One request.
pub struct Way {
    caller: Caller,
    method: &'static str,
    path: String,
    header: String,
    body: String,
    /// The answers that there may be.
    statuses: &'static [u16],
}

impl Way {
    /// Asks, reads all of the answer, and refuses one that means that the way led nowhere.
    pub fn go(&self, server: &Server) {
        let (status, answer) = send(server, self);
        assert!(self.statuses.contains(&status), "{:?} {} {}: {answer}", self.caller, self.path, self.body);
    }
}

/// All ways in, for `caller`, with `word`.
pub fn ways(caller: Caller, word: &str, conversation: &str) -> Vec<Way> {
    let asks = Asks { caller, word, conversation };
    [asks.chats(), asks.responses(), asks.failures(), asks.conversations(), asks.searches(), asks.nonsense()]
        .into_iter()
        .flatten()
        .collect()
}

struct Asks<'a> {
    caller: Caller,
    word: &'a str,
    conversation: &'a str,
}

impl Asks<'_> {
    fn way(&self, path: &str, body: Value, statuses: &'static [u16]) -> Way {
        Way {
            caller: self.caller,
            method: "POST",
            path: path.to_owned(),
            header: String::new(),
            body: body.to_string(),
            statuses,
        }
    }

    /// `body` with `more`, and with the word that nothing may be kept where the caller says so.
    fn with(&self, mut body: Value, more: Value) -> Value {
        let members = body.as_object_mut().unwrap();
        members.extend(more.as_object().unwrap().clone());
        if self.caller.unkept {
            members.insert("store".into(), false.into());
        }
        body
    }

    /// A key that no other body has.
    fn once(&self, name: &str) -> String {
        format!("idempotency-key: {name}-{}\r\n", self.caller.unkept)
    }

    fn chat(&self, said: &str, more: Value) -> Value {
        let word = self.word;
        let messages = json!([{"role": "system", "content": format!("You are {word}")},
            {"role": "user", "content": format!("When does {word} open? {said}")}]);
        self.with(json!({"model": "echo", "messages": messages, "metadata": {"k": word}}), more)
    }

    fn response(&self, more: Value) -> Value {
        let word = self.word;
        let body = json!({"model": "echo", "input": format!("When does {word} open?"), "instructions": word,
            "metadata": {"k": word}});
        self.with(body, more)
    }

    fn chats(&self) -> Vec<Way> {
        let path = "/v1/chat/completions";
        let mut ways = vec![
            self.way(path, self.chat("", json!({})), &[200]),
            // A second time, where an answer may come from a cache.
            self.way(path, self.chat("", json!({})), &[200]),
            self.way(path, self.chat("", json!({"stream": true})), &[200]),
            self.way(path, self.chat("Please call a tool.", json!({})), &[200]),
            Way {
                header: "x-tidegate-resumable: true\r\n".into(),
                ..self.way(path, self.chat("Again.", json!({"stream": true})), &[200])
            },
            Way { header: self.once("chat"), ..self.way(path, self.chat("Once.", json!({})), &[200]) },
        ];
        if !self.caller.unkept {
            ways.push(self.way("/v1/completions", json!({"model": "echo", "prompt": self.word}), &[200]));
            ways.push(self.way("/v1/embeddings", json!({"model": "echo", "input": self.word}), &[200]));
        }
        ways
    }

    fn responses(&self) -> Vec<Way> {
        let path = "/v1/responses";
        vec![
            self.way(path, self.response(json!({})), &[200]),
            self.way(path, self.response(json!({"stream": true})), &[200]),
            self.way(path, self.response(json!({"input": format!("Please call a tool with {}", self.word)})), &[200]),
            Way { header: self.once("response"), ..self.way(path, self.response(json!({})), &[200]) },
            self.way(path, self.response(json!({"background": true})), &[200, 400, 403]),
            self.way(path, self.response(json!({"conversation": self.conversation})), &[200, 403, 404]),
            self.way(path, self.response(json!({"previous_response_id": self.word})), &[404]),
        ]
    }

    /// What a model, or a server behind it, does with the words when it fails.
    fn failures(&self) -> Vec<Way> {
        let mut ways = Vec::new();
        for model in ["breaks", "refuses", "mumbles", "babbles"] {
            for stream in [false, true] {
                let more = json!({"model": model, "stream": stream});
                ways.push(self.way("/v1/chat/completions", self.chat("", more.clone()), &[200, 400, 502]));
                ways.push(self.way("/v1/responses", self.response(more), &[200, 400, 502]));
            }
        }
        ways
    }

    fn conversations(&self) -> Vec<Way> {
        if self.caller.unkept {
            return Vec::new();
        }
        let (word, one) = (self.word, format!("/v1/conversations/{}", self.conversation));
        let items = json!([{"role": "user", "content": word}]);
        vec![
            self.way("/v1/conversations", json!({"title": word, "metadata": {"k": word}, "items": items}), &[200, 403]),
            self.way(&one, json!({"metadata": {"k": word}}), &[200, 403]),
            self.way(&format!("{one}/items"), json!({"items": items}), &[200, 403]),
            self.way(&format!("{one}/messages"), json!({"message_id": word, "content": word}), &[200, 202, 403, 404]),
        ]
    }

    fn searches(&self) -> Vec<Way> {
        let word = self.word;
        let get =
            |path: String, statuses| Way { method: "GET", body: String::new(), ..self.way(&path, json!({}), statuses) };
        vec![
            get(format!("/v1/conversations?q={word}"), &[200]),
            get(format!("/v1/memories?q={word}"), &[200]),
            get(format!("/v1/{word}"), &[404]),
            get(format!("/v1/responses/{word}"), &[404]),
            self.way("/v1/memories/forget", json!({"ids": [word]}), &[200, 400]),
        ]
    }

    /// What is refused before anything is done with it. A request that is not read cannot say that nothing of it may be kept.
    fn nonsense(&self) -> Vec<Way> {
        let (word, path) = (self.word, "/v1/chat/completions");
        let mut ways = vec![
            self.way(path, self.chat("", json!({"messages": [{"role": word, "content": word}]})), &[400]),
            self.way(path, self.chat("", json!({"model": word})), &[404]),
            self.way(path, self.chat("", json!({"tool_choice": word})), &[400]),
        ];
        if !self.caller.unkept {
            let bodies =
                [word.to_owned(), format!("{{\"{word}\": 1}}"), format!("{{\"metadata\": {{\"{word}\": 1}}}}")];
            ways.extend(bodies.map(|body| Way { body, ..self.way(path, json!({}), &[400]) }));
            let asked = format!("/v1/usage?start_time=1&{word}=1");
            ways.push(Way { method: "GET", body: String::new(), ..self.way(&asked, json!({}), &[400]) });
        }
        ways
    }
}

/// A conversation of the caller of whom things may be kept.
pub fn conversation(server: &Server) -> String {
    let items = json!({"items": [{"role": "user", "content": "Good morning!"}]}).to_string();
    let path = "/v1/conversations".to_owned();
    let (_, answer) = send(
        server,
        &Way { caller: Caller::KEPT, method: "POST", path, header: String::new(), body: items, statuses: &[] },
    );
    let made: Value = serde_json::from_str(&answer).unwrap();
    made["id"].as_str().unwrap().to_owned()
}

/// What a path says.
pub fn get(server: &Server, caller: Caller, path: &str) -> String {
    send(
        server,
        &Way {
            caller,
            method: "GET",
            path: path.to_owned(),
            header: String::new(),
            body: String::new(),
            statuses: &[],
        },
    )
    .1
}

fn send(server: &Server, way: &Way) -> (u16, String) {
    let Way { caller, method, path, header, body, .. } = way;
    let mut socket = TcpStream::connect(&server.addr).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: {}\r\nauthorization: Bearer {}\r\ncontent-type: application/json\r\n{header}\
         connection: close\r\ncontent-length: {}\r\n\r\n{body}",
        server.addr,
        caller.key,
        body.len()
    );
    socket.write_all(head.as_bytes()).unwrap();
    let mut answer = Vec::new();
    socket.read_to_end(&mut answer).unwrap();
    let answer = String::from_utf8_lossy(&answer).into_owned();
    let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok());
    let (_, said) = answer.split_once("\r\n\r\n").unwrap_or_default();
    (status.unwrap_or_else(|| panic!("{path}: {answer:?}")), said.to_owned())
}
