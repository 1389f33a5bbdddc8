//! Guards of answers that did not load, or are not asked for another reason.

use super::{CHAT, ON_ERROR, Paced, count, failures, stage, streamed};
use crate::stages::counted;
use crate::tool_turns::says;
use serde_json::json;
use std::time::Duration;
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

/// It would let go of whatever it were given. The second piece is said once the client has the first.
#[tokio::test(flavor = "multi_thread")]
async fn no_stream_is_held_for_an_output_guard_that_is_not_there_and_not_closed() {
    for (on_error, said) in ON_ERROR.into_iter().filter(|(_, said)| ["open", "skip"].contains(said)) {
        let name = format!("absent-{said}");
        let guard = stage("honest", &name, "output-guard", &format!("{on_error}config = {{ refuse = true }}"), "");
        let upstream = Paced::start(["All is ", "well."].map(str::to_owned).into()).await;
        let gateway = Gateway::start(&(upstream.model() + &guard)).await;
        let read = tokio::time::timeout(Duration::from_secs(60), streamed(&gateway, &upstream.go)).await;
        let (text, last) = read.expect("nothing waits for it");
        assert_eq!((text.as_str(), &last["choices"][0]["finish_reason"]), ("All is well.", &json!("stop")), "{name}");
        counted(&gateway, &failures(&name, "output-guard", "load"), 1).await;
    }
}

/// The one behind would see what the one before it leaves.
#[tokio::test(flavor = "multi_thread")]
async fn a_guard_behind_one_that_ends_the_answer_has_kept_nothing_back() {
    for action in ["refuse", "respond"] {
        let upstream = StandIn::start(|_, _| says("Hello.")).await;
        let [ends, behind, absent] = ["ends", "behind", "beside"].map(|which| format!("{which}-by-{action}"));
        let guard = |name: &str, more: &str| stage("honest", name, "output-guard", more, "");
        let guards = [
            guard(&absent, "on_error = \"open\"\nconfig = { refuse = true }"),
            guard(&ends, &format!("config = {{ output = \"{action}\" }}")),
            guard(&behind, ""),
        ];
        let gateway = Gateway::start(&(upstream.model("tidegate-starter") + &guards.concat())).await;
        gateway.stream(ask("Hello!")).await;
        for (name, times) in [(ends, 1), (behind, 0), (absent, 0)] {
            assert_eq!(count(&gateway, "tidegate_plugin_holdback_seconds_count", &name).await, times, "{name}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_guard_that_is_left_out_has_kept_nothing_back() {
    let more = "on_error = \"open\"\nconfig = { trap = \"output-guard\" }";
    let breaker = "[pipeline.stage.breaker]\nfailures = 1\npause_ms = 600000\n";
    let upstream = StandIn::start(|_, _| says("Hello.")).await;
    let guard = stage("honest", "left-out-at-output", "output-guard", more, "") + breaker;
    let gateway = Gateway::start(&(upstream.model("tidegate-starter") + &guard)).await;
    for case in ["trap", "paused"] {
        gateway.stream(ask("Hello!")).await;
        counted(&gateway, &failures("left-out-at-output", "output-guard", case), 1).await;
        assert_eq!(count(&gateway, "tidegate_plugin_holdback_seconds_count", "left-out-at-output").await, 1, "{case}");
    }
}
