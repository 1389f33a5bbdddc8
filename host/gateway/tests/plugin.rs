//! `tidegate plugin ...`, as an author uses it: the program itself, in folders of its own.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Runs `tidegate plugin ARGS` in a folder; gives success and everything it said.
fn plugin(folder: &Path, args: &[&str]) -> (bool, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    command.current_dir(folder).arg("plugin").args(args);
    command.env("XDG_CACHE_HOME", std::env::temp_dir().join("tidegate-tests-cache"));
    let Output { status, stdout, stderr } = command.output().unwrap();
    (status.success(), String::from_utf8_lossy(&stdout).into_owned() + &String::from_utf8_lossy(&stderr))
}

fn shipped(name: &str) -> String {
    repository().join(format!("plugins/dist/{name}.wasm")).canonicalize().unwrap().display().to_string()
}

fn guest(name: &str) -> String {
    repository().join(format!("tests/guests/dist/{name}.wasm")).display().to_string()
}

#[test]
fn inspect_says_what_a_component_is_and_needs() {
    let folder = tempfile::tempdir().unwrap();
    let (good, said) = plugin(folder.path(), &["inspect", &shipped("folder-retriever")]);
    assert!(good, "{said}");
    for part in
        ["stages         retriever", "needs a grant  documents: documents = {", "needs a grant  kv: kv_kib = 1024"]
    {
        assert!(said.contains(part), "{part} is not in\n{said}");
    }
    // It imports `http` alone: what it says of secrets is what its requests need.
    let (good, said) = plugin(folder.path(), &["inspect", &shipped("webhook-guard")]);
    let needs: Vec<&str> = said.lines().filter_map(|line| line.strip_prefix("needs a grant  ")).collect();
    assert!(good && needs.len() == 2, "{said}");
    assert!(needs[0].starts_with("http: http = {") && needs[1].starts_with("secrets: secrets = {"), "{said}");
    let (good, said) = plugin(folder.path(), &["inspect", "--json", &shipped("pii-guard")]);
    assert!(good, "{said}");
    let report: Value = serde_json::from_str(&said).unwrap();
    let bytes = std::fs::read(shipped("pii-guard")).unwrap();
    let sum = Command::new("sha256sum").arg(shipped("pii-guard")).output().unwrap();
    let sum = String::from_utf8(sum.stdout).unwrap();
    assert_eq!(report["digest"], format!("sha256:{}", sum.split(' ').next().unwrap()));
    assert_eq!((&report["size_bytes"], &report["name"]), (&bytes.len().into(), &"pii-guard".into()));
}

/// Those that need no grant in one line, the others with what grants them; in JSON all of them.
#[test]
fn inspect_names_all_imports() {
    let folder = tempfile::tempdir().unwrap();
    for (name, free, granted) in [
        ("calculator", "log, types", &[][..]),
        ("folder-retriever", "clock, log, metrics, types", &["documents", "kv"]),
        ("semantic-cache", "log, metrics, types", &["kv", "models", "vectors"]),
    ] {
        let (good, said) = plugin(folder.path(), &["inspect", &shipped(name)]);
        assert!(good && said.contains(&format!("\nimports        {free}\n")), "{said}");
        let needs = said.lines().filter_map(|line| line.strip_prefix("needs a grant  ")?.split(':').next());
        assert_eq!(needs.collect::<Vec<_>>(), granted, "{name}");
        let (_, said) = plugin(folder.path(), &["inspect", "--json", &shipped(name)]);
        let report: Value = serde_json::from_str(&said).unwrap();
        let imports = report["imports"].as_array().unwrap().iter().map(|import| import["interface"].as_str().unwrap());
        let mut expected: Vec<&str> = free.split(", ").chain(granted.iter().copied()).collect();
        expected.sort_unstable();
        let expected = expected.iter().map(|name| format!("tidegate:plugin/{name}@0.1.0"));
        assert_eq!(imports.collect::<Vec<_>>(), expected.collect::<Vec<_>>(), "{name}");
    }
}

#[test]
fn inspect_says_in_words_what_it_says_in_json() {
    let folder = tempfile::tempdir().unwrap();
    for (component, parts) in [
        (guest("watches"), ["at most 4096 bytes of a stream; a server gives 512, more needs", "metrics        none"]),
        (guest("honest"), ["withholds      at most 64 bytes of a stream\n", "metrics        told\n"]),
        (
            shipped("pii-guard"),
            [
                "not asked      about text of letters, other letters, digits, ",
                ", as its 32 states say, of which at most 19 bytes wait",
            ],
        ),
        (shipped("semantic-router"), ["metrics        embedded, routed, unsure\n", "needs a grant  models: "]),
    ] {
        let (good, said) = plugin(folder.path(), &["inspect", &component]);
        assert!(good && parts.iter().all(|part| said.contains(part)), "{parts:?}: {said}");
    }
}

