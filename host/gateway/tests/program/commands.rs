//! `tidegate chat` and `tidegate key`.

use super::{Server, run, tidegate};
use std::io::Write;
use std::process::Stdio;

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

#[test]
fn a_key_is_shown_with_its_entry() {
    let (good, said) = run(&["key", "alice"]);
    assert!(good && said.contains("tg-") && said.contains("name = \"alice\"") && said.contains("blake3:"), "{said}");
}
