//! A stream guard's first look at text that waits for it. What the sandbox does for that: `host/sandbox/src/plugin/glance.rs`.

use super::watched::Watched;
use super::{Asking, SLOW_GUARD, Withheld};
use crate::holdback::WindowText;
use crate::stage::{Size, Stage};
use std::time::Instant;
use tidegate_sandbox::stage::{Channel, Inspection, StageKind, Window};

impl Asking<'_> {
    /// What the guard says at a glance, while it remembers nothing and does not fail; it is asked about the last window, about
    /// arguments of tools, about much text, and where more than its cap would wait.
    pub(super) fn glanced(self, stage: &Stage, held: &mut Withheld) -> Option<Inspection> {
        let Self { cx, streaming, choice, channel, ending, .. } = self;
        let plugin = stage.plugin.as_ref().ok().filter(|plugin| plugin.is_asked_for_glances(StageKind::StreamGuard))?;
        let is_more = ending.is_none() && !matches!(channel, Channel::ToolArguments(_));
        if !is_more || !held.text.carry().is_empty() || stage.breaker.has_failures(&cx.caller.tenant) {
            return None;
        }
        let Withheld { text, call, pool, watched, asked, slow, .. } = &mut *held;
        let WindowText { text: seen, settled } = text.window();
        if Size::Said(seen.len()).is_large() {
            return None;
        }
        let call = call.get_or_insert_with(|| cx.call(streaming, stage.wall));
        let started = Instant::now();
        call.began = Some(started);
        let window = Window { seq: text.seq(), choice, channel, text: seen, settled, ending };
        let passed = plugin.glance_in(pool, call, &window);
        let passed = passed.filter(|passed| seen.len() - passed.safe_through as usize <= stage.holdback_bytes);
        let Some(passed) = passed else {
            *asked = Some(started);
            return None;
        };
        let took = started.elapsed();
        *slow |= took > SLOW_GUARD;
        stage.figures.calls(&stage.name, StageKind::StreamGuard).record(took.as_secs_f64());
        stage.figures.glanced(&stage.name, StageKind::StreamGuard).increment(1);
        watched.get_or_insert_with(|| Watched::begin(stage)).tell(|told| told.glance(took));
        cx.inspected(stage, Some(&passed));
        Some(passed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stage::tests::shipped;

    /// Whether the guard is asked for a glance of a text that waits, and it has an answer.
    #[tokio::test]
    async fn a_glance_is_of_text_that_goes_on_of_which_nothing_is_remembered() {
        let (stage, cx) = (shipped(), crate::reply::tests::context());
        let arguments = Channel::ToolArguments("c1".into());
        let asking = |channel, ending| Asking { cx: &cx, streaming: true, choice: 0, channel, ending, pauses: false };
        let waits = |text: &str, stage: &Stage| {
            let mut held = Withheld::by(stage);
            held.text.push(text, Vec::new());
            held
        };
        let (text, whole) = (asking(&Channel::Text, None), "word24543 a@b, ");
        // No instance is made for a glance.
        assert_eq!(text.glanced(&stage, &mut waits(whole, &stage)), None);
        text.call(&stage, &mut waits(whole, &stage)).await.unwrap();
        let let_go = Some(Inspection::pass(15));
        assert_eq!(text.glanced(&stage, &mut waits(whole, &stage)), let_go);
        for channel in &[Channel::Reasoning, Channel::Refusal] {
            assert_eq!(asking(channel, None).glanced(&stage, &mut waits(whole, &stage)), let_go);
        }
        for (asking, text) in [
            (asking(&Channel::Text, Some("stop")), whole),
            (asking(&arguments, None), whole),
            (text, "Ask jo@example.com today"),
            (text, &*whole.repeat(2000)),
        ] {
            assert_eq!(asking.glanced(&stage, &mut waits(text, &stage)), None, "{text:.40}");
        }
        let remembers = format!("sk-{}", "a1B2".repeat(70));
        let mut held = waits(&remembers, &stage);
        text.call(&stage, &mut held).await.unwrap();
        assert!(!held.text.carry().is_empty());
        held.text.push(whole, Vec::new());
        assert_eq!(text.glanced(&stage, &mut held), None, "it remembers a key");
        let narrow = Stage { holdback_bytes: 3, ..stage.clone() };
        assert_eq!(text.glanced(&narrow, &mut waits("a@b, word24543", &narrow)), None, "more would wait than its cap");
        let attempt = stage.breaker.begin(&cx.caller.tenant, &cx.request_id, Instant::now()).unwrap();
        attempt.end(crate::breaker::Outcome::Failed, Instant::now());
        assert_eq!(text.glanced(&stage, &mut waits(whole, &stage)), None, "it has failed of late");
    }

    /// Else what it took would be in no figure where the glance had no answer.
    #[tokio::test]
    async fn a_call_behind_a_glance_without_an_answer_began_with_that() {
        let (stage, cx) = (shipped(), crate::reply::tests::context());
        let asking =
            Asking { cx: &cx, streaming: true, choice: 0, channel: &Channel::Text, ending: None, pauses: false };
        let mut held = Withheld::by(&stage);
        held.text.push("Ask jo@example.com today", Vec::new());
        assert!(asking.without_asking(&stage, &mut held).unwrap().is_none());
        let began = held.asked.unwrap();
        let asked = asking.call(&stage, &mut held).await.unwrap();
        assert_eq!((asked.judged.text.as_str(), held.asked), ("Ask [email] ", None));
        assert_eq!(held.call.as_ref().and_then(|call| call.began), Some(began));
    }
}