#[test]
fn inspect_refuses_what_is_no_plugin() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("module.wasm"), b"\0asm\x01\0\0\0").unwrap();
    let (good, said) = plugin(folder.path(), &["inspect", "module.wasm"]);
    assert!(!good && said.contains("core module"), "{said}");
    let (good, said) = plugin(folder.path(), &["inspect", "nothing.wasm"]);
    assert!(!good && said.contains("cannot read nothing.wasm"), "{said}");
}

const CASES: &str = r#"
[[case]]
name = "the word is replaced"
ask.stream = "a foo fofoo"
expect = { text = "a bar fobar" }

[[case]]
name = "another word"
config = { word = "größe", replacement = "-" }
ask.stream = "die größe der größ"
expect.text = "die - der größ"
"#;

#[test]
fn test_streams_every_chunking_and_tells_what_failed() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("tests.toml"), CASES).unwrap();
    let (good, said) = plugin(folder.path(), &["test", &shipped("template")]);
    // 11 characters: the whole, all 1,024 with either ending, and two streams in turn.
    assert!(good && said.contains("ok      the word is replaced (2050 chunkings)"), "{said}");
    // 18 characters: the whole, 2 endings of the whole, all single ones, 17 cuts, 16 lengths and 64 drawn chunkings, and two
    // streams in turn.
    assert!(said.contains("ok      another word (200 chunkings)"), "{said}");

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

#[test]
fn test_shows_the_log_of_a_case_that_failed_and_of_no_other() {
    let folder = tempfile::tempdir().unwrap();
    // It writes a line for each request that it is told of.
    let cases = "[[case]]\nname = \"told\"\nask.observe = \"completed\"\nexpect.seen = true\n";
    std::fs::write(folder.path().join("tests.toml"), cases).unwrap();
    let (good, said) = plugin(folder.path(), &["test", &guest("honest")]);
    assert!(good && !said.contains("log:"), "{said}");
    std::fs::write(folder.path().join("tests.toml"), cases.replace("true", "false")).unwrap();
    let (good, said) = plugin(folder.path(), &["test", &guest("honest")]);
    let line = "        log: INFO  Summary { outcome: \"completed\"";
    assert!(!good && said.contains("FAILED  told\n") && said.contains(line), "{said}");
}

