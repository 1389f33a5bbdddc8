//! What a case of `plugin test` may say, and what it shows.

use super::world::OUTSIDE;
use super::{guest, plugin, run_cases, shipped};

#[test]
fn test_shows_the_log_of_a_case_that_failed_and_of_no_other() {
    let folder = tempfile::tempdir().unwrap();
    // It writes a line for each request that it is told of.
    let cases = "[[case]]\nname = \"told\"\nask.observe = \"answered\"\nexpect.seen = true\n";
    std::fs::write(folder.path().join("tests.toml"), cases).unwrap();
    let (good, said) = plugin(folder.path(), &["test", &guest("honest")]);
    assert!(good && !said.contains("log:"), "{said}");
    std::fs::write(folder.path().join("tests.toml"), cases.replace("true", "false")).unwrap();
    let (good, said) = plugin(folder.path(), &["test", &guest("honest")]);
    let line = "        log: INFO  Summary { outcome: \"answered\"";
    assert!(!good && said.contains("FAILED  told\n") && said.contains(line), "{said}");
}

#[test]
fn what_a_call_counts_is_expected_as_what_it_answers() {
    let case = |name: &str, metric: &str, counted: &str| {
        format!(
            "[[case]]\nname = \"{name}\"\nask.tool = {{ name = \"count\", arguments = \"{metric}\" }}\n\
             expect = {{ tools = [], counted = {counted} }}\n"
        )
    };
    let grants = "[grants]\nkv_kib = 64\ndocuments = { here = \".\" }\n";
    let cases =
        [case("three", "kept 3", "{ kept = 3 }"), case("one", "kept 1", "{ kept = 1 }"), case("none", "lost 2", "{}")];
    let (good, said) = run_cases(&guest("keeper"), &(grants.to_owned() + &cases.concat()));
    assert!(good, "{said}");
    let (good, said) = run_cases(&guest("keeper"), &(grants.to_owned() + &case("lost", "lost 2", "{ lost = 2 }")));
    assert!(!good && said.contains("`counted` is {}, not {\"lost\":2}"), "{said}");
    assert!(said.contains("metric `lost` is not declared in the descriptor"), "{said}");
}

/// A server answers all the same, and counts nothing: whoever wrote it would look for figures that never come.
#[test]
fn each_case_in_which_a_metric_is_counted_that_is_not_declared_says_so_and_passes() {
    let case = |name: &str, tool: &str, metric: &str| {
        format!(
            "[[case]]\nname = \"{name}\"\nask.tool = {{ name = \"{tool}\", arguments = \"{metric} 2\" }}\n\
             expect.tools = []\n"
        )
    };
    let cases = [
        case("lost", "count", "lost"),
        case("kept", "count", "kept"),
        case("lost again", "count", "lost"),
        case("seen", "observe", "seen"),
    ];
    let grants = "[grants]\nkv_kib = 64\ndocuments = { here = \".\" }\n";
    let (good, said) = run_cases(&guest("keeper"), &(grants.to_owned() + &cases.concat()));
    let told = |name: &str| {
        format!(
            "\n        counts `{name}`, which `metrics` of its descriptor does not declare: a server leaves that out, and \
             logs it\n"
        )
    };
    let lines = ["lost", "lost again"].map(|case| format!("ok      {case}{}", told("lost")));
    assert!(good && lines.iter().all(|lines| said.contains(lines)), "{said}");
    assert!(said.contains(&format!("ok      seen{}", told("seen"))), "{said}");
    assert_eq!(said.matches("        counts").count(), 3, "{said}");
}

#[test]
fn a_plugin_without_its_grant_is_told_where_tests_have_it() {
    let (good, said) = run_cases(&guest("keeper"), "[[case]]\nname = \"a\"\nask.stream = \"x\"\nexpect.text = \"x\"\n");
    assert!(!good && said.contains("plugin `keeper`") && said.contains("to [grants] in tests.toml"), "{said}");
    assert!(!said.contains("the stage's"), "{said}");
    let case = "[[case]]\nname = \"a\"\nask.tool.name = \"get\"\nexpect.content = \"x\"\n";
    let (good, said) = run_cases(&guest("reaches"), &(OUTSIDE.replace("content = true\n", "") + case));
    assert!(!good && said.contains("add `content = true` to [grants] in tests.toml"), "{said}");
    assert!(!said.contains("the stage's"), "{said}");
}

