//! What `api` asks for, answered by the pipeline.

use metrics_exporter_prometheus::PrometheusHandle;
use std::sync::Arc;
use std::task::{Context, Poll};
use tidegate_api::{Events, ModelCard, Reply, ReplyEvent, RequestContext, Service};
use tidegate_pipeline::{Model, ModelBackend, Pipeline};
use tidegate_types::{Caller, Chat, Reject};

/// The pipeline behind the HTTP side.
pub(crate) struct PipelineService {
    pub(crate) pipeline: Arc<Pipeline>,
    pub(crate) metrics: PrometheusHandle,
}

impl Service for PipelineService {
    fn chat(&self, chat: Chat, cx: RequestContext) -> tidegate_api::BoxFuture<'_, Result<Reply, Reject>> {
        Box::pin(async move {
            let cx = tidegate_pipeline::RequestContext { request_id: cx.request_id, caller: cx.caller, hops: cx.hops };
            let reply = self.pipeline.answer(chat, cx).await?;
            Ok(Reply {
                model: reply.model.clone(),
                headers: reply.headers.clone(),
                events: Box::new(PipelineReply(reply)),
            })
        })
    }

    fn models(&self, _caller: &Caller) -> Vec<ModelCard> {
        let mut cards: Vec<ModelCard> = self.pipeline.models().iter().map(|model| card(model)).collect();
        if self.pipeline.routes() {
            let id = tidegate_pipeline::chat::ROUTED_MODEL.to_owned();
            cards.push(ModelCard { id, created: 0, owned_by: "tidegate".into(), context_tokens: None });
        }
        cards
    }

    fn ready(&self) -> Result<(), String> {
        for model in self.pipeline.models().iter() {
            if let ModelBackend::Engine(engine) = &model.backend
                && let tidegate_engine::Health::NotReady(why) = engine.handle.health()
            {
                return Err(format!("model `{}`: {why}", model.name));
            }
        }
        Ok(())
    }

    fn metrics(&self) -> String {
        self.metrics.render()
    }
}

fn card(model: &Model) -> ModelCard {
    let owned_by = match &model.backend {
        ModelBackend::Engine(_) => "tidegate".to_owned(),
        // Where it is, is nobody's business but the operator's.
        ModelBackend::Upstream(_) => "upstream".to_owned(),
    };
    let context_tokens = (model.context_tokens > 0).then_some(model.context_tokens);
    ModelCard { id: model.name.clone(), created: model.created, owned_by, context_tokens }
}

struct PipelineReply(tidegate_pipeline::Reply);

impl Events for PipelineReply {
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<ReplyEvent, Reject>>> {
        self.0.poll_next(cx).map(|event| {
            event.map(|event| {
                event.map(|event| match event {
                    tidegate_pipeline::ReplyEvent::Delta(delta) => ReplyEvent::Delta(delta),
                    tidegate_pipeline::ReplyEvent::Usage(usage) => ReplyEvent::Usage(usage),
                })
            })
        })
    }
}
