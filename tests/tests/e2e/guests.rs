//! Plugins that misbehave, on the path of real requests: the request ends as `on_error` says, others go on.

use crate::failing::count;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidegate_tests::stand_in::{StandIn, completion};
use tidegate_tests::{Gateway, ask};

/// A pipeline of one guest from `tests/guests`, with short limits.
fn pipeline(guest: &str, on_error: &str) -> String {
    named(guest, guest, on_error, 16)
}

fn named(name: &str, guest: &str, on_error: &str, memory_mib: u32) -> String {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("guests/dist/{guest}.wasm"));
    // Of the one that never ends; the others need some for what they do.
    let cpu_ms = if guest == "loops" { 200 } else { 5000 };
    format!(
        "[[pipeline.stage]]\nplugin = \"{name}\"\nfile = \"{}\"\nstages = [\"prompt-guard\"]\non_error = \"{on_error}\"\n\
         [pipeline.stage.limits]\ncpu_ms = {cpu_ms}\nwall_ms = 20000\nmemory_mib = {memory_mib}\n",
        file.display()
    )
}

/// What makes each guest misbehave, the memory that it may have, and how its failure is counted. What `bloats` says has
/// room in its memory, and is more than the host takes.
const CASES: [(&str, &str, u32, &str); 5] = [
    ("loops", "loop", 16, "deadline"),
    ("panics", "panic", 16, "trap"),
    ("hoards", "64", 16, "memory"),
    ("recurses", "x", 16, "trap"),
    ("bloats", "20", 64, "too-large"),
];

