//! The language matrix: every template (a kind of stage in a language) is made into a project, built from source, passes
//! its cases and is measured, and so are the examples: the plugins of `plugins/languages` and, of Rust, the calculator.
//! What was built of those then serves one server together. A language whose tools are missing is skipped and says so,
//! except where `TIDEGATE_REQUIRE_LANGUAGES` is set, as in CI.
//!
//! Components of C and JavaScript are built in a second each. Those of Rust share one folder, so that the SDK is compiled
//! once; those of Python hold an interpreter, whose compilation by the sandbox is most of what this file costs.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod server;

use serde_json::{Value, json};
use server::Server;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use tidegate_sandbox::stage::StageKind;

fn plugin(folder: &Path, args: &[&str]) -> (bool, String) {
    let mut program = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    program.arg("plugin").args(args).current_dir(folder).env_remove("CARGO_TARGET_DIR");
    program.env("XDG_CACHE_HOME", std::env::temp_dir().join("tidegate-tests-cache"));
    let Output { status, stdout, stderr } = program.output().unwrap();
    (status.success(), String::from_utf8_lossy(&stdout).into_owned() + &String::from_utf8_lossy(&stderr))
}

/// Builds, tests and measures a project; false where it was skipped.
fn prove(project: &Path) -> bool {
    let (good, said) = plugin(project, &["build"]);
    if !good && (said.contains("to install it:") || said.contains("to install one:")) {
        assert!(std::env::var_os("TIDEGATE_REQUIRE_LANGUAGES").is_none(), "a tool is required here: {said}");
        tidegate_skipped::skipped!("{}: {said}", project.display());
        return false;
    }
    assert!(good, "{}: {said}", project.display());
    let (good, said) = plugin(project, &["test"]);
    assert!(good && said.contains("ok      "), "{}: {said}", project.display());
    let (good, said) = plugin(project, &["bench"]);
    assert!(good && said.contains("\ncall ") && said.contains("\nmemory "), "{}: {said}", project.display());
    true
}

/// Makes, builds and tests a project of each kind.
fn templates(lang: &str, kinds: &[StageKind]) {
    let folder = tempfile::tempdir().unwrap();
    for &kind in kinds {
        let project = make(folder.path(), lang, kind.as_str());
        if !prove(&project) {
            return;
        }
        match (lang, kind) {
            ("rust", StageKind::PromptGuard) => {
                tells_why_it_panics(&project);
                takes_no_component_of_an_earlier_name(&project);
                has_a_first_look_as_the_guide_shows(&project, "PromptGlance", "nothing to say of a prompt");
            }
            ("js" | "python", StageKind::PromptGuard) => {
                tells_what_it_throws(&project, lang);
                is_told_by_a_check_why_it_does_not_start(&project, lang);
                is_given_its_log(&project, lang);
            }
            ("rust", StageKind::StreamGuard) => {
                passes_its_own_tests(&project);
                constructs_once(&project);
                has_a_first_look_as_the_guide_shows(&project, "StreamGlance", "how much of a stream");
            }
            ("python", StageKind::ToolProvider) => {
                tells_of_an_error_that_is_no_answer(&project);
                calls_a_capability_as_the_guide_shows(&project);
            }
            ("python", StageKind::Router) => {
                names_the_method_that_is_missing(&project);
                finds_the_packages_of_its_environment(&project);
            }
            ("js", StageKind::Router) => exports_objects_of_classes(&project),
            ("js", StageKind::Observer) => says_that_nothing_waits_for_a_promise(&project),
            ("js" | "python", StageKind::Memory) => answers_with_what_a_capability_did(&project, lang),
            ("c", StageKind::StreamGuard) => names_the_setting_at_fault(&project),
            ("c", StageKind::Router) => reads_its_setting_beside_others(&project),
            ("js" | "python", StageKind::StreamGuard) => guards_the_first_stream_of_each_tenant(&project),
            _ => {}
        }
        if lang == "c" {
            gives_back_what_it_allocates(&project);
        }
        let component = std::fs::read(project.join("dist/made.wasm")).unwrap();
        let home = std::env::var("HOME").unwrap();
        let named = component.windows(home.len()).any(|window| window == home.as_bytes());
        // The interpreter that componentize-py brings names folders of those who built it.
        assert!(!named || lang == "python", "the component names {home}");
        let (good, said) = plugin(&project, &["inspect", "dist/made.wasm"]);
        assert!(good && said.contains(&format!("stages         {}\n", kind.as_str())), "{lang}: {said}");
    }
}

