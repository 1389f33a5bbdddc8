//! What the starter model is taught to say of Tidegate (`xtask/starter/facts.toml`) is true of the program: each endpoint,
//! option, command, plugin, field and number that an answer names is looked up there.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use clap::CommandFactory;
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::Path;
use tidegate::bundled::{PIPELINE, PLUGINS, STARTER_NAME};
use tidegate::cli::Cli;
use tidegate::config::Config;

struct Fact {
    id: String,
    answers: Vec<String>,
}

fn file(path: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)).unwrap()
}

fn facts() -> Vec<Fact> {
    let table: toml::Table = file("xtask/starter/facts.toml").parse().unwrap();
    let text = |value: &toml::Value| value.as_str().unwrap().to_owned();
    let fact = |fact: &toml::Value| Fact {
        id: text(&fact["id"]),
        answers: fact["answer"].as_array().unwrap().iter().map(text).collect(),
    };
    table["fact"].as_array().unwrap().iter().map(fact).collect()
}

/// Each answer, word by word, without the marks around words.
fn words() -> Vec<(String, Vec<String>)> {
    let bare = |word: &str| word.trim_matches(|c: char| !c.is_alphanumeric() && !"-/".contains(c)).to_owned();
    let of_answer = |answer: &String| (answer.clone(), answer.split_whitespace().map(bare).collect());
    facts().iter().flat_map(|fact| fact.answers.iter().map(of_answer).collect::<Vec<_>>()).collect()
}

/// The answers to one question.
fn answers(id: &str) -> Vec<String> {
    facts().into_iter().find(|fact| fact.id == id).unwrap_or_else(|| panic!("no fact is called {id}")).answers
}

fn all_say(id: &str, what: &str) {
    for answer in answers(id) {
        assert!(answer.contains(what), "{id} does not say {what}: {answer}");
    }
}

#[test]
fn endpoints_that_facts_name_are_there_with_their_methods() {
    let routes: Vec<(String, &str)> =
        tidegate_api::routes().map(|(method, path, _)| (method.to_string(), path)).collect();
    let mut named = 0;
    for (answer, words) in words() {
        for (i, word) in words.iter().enumerate().filter(|(_, word)| word.starts_with('/')) {
            let method = i.checked_sub(1).map(|before| words[before].as_str());
            let method = method.filter(|method| ["GET", "POST", "DELETE"].contains(method));
            let is_there =
                routes.iter().any(|(m, path)| *path == word.as_str() && method.is_none_or(|method| method == m));
            assert!(is_there, "{method:?} {word}: {answer}");
            named += 1;
        }
    }
    assert!(named > 30, "{named}");
}

#[test]
fn commands_and_options_that_facts_name_are_there() {
    let cli = Cli::command();
    let (mut commands, mut options) = (0, 0);
    for (answer, words) in words() {
        let raw: Vec<&str> = answer.split_whitespace().collect();
        for i in (1..raw.len()).filter(|i| raw[i - 1] == "tidegate") {
            assert!(cli.find_subcommand(&words[i]).is_some(), "tidegate {}: {answer}", words[i]);
            commands += 1;
        }
        for option in words.iter().filter_map(|word| word.strip_prefix("--")) {
            let has = |command: &clap::Command| command.get_arguments().any(|arg| arg.get_long() == Some(option));
            assert!(cli.get_subcommands().any(has), "--{option}: {answer}");
            options += 1;
        }
    }
    assert!(commands > 15 && options > 3, "{commands} {options}");
}

#[test]
fn plugins_that_facts_name_are_shipped_and_all_that_are_shipped_are_listed() {
    let shipped: BTreeSet<String> = PLUGINS.iter().map(|(name, _)| (*name).to_owned()).collect();
    for answer in answers("shipped-plugins") {
        let listed = answer.split([' ', ',', '.', ':']).filter(|word| shipped.contains(*word)).map(str::to_owned);
        assert_eq!(listed.collect::<BTreeSet<_>>(), shipped, "{answer}");
    }
    for (answer, words) in words() {
        let kinds = ["-guard", "-router", "-retriever", "-cache", "-observer"];
        for word in words.iter().filter(|word| kinds.iter().any(|kind| word.ends_with(kind))) {
            assert!(shipped.contains(word), "{word}: {answer}");
        }
    }
    let pipeline: toml::Table = PIPELINE.parse().unwrap();
    for stage in pipeline["stage"].as_array().unwrap() {
        all_say("default-pipeline", stage["plugin"].as_str().unwrap());
    }
}

#[test]
fn fields_that_facts_name_are_in_the_published_interface() {
    let interface: String = ["generation", "responses", "schemas", "models"]
        .map(|name| file(&format!("host/api/openapi/{name}.json")))
        .concat()
        + &file("host/wire/schemas/chat.json")
        + &file("host/wire/schemas/common.json");
    let mut named = 0;
    // A client's own setting.
    for (answer, words) in words() {
        for word in words.iter().filter(|word| word.contains('_') && !word.starts_with('/') && *word != "base_url") {
            assert!(interface.contains(&format!("\"{word}\"")), "{word}: {answer}");
            named += 1;
        }
    }
    assert!(named > 5, "{named}");
}

#[test]
fn numbers_and_names_are_those_of_the_program_and_its_model() {
    let model: Value = serde_json::from_str(&file("host/gateway/assets/starter/config.json")).unwrap();
    all_say("context-length", &format!("{} tokens", model["max_position_embeddings"]));
    all_say("architecture", &format!("hidden size of {}", model["hidden_size"]));
    assert!(model["num_key_value_heads"].as_u64() < model["num_attention_heads"].as_u64(), "grouped-query attention");
    let tokens = model["vocab_size"].as_u64().unwrap();
    assert!((5500..6500).contains(&tokens), "{tokens} are not about six thousand");
    all_say("tokenizer", "about six thousand tokens");
    let weights = Path::new(env!("CARGO_MANIFEST_DIR")).join("assets/starter/model.safetensors");
    assert!(weights.metadata().unwrap().len() < 16_000_000, "less than 16 megabytes");
    all_say("model-name", STARTER_NAME);
    all_say("address", &Config::parse("").unwrap().server.listen.to_string());
    all_say("blocks", &format!("{} tokens", tidegate_engine::BLOCK_TOKENS));
    all_say("watermark", &format!("{} bytes", tidegate::assemble::HOLDBACK_BYTES));
    for family in tidegate_model::registry::ARCHITECTURES {
        all_say("architectures", family.name.strip_suffix("ForCausalLM").unwrap());
    }
}

/// What the starter model says that Tidegate cannot do yet, and what the key would be called that turned it on.
const MISSING: [(&str, [&str; 2]); 3] =
    [("quantization", ["quant", "int8"]), ("lora", ["lora", "adapter"]), ("speculative", ["draft", "specul"])];

#[test]
fn what_facts_call_missing_is_missing_and_nothing_else_is_called_so() {
    let every_key = file("examples/full/tidegate.toml").to_lowercase();
    let denies = |fact: &Fact| fact.answers.iter().any(|answer| answer.contains(" not ") && answer.contains(" yet"));
    let denied: BTreeSet<String> = facts().into_iter().filter(denies).map(|fact| fact.id).collect();
    let known = MISSING.iter().map(|(id, _)| (*id).to_owned());
    assert_eq!(denied, known.collect(), "who changes this list looks whether it is true");
    for (id, names) in MISSING {
        assert!(!names.iter().any(|name| every_key.contains(name)), "the config has a key for {id}");
    }
}