/// The failures of a plugin as they were counted. Counters are of the whole process, so it has a name of its own.
async fn failures(gateway: &Gateway, plugin: &str) -> Vec<String> {
    let metrics = String::from_utf8(gateway.get("/metrics").await.body.to_vec()).unwrap();
    let start = format!("tidegate_plugin_failures_total{{plugin=\"{plugin}\",stage=\"prompt-guard\",case=");
    metrics.lines().filter_map(|line| line.strip_prefix(&start)).map(str::to_owned).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_closed_stage_that_fails_ends_its_request_and_no_other() {
    for (guest, word, memory_mib, case) in CASES {
        let name = format!("{guest}-closed");
        let gateway = Gateway::start(&named(&name, guest, "closed", memory_mib)).await;
        let answer = gateway.chat(ask(word)).await;
        assert_eq!(answer.status, 503, "{guest}: {:?}", answer.body);
        assert_eq!(answer.error().2, "plugin_failed");
        assert!(answer.headers.contains_key("retry-after"));
        assert_eq!(failures(&gateway, &name).await, [format!("\"{case}\"}} 1")]);
        if guest != "recurses" {
            assert_eq!(gateway.chat(ask("Hello!")).await.status, 200, "{guest} serves again");
        }
    }
}

/// What it has used up is its own stack: the guard before it, which answers in the model's place, goes on.
#[tokio::test(flavor = "multi_thread")]
async fn after_a_guest_that_recurses_who_does_not_come_to_it_is_answered() {
    let stages = named("honest-before", "honest", "closed", 16) + &named("recurses-behind", "recurses", "closed", 16);
    let gateway = Gateway::start(&stages).await;
    for times in 1..3 {
        assert_eq!(gateway.chat(ask("x")).await.status, 503);
        assert_eq!(failures(&gateway, "recurses-behind").await, [format!("\"trap\"}} {times}")]);
        assert_eq!(gateway.chat(ask("respond")).await.text(), "from the guard");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_open_stage_that_fails_and_one_that_is_skipped_are_passed_over_and_counted() {
    for (guest, word, memory_mib, case) in CASES {
        for on_error in ["open", "skip"] {
            let name = format!("{guest}-{on_error}");
            let gateway = Gateway::start(&named(&name, guest, on_error, memory_mib)).await;
            assert_eq!(gateway.chat(ask(word)).await.status, 200, "{name}");
            assert_eq!(failures(&gateway, &name).await, [format!("\"{case}\"}} 1")]);
        }
    }
}

/// The loops have 20 s of CPU time each: were they to hold their threads, the others would find them ended.
#[tokio::test(flavor = "multi_thread")]
async fn a_plugin_that_loops_holds_up_nobody_else() {
    let patient =
        pipeline("loops", "closed").replace("cpu_ms = 200\nwall_ms = 20000", "cpu_ms = 20000\nwall_ms = 600000");
    let gateway = Arc::new(Gateway::start(&patient).await);
    let looping: Vec<_> = (0..4)
        .map(|_| {
            let gateway = Arc::clone(&gateway);
            tokio::spawn(async move { gateway.chat(ask("loop")).await.status })
        })
        .collect();
    for _ in 0..4 {
        assert_eq!(gateway.chat(ask("Hello!")).await.status, 200);
    }
    assert!(looping.iter().all(|looping| !looping.is_finished()), "the loops ended before the others were answered");
    looping.iter().for_each(tokio::task::JoinHandle::abort);
}

/// A hundred times what a result may have; the instance may hold it, the host copies none of it.
#[tokio::test(flavor = "multi_thread")]
async fn a_result_of_100_mib_fails_alone() {
    let stage = named("bloats-100", "bloats", "closed", 256);
    let gateway = Gateway::start(&format!("[plugins]\ninstance_memory_mib = 256\n{stage}")).await;
    let answer = gateway.chat(ask("100")).await;
    assert_eq!((answer.status, answer.error().2.as_str()), (503, Some("plugin_failed")), "{:?}", answer.body);
    assert_eq!(failures(&gateway, "bloats-100").await, ["\"too-large\"} 1"]);
    assert_eq!(gateway.chat(ask("Hello!")).await.status, 200);
}

/// It would set a parameter for a prompt of that text, which is refused. Of a passage only its text could be changed.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_passage_makes_a_guard_do_to_a_whole_prompt_is_passed_over() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("a.txt"), "param").unwrap();
    let upstream = StandIn::start(|_, _| completion("ok")).await;
    let gateway = Gateway::start(&format!(
        "{}{}[[pipeline.stage]]\nplugin = \"folder-retriever\"\nconfig = {{ mount = \"notes\" }}\n\
         [pipeline.stage.limits]\nwall_ms = 20000\ncpu_ms = 5000\n\
         [pipeline.stage.grants]\nkv_kib = 1024\ndocuments = {{ notes = {:?} }}\n",
        upstream.model("tidegate-starter"),
        named("lies-outside", "lies", "closed", 16),
        folder.path(),
    ))
    .await;
    assert_eq!(gateway.chat(ask("param")).await.status, 503, "the prompt itself is refused");
    let answer = gateway.chat(ask("What is param?")).await;
    assert_eq!(answer.status, 200, "{:?}", answer.body);
    let asked = upstream.asked("/v1/chat/completions")[0].to_string();
    assert!(asked.contains("a.txt] param"), "{asked}");
}

/// More lines than its budget are cut off and counted, and the call goes on.
#[tokio::test(flavor = "multi_thread")]
async fn a_plugin_that_floods_the_log_is_heard_no_more_and_its_request_goes_on() {
    let gateway = Gateway::start(&named("floods-heard", "floods", "closed", 16)).await;
    let dropped = async || count(&gateway, "tidegate_plugin_log_lines_dropped_total", "floods-heard").await;
    let before = dropped().await;
    assert_eq!(gateway.chat(ask("5000")).await.status, 200);
    // Each has 101 bytes, and two more by its escape.
    assert_eq!(dropped().await - before, 5000 - (16 << 10) / 103);
    assert_eq!(gateway.chat(ask("Hello!")).await.status, 200);
}

/// A stage whose component is missing: closed refuses, open goes on, and the server starts all the same.
#[tokio::test(flavor = "multi_thread")]
async fn a_plugin_that_is_missing_fails_as_its_stage_says() {
    for (on_error, status) in [("closed", 503), ("open", 200)] {
        let gateway = Gateway::start(&pipeline("no-such-guest", on_error)).await;
        assert_eq!(gateway.chat(ask("Hello!")).await.status, status, "{on_error}");
    }
}

/// Guests that must never run: that describe themselves by the clock or in words, or import what no host has.
#[tokio::test(flavor = "multi_thread")]
async fn a_guest_that_must_not_load_fails_as_its_stage_says() {
    for (guest, why) in [
        ("misdescribes", "`describe` must be pure"),
        ("mumbles", "its descriptor is wrong"),
        ("strays", "it imports `shell`, which this host does not have"),
        ("wanders", "`, but plugins get no WASI"),
    ] {
        for (on_error, status) in [("closed", 503), ("open", 200), ("skip", 200)] {
            let name = format!("{guest}-{on_error}");
            let gateway = Gateway::start(&named(&name, guest, on_error, 16)).await;
            assert_eq!(gateway.chat(ask("Hello!")).await.status, status, "{name}");
            let facts = gateway.running.facts.join("\n");
            assert!(facts.contains(&format!("{name} DID NOT LOAD")) && facts.contains(why), "{why} is not in {facts}");
            assert_eq!(failures(&gateway, &name).await, ["\"load\"} 1"]);
        }
    }
}

/// It is slow, and within its limits.
#[tokio::test(flavor = "multi_thread")]
async fn a_guest_that_dawdles_gets_its_result() {
    let gateway = Gateway::start(&named("dawdles-50", "dawdles", "closed", 16)).await;
    let began = Instant::now();
    assert_eq!(gateway.chat(ask("50")).await.status, 200);
    assert!(began.elapsed() >= Duration::from_millis(50), "it was asked");
    assert_eq!(failures(&gateway, "dawdles-50").await, [""; 0]);
    let metrics = String::from_utf8(gateway.get("/metrics").await.body.to_vec()).unwrap();
    let sum = "tidegate_plugin_call_seconds_sum{plugin=\"dawdles-50\",stage=\"prompt-guard\"} ";
    let seconds: f64 = metrics.lines().find_map(|line| line.strip_prefix(sum)?.parse().ok()).unwrap();
    // The guest's clock has whole milliseconds; its wall time is 20 s.
    assert!((0.049..20.0).contains(&seconds), "{seconds} s");
}

/// The same without `stages`: what the component exports is known, though it does not load.
#[tokio::test(flavor = "multi_thread")]
async fn a_plugin_that_does_not_load_fails_as_its_stage_says() {
    for (plugin, on_error, status) in [
        ("pii-guard", "", 503),
        ("pii-guard", "on_error = \"closed\"", 503),
        ("pii-guard", "on_error = \"open\"", 200),
        ("pii-guard", "on_error = \"skip\"", 200),
        // Wants a grant as well.
        ("folder-retriever", "", 200),
        ("audit-observer", "", 200),
    ] {
        let config = format!("[[pipeline.stage]]\nplugin = \"{plugin}\"\n{on_error}\nconfig = {{ no_such_key = 1 }}\n");
        let gateway = Gateway::start(&config).await;
        assert_eq!(gateway.chat(ask("Hello!")).await.status, status, "{config}");
        let facts = gateway.running.facts.join("\n");
        assert!(facts.contains(&format!("{plugin} DID NOT LOAD")), "{facts}");
    }
}
