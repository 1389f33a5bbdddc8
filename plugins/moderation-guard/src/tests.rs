//! Behaviour of the whole guard, with a scripted classifier.

use super::*;
use tidegate_plugin_sdk::host::fake;
use tidegate_plugin_sdk::host::models::Label;
use tidegate_plugin_sdk::plugin::configure;
use tidegate_plugin_sdk::testing::{assert_readme_is_true, plugin};
use tidegate_plugin_sdk::{Action, Part};

#[test]
fn the_readme_names_every_setting() {
    assert_readme_is_true::<ModerationGuard>(include_str!("../README.md"));
}

#[test]
fn a_config_that_cannot_work_is_refused() {
    for json in [
        r#"{"threshold":0}"#,
        r#"{"threshold":1.5}"#,
        r#"{"roles":[]}"#,
        r#"{"categories":{"violense":{}}}"#,
        r#"{"categories":{"violence":{"threshold":-1}}}"#,
        r#"{"categories":{"violence":{"treshold":0.5}}}"#,
        r#"{"categories":{"violence":{"action":"redact"}}}"#,
        r#"{"labels":{"toxic":"rudeness"}}"#,
    ] {
        assert!(matches!(configure::<ModerationGuard>(json), Err(Error::InvalidConfig(_))), "{json}");
    }
}