#[test]
fn cases_that_cannot_be_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    for (cases, expected) in [
        ("", "there is no [[case]]"),
        ("[[case]]\nname = \"a\"\nask.prompt = \"x\"\nexpect = {}\n", "expects nothing"),
        ("[[case]]\nname = \"a\"\nask.shell = \"x\"\nexpect.a = 1\n", "shell"),
    ] {
        std::fs::write(folder.path().join("tests.toml"), cases).unwrap();
        let (good, said) = plugin(folder.path(), &["test", &shipped("template")]);
        assert!(!good && said.contains(expected), "{expected}: {said}");
    }
}

/// As a stage that says nothing else.
#[test]
fn a_retriever_is_asked_for_three_passages_and_for_as_many_as_a_case_says() {
    let cases = "[[case]]\nname = \"as by default\"\nask.retrieve = \"ferries\"\nexpect.ids = [\"c0\", \"c1\", \"c2\"]\n\
                 [[case]]\nname = \"two\"\nask.retrieve = { text = \"ferries\", top_k = 2 }\n\
                 expect.ids = [\"c0\", \"c1\"]\n";
    let (good, said) = run_cases(&guest("honest"), cases);
    assert!(good, "{said}");
    let (good, said) = run_cases(&guest("honest"), &cases.replace("top_k = 2", "top_k = 0"));
    assert!(!good && said.contains("`top_k` is at least 1"), "{said}");
}

#[test]
fn a_config_that_no_case_uses_need_not_be_good() {
    let case =
        |config: &str| format!("[[case]]\nname = \"a\"\n{config}ask.prompt = \"hello\"\nexpect.action = \"allow\"\n");
    let own = case("config = { words = [\"heron\"] }\n");
    let (good, said) = run_cases(&shipped("word-guard"), &format!("[config]\nwords = 7\n{own}"));
    assert!(good, "{said}");
    let (good, said) = run_cases(&shipped("word-guard"), &format!("[config]\nwords = 7\n{own}{}", case("")));
    assert!(!good && said.contains("words"), "{said}");
}

#[test]
fn a_case_may_say_all_that_a_stage_is_told() {
    let cases = r#"
[[case]]
name = "a prompt with tools and parameters"
ask.prompt.messages = [{ role = "system", text = "Be brief." }, { role = "user", text = "echo" }]
ask.prompt.tools = [{ name = "clock", description = "tells the time", input_schema = { type = "object" } }]
ask.prompt.params = { temperature = 0.5, stop = ["a"] }
expect.text = 'ECHO'

[[case]]
name = "what guards saw, and attributes"
ask.route.prompt = "x"
ask.route.candidates = [{ id = "a", context = 9, attrs = { waiting = 3 } }, { id = "b", context = 9 }]
ask.route.findings = [{ category = "x:y", severity = "high" }, { category = "x:z", severity = "low" }]
ask.route.attrs = { class = "batch" }
expect = { order = ["b", "a"], reason = "2 findings, 3 attrs" }

[[case]]
name = "an answer"
config = { output = "respond" }
ask.output = { text = "hello", finish_reason = "length", attrs = { model = "m" } }
expect.text = '[Part::Text("hello")] ["length"] None [("model", "\"m\"")]'

[[case]]
name = "how a request ended"
ask.observe = { outcome = "failed", detail = "timeout", findings = [{ category = "x:y", severity = "high" }], attrs = { stream = true } }
expect.seen = false
"#;
    let (_, said) = run_cases(&guest("honest"), cases);
    // What the guest was shown stands in the differences and in its log.
    for part in [
        "Part::Text(\\\"Be brief.\\\")",
        "name: \\\"clock\\\", description: \\\"tells the time\\\"",
        "(\\\"temperature\\\", \\\"0.5\\\")",
        "(\\\"form\\\", \\\"\\\\\\\"chat\\\\\\\"\\\")",
        "ok      what guards saw, and attributes",
        "ok      an answer",
        "outcome: \"failed\", detail: \"timeout\"",
        "category: \"x:y\"",
        "attrs: [(\"stream\", \"true\")]",
        "2 of 4 cases failed",
    ] {
        assert!(said.contains(part), "{part} is not in\n{said}");
    }
}

