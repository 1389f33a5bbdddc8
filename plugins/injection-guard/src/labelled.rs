//! What the guard makes of `labelled.jsonl`. The rules were written with the first part in view; the lines with `held`
//! were written at the same time and not tuned on.

use super::*;
use serde_json::Value;
use std::collections::BTreeMap;
use tidegate_plugin_sdk::testing::plugin;

#[derive(Default)]
struct Tally {
    caught: u32,
    missed: u32,
    false_alarms: u32,
    passed: u32,
}

impl Tally {
    fn add(&mut self, is_injection: bool, is_suspect: bool) {
        *match (is_injection, is_suspect) {
            (true, true) => &mut self.caught,
            (true, false) => &mut self.missed,
            (false, true) => &mut self.false_alarms,
            (false, false) => &mut self.passed,
        } += 1;
    }

    fn precision(&self) -> f64 {
        f64::from(self.caught) / f64::from((self.caught + self.false_alarms).max(1))
    }

    fn recall(&self) -> f64 {
        f64::from(self.caught) / f64::from((self.caught + self.missed).max(1))
    }
}

fn message(line: &Value) -> Message {
    let text = line["text"].as_str().unwrap();
    let role = if line["from"] == "tool" { Role::Tool } else { Role::User };
    let mut message = Message::text("m0", role, text);
    if line["from"] != "user" {
        message.attrs.push(("source".into(), "\"folder\"".into()));
    }
    message
}

#[test]
fn precision_and_recall_on_the_labelled_set_do_not_fall_and_are_what_the_readme_says() {
    let guard: InjectionGuard = plugin("");
    let mut tallies: BTreeMap<(bool, String), Tally> = BTreeMap::new();
    for line in include_str!("../labelled.jsonl").lines() {
        let line: Value = serde_json::from_str(line).unwrap();
        let (is_injection, held) = (line["injection"].as_bool().unwrap(), line["held"].as_bool().unwrap());
        let prompt = Prompt { messages: vec![message(&line)], ..Prompt::default() };
        let verdict = guard.inspect_prompt(&Context::default(), &prompt).unwrap();
        let is_suspect = !verdict.findings.is_empty();
        if is_injection != is_suspect {
            let word = if is_injection { "missed" } else { "false alarm" };
            println!("{word} (held: {held}): {} {}", line["from"], line["text"]);
        }
        for group in ["all", line["from"].as_str().unwrap()] {
            tallies.entry((held, group.to_owned())).or_default().add(is_injection, is_suspect);
        }
    }
    for ((held, group), tally) in &tallies {
        let Tally { caught, missed, false_alarms, passed } = tally;
        let (precision, recall) = (tally.precision(), tally.recall());
        let counts = format!("{caught} caught, {missed} missed, {false_alarms} false alarms, {passed} passed");
        println!("held {held}, {group}: precision {precision:.2}, recall {recall:.2} ({counts})");
    }
    let of = |held, group: &str| &tallies[&(held, group.to_owned())];
    assert!(of(false, "all").precision() >= 0.9 && of(false, "all").recall() >= 0.9);
    let said = |held, group| format!("{:.2} and {:.2}", of(held, group).precision(), of(held, group).recall());
    let all = |held| format!("precision {:.2} and recall {:.2}", of(held, "all").precision(), of(held, "all").recall());
    let (user, retrieved, tool) = (said(true, "user"), said(true, "retrieved"), said(true, "tool"));
    let held = format!("{}. By source there: users {user}, retrieved {retrieved}, tools {tool}.", all(true));
    let readme = include_str!("../README.md").split_whitespace().collect::<Vec<_>>().join(" ");
    for figures in [all(false), held] {
        assert!(readme.contains(&figures), "the README does not say: {figures}");
    }
}
