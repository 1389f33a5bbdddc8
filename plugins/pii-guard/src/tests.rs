//! Behaviour of the whole guard, on streams; on prompts: `tests/prompts.rs`; at a glance: `tests/glances.rs`.

mod glances;
mod prompts;

use super::*;
use prompts::inspect;
use proptest::prelude::*;
use tidegate_plugin_sdk::plugin::configure;
use tidegate_plugin_sdk::testing::{
    Host, assert_readme_is_true, assert_same_for_any_chunking, assert_same_for_any_parts, edited, plugin,
};
use tidegate_plugin_sdk::{Action, Channel, Edit, Message, Part, Role, Span, ToolCall, ToolOutcome};

#[test]
fn the_readme_names_every_setting() {
    assert_readme_is_true::<PiiGuard>(include_str!("../README.md"));
}

#[test]
fn a_config_that_cannot_work_is_refused() {
    for json in [
        r#"{"kinds":[]}"#,
        r#"{"roles":[]}"#,
        r#"{"kinds":["mail"]}"#,
        r#"{"replacement":"\"x\""}"#,
        r#"{"action":"drop"}"#,
    ] {
        assert!(matches!(configure::<PiiGuard>(json), Err(Error::InvalidConfig(_))), "{json}");
    }
}

fn redacted(config: &str, channel: Channel, text: &str) -> String {
    let host = Host { channel, ..Host::default() };
    assert_same_for_any_chunking(&plugin::<PiiGuard>(config), &host, text, &[]).text
}

