//! Behaviour of the whole guard.

use super::*;
use tidegate_plugin_sdk::host::fake;
use tidegate_plugin_sdk::plugin::configure;
use tidegate_plugin_sdk::testing::{assert_readme_is_true, plugin};
use tidegate_plugin_sdk::{Action, Role, ToolCall};

const PERSON: &str = r#""schema":{"type":"object","required":["name"],"properties":{"name":{"type":"string"}}}"#;

#[test]
fn the_readme_names_every_setting() {
    assert_readme_is_true::<JsonGuard>(include_str!("../README.md"));
}

#[test]
fn a_schema_that_cannot_be_checked_is_refused_by_name() {
    let check = |json: &str, expected: &str| {
        let Err(Error::InvalidConfig(problem)) = configure::<JsonGuard>(json) else { panic!("{json} was accepted") };
        assert!(problem.contains(expected), "{problem}");
    };
    check("{}", "schema");
    check(r#"{"schema":{"properties":{"a":{"pattern":"^x"}}}}"#, "`schema`: #/properties/a/pattern");
    check(r#"{"schema":{"a":1,"a":2}}"#, "comes twice");
    check(r#"{"schema":{},"repair":["commas"]}"#, "unknown variant");
    assert!(configure::<JsonGuard>(r#"{"schema":{"pattern":"x"},"ignored_keywords":["pattern"]}"#).is_ok());
}

fn answer(parts: Vec<Part>, finish: &str) -> Output {
    let choices = vec![Message { parts, ..Message::text("choice-0", Role::Assistant, "") }];
    Output { choices, finish_reasons: vec![finish.into()], ..Output::default() }
}

fn inspect(more: &str, output: &Output) -> Verdict {
    let guard: JsonGuard = plugin(&format!("{{{PERSON}{more}}}"));
    guard.inspect_output(&Context::default(), output).unwrap()
}

fn text(text: &str) -> Output {
    answer(vec![Part::Text(text.into())], "stop")
}

/// The text as the host would leave it.
fn applied(output: &Output, verdict: &Verdict) -> String {
    let Action::Rewrite(edits) = &verdict.action else { panic!("{verdict:?}") };
    let mut texts: Vec<String> =
        output.choices[0].parts.iter().map(|part| part.as_text().unwrap_or_default().to_owned()).collect();
    for edit in edits.iter().rev() {
        let Edit::ReplaceText { part, span, text, .. } = edit else { panic!("{edit:?}") };
        texts[*part as usize].replace_range(span.start as usize..span.end as usize, text);
    }
    texts.concat()
}

#[test]
fn an_answer_that_holds_the_schema_passes_as_it_is() {
    let verdict = inspect("", &text(" {\"name\": \"Ann\"}\n"));
    assert_eq!((verdict.action, verdict.findings.len()), (Action::Allow, 0));
}

#[test]
fn space_that_is_none_of_jsons_is_taken_away() {
    for output in ["\u{a0}{\"name\":\"Ann\"}", "{\"name\":\"Ann\"}\u{2003}\n"].map(text) {
        assert_eq!(applied(&output, &inspect("", &output)), "{\"name\":\"Ann\"}");
        assert!(matches!(inspect(r#","repair":[]"#, &output).action, Action::Refuse(_)));
    }
}

#[test]
fn fences_and_prose_are_taken_away_where_the_operator_allows_it() {
    let output = text("Sure:\n```json\n{\"name\":\"Ann\"}\n```\nBye {now}.");
    assert_eq!(applied(&output, &inspect("", &output)), "{\"name\":\"Ann\"}");
    assert!(matches!(inspect(r#","repair":[]"#, &output).action, Action::Refuse(_)));
    let parts = ["Look: {\"na", "me\":\"Ann\"}", " Bye."].map(|text| Part::Text(text.into()));
    let output = answer(parts.into(), "stop");
    assert_eq!(applied(&output, &inspect("", &output)), "{\"name\":\"Ann\"}");
}

#[test]
fn another_answer_is_refused_with_what_is_wrong() {
    let verdict = inspect("", &text("{\"nam\":1,\"name\":2}"));
    let Action::Refuse(refusal) = &verdict.action else { panic!("{verdict:?}") };
    assert_eq!(refusal.code, "not_the_schema");
    assert_eq!(refusal.public_message, format!("{MESSAGE}: /name is an integer; it must be string."));
    assert_eq!(verdict.findings[0].category, "json-guard:invalid");
    assert_eq!(refusal.private_reason.as_deref(), Some("/name is an integer; it must be string"));
    let verdict = inspect(r#","say_why":false"#, &text("{}"));
    assert!(matches!(&verdict.action, Action::Refuse(refusal) if refusal.public_message == format!("{MESSAGE}.")));
    let verdict = inspect("", &text("I am sorry."));
    assert!(matches!(&verdict.action, Action::Refuse(refusal) if refusal.public_message.contains("it is no JSON")));
}

/// A refusal of more than the stage's `output_bytes` would be a failure.
#[test]
fn an_answer_with_long_keys_is_refused_in_few_words() {
    let key = "é".repeat(100_000);
    let object = |members: &str| format!("{{{members}}}");
    let keys: Vec<String> = (0..9).map(|n| format!("\"{key}{n}\":{{\"{key}\":1}}")).collect();
    let schema = format!(
        r#"{{"additionalProperties":{{"additionalProperties":false}},"properties":{{"{key}":{{"type":"null"}}}}}}"#
    );
    let guard: JsonGuard = plugin(&format!("{{\"schema\":{schema}}}"));
    let (made_up, declared) = (object(&keys.join(",")), object(&format!("\"{key}\":1")));
    for (answer, expected) in [(made_up, "/* has a key that is not allowed"), (declared, "é…é")] {
        let verdict = guard.inspect_output(&Context::default(), &text(&answer)).unwrap();
        let Action::Refuse(refusal) = &verdict.action else { panic!("{verdict:?}") };
        assert!(refusal.public_message.len() < 4_096, "{} bytes", refusal.public_message.len());
        assert!(refusal.public_message.contains(expected), "{}", refusal.public_message);
    }
}

#[test]
fn an_answer_that_was_cut_off_says_so() {
    let verdict = inspect("", &answer(vec![Part::Text("{\"name\":\"An".into())], "length"));
    assert!(matches!(&verdict.action, Action::Refuse(refusal) if refusal.public_message.contains("cut off")));
}

#[test]
fn flag_lets_it_pass_and_reports() {
    fake::take_log();
    let verdict = inspect(r#","on_invalid":"flag""#, &text("{}"));
    assert_eq!((verdict.action, verdict.findings.len()), (Action::Allow, 1));
    let log: Vec<String> = fake::take_log().into_iter().map(|(_, line)| line).collect();
    assert_eq!(log, ["the answer has no `name`"]);
}

#[test]
fn calls_of_tools_and_refusals_are_no_answers_and_one_bad_choice_is_enough() {
    let call = ToolCall { id: "c".into(), name: "f".into(), arguments: "{}".into() };
    assert_eq!(inspect("", &answer(vec![Part::ToolCall(call.clone())], "tool_calls")).action, Action::Allow);
    let spoken = || vec![Part::Text("Let me see.".into()), Part::ToolCall(call.clone())];
    assert_eq!(inspect("", &answer(spoken(), "tool_calls")).action, Action::Allow);
    assert!(matches!(inspect("", &answer(spoken(), "stop")).action, Action::Refuse(_)), "no turn for a tool");
    assert!(matches!(inspect("", &answer(spoken()[..1].to_vec(), "tool_calls")).action, Action::Refuse(_)), "no call");
    assert_eq!(inspect("", &answer(vec![Part::Refusal("no".into())], "stop")).action, Action::Allow);
    assert!(matches!(inspect("", &answer(vec![], "stop")).action, Action::Refuse(_)));
    let mut two = text("{\"name\":\"Ann\"}");
    two.choices.push(Message::text("choice-1", Role::Assistant, "{}"));
    assert!(matches!(inspect("", &two).action, Action::Refuse(_)));
}