/// A Rust plugin that panics, in a call or before the first one: its test shows the panic's own words.
fn tells_why_it_panics(project: &Path) {
    let source = project.join("src/lib.rs");
    let good = std::fs::read_to_string(&source).unwrap();
    for (before, panic) in
        [("let mut texts", "panic!(\"in a call\");"), ("Ok(Self(config))", "panic!(\"at the start\");")]
    {
        let bad = good.replacen(before, &format!("{panic}\n{before}"), 1);
        assert_ne!(bad, good, "{before}");
        std::fs::write(&source, bad).unwrap();
        let (built, said) = plugin(project, &["build"]);
        assert!(built, "{said}");
        let (passed, said) = plugin(project, &["test"]);
        let words = panic.split('"').nth(1).unwrap();
        let line = said.lines().find(|line| line.contains("log: ERROR the plugin panicked")).unwrap_or_default();
        assert!(!passed && line.contains("src/lib.rs") && line.contains(words), "{words}: {said}");
    }
    std::fs::write(&source, good).unwrap();
    assert!(plugin(project, &["build"]).0);
}

/// Of a package that was renamed cargo makes another file, and the old one is still there.
fn takes_no_component_of_an_earlier_name(project: &Path) {
    let manifest = project.join("Cargo.toml");
    let good = std::fs::read_to_string(&manifest).unwrap();
    let renamed = good.replacen("name = \"made\"", "name = \"other\"", 1);
    assert_ne!(renamed, good);
    std::fs::write(&manifest, renamed).unwrap();
    let (built, said) = plugin(project, &["build"]);
    assert!(!built && said.contains("call the package `made` in Cargo.toml"), "{said}");
    std::fs::write(&manifest, good).unwrap();
    let (built, said) = plugin(project, &["build"]);
    assert!(built, "{said}");
    // What is up to date is there, too.
    assert!(plugin(project, &["build"]).0);
}

/// What the guide promises of a project in Rust: `cargo test` needs no wasm.
fn passes_its_own_tests(project: &Path) {
    let mut cargo = Command::new("cargo");
    let tested = cargo.arg("test").current_dir(project).env_remove("CARGO_TARGET_DIR").output().unwrap();
    let said = String::from_utf8_lossy(&tested.stdout);
    assert!(tested.status.success() && said.contains(" 1 passed"), "{said}{}", String::from_utf8_lossy(&tested.stderr));
}

/// What libraries have run before all else is run once in each instance, and not again at each call.
fn constructs_once(project: &Path) {
    const CONSTRUCTOR: &str = r#"
static RUNS: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
extern "C" fn construct() {
    RUNS.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
}
#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: extern "C" fn() = construct;
"#;
    const LOOK: &str = "assert_eq!(RUNS.load(std::sync::atomic::Ordering::Relaxed), 1);\n";
    let source = project.join("src/lib.rs");
    let mut looking = std::fs::read_to_string(&source).unwrap() + CONSTRUCTOR;
    for place in ["Descriptor::new(", "if config.word", "let Config {"] {
        looking = looking.replacen(place, &format!("{LOOK}{place}"), 1);
    }
    assert_eq!(looking.matches(LOOK).count(), 3);
    std::fs::write(&source, looking).unwrap();
    let (built, said) = plugin(project, &["build"]);
    assert!(built, "{said}");
    let (passed, said) = plugin(project, &["test"]);
    assert!(passed && said.matches("ok      ").count() == 5, "{said}");
}