/// With the edits that a server makes: what a model called tools with, what they said, and which messages there are.
#[test]
fn the_outcome_has_the_messages_as_the_guard_leaves_them() {
    let redacts = r#"
[[case]]
name = "arguments of a call, and what a tool says"
ask.prompt = [
  { role = "assistant", tool_calls = [{ id = "c1", name = "send", arguments = { to = "jo@example.com" } }] },
  { role = "tool", call_id = "c1", text = "sent to jo@example.com" },
]
expect.action = "rewrite"
expect.text = "sent to [email]"
expect.messages = [
  { role = "assistant", text = "", tool_calls = [{ id = "c1", name = "send", arguments = '{"to":"[email]"}' }] },
  { role = "tool", text = "sent to [email]", call_id = "c1" },
]
[[case]]
name = "text from outside"
ask.prompt = [{ role = "user", text = "Write to jo@example.com.", source = "notes" }]
expect.messages = [{ role = "user", text = "Write to [email].", source = "notes" }]
"#;
    let moves = r#"
[[case]]
name = "three are put, one of them and the prompt are dropped"
ask.prompt = "the truth about edits"
expect = { action = "rewrite", messages = [{ role = "user", text = "" }, { role = "user", text = "" }] }
[[case]]
name = "text from outside is not put anywhere, and dropped"
ask.prompt = [{ role = "user", text = "the truth about edits", source = "notes" }]
expect = { action = "rewrite", messages = [] }
"#;
    let shouts = r#"
[config]
output = "shout"
[[case]]
name = "an answer that calls a tool"
ask.output = { text = "hi", tool_calls = [{ id = "c1", name = "f" }] }
expect.text = "HI"
expect.messages = [{ role = "assistant", text = "HI", tool_calls = [{ id = "c1", name = "f", arguments = "{}" }] }]
"#;
    let beside = r#"
[[case]]
name = "what a model wrote beside its text"
ask.prompt = [{ role = "assistant", reasoning = "jo@example.com?", refusal = "not jo@example.com" }]
expect.messages = [{ role = "assistant", text = "", reasoning = "[email]?", refusal = "not [email]" }]
"#;
    let beside_an_answer = r#"
[config]
output = "respond"
[[case]]
name = "what a model wrote beside its answer"
ask.output = { reasoning = "why?", refusal = "no" }
expect.text = '[Part::Reasoning("why?"), Part::Refusal("no")] ["stop"] None [("model", "\"model\"")]'
"#;
    for (component, cases) in [
        (shipped("pii-guard"), redacts),
        (shipped("pii-guard"), beside),
        (guest("lies"), moves),
        (guest("honest"), shouts),
        (guest("honest"), beside_an_answer),
    ] {
        let (good, said) = run_cases(&component, cases);
        assert!(good, "{said}");
    }
}

#[test]
fn limits_of_the_file_are_those_of_a_stage_and_what_passes_a_servers_default_is_told() {
    let cases = r#"
[limits]
cpu_ms = 300
[[case]]
name = "at once"
ask.prompt = "go on"
expect.action = "allow"
[[case]]
name = "never"
ask.prompt = "loop"
expect.error = "300ms of cpu time (limits.cpu_ms)"
"#;
    let (good, said) = run_cases(&guest("loops"), cases);
    let told = "ms of CPU; a server's default for a prompt-guard is 100 (`limits.cpu_ms` of the stage)";
    assert!(good && said.matches(told).count() == 1, "{said}");
    assert!(said.split("never\n        took ").nth(1).is_some_and(|rest| rest.contains(told)), "{said}");
    let asks = |limits: &str| {
        run_cases(
            &guest("hoards"),
            &format!("[limits]\n{limits}\n[[case]]\nname = \"a\"\nask.prompt = \"80\"\nexpect.action = \"allow\"\n"),
        )
    };
    let (good, said) = asks("memory_mib = 128");
    assert!(good, "{said}");
    let (good, said) = asks("memory_mib = 32");
    assert!(!good && said.contains("its limit is 33554432 (limits.memory_mib)"), "{said}");
}

