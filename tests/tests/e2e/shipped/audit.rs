//! `audit-observer` with `only_findings`: it records what guards saw, however the request ended.

use super::{ATTACK, counted, stage_as};
use serde_json::json;
use std::path::Path;
use tidegate_tests::Gateway;
use tidegate_tests::stand_in::{StandIn, completion, last_text};

/// A guest as a stage, patient but for `more`.
fn guest(guest: &str, more: &str) -> String {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("guests/dist/{guest}.wasm"));
    format!(
        "[[pipeline.stage]]\nplugin = \"{guest}\"\nfile = {file:?}\n{more}\n[pipeline.stage.limits]\nwall_ms = 20000\n"
    )
}

/// The first guard flags the first message; what ends the request comes behind it, or beside it.
#[tokio::test(flavor = "multi_thread")]
async fn what_guards_saw_is_recorded_of_a_request_that_ends_before_its_answer() {
    let late = "stages = [\"prompt-guard\"]\nwhen = \"during-prefill\"";
    let traps =
        |stage: &str| format!("stages = [\"{stage}\"]\non_error = \"closed\"\nconfig = {{ trap = \"{stage}\" }}");
    for (name, ends, last, status) in [
        ("nothing", String::new(), "Hello!", 200),
        ("guard", guest("honest", "stages = [\"prompt-guard\"]"), "refuse", 400),
        ("broken-guard", guest("honest", &traps("prompt-guard")), "Hello!", 503),
        ("late-guard", guest("tarries", late), "tarry 1 refuse", 400),
        ("broken-late-guard", guest("tarries", late), "tarry 1 panic", 503),
        ("broken-retriever", guest("honest", &traps("retriever")), "Hello!", 503),
    ] {
        let upstream = StandIn::start(|_, body| completion(&last_text(body))).await;
        let observer = format!("sees-{name}");
        let gateway = Gateway::start(&format!(
            "{}{}{ends}{}",
            upstream.model("tidegate-starter"),
            stage_as(&format!("flags-{name}"), "injection-guard", "config = { user_action = \"flag\" }"),
            stage_as(&observer, "audit-observer", "config = { only_findings = true }"),
        ))
        .await;
        for first in [ATTACK, "Good morning!"] {
            let said = [("user", first), ("assistant", "No."), ("user", last)];
            let messages = said.map(|(role, content)| json!({"role": role, "content": content}));
            assert_eq!(gateway.chat(json!({ "messages": messages })).await.status, status, "{name}");
        }
        let told = format!("tidegate_plugin_call_seconds_count{{plugin=\"{observer}\"");
        crate::stages::counted(&gateway, &told, 2).await;
        counted(&gateway, &observer, "requests_recorded", 1).await;
    }
}
