//! Behaviour of the whole guard, on prompts and on streams.

use super::*;
use proptest::prelude::*;
use tidegate_plugin_sdk::plugin::configure;
use tidegate_plugin_sdk::testing::{
    Host, assert_glances_tell, assert_prompt_glances_tell, assert_readme_is_true, assert_same_for_any_chunking,
    assert_same_for_any_parts, plugin,
};
use tidegate_plugin_sdk::{Action, Channel, Message, Role};

const CONFIG: &str =
    r#"{"words":["project nightjar","nightjar cat","cat","c++"],"patterns":["EMP-\\d{4,6}\\b","(?:ab)+c"]}"#;

#[test]
fn the_readme_names_every_setting() {
    assert_readme_is_true::<WordGuard>(include_str!("../README.md"));
}

#[test]
fn a_config_that_cannot_work_is_refused_by_name() {
    let check = |json: &str, expected: &str| {
        let Err(Error::InvalidConfig(problem)) = configure::<WordGuard>(json) else { panic!("{json} was accepted") };
        assert!(problem.contains(expected), "{problem}");
    };
    check("{}", "nothing to look for");
    check(r#"{"words":[""]}"#, "empty entry");
    check(r#"{"patterns":["a$"]}"#, "pattern `a$`: anchors");
    check(r#"{"words":["a"],"max_match_bytes":481}"#, "1 to 480");
    check(r#"{"words":["a"],"replacement":"\\"}"#, "break JSON");
    check(r#"{"words":["a"],"roles":[]}"#, "`roles` is empty");
    check(r#"{"word":["a"]}"#, "unknown key `word`");
}

#[test]
fn a_glance_lets_go_what_the_guard_lets_go_without_a_word() {
    for action in ["redact", "block", "flag"] {
        let guard = plugin::<WordGuard>(&CONFIG.replacen('{', &format!("{{\"action\":\"{action}\","), 1));
        assert_eq!(guard.glance("a project at nigh", 2), Some(13), "a word may begin there");
        assert_eq!(guard.glance("a cat is", 0), None);
        assert!(guard.glance_prompt(&[(Role::User, "a project".into()), (Role::User, "nightjar".into())]));
        assert!(!guard.glance_prompt(&[(Role::User, "a project".into()), (Role::User, "a cat is".into())]));
        let text = "The project nightjar cat, EMP-123 and EMP-12345 are abababc c++, not ab.";
        let answers = [assert_glances_tell(&guard, text), assert_prompt_glances_tell(&guard, text)];
        assert!(answers.iter().all(|answers| *answers > 500), "{answers:?}");
    }
}

fn prompt(config: &str, text: &str) -> Verdict {
    let prompt = Prompt { messages: vec![Message::text("m0", Role::User, text)], ..Prompt::default() };
    plugin::<WordGuard>(config).inspect_prompt(&Context::default(), &prompt).unwrap()
}

#[test]
fn prompts_are_redacted_blocked_or_flagged() {
    let verdict = prompt(CONFIG, "Is Project Nightjar by EMP-12345?");
    assert!(matches!(&verdict.action, Action::Rewrite(edits) if edits.len() == 2), "{verdict:?}");
    let categories: Vec<&str> = verdict.findings.iter().map(|f| f.category.as_str()).collect();
    assert_eq!(categories, ["word-guard:word", "word-guard:pattern"]);
    let verdict = prompt(r#"{"words":["cat"],"action":"block"}"#, "the cat");
    assert!(matches!(&verdict.action, Action::Refuse(refusal) if !refusal.public_message.contains("cat")));
    let verdict = prompt(r#"{"words":["cat"],"patterns":["x","do+g"],"action":"block"}"#, "the dog");
    let Action::Refuse(refusal) = &verdict.action else { panic!("{verdict:?}") };
    assert_eq!(refusal.private_reason.as_deref(), Some("pattern 1 of the list matches"), "for the log");
    let verdict = prompt(r#"{"words":["cat"],"action":"flag"}"#, "the cat");
    assert_eq!((verdict.action, verdict.findings.len()), (Action::Allow, 1));
    assert_eq!(prompt(CONFIG, "nothing of that").findings, []);
}

#[test]
fn what_is_split_over_parts_of_a_message_is_found() {
    let guard = plugin::<WordGuard>(CONFIG);
    let left = assert_same_for_any_parts("About project nightjar, EMP-12345 and ababc: C++.", |message| {
        let prompt = Prompt { messages: vec![message.clone()], ..Prompt::default() };
        guard.inspect_prompt(&Context::default(), &prompt).unwrap().action
    });
    assert_eq!(left, "About [redacted], [redacted] and [redacted]: [redacted].");
}

#[test]
fn a_word_in_arguments_is_found_however_it_is_written() {
    let guard = plugin::<WordGuard>(r#"{"words":["größe","project nightjar"]}"#);
    let host = Host { channel: Channel::ToolArguments("c1".into()), ..Host::default() };
    let json = r#"{"a":"Gr\u00f6\u00dfe","b":["\u0070roject\nnightjar","größe"],"c":"größ\u0065n"}"#;
    let expected = r#"{"a":"[redacted]","b":["[redacted]","[redacted]"],"c":"größ\u0065n"}"#;
    assert_eq!(assert_same_for_any_chunking(&guard, &host, json, &[9, 30]).text, expected);
}

/// As tools return it and answers have it.
#[test]
fn a_line_break_as_json_writes_it_hides_no_word_wherever_pieces_end() {
    let config =
        r#"{"words":["cat","nightjar","tea x"],"patterns":["\\bEMP-\\d{2}\\b","~a.{0,3}","\\bt\\b","[^-]\\bowl\\b"]}"#;
    for (text, expected) in [
        (r#"{"a":"x\tdog\tt\tcat"}"#, r#"{"a":"x\tdog\t[redacted]\t[redacted]"}"#),
        (r#"{"a":"x\ncat\r\nEMP-12\tcat\n"}"#, r#"{"a":"x\n[redacted]\r\n[redacted]\t[redacted]\n"}"#),
        (r"\ncat", r"\n[redacted]"),
        (r"x\towl, -owl, \tt", r"x\[redacted], -owl, \t[redacted]"),
        (r"\\ncats, \ncat_, \xcat", r"\\ncats, \ncat_, \xcat"),
        (r"C:\nightjar, \nnightjar", r"C:\[redacted], \n[redacted]"),
        (r"~a\ntea x, ~a\ntea xs.", r"[redacted], [redacted]ea xs."),
    ] {
        for at in 0..=text.len() {
            let outcome = assert_same_for_any_chunking(&plugin::<WordGuard>(config), &Host::default(), text, &[at]);
            assert_eq!(outcome.text, expected, "{text}");
        }
    }
}

#[test]
fn no_more_waits_behind_a_line_break_than_is_promised() {
    let word = "\u{20000}".repeat(120);
    let guard = plugin::<WordGuard>(&format!(r#"{{"words":["{word}"]}}"#));
    let text = format!("\\n{word}, ");
    assert_eq!(assert_same_for_any_chunking(&guard, &Host::default(), &text, &[]).text, "\\n[redacted], ");
}

#[test]
fn a_stream_is_redacted_across_borders_of_its_pieces() {
    let text = "Ask the Cat about project nightjar, emp-123456, ababc and cats.";
    let outcome = assert_same_for_any_chunking(&plugin::<WordGuard>(CONFIG), &Host::default(), text, &[9, 24]);
    let expected = "Ask the [redacted] about [redacted], [redacted], [redacted] and cats.";
    assert_eq!(outcome.text, expected);
    assert_eq!(outcome.findings.len(), 4);
}

#[test]
fn a_word_that_begins_in_a_match_is_part_of_it() {
    let config = r#"{"words":["foo bar","bar baz secret","secret plan","key is","aba"],"patterns":["\\bis:? \\w+","\\b\\d+( bar)?"]}"#;
    for (text, expected) in [
        ("foo bar baz secret", "[redacted]"),
        ("a foo bar baz secret plan, b", "a [redacted], b"),
        ("foo bar baz secrets", "[redacted] baz secrets"),
        ("17 bar baz secret!", "[redacted]!"),
        ("this is key is", "this [redacted]"),
        ("foo bar, foo bar", "[redacted], [redacted]"),
        ("the key is hunter2!", "the [redacted] hunter2!"),
    ] {
        for at in 0..=text.len() {
            let outcome = assert_same_for_any_chunking(&plugin::<WordGuard>(config), &Host::default(), text, &[at]);
            assert_eq!(outcome.text, expected);
        }
    }
}

#[test]
fn a_chain_of_words_is_one_match_however_long() {
    let guard = plugin::<WordGuard>(r#"{"words":["ab ab ab","ab c"],"patterns":["x[ab ]*"]}"#);
    for begin in ["", "x"] {
        let chain = format!("{begin}{}c, d", "ab ".repeat(1_000));
        let outcome = assert_same_for_any_chunking(&guard, &Host::default(), &chain, &[700, 1_500, 2_200]);
        assert_eq!(outcome.text, "[redacted], d");
    }
}

#[test]
fn a_word_of_a_script_without_spaces_is_found_wherever_pieces_end() {
    let guard = plugin::<WordGuard>(r#"{"words":["密码","비밀","cat"],"patterns":["\\b口令\\d\\b"]}"#);
    let text = "我的密码是cat，비밀은 口令7吗，cats 密";
    let expected = "我的[redacted]是[redacted]，[redacted]은 [redacted]吗，cats 密";
    for at in 0..=text.len() {
        assert_eq!(assert_same_for_any_chunking(&guard, &Host::default(), text, &[at]).text, expected);
    }
}

#[test]
fn text_that_begins_nothing_leaves_at_once() {
    let pieces = ["Think", " of", " quick", " dogs"];
    let outcome = Host::default().stream(&plugin::<WordGuard>(CONFIG), &pieces).unwrap();
    assert_eq!(outcome.held_bytes, 0);
}

#[test]
fn a_match_leaves_as_soon_as_it_is_sure() {
    let guard = plugin::<WordGuard>(r#"{"patterns":["EMP-\\d{2}","ID\\d\\b"]}"#);
    let outcome = Host { ends_apart: true, ..Host::default() }.stream(&guard, &["EMP-12"]).unwrap();
    assert_eq!((outcome.text.as_str(), outcome.held_bytes), ("[redacted]", 0));
    let outcome = Host { ends_apart: true, ..Host::default() }.stream(&guard, &["ID1"]).unwrap();
    assert_eq!((outcome.text.as_str(), outcome.held_bytes), ("[redacted]", 3), "a border hangs on what follows");
}

fn awkward() -> impl Strategy<Value = String> {
    const PIECES: &[&str] = &[
        "project", "nightjar", " ", "\n", "cat", "c", "a", "+", "C++", "emp", "-", "12", "345", "6", "ab", "abc", "b",
        "é", "密", "_", "s", "\"", "\\n", "\\", ",", "\\r\\n", "\\tcat", "n",
    ];
    proptest::collection::vec(proptest::sample::select(PIECES), 0..40).prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn the_client_reads_the_same_for_any_chunking(
        text in awkward(),
        at in proptest::collection::vec(0usize..200, 0..8),
        whole_words in any::<bool>(),
        block in any::<bool>(),
    ) {
        let action = if block { "block" } else { "redact" };
        let more = format!(r#","whole_words":{whole_words},"action":"{action}","max_match_bytes":28}}"#);
        let guard = plugin::<WordGuard>(&CONFIG.replace('}', "\u{1}").replacen('\u{1}', "}", 1).replace('\u{1}', &more));
        for channel in [Channel::Text, Channel::ToolArguments("c1".into())] {
            let host = Host { channel, ..Host::default() };
            assert_same_for_any_chunking(&guard, &host, &text, &at);
        }
    }
}