/// Whatever else there is to fail of is no answer to what the case asks: it would hide that nothing was asked.
#[test]
fn only_a_refused_config_is_a_failure_to_load_that_a_case_may_expect() {
    let case = |ask: &str, config: &str, error: &str| {
        format!("[[case]]\nname = \"a\"\n{config}\nask.{ask} = \"x\"\nexpect.error = \"{error}\"\n")
    };
    let word = |config: &str| run_cases(&shipped("template"), &case("stream", config, "word"));
    let (good, said) = word("config = { word = \"\" }");
    assert!(good, "{said}");
    let (good, said) = word("config = { wrod = \"a\" }");
    assert!(!good && said.contains("did you mean `word`?"), "the key that was meant is no fault: {said}");
    let (good, said) = run_cases(&guest("keeper"), &case("stream", "config = {}", "kv"));
    assert!(!good && said.contains("FAILED") && said.contains("to [grants] in tests.toml"), "{said}");
    let (good, said) = run_cases(&shipped("json-guard"), &case("stream", "config = { schema = {} }", "guard"));
    assert!(!good && said.contains("asks a stream-guard, which the plugin is not: it exports output-guard"), "{said}");
}

/// To a schema it is the same number, and a plugin that reads its config into types would refuse it.
#[test]
fn an_integer_that_is_written_as_a_float_is_one() {
    let case = "[[case]]\nname = \"a\"\nconfig = { decimals = 2.0 }\n\
                ask.tool = { name = \"calculator\", arguments = { expression = \"1/3\" } }\nexpect.content = \"0.33\"\n";
    let (good, said) = run_cases(&shipped("calculator"), case);
    assert!(good, "{said}");
}

#[test]
fn a_config_of_the_file_that_is_refused_is_an_outcome_of_the_cases_that_have_no_other() {
    let case = |name: &str, config: &str, expect: &str| {
        format!("[[case]]\nname = \"{name}\"\n{config}\nask.prompt = \"hello\"\nexpect.{expect}\n")
    };
    let cases = [
        case("refused", "", "error = \"words\""),
        case("its own", "config = { words = [\"heron\"] }", "action = \"allow\""),
        case("not seen", "", "action = \"allow\""),
    ];
    let (good, said) = run_cases(&shipped("word-guard"), &format!("[config]\nwords = 7\n{}", cases.concat()));
    assert!(!good && said.contains("1 of 3 cases failed"), "{said}");
    for part in
        ["ok      refused", "ok      its own", "FAILED  not seen\n        the plugin does not load: ", "`config.words`"]
    {
        assert!(said.contains(part), "{part} is not in\n{said}");
    }
}

/// What is compared otherwise is what was asked, or what left before the word.
#[test]
fn what_a_guard_ends_fails_a_case_that_does_not_know_of_it() {
    let asks = |ask: &str, expect: &str| {
        let config = "[config]\naction = \"block\"\nwords = [\"foo\"]\n";
        let case = format!("[[case]]\nname = \"a\"\nask.{ask}\nexpect = {{ {expect} }}\n");
        run_cases(&shipped("word-guard"), &format!("{config}{case}"))
    };
    let (prompt, stream) = ("prompt = \"a foo b\"", "stream = \"a foo\"");
    for (ask, expect, why) in [
        (prompt, "text = \"a foo b\"", "it refuses, by the code \""),
        (prompt, "findings = [\"word-guard:word\"]", "it refuses, by the code \""),
        (prompt, "action = \"refuse\", text = \"a foo b\"", "`text` is null, not \"a foo b\""),
        (prompt, "action = \"refuse\", messages = []", "`messages` is null, not []"),
        (stream, "text = \"a \"", "it halts the answer, by the code \""),
    ] {
        let (good, said) = asks(ask, expect);
        assert!(!good && said.contains(why), "{ask}, {expect}: {said}");
    }
    for (ask, expect) in [(prompt, "action = \"refuse\""), (stream, "text = \"a \", halted = \"words\"")] {
        let (good, said) = asks(ask, expect);
        assert!(good, "{ask}, {expect}: {said}");
    }
}

