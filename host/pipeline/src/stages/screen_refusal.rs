//! What an upstream says when it refuses a request. Some servers quote what their model has said, such as a call that they
//! could not read. So the guards of answers judge it as one: the caller reads what they leave of it.

use crate::chat::Pipeline;
use crate::stages::ask_guard::Asking;
use crate::stages::screen_output::{OutputScreen, Piece};
use crate::states::Request;
use tidegate_sandbox::stage::Channel;
use tidegate_types::{Delta, DeltaKind, Fault, Finding, FinishReason, Reject};

/// What the caller reads where a guard leaves nothing.
const WITHHELD: &str =
    "the model's server refuses the request; what it says of that is withheld by a guard of this server";

impl Pipeline {
    /// A failure of an upstream as the caller may read it. Only one that is the caller's to mend has the server's own words;
    /// the log has them too, as its cause, where it may. What guards saw goes to `findings`.
    pub(super) async fn screen_refusal(
        &self,
        request: &Request,
        model: &str,
        mut reject: Reject,
        findings: &mut Vec<Finding>,
    ) -> Reject {
        if reject.fault == Fault::Client {
            let said = std::mem::take(&mut reject.message);
            let left = self.screen_words(request, model, said, findings).await;
            reject.message = left.filter(|left| !left.is_empty()).unwrap_or_else(|| WITHHELD.to_owned());
        }
        reject
    }

    /// What all guards of answers leave of a text; `None` where one withholds it or fails.
    async fn screen_words(
        &self,
        request: &Request,
        model: &str,
        text: String,
        findings: &mut Vec<Finding>,
    ) -> Option<String> {
        let (cx, streaming) = (&request.cx, request.chat.stream);
        let ending = Some(FinishReason::Stop.as_str());
        let asking = Asking { cx, streaming, choice: 0, channel: &Channel::Text, ending, pauses: false };
        let (mut screen, said) = (OutputScreen::new(false), Piece { text, logprobs: Vec::new() });
        let judged = screen.judge(&self.stages.stream_guards, asking, said, Vec::new()).await;
        findings.append(&mut screen.findings);
        let judged = judged.ok()?;
        if judged.halted {
            return None;
        }
        let text: String = judged.pieces().map(|piece| piece.text).collect();
        if !self.screens_answers(streaming) {
            return Some(text);
        }
        let mut held = self.hold_answer(streaming);
        for kind in [DeltaKind::Text { text, logprobs: Vec::new() }, DeltaKind::Finish(FinishReason::Stop)] {
            held.push(Delta { choice: 0, kind });
        }
        let judged = self.screen_answer(request, model, held, None, findings).await.ok()?;
        let text = |delta: Delta| if let DeltaKind::Text { text, .. } = delta.kind { Some(text) } else { None };
        (!judged.replaced).then(|| judged.events.into_iter().filter_map(text).collect())
    }
}
