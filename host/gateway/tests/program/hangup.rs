//! SIGHUP, and a config that is taken anew.

use super::{LONG, PROGRAM, Server, read_all, run, signal, tidegate, write};
use serde_json::json;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

#[test]
fn a_hangup_takes_the_config_anew_and_a_bad_one_leaves_the_old() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tidegate.toml");
    let write = |word: &str| {
        let config = format!(
            "[server]\nlisten = \"127.0.0.1:0\"\n[[pipeline.stage]]\nplugin = \"word-guard\"\n\
             config = {{ words = [\"{word}\"], action = \"block\" }}\n\
             limits = {{ wall_ms = 20000, cpu_ms = 5000 }}\n"
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
    signal::send(server.child.id(), "HUP");
    becomes(&server, "an otter", "400");
    assert_eq!(status(&server, "a heron"), "200");
    std::fs::write(&path, "[server\n").unwrap();
    signal::send(server.child.id(), "HUP");
    let until = Instant::now() + Duration::from_secs(60);
    while !read_all(server.get("/metrics")).contains("tidegate_reloads_total{outcome=\"refused\"} 1") {
        assert!(Instant::now() < until, "it is never refused");
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!((status(&server, "a heron"), status(&server, "an otter")), ("200".into(), "400".into()));
}

#[test]
fn a_hangup_ends_a_server_without_a_config_unless_it_is_to_be_ignored() {
    // The tests may be detached themselves.
    let start = |how: &[&str]| {
        let mut command = Command::new(how[0]);
        command.args(&how[1..]).args([PROGRAM, "--listen", "127.0.0.1:0"]);
        command.env("XDG_CACHE_HOME", std::env::temp_dir().join("tidegate-tests-cache"));
        Server::run(&mut command)
    };
    let mut server = start(&["env", "--default-signal=HUP"]);
    signal::send(server.child.id(), "HUP");
    assert!(server.child.wait().unwrap().success());

    let server = start(&["nohup"]);
    signal::send(server.child.id(), "HUP");
    std::thread::sleep(Duration::from_millis(500));
    let answer = read_all(server.ask("What is Tidegate?", json!({})));
    assert!(answer.contains("200 OK"), "{answer}");
}

#[test]
fn a_hangup_cuts_no_answer_of_a_server_that_stops() {
    let folder = tempfile::tempdir().unwrap();
    let config = write(folder.path(), "tidegate.toml", "[server]\nlisten = \"127.0.0.1:0\"\n[pipeline]\n");
    let mut server = Server::start(&["--config", config.to_str().unwrap()]);
    let mut socket = server.ask("Tell me a story.", serde_json::from_str(LONG).unwrap());
    let mut first = [0; 16];
    socket.read_exact(&mut first).unwrap();
    signal::send(server.child.id(), "TERM");
    // It takes nothing new, so that it stops already.
    while TcpStream::connect(&server.addr).is_ok() {
        std::thread::sleep(Duration::from_millis(1));
    }
    signal::send(server.child.id(), "HUP");
    let answer = read_all(socket);
    assert!(answer.contains("\"finish_reason\":\"length\"") && answer.contains("[DONE]"), "{answer}");
    assert!(server.child.wait().unwrap().success());
}

/// What loads a plugin waits here for a pipe that nobody writes to: it is in the place of a packed plugin's component.
#[test]
fn a_server_stops_while_a_reload_runs() {
    let folder = tempfile::tempdir().unwrap();
    let listens = "[server]\nlisten = \"127.0.0.1:0\"\n[pipeline]\n";
    let config = write(folder.path(), "tidegate.toml", listens);
    let component = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../plugins/dist/template.wasm");
    let packed = folder.path().join("mine.oci");
    let (good, said) = run(&["plugin", "pack", component.to_str().unwrap(), "--output", packed.to_str().unwrap()]);
    assert!(good, "{said}");
    let blobs = std::fs::read_dir(packed.join("blobs/sha256")).unwrap().map(|blob| blob.unwrap().path());
    let pipe = blobs.max_by_key(|blob| std::fs::metadata(blob).unwrap().len()).unwrap();
    std::fs::remove_file(&pipe).unwrap();
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let mut server = Server::start(&["--config", config.to_str().unwrap()]);
    let stage = "[[pipeline.stage]]\nplugin = \"mine\"\nfile = \"mine.oci\"\n";
    write(folder.path(), "tidegate.toml", &format!("{listens}{stage}"));
    signal::send(server.child.id(), "HUP");
    // That it can be opened means that somebody reads it.
    let (tell, told) = std::sync::mpsc::sync_channel(1);
    std::thread::spawn(move || tell.send(std::fs::OpenOptions::new().write(true).open(&pipe).unwrap()));
    let _held = told.recv_timeout(Duration::from_secs(60)).expect("the plugin is never read");
    signal::send(server.child.id(), "TERM");
    let until = Instant::now() + Duration::from_secs(30);
    while server.child.try_wait().unwrap().is_none() {
        assert!(Instant::now() < until, "it does not stop");
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(server.last_words().iter().any(|word| word.starts_with("stopping ")));
}

/// As soon as SIGHUP is a request, which is before there is anything to see.
#[test]
fn a_hangup_during_the_start_waits_for_its_end() {
    let folder = tempfile::tempdir().unwrap();
    let config = write(folder.path(), "tidegate.toml", "[server]\nlisten = \"127.0.0.1:0\"\n");
    // Where this test is not given the time in which it starts, it is started again.
    assert!((0..5).any(|_| a_hangup_waits_for_the_start(&config)), "it has always started before it caught the signal");
}

/// Says whether it was still starting.
fn a_hangup_waits_for_the_start(config: &Path) -> bool {
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
    goes_on(child.id());
    let starts = told.try_recv().is_err();
    if starts {
        signal::send(child.id(), "HUP");
        let mut lines = std::iter::from_fn(|| told.recv_timeout(Duration::from_secs(120)).ok());
        assert!(lines.any(|line| line.starts_with("listening ")), "it was ended");
        assert!(lines.any(|line| line.starts_with("keys ")), "it never took the config anew");
    }
    child.kill().unwrap();
    child.wait().unwrap();
    starts
}

/// Waits until the thread that starts has run for a moment: between catching a signal and listening for it, which is two steps of
/// a library's, one is lost.
fn goes_on(pid: u32) {
    let file = format!("/proc/{pid}/task/{pid}/schedstat");
    let ran = || {
        let nanos = std::fs::read_to_string(&file).unwrap();
        Duration::from_nanos(nanos.split(' ').next().unwrap().parse().unwrap())
    };
    let (until, enough) = (Instant::now() + Duration::from_secs(2), ran() + Duration::from_micros(500));
    while ran() < enough && Instant::now() < until {
        std::thread::sleep(Duration::from_micros(200));
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
         [[keys]]\nname = \"a\"\nhash = \"blake3:{hash}\"\nadmin = true\nmodels = [\"big\", \"chat\"]\n[pipeline]\n"
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
