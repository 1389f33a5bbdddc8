//! The program itself: what it prints, what it refuses, how it stops, and that its engine may die.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

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
}

impl Server {
    fn start(args: &[&str]) -> Self {
        Self::run(&mut tidegate(args))
    }

    fn run(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
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
        // Whatever it says later must not block it.
        std::thread::spawn(move || lines.for_each(drop));
        let listening = facts.iter().find(|fact| fact.starts_with("listening ")).unwrap();
        let addr = listening.split("//").nth(1).unwrap().split(' ').next().unwrap().to_owned();
        Self { child, facts, addr }
    }

    /// Sends a chat; the socket has the answer to read.
    fn ask(&self, question: &str, more: Value) -> TcpStream {
        let mut body = json!({"model": "tidegate-starter", "messages": [{"role": "user", "content": question}]});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let body = body.to_string();
        let mut socket = TcpStream::connect(&self.addr).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
        let head = format!(
            "POST /v1/chat/completions HTTP/1.1\r\nhost: {}\r\ncontent-type: application/json\r\n\
             connection: close\r\ncontent-length: {}\r\n\r\n{body}",
            self.addr,
            body.len()
        );
        socket.write_all(head.as_bytes()).unwrap();
        socket
    }

    fn signal(&self, pid: u32, signal: &str) {
        assert!(Command::new("kill").args([signal, &pid.to_string()]).status().unwrap().success());
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

#[test]
fn serve_says_its_facts_and_ends_running_answers_before_it_stops() {
    let mut server = Server::start(&["--listen", "127.0.0.1:0"]);
    let facts = server.facts.join("\n");
    for fact in ["model     tidegate-starter", "backend   ", "plugin    pii-guard", "plugin    calculator", "curl http"]
    {
        assert!(facts.contains(fact), "{fact} in\n{facts}");
    }
    let mut socket = server.ask("Tell me a story.", serde_json::from_str(LONG).unwrap());
    let mut first = [0; 16];
    socket.read_exact(&mut first).unwrap();
    server.signal(server.child.id(), "-TERM");
    let answer = read_all(socket);
    assert!(answer.contains("\"finish_reason\":\"length\"") && answer.contains("[DONE]"), "{answer}");
    assert!(server.child.wait().unwrap().success());
    assert!(TcpStream::connect(&server.addr).is_err());
}

#[test]
fn an_engine_process_that_dies_is_replaced_and_its_answer_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("tidegate.toml");
    std::fs::write(&config, "[server]\nlisten = \"127.0.0.1:0\"\n[engine]\nisolation = \"process\"\n[pipeline]\n")
        .unwrap();
    let server = Server::start(&["serve", "--config", config.to_str().unwrap()]);
    let request: Value = serde_json::from_str(LONG).unwrap();
    let undisturbed = streamed_text(&read_all(server.ask("Tell me a story.", request.clone())));

    let mut socket = server.ask("Tell me a story.", request);
    let mut first = [0; 1024];
    let read = socket.read(&mut first).unwrap();
    server.signal(worker_of(&server), "-KILL");
    let answer = String::from_utf8_lossy(&first[..read]).into_owned() + &read_all(socket);
    assert_eq!(streamed_text(&answer), undisturbed);
    let again = read_all(server.ask("What is Tidegate?", json!({})));
    assert!(again.contains("200 OK"), "{again}");
}

/// The only child of the server.
fn worker_of(server: &Server) -> u32 {
    let children = format!("/proc/{0}/task/{0}/children", server.child.id());
    let started = Instant::now();
    loop {
        // A child is listed under the thread that started it.
        let tasks = std::fs::read_dir(format!("/proc/{}/task", server.child.id())).unwrap();
        let lists = tasks.map(|task| task.unwrap().path().join("children"));
        let pids: Vec<u32> = lists
            .filter_map(|list| std::fs::read_to_string(list).ok())
            .flat_map(|list| list.split_whitespace().map(|pid| pid.parse().unwrap()).collect::<Vec<u32>>())
            .collect();
        if let [pid] = pids[..] {
            return pid;
        }
        assert!(started.elapsed() < Duration::from_secs(20), "no worker in {children}: {pids:?}");
    }
}

#[test]
fn chat_streams_an_answer_to_the_terminal() {
    let server = Server::start(&["--listen", "127.0.0.1:0"]);
    let url = format!("http://{}", server.addr);
    let mut chat = tidegate(&["chat", "--url", &url]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    chat.stdin.take().unwrap().write_all(b"What is Tidegate?\nWhat is 17*23?\n").unwrap();
    let output = chat.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success() && text.contains("Rust program") && text.contains("391"), "{text}");
}

fn write(folder: &Path, name: &str, text: &str) -> PathBuf {
    let path = folder.join(name);
    std::fs::write(&path, text).unwrap();
    path
}

#[test]
fn check_says_what_is_wrong_and_where() {
    let folder = tempfile::tempdir().unwrap();
    let stage = |body: &str| format!("[[pipeline.stage]]\nplugin = \"pii-guard\"\n{body}");
    let key = |name: &str| format!("[[keys]]\nname = \"{name}\"\nhash = \"blake3:{}\"\n", "ab".repeat(32));
    let events = |receiver: &str| format!("[store]\npath = \"data\"\n[store.events]\n{receiver}\n");
    let cases = [
        ("[server]\nlisen = \"127.0.0.1:1\"\n".to_owned(), vec!["line 2", "did you mean `listen`?"]),
        ("[[pipeline.stage]]\nplugin = \"pii-gard\"\n".to_owned(), vec!["pii-gard", "calculator"]),
        (stage("file = \"missing.wasm\"\n"), vec!["missing.wasm"]),
        (stage("[pipeline.stage.config]\nkinds = 7\n"), vec!["pii-guard", "kinds"]),
        (stage("[pipeline.stage.config]\nactoin = \"flag\"\n"), vec!["actoin", "action"]),
        ("[[models]]\nname = \"m\"\npath = \"nowhere\"\n".to_owned(), vec!["model `m`", "nowhere", "config.json"]),
        (
            "[[pipeline.stage]]\nplugin = \"folder-retriever\"\n".to_owned(),
            vec!["folder-retriever", "kv_kib = 1024", "grants"],
        ),
        (stage("stages = []\n"), vec!["pii-guard", "`stages` is empty"]),
        ("[engine]\nkv_cache_mib = 99999999999\n".to_owned(), vec!["kv_cache_mib", "MiB of memory"]),
        ("[compute]\nthreads = 100000\n".to_owned(), vec!["compute.threads is 100000"]),
        ("[server]\nmax_inflight = 0\n".to_owned(), vec!["server.max_inflight is 0"]),
        ("[server.tls]\ncert = \"none.pem\"\nkey = \"none.pem\"\n".to_owned(), vec!["none.pem"]),
        ("[[models]]\nname = \"m\"\nupstream = \"ftp://x\"\n".to_owned(), vec!["model `m`"]),
        (key("first") + &key("second"), vec!["first", "second"]),
        (events("webhook = \"billing\""), vec!["store.events.webhook"]),
        (events("nats = \"http://x\""), vec!["store.events.nats"]),
        (
            events("kafka = { brokers = [\"h:1\"], tls = true, ca = \"none.pem\" }"),
            vec!["store.events.kafka.ca", "none.pem"],
        ),
        ("[shared]\nurl = \"http://x\"\n".to_owned(), vec!["shared.url", "Valkey or Redis"]),
    ];
    for (text, expected) in cases {
        let file = write(folder.path(), "tidegate.toml", &text);
        let (good, said) = run(&["check", file.to_str().unwrap()]);
        assert!(!good, "{text}");
        for part in expected {
            assert!(said.contains(part), "{part} in {said}");
        }
    }
}

/// The server's environment may be another one.
#[test]
fn check_says_which_variables_are_not_set() {
    let folder = tempfile::tempdir().unwrap();
    let text = "[store]\npath = \"data\"\npostgres_env = \"TIDEGATE_TEST_UNSET_A\"\n[store.events]\n\
                webhook = \"https://billing.example/\"\nsecret_env = \"TIDEGATE_TEST_UNSET_B\"\n\
                [shared]\nurl = \"redis://h\"\npassword_env = \"TIDEGATE_TEST_UNSET_C\"\n[pipeline]\n";
    let file = write(folder.path(), "tidegate.toml", text);
    let (good, said) = run(&["check", file.to_str().unwrap()]);
    assert!(good, "{said}");
    for part in ["A of store.postgres_env", "B of store.events.secret_env", "C of shared.password_env"] {
        assert!(said.contains(&format!("$TIDEGATE_TEST_UNSET_{part} is not set here")), "{part} in {said}");
    }
}

/// The starter model's folder, to be damaged.
fn copied_starter(folder: &Path) -> PathBuf {
    let copy = folder.join("model");
    std::fs::create_dir(&copy).unwrap();
    for entry in std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("assets/starter")).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), copy.join(entry.file_name())).unwrap();
    }
    copy
}