/// It reads its config by hand, which other languages have a library for.
fn names_the_setting_at_fault(project: &Path) {
    let case = |setting: &str, value: &str| {
        format!(
            "[[case]]\nname = \"{setting}\"\nconfig = {{ {setting} = \"{value}\" }}\nask.stream = \"a\"\n\
             expect.error = \"`{setting}` \"\n"
        )
    };
    let long = "x".repeat(256);
    let words = ["", &long].map(|value| case("word", value));
    let replacements = ["a\\tb", "a\\\\b", &long].map(|value| case("replacement", value));
    std::fs::write(project.join("faults.toml"), words.concat() + &replacements.concat()).unwrap();
    let (passed, said) = plugin(project, &["test", "--cases", "faults.toml"]);
    assert!(passed, "{said}");
}

/// Its key may be any of the config that it is given.
fn reads_its_setting_beside_others(project: &Path) {
    const PROPERTIES: &str = r#"\"properties\":{"#;
    let source = project.join("plugin.c");
    let good = std::fs::read_to_string(&source).unwrap();
    let more = good.replacen(PROPERTIES, &format!(r#"{PROPERTIES}\"about\":{{\"type\":\"string\"}},"#), 1);
    assert_ne!(more, good);
    std::fs::write(&source, more).unwrap();
    let (built, said) = plugin(project, &["build"]);
    assert!(built, "{said}");
    let case = "[[case]]\nname = \"a\"\nconfig = { about = \"long_tokens\", long_tokens = 10 }\n\
                ask.route = { prompt = \"hi\", tokens = 20, candidates = [{ id = \"small\", context = 10 }, \
                { id = \"large\", context = 20 }] }\nexpect.order = [\"large\", \"small\"]\n";
    std::fs::write(project.join("beside.toml"), case).unwrap();
    let (passed, said) = plugin(project, &["test", "--cases", "beside.toml"]);
    assert!(passed, "{said}");
    std::fs::write(&source, good).unwrap();
    assert!(plugin(project, &["build"]).0);
}

/// What a call leaves behind adds up over the thousand calls of an instance: one that lost a list of two passages at each has
/// pages of 64 KiB beside the two with which it begins. Its cases come ten times over, since a slow first call makes few of a case.
fn gives_back_what_it_allocates(project: &Path) {
    let file = std::fs::read_to_string(project.join("tests.toml")).unwrap();
    let (world, cases) = file.split_at(file.find("[[case]]").unwrap());
    std::fs::write(project.join("often.toml"), format!("{world}{}", cases.repeat(10))).unwrap();
    let (good, said) = plugin(project, &["bench", "--cases", "often.toml"]);
    let memory = said.lines().find_map(|line| line.strip_prefix("memory ")?.trim().strip_prefix("at most "));
    let kib: u32 = memory.and_then(|rest| rest.split(' ').next()?.parse().ok()).unwrap_or_else(|| panic!("{said}"));
    assert!(good && kib <= 128, "{said}");
}

/// In a server with its default limits, of which the shortest is that of a stream guard. An interpreter takes longer than
/// that to start, and each tenant has one of its own.
fn guards_the_first_stream_of_each_tenant(project: &Path) {
    let folder = tempfile::tempdir().unwrap();
    let key = |name: &str| {
        let hash = blake3::hash(name.as_bytes());
        format!("[[keys]]\nname = \"{name}\"\nhash = \"blake3:{hash}\"\nadmin = true\n")
    };
    let guard = stage("made", &project.join("dist/made.wasm"), "word = \"Tidegate\"\nreplacement = \"[hush]\"");
    let file = folder.path().join("tidegate.toml");
    std::fs::write(&file, format!("[server]\nlisten = \"127.0.0.1:0\"\n{}{}{guard}", key("ann"), key("bob"))).unwrap();
    let log = folder.path().join("log");
    let server = Server::run(Server::command(&file).stderr(std::fs::File::create(&log).unwrap()));
    let question = json!({"model": "tidegate-starter", "stream": true,
        "messages": [{"role": "user", "content": "What is Tidegate?"}]});
    for name in ["ann", "bob", "ann"] {
        let head = format!("authorization: Bearer {name}\r\n");
        let answer = request(&server.addr, "POST /v1/chat/completions", &head, &question.to_string());
        let is_guarded = answer.contains("[hush]") && answer.contains("\"finish_reason\":\"stop\"");
        assert!(is_guarded, "{name}: {answer}\n{}", std::fs::read_to_string(&log).unwrap());
    }
    let metrics = request(&server.addr, "GET /metrics", "authorization: Bearer ann\r\n", "");
    assert!(metrics.contains("tidegate_plugin_call_seconds_count{plugin=\"made\""), "{metrics}");
    assert!(!metrics.contains("tidegate_plugin_failures_total{plugin=\"made\""), "{metrics}");
}

/// A plugin in JavaScript or Python that prints and then throws: its test shows both, and where it was.
fn tells_what_it_throws(project: &Path, lang: &str) {
    let (file, before, bad, thrown) = match lang {
        "js" => (
            "plugin.js",
            "  inspectPrompt(ctx, prompt) {\n",
            "    console.log(\"seen\", { a: 1 });\n    absent();\n",
            "ReferenceError: absent is not defined",
        ),
        _ => (
            "plugin.py",
            "    def inspect_prompt(self, ctx, prompt):\n",
            // Without an end of line, which the end of the call is.
            "        print(\"seen\", {\"a\": 1}, end=\"\")\n        absent()\n",
            "NameError: name 'absent' is not defined",
        ),
    };
    let source = project.join(file);
    let good = std::fs::read_to_string(&source).unwrap();
    let mut wrong = good.replacen(before, &format!("{before}{bad}"), 1);
    assert_ne!(wrong, good, "{before}");
    if lang == "python" {
        // What is inherited is told, too.
        assert!(wrong.contains("@logged\nclass PromptGuard:\n"));
        wrong = wrong.replacen("@logged\nclass PromptGuard:\n", "class Base:\n", 1);
        wrong.push_str("\n\n@logged\nclass PromptGuard(Base):\n    pass\n");
    }
    std::fs::write(&source, wrong).unwrap();
    let (built, said) = plugin(project, &["build"]);
    assert!(built, "{said}");
    let (passed, said) = plugin(project, &["test"]);
    let logged = |level: &str, words: &str| {
        let line = format!("log: {level} ");
        said.lines().any(|said| said.contains(&line) && said.contains(words))
    };
    assert!(!passed && logged("INFO ", "seen {") && logged("ERROR", thrown) && logged("ERROR", file), "{lang}: {said}");
    std::fs::write(&source, good).unwrap();
    assert!(plugin(project, &["build"]).0);
}

/// What fails before the first call is said by the plugin's log alone.
fn is_told_by_a_check_why_it_does_not_start(project: &Path, lang: &str) {
    let (file, before, bad, thrown) = match lang {
        "js" => ("plugin.js", "  configure(json) {\n", "    absent();\n", "ReferenceError: absent is not defined"),
        _ => ("plugin.py", "    def configure(self, text):\n", "        absent()\n", "name 'absent' is not defined"),
    };
    let source = project.join(file);
    let good = std::fs::read_to_string(&source).unwrap();
    let wrong = good.replacen(before, &format!("{before}{bad}"), 1);
    assert_ne!(wrong, good, "{before}");
    std::fs::write(&source, wrong).unwrap();
    let (built, said) = plugin(project, &["build"]);
    assert!(built, "{said}");
    let config = project.join("tidegate.toml");
    std::fs::write(&config, stage("made", Path::new("dist/made.wasm"), "")).unwrap();
    let mut check = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    check.arg("check").arg(&config).env_remove("RUST_LOG");
    check.env("XDG_CACHE_HOME", std::env::temp_dir().join("tidegate-tests-cache"));
    let Output { status, stderr, .. } = check.output().unwrap();
    let said = String::from_utf8_lossy(&stderr);
    assert!(!status.success() && said.contains("the plugin's log may say why"), "{lang}: {said}");
    assert!(said.lines().any(|line| line.contains(" ERROR plugin: ") && line.contains(thrown)), "{lang}: {said}");
    std::fs::remove_file(config).unwrap();
    std::fs::write(&source, good).unwrap();
    assert!(plugin(project, &["build"]).0);
}

/// It would build, and trap without a word at each call.
fn names_the_method_that_is_missing(project: &Path) {
    let source = project.join("plugin.py");
    let good = std::fs::read_to_string(&source).unwrap();
    std::fs::write(&source, good.replace("def route(", "def rout(")).unwrap();
    let (built, said) = plugin(project, &["build"]);
    assert!(!built && said.contains("no `route` (did you mean it by `rout`?)"), "{said}");
    std::fs::write(&source, good).unwrap();
    assert!(plugin(project, &["build"]).0);
}

/// Packages are beside the tool where that is installed in the project, which it does not look at itself.
fn finds_the_packages_of_its_environment(project: &Path) {
    let package = project.join(".venv/lib/python3/site-packages/greeting");
    std::fs::create_dir_all(&package).unwrap();
    std::fs::write(package.join("__init__.py"), "WORD = \"hello\"\n").unwrap();
    let source = project.join("plugin.py");
    let good = std::fs::read_to_string(&source).unwrap();
    std::fs::write(&source, format!("import greeting\n{good}")).unwrap();
    let (built, said) = plugin(project, &["build"]);
    assert!(built, "{said}");
    std::fs::write(&source, good).unwrap();
    std::fs::remove_dir_all(project.join(".venv")).unwrap();
}

/// What a class gives is no entry of its objects, and is exported all the same.
fn exports_objects_of_classes(project: &Path) {
    let source = project.join("plugin.js");
    let good = std::fs::read_to_string(&source).unwrap();
    let classes = good.replacen("export const router = logged({\n  route(", "class Base {\n  route(", 1).replacen(
        "const long = request.promptTokens >",
        "const long = this.isLong && request.promptTokens >",
        1,
    );
    let classes = classes.strip_suffix("  },\n});\n").unwrap().to_owned()
        + "  }\n}\nclass ByLength extends Base {\n  isLong = true;\n}\nexport const router = logged(new ByLength());\n";
    assert!(classes.contains("class Base") && classes.contains("this.isLong"));
    std::fs::write(&source, classes).unwrap();
    let (built, said) = plugin(project, &["build"]);
    assert!(built, "{said}");
    let (passed, said) = plugin(project, &["test"]);
    assert!(passed, "{said}");
    std::fs::write(&source, good).unwrap();
    assert!(plugin(project, &["build"]).0);
}

/// A function that is async builds, and the promise that it returns is no answer.
fn says_that_nothing_waits_for_a_promise(project: &Path) {
    let source = project.join("plugin.js");
    let good = std::fs::read_to_string(&source).unwrap();
    let wrong = good.replacen("  onComplete(", "  async onComplete(", 1);
    assert_ne!(wrong, good);
    std::fs::write(&source, wrong).unwrap();
    assert!(plugin(project, &["build"]).0);
    let (passed, said) = plugin(project, &["test"]);
    assert!(!passed && said.contains("log: ERROR onComplete: TypeError: it is async"), "{said}");
    std::fs::write(&source, good).unwrap();
    assert!(plugin(project, &["build"]).0);
}

/// What a capability refuses is the contract's error, on its way to the host; nothing of it is a fault of the plugin.
fn answers_with_what_a_capability_did(project: &Path, lang: &str) {
    let (file, call) = if lang == "js" { ("plugin.js", "get(key(ctx))") } else { ("plugin.py", "kv.get(key(ctx))") };
    let source = project.join(file);
    let good = std::fs::read_to_string(&source).unwrap();
    let wrong = good.replacen(call, &call.replace("key(ctx)", "\"\""), 1);
    assert_ne!(wrong, good, "{call}");
    std::fs::write(&source, wrong).unwrap();
    assert!(plugin(project, &["build"]).0);
    let case = "[grants]\nkv_kib = 16\n[[case]]\nname = \"a\"\nask.recall = \"a\"\nexpect.error = \"another\"\n";
    std::fs::write(project.join("refused.toml"), case).unwrap();
    let (passed, said) = plugin(project, &["test", "--cases", "refused.toml"]);
    assert!(!passed && said.contains("answered invalid-input: a key of 0 bytes"), "{lang}: {said}");
    assert!(!said.contains("log: ERROR"), "{lang}: {said}");
    std::fs::write(&source, good).unwrap();
    assert!(plugin(project, &["build"]).0);
}

/// An `Err` of something else than the contract's errors ends the instance as any exception does, as one of theirs does in
/// `describe`, which has none.
fn tells_of_an_error_that_is_no_answer(project: &Path) {
    let source = project.join("plugin.py");
    let good = std::fs::read_to_string(&source).unwrap();
    let write = |from: &str, to: &str| {
        let wrong = good.replacen(from, to, 1);
        assert_ne!(wrong, good, "{from}");
        std::fs::write(&source, wrong).unwrap();
    };
    let describes = "        return json.dumps(\n";
    write(describes, &format!("        raise Err(Error_Unsupported(\"mute\"))\n{describes}"));
    let (built, said) = plugin(project, &["build"]);
    assert!(!built && said.contains("ERROR plugin: Err: Error_Unsupported(value='mute')"), "{said}");
    write("Err(Error_Unsupported(f\"no tool `{call.name}`\"))", "Err(\"no such tool\")");
    assert!(plugin(project, &["build"]).0);
    let (passed, said) = plugin(project, &["test"]);
    assert!(!passed && said.contains("log: ERROR Err: 'no such tool'"), "{said}");
    std::fs::write(&source, good).unwrap();
}

/// By the guide's own lines: what they ask is answered, is answered by nobody, and is refused.
fn calls_a_capability_as_the_guide_shows(project: &Path) {
    let guide = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/plugins.md");
    let guide = std::fs::read_to_string(guide).unwrap();
    let shown = guide.split("```python\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    let change = |file: &str, changes: &[(&str, &str)]| {
        let mut text = std::fs::read_to_string(project.join(file)).unwrap();
        for (from, to) in changes {
            assert!(text.contains(*from), "{file}: {from}");
            text = text.replacen(*from, to, 1);
        }
        std::fs::write(project.join(file), text).unwrap();
    };
    change("wit/project.wit", &[("  include base;\n", "  include base;\n  import http;\n")]);
    let capabilities = r#""capabilities": [{"name": "http", "reason": "asks"}, {"name": "secrets", "reason": "asks"}]"#;
    change(
        "plugin.py",
        &[
            ("from logged import logged\n", &format!("from logged import logged\n\n{shown}")),
            ("\"deterministic\": False,\n", &format!("\"deterministic\": False,\n{capabilities},\n")),
            ("str(clock.now_unix_ms())", "str(asked(call.arguments))"),
        ],
    );
    let (built, said) = plugin(project, &["build"]);
    assert!(built, "{said}");
    let grants =
        "[grants]\nhttp = { origins = [\"https://example.com\"] }\ncontent = true\nsecrets = { token = \"TOKEN\" }\n";
    let answer = |answer: &str| {
        format!(
            "[[host.http]]\nurl = \"https://example.com/check\"\nheaders_have = {{ authorization = \"Bearer test-token\" }}\n\
             times = 1\n{answer}\n"
        )
    };
    let case = |expect: &str| {
        format!("[[case]]\nname = \"a\"\nask.tool = {{ name = \"now\", arguments = \"{{}}\" }}\nexpect.{expect}\n")
    };
    let answers = ["body = \"fine\"", "error = \"timeout\"", "error = \"denied\""].map(answer);
    let cases = ["content = \"fine\"", "content = \"None\"", "error = \"answered denied\""].map(case);
    std::fs::write(project.join("asks.toml"), grants.to_owned() + &answers.concat() + &cases.concat()).unwrap();
    let (passed, said) = plugin(project, &["test", "--cases", "asks.toml"]);
    assert!(passed && said.matches("ok      ").count() == 3, "{said}");
}

/// By the guide's own lines, which its test holds to what the guard says when it is asked.
fn has_a_first_look_as_the_guide_shows(project: &Path, glance: &str, what: &str) {
    let guide = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/plugins.md");
    let guide = std::fs::read_to_string(guide).unwrap();
    let begins = format!("```rust\nimpl {glance} for Guard");
    let shown = &guide[guide.find(&begins).unwrap() + "```rust\n".len()..];
    let shown = shown.split("```").next().unwrap();
    let file = project.join("src/lib.rs");
    let source = std::fs::read_to_string(&file).unwrap();
    let export = source.lines().find(|line| line.starts_with("tidegate_plugin_sdk::export!")).unwrap();
    let imports = format!("#[allow(unused_imports)]\nuse tidegate_plugin_sdk::{{{glance}, Role}};");
    std::fs::write(&file, source.replace(export, &format!("{imports}\n\n{shown}"))).unwrap();
    let (built, said) = plugin(project, &["build"]);
    assert!(built, "{said}");
    let (passed, said) = plugin(project, &["test"]);
    assert!(passed && said.contains("ok      "), "{said}");
    let (inspected, said) = plugin(project, &["inspect", "dist/made.wasm"]);
    assert!(inspected && said.lines().any(|line| line.starts_with("first look") && line.contains(what)), "{said}");
}

/// A project that is older than the file which logs exceptions, and now imports it, has it by a build.
fn is_given_its_log(project: &Path, lang: &str) {
    let file = if lang == "js" { "logged.js" } else { "logged.py" };
    std::fs::remove_file(project.join(file)).unwrap();
    let (good, said) = plugin(project, &["build"]);
    assert!(good && said.contains(&format!("{file}: written")) && project.join(file).exists(), "{said}");
}

/// A new project, in a folder that keeps what the one before it has compiled. Where its other files are the same, cargo
/// has the plugin alone to build.
fn make(folder: &Path, lang: &str, stage: &str) -> PathBuf {
    let new = folder.join("new");
    let (good, said) =
        plugin(folder, &["new", "made", "--lang", lang, "--stage", stage, "--into", new.to_str().unwrap()]);
    assert!(good, "{lang} {stage}: {said}");
    let project = folder.join("made");
    replace(&new.join("made"), &project);
    std::fs::remove_dir_all(new).unwrap();
    project
}

/// Writes the files of one folder into another, but for those that are there already as they are.
fn replace(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    let entries = std::fs::read_dir(from).unwrap().map(|entry| entry.unwrap().path());
    // What cargo and `plugin build` left beside sources is none.
    for path in entries.filter(|path| !path.ends_with("target") && !path.ends_with("dist")) {
        let target = to.join(path.file_name().unwrap());
        if path.is_dir() {
            replace(&path, &target);
        } else if std::fs::read(&path).unwrap() != std::fs::read(&target).unwrap_or_default() {
            std::fs::copy(&path, &target).unwrap();
        }
    }
}

#[test]
fn every_kind_of_stage_in_rust_is_built_from_its_template_and_passes() {
    templates("rust", &StageKind::ALL);
}

#[test]
fn every_kind_of_stage_in_c_is_built_from_its_template_and_passes() {
    templates("c", &StageKind::ALL);
}

#[test]
fn every_kind_of_stage_in_javascript_is_built_from_its_template_and_passes() {
    templates("js", &StageKind::ALL);
}

/// In two halves, which run beside each other: they are most of what this file costs.
#[test]
fn the_first_kinds_of_stages_in_python_are_built_from_their_templates_and_pass() {
    templates("python", StageKind::ALL.split_at(StageKind::ALL.len() / 2).0);
}

#[test]
fn the_other_kinds_of_stages_in_python_are_built_from_their_templates_and_pass() {
    templates("python", StageKind::ALL.split_at(StageKind::ALL.len() / 2).1);
}

/// The examples: where they are below `plugins/`, their stage and what it needs. The guard, which lets no prose out, is last;
/// the passage shares no word with the question.
const EXAMPLES: [(&str, &str, &str); 4] = [
    ("calculator", "calculator", ""),
    ("languages/c-router", "length-router", "long_tokens = 100"),
    (
        "languages/python-retriever",
        "word-retriever",
        "passages = [{ id = \"kelso\", text = \"Kelso: a port on the northern coast.\" }]",
    ),
    ("languages/javascript-json-guard", "json-guard", "required = { name = \"string\" }"),
];

/// The stage of an example whose component was just built.
fn stage(name: &str, component: &Path, config: &str) -> String {
    format!(
        "[[pipeline.stage]]\nplugin = \"{name}\"\nfile = \"{}\"\n[pipeline.stage.config]\n{config}\n",
        component.display()
    )
}

/// `more` are further lines of the head.
fn request(addr: &str, head: &str, more: &str, body: &str) -> String {
    let mut socket = TcpStream::connect(addr).unwrap();
    let length = body.len();
    let request = format!("{head} HTTP/1.1\r\nhost: {addr}\r\nconnection: close\r\ncontent-length: {length}\r\n{more}");
    write!(socket, "{request}content-type: application/json\r\n\r\n{body}").unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).unwrap();
    answer
}

/// Asks a server with these stages for a sum; gives the answer's choice and the server's metrics.
fn serve(folder: &Path, stages: &[(&str, String)]) -> (Value, String) {
    let file = folder.join("tidegate.toml");
    let stages_text: String = stages.iter().map(|(_, text)| text.as_str()).collect();
    std::fs::write(&file, format!("[server]\nlisten = \"127.0.0.1:0\"\n{stages_text}")).unwrap();
    let server = Server::with(&file);
    let model = if stages.iter().any(|(name, _)| *name == "length-router") { "auto" } else { "tidegate-starter" };
    let question = json!({"model": model, "messages": [{"role": "user", "content": "What is 17*23?"}]}).to_string();
    let answer = request(&server.addr, "POST /v1/chat/completions", "", &question);
    let body: Value = serde_json::from_str(answer.split("\r\n\r\n").nth(1).unwrap()).unwrap();
    (body["choices"][0].clone(), request(&server.addr, "GET /metrics", "", ""))
}

#[test]
fn examples_that_were_just_built_serve_one_server_together() {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let folder = tempfile::tempdir().unwrap();
    // Copies, so that nothing is written beside the sources.
    for part in ["plugins", "wit"] {
        replace(&repository.join(part), &folder.path().join(part));
    }
    let mut stages = Vec::new();
    for (path, name, config) in EXAMPLES {
        let project = folder.path().join("plugins").join(path);
        if prove(&project) {
            stages.push((name, stage(name, &project.join(format!("dist/{name}.wasm")), config)));
        }
        // The others let the answer out, which the model has from the tool.
        if name == "word-retriever" {
            let (choice, metrics) = serve(folder.path(), &stages);
            let by_tool = stages.iter().any(|(name, _)| *name == "calculator");
            let said = choice["message"]["content"].as_str().unwrap_or_default();
            assert!(!by_tool || said.contains("391"), "{choice}\n{metrics}");
        }
    }
    let (choice, metrics) = serve(folder.path(), &stages);
    let is_held = stages.iter().any(|(name, _)| *name == "json-guard");
    assert_eq!(choice["finish_reason"], if is_held { "content_filter" } else { "stop" }, "{choice}");
    for (name, _) in &stages {
        let called = format!("tidegate_plugin_call_seconds_count{{plugin=\"{name}\"");
        assert!(metrics.contains(&called), "{name} was not called\n{metrics}");
        let failed = format!("tidegate_plugin_failures_total{{plugin=\"{name}\"");
        assert!(!metrics.contains(&failed), "{name} failed\n{metrics}");
    }
}
