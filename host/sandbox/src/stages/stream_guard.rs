//! `stream-guard`: decides on text as it is generated. The hottest path of the sandbox: one call per window, nothing
//! copied but the text itself. Checked: nothing that was already sent changes, redactions can be applied from left to
//! right and lie before the watermark, which cuts no character.

use super::{Answer, Direct, StageCall};
use crate::bindings::direct::exports::tidegate::plugin::stream_guard as guard;
use crate::bindings::exports::tidegate::plugin::stream_guard as on_fiber;
use crate::bindings::tidegate::plugin::types as wit;
use crate::check;
use crate::convert;
use crate::instance::Guests;
use crate::stage::{Channel, Descriptor, Inspection, Redaction, StageKind, Window, WindowAction};
use crate::state::HostState;
use wasmtime::Store;

/// Bytes that a guard may have remembered for it.
const MAX_CARRY: usize = 16 << 10;

pub(crate) struct InspectWindow<'a> {
    pub(crate) carry: &'a [u8],
    pub(crate) window: Window<'a>,
}

/// The window as the one or the other bindings have it.
macro_rules! lowered {
    ($guard:ident, $window:expr) => {{
        let Window { seq, choice, channel, text, settled, ending } = $window;
        let channel = match channel {
            Channel::Text => $guard::Channel::Text,
            Channel::Reasoning => $guard::Channel::Reasoning,
            Channel::Refusal => $guard::Channel::Refusal,
            Channel::ToolArguments(id) => $guard::Channel::ToolArguments(id),
        };
        $guard::Window { seq, choice, channel, text, settled, ending, attrs: &[] }
    }};
}

impl StageCall for InspectWindow<'_> {
    const STAGE: StageKind = StageKind::StreamGuard;
    const DIRECT: Option<Direct<Self>> = Some(Self::enter_directly);
    type Raw = guard::Inspection;
    type Out = Inspection;

    async fn enter(
        &self,
        store: &mut Store<HostState>,
        guests: &mut Guests,
        context: wit::Context<'_>,
    ) -> Answer<guard::Inspection> {
        let window = lowered!(on_fiber, self.window);
        let raw = guests.stream_guard(store)?.call_inspect_window(store, context, self.carry, window).await?;
        Ok(raw.map(from_fiber))
    }

    fn check(&self, raw: guard::Inspection, descriptor: &Descriptor) -> Result<Inspection, String> {
        if raw.carry.len() > MAX_CARRY {
            return Err(format!("its carry has {} bytes; at most {MAX_CARRY}", raw.carry.len()));
        }
        let safe_through = self.watermark(raw.safe_through)?;
        let findings = check::findings(raw.findings, |id| check::text_of_window(id, self.window.text))?;
        let action = match raw.action {
            guard::WindowAction::Pass => WindowAction::Pass,
            guard::WindowAction::Redact(_) if !descriptor.mutates => {
                return Err("it redacts, but its descriptor says `\"mutates\": false`".into());
            }
            // It changes nothing, and is nobody's redaction.
            guard::WindowAction::Redact(redactions) if redactions.is_empty() => WindowAction::Pass,
            guard::WindowAction::Redact(redactions) => WindowAction::Redact(self.redactions(redactions, safe_through)?),
            guard::WindowAction::Halt(halt) => {
                WindowAction::Halt { refusal: convert::refusal(halt.refusal), farewell: halt.farewell }
            }
        };
        Ok(Inspection { action, safe_through, carry: raw.carry, findings })
    }
}

fn from_fiber(raw: on_fiber::Inspection) -> guard::Inspection {
    let action = match raw.action {
        on_fiber::WindowAction::Pass => guard::WindowAction::Pass,
        on_fiber::WindowAction::Redact(redactions) => {
            let same = |on_fiber::Redaction { span, text }| guard::Redaction { span, text };
            guard::WindowAction::Redact(redactions.into_iter().map(same).collect())
        }
        on_fiber::WindowAction::Halt(on_fiber::Halting { refusal, farewell }) => {
            guard::WindowAction::Halt(guard::Halting { refusal, farewell })
        }
    };
    let on_fiber::Inspection { safe_through, carry, findings, attrs, .. } = raw;
    guard::Inspection { action, safe_through, carry, findings, attrs }
}

impl InspectWindow<'_> {
    fn enter_directly(
        &self,
        store: &mut Store<HostState>,
        guests: &mut Guests,
        context: wit::Context<'_>,
    ) -> Answer<guard::Inspection> {
        let window = lowered!(guard, self.window);
        guests.direct_stream_guard(store)?.call_inspect_window(store, context, self.carry, window)
    }

    /// The watermark, lowered to the start of the character that it lies in.
    pub(crate) fn watermark(&self, safe_through: u32) -> Result<u32, String> {
        let Window { text, settled, .. } = self.window;
        debug_assert!(text.is_char_boundary(settled as usize), "what was sent ends with a whole character");
        if safe_through < settled || safe_through as usize > text.len() {
            return Err(format!("safe-through is {safe_through}, not between {settled} and {}", text.len()));
        }
        let lowered = text.floor_char_boundary(safe_through as usize);
        // `settled` is itself on a border, so this never goes below it.
        Ok(lowered as u32)
    }

    fn redactions(&self, redactions: Vec<guard::Redaction>, safe_through: u32) -> Result<Vec<Redaction>, String> {
        let check_one = |redaction: guard::Redaction| {
            let span = check::span(redaction.span, self.window.text, "a redaction's span")?;
            if span.start < self.window.settled {
                let settled = self.window.settled;
                return Err(format!("a redaction starts at {}, but {settled} bytes are already sent", span.start));
            }
            if span.end > safe_through {
                return Err(format!("a redaction ends at {}, past safe-through, which is {safe_through}", span.end));
            }
            Ok(Redaction { span, text: redaction.text })
        };
        let mut redactions: Vec<Redaction> = redactions.into_iter().map(check_one).collect::<Result<_, String>>()?;
        check::disjoint(&mut redactions, |redaction| redaction.span, "the redactions")?;
        Ok(redactions)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::descriptor;

    /// Else it would be counted, reported and told to memories as a change.
    #[test]
    fn a_redaction_of_nothing_lets_pass_and_is_not_for_who_says_that_it_redacts_nothing() {
        let window = Window { seq: 0, choice: 0, channel: &Channel::Text, text: "a", settled: 0, ending: None };
        let call = InspectWindow { carry: &[], window };
        let checked = |mutates: bool| {
            let descriptor = serde_json::json!({"name": "g", "version": "0.1.0", "summary": "s",
                "config-schema": {"type": "object"}, "mutates": mutates, "deterministic": true});
            let action = guard::WindowAction::Redact(Vec::new());
            let (carry, findings, attrs) = (Vec::new(), Vec::new(), Vec::new());
            let said = guard::Inspection { action, safe_through: 1, carry, findings, attrs };
            call.check(said, &descriptor::parse(&descriptor.to_string()).unwrap())
        };
        assert_eq!(checked(true), Ok(Inspection::pass(1)));
        assert!(checked(false).unwrap_err().contains("it redacts"));
    }
}
