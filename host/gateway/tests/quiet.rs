//! What callers write is in no log, whatever is logged; and of who wants nothing kept it is in no file. What is in the log
//! are the calls of plugins, as spans of their request, what plugins write, and how often upstreams were asked.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const CANARY: &str = "canary9c41d7";
const BY_KEY: &str = "authorization: Bearer tg-n\r\n";

/// Sends a request; gives the answer.
fn send(addr: &str, path: &str, id: &str, body: &str) -> String {
    send_as(addr, "POST", path, id, "", body)
}

/// The same with another method and more headers.
fn send_as(addr: &str, method: &str, path: &str, id: &str, more: &str, body: &str) -> String {
    let mut socket = TcpStream::connect(addr).unwrap();
    let request = format!(
        "{method} {path} HTTP/1.1\r\nhost: {addr}\r\nconnection: close\r\nx-request-id: {id}\r\n{more}\
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

/// Starts the program with `config` on a free port, and what it logs (by `RUST_LOG`, where that is given) in the folder;
/// gives where it listens.
fn start(folder: &Path, config: &str, logged: Option<&str>) -> (Child, String) {
    std::fs::write(folder.join("tidegate.toml"), format!("[server]\nlisten = \"127.0.0.1:0\"\n{config}")).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    command.args(["serve", "--config"]).arg(folder.join("tidegate.toml"));
    command
        .env_remove("RUST_LOG")
        .envs(logged.map(|logged| ("RUST_LOG", logged)))
        .env("NO_COLOR", "1")
        .env("XDG_CACHE_HOME", std::env::temp_dir().join("tidegate-tests-cache"));
    let log = std::fs::File::create(folder.join("log")).unwrap();
    let mut program = command.stdout(Stdio::piped()).stderr(log.try_clone().unwrap()).spawn().unwrap();
    let mut said = BufReader::new(program.stdout.take().unwrap()).lines();
    let line = said.find_map(|line| line.unwrap().strip_prefix("listening http://").map(str::to_owned)).unwrap();
    std::thread::spawn(move || said.for_each(drop));
    (program, line.split(' ').next().unwrap().to_owned())
}

#[test]
fn what_callers_write_is_in_no_log_and_unkept_in_no_file() {
    let folder = tempfile::tempdir().unwrap();
    let config = "[store]\npath = \"data\"\n[tenants.local]\nzero_retention = true\n\
                  [[pipeline.stage]]\nplugin = \"pii-guard\"\nlimits = { wall_ms = 20000, cpu_ms = 5000 }\n";
    let (mut program, addr) = start(folder.path(), config, Some("debug"));
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
        let answer = send(&addr, path, &format!("asked-{i}"), body);
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{path}: {answer}");
    }
    program.kill().unwrap();
    program.wait().unwrap();
    for i in 0..requests.len() {
        assert!(in_files(folder.path(), &format!("asked-{i}")) > 0, "request {i} is in the log");
    }
    assert_eq!(in_files(folder.path(), CANARY), 0);
    let calls = [
        ("asked-0", "stage=\"prompt-guard\" verdict=\"allow\" outcome=\"ok\""),
        ("asked-2", "stage=\"stream-guard\" outcome=\"ok\" verdict=\"pass\""),
    ];
    for (id, call) in calls {
        let span = format!("request{{id={id}}}:server{{otel.kind=\"server\"}}:plugin{{name=pii-guard {call}");
        assert!(in_files(folder.path(), &span) > 0, "{span} is in the log");
    }
}

#[test]
fn without_a_filter_the_log_has_what_plugins_write() {
    let folder = tempfile::tempdir().unwrap();
    let observer = "[[pipeline.stage]]\nplugin = \"audit-observer\"\nlimits = { wall_ms = 20000, cpu_ms = 5000 }\n";
    let (mut program, addr) = start(folder.path(), observer, None);
    let body = "{\"model\":\"tidegate-starter\",\"messages\":[{\"role\":\"user\",\"content\":\"Hello!\"}]}";
    let answer = send(&addr, "/v1/chat/completions", "asked", body);
    // Observers are told behind the answer.
    let until = Instant::now() + Duration::from_secs(30);
    let mut log = String::new();
    let written = |log: &str| {
        let parts = ["plugin=\"audit-observer\"", "request=\"asked\"", "outcome=", "answered"];
        log.lines().any(|line| parts.iter().all(|part| line.contains(part)))
    };
    while !written(&log) && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(20));
        log = std::fs::read_to_string(folder.path().join("log")).unwrap();
    }
    program.kill().unwrap();
    program.wait().unwrap();
    assert!(answer.starts_with("HTTP/1.1 200") && written(&log), "{answer}\n{log}");
}

