//! What a server says when it starts, what it refuses to start with, and how it ends.

use super::model::Model;
use super::{LONG, PROGRAM, Server, read_all, run, signal, streamed_text, tidegate, write};
use serde_json::json;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{BufRead, BufReader, ErrorKind, Read};
use std::net::{TcpListener, TcpStream};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::mpsc::sync_channel;
use std::time::{Duration, Instant};

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
    signal::send(server.child.id(), "TERM");
    let answer = read_all(socket);
    assert!(answer.contains("\"finish_reason\":\"length\"") && answer.contains("[DONE]"), "{answer}");
    assert!(server.child.wait().unwrap().success());
    assert!(TcpStream::connect(&server.addr).is_err());
}

/// Ctrl-C. The same request has the same answer, which shows that nothing of it is lost.
#[test]
fn an_interrupt_lets_a_running_stream_come_to_its_end() {
    let mut server = Server::start(&["--listen", "127.0.0.1:0"]);
    let ask = || server.ask("Tell me a story.", serde_json::from_str(LONG).unwrap());
    let whole = streamed_text(&read_all(ask()));
    let mut socket = ask();
    let mut first = [0; 16];
    socket.read_exact(&mut first).unwrap();
    signal::send(server.child.id(), "INT");
    assert_eq!(streamed_text(&read_all(socket)), whole);
    assert!(server.child.wait().unwrap().success());
}

