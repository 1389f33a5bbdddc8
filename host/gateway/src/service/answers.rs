//! Requests, answered by the pipeline of one config.

use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;
use tidegate_api::{Answers, BoxFuture, Embedded, Events, Reply, ReplyEvent, RequestContext};
use tidegate_pipeline::Pipeline;
use tidegate_types::{Chat, EmbedRequest, Memory, Reject};

/// A pipeline, whatever other follows it.
pub(crate) struct PipelineAnswers(pub(crate) Arc<Pipeline>);

impl fmt::Debug for PipelineAnswers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PipelineAnswers")
    }
}

impl Answers for PipelineAnswers {
    fn chat(&self, chat: Chat, cx: RequestContext) -> BoxFuture<'_, Result<Reply, Reject>> {
        Box::pin(async move {
            let (Self(pipeline), aborted) = (self, cx.aborted.clone());
            if chat.num_prompts() > 1 {
                let mut replies = pipeline.answer_each(chat, for_pipeline(cx)).await?;
                return Ok(Reply {
                    model: std::mem::take(&mut replies.model),
                    headers: std::mem::take(&mut replies.headers),
                    allowances: replies.allowances,
                    citations: Vec::new(),
                    aborted,
                    events: Box::new(PipelineReplies(replies)),
                });
            }
            let mut reply = pipeline.answer(chat, for_pipeline(cx)).await?;
            Ok(Reply {
                model: std::mem::take(&mut reply.model),
                headers: std::mem::take(&mut reply.headers),
                allowances: reply.allowances,
                citations: std::mem::take(&mut reply.citations),
                aborted,
                events: Box::new(PipelineReply(reply)),
            })
        })
    }

    fn embed(
        &self,
        asked: EmbedRequest,
        most_numbers: usize,
        cx: RequestContext,
    ) -> BoxFuture<'_, Result<Embedded, Reject>> {
        Box::pin(async move {
            let embedded = self.0.embed(asked, most_numbers, for_pipeline(cx)).await?;
            let tidegate_pipeline::Embedded { model, made, allowances, room } = embedded;
            Ok(Embedded { model, made, allowances, held: Box::new(room) })
        })
    }

    fn write_aside(&self, chat: Chat, cx: RequestContext) -> BoxFuture<'_, Result<String, Reject>> {
        Box::pin(async move { self.0.write_aside(chat, for_pipeline(cx)).await })
    }

    fn memories<'a>(
        &'a self,
        question: &'a str,
        limit: u32,
        cx: RequestContext,
    ) -> BoxFuture<'a, Result<Vec<Memory>, Reject>> {
        Box::pin(async move { self.0.memories(question, limit, &for_pipeline(cx)).await })
    }

    fn forget<'a>(&'a self, ids: &'a [String], cx: RequestContext) -> BoxFuture<'a, Result<u32, Reject>> {
        Box::pin(async move { self.0.forget(ids, &for_pipeline(cx)).await })
    }
}

fn for_pipeline(cx: RequestContext) -> tidegate_pipeline::RequestContext {
    let RequestContext { request_id, generation, caller, answers: _, retention, hops, history, notebook, aborted } = cx;
    let history = history.map(|history| tidegate_pipeline::History(history.0));
    let began = Instant::now();
    let aborted = aborted.shared();
    tidegate_pipeline::RequestContext {
        request_id,
        generation,
        began,
        caller,
        retention,
        hops,
        history,
        notebook,
        aborted,
    }
}

struct PipelineReply(tidegate_pipeline::Reply);

impl Events for PipelineReply {
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<ReplyEvent, Reject>>> {
        self.0.poll_next(cx).map(|event| event.map(|event| event.map(for_api)))
    }
}

/// Of a completion of several prompts.
struct PipelineReplies(tidegate_pipeline::Replies);

impl Events for PipelineReplies {
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<ReplyEvent, Reject>>> {
        self.0.poll_next(cx).map(|event| event.map(|event| event.map(for_api)))
    }
}

fn for_api(event: tidegate_pipeline::ReplyEvent) -> ReplyEvent {
    match event {
        tidegate_pipeline::ReplyEvent::Delta(delta) => ReplyEvent::Delta(delta),
        tidegate_pipeline::ReplyEvent::Usage(usage) => ReplyEvent::Usage(usage),
        tidegate_pipeline::ReplyEvent::Uncited => ReplyEvent::Uncited,
    }
}
