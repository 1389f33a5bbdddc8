//! Memories: recalled before generation, written after the client has the answer, shown and forgotten when their caller
//! asks for it.

use crate::chat::{MemoryStage, Pipeline};
use crate::context::RequestContext;
use crate::estimate::messages_bytes;
use crate::stage::{Size, Stage, withheld};
use crate::states::Request;
use serde_json::Value;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tidegate_sandbox::Plugin;
use tidegate_sandbox::stage::{Exchange, MemoryItem, Question, StageKind};
use tidegate_types::{Fault, FinishReason, Memory, Message, Part, Provenance, Reject, Retention, Role, Scope};
use tracing::Span;

/// An answer as it has left.
pub(super) struct Said {
    pub(super) answer: String,
    /// Whose it is: another model may have stood in for the one that was asked.
    pub(super) model: String,
    pub(super) finish: FinishReason,
    /// A guard has changed it.
    pub(super) is_changed: bool,
    /// A guard had no verdict on it, or not on all of it.
    pub(super) is_unjudged: bool,
}

impl Pipeline {
    /// The memories that are for the caller.
    pub(super) fn memories_of<'a>(&'a self, scope: &'a Scope) -> impl Iterator<Item = &'a MemoryStage> {
        self.stages.memories.iter().filter(|memory| scope.has(&memory.stage.name))
    }

    /// What one memory knows about a question, not screened yet.
    pub(super) async fn remembered(
        &self,
        memory: &MemoryStage,
        request: &Request,
        question: &str,
    ) -> Result<Vec<Message>, Reject> {
        let stage = &memory.stage;
        let call = request.cx.call(request.chat.stream, stage.wall);
        let num_bytes = question.len();
        let question = Question { text: question, limit: memory.top_k };
        let asking = async |plugin: &Plugin| plugin.recall(&call, question).await;
        let found = stage.call_about(Size::Sent(num_bytes), StageKind::Memory, &call, asking).await?;
        request.note_lack(&found);
        Ok(found.unwrap_or_default().into_iter().map(|item| known(&stage.name, item)).collect())
    }

    /// Gives a question and its answer to every memory, in the config's order, on nobody's path. Each is told whose the
    /// answer is and why it ended, whether a guard changed it or had no verdict on it, whether it was made without something that failed,
    /// and what its own prompt guard noted.
    pub(super) fn remember(self: &Arc<Self>, request: &Request, said: Said) {
        let Said { answer, model, finish, is_changed, is_unjudged } = said;
        let Some(question) = request.question.clone() else { return };
        // What a memory is for may not be done; it is not even asked.
        if answer.is_empty() || request.cx.retention == Retention::Nothing {
            return;
        }
        let (pipeline, cx, notes) = (Arc::clone(self), request.cx.clone(), request.notes.clone());
        let lacks = request.lacks.load(Ordering::Relaxed);
        self.background.start("memory", &request.cx.caller, &Span::current(), async move {
            let messages = [Message::text("m0", Role::User, question), Message::text("m1", Role::Assistant, answer)];
            for MemoryStage { stage, .. } in pipeline.memories_of(&cx.caller.scope) {
                let call = cx.call(false, stage.wall);
                let told = [("finish-reason", finish.as_str()), ("model", &model)];
                let mut attrs = told.map(|(name, said)| (name.to_owned(), Value::from(said).to_string())).to_vec();
                let flags = [("changed", is_changed), ("unjudged", is_unjudged), ("incomplete", lacks)];
                attrs.extend(
                    flags
                        .into_iter()
                        .filter(|(_, is_set)| *is_set)
                        .map(|(name, _)| (name.to_owned(), "true".to_owned())),
                );
                let own = notes.iter().filter(|notes| notes.plugin == stage.name);
                attrs.extend(own.flat_map(|notes| notes.attrs.clone()));
                let exchange = Exchange { messages: &messages, attrs: &attrs };
                let remember = async |plugin: &Plugin| plugin.remember(&call, exchange).await;
                stage.call_after(Size::Sent(messages_bytes(&messages)), StageKind::Memory, &call, remember).await;
            }
        });
    }

    /// What each memory knows of the caller about a question, at most `limit` of each, for the caller alone: nothing is
    /// generated from it. A memory that fails is an error even where it is open: nothing known would be a wrong answer.
    pub async fn memories(&self, question: &str, limit: u32, cx: &RequestContext) -> Result<Vec<Memory>, Reject> {
        let _held = self.admit_alone(cx).await?;
        let mut all = Vec::new();
        for MemoryStage { stage, .. } in self.memories_of(&cx.caller.scope) {
            let call = cx.call(false, stage.wall);
            let asked = Question { text: question, limit };
            let asking = async |plugin: &Plugin| plugin.recall(&call, asked).await;
            let found = stage.call_about(Size::Sent(question.len()), StageKind::Memory, &call, asking).await?;
            let found = found.ok_or_else(|| out_of_order(stage))?;
            let shown = |item: MemoryItem| Memory { id: id_of(stage, &item.id), text: item.text, score: item.score };
            all.extend(found.into_iter().map(shown));
        }
        Ok(all)
    }

    /// Makes memories forget, by the ids that [`Pipeline::memories`] gave; says how many were there. A name that no
    /// memory has is not there; one of a memory that is not for the caller is refused, before anything is forgotten.
    pub async fn forget(&self, ids: &[String], cx: &RequestContext) -> Result<u32, Reject> {
        let named = |stage: &Stage| {
            let prefix = id_of(stage, "");
            ids.iter().filter_map(|id| id.strip_prefix(&prefix)).collect::<Vec<&str>>()
        };
        let all = self.stages.memories.iter().map(|MemoryStage { stage, .. }| (stage, named(stage)));
        let asked: Vec<_> = all.filter(|(_, own)| !own.is_empty()).collect();
        if let Some((stage, _)) = asked.iter().find(|(stage, _)| !cx.caller.scope.has(&stage.name)) {
            let message = format!("the memory `{}` is of a plugin that this caller may not use", stage.name);
            return Err(withheld("ids", message));
        }
        let _held = self.admit_alone(cx).await?;
        let mut forgotten: u32 = 0;
        for (stage, own) in asked {
            let call = cx.call(false, stage.wall);
            let num_bytes = own.iter().map(|id| id.len()).sum();
            let asking = async |plugin: &Plugin| plugin.forget(&call, &own).await;
            let count = stage.call_about(Size::Sent(num_bytes), StageKind::Memory, &call, asking).await?;
            forgotten = forgotten.saturating_add(count.ok_or_else(|| out_of_order(stage))?);
        }
        Ok(forgotten)
    }
}

fn id_of(stage: &Stage, id: &str) -> String {
    format!("{}/{id}", stage.name)
}

fn out_of_order(stage: &Stage) -> Reject {
    let message = format!("the memory `{}` is out of order; try again later", stage.name);
    Reject::unavailable(Fault::Plugin, message, 1).code("memory_failed")
}

fn known(plugin: &str, item: MemoryItem) -> Message {
    Message {
        id: format!("{plugin}/{}", item.id),
        role: Role::User,
        name: None,
        parts: vec![Part::Text(item.text)],
        provenance: Some(Provenance { source: plugin.to_owned(), uri: None, span: None }),
    }
}
