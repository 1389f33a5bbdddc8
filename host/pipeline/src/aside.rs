//! Texts that the server writes for itself behind an answer: summaries, titles. They pass every guard, both ways, since
//! they are about what callers said, and may go to an upstream. Nothing is retrieved for them, no tool runs, no memory is
//! written and no observer told.

use crate::chat::{Pipeline, Stages, ToolLimits};
use crate::context::RequestContext;
use crate::reply::ReplyEvent;
use crate::stages::ANSWERED_BY;
use tidegate_types::{Chat, DeltaKind, Fault, FinishReason, Reject, RejectKind};

impl Pipeline {
    /// Has a model write a text; dropping the future stops its work. What it costs is the caller's tenant's, under the
    /// kind that the context's generation names.
    pub async fn write_aside(&self, chat: Chat, cx: RequestContext) -> Result<String, Reject> {
        let Stages { prompt_guards, late_guards, stream_guards, output_guards, .. } = self.stages.clone();
        let guards = Stages { prompt_guards, late_guards, stream_guards, output_guards, ..Stages::default() };
        let no_tools = ToolLimits { max_turns: 0, ..self.limits.tools };
        let mut reply = self.with_stages(guards, no_tools).answer(Chat { stream: false, ..chat }, cx).await?;
        if reply.headers.iter().any(|(name, _)| *name == ANSWERED_BY) {
            return Err(withheld());
        }
        let mut text = String::new();
        while let Some(event) = reply.next().await {
            match event? {
                ReplyEvent::Delta(delta) => match delta.kind {
                    DeltaKind::Text { text: more, .. } => text.push_str(&more),
                    DeltaKind::Finish(FinishReason::ContentFilter) => return Err(withheld()),
                    DeltaKind::Reasoning(_)
                    | DeltaKind::Refusal(_)
                    | DeltaKind::ToolCall { .. }
                    | DeltaKind::Finish(_) => {}
                },
                ReplyEvent::Uncited => return Err(withheld()),
                ReplyEvent::Usage(_) => {}
            }
        }
        Ok(text)
    }
}

/// What a guard answers in a model's place is for whoever asked, and no summary and no title.
fn withheld() -> Reject {
    let message = "a guard of this server withheld the text, or answered in its place";
    Reject::new(RejectKind::ContentFilter, Fault::Client, message).code("content_filter")
}
