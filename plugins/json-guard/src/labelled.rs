//! What the guard makes of `labelled.jsonl`: whether the one value in each answer holds the schema was decided by
//! another implementation (jsonschema for Python, draft 2020-12), what counts as the one value by hand.

use super::*;
use tidegate_plugin_sdk::testing::plugin;
use tidegate_plugin_sdk::{Action, Role};

#[test]
fn every_answer_is_judged_as_another_implementation_does() {
    let (mut caught, mut missed, mut false_alarms, mut passed) = (0, 0, 0, 0);
    for line in include_str!("../labelled.jsonl").lines() {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        let guard: JsonGuard = plugin(&format!("{{\"schema\":{}}}", line["schema"]));
        let answer = line["answer"].as_str().unwrap();
        let choices = vec![Message::text("choice-0", Role::Assistant, answer)];
        let output = Output { choices, finish_reasons: vec!["stop".into()], ..Output::default() };
        let verdict = guard.inspect_output(&Context::default(), &output).unwrap();
        let is_refused = matches!(verdict.action, Action::Refuse(_));
        let tally = match (line["usable"].as_bool().unwrap(), is_refused) {
            (false, true) => &mut caught,
            (false, false) => &mut missed,
            (true, true) => &mut false_alarms,
            (true, false) => &mut passed,
        };
        *tally += 1;
        if line["usable"].as_bool() == Some(is_refused) {
            println!("{answer:?} for {}: {:?}", line["schema"], verdict.action);
        }
    }
    let percent = |of: i32, others: i32| f64::from(of) / f64::from(of + others);
    let (precision, recall) = (percent(caught, false_alarms), percent(caught, missed));
    let counts = format!("{caught} refused, {missed} missed, {false_alarms} refused wrongly, {passed} passed");
    println!("precision {precision:.2}, recall {recall:.2} ({counts})");
    assert!(missed == 0 && false_alarms == 0);
    let readme = include_str!("../README.md").split_whitespace().collect::<Vec<_>>().join(" ");
    let answers = caught + missed + false_alarms + passed;
    let figures = [
        format!("{answers} answers, of which {} do not hold their schema", caught + missed),
        format!("precision {precision:.2} and recall {recall:.2}"),
    ];
    for figures in figures {
        assert!(readme.contains(&figures), "the README does not say: {figures}");
    }
}