#[test]
fn a_stream_is_redacted_across_borders_of_its_pieces() {
    let text = "Mail jo@example.com or call +49 30 1234567, +90 532 123 45 67. Card 4111 1111 1111 1111, DE89 3704 0044 0532 0130 00.";
    let expected = "Mail [email] or call [phone], [phone]. Card [card], [iban].";
    assert_eq!(redacted("", Channel::Text, text), expected);
    assert_eq!(redacted("", Channel::Reasoning, text), expected);
    assert_eq!(redacted(r#"{"replacement":""}"#, Channel::Text, "I am jo@example.com."), "I am .");
}

#[test]
fn a_key_longer_than_the_holdback_never_leaves() {
    let key = format!("sk-{}", "a1B2".repeat(400));
    assert_eq!(redacted("", Channel::Text, &format!("It is {key}. Bye")), "It is [api-key]. Bye");
    let token = format!("eyJhbGciOiJIUzI1NiJ9.eyJ{}.{}", "a1B2".repeat(400), "c3D4".repeat(50));
    assert_eq!(redacted("", Channel::Text, &format!("It is {token}. Bye")), "It is [api-key]. Bye");
    let (dashes, line) = ("-".repeat(5), "a1B2".repeat(16));
    let lines = format!("{line}\n").repeat(30);
    let key = format!("{dashes}BEGIN RSA PRIVATE KEY{dashes}\n{lines}T=\n{dashes}END RSA PRIVATE KEY{dashes}");
    assert_eq!(redacted("", Channel::Text, &format!("It is\n{key}\nBye")), "It is\n[api-key]\nBye");
    let headers = "Proc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,0A1B2C3D4E5F60718293A4B5C6D7E8F9\n\n";
    let key = key.replacen("a1B2", &format!("{headers}a1B2"), 1);
    assert_eq!(redacted("", Channel::Text, &format!("It is\n{key}\nBye")), "It is\n[api-key]\nBye");
    let glued = format!("ghp_{}{key}", "a1B2".repeat(100));
    assert_eq!(redacted("", Channel::Text, &format!("It is\n{glued}\nBye")), "It is\n[api-key][api-key]\nBye");
}

#[test]
fn block_ends_the_answer_where_the_find_begins() {
    let host = Host::default();
    let guard = plugin::<PiiGuard>(r#"{"action":"block"}"#);
    let outcome = assert_same_for_any_chunking(&guard, &host, "Write to jo@example.com today", &[3, 12, 20]);
    assert_eq!((outcome.text.as_str(), outcome.halted.as_deref()), ("Write to ", Some("pii")));
}

#[test]
fn arguments_stay_json_and_can_be_left_alone() {
    let channel = || Channel::ToolArguments("c1".into());
    let text = r#"{"to":"x\njo@example.com","card":4111111111111111,"n":[1,2]}"#;
    let expected = r#"{"to":"x\n[email]","card":"[card]","n":[1,2]}"#;
    assert_eq!(redacted("", channel(), text), expected);
    assert_eq!(redacted(r#"{"tool_arguments":false}"#, channel(), text), text);
}

#[test]
fn plain_text_leaves_word_by_word() {
    let guard = plugin::<PiiGuard>("");
    let outcome = Host::default().stream(&guard, &["The", " quick", " brown", " fox", " is 12", " years old."]);
    let outcome = outcome.unwrap();
    assert_eq!(outcome.text, "The quick brown fox is 12 years old.");
    assert!(outcome.held_bytes <= 5, "{} bytes were held", outcome.held_bytes);
    assert_eq!(outcome.findings, []);
}

/// Text in which the detectors have work: parts of what they look for, glued at random.
pub(crate) fn awkward() -> impl Strategy<Value = String> {
    const PIECES: &[&str] = &[
        "jo",
        "@",
        "example",
        ".com",
        ".",
        " ",
        "-",
        "+49",
        "30",
        "123",
        "4567",
        "0",
        "(415)",
        "030 \u{a0}(1234567",
        "030  (1234567",
        ")\u{a0}555",
        "(",
        "(see ",
        "well-",
        "555",
        "2671",
        "4111",
        "1111",
        "411111111111111",
        "1",
        "DE89",
        "3704",
        "0044053201300",
        "sk-",
        "a1B2c3D4",
        "eyJhbGciOiJ9",
        ".eyJ",
        "AKIA",
        "\"",
        "\\",
        "\\n",
        "\\r",
        "\\n4111",
        "\\tjo",
        "n",
        "'",
        "o'b",
        "u0041",
        ",",
        "é",
        "e\u{301}",
        "\u{308}",
        "谢",
        "\t",
        "/",
        "\u{ff0b}",
        "\u{ff0f}",
        "03-1234-5678",
        "\n",
        "_",
        "x",
        "SG.",
        "aB3dE5gH7jK9mN1p",
        "-----",
        "n-----BEGIN PRIVATE KEY-----",
        "BEGIN RSA PRIVATE KEY-----",
        "MHcCAQEEIzXKyBTX17dh",
        "END RSA PRIVATE KEY-----",
        "Proc-Type: 4,ENCRYPTED\n",
        "DEK-Info: ",
        "AES-128-CBC,0A1B",
        "sha256-",
        "sha256-47DEQpj8HB/aBlTImW5JCeuQeRkm5NMpJWZG3hSu",
        "FU0=",
        "AAAAC3NzaC1lZDI1NTE5AAAAI",
        "aB3dE5gH7jK9mN1pQ3sT5vW7yZ9bC1eF3h",
        "+",
        "\u{a0}",
        "\u{202f}1111",
        "\u{2011}",
        "\u{ad}",
        "\u{200b}",
        "\u{200d}",
        "\u{ff20}",
        "example\u{ff0e}com",
        "４１１１",
        "１１１１１１１１１１１１",
        "\u{ff0d}",
        "ｅ",
        "٠",
        "7",
        " 2024 the ",
        "3.14",
        "ab1",
        "年",
        "1.",
        "50%",
        "3+",
        "GB29 NWBK",
        " 6016 1331 9268 19",
        "NL91 ABNA 0417 1643 00",
        "xoxb-",
        "abcdefghij1",
        "2026-11-27",
        " 1111 1111 1111",
        "12345678",
        "0049",
        "(0",
        "- ",
        "--",
        "|---|",
        " (.",
        "gpt-4",
        "v2.1",
        "f(",
        " 45",
        " 67",
    ];
    proptest::collection::vec(proptest::sample::select(PIECES), 0..40).prop_map(|pieces| pieces.concat())
}

/// Where no space is behind the dot of a list, say.
#[test]
fn what_begins_behind_a_number_and_a_sign_is_found_wherever_pieces_end() {
    for (text, read) in [
        ("1.GB29 NWBK 6016 1331 9268 19 x", "1.[iban] x"),
        ("50%GB29\u{a0}NWBK\u{a0}6016\u{a0}1331\u{a0}9268\u{a0}19 x", "50%[iban] x"),
        ("1.GB29-NWBK 6016 1331 9268 19 x", "1.[iban] x"),
        ("1.NL91 ABNA 0417 1643 00 x", "1.[iban] x"),
        ("2.MT84 MALT 0110 0001 2345 MTLC AST0 01S.", "2.[iban]."),
        ("2.xoxp-a1bcdefghijk, ", "2.[api-key], "),
    ] {
        let outcome = assert_same_for_any_chunking(&plugin::<PiiGuard>(""), &Host::default(), text, &[]);
        assert_eq!(outcome.text, read);
    }
}

#[test]
fn a_number_whose_groups_are_two_separators_apart_is_found_wherever_pieces_end() {
    for text in ["call 030  (1234567 now", "call 030 \u{a0}(1234567 now", "call 030/\u{2011}(1234567 now"] {
        let outcome = assert_same_for_any_chunking(&plugin::<PiiGuard>(""), &Host::default(), text, &[]);
        assert_eq!(outcome.text, "call [phone] now");
    }
}

#[test]
fn a_card_that_begins_in_a_phone_number_is_found_wherever_pieces_end() {
    let text = "1. 01 4111 1111 1111 1111 of 030 123 4111 1111 1111 1111, +49 301234 4111 1111 1111 1111";
    for at in 0..=text.len() {
        assert_same_for_any_chunking(&plugin::<PiiGuard>(""), &Host::default(), text, &[at]);
    }
    assert_eq!(redacted("", Channel::Text, text), "1. [card] of [card], [card]");
}

/// Each four of its groups in a row are a card.
#[test]
fn a_long_list_of_numbers_is_decided_on_however_it_is_set() {
    for (space, groups) in [("\u{a0}", 20), ("\u{2009}", 44), ("\u{2013}", 61), (" ", 61)] {
        let text = format!("Cards: {} and prose, prose, prose.", vec!["4242"; groups].join(space));
        let outcome = assert_same_for_any_chunking(&plugin::<PiiGuard>(""), &Host::default(), &text, &[100, 400]);
        let left = outcome.text.matches("4242").count();
        assert!(left < 4 && outcome.text.ends_with(" and prose, prose, prose."), "{}", outcome.text);
    }
}

#[test]
fn numbers_on_both_sides_of_a_slash_are_found_wherever_pieces_end() {
    for (text, read) in [
        ("x(415)555/4567/4111", "x([phone]/4111"),
        ("call 03-1234-5678／090-1234-5678 now", "call [phone]／[phone] now"),
        ("-----BEGIN PRIVATE KEY-----411111111111111／+49", "[api-key]"),
    ] {
        let every: Vec<usize> = (0..=text.len()).collect();
        let outcome = assert_same_for_any_chunking(&plugin::<PiiGuard>(""), &Host::default(), text, &every);
        assert_eq!(outcome.text, read);
    }
}

#[test]
fn a_name_with_an_apostrophe_is_found_wherever_pieces_end() {
    let text = "It's sean.o'brien@example.ie, 'ap@x.example' or l'été d'a@x.example.";
    for at in 0..=text.len() {
        let outcome = assert_same_for_any_chunking(&plugin::<PiiGuard>(""), &Host::default(), text, &[at]);
        assert_eq!(outcome.text, "It's [email], '[email]' or l'été [email].");
    }
}

/// What tools return and answers have is not decoded, and of answers a piece may end between a backslash and its letter.
#[test]
fn a_line_break_as_json_writes_it_hides_nothing_wherever_pieces_end() {
    let key = format!("AKIA{}", "IOSFODNN7EXAMPLE");
    let text = format!(
        "{{\"note\":\"card:\\n4111 1111 1111 1111\\n+49 30 1234567\\r\\n{key}\\tjo@x.example\\n\\ntne@x.example\"}}"
    );
    let expected = r#"{"note":"card:\n[card]\n[phone]\r\n[api-key]\t[email]\n\n[email]"}"#;
    for at in 0..=text.len() {
        let outcome = assert_same_for_any_chunking(&plugin::<PiiGuard>(""), &Host::default(), &text, &[at]);
        assert_eq!(outcome.text, expected);
    }
    let call = ToolCall { id: "c1".into(), name: "look".into(), arguments: "{}".into() };
    let result = Part::ToolOutcome(ToolOutcome::text(&call, &text));
    let message = Message { parts: vec![result], ..Message::text("m0", Role::Tool, "") };
    let left = edited(&message, &inspect("", vec![message.clone()]).action);
    assert_eq!(left.parts[0].as_text(), Some(expected));
}

#[test]
fn a_line_break_before_a_number_is_seen_behind_text_that_nobody_asks_about() {
    for text in ["so the words are\\n4111111111111111, ", "so a\\tb\\n4111111111111111, ", "so 12\\n030 1234567 is, "] {
        for at in 0..=text.len() {
            let pieces = [&text[..at], &text[at..]];
            let outcome = Host::default().stream(&plugin::<PiiGuard>(""), &pieces).unwrap();
            assert!(outcome.text.contains("\\n["), "{pieces:?} became {}", outcome.text);
        }
    }
}

#[test]
fn no_more_waits_behind_a_line_break_than_is_promised() {
    let address = format!("\\n{}@{}.com", "a".repeat(128), "b.".repeat(125) + "b");
    let outcome = assert_same_for_any_chunking(&plugin::<PiiGuard>(""), &Host::default(), &address, &[]);
    assert_eq!((outcome.text.as_str(), address.len()), ("\\n[email]", 386));
    // What the guard declares of that is asked for there.
    for unseen in ["\u{200b}", "\u{ad}", "\u{e0001}"] {
        let text = format!("\\na{}", unseen.repeat(200));
        let outcome = assert_same_for_any_chunking(&plugin::<PiiGuard>(""), &Host::default(), &text, &[]);
        assert_eq!(outcome.text, text);
    }
}

/// One that is further on changes nothing about what stands before.
#[test]
fn what_is_invisible_stands_beside_a_number_wherever_pieces_end() {
    for text in [
        "call 030 1234567\u{200b} now",
        "\u{200b}4111 1111\u{ad} 1111 1111, x",
        "jo\u{200b}@example\u{200d}.com\u{feff}.",
        "né\u{301}e jo\u{308}@exa\u{323}\u{302}mple.com\u{301}\u{301} é",
    ] {
        for at in 0..=text.len() {
            assert_same_for_any_chunking(&plugin::<PiiGuard>(""), &Host::default(), text, &[at]);
        }
        assert!(redacted("", Channel::Text, text).contains('['), "{text:?}");
    }
}

proptest! {
    #[test]
    fn the_client_reads_the_same_for_any_chunking(
        text in awkward(),
        at in proptest::collection::vec(0usize..300, 0..8),
        look_behind in 0usize..40,
    ) {
        for channel in [Channel::Text, Channel::ToolArguments("c1".into())] {
            let host = Host { channel, look_behind, ..Host::default() };
            assert_same_for_any_chunking(&plugin::<PiiGuard>(""), &host, &text, &at);
            assert_same_for_any_chunking(&plugin::<PiiGuard>(r#"{"action":"block"}"#), &host, &text, &at);
        }
    }

    /// Words and numbers before and behind, which the host does not ask about.
    #[test]
    fn what_words_are_around_is_found_all_the_same(
        text in awkward(),
        words in "([a-zA-Z_.+%('éя\u{301}-]{1,24}[ ,;:)\n年\u{2013}]{0,2}|[(.-]{0,2}[a-z]{0,2}[0-9]{1,4}[a-z.%+-]?[ \t,:/)年\u{a0}-]{0,2}){0,8}",
        at in proptest::collection::vec(0usize..300, 0..8),
    ) {
        let text = format!("{words}{text}{words}{text}");
        for config in [
            "",
            r#"{"action":"flag"}"#,
            r#"{"action":"block","kinds":["card","phone"]}"#,
            r#"{"kinds":["api-key"],"replacement":""}"#,
            r#"{"kinds":["email","iban"],"replacement":"x@y"}"#,
        ] {
            assert_same_for_any_chunking(&plugin::<PiiGuard>(config), &Host::default(), &text, &at);
        }
    }

    #[test]
    fn what_a_prompt_loses_a_stream_loses_too(text in awkward()) {
        let guard = plugin::<PiiGuard>("");
        let streamed = Host::default().stream(&guard, &[&text]).unwrap().text;
        let mut edited = text.clone();
        let rules = guard.0.rules();
        let hits = tidegate_plugin_sdk::scan::find_all(rules, &text);
        for hit in hits.iter().rev() {
            let replacement = if hit.continues { String::new() } else { rules.replacement(hit.rule) };
            edited.replace_range(hit.range.clone(), &replacement);
        }
        prop_assert_eq!(streamed, edited);
    }
}
