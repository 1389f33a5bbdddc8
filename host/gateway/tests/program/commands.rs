//! `tidegate chat`, `tidegate key`, and what holds for all commands.

use super::model::{Model, thinker};
use super::{Server, fixture, run, tidegate, write};
use base64::Engine;
use std::io::{Read, Write};
use std::process::{ChildStdout, Stdio};
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::Duration;

#[test]
fn chat_streams_an_answer_to_the_terminal() {
    let server = Server::start(&["--listen", "127.0.0.1:0"]);
    let url = format!("http://{}", server.addr);
    let nowhere = "http://127.0.0.1:9";
    // The option goes before the variable, as with all commands that ask a server.
    for (args, named) in [(&["chat", "--server", &url][..], nowhere), (&["chat"], &url)] {
        let mut chat = tidegate(args);
        chat.env("TIDEGATE_SERVER", named).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut chat = chat.spawn().unwrap();
        chat.stdin.take().unwrap().write_all(b"What is Tidegate?\nWhat is 17*23?\n").unwrap();
        let output = chat.wait_with_output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success() && text.contains("Rust program") && text.contains("391"), "{text}");
    }
}

/// The model says the rest only once the terminal has shown what came before.
#[test]
fn chat_shows_each_piece_of_an_answer_when_it_comes() {
    let model = Model::start("One, ", "two.");
    let mut chat = tidegate(&["chat", "--server", &model.url, "--model", "m"]);
    let mut chat = chat.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let shown = pieces(chat.stdout.take().unwrap());
    chat.stdin.take().unwrap().write_all(b"Count.\n").unwrap();
    let mut text = String::new();
    read_until(&shown, &mut text, "One, ");
    model.go_on();
    read_until(&shown, &mut text, "One, two.");
    assert!(chat.wait().unwrap().success());
}

#[test]
fn chat_says_on_a_line_of_its_own_that_an_answer_broke_off() {
    let model = Model::start("One, ", "two.");
    let mut chat = tidegate(&["chat", "--server", &model.url, "--model", "m"]);
    let mut chat = chat.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let shown = pieces(chat.stdout.take().unwrap());
    chat.stdin.take().unwrap().write_all(b"Count.\n").unwrap();
    let mut text = String::new();
    read_until(&shown, &mut text, "One, ");
    drop(model);
    read_until(&shown, &mut text, "One, \n! the model's answer broke off");
    assert!(!chat.wait().unwrap().success(), "a script is told by the status");
}

/// What is no terminal has no colours.
#[test]
fn chat_shows_what_the_model_reasons_and_does_not_send_it_back() {
    let (url, asked) = thinker(2, "A product.", "It is 391.", "stop");
    let mut chat = tidegate(&["chat", "--server", &url, "--model", "m"]);
    let mut chat = chat.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    chat.stdin.take().unwrap().write_all(b"What is 17*23?\nSure?\n").unwrap();
    let output = chat.wait_with_output().unwrap();
    let shown = String::from_utf8(output.stdout).unwrap();
    let answer = "> Thinking...\nA product.\n...done thinking.\n\nIt is 391.\n";
    assert!(output.status.success() && shown.ends_with(&format!("{answer}{answer}> ")), "{shown:?}");
    let bodies: Vec<_> = asked.iter().collect();
    let kept = serde_json::json!({"role": "assistant", "content": "It is 391."});
    assert_eq!(bodies[1]["messages"][1], kept);
}

/// What stood behind it would go to the shell.
#[test]
fn chat_passes_over_empty_lines_of_what_is_pasted() {
    let (url, asked) = thinker(2, "", "Yes.", "stop");
    let mut chat = tidegate(&["chat", "--server", &url, "--model", "m"]);
    let mut chat = chat.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    chat.stdin.take().unwrap().write_all(b"\nOne.\n\n \t\nTwo.\n\n").unwrap();
    let output = chat.wait_with_output().unwrap();
    let shown = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && shown.contains("; Ctrl-D ends.\n"), "{shown:?}");
    assert_eq!(shown.matches("Yes.").count(), 2, "{shown:?}");
    let texts: Vec<_> = asked.iter().map(|body| body["messages"].as_array().unwrap().last().cloned()).collect();
    assert_eq!(texts, ["One.", "Two."].map(|text| Some(serde_json::json!({"role": "user", "content": text}))));
}