#[test]
fn a_damaged_model_folder_is_refused_by_the_name_of_its_file() {
    for (file, keep) in [("model.safetensors", 4_000_000), ("tokenizer.json", 5_000), ("config.json", 100)] {
        let folder = tempfile::tempdir().unwrap();
        let model = copied_starter(folder.path());
        let content = std::fs::read(model.join(file)).unwrap();
        std::fs::write(model.join(file), &content[..keep]).unwrap();
        let (good, said) = run(&["--listen", "127.0.0.1:0", "--model", model.to_str().unwrap()]);
        assert!(!good && said.contains(file), "{file}: {said}");
        assert!(!said.contains("panicked"), "{said}");
    }
}

#[test]
fn an_open_address_without_keys_is_refused() {
    let (good, said) = run(&["--listen", "0.0.0.0:0"]);
    assert!(!good && said.contains("tidegate key"), "{said}");
}

#[test]
fn a_key_is_shown_with_its_entry() {
    let (good, said) = run(&["key", "alice"]);
    assert!(good && said.contains("tg-") && said.contains("name = \"alice\"") && said.contains("blake3:"), "{said}");
}

#[test]
fn a_hangup_takes_the_config_anew_and_a_bad_one_leaves_the_old() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tidegate.toml");
    let write = |word: &str| {
        let config = format!(
            "[server]\nlisten = \"127.0.0.1:0\"\n[[pipeline.stage]]\nplugin = \"word-guard\"\n\
             config = {{ words = [\"{word}\"], action = \"block\" }}\n"
        );
        std::fs::write(&path, config).unwrap();
    };
    let status = |server: &Server, question: &str| {
        let mut answer = String::new();
        server.ask(question, json!({})).read_to_string(&mut answer).unwrap();
        answer.split(' ').nth(1).unwrap().to_owned()
    };
    let becomes = |server: &Server, question: &str, wanted: &str| {
        let until = Instant::now() + Duration::from_secs(60);
        while status(server, question) != wanted {
            assert!(Instant::now() < until, "{question} is never answered {wanted}");
            std::thread::sleep(Duration::from_millis(50));
        }
    };
    write("heron");
    let server = Server::start(&["--config", path.to_str().unwrap()]);
    assert_eq!((status(&server, "a heron"), status(&server, "an otter")), ("400".into(), "200".into()));
    write("otter");
    server.signal(server.child.id(), "-HUP");
    becomes(&server, "an otter", "400");
    assert_eq!(status(&server, "a heron"), "200");
    std::fs::write(&path, "[server\n").unwrap();
    server.signal(server.child.id(), "-HUP");
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!((status(&server, "a heron"), status(&server, "an otter")), ("200".into(), "400".into()));
}

