//! An engine in a process of its own that dies.

use super::{LONG, PROGRAM, Server, fixture, read_all, signal, streamed_text, tidegate, write};
use serde_json::{Value, json};
use std::io::{ErrorKind, Read};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

const RESTARTS: &str = "tidegate_engine_restarts_total";

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
    signal::send(worker_of(&server), "KILL");
    let answer = String::from_utf8_lossy(&first[..read]).into_owned() + &read_all(socket);
    assert_eq!(streamed_text(&answer), undisturbed);
    assert_eq!(figure_of(&server, RESTARTS, "tidegate-starter"), 1.0, "it was killed over its answer");
    let again = read_all(server.ask("What is Tidegate?", json!({})));
    assert!(again.contains("200 OK"), "{again}");
}

/// As where an upgrade waits for the night.
#[test]
fn another_program_in_the_place_of_this_one_is_no_worker_of_it() {
    let folder = tempfile::tempdir_in(Path::new(PROGRAM).parent().unwrap()).unwrap();
    let text = "[server]\nlisten = \"127.0.0.1:0\"\n[engine]\nisolation = \"process\"\n[pipeline]\n";
    let config = write(folder.path(), "tidegate.toml", text);
    let program = folder.path().join("tidegate");
    std::fs::hard_link(PROGRAM, &program).unwrap();
    let mut command = Command::new(&program);
    let like = tidegate(&["serve", "--config", config.to_str().unwrap()]);
    command.args(like.get_args()).envs(like.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let server = Server::run(&mut command);
    std::fs::remove_file(&program).unwrap();
    write(folder.path(), "tidegate", "#!/bin/sh\nexit 1\n");
    signal::send(worker_of(&server), "KILL");
    let answer = read_all(server.ask("What is Tidegate?", json!({})));
    assert!(answer.contains("200 OK"), "{answer}");
    assert_eq!(std::fs::read_to_string(format!("/proc/{}/comm", worker_of(&server))).unwrap(), "tidegate\n");
}

/// The process compiles the schema itself, and the one that comes after it too.
#[test]
fn an_engine_process_holds_answers_to_a_schema_and_so_does_the_next() {
    let folder = tempfile::tempdir().unwrap();
    let text = "[server]\nlisten = \"127.0.0.1:0\"\n[engine]\nisolation = \"process\"\n[pipeline]\n";
    let config = write(folder.path(), "tidegate.toml", text);
    let server = Server::start(&["serve", "--config", config.to_str().unwrap()]);
    let schema = json!({"type": "object", "required": ["words"], "additionalProperties": false, "properties": {"words":
        {"type": "array", "items": {"type": "string", "minLength": 5, "maxLength": 9}, "minItems": 40, "maxItems": 40}}});
    let format = json!({"type": "json_schema", "json_schema": {"name": "words", "schema": schema}});
    // Hotter, the blanks that JSON allows between the words may fill the context.
    let request = json!({"stream": true, "seed": 5, "temperature": 0.5, "response_format": format});
    let undisturbed = streamed_text(&read_all(server.ask("Say words.", request.clone())));
    let words: Value = serde_json::from_str(&undisturbed).unwrap();
    assert_eq!(words["words"].as_array().unwrap().len(), 40);

    let mut socket = server.ask("Say words.", request);
    let mut first = [0; 1024];
    let read = socket.read(&mut first).unwrap();
    signal::send(worker_of(&server), "KILL");
    let answer = String::from_utf8_lossy(&first[..read]).into_owned() + &read_all(socket);
    assert_eq!(streamed_text(&answer), undisturbed);
    assert_eq!(figure_of(&server, RESTARTS, "tidegate-starter"), 1.0, "it was killed over its answer");
    let figures = read_all(server.get("/metrics"));
    for figure in ["tidegate_grammar_compile_seconds_count", "tidegate_engine_mask_seconds_count"] {
        let line = figures.lines().find(|line| line.starts_with(figure)).unwrap_or_else(|| panic!("{figures}"));
        assert!(!line.ends_with(" 0"), "{line}");
    }
}

/// The engine's process has no text: what the config says of that counts here.
#[test]
fn a_chat_template_of_the_config_counts_beside_an_engine_process() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "own.jinja", "{% if messages | length > 1 %}{{ raise_exception('one at most') }}{% endif %}a");
    let text = "[server]\nlisten = \"127.0.0.1:0\"\n[engine]\nisolation = \"process\"\n[pipeline]\n[[models]]\n\
                name = \"tidegate-starter\"\npath = \"bundled\"\nchat_template = \"own.jinja\"\n";
    let config = write(folder.path(), "tidegate.toml", text);
    let server = Server::start(&["serve", "--config", config.to_str().unwrap()]);
    let one = read_all(server.ask("What is Tidegate?", json!({"max_tokens": 1})));
    assert!(one.contains("200 OK") && one.contains("\"prompt_tokens\":1"), "{one}");
    let message = json!({"role": "user", "content": "a"});
    let two = read_all(server.ask("", json!({"messages": [message, message]})));
    assert!(two.contains("400 Bad Request") && two.contains("one at most"), "{two}");
}

