//! The bundled model says of Tidegate what `xtask/starter/facts.toml` has, whose answers `gateway/tests/facts.rs` holds against the
//! program: who changes a fact trains the model again, or the old one would go on saying what is no longer true.

use regex::Regex;
use serde_json::json;
use std::path::Path;
use tidegate_tests::{BARE, Gateway, ask};

/// The first of each choice: `[hi|hello][ there|]` is `hi there`.
fn first(pattern: &str) -> String {
    let innermost = Regex::new(r"\[([^\[\]|]*)(\|[^\[\]]*)?\]").unwrap();
    let mut text = pattern.to_owned();
    while innermost.is_match(&text) {
        text = innermost.replace(&text, "$1").into_owned();
    }
    text
}

#[tokio::test(flavor = "multi_thread")]
async fn the_bundled_model_says_what_is_held_against_the_program() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../xtask/starter/facts.toml");
    let table: toml::Table = std::fs::read_to_string(file).unwrap().parse().unwrap();
    let gateway = Gateway::start(BARE).await;
    let (facts, mut wrong) = (table["fact"].as_array().unwrap(), Vec::new());
    for fact in facts {
        let text = |key: &str| fact[key].as_str().unwrap();
        let mut request = ask(&first(fact["ask"][0].as_str().unwrap()));
        (request["temperature"], request["max_tokens"]) = (json!(0), json!(100));
        let answer = gateway.chat(request).await.text();
        if !Regex::new(text("check")).unwrap().is_match(&answer) {
            wrong.push(format!("{}: {answer}", text("id")));
        }
    }
    assert!(wrong.is_empty(), "{} of {} facts:\n{}", wrong.len(), facts.len(), wrong.join("\n"));
}
