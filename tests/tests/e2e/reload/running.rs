//! Answers that were begun before a reload lowers what they may be.

use super::{Files, reload};
use crate::outside::guarded_by;
use crate::talk::until;
use crate::tool_turns::{calls, is_told, says, whole};
use serde_json::json;
use std::sync::Arc;
use tidegate_tests::ask;
use tidegate_tests::stand_in::{Said, StandIn};
use tokio::sync::Semaphore;

/// Its tool answers only when the reload has been answered.
#[tokio::test(flavor = "multi_thread")]
async fn an_answer_keeps_the_bounds_it_began_with_while_its_tools_run() {
    let gate = Arc::new(Semaphore::new(0));
    let shut = Arc::clone(&gate);
    let service = StandIn::start(move |_, _| Said::raw(200, "nine").held(&shut)).await;
    let url = json!(format!("{}/hours", service.origin())).to_string();
    let upstream = StandIn::start(move |_, body| match is_told(body) {
        true => says("It opens at nine."),
        false => whole(&calls("get-all", &url), "tool_calls", 10, 8),
    })
    .await;
    let tool = guarded_by("", &service.http_grant(), "").replace("prompt-guard", "tool-provider");
    let tool = tool.replace("wall_ms = 20000", "wall_ms = 20000\ncpu_ms = 5000");
    let config = |limits: &str| format!("{}limits = {{ {limits} }}\n{tool}", upstream.model("tidegate-starter"));
    let files = Files::new();
    files.write(&config("max_output_tokens = 100"));
    let gateway = files.start().await;
    let lower = async {
        until("the tool is asked", async || (service.asked("/hours").len() == 1).then_some(())).await;
        files.write(&config("max_output_tokens = 5"));
        let (taken, facts) = reload(&gateway).await;
        assert_eq!(taken, 200, "{facts}");
        gate.add_permits(1);
    };
    let mut asked = ask("When does the museum open?");
    asked["max_tokens"] = 90.into();
    let (answer, ()) = tokio::join!(gateway.chat(asked.clone()), lower);
    assert_eq!(answer.text(), "It opens at nine.");
    let refused = gateway.chat(asked).await;
    assert_eq!((refused.status, refused.error().2), (400, json!("max_tokens_exceeded")));
}