/// The folder's own is not read then, by neither of the two.
#[test]
fn an_engine_process_holds_answers_beside_a_template_that_is_put_in_place_of_a_broken_one() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("model");
    std::fs::create_dir(&model).unwrap();
    for name in ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"] {
        std::fs::copy(fixture("qwen2").join(name), model.join(name)).unwrap();
    }
    write(&model, "chat_template.jinja", "{% if %}");
    write(folder.path(), "own.jinja", "a");
    let text = "[server]\nlisten = \"127.0.0.1:0\"\n[engine]\nisolation = \"process\"\n[pipeline]\n[[models]]\n\
                name = \"tidegate-starter\"\npath = \"model\"\nchat_template = \"own.jinja\"\n";
    let config = write(folder.path(), "tidegate.toml", text);
    let server = Server::start(&["serve", "--config", config.to_str().unwrap()]);
    let request = json!({"max_tokens": 3, "response_format": {"type": "json_object"}});
    let answer = read_all(server.ask("Say something.", request));
    assert!(answer.contains("200 OK") && answer.contains("\"content\":\"{"), "{answer}");
}

#[test]
fn an_engine_process_that_dies_over_vectors_is_replaced_and_they_are_made_again() {
    let folder = tempfile::tempdir().unwrap();
    let text = format!(
        "[server]\nlisten = \"127.0.0.1:0\"\n[engine]\nisolation = \"process\"\nmax_batch_tokens = 16\nmax_seqs = 4\n\
         ahead = \"always\"\n[[models]]\nname = \"embedding\"\npath = {:?}\n[pipeline]\n",
        fixture("embedding")
    );
    let config = write(folder.path(), "tidegate.toml", &text);
    let server = Server::start(&["serve", "--config", config.to_str().unwrap()]);
    let facts = server.facts.join("\n");
    for fact in ["Qwen3ForCausalLM, vectors of 32 numbers", "ahead     never: vectors are made step by step"] {
        assert!(facts.contains(fact), "{fact} in\n{facts}");
    }
    let many: Vec<String> = (0..2000).map(|n| format!("The keeper of gate {n} counts boats and stones.")).collect();
    let body = json!({"model": "embedding", "input": many});
    let vectors = |answer: String| -> Value {
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.contains("200 OK"), "{answer}");
        serde_json::from_str::<Value>(body).unwrap()["data"].clone()
    };
    let undisturbed = vectors(read_all(server.send("/v1/embeddings", &body)));
    assert_eq!(figure(&server, "tidegate_engine_restarts_total"), 0.0);

    // Where this test is not given the time in which they are made, they are made again.
    let mut killed = 0;
    let is_killed_over_them = (1..=5).any(|restarts| {
        let until = Instant::now() + Duration::from_secs(60);
        while worker_of(&server) == killed {
            assert!(Instant::now() < until, "the engine is not replaced");
        }
        killed = worker_of(&server);
        let socket = server.send("/v1/embeddings", &body);
        while figure(&server, "tidegate_engine_running") == 0.0 && waits(&socket) {
            assert!(Instant::now() < until, "the engine never begins");
        }
        signal::send(killed, "KILL");
        let has_waited = waits(&socket);
        assert_eq!(vectors(read_all(socket)), undisturbed);
        if has_waited {
            assert_eq!(figure(&server, RESTARTS), f64::from(restarts));
        }
        has_waited
    });
    assert!(is_killed_over_them, "it was always answered before its engine was killed");
}

/// Whether nothing has come yet.
fn waits(socket: &TcpStream) -> bool {
    socket.set_nonblocking(true).unwrap();
    let waits = socket.peek(&mut [0]).is_err_and(|error| error.kind() == ErrorKind::WouldBlock);
    socket.set_nonblocking(false).unwrap();
    waits
}

/// A figure of the model.
fn figure(server: &Server, name: &str) -> f64 {
    figure_of(server, name, "embedding")
}

fn figure_of(server: &Server, name: &str, model: &str) -> f64 {
    let answer = read_all(server.get("/metrics"));
    let line = answer.lines().find_map(|line| line.strip_prefix(&format!("{name}{{model=\"{model}\"}} ")));
    line.unwrap_or_else(|| panic!("no {name} in {answer}")).parse().unwrap()
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
