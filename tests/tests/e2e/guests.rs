//! Plugins that misbehave, on the path of real requests: the request ends as `on_error` says, others go on.

use std::path::Path;
use std::sync::Arc;
use tidegate_tests::{Gateway, ask};

/// A pipeline of one guest from `tests/guests`, with short limits.
fn pipeline(guest: &str, on_error: &str) -> String {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("guests/dist/{guest}.wasm"));
    format!(
        "[[pipeline.stage]]\nplugin = \"{guest}\"\nfile = \"{}\"\nstages = [\"prompt-guard\"]\non_error = \"{on_error}\"\n\
         [pipeline.stage.limits]\ncpu_ms = 200\nwall_ms = 20000\nmemory_mib = 16\n",
        file.display()
    )
}

/// What makes each guest misbehave.
const CASES: [(&str, &str); 5] =
    [("loops", "loop"), ("panics", "panic"), ("hoards", "64"), ("recurses", "x"), ("bloats", "100")];

#[tokio::test(flavor = "multi_thread")]
async fn a_closed_stage_that_fails_ends_its_request_and_no_other() {
    for (guest, word) in CASES {
        let gateway = Gateway::start(&pipeline(guest, "closed")).await;
        let answer = gateway.chat(ask(word)).await;
        assert_eq!(answer.status, 503, "{guest}: {:?}", answer.body);
        assert_eq!(answer.error().2, "plugin_failed");
        assert!(answer.headers.contains_key("retry-after"));
        if guest != "recurses" {
            assert_eq!(gateway.chat(ask("Hello!")).await.status, 200, "{guest} serves again");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_open_stage_that_fails_is_passed_over_and_counted() {
    for (guest, word) in CASES {
        let gateway = Gateway::start(&pipeline(guest, "open")).await;
        assert_eq!(gateway.chat(ask(word)).await.status, 200, "{guest}");
        let metrics = gateway.get("/metrics").await;
        let text = String::from_utf8_lossy(&metrics.body).into_owned();
        let counted = format!("tidegate_plugin_failures_total{{plugin=\"{guest}\"");
        assert!(text.contains(&counted), "{counted} in\n{text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plugin_that_loops_holds_up_nobody_else() {
    let gateway = Arc::new(Gateway::start(&pipeline("loops", "closed")).await);
    let looping: Vec<_> = (0..4)
        .map(|_| {
            let gateway = Arc::clone(&gateway);
            tokio::spawn(async move { gateway.chat(ask("loop")).await.status })
        })
        .collect();
    for _ in 0..4 {
        assert_eq!(gateway.chat(ask("Hello!")).await.status, 200);
    }
    for looping in looping {
        assert_eq!(looping.await.unwrap(), 503);
    }
}

/// More lines than its budget are cut off, and the call goes on.
#[tokio::test(flavor = "multi_thread")]
async fn a_plugin_that_floods_the_log_is_heard_no_more_and_its_request_goes_on() {
    let gateway = Gateway::start(&pipeline("floods", "closed")).await;
    assert_eq!(gateway.chat(ask("5000")).await.status, 200);
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
