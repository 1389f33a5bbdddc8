//! `plugin test` of stream guards.

use super::{CASES, guest, plugin, run_cases, shipped};

#[test]
fn test_streams_every_chunking_and_tells_what_failed() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("tests.toml"), CASES).unwrap();
    let (good, said) = plugin(folder.path(), &["test", &shipped("template")]);
    // 11 characters: the whole, all 1,024 with either ending, and two streams in turn.
    assert!(good && said.contains("ok      the word is replaced (2050 chunkings)"), "{said}");
    // 18 characters: the whole, 2 endings of the whole, all single ones, 17 cuts, 7 lengths and 64 drawn chunkings, and two
    // streams in turn.
    assert!(said.contains("ok      another word (182 chunkings)"), "{said}");

    std::fs::write(folder.path().join("tests.toml"), CASES.replace("a bar fobar", "a foo fobar")).unwrap();
    let (good, said) = plugin(folder.path(), &["test", &shipped("template")]);
    assert!(!good && said.contains("FAILED  the word is replaced"), "{said}");
    assert!(said.contains("`text` is \"a bar fobar\", not \"a foo fobar\"") && said.contains("1 of 2 cases"), "{said}");
}

/// What a server would halt is no test passed: the guard promises 4096 bytes, of which it is not given more than 512 unasked.
#[test]
fn test_lets_a_guard_withhold_what_a_server_does() {
    let text = "x".repeat(700);
    let cases = |hold: usize, limits: &str| {
        format!(
            "[config]\nhold = \"{hold}\"\n{limits}[[case]]\nname = \"all of it leaves\"\nask.stream = \"{text}\"\n\
             expect.text = \"{text}\"\n"
        )
    };
    let (good, said) = run_cases(&guest("watches"), &cases(512, ""));
    assert!(good, "{said}");
    let (good, said) = run_cases(&guest("watches"), &cases(513, ""));
    let why = "it withholds 513 bytes, and a server ends the answer at more than 512 (`limits.holdback_bytes`";
    assert!(!good && said.contains(why), "{said}");
    let (good, said) = run_cases(&guest("watches"), &cases(513, "[limits]\nholdback_bytes = 513\n"));
    assert!(good, "{said}");
}

#[test]
fn what_a_stream_guard_fails_with_is_expected_as_any_failure_unless_it_is_of_some_chunkings_only() {
    let case = |text: &str, error: &str| {
        format!("[[case]]\nname = \"a\"\nask.stream = \"{text}\"\nexpect.error = \"{error}\"\n")
    };
    let traps = format!("[config]\ntrap = \"boom\"\n{}", case("a boom", "trapped"));
    let (good, said) = run_cases(&guest("watches"), &traps);
    assert!(good, "{said}");
    // It breaks the contract at a window that ends with that word.
    let (good, said) = run_cases(&guest("lies"), &case("a carry on", "its carry has"));
    assert!(!good && said.contains("        in [") && said.contains("its carry has 16385 bytes"), "{said}");
}

/// At a glance it lets go what it takes out when it is asked.
#[test]
fn a_glance_is_compared_with_what_the_guard_says_when_it_is_asked() {
    let case = |text: &str| format!("[[case]]\nname = \"a\"\nask.stream = \"{text}\"\nexpect.text = \"asked\"\n");
    for (text, why) in [
        (
            "word",
            "at a glance it lets go the first 4 bytes of \"word\", of which 0 have left; asked about it, it redacts some",
        ),
        ("panic", "at a glance at \"panic\": plugin `glances` trapped"),
        ("log", "broke the contract: it logs or counts"),
    ] {
        let (good, said) = run_cases(&guest("glances"), &case(text));
        assert!(!good && said.contains(why), "{said}");
    }
}

#[test]
fn arguments_of_a_tool_call_are_asked_about_once_and_stay_json() {
    let case = |text: &str, expect: &str| {
        let ask = format!("ask.stream = {{ channel = \"tool-arguments\", text = '{text}' }}");
        format!("[[case]]\nname = \"a\"\n{ask}\nexpect = {{ {expect} }}\n")
    };
    let (good, said) = run_cases(&guest("lies"), &case(r#"{"a":"b spoilt"}"#, "error = 'leave no JSON'"));
    assert!(good && !said.contains("chunkings"), "{said}");
    let halts = case(r#"{"a":"boom"}"#, "text = '', halted = 'arguments'");
    let (good, said) = run_cases(&guest("watches"), &format!("[config]\nhalt = \"boom\"\n{halts}"));
    assert!(good, "{said}");
}
