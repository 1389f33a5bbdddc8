//! What a case expects, held against the outcome: what differs, and what of the case no server would do.

use crate::assemble::MIN_SCORE;
use crate::plugin::fixture::Ask;
use serde_json::{Map, Value, json};

/// What of the expectation does not hold; `error` holds where its text is a part of the outcome's, in which the plugin's name
/// is not looked at: it may well hold the word.
pub(in crate::plugin) fn differences(expect: &Map<String, Value>, outcome: &Value, plugin: &str) -> Vec<String> {
    let named = format!("plugin `{plugin}`");
    let mut differences = Vec::new();
    if let (Some(error), false) = (outcome["error"].as_str(), expect.contains_key("error")) {
        differences.push(error.to_owned());
    }
    differences.extend(unexpected_end(expect, outcome));
    for (key, expected) in expect {
        let found = &outcome[key];
        let holds = match (key.as_str(), expected.as_str(), found.as_str()) {
            ("error", Some(expected), Some(found)) => found.replace(&named, "").contains(expected),
            ("scores", ..) => same_scores(expected, found),
            _ => same(expected, found),
        };
        if !holds {
            differences.push(format!("`{key}` is {found}, not {expected}"));
        }
    }
    differences
}

/// That the guard lets nothing go on, where the case does not say so: what it compares would be the same by chance.
fn unexpected_end(expect: &Map<String, Value>, outcome: &Value) -> Option<String> {
    let names = |keys: &[&str]| keys.iter().any(|key| expect.contains_key(*key));
    if outcome["action"] == "refuse" && !names(&["action", "code", "message"]) {
        return Some(format!("it refuses, by the code {}; that is expected by `action` or `code`", outcome["code"]));
    }
    let code = outcome["halted"].as_str().filter(|_| !names(&["halted"]))?;
    Some(format!("it halts the answer, by the code {code:?}; that is expected by `halted`"))
}

/// What is wrong with a case that calls what is not in the plugin's list: a server calls nothing else. One that expects an error,
/// or an empty list, is about just that.
pub(in crate::plugin) fn not_offered(ask: &Ask, expect: &Map<String, Value>, outcome: &Value) -> Option<String> {
    let Ask::Tool(tool) = ask else { return None };
    let offered: Vec<&str> = outcome["tools"].as_array()?.iter().filter_map(Value::as_str).collect();
    let is_meant = expect.contains_key("error") || expect.get("tools") == Some(&json!([]));
    (!is_meant && !offered.contains(&tool.name.as_str())).then(|| {
        let (name, offered) = (tool.name.escape_debug(), offered.join(", "));
        format!("it calls `{name}`, which no server does: `list-tools` offers [{offered}]")
    })
}

/// What is wrong with a case whose passages a server leaves out unless its config says otherwise. One that expects their scores
/// knows of them.
pub(in crate::plugin) fn left_out(expect: &Map<String, Value>, outcome: &Value) -> Option<String> {
    let scores = outcome["scores"].as_array()?.iter().map(Value::as_f64);
    let ids = outcome["ids"].as_array()?;
    let low = scores.zip(ids).find_map(|(score, id)| Some((score.filter(|score| *score < MIN_SCORE.into())?, id)))?;
    (!expect.contains_key("scores")).then(|| {
        let (score, id) = low;
        format!(
            "{id} scores {score}, and a server leaves out what is below `min_score` of the stage, {MIN_SCORE} unasked"
        )
    })
}

/// Equal as numbers, whatever their kind.
fn same(a: &Value, b: &Value) -> bool {
    a == b || a.as_f64().is_some_and(|a| b.as_f64() == Some(a))
}

/// Equal as the 32 bits that a score has.
fn same_scores(a: &Value, b: &Value) -> bool {
    let scores = |of: &Value| {
        let all = of.as_array()?.iter().map(|score| score.as_f64().map(|score| score as f32));
        Some(all.collect::<Vec<_>>())
    };
    scores(a).is_some_and(|a| scores(b) == Some(a))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(expect: Value, outcome: Value, expected: &[&str]) {
        assert_eq!(differences(expect.as_object().unwrap(), &outcome, "word-guard"), expected);
    }

    #[test]
    fn only_what_is_named_is_compared() {
        check(json!({"action": "allow"}), json!({"action": "allow", "text": "x"}), &[]);
        check(json!({"action": "allow"}), json!({"action": "refuse"}), &["`action` is \"refuse\", not \"allow\""]);
        check(json!({"nothing": 1}), json!({}), &["`nothing` is null, not 1"]);
    }

    /// Of a stream that is halted the text is what left before.
    #[test]
    fn what_ends_a_request_or_an_answer_is_expected_by_name() {
        let refused = json!({"action": "refuse", "code": "pii", "message": "No.", "findings": []});
        let why = "it refuses, by the code \"pii\"; that is expected by `action` or `code`";
        check(json!({"findings": []}), refused.clone(), &[why]);
        check(json!({"text": "a"}), refused.clone(), &[why, "`text` is null, not \"a\""]);
        for known in [json!({"action": "refuse"}), json!({"code": "pii"}), json!({"message": "No."})] {
            check(known, refused.clone(), &[]);
        }
        let halted = json!({"text": "a ", "halted": "pii", "findings": []});
        let why = "it halts the answer, by the code \"pii\"; that is expected by `halted`";
        check(json!({"text": "a "}), halted.clone(), &[why]);
        check(json!({"text": "a ", "halted": "pii"}), halted, &[]);
        check(json!({"text": "a "}), json!({"text": "a ", "halted": null}), &[]);
    }

    #[test]
    fn a_failure_is_expected_by_a_part_of_its_text() {
        check(json!({"error": "denied"}), json!({"error": "it is denied: x"}), &[]);
        let trapped = "plugin `word-guard` trapped: stack";
        check(json!({"error": "trapped"}), json!({"error": trapped}), &[]);
        check(
            json!({"error": "word"}),
            json!({"error": trapped}),
            &["`error` is \"plugin `word-guard` trapped: stack\", not \"word\""],
        );
        check(json!({"text": "a"}), json!({"error": "trap"}), &["trap", "`text` is null, not \"a\""]);
    }

    /// A cosine may be below 0, and a server's default is that.
    #[test]
    fn a_passage_that_a_server_leaves_out_fails_a_case_that_does_not_know_of_it() {
        let why = |expect: Value, scores: Value| {
            left_out(expect.as_object().unwrap(), &json!({"ids": ["a", "b"], "scores": scores}))
        };
        let said = why(json!({"ids": ["a", "b"]}), json!([0.5, -0.25])).unwrap();
        assert_eq!(
            said,
            "\"b\" scores -0.25, and a server leaves out what is below `min_score` of the stage, 0 unasked"
        );
        assert_eq!(why(json!({"scores": [0.5, -0.25]}), json!([0.5, -0.25])), None);
        assert_eq!(why(json!({"ids": ["a", "b"]}), json!([0.0, null])), None);
        let outcome = json!({"scores": [0.2_f32, null]});
        check(json!({"scores": [0.2, null]}), outcome.clone(), &[]);
        let wrong = differences(json!({"scores": [0.2, 0.3]}).as_object().unwrap(), &outcome, "a");
        assert_eq!(wrong.len(), 1);
        check(
            json!({"structured": 16_777_216}),
            json!({"structured": 16_777_217}),
            &["`structured` is 16777217, not 16777216"],
        );
    }
}