#[test]
fn a_hangup_ends_a_server_without_a_config_unless_it_is_to_be_ignored() {
    let mut server = Server::start(&["--listen", "127.0.0.1:0"]);
    server.signal(server.child.id(), "-HUP");
    assert!(server.child.wait().unwrap().success());

    let mut detached = Command::new("nohup");
    detached.args([PROGRAM, "--listen", "127.0.0.1:0"]);
    detached.env("XDG_CACHE_HOME", std::env::temp_dir().join("tidegate-tests-cache"));
    let server = Server::run(&mut detached);
    server.signal(server.child.id(), "-HUP");
    std::thread::sleep(Duration::from_millis(500));
    let answer = read_all(server.ask("What is Tidegate?", json!({})));
    assert!(answer.contains("200 OK"), "{answer}");
}

#[test]
fn a_hangup_cuts_no_answer_of_a_server_that_stops() {
    let folder = tempfile::tempdir().unwrap();
    let config = write(folder.path(), "tidegate.toml", "[server]\nlisten = \"127.0.0.1:0\"\n");
    let mut server = Server::start(&["--config", config.to_str().unwrap()]);
    let mut socket = server.ask("Tell me a story.", serde_json::from_str(LONG).unwrap());
    let mut first = [0; 16];
    socket.read_exact(&mut first).unwrap();
    server.signal(server.child.id(), "-TERM");
    // It takes nothing new, so that it stops already.
    while TcpStream::connect(&server.addr).is_ok() {
        std::thread::sleep(Duration::from_millis(1));
    }
    server.signal(server.child.id(), "-HUP");
    let answer = read_all(socket);
    assert!(answer.contains("\"finish_reason\":\"length\"") && answer.contains("[DONE]"), "{answer}");
    assert!(server.child.wait().unwrap().success());
}

