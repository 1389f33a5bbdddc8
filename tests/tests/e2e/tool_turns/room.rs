//! What the server's tools may say for one answer, in all its turns.

use super::{CHAT, calls, gateway, says, whole};
use serde_json::Value;
use std::path::Path;
use tidegate::config::Config;
use tidegate_tests::stand_in::StandIn;
use tidegate_tests::{Gateway, ask};

/// What tools have said to that.
fn told(body: &Value) -> Vec<&str> {
    let messages = body["messages"].as_array().unwrap().iter().filter(|message| message["role"] == "tool");
    messages.map(|message| message["content"].as_str().unwrap()).collect()
}

/// A tool that says what it is called with, as text, and again for programs.
fn echoes() -> String {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("guests/dist/honest.wasm");
    format!(
        "[[pipeline.stage]]\nplugin = \"honest\"\nfile = {file:?}\nstages = [\"tool-provider\"]\n\
         [pipeline.stage.limits]\nwall_ms = 20000\ncpu_ms = 5000\noutput_bytes = 8388608\n"
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_is_told_of_a_result_for_which_its_answer_has_no_room_and_may_go_on() {
    let arguments = format!("\"{}\"", "x".repeat(11 << 18));
    let num_bytes = arguments.len();
    let upstream = StandIn::start(move |_, body| match told(body).len() {
        2 => says("Done."),
        _ => whole(&calls("echo", &arguments), "tool_calls", 10, 8),
    })
    .await;
    let gateway = gateway(&upstream, &echoes()).await;
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

/// What a server keeps of each answer is its operator's to say, also while it runs.
#[tokio::test(flavor = "multi_thread")]
async fn the_config_says_how_much_tools_may_say_for_an_answer_and_a_reload_takes_it() {
    let upstream = StandIn::start(|_, body| match told(body).len() {
        2 => says("Done."),
        _ => whole(&calls("echo", "\"0123456789\""), "tool_calls", 10, 8),
    })
    .await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tidegate.toml");
    let write = |max_tool_bytes: usize| {
        let pipeline = format!("[pipeline]\nmax_tool_bytes = {max_tool_bytes}\n{}", echoes());
        std::fs::write(&file, upstream.model("tidegate-starter") + &pipeline).unwrap();
    };
    // Twelve bytes in each of two turns, twice.
    write(47);
    let mut config = Config::load(&file).unwrap();
    config.cache_dir = Some(std::env::temp_dir().join("tidegate-tests-cache"));
    let gateway = Gateway::start_with(config).await;
    let said = async || {
        assert_eq!(gateway.chat(ask("Say it.")).await.text(), "Done.");
        told(&upstream.asked(CHAT).pop().unwrap()).into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    let [first, second] = &said().await[..] else { panic!("there were two turns") };
    let why = "it has 24 bytes, and of the 47 that all tools may say for one answer 23 are left";
    assert!(first == "\"0123456789\"" && second.contains(why), "{first} {second}");
    write(48);
    let answer = gateway.post_raw("/admin/reload", "").await;
    assert_eq!(answer.status, 200, "{:?}", answer.body);
    assert_eq!(said().await, ["\"0123456789\""; 2]);
}