#[test]
fn what_a_call_counts_is_expected_as_what_it_answers() {
    let case = |name: &str, metric: &str, counted: &str| {
        format!(
            "[[case]]\nname = \"{name}\"\nask.tool = {{ name = \"count\", arguments = \"{metric}\" }}\n\
             expect.counted = {counted}\n"
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

#[test]
fn a_plugin_without_its_grant_is_told_where_tests_have_it() {
    let (good, said) = run_cases(&guest("keeper"), "[[case]]\nname = \"a\"\nask.stream = \"x\"\nexpect.text = \"x\"\n");
    assert!(!good && said.contains("plugin `keeper`") && said.contains("to [grants] in tests.toml"), "{said}");
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

/// Runs cases of a guest, which does as it is told. The cases of the shipped plugins (`tests/cases.rs`) ask the rest.
fn run_cases(component: &str, cases: &str) -> (bool, String) {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("tests.toml"), cases).unwrap();
    plugin(folder.path(), &["test", component])
}

#[test]
fn what_is_stored_at_the_beginning_is_there() {
    let cases = r#"
[grants]
kv_kib = 64
documents = { here = "." }
[host]
now_unix_ms = 7
kv = { greeting = "ahoy" }
[[case]]
name = "kv"
ask.tool = { name = "get", arguments = "greeting" }
expect.content = "ahoy"
[[case]]
name = "clock"
ask.tool = { name = "clock", arguments = "" }
expect.content = "7 0"
[[case]]
name = "with a config of its own a case has a world of its own"
config = {}
ask.tool = { name = "add", arguments = "count 5" }
expect.content = "5"
[[case]]
name = "and leaves nothing in that of the others"
ask.tool = { name = "get", arguments = "count" }
expect.content = "none"
"#;
    let (good, said) = run_cases(&guest("keeper"), cases);
    assert!(good && said.matches("ok      ").count() == 4, "{said}");
}

#[test]
fn what_is_stored_at_the_beginning_is_within_the_quota() {
    let value = "x".repeat(1024);
    let cases = format!(
        "[grants]\nkv_kib = 1\ndocuments = {{ here = \".\" }}\n[host.kv]\nlong = \"{value}\"\n[[case]]\nname = \"a\"\n\
         ask.tool = {{ name = \"get\", arguments = \"long\" }}\nexpect.content = \"{value}\"\n"
    );
    let (good, said) = run_cases(&guest("keeper"), &cases);
    assert!(
        !good && said.contains("`long`: denied: the stage's 1024 bytes of storage (`kv_kib`) are used up"),
        "{said}"
    );
}

#[test]
fn time_passes_as_the_cases_say() {
    let case = |advance_ms: u64, tool: &str, arguments: &str, content: &str| {
        format!(
            "[[case]]\nname = \"{tool} after {advance_ms}\"\nadvance_ms = {advance_ms}\n\
             ask.tool = {{ name = \"{tool}\", arguments = \"{arguments}\" }}\nexpect.content = \"{content}\"\n"
        )
    };
    let cases = [
        case(0, "set", "key value 3600000", "set"),
        case(1_800_000, "get", "key", "value"),
        case(1_800_000, "get", "key", "none"),
        case(5, "clock", "", "3600012 3600005"),
    ];
    let grants = "[grants]\nkv_kib = 64\ndocuments = { here = \".\" }\n[host]\nnow_unix_ms = 7\n";
    let (good, said) = run_cases(&guest("keeper"), &(grants.to_owned() + &cases.concat()));
    assert!(good && said.matches("ok      ").count() == 4, "{said}");
}

/// The grants of the guest `reaches`.
const OUTSIDE: &str = r#"
[grants]
http = { origins = ["https://a.example"] }
content = true
secrets = { path = "PATH" }
models = { small = "tiny" }
vectors = { notes = "read" }
random = true
[[host.models]]
model = "tiny"
has = "hello"
text = "hello yourself"
"#;

#[test]
fn what_is_outside_answers_as_scripted_and_nothing_else_does() {
    let cases = r#"
[[host.http]]
url = "https://a.example/x"
method = "get"
status = 404
body = "nothing here"
[[host.vectors]]
collection = "notes"
id = "east"
vector = [1, 0]
payload = { kind = "point" }
[[host.vectors]]
collection = "notes"
id = "north"
vector = [0, 1]
[[case]]
name = "http"
ask.tool = { name = "get", arguments = "https://a.example/x" }
expect.content = "404 nothing here"
[[case]]
name = "no answer"
ask.tool = { name = "get", arguments = "https://a.example/y" }
expect.error = "no [[host.http]] answers GET https://a.example/y"
[[case]]
name = "no grant"
ask.tool = { name = "get", arguments = "https://b.example/x" }
expect.error = "https://b.example is not a granted origin"
[[case]]
name = "a URL that no server takes"
ask.tool = { name = "get", arguments = "https://a.example/x#y" }
expect.error = "or a fragment"
[[case]]
name = "no model"
ask.tool = { name = "complete", arguments = "small goodbye" }
expect.error = "no [[host.models]] with `text` answers `tiny`"
[[case]]
name = "vectors"
ask.tool = { name = "search", arguments = "notes 0.9 0.1" }
expect.content = "east:0.99,north:0.11"
"#;
    let (good, said) = run_cases(&guest("reaches"), &format!("{OUTSIDE}{cases}"));
    assert!(good && said.matches("ok      ").count() == 6, "{said}");
}

/// The machine's own say nothing of a plugin, and are nobody's to try it with.
#[test]
fn a_secret_is_what_the_file_says() {
    let cases = |secrets: &str, sent: &str| {
        format!(
            "[host]\n{secrets}\n[[host.http]]\nurl = \"https://a.example/x\"\n\
             headers_have = {{ authorization = \"Bearer {sent}\" }}\n[[case]]\nname = \"a\"\n\
             ask.tool = {{ name = \"secret\", arguments = \"https://a.example/x authorization path\" }}\n\
             expect.content = \"200 \"\n"
        )
    };
    let grants = OUTSIDE.replace("\"PATH\"", "\"TIDEGATE_NO_SUCH_VARIABLE\"");
    for (secrets, sent) in [("", "test-path"), ("secrets = { path = \"abc\" }", "abc")] {
        let (good, said) = run_cases(&guest("reaches"), &format!("{grants}{}", cases(secrets, sent)));
        assert!(good, "{sent}: {said}");
    }
    let (good, said) =
        run_cases(&guest("reaches"), &format!("{grants}{}", cases("secrets = { other = \"abc\" }", "abc")));
    assert!(!good && said.contains("secrets: `other` is not granted"), "{said}");
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
fn an_answer_may_ask_for_headers_be_over_and_fail() {
    let cases = r#"
[[host.http]]
url = "https://a.example/x"
headers_have = { X-Kind = "probe" }
body = "to a probe"
[[host.http]]
url = "https://a.example/x"
times = 2
status = 503
headers = { Retry-After = "1" }
[[host.http]]
url = "https://a.example/x"
body = "back"
[[host.models]]
model = "tiny"
has = "slow"
error = "timeout"
[[case]]
name = "with the header"
ask.tool = { name = "header", arguments = "https://a.example/x x-kind a-probe" }
expect.content = "200 to a probe"
[[case]]
name = "first"
ask.tool = { name = "get", arguments = "https://a.example/x" }
expect.content = "503 "
[[case]]
name = "second"
ask.tool = { name = "get", arguments = "https://a.example/x" }
expect.content = "503 "
[[case]]
name = "third"
ask.tool = { name = "get", arguments = "https://a.example/x" }
expect.content = "200 back"
[[case]]
name = "a model that fails"
ask.tool = { name = "complete", arguments = "small slow" }
expect.error = "timeout"
"#;
    let (good, said) = run_cases(&guest("reaches"), &format!("{OUTSIDE}{cases}"));
    assert!(good && said.matches("ok      ").count() == 5, "{said}");
}

#[test]
fn chance_goes_by_the_seed() {
    let drawn = |seed: u32| {
        let case =
            "[[case]]\nname = \"a\"\nask.tool = { name = \"random\", arguments = \"4\" }\nexpect.content = \"?\"\n";
        let (_, said) = run_cases(&guest("reaches"), &format!("{OUTSIDE}[host]\nseed = {seed}\n{case}"));
        said.split("`content` is ").nth(1).unwrap_or_else(|| panic!("{said}")).split(", not").next().unwrap().to_owned()
    };
    assert_eq!(drawn(7), drawn(7));
    assert_ne!(drawn(7), drawn(8));
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

#[test]
fn bench_leaves_out_what_is_to_fail_and_says_so() {
    let calculator = repository().join("plugins/calculator");
    let (good, said) = plugin(&calculator, &["bench", &shipped("calculator")]);
    assert!(good && said.matches("\ncall ").count() == 3, "{said}");
    assert!(said.contains("another tool is none of its: it expects an error"), "{said}");
    assert!(said.contains("a third is cut where the settings say: it has a config of its own"), "{said}");
}

#[test]
fn bench_measures_calls_instances_and_memory() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("tests.toml"), CASES).unwrap();
    let (good, said) = plugin(folder.path(), &["bench", &shipped("template")]);
    let figure = |line: &str| said.lines().find(|l| l.starts_with(line)).unwrap_or_default().to_owned();
    assert!(good && figure("instantiate ").contains(" us ") && figure("call ").contains(" ns "), "{said}");
    assert!(figure("memory ").contains(" KiB "), "{said}");
}

/// Such as what is refused only when it is asked often: the guest keeps 20 MiB more at each call, up to its 64.
#[test]
fn bench_goes_on_where_a_case_fails_and_tells_the_most_memory_of_an_instance() {
    let folder = tempfile::tempdir().unwrap();
    let case = |text: &str| {
        format!("[[case]]\nname = \"more by {text}\"\nask.prompt = \"{text}\"\nexpect.action = \"allow\"\n")
    };
    std::fs::write(folder.path().join("tests.toml"), case("20") + &case("0")).unwrap();
    let (good, said) = plugin(folder.path(), &["bench", &guest("hoards")]);
    assert!(
        good && said.contains("left out                more by 20: ") && said.contains("limits.memory_mib"),
        "{said}"
    );
    assert!(said.lines().any(|line| line.starts_with("call ") && line.ends_with("more by 0")), "{said}");
    let memory = said.lines().find_map(|line| line.strip_prefix("memory      at most ")).unwrap_or_default();
    let kib: u32 = memory.strip_suffix(" KiB of one instance").and_then(|kib| kib.parse().ok()).unwrap_or_default();
    assert!(kib > 40 << 10, "an instance had 40 MiB before it was refused: {said}");
}

/// Asked many times, a case finds the answers that its first call found, and is refused no quota that one call keeps to.
#[test]
fn bench_uses_up_neither_scripted_answers_nor_a_quota() {
    let folder = tempfile::tempdir().unwrap();
    let bench = |guest_name: &str, cases: &str| {
        std::fs::write(folder.path().join("tests.toml"), cases).unwrap();
        plugin(folder.path(), &["bench", &guest(guest_name)])
    };
    let once = "[[host.http]]\nurl = \"https://a.example/x\"\ntimes = 1\n[[case]]\nname = \"once\"\n\
                ask.tool = { name = \"get\", arguments = \"https://a.example/x\" }\nexpect.content = \"200 \"\n";
    let (good, said) = bench("reaches", &format!("{OUTSIDE}{once}"));
    assert!(good && said.contains("ns  once"), "{said}");
    let fill = "[grants]\nkv_kib = 1\ndocuments = { here = \".\" }\n[[case]]\nname = \"fills\"\n\
                ask.tool = { name = \"fill\", arguments = \"a 4096\" }\nexpect.content = \"set\"\n";
    let (good, said) = bench("keeper", fill);
    assert!(good && said.contains("ns  fills"), "{said}");
}

#[test]
fn new_makes_a_project_and_refuses_bad_names_and_stages() {
    let folder = tempfile::tempdir().unwrap();
    let (good, said) = plugin(folder.path(), &["new", "shout", "--lang", "js", "--stage", "stream-guard"]);
    assert!(good && said.contains("tidegate plugin build"), "{said}");
    assert!(folder.path().join("shout/plugin.js").exists() && folder.path().join("shout/tests.toml").exists());
    let (good, said) = plugin(folder.path(), &["new", "shout", "--lang", "js", "--stage", "stream-guard"]);
    assert!(!good && said.contains("is there already"), "{said}");
    let within = ["new", "shout", "--lang", "js", "--stage", "stream-guard", "--into", "my plugins"];
    let (good, said) = plugin(folder.path(), &within);
    assert!(good && said.contains("cd 'my plugins/shout'"), "{said}");
    let (good, said) = plugin(folder.path(), &["new", "Bad Name", "--lang", "js", "--stage", "stream-guard"]);
    assert!(!good && said.contains("[a-z][a-z0-9-]*"), "{said}");
    let (good, said) = plugin(folder.path(), &["new", "x", "--lang", "rust", "--stage", "shell"]);
    assert!(!good && said.contains("there are: ") && said.contains("stream-guard"), "{said}");
}

#[test]
fn a_missing_tool_is_named_with_the_command_that_installs_it() {
    let folder = tempfile::tempdir().unwrap();
    // What is looked for is what the command installs, wherever it is run.
    let at = |rest: &str| folder.path().canonicalize().unwrap().join(rest).display().to_string();
    for (lang, remedy, place) in [
        ("js", "npm install componentize-qjs", format!("--prefix {}\n", at("js"))),
        ("python", "pip install componentize-py", format!("{} install ", at("python/.venv/bin/pip"))),
    ] {
        let (good, said) = plugin(folder.path(), &["new", lang, "--lang", lang, "--stage", "stream-guard"]);
        assert!(good, "{said}");
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        let output =
            command.args(["plugin", "build", "--project"]).arg(folder.path().join(lang)).env("PATH", "/nowhere");
        let said = String::from_utf8(output.output().unwrap().stderr).unwrap();
        assert!(said.contains(remedy) && said.contains(&place), "{place}: {said}");
    }
}

/// Each command says what it takes itself.
#[test]
fn a_folder_without_a_project_is_told_what_the_command_takes() {
    let folder = tempfile::tempdir().unwrap();
    for (args, hint) in [
        (&["build"][..], "`--project DIR` names one"),
        (&["test"], "`--project DIR` names one"),
        (&["pack"], "`tidegate plugin pack FILE` a component"),
        (&["push", "file:mirror"], "`--from DIR` names a packed plugin"),
    ] {
        let (good, said) = plugin(folder.path(), args);
        assert!(!good && said.contains("plugin.toml") && said.contains(hint), "{args:?}: {said}");
        assert_eq!(said.contains("--project"), hint.contains("--project"), "{args:?}: {said}");
    }
    std::fs::write(folder.path().join("tests.toml"), CASES).unwrap();
    let (good, said) = plugin(folder.path(), &["test", "mistyped.wasm"]);
    assert!(!good && said.contains("cannot read mistyped.wasm") && !said.contains("plugin build"), "{said}");
    assert!(plugin(folder.path(), &["new", "made", "--lang", "js", "--stage", "observer"]).0);
    for command in ["test", "pack"] {
        let (good, said) = plugin(&folder.path().join("made"), &[command]);
        assert!(
            !good && said.contains("made.wasm is not there; `tidegate plugin build` makes it"),
            "{command}: {said}"
        );
    }
}