/// `closed` ends no request there: it is over. The operator reads why it failed all the same.
#[test]
fn what_fails_behind_an_answer_is_in_the_log_where_it_is_closed_too() {
    let folder = tempfile::tempdir().unwrap();
    let guests = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/guests/dist");
    let stage = |guest: &str, kind: &str, more: &str| {
        let file = guests.join(format!("{guest}.wasm"));
        format!(
            "[[pipeline.stage]]\nplugin = \"{guest}\"\nfile = {file:?}\nstages = [\"{kind}\"]\non_error = \"closed\"\n\
             limits = {{ wall_ms = 20000, cpu_ms = 5000 }}\n{more}\n"
        )
    };
    let (mut program, addr) = start(
        folder.path(),
        // What is said is more than the memory may keep.
        &(stage("remembers", "memory", "grants = { kv_kib = 1 }")
            + &stage("honest", "observer", "config = { trap = \"observer\" }")),
        None,
    );
    let asked = "What is Tidegate? ".repeat(64);
    let body = format!(
        "{{\"model\":\"tidegate-starter\",\"max_tokens\":4,\
         \"messages\":[{{\"role\":\"user\",\"content\":\"{asked}\"}}]}}"
    );
    let answer = send(&addr, "/v1/chat/completions", "asked", &body);
    let until = Instant::now() + Duration::from_secs(60);
    let mut log = String::new();
    let lines = |log: &str| {
        let of = |what: &str| log.lines().filter(|line| line.contains(what) && line.contains("is over")).count();
        [of("memory `remembers`: "), of("observer `honest`: ")]
    };
    while lines(&log).contains(&0) && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(20));
        log = std::fs::read_to_string(folder.path().join("log")).unwrap();
    }
    program.kill().unwrap();
    program.wait().unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert_eq!(lines(&log), [1, 1], "{log}");
}

/// One that is skipped is expected to fail: whoever alerts on the log hears of others only.
#[test]
fn what_an_open_stage_fails_at_is_in_the_log_and_what_a_skipped_one_does_is_not() {
    let folder = tempfile::tempdir().unwrap();
    let guest = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/guests/dist/honest.wasm");
    let stage = |name: &str, on_error: &str| {
        format!(
            "[[pipeline.stage]]\nplugin = \"{name}\"\nfile = {guest:?}\nstages = [\"retriever\"]\n\
             on_error = \"{on_error}\"\nconfig = {{ trap = \"retriever\" }}\n\
             limits = {{ wall_ms = 20000, cpu_ms = 5000 }}\n"
        )
    };
    let (mut program, addr) = start(folder.path(), &(stage("loud", "open") + &stage("hushed", "skip")), None);
    let body = "{\"model\":\"tidegate-starter\",\"messages\":[{\"role\":\"user\",\"content\":\"Hello!\"}]}";
    let answer = send(&addr, "/v1/chat/completions", "asked", body);
    let figures = send_as(&addr, "GET", "/metrics", "figures", "", "");
    program.kill().unwrap();
    program.wait().unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let log = std::fs::read_to_string(folder.path().join("log")).unwrap();
    let without = |name: &str| {
        log.lines()
            .filter(|line| line.contains("going on without it") && line.contains(&format!("plugin={name}")))
            .count()
    };
    assert_eq!((without("loud"), without("hushed")), (1, 0), "{log}");
    for name in ["loud", "hushed"] {
        let counted =
            format!("tidegate_plugin_failures_total{{plugin=\"{name}\",stage=\"retriever\",case=\"trap\"}} 1");
        assert!(figures.contains(&counted), "{name}: {figures}");
    }
}