/// Of a passage a guard reads where it is from, too, in a server: what passes without that need not pass there.
#[test]
fn a_passage_is_judged_with_what_is_told_of_its_document() {
    let asks = |more: &str, expect: &str| {
        let said = format!("{{ role = \"user\", source = \"notes\", text = \"Write to jo@example.com!\"{more} }}");
        format!("[[case]]\nname = \"a\"\nask.prompt = [{said}]\nexpect.messages = [{expect}]\n")
    };
    let left = |more: &str| format!("{{ role = \"user\", source = \"notes\", text = \"Write to [email]!\"{more} }}");
    let cases = [
        asks("", &left("")),
        asks(", id = \"c0\"", &left(", id = \"c0\"")),
        asks(", id = \"c0\", uri = \"a.md\"", &left(", uri = \"a.md\"")),
        asks(
            ", uri = \"mail/jo@example.com/1\", title = \"To jo@example.com\"",
            &left(", uri = \"mail/[email]/1\", title = \"To [email]\""),
        ),
    ];
    let (good, said) = run_cases(&shipped("pii-guard"), &cases.concat());
    assert!(good, "{said}");
    let text = "[[case]]\nname = \"a\"\nask.prompt = [{ role = \"user\", source = \"notes\", text = \"All is well.\", \
                title = \"Of herons\" }]\nexpect.messages = \
                [{ role = \"user\", source = \"notes\", id = \"m0\", text = \"All is well.\", title = \"Of [redacted]\" }]\n";
    let (good, said) = run_cases(&shipped("word-guard"), &format!("[config]\nwords = [\"herons\"]\n{text}"));
    assert!(good, "{said}");
}

/// No server would call it.
#[test]
fn a_tool_that_is_not_offered_is_called_by_no_case_that_expects_an_answer() {
    let case = |name: &str, expect: &str| {
        format!("[[case]]\nname = \"a\"\nask.tool = {{ name = \"{name}\", arguments = \"\" }}\nexpect.{expect}\n")
    };
    let grants = "[grants]\nkv_kib = 64\ndocuments = { here = \".\" }\n[host]\nnow_unix_ms = 7\n";
    let asks = |name: &str, expect: &str| run_cases(&guest("keeper"), &(grants.to_owned() + &case(name, expect)));
    let (good, said) = asks("clock", "content = \"7 0\"");
    assert!(!good && said.contains("it calls `clock`, which no server does: `list-tools` offers []"), "{said}");
    assert!(!said.contains("`content` is"), "{said}");
    let (good, said) = asks("clock", "tools = []");
    assert!(good, "{said}");
    let (good, said) = run_cases(&shipped("calculator"), &case("clock", "error = \"unsupported\""));
    assert!(good, "{said}");
}

/// At a glance it allows what it answers in the model's place when it is asked.
#[test]
fn a_glance_at_a_prompt_is_compared_with_what_the_guard_says_when_it_is_asked() {
    let case = |text: &str| format!("[[case]]\nname = \"a\"\nask.prompt = \"{text}\"\nexpect.text = \"asked\"\n");
    for (text, why) in [
        ("word", "at a glance it allows the prompt and finds nothing; asked about it, it answers in the model's place"),
        ("panic", "at a glance: plugin `glances` trapped"),
        ("log", "broke the contract: it logs or counts"),
        ("count", r#"asked about it, it counts {"seen":1}"#),
    ] {
        let (good, said) = run_cases(&guest("glances"), &case(text));
        assert!(!good && said.contains(why), "{said}");
    }
    let (good, said) = run_cases(&guest("glances"), &case("unsure"));
    assert!(good, "{said}");
}

/// Of more than 1 MiB, which some bytes of no meaning make of it.
#[test]
fn an_author_is_told_of_a_guard_that_no_server_asks_for_a_glance() {
    let (folder, mut component) = (tempfile::tempdir().unwrap(), std::fs::read(guest("glances")).unwrap());
    // A custom section: its id, 1 + 2^20 bytes, of them one that says that it has no name.
    component.extend([0, 0x81, 0x80, 0x40, 0]);
    component.extend(vec![0; 1 << 20]);
    let large = folder.path().join("glances.wasm");
    std::fs::write(&large, component).unwrap();
    for (component, is_told) in [(large.display().to_string(), true), (guest("glances"), false)] {
        let case = "[[case]]\nname = \"a\"\nask.prompt = \"unsure\"\nexpect.text = \"asked\"\n";
        let (good, said) = run_cases(&component, case);
        assert!(good && said.contains("no server asks it for a glance") == is_told, "{said}");
    }
}