/// What was not answered is not sent again either: some servers refuse a conversation with an empty answer.
#[test]
fn chat_says_why_an_answer_is_not_whole_and_goes_on_without_one_that_is_none() {
    for (text, finish, why, sent) in [
        ("Up to", "length", "Up to\n! the answer is cut off", 3),
        ("", "content_filter", "\n! a guard of the server has ended the answer", 1),
        ("", "tool_calls", "\n! the model calls a tool", 1),
    ] {
        let (url, asked) = thinker(2, "", text, finish);
        let mut chat = tidegate(&["chat", "--server", &url, "--model", "m"]);
        let mut chat = chat.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        chat.stdin.take().unwrap().write_all(b"What?\nSure?\n").unwrap();
        let output = chat.wait_with_output().unwrap();
        let shown = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success() && shown.matches(why).count() == 2, "{finish}: {shown:?}");
        let bodies: Vec<_> = asked.iter().collect();
        assert_eq!(bodies[1]["messages"].as_array().unwrap().len(), sent, "{finish}");
    }
}

/// What a program says, as it comes; read by another thread, since a program that says nothing must not hold the test up.
fn pieces(mut from: ChildStdout) -> Receiver<Vec<u8>> {
    let (tell, told) = sync_channel(100);
    std::thread::spawn(move || {
        let mut buffer = [0; 1024];
        while let Ok(len @ 1..) = from.read(&mut buffer) {
            if tell.send(buffer[..len].to_vec()).is_err() {
                break;
            }
        }
    });
    told
}

fn read_until(shown: &Receiver<Vec<u8>>, text: &mut String, expected: &str) {
    while !text.contains(expected) {
        let piece = shown.recv_timeout(Duration::from_secs(60));
        let piece = piece.unwrap_or_else(|error| panic!("{error}; {expected:?} is not in {text:?}"));
        text.push_str(&String::from_utf8(piece).unwrap());
    }
}

/// Says one line to `tidegate chat`; gives whether it ended well and everything that it said.
fn chat(url: &str, key: Option<&str>, more: &[&str]) -> (bool, String) {
    let mut chat = tidegate(&["chat", "--server", url]);
    chat.args(more).env_remove("TIDEGATE_API_KEY").envs(key.map(|key| ("TIDEGATE_API_KEY", key)));
    let mut chat = chat.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // It may have ended without reading.
    let _ = chat.stdin.take().unwrap().write_all(b"What is 17*23?\n");
    let output = chat.wait_with_output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&said).into_owned())
}

#[test]
fn chat_says_of_a_server_that_refuses_what_to_change_and_not_that_there_is_none() {
    let config = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/keys/tidegate.toml");
    let server = Server::start(&["--config", config.to_str().unwrap(), "--listen", "127.0.0.1:0"]);
    let url = format!("http://{}", server.addr);
    let with_model = ["--model", "tidegate-starter"];
    let key = "tg-example-alpha";
    for (key, model, parts) in [
        (None, &[][..], ["TIDEGATE_API_KEY", "is not set"]),
        (None, &with_model, ["TIDEGATE_API_KEY", "is not set"]),
        (Some("tg-wrong"), &[], ["TIDEGATE_API_KEY", "holds the key that was sent"]),
        (Some(key), &["--model", "nope"], ["`nope`", "tidegate-starter"]),
    ] {
        let (_, said) = chat(&url, key, model);
        assert!(parts.iter().all(|part| said.contains(part)), "{key:?} {model:?}: {said}");
        assert!(!said.contains("no server answers") && !said.contains("operator"), "{key:?} {model:?}: {said}");
    }
    let (good, said) = chat(&url, Some(key), &[]);
    assert!(good && said.contains("391"), "{said}");
    let (good, said) = chat("http://127.0.0.1:9", Some(key), &[]);
    assert!(!good && said.contains("no server answers at http://127.0.0.1:9; `tidegate serve` starts one"), "{said}");
}

