//! `plugin bench`.

use super::world::OUTSIDE;
use super::{CASES, guest, plugin, repository, shipped};

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

/// As in a test, where such a case has a world of its own: what is kept for half a minute is there still.
#[test]
fn what_passes_before_a_case_with_a_config_of_its_own_passes_for_no_other() {
    let folder = tempfile::tempdir().unwrap();
    let case = |name: &str, more: &str, tool: &str, arguments: &str| {
        format!(
            "[[case]]\nname = \"{name}\"\n{more}ask.tool = {{ name = \"{tool}\", arguments = \"{arguments}\" }}\n\
             expect.tools = []\n"
        )
    };
    let cases = [
        "[grants]\nkv_kib = 1\ndocuments = { here = \".\" }\n".to_owned(),
        case("kept", "", "set", "k word 30000"),
        case("apart", "config = {}\nadvance_ms = 60000\n", "get", "k"),
        case("a word is no sum", "", "add", "k 1"),
        case("over", "advance_ms = 60000\n", "add", "k 1"),
    ];
    std::fs::write(folder.path().join("tests.toml"), cases.concat()).unwrap();
    let (good, said) = plugin(folder.path(), &["bench", &guest("keeper")]);
    assert!(good && said.contains("ns  kept") && said.contains("left out                apart: "), "{said}");
    assert!(said.contains("left out                a word is no sum: ") && said.contains("ns  over"), "{said}");
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
fn bench_measures_what_a_first_look_costs_and_says_where_it_has_no_answer() {
    let folder = tempfile::tempdir().unwrap();
    let case = |name: &str, ask: &str| format!("[[case]]\nname = \"{name}\"\n{ask}\nexpect.text = \"asked\"\n");
    let cases = [
        case("plain", "ask.prompt = \"word\""),
        case("in doubt", "ask.prompt = \"unsure\""),
        case("spoken", "ask.stream = \"word\""),
        case("wrong", "ask.stream = \"far\""),
        case("of a call", "ask.stream = { text = \"{}\", channel = \"tool-arguments\" }"),
    ];
    std::fs::write(folder.path().join("tests.toml"), cases.concat()).unwrap();
    let (good, said) = plugin(folder.path(), &["bench", &guest("glances")]);
    let is_glance = |ends: &str| said.lines().any(|line| line.starts_with("glance ") && line.ends_with(ends));
    assert!(good && is_glance(" ns  plain") && is_glance(" ns  spoken"), "{said}");
    assert!(is_glance(" ns  in doubt: no answer, so that the call comes behind it"), "{said}");
    assert!(said.contains("left out                wrong, at a glance: "), "{said}");
    assert!(said.matches("\ncall ").count() == 5 && said.matches("\nglance ").count() == 3, "{said}");
}
