//! What the server's tools may say for one answer, in all its turns.

use super::{CHAT, calls, gateway, says, whole};
use serde_json::Value;
use std::path::Path;
use tidegate_tests::ask;
use tidegate_tests::stand_in::StandIn;

/// What tools have said to that.
fn told(body: &Value) -> Vec<&str> {
    let messages = body["messages"].as_array().unwrap().iter().filter(|message| message["role"] == "tool");
    messages.map(|message| message["content"].as_str().unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_is_told_of_a_result_for_which_its_answer_has_no_room_and_may_go_on() {
    // The guest says it as text, and again for programs.
    let arguments = format!("\"{}\"", "x".repeat(11 << 18));
    let num_bytes = arguments.len();
    let upstream = StandIn::start(move |_, body| match told(body).len() {
        2 => says("Done."),
        _ => whole(&calls("echo", &arguments), "tool_calls", 10, 8),
    })
    .await;
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("guests/dist/honest.wasm");
    let stage = format!(
        "[[pipeline.stage]]\nplugin = \"honest\"\nfile = {file:?}\nstages = [\"tool-provider\"]\n\
         [pipeline.stage.limits]\nwall_ms = 20000\ncpu_ms = 5000\noutput_bytes = 8388608\n"
    );
    let gateway = gateway(&upstream, &stage).await;
    assert_eq!(gateway.chat(ask("Say it.")).await.text(), "Done.");
    let asked = upstream.asked(CHAT).pop().unwrap();
    let [first, second] = told(&asked)[..] else { panic!("{} results", told(&asked).len()) };
    let (twice, all) = (2 * num_bytes, 10 << 20);
    assert_eq!(first.len(), num_bytes);
    assert_eq!(
        second,
        format!(
            "the result is too long: it has {twice} bytes, and of the {all} that all tools may say for one answer {} are \
             left; ask for less",
            all - twice
        )
    );
}