/// As much as one call may write, and one line of the host's own that says what is missing.
#[test]
fn a_flood_of_lines_is_cut_off_in_the_log() {
    let folder = tempfile::tempdir().unwrap();
    let guest = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/guests/dist/floods.wasm");
    let config = format!(
        "[[pipeline.stage]]\nplugin = \"floods\"\nfile = {guest:?}\nlimits = {{ wall_ms = 20000, cpu_ms = 5000 }}\n"
    );
    let (mut program, addr) = start(folder.path(), &config, None);
    let body = "{\"model\":\"tidegate-starter\",\"messages\":[{\"role\":\"user\",\"content\":\"5000\"}]}";
    let answer = send(&addr, "/v1/chat/completions", "asked", body);
    program.kill().unwrap();
    program.wait().unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let log = std::fs::read_to_string(folder.path().join("log")).unwrap();
    let of_guest: Vec<&str> = log.lines().filter(|line| line.contains("plugin=\"floods\"")).collect();
    let (written, other): (Vec<&str>, Vec<&str>) = of_guest.iter().partition(|line| line.contains("\\nforged 789"));
    assert_eq!(written.len(), 16_384 / 103, "each line has 101 bytes, and two more by its escape");
    let dropped = format!("{} log lines of", 5000 - written.len());
    assert!(other.len() == 1 && other[0].contains(&dropped), "{other:?}");
    assert!(!log.lines().any(|line| line.starts_with("forged")), "a line stays a line");
}

#[test]
fn an_administrators_changes_are_in_the_log_and_no_key_is() {
    let folder = tempfile::tempdir().unwrap();
    let (mut program, addr) = start(folder.path(), "[store]\npath = \"data\"\n[pipeline]\n", None);
    let made = send(&addr, "/admin/keys", "asked-0", "{\"name\":\"root\",\"admin\":true}");
    let secret = made.split("\"key\":\"").nth(1).unwrap().split('"').next().unwrap().to_owned();
    let ask = |method: &str, path: &str, id: &str, body: &str| {
        let more = format!("authorization: Bearer {secret}\r\n");
        let answer = send_as(&addr, method, path, id, &more, body);
        assert!(answer.starts_with("HTTP/1.1 200"), "{method} {path}: {answer}");
        answer
    };
    ask("POST", "/admin/keys", "asked-1", "{\"name\":\"shop\",\"tenant\":\"t\"}");
    let again = ask("POST", "/admin/keys/shop/rotate", "asked-2", "");
    ask("DELETE", "/admin/keys/shop", "asked-3", "");
    let project = ask("POST", "/v1/organization/projects", "asked-4", "{\"name\":\"Web\",\"tenant\":\"t\"}");
    let project = project.split("\"id\":\"").nth(1).unwrap().split('"').next().unwrap().to_owned();
    ask("POST", &format!("/v1/organization/projects/{project}/archive"), "asked-5", "");
    ask("GET", "/admin/keys", "asked-6", "");
    program.kill().unwrap();
    program.wait().unwrap();
    let log = std::fs::read_to_string(folder.path().join("log")).unwrap();
    let has = |parts: &[&str]| log.lines().any(|line| parts.iter().all(|part| line.contains(part)));
    for (id, key, change, of) in [
        ("asked-0", "local", "key made", "root"),
        ("asked-1", "root", "key made", "shop"),
        ("asked-2", "root", "key rotated", "shop"),
        ("asked-3", "root", "key revoked", "shop"),
        ("asked-4", "root", "project made", &project),
        ("asked-5", "root", "project archived", &project),
    ] {
        let parts = [id, &format!("key=\"{key}\""), &format!("change=\"{change}\""), &format!("of=\"{of}\"")];
        assert!(has(&parts), "{parts:?} in {log}");
    }
    assert!(!has(&["asked-6"]), "what is only shown is no change: {log}");
    let other = again.split("\"key\":\"").nth(1).unwrap().split('"').next().unwrap();
    assert!(!log.contains(&secret) && !log.contains(other), "{log}");
}

