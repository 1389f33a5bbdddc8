//! Guards of answers that did not load.

use super::{CHAT, failures, stage};
use crate::stages::counted;
use crate::tool_turns::says;
use serde_json::json;
use tidegate_tests::stand_in::StandIn;
use tidegate_tests::{Gateway, ask, with_model};

/// None of it could leave, and all of it would be billed. What a guard says in the model's place passes none of these.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_generated_that_a_closed_guard_which_is_not_there_would_withhold() {
    for kind in ["stream-guard", "output-guard"] {
        let upstream = StandIn::start(|_, _| says("Hello.")).await;
        let name = format!("absent-{kind}");
        let absent = stage("honest", &name, kind, "config = { refuse = true }", "");
        let late = stage("tarries", &format!("{name}-late"), "prompt-guard", "when = \"during-prefill\"", "");
        let gateway = Gateway::start(&(upstream.model("tidegate-starter") + &absent + &late)).await;
        for stream in [false, true] {
            let mut request = with_model(ask("Hello!"));
            request["stream"] = stream.into();
            let answer = gateway.post(CHAT, &request).await;
            assert_eq!((answer.status, answer.error().2), (503, json!("plugin_failed")), "{name}");
            assert!(answer.headers.contains_key("retry-after"), "{name}");
        }
        assert!(upstream.asked(CHAT).is_empty(), "{name}");
        counted(&gateway, &failures(&name, kind, "load"), 2).await;
        assert_eq!(gateway.chat(ask("tarry 1 respond")).await.text(), "from the guard", "{name}");
        assert_eq!(gateway.chat(ask("tarry 1 refuse")).await.status, 400, "{name}");
    }
}