/// As soon as SIGHUP is a request, which is before there is anything to see.
#[test]
fn a_hangup_during_the_start_waits_for_its_end() {
    let folder = tempfile::tempdir().unwrap();
    let config = write(folder.path(), "tidegate.toml", "[server]\nlisten = \"127.0.0.1:0\"\n");
    let mut command = tidegate(&["--config", config.to_str().unwrap()]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut said = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    let (tell, told) = std::sync::mpsc::sync_channel(100);
    std::thread::spawn(move || said.try_for_each(|line| tell.send(line)));
    let status = format!("/proc/{}/status", child.id());
    let catches = |status: &str| {
        let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap_or("0");
        u64::from_str_radix(mask.trim(), 16).unwrap() & 1 == 1
    };
    while !catches(&std::fs::read_to_string(&status).unwrap()) {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(told.try_recv().is_err(), "it has started before it caught the signal");
    assert!(Command::new("kill").args(["-HUP", &child.id().to_string()]).status().unwrap().success());
    let mut lines = std::iter::from_fn(|| told.recv_timeout(Duration::from_secs(120)).ok());
    assert!(lines.any(|line| line.starts_with("listening ")), "it was ended");
    assert!(lines.any(|line| line.starts_with("keys ")), "it never took the config anew");
    child.kill().unwrap();
    child.wait().unwrap();
}

/// The starter model twice, under names of their own.
#[test]
fn models_of_the_command_line_have_the_names_that_it_gives_them() {
    let starter = Path::new(env!("CARGO_MANIFEST_DIR")).join("assets/starter");
    let named = format!("named={}", starter.display());
    let server = Server::start(&["--listen", "127.0.0.1:0", "--model", &named, "--model", starter.to_str().unwrap()]);
    let models: Vec<&String> = server.facts.iter().filter(|fact| fact.starts_with("model ")).collect();
    assert_eq!(models.len(), 2, "{models:?}");
    for (model, status) in [("named", "200 OK"), ("starter", "200 OK"), ("tidegate-starter", "404 Not Found")] {
        let answer = read_all(server.ask("What is Tidegate?", json!({"model": model})));
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{model}: {answer}");
    }
}

/// What the command line says counts when the file is checked and when it is taken anew, with the file's limits of a
/// name that it has too.
#[test]
fn a_reload_keeps_what_the_command_line_said() {
    let folder = tempfile::tempdir().unwrap();
    let hash = blake3::hash(b"tg-a");
    let text = format!(
        "[server]\nlisten = \"0.0.0.0:1\"\n\
         [[models]]\nname = \"chat\"\nupstream = \"http://127.0.0.1:1\"\nlimits = {{ requests_per_minute = 1 }}\n\
         [[keys]]\nname = \"a\"\nhash = \"blake3:{hash}\"\nadmin = true\nmodels = [\"big\", \"chat\"]\n"
    );
    let config = write(folder.path(), "tidegate.toml", &text);
    let starter = Path::new(env!("CARGO_MANIFEST_DIR")).join("assets/starter");
    let [chat, big] = ["chat", "big"].map(|name| format!("{name}={}", starter.display()));
    let args = ["--config", config.to_str().unwrap(), "--listen", "127.0.0.1:0", "--model", &chat, "--model", &big];
    let server = Server::start(&args);
    let status = |path: &str, body: &str| {
        let mut socket = TcpStream::connect(&server.addr).unwrap();
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: {}\r\nauthorization: Bearer tg-a\r\ncontent-type: application/json\r\n\
             connection: close\r\ncontent-length: {}\r\n\r\n{body}",
            server.addr,
            body.len()
        );
        socket.write_all(head.as_bytes()).unwrap();
        read_all(socket).split(' ').nth(1).unwrap().to_owned()
    };
    let ask = |model: &str| {
        let body = json!({"model": model, "messages": [{"role": "user", "content": "Hello!"}]});
        status("/v1/chat/completions", &body.to_string())
    };
    assert_eq!(["big", "chat", "chat"].map(ask), ["200", "200", "429"]);
    assert_eq!(status("/admin/reload", ""), "200");
    assert_eq!(["big", "chat"].map(ask), ["200", "429"]);
}