/// For as long as a load balancer takes to look, which here is until a second signal.
#[test]
fn a_server_that_is_told_to_stop_says_so_first_and_answers_meanwhile() {
    let folder = tempfile::tempdir().unwrap();
    let config = "[server]\nlisten = \"127.0.0.1:0\"\nsettle_ms = 300000\n";
    let config = write(folder.path(), "tidegate.toml", config);
    let mut server = Server::start(&["--config", config.to_str().unwrap()]);
    assert!(read_all(server.get("/readyz")).starts_with("HTTP/1.1 200"));
    signal::send(server.child.id(), "TERM");
    while !read_all(server.get("/readyz")).starts_with("HTTP/1.1 503") {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(read_all(server.ask("Hello", json!({"max_tokens": 2}))).starts_with("HTTP/1.1 200"));
    signal::send(server.child.id(), "TERM");
    let said = server.last_words();
    assert!(said[0].starts_with("stopping  not ready; in 300s no new requests"), "{said:?}");
}

/// Its answer never ends by itself, so that a server which waits for it ends a minute later and says nothing.
#[test]
fn a_second_interrupt_cuts_running_answers_and_says_so() {
    let model = Model::start("One, ", "two.");
    let folder = tempfile::tempdir().unwrap();
    let config = format!(
        "[server]\nlisten = \"127.0.0.1:0\"\ndrain_timeout_ms = 60000\n\
         [[models]]\nname = \"m\"\nupstream = \"{}/v1\"\n[pipeline]\n",
        model.url
    );
    let config = write(folder.path(), "tidegate.toml", &config);
    let mut server = Server::start(&["--config", config.to_str().unwrap()]);
    let mut socket = server.ask("Count.", json!({"model": "m", "stream": true}));
    let mut first = [0; 16];
    socket.read_exact(&mut first).unwrap();
    signal::send(server.child.id(), "INT");
    // It takes nothing new, so that it waits already.
    while TcpStream::connect(&server.addr).is_ok() {
        std::thread::sleep(Duration::from_millis(1));
    }
    signal::send(server.child.id(), "INT");
    let said = server.last_words();
    assert!(said.first().is_some_and(|line| line.starts_with("stopping ")), "{said:?}");
    assert_eq!(said.last().map(String::as_str), Some("stopped   at once; running answers were cut"), "{said:?}");
}

#[test]
fn the_facts_name_the_plugins_in_the_order_of_the_pipeline() {
    let folder = tempfile::tempdir().unwrap();
    for order in [["word-guard", "pii-guard", "calculator"], ["calculator", "word-guard", "pii-guard"]] {
        let mut config = "[server]\nlisten = \"127.0.0.1:0\"\n".to_owned();
        for plugin in order {
            let more = if plugin == "word-guard" { "config = { words = [\"heron\"] }\n" } else { "" };
            config.push_str(&format!("[[pipeline.stage]]\nplugin = \"{plugin}\"\n{more}"));
        }
        let config = write(folder.path(), "tidegate.toml", &config);
        let server = Server::start(&["--config", config.to_str().unwrap()]);
        let plugins = server.facts.iter().filter_map(|fact| fact.strip_prefix("plugin    ")?.split(' ').next());
        assert_eq!(plugins.collect::<Vec<_>>(), order);
    }
}

/// What the system lets a process have open, at first and at most.
fn open_files(pid: u32) -> (String, String) {
    let limits = std::fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files")).unwrap();
    let mut words = line.split_whitespace().map(str::to_owned);
    (words.next().unwrap(), words.next().unwrap())
}

#[test]
fn a_server_has_as_many_files_open_as_it_may_and_says_when_they_are_too_few() {
    let limited = |limits: &str| {
        let mut command = Command::new("sh");
        command.args(["-c", &format!("ulimit {limits}; exec \"$0\" --listen 127.0.0.1:0"), PROGRAM]);
        command.env("XDG_CACHE_HOME", std::env::temp_dir().join("tidegate-tests-cache")).env_remove("RUST_LOG");
        command
    };
    let server = Server::run(&mut limited("-Sn 256"));
    let (soft, hard) = open_files(server.child.id());
    assert_eq!(soft, hard);
    let mut child = limited("-n 1000").stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut said = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
    let (tell, told) = sync_channel(100);
    // Read by another thread: a server that says nothing must not hold the test up.
    std::thread::spawn(move || said.try_for_each(|line| tell.send(line)));
    let mut lines = std::iter::from_fn(|| told.recv_timeout(Duration::from_secs(120)).ok());
    let warned = lines.find(|line| line.contains("may have 1000 files open") && line.contains("LimitNOFILE="));
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(warned.is_some());
}

/// With what is logged without it, whoever looks for something would not find it, and not know why.
#[test]
fn what_is_logged_is_said_in_a_form_that_can_be_read_or_nothing_starts() {
    let folder = tempfile::tempdir().unwrap();
    let text = "[server]\nlisten = \"127.0.0.1:0\"\n";
    let config = write(folder.path(), "tidegate.toml", text);
    // One that would start all the same would not end by itself.
    let absent = format!("{text}[[models]]\nname = \"m\"\npath = \"nowhere\"\n");
    let absent = write(folder.path(), "absent.toml", &absent);
    let [config, absent] = [&config, &absent].map(|file| file.to_str().unwrap());
    for args in [&["serve", "--config", absent][..], &["check", config], &["plugin", "inspect", "calculator"]] {
        for (wrong, why) in [
            (OsStr::new("tidegate=inof"), "error parsing level filter: expected one of"),
            (OsStr::new("warn,=info"), "invalid filter directive"),
            (OsStr::from_bytes(b"warn\xff"), "not valid unicode"),
        ] {
            let Output { status, stderr, .. } = tidegate(args).env("RUST_LOG", wrong).output().unwrap();
            let said = String::from_utf8(stderr).unwrap();
            let begins = said.starts_with("tidegate: the variable RUST_LOG cannot be read: ");
            assert!(!status.success() && begins && said.contains(why), "{args:?}, {wrong:?}: {said}");
        }
    }
    for good in ["tidegate=debug", "info,tidegate_api=trace"] {
        let checked = tidegate(&["check", config]).env("RUST_LOG", good).output().unwrap();
        assert!(checked.status.success(), "{good}: {}", String::from_utf8_lossy(&checked.stderr));
    }
    assert!(tidegate(&["check", config]).env_remove("RUST_LOG").output().unwrap().status.success());
}

/// The probe itself needs no key, and is told no more than that it is so.
#[test]
fn the_log_says_which_guard_a_server_that_is_not_ready_lacks() {
    let folder = tempfile::tempdir().unwrap();
    let config = "[server]\nlisten = \"127.0.0.1:0\"\n[[pipeline.stage]]\nplugin = \"absent\"\nfile = \"nowhere.wasm\"\n\
                  stages = [\"prompt-guard\"]\n";
    let (config, log) = (write(folder.path(), "tidegate.toml", config), folder.path().join("log"));
    let mut command = tidegate(&["--config", config.to_str().unwrap()]);
    let server = Server::run_logging_to(File::create(&log).unwrap(), command.env_remove("RUST_LOG"));
    let answer = read_all(server.get("/readyz"));
    assert!(answer.starts_with("HTTP/1.1 503") && !answer.contains("nowhere"), "{answer}");
    let line = logged(&log, "did not load: pipeline.stage 1 (`absent`): ");
    assert!(line.contains("/readyz") && line.contains("nowhere.wasm"), "{line}");
}

/// Which tools there are is not known before.
#[test]
fn the_log_says_once_which_tool_with_a_price_is_none_when_tools_are_offered() {
    let folder = tempfile::tempdir().unwrap();
    let config = "[server]\nlisten = \"127.0.0.1:0\"\n[[pipeline.stage]]\nplugin = \"calculator\"\n\
                  price = { tools = { calculater = 0.01, calculator = 0.02 } }\n";
    let (config, log) = (write(folder.path(), "tidegate.toml", config), folder.path().join("log"));
    let mut command = tidegate(&["--config", config.to_str().unwrap()]);
    let server = Server::run_logging_to(File::create(&log).unwrap(), command.env_remove("RUST_LOG"));
    let told = "price.tools names calculater, which it does not have: nothing is billed by that; it has calculator";
    for more in [json!({"tool_choice": "none"}), json!({}), json!({})] {
        let is_offered = more.get("tool_choice").is_none();
        assert!(read_all(server.ask("Hello", more)).starts_with("HTTP/1.1 200"));
        let said = std::fs::read_to_string(&log).unwrap();
        assert_eq!(said.matches(told).count(), usize::from(is_offered), "{said}");
    }
    assert!(logged(&log, told).contains("plugin=\"calculator\""));
}

/// Waits for a line with that in it.
fn logged(log: &Path, part: &str) -> String {
    let until = Instant::now() + Duration::from_secs(60);
    loop {
        let said = std::fs::read_to_string(log).unwrap();
        if let Some(line) = said.split_inclusive('\n').find(|line| line.ends_with('\n') && line.contains(part)) {
            return line.to_owned();
        }
        assert!(Instant::now() < until, "no line has {part:?}: {said}");
        std::thread::sleep(Duration::from_millis(20));
    }
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

/// Its store is a server that takes connections and says nothing, so that it loads until it is killed.
#[test]
fn a_server_that_still_loads_turns_connections_away_and_says_at_once_that_its_address_is_taken() {
    let store = TcpListener::bind("127.0.0.1:0").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let config = "[store]\npath = \"data\"\npostgres_env = \"SILENT_STORE\"\n";
    let config = write(folder.path(), "tidegate.toml", config);
    let serve = |addr: &str| {
        let mut command = tidegate(&["--config", config.to_str().unwrap(), "--listen", addr]);
        let url = format!("postgres://root@{}/test?sslmode=disable", store.local_addr().unwrap());
        command.env("SILENT_STORE", url).stdout(Stdio::null()).stderr(Stdio::piped());
        command
    };
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let mut loading = serve(&free.to_string()).spawn().unwrap();
    let _asked = store.accept().unwrap();
    let turned_away = TcpStream::connect(free).map_err(|error| error.kind());
    loading.kill().unwrap();
    loading.wait().unwrap();
    assert_eq!(turned_away.err(), Some(ErrorKind::ConnectionRefused));
    store.set_nonblocking(true).unwrap();
    while store.accept().is_ok() {}
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = taken.local_addr().unwrap().to_string();
    let Output { status, stderr, .. } = serve(&addr).output().unwrap();
    let said = String::from_utf8_lossy(&stderr);
    assert!(!status.success() && said.contains(&format!("cannot listen on {addr}")), "{said}");
    assert!(store.accept().is_err(), "nothing was loaded before that");
}

#[test]
fn an_open_address_without_keys_is_refused() {
    let (good, said) = run(&["--listen", "0.0.0.0:0"]);
    assert!(!good && said.contains("tidegate key"), "{said}");
}
