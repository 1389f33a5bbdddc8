//! One prompt guard's verdict: at a glance where it has one and that says enough, else in full. What becomes of it: `screen_input.rs` and
//! `late_verdicts.rs`.

use crate::chat::Stages;
use crate::context::RequestContext;
use crate::estimate::{given_bytes, told_bytes};
use crate::stage::{Opinion, Size, Stage, TOO_LONG, traced};
use crate::stages::kept_back::KeptBack;
use crate::stages::params;
use tidegate_sandbox::Plugin;
use tidegate_sandbox::stage::{Action, CallContext, Prompt, StageKind, Verdict};
use tidegate_types::{Chat, Message, Reject};

/// One guard's verdict on a prompt.
pub(super) async fn inspect(
    stages: &Stages,
    stage: &Stage,
    cx: &RequestContext,
    chat: &Chat,
    mut kept_back: Option<KeptBack>,
) -> Result<Option<Verdict>, Reject> {
    let call = cx.call(chat.stream, stage.wall);
    let size = Size::Sent(told_bytes(chat));
    let verdict = stage
        .call_about(size, StageKind::PromptGuard, &call, async |plugin| {
            let _kept_back = kept_back.take().map(KeptBack::told_here);
            if let Some(verdict) = glanced(stage, plugin, size, &call, &chat.messages) {
                return traced(Ok(verdict));
            }
            let params = params::of(chat, &cx.caller.scope, cx.hops, stages, stage);
            let prompt = Prompt { messages: &chat.messages, tools: &chat.tools, params: &params };
            traced(plugin.inspect_prompt(&call, prompt).await)
        })
        .await;
    if let Some(kept_back) = kept_back {
        kept_back.not_asked();
    }
    verdict
}

/// Whether a closed guard could read a text from outside. One that is too long for it is dropped: the caller has not sent it, and
/// one long document shall not end a request. That is a failure, and no verdict of the guard's.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Read {
    Whole,
    TooLong,
}

/// One guard's verdict on text from outside.
pub(super) async fn inspect_outside(stage: &Stage, cx: &RequestContext, message: &Message) -> (Opinion<Verdict>, Read) {
    let (call, num_bytes) = (cx.call(false, stage.wall), given_bytes(std::slice::from_ref(message)));
    let size = Size::Sent(num_bytes);
    let asking = async |plugin: &Plugin| {
        let glanced = glanced(stage, plugin, size, &call, std::slice::from_ref(message));
        traced(match glanced {
            Some(verdict) => Ok(verdict),
            None => plugin.inspect_outside(&call, message).await,
        })
    };
    match stage.call_about(size, StageKind::PromptGuard, &call, asking).await {
        Err(Reject { code: Some(code), cause, .. }) if code == TOO_LONG => {
            tracing::warn!(request = %cx.request_id, guard = %stage.name, num_bytes, reason = cause,
                "text from outside is too long for its guard");
            (Ok(None), Read::TooLong)
        }
        verdict => (verdict, Read::Whole),
    }
}

/// What a guard says of messages at a glance, while it does not fail: that there is nothing to say. Of long ones it is asked in full: a glance
/// that takes long would take the next ones from the tenant.
fn glanced(stage: &Stage, plugin: &Plugin, size: Size, call: &CallContext, messages: &[Message]) -> Option<Verdict> {
    if size.is_large() || stage.breaker.has_failures(&call.caller.tenant) || !plugin.allows_at_a_glance(call, messages)
    {
        return None;
    }
    stage.figures.glanced(&stage.name, StageKind::PromptGuard).increment(1);
    Some(Verdict { action: Action::Allow, findings: Vec::new(), notes: Vec::new() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::breaker::Outcome;
    use crate::stage::tests::shipped;
    use metrics_exporter_prometheus::PrometheusBuilder;
    use std::time::Instant;
    use tidegate_types::{Part, Role};

    fn user(text: &str) -> Message {
        Message::text("m0", Role::User, text)
    }

    #[tokio::test]
    async fn a_glance_is_of_a_prompt_that_is_not_long_while_the_guard_does_not_fail() {
        let (stage, cx) = (shipped(), crate::reply::tests::context());
        let plugin = stage.plugin.as_deref().unwrap();
        let call = cx.call(false, stage.wall);
        let allows = |size, text: &str| glanced(&stage, plugin, Size::Sent(size), &call, &[user(text)]).is_some();
        assert!(!allows(5, "Hello"), "no instance is made for a glance");
        plugin.inspect_outside(&call, &user("Hello")).await.unwrap();
        assert!(allows(5, "Hello") && allows(16 << 10, "Hello"));
        assert!(!allows((16 << 10) + 1, "Hello"));
        assert!(!allows(16, "Ask jo@example.com today"));
        let attempt = stage.breaker.begin(&cx.caller.tenant, &cx.request_id, Instant::now()).unwrap();
        attempt.end(Outcome::Failed, Instant::now());
        assert!(!allows(5, "Hello"), "it has failed of late");
    }

    /// All on this thread, where the recorder is.
    #[test]
    fn text_from_outside_that_is_one_text_is_allowed_at_a_glance_which_is_the_guards_call() {
        let recorder = PrometheusBuilder::new().build_recorder();
        let figures = recorder.handle();
        let (stage, cx) = (shipped(), crate::reply::tests::context());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let allowed = |message: &Message| {
            let (verdict, read) = runtime.block_on(inspect_outside(&stage, &cx, message));
            read == Read::Whole && verdict.unwrap().is_some_and(|verdict| verdict.action == Action::Allow)
        };
        metrics::with_local_recorder(&recorder, || {
            let passage =
                Message { parts: ["Hello", "file.md"].map(|text| Part::Text(text.into())).into(), ..user("") };
            assert!(allowed(&user("Hello")) && allowed(&user("Hello")) && allowed(&passage));
            assert!(!allowed(&user("Ask jo@example.com today")));
            assert!(allowed(&user(&"a".repeat((16 << 10) + 1))), "which is too long for a glance");
        });
        let figures = figures.render();
        let calls = "tidegate_plugin_call_seconds_count{plugin=\"pii-guard\",stage=\"prompt-guard\"} 5";
        assert!(figures.contains(calls), "{figures}");
        let glanced = "tidegate_plugin_glanced_total{plugin=\"pii-guard\",stage=\"prompt-guard\"} 1";
        assert!(figures.contains(glanced), "{figures}");
    }
}