#[test]
fn chat_that_names_no_model_has_what_the_routers_choose_or_else_the_first_that_chats() {
    let folder = tempfile::tempdir().unwrap();
    let vectors = format!("[[models]]\nname = \"a\"\npath = {:?}\n", fixture("embedding"));
    let chats = "[[models]]\nname = \"b\"\npath = \"bundled\"\n";
    let router = "[[pipeline.stage]]\nplugin = \"tier-router\"\nconfig = { rules = [{ models = [\"b\"] }] }\n\
                  limits = { wall_ms = 20000, cpu_ms = 5000 }\n";
    for (config, said_first) in [
        (format!("{vectors}{chats}[pipeline]\n"), "b at http"),
        (format!("{vectors}{chats}{router}"), "auto at http"),
        (format!("{vectors}[pipeline]\n"), "lists no model that answers chats; it lists: a"),
    ] {
        let config = format!("[server]\nlisten = \"127.0.0.1:0\"\n{config}");
        let server = Server::start(&["--config", write(folder.path(), "tidegate.toml", &config).to_str().unwrap()]);
        let (good, said) = chat(&format!("http://{}", server.addr), None, &[]);
        assert!(said.contains(said_first) && !said.contains("\n!"), "{said_first}: {said}");
        assert_eq!(good, !said_first.contains("lists no"), "{said}");
    }
}

#[test]
fn keys_of_a_server_whose_administration_is_elsewhere_are_asked_for_there() {
    let folder = tempfile::tempdir().unwrap();
    let text = "[server]\nlisten = \"127.0.0.1:0\"\nadmin_listen = \"127.0.0.1:0\"\n[pipeline]\n";
    let file = write(folder.path(), "tidegate.toml", text);
    let server = Server::start(&["--config", file.to_str().unwrap()]);
    let (good, said) = run(&["key", "list", "--server", &format!("http://{}", server.addr)]);
    assert!(!good && said.contains("server.admin_listen") && said.contains("--server"), "{said}");
}

fn pem(label: &str, der: &[u8]) -> String {
    let text = base64::engine::general_purpose::STANDARD.encode(der);
    format!("-----BEGIN {label}-----\n{text}\n-----END {label}-----\n")
}

/// A gateway within a company, whose certificate no public authority has signed.
#[test]
fn a_server_with_a_private_authority_is_believed_by_the_certificate_that_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    let ca = write(folder.path(), "cert.pem", &pem("CERTIFICATE", made.cert.der()));
    write(folder.path(), "key.pem", &pem("PRIVATE KEY", &made.signing_key.serialize_der()));
    let text = "[server]\nlisten = \"127.0.0.1:0\"\ntls = { cert = \"cert.pem\", key = \"key.pem\" }\n[store]\npath = \"data\"\n";
    let file = write(folder.path(), "tidegate.toml", text);
    let server = Server::start(&["--config", file.to_str().unwrap()]);
    let url = format!("https://{}", server.addr);
    let trust = ["--ca", ca.to_str().unwrap()];
    for command in [&["key", "list"][..], &["project", "list"], &["usage"]] {
        let asked = [command, &["--server", &url]].concat();
        let (good, said) = run(&asked);
        assert!(!good && said.contains("--ca names who signs its certificate"), "{command:?}: {said}");
        let (good, said) = run(&[&asked[..], &trust].concat());
        assert!(good, "{command:?}: {said}");
    }
    let (good, said) = chat(&url, None, &[]);
    assert!(!good && said.contains("--ca names who signs its certificate"), "{said}");
    let (good, said) = chat(&url, None, &trust);
    assert!(good && said.contains("391"), "{said}");
    let (good, said) = run(&[&["usage", "--server", &format!("http://{}", server.addr)][..], &trust].concat());
    assert!(!good && said.contains("--ca is about certificates"), "{said}");
}

/// As `| head` does, once it has its lines.
#[test]
fn a_command_that_nobody_reads_any_more_ends_without_a_word() {
    let plugin = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../plugins/dist/pii-guard.wasm");
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut inspect = tidegate(&["plugin", "inspect", plugin.to_str().unwrap()]);
    let output = inspect.stdout(writer).stderr(Stdio::piped()).spawn().unwrap().wait_with_output().unwrap();
    assert_eq!((&*String::from_utf8_lossy(&output.stderr), output.status.success()), ("", false));
}

#[test]
fn an_address_that_is_taken_is_said_once_with_the_reason() {
    let server = Server::start(&["--listen", "127.0.0.1:0"]);
    let (good, said) = run(&["--listen", &server.addr]);
    assert!(!good && said.contains(&format!("cannot listen on {}", server.addr)), "{said}");
    assert_eq!(said.matches("os error").count(), 1, "{said}");
}

#[test]
fn a_key_is_shown_with_its_entry() {
    let (good, said) = run(&["key", "alice"]);
    assert!(good && said.contains("tg-") && said.contains("name = \"alice\"") && said.contains("blake3:"), "{said}");
}
