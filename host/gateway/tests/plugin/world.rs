//! The world that `plugin test` scripts: what is stored, the time, what is outside, secrets, chance.

use super::{guest, run_cases};

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
expect = { tools = [], content = "ahoy" }
[[case]]
name = "clock"
ask.tool = { name = "clock", arguments = "" }
expect = { tools = [], content = "7 0" }
[[case]]
name = "with a config of its own a case has a world of its own"
config = {}
ask.tool = { name = "add", arguments = "count 5" }
expect = { tools = [], content = "5" }
[[case]]
name = "and leaves nothing in that of the others"
ask.tool = { name = "get", arguments = "count" }
expect = { tools = [], content = "none" }
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
             ask.tool = {{ name = \"{tool}\", arguments = \"{arguments}\" }}\n\
             expect = {{ tools = [], content = \"{content}\" }}\n"
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
pub const OUTSIDE: &str = r#"
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
ask.tool = { name = "get-all", arguments = "https://a.example/x" }
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
"#;
    let (good, said) = run_cases(&guest("reaches"), &format!("{OUTSIDE}{cases}"));
    assert!(good && said.matches("ok      ").count() == 5, "{said}");
    // Which it does not offer, so that no case with it passes.
    let search = r#"
[[case]]
name = "vectors"
ask.tool = { name = "search", arguments = "notes 0.9 0.1" }
expect.content = "east:0.99,north:0.11"
"#;
    let entries = cases.split("[[case]]").next().unwrap();
    let (good, said) = run_cases(&guest("reaches"), &format!("{OUTSIDE}{entries}{search}"));
    assert!(!good && said.contains("it calls `search`") && !said.contains("`content` is"), "{said}");
}

/// By the server's own check.
#[test]
fn an_answer_for_which_the_instance_has_no_room_is_refused() {
    let asks = |bytes: usize, expect: &str| {
        let grants = OUTSIDE.replace("example\"] }", "example\"], response_kib = 4096 }");
        let body = "x".repeat(bytes);
        format!(
            "[limits]\nmemory_mib = 2\n{grants}[[host.http]]\nurl = \"https://a.example/x\"\nbody = \"{body}\"\n\
             [[case]]\nname = \"a\"\nask.tool = {{ name = \"get\", arguments = \"https://a.example/x\" }}\n\
             expect.error = \"{expect}\"\n"
        )
    };
    let why = "the bodies that one call of `http` brings have 2097153 bytes with this one; at most 2097152";
    let (good, said) = run_cases(&guest("reaches"), &asks((2 << 20) + 1, why));
    assert!(good, "{said}");
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

#[test]
fn an_answer_may_ask_for_headers_be_over_and_fail() {
    let cases = r#"
[[host.http]]
url = "https://a.example/x"
headers_have = { X-Api-Key = "test-path" }
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
ask.tool = { name = "secret", arguments = "https://a.example/x x-api-key path" }
expect.content = "200 to a probe"
[[case]]
name = "first"
ask.tool = { name = "get-all", arguments = "https://a.example/x" }
expect.content = "503 "
[[case]]
name = "second"
ask.tool = { name = "get-all", arguments = "https://a.example/x" }
expect.content = "503 "
[[case]]
name = "third"
ask.tool = { name = "get-all", arguments = "https://a.example/x" }
expect.content = "200 back"
[[case]]
name = "a model that fails"
ask.tool = { name = "complete", arguments = "small slow" }
expect.error = "timeout"
"#;
    let (good, said) = run_cases(&guest("reaches"), &format!("{OUTSIDE}{cases}"));
    assert!(good && said.matches("ok      ").count() == 5, "{said}");
}

/// What tools of `reaches` print one after the other, which nothing tells before; `null` where one traps.
fn printed(seed: u32, config: &str, tools: &[&str]) -> Vec<String> {
    let case = |tool: &&str| {
        let ask = format!("ask.tool = {{ name = \"{tool}\", arguments = \"4\" }}");
        format!("[[case]]\nname = \"{tool}\"\n{ask}\nexpect.content = \"?\"\n")
    };
    let cases: String = tools.iter().map(case).collect();
    let (_, said) = run_cases(&guest("reaches"), &format!("{config}{OUTSIDE}[host]\nseed = {seed}\n{cases}"));
    let printed = said.split("`content` is ").skip(1).map(|rest| rest.split(", not").next().unwrap_or(rest).to_owned());
    printed.collect()
}

#[test]
fn chance_goes_by_the_seed() {
    let drawn = |seed| printed(seed, "", &["random"]);
    assert_eq!(drawn(7), drawn(7));
    assert_ne!(drawn(7), drawn(8));
}

/// Which of them answers is nothing that a case could know.
#[test]
fn all_instances_draw_the_same_when_they_are_configured() {
    let salted = "[config]\nsalt = true\n";
    let drawn = printed(7, salted, &["salt", "random", "trap", "salt", "random"]);
    let [first, one, trapped, second, other] = drawn.as_slice() else { panic!("{drawn:?}") };
    assert_eq!((first, trapped.as_str()), (second, "null"));
    assert!(first.len() > 4 && one != other && one != first, "{drawn:?}");
    assert_eq!(printed(7, "", &["random"]), [one.as_str()], "what calls draw begins with the first of them");
}