#[test]
fn a_config_that_ignores_every_category_is_refused_with_what_to_do() {
    let each: Vec<String> = CATEGORIES.iter().map(|name| format!(r#""{name}":{{"action":"ignore"}}"#)).collect();
    let ignores = |some: &str| format!(r#"{{"action":"ignore","categories":{{{some}}}}}"#);
    for json in [
        r#"{"action":"ignore"}"#.to_owned(),
        ignores(""),
        ignores(r#""violence":{"threshold":0.1}"#),
        ignores(r#""violence":{"action":"ignore"}"#),
        format!(r#"{{"categories":{{{}}}}}"#, each.join(",")),
    ] {
        let Err(Error::InvalidConfig(problem)) = configure::<ModerationGuard>(&json) else { panic!("{json} loads") };
        assert!(problem.contains("`action`") && problem.contains("`categories`"), "{problem}");
    }
    for json in [
        ignores(r#""violence":{"action":"flag"}"#),
        ignores(r#""self-harm/intent":{"action":"block"}"#),
        format!(r#"{{"categories":{{{}}}}}"#, each[1..].join(",")),
    ] {
        assert!(configure::<ModerationGuard>(&json).is_ok(), "{json}");
    }
}

fn labels(of_text: &[(&str, f32)]) -> Vec<Label> {
    of_text.iter().map(|(name, score)| Label { name: (*name).into(), score: *score }).collect()
}

/// A prompt of one question, whose labels are these.
fn judged(config: &str, of_text: &'static [(&str, f32)]) -> Result<Verdict, Error> {
    fake::on_classify(move |texts| Ok(texts.iter().map(|_| labels(of_text)).collect()));
    let prompt = Prompt { messages: vec![Message::text("m0", Role::User, "Hello.")], ..Prompt::default() };
    plugin::<ModerationGuard>(config).inspect_prompt(&Context::default(), &prompt)
}

fn found(verdict: &Verdict) -> Vec<&str> {
    verdict.findings.iter().map(|finding| finding.category.as_str()).collect()
}

#[test]
fn a_category_counts_from_its_threshold_on() {
    let check = |config: &str, score: &'static [(&str, f32)], refused: bool, categories: &[&str]| {
        let verdict = judged(config, score).unwrap();
        assert_eq!(matches!(verdict.action, Action::Refuse(_)), refused, "{config} {score:?}: {verdict:?}");
        assert_eq!(found(&verdict), categories, "{config}");
    };
    check("", &[("violence", 0.5)], true, &["openai:violence"]);
    check("", &[("violence", 0.49), ("hate", 0.1)], false, &[]);
    check(r#"{"threshold":0.9}"#, &[("violence", 0.89)], false, &[]);
    check(r#"{"action":"flag"}"#, &[("violence", 0.9), ("hate", 0.8)], false, &["openai:hate", "openai:violence"]);
    let some = r#"{"categories":{"self-harm":{"threshold":0.1},"violence":{"action":"flag"},"hate":{"action":"ignore"},
        "violence/graphic":{"action":"block","threshold":0.7}}}"#;
    check(some, &[("self-harm/intent", 0.2)], true, &["openai:self-harm/intent"]);
    check(some, &[("violence", 0.9), ("violence/graphic", 0.6)], false, &["openai:violence"]);
    check(some, &[("violence/graphic", 0.7)], true, &["openai:violence/graphic"]);
    check(some, &[("hate", 1.0), ("hate/threatening", 1.0)], false, &[]);
}

#[test]
fn a_refusal_names_the_worst_for_the_log_only() {
    let verdict = judged(r#"{"message":"No."}"#, &[("hate", 0.6), ("violence", 0.9), ("sexual", 0.7)]).unwrap();
    let Action::Refuse(refusal) = &verdict.action else { panic!("{verdict:?}") };
    assert_eq!((refusal.code.as_str(), refusal.public_message.as_str()), ("moderation", "No."));
    assert_eq!(refusal.private_reason.as_deref(), Some("violence with a score of 0.90"));
    assert_eq!(verdict.findings[0].message_id.as_deref(), Some("m0"));
    assert_eq!(verdict.findings[0].score, Some(0.6));
}

#[test]
fn labels_of_another_classifier_are_mapped() {
    let mapped = r#"{"labels":{"TOXIC":"harassment","THREAT":"harassment"}}"#;
    let verdict = judged(mapped, &[("TOXIC", 0.2), ("THREAT", 0.8), ("OK", 1.0)]).unwrap();
    assert_eq!((found(&verdict), verdict.findings[0].score), (vec!["openai:harassment"], Some(0.8)));
}

#[test]
fn what_is_no_answer_is_a_failure_and_never_an_allow() {
    let check = |of_text: &'static [(&str, f32)], expected: &str| {
        let problem = judged("", of_text).unwrap_err().to_string();
        assert!(problem.contains(expected), "{problem}");
    };
    check(&[], "no label");
    check(&[("LABEL_0", 0.99), ("safe", 0.01)], "no label of the classifier is a category (LABEL_0, safe)");
    check(&[("violence", f32::NAN)], "not from 0 to 1");
    check(&[("violence", f32::INFINITY)], "not from 0 to 1");
    check(&[("violence", -0.1)], "not from 0 to 1");
    check(&[("else", 40.0), ("violence", 0.1)], "not from 0 to 1");
    fake::on_classify(|_| Ok(Vec::new()));
    let prompt = Prompt { messages: vec![Message::text("m0", Role::User, "Hello.")], ..Prompt::default() };
    let guard: ModerationGuard = plugin("");
    let problem = guard.inspect_prompt(&Context::default(), &prompt).unwrap_err().to_string();
    assert!(problem.contains("0 answers about 1 texts"), "{problem}");
    fake::on_classify(|_| Err(Error::Unavailable("away".into())));
    assert_eq!(guard.inspect_prompt(&Context::default(), &prompt), Err(Error::Unavailable("away".into())));
}

/// A classifier for which a text with `bad` is violent.
fn bad_is_violent() {
    fake::on_classify(|texts| {
        let score = |text: &String| if text.contains("bad") { 0.9 } else { 0.0 };
        assert!(!texts.is_empty() && texts.len() <= MAX_TEXTS);
        // As the host counts, with the alias and the list of texts.
        let passed = texts.iter().map(|text| text.len() + size_of::<String>()).sum::<usize>() + 64;
        assert!(passed <= 1 << 20, "{passed} bytes at once");
        Ok(texts.iter().map(|text| labels(&[("violence", score(text))])).collect())
    });
}

#[test]
fn one_sentence_of_a_long_text_counts_wherever_it_is() {
    bad_is_violent();
    let guard: ModerationGuard = plugin("");
    let filler = "Nothing to see here. ".repeat(70_000);
    for text in [format!("bad {filler}"), format!("{filler} bad"), format!("{filler} bad {filler}")] {
        let prompt = Prompt { messages: vec![Message::text("m0", Role::User, &text)], ..Prompt::default() };
        let verdict = guard.inspect_prompt(&Context::default(), &prompt).unwrap();
        assert!(matches!(verdict.action, Action::Refuse(_)));
    }
    let prompt = Prompt { messages: vec![Message::text("m0", Role::User, &filler)], ..Prompt::default() };
    assert_eq!(guard.inspect_prompt(&Context::default(), &prompt).unwrap().action, Action::Allow);
}

/// Pieces of 8,000 bytes that would fill a question to the last byte, and then some.
#[test]
fn questions_about_large_pieces_stay_within_what_the_host_takes() {
    bad_is_violent();
    let guard: ModerationGuard = plugin(r#"{"piece_bytes":8000}"#);
    for text in ["x".repeat(1_300_000) + " bad", "x ".repeat(1_000_000) + " bad"] {
        let prompt = Prompt { messages: vec![Message::text("m0", Role::User, &text)], ..Prompt::default() };
        let verdict = guard.inspect_prompt(&Context::default(), &prompt).unwrap();
        assert!(matches!(verdict.action, Action::Refuse(_)));
    }
}

#[test]
fn parts_of_a_message_are_judged_together_and_alone() {
    let guard: ModerationGuard = plugin("");
    let refused = |parts: &[&str]| {
        let parts = parts.iter().map(|text| Part::Text((*text).into())).collect();
        let message = Message { parts, ..Message::text("m0", Role::User, "") };
        let prompt = Prompt { messages: vec![message.clone()], ..Prompt::default() };
        let asked = guard.inspect_prompt(&Context::default(), &prompt).unwrap();
        let output = Output { choices: vec![message], ..Output::default() };
        let answered = guard.inspect_output(&Context::default(), &output).unwrap();
        assert_eq!(asked, answered);
        matches!(asked.action, Action::Refuse(_))
    };
    bad_is_violent();
    assert!(refused(&["very b", "ad"]));
    assert!(!refused(&["good", "ness"]));
    // A classifier for which what stands beside it hides what is bad.
    fake::on_classify(|texts| {
        Ok(texts.iter().map(|text| labels(&[("violence", if text == "bad" { 0.9 } else { 0.0 })])).collect())
    });
    assert!(refused(&["lovely flowers", "bad"]));
}

#[test]
fn roles_history_and_text_from_outside() {
    bad_is_violent();
    let mut passage = Message::text("folder/1", Role::Other("note".into()), "a bad passage");
    passage.attrs.push(("source".into(), "\"folder\"".into()));
    let said = |roles: &[(Role, &str)]| {
        let messages =
            roles.iter().zip(0..).map(|((role, text), n)| Message::text(&format!("m{n}"), role.clone(), text));
        Prompt { messages: messages.collect(), ..Prompt::default() }
    };
    let check = |config: &str, prompt: &Prompt, refused: bool| {
        let verdict = plugin::<ModerationGuard>(config).inspect_prompt(&Context::default(), prompt).unwrap();
        assert_eq!(matches!(verdict.action, Action::Refuse(_)), refused, "{config} {prompt:?}");
    };
    check(r#"{"roles":["user"]}"#, &Prompt { messages: vec![passage], ..Prompt::default() }, true);
    check("", &said(&[(Role::System, "bad"), (Role::User, "hello")]), false);
    check(r#"{"roles":["system"]}"#, &said(&[(Role::System, "bad"), (Role::User, "hello")]), true);
    let earlier = said(&[(Role::User, "bad"), (Role::Assistant, "no"), (Role::User, "hello")]);
    check("", &earlier, true);
    check(r#"{"history":false}"#, &earlier, false);
    check(r#"{"history":false}"#, &said(&[(Role::Assistant, "hi"), (Role::User, "bad")]), true);
    check(r#"{"history":false}"#, &said(&[(Role::User, "bad")]), true);
    let begun = said(&[(Role::User, "bad"), (Role::Assistant, "Sure:"), (Role::System, "go on")]);
    check(r#"{"history":false}"#, &begun, true);
    let later = said(&[(Role::User, "bad"), (Role::Assistant, "no"), (Role::User, "hi"), (Role::Assistant, "Sure:")]);
    check(r#"{"history":false}"#, &later, false);
}

#[test]
fn answers_are_judged_and_nothing_is_asked_about_nothing() {
    bad_is_violent();
    let guard: ModerationGuard = plugin("");
    let inspect = |choices: Vec<Message>| {
        guard.inspect_output(&Context::default(), &Output { choices, ..Output::default() }).unwrap()
    };
    let mut thinking = Message::text("choice-1", Role::Assistant, "fine");
    thinking.parts.insert(0, Part::Reasoning("a bad thought".into()));
    let verdict = inspect(vec![Message::text("choice-0", Role::Assistant, "fine"), thinking]);
    assert_eq!(verdict.findings[0].message_id.as_deref(), Some("choice-1"));
    assert!(matches!(verdict.action, Action::Refuse(_)));
    // The script would fail if it were asked about no text.
    assert_eq!(inspect(vec![Message::text("choice-0", Role::Assistant, "")]).action, Action::Allow);
    assert_eq!(guard.inspect_prompt(&Context::default(), &Prompt::default()).unwrap().action, Action::Allow);
}

#[test]
fn findings_stay_within_the_hosts_cap() {
    fake::on_classify(|texts| Ok(texts.iter().map(|_| labels(&[("hate", 0.9), ("violence", 0.8)])).collect()));
    let messages = (0..300).map(|n| Message::text(&format!("m{n}"), Role::User, "bad")).collect();
    let verdict = plugin::<ModerationGuard>("")
        .inspect_prompt(&Context::default(), &Prompt { messages, ..Prompt::default() })
        .unwrap();
    assert_eq!(verdict.findings.len(), 256);
}

/// How many questions a guard asks about these messages, and about how many texts; and what it says.
fn asked(messages: Vec<Message>) -> (usize, usize, Result<Verdict, Error>) {
    let asked = std::rc::Rc::new(std::cell::Cell::new((0, 0)));
    let seen = asked.clone();
    fake::on_classify(move |texts| {
        seen.set((seen.get().0 + 1, seen.get().1 + texts.len()));
        Ok(texts.iter().map(|text| labels(&[("violence", if text.contains("bad") { 0.9 } else { 0.0 })])).collect())
    });
    let prompt = Prompt { messages, ..Prompt::default() };
    let verdict = plugin::<ModerationGuard>("").inspect_prompt(&Context::default(), &prompt);
    (asked.get().0, asked.get().1, verdict)
}

#[test]
fn many_small_parts_of_a_message_are_few_pieces() {
    let message = |last: &str| {
        let parts = (0..38_000).map(|n| Part::Text(format!("{n} ")));
        let parts = parts.chain([Part::Text(last.into())]).collect();
        vec![Message { parts, ..Message::text("m0", Role::User, "") }]
    };
    let (questions, texts, verdict) = asked(message("bad"));
    assert!(questions == 1 && texts < 200, "{questions} {texts}");
    assert!(matches!(verdict.unwrap().action, Action::Refuse(_)));
    assert_eq!(asked(message("good")).2.unwrap().action, Action::Allow);
}

#[test]
fn equal_texts_are_asked_about_once_and_count_for_each_message() {
    let said = |text: &str| (0..2_000).map(|n| Message::text(&format!("m{n}"), Role::User, text)).collect::<Vec<_>>();
    let (questions, texts, verdict) = asked(said("good"));
    assert_eq!((questions, texts, verdict.unwrap().action), (1, 1, Action::Allow));
    let verdict = asked(said("bad")[..2].to_vec()).2.unwrap();
    let ids: Vec<_> = verdict.findings.iter().filter_map(|finding| finding.message_id.as_deref()).collect();
    assert_eq!(ids, ["m0", "m1"]);
}

#[test]
fn more_different_pieces_than_a_call_has_time_for_are_the_callers_to_shorten() {
    let said = |count| (0..count).map(|n| Message::text(&format!("m{n}"), Role::User, &n.to_string())).collect();
    assert!(asked(said(MAX_PIECES)).2.is_ok());
    let (questions, _, verdict) = asked(said(MAX_PIECES + 1));
    assert_eq!(questions, 0, "before anything is asked");
    let Err(Error::InvalidInput(problem)) = verdict else { panic!("{verdict:?}") };
    assert!(problem.contains("more than 1024 different pieces of at most 4000 bytes"), "{problem}");
}
