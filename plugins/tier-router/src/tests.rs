//! Behaviour of the router as a whole.

use super::*;
use tidegate_plugin_sdk::host::fake;
use tidegate_plugin_sdk::plugin::configure;
use tidegate_plugin_sdk::testing::{assert_readme_is_true, plugin};
use tidegate_plugin_sdk::{Message, Role};

const CONFIG: &str = r#"{
    "rules": [
        {"keys": ["free"], "models": ["small"]},
        {"code": true, "models": ["coder", "large"]},
        {"min_tokens": 500, "models": ["large"]},
        {"classes": ["batch"], "tools": false, "models": ["cheap"]}
    ],
    "default": ["small"]
}"#;

fn candidate(id: &str) -> Candidate {
    Candidate { id: id.into(), model: id.into(), healthy: true, context_tokens: 8192, attrs: Attrs::new() }
}

fn offered() -> Vec<Candidate> {
    ["large", "small", "coder", "cheap"].map(candidate).into()
}

fn asked(text: &str, tokens: u32, attrs: &[(&str, &str)]) -> RouteRequest {
    let attrs = attrs.iter().map(|(key, json)| ((*key).to_owned(), (*json).to_owned())).collect();
    let messages = vec![Message::text("m0", Role::User, text)];
    RouteRequest { messages, prompt_tokens: tokens, attrs, ..RouteRequest::default() }
}

fn order(config: &str, request: &RouteRequest, candidates: &[Candidate]) -> Vec<String> {
    plugin::<TierRouter>(config).route(&Context::default(), request, candidates).unwrap().order
}

#[test]
fn the_readme_names_every_setting() {
    assert_readme_is_true::<TierRouter>(include_str!("../README.md"));
}

#[test]
fn the_first_rule_that_fits_names_the_models() {
    let check = |request: RouteRequest, expected: &[&str]| {
        let order = order(CONFIG, &request, &offered());
        assert_eq!(&order[..expected.len()], expected);
        assert_eq!(order.len(), 4, "the others are fallbacks");
    };
    check(asked("Hello", 5, &[]), &["small", "large", "coder", "cheap"]);
    check(asked("```\nx\n```", 5, &[]), &["coder", "large", "small", "cheap"]);
    check(asked("```\nx\n```", 5, &[("key", "\"free\"")]), &["small"]);
    check(asked("Hello", 500, &[]), &["large"]);
    check(asked("Hello", 5, &[("class", "\"batch\""), ("tools", "false")]), &["cheap"]);
    check(asked("Hello", 5, &[("class", "\"batch\""), ("tools", "true")]), &["small"]);
}

#[test]
fn without_rules_the_servers_order_holds() {
    assert_eq!(order("", &asked("Hello", 5, &[]), &offered()), ["large", "small", "coder", "cheap"]);
}

#[test]
fn models_that_are_not_named_can_be_left_out() {
    let config = r#"{"default":["small","gone","large"],"others":false}"#;
    assert_eq!(order(config, &asked("Hello", 5, &[]), &offered()), ["small", "large"]);
    let only = [candidate("other")];
    assert_eq!(order(config, &asked("Hello", 5, &[]), &only), ["other"], "some model must serve");
}

#[test]
fn where_no_model_of_a_rule_is_offered_the_default_stands_in() {
    let config = r#"{"rules":[{"code":true,"models":["gone"]}],"default":["small"],"others":false}"#;
    let code = asked("```\nx\n```", 5, &[]);
    assert_eq!(order(config, &code, &offered()), ["small"]);
    let with_others = config.replace(",\"others\":false", "");
    assert_eq!(order(&with_others, &code, &offered()), ["small", "large", "coder", "cheap"]);
    assert_eq!(fake::take_log(), []);
    let router = plugin::<TierRouter>(config);
    for _ in 0..2 {
        let order = router.route(&Context::default(), &code, &[candidate("large"), candidate("cheap")]).unwrap().order;
        assert_eq!(order, ["large", "cheap"], "some model must serve");
    }
    let lines = fake::take_log();
    assert!(lines.len() == 1 && lines[0].1.contains("`others` is false"), "{lines:?}");
}

#[test]
fn a_model_that_is_named_twice_is_in_the_order_once() {
    let twice = r#"{"rules":[{"code":true,"models":["coder","large","coder"]}],"default":["small","small"]}"#;
    assert_eq!(order(twice, &asked("```\nx\n```", 5, &[]), &offered()), ["coder", "large", "small", "cheap"]);
    assert_eq!(order(twice, &asked("Hello", 5, &[]), &offered()), ["small", "large", "coder", "cheap"]);
}

#[test]
fn what_cannot_serve_now_is_a_fallback() {
    let mut candidates = offered();
    candidates[1].attrs.push(("waiting".into(), "33".into()));
    assert_eq!(order(CONFIG, &asked("Hello", 5, &[]), &candidates), ["large", "coder", "cheap", "small"]);
    candidates[0].healthy = false;
    candidates[2].context_tokens = 4;
    assert_eq!(order(CONFIG, &asked("Hello", 5, &[]), &candidates), ["cheap", "small", "coder", "large"]);
}

#[test]
fn a_context_that_is_not_known_is_taken_to_be_large_enough() {
    let mut candidates = offered();
    candidates[0].context_tokens = 0;
    candidates[1].context_tokens = 1024;
    assert_eq!(order(CONFIG, &asked("Hello", 5000, &[]), &candidates), ["large", "coder", "cheap", "small"]);
}

#[test]
fn the_reason_names_the_rule() {
    let router = plugin::<TierRouter>(CONFIG);
    let decide = |request| router.route(&Context::default(), &request, &offered()).unwrap().reason;
    assert_eq!(decide(asked("Hello", 900, &[])), "rule 3: at least 500 tokens");
    assert_eq!(decide(asked("Hello", 5, &[])), "no rule fits");
    let none = router.route(&Context::default(), &asked("Hello", 5, &[]), &[]);
    assert!(matches!(none, Err(Error::Unavailable(_))));
}

#[test]
fn a_config_that_cannot_work_is_refused_by_name() {
    let check = |json: &str, expected: &str| {
        let Err(Error::InvalidConfig(problem)) = configure::<TierRouter>(json) else { panic!("{json} was accepted") };
        assert!(problem.contains(expected), "{problem}");
    };
    check(r#"{"rules":[{"models":[]}]}"#, "rule 1: `models` is empty");
    check(r#"{"rules":[{"models":["a"],"min_tokens":2,"max_tokens":1}]}"#, "above `max_tokens`");
    check(r#"{"rules":[{"models":["a"],"classes":["vip"]}]}"#, "there is no class `vip`");
    check(r#"{"rules":[{"models":["a"],"clas":["vip"]}]}"#, "clas");
    check(r#"{"others":false}"#, "`default` must name a model");
}