#[test]
fn the_log_says_whose_a_request_was_answered_or_refused() {
    let folder = tempfile::tempdir().unwrap();
    let config = format!(
        "[[keys]]\nname = \"nightly\"\ntenant = \"acme\"\nclass = \"batch\"\nweight = 3\nhash = \"blake3:{}\"\n[pipeline]\n",
        blake3::hash(b"tg-n")
    );
    let (mut program, addr) = start(folder.path(), &config, None);
    for (model, status) in [("tidegate-starter", "200"), ("nobody", "404")] {
        let body = format!("{{\"model\":\"{model}\",\"messages\":[{{\"role\":\"user\",\"content\":\"Hello!\"}}]}}");
        let answer = send_as(&addr, "POST", "/v1/chat/completions", &format!("asked-{status}"), BY_KEY, &body);
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{answer}");
    }
    program.kill().unwrap();
    program.wait().unwrap();
    let log = std::fs::read_to_string(folder.path().join("log")).unwrap();
    for id in ["asked-200", "asked-404"] {
        let mut lines = log.lines().filter(|line| line.contains(id)).map(|line| line.replace('"', ""));
        let parts = ["tenant=acme", "key=nightly", "class=batch", "weight=3"];
        assert!(lines.any(|line| parts.iter().all(|part| line.contains(part))), "{log}");
    }
}

/// An upstream that answers one in three requests; gives where it is.
fn upstream() -> String {
    const ANSWER: &str = r#"{"id":"x","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,
        "message":{"role":"assistant","content":"Here I am."},"finish_reason":"stop"}]}"#;
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for (n, socket) in listener.incoming().enumerate() {
            let mut socket = socket.unwrap();
            let _ = socket.read(&mut [0; 65536]).unwrap();
            let (status, body) = if n % 3 == 2 { (200, ANSWER) } else { (503, "{}") };
            let head = format!(
                "HTTP/1.1 {status} Said\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
                body.len()
            );
            let _ = socket.write_all(format!("{head}{body}").as_bytes());
        }
    });
    addr.to_string()
}

#[test]
fn the_log_says_how_often_upstreams_were_asked() {
    let folder = tempfile::tempdir().unwrap();
    let model = |name: &str, retries: u32| {
        format!(
            "[[models]]\nname = \"{name}\"\nupstream = \"http://{}/v1\"\nretry = {{ retries = {retries}, backoff_ms = 5 }}\n",
            upstream()
        )
    };
    let config = format!("{}{}[pipeline]\n", model("third", 2), model("second", 1));
    let (mut program, addr) = start(folder.path(), &config, Some("debug"));
    for (model, status) in [("third", "200"), ("second", "502")] {
        let body = format!("{{\"model\":\"{model}\",\"messages\":[{{\"role\":\"user\",\"content\":\"Hello!\"}}]}}");
        let answer = send(&addr, "/v1/chat/completions", &format!("asked-{model}"), &body);
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{answer}");
    }
    program.kill().unwrap();
    program.wait().unwrap();
    let log = std::fs::read_to_string(folder.path().join("log")).unwrap();
    let has = |parts: &[&str]| log.lines().any(|line| parts.iter().all(|part| line.contains(part)));
    assert!(has(&["asked-third", "outcome=\"answered\"", "upstream_attempts=3"]), "{log}");
    assert!(has(&["asked-second", "status 503", "(the last of 2 attempts)"]), "{log}");
}
