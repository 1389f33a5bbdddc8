//! What `api` asks for, answered by the pipeline.

use crate::books::Books;
use crate::config::ModelConfig;
use crate::keys::KeyDesk;
use crate::observe::Metrics;
use crate::reload::{self, Reloader};
use arc_swap::ArcSwap;
use bytes::Bytes;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Instant;
use tidegate_api::{
    Administration, BoxFuture, Embedded, Events, ModelCard, ModelPricing, Reply, ReplyEvent, RequestContext, Service,
    store_failed,
};
use tidegate_ledger::{CallPrices, Price};
use tidegate_pipeline::{Makes, Model, ModelBackend, Pipeline, Stages};
use tidegate_store::{Usage, UsageQuery, UsageSum};
use tidegate_text::ToolFormat;
use tidegate_turns::Owner;
use tidegate_types::{Caller, Chat, EmbedRequest, Fault, Memory, ROUTED_MODEL, Reject, RejectKind};

/// The pipeline behind the HTTP side.
pub(crate) struct PipelineService {
    pipeline: ArcSwap<Pipeline>,
    reloader: OnceLock<Arc<Reloader>>,
    books: Option<Arc<Books>>,
    desk: OnceLock<Arc<KeyDesk>>,
    metrics: Arc<Metrics>,
}

impl PipelineService {
    pub(crate) fn new(pipeline: Arc<Pipeline>, books: Option<Arc<Books>>, metrics: Arc<Metrics>) -> Self {
        Self { pipeline: ArcSwap::new(pipeline), reloader: OnceLock::new(), books, desk: OnceLock::new(), metrics }
    }

    /// What is used, where that is kept.
    pub(crate) fn books(&self) -> Option<&Arc<Books>> {
        self.books.as_ref()
    }

    /// Lets [`Service::reload`] work.
    pub(crate) fn set_reloader(&self, reloader: Arc<Reloader>) {
        // Set once, at the start.
        let _ = self.reloader.set(reloader);
    }

    /// What answers new requests.
    pub(crate) fn pipeline(&self) -> Arc<Pipeline> {
        self.pipeline.load_full()
    }

    /// New requests go through other stages; those that run finish as they began.
    pub(crate) fn replace_stages(&self, stages: Stages, max_tool_turns: u32) {
        self.pipeline.store(self.pipeline.load().with_stages(stages, max_tool_turns));
    }

    /// Models get the limits of their entries; what was counted goes on counting.
    pub(crate) fn replace_quotas(&self, entries: &[ModelConfig]) {
        let pipeline = self.pipeline.load();
        for (entry, model) in entries.iter().filter_map(|entry| Some((entry, pipeline.models().get(&entry.name).ok()?)))
        {
            model.quota.store(Arc::new(entry.limits.clone()));
        }
    }

    /// The keys of a running server can be changed from now on.
    pub(crate) fn set_desk(&self, desk: Arc<KeyDesk>) {
        // Set once, at the start.
        let _ = self.desk.set(desk);
    }

    /// What a model costs, and what its answers may call, where that is billed at all.
    fn pricing(&self, model: &str) -> Option<ModelPricing> {
        let books = self.books.as_ref()?;
        let prices = books.ledger.prices();
        let Price { input, cached, output } = prices.of(model);
        let CallPrices { tools, retrieval } = prices.calls.clone();
        let pricing =
            ModelPricing { currency: books.currency.clone(), input, cached_input: cached, output, tools, retrieval };
        (!pricing.is_free()).then_some(pricing)
    }

    /// The keys, where a store keeps them.
    pub(crate) fn desk(&self) -> Result<(&KeyDesk, &Books), Reject> {
        let (desk, books) = self.desk.get().zip(self.books.as_ref()).ok_or_else(tidegate_api::no_store)?;
        Ok((desk, books))
    }
}

impl Service for PipelineService {
    fn chat(&self, chat: Chat, cx: RequestContext) -> BoxFuture<'_, Result<Reply, Reject>> {
        Box::pin(async move {
            let (pipeline, aborted) = (self.pipeline.load_full(), cx.aborted.clone());
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
            let embedded = self.pipeline.load_full().embed(asked, most_numbers, for_pipeline(cx)).await?;
            let tidegate_pipeline::Embedded { model, made, allowances, room } = embedded;
            Ok(Embedded { model, made, allowances, held: Box::new(room) })
        })
    }

    fn write_aside(&self, chat: Chat, cx: RequestContext) -> BoxFuture<'_, Result<String, Reject>> {
        Box::pin(async move { self.pipeline.load_full().write_aside(chat, for_pipeline(cx)).await })
    }

    fn memories<'a>(
        &'a self,
        question: &'a str,
        limit: u32,
        cx: RequestContext,
    ) -> BoxFuture<'a, Result<Vec<Memory>, Reject>> {
        Box::pin(async move { self.pipeline.load_full().memories(question, limit, &for_pipeline(cx)).await })
    }

    fn forget<'a>(&'a self, ids: &'a [String], cx: RequestContext) -> BoxFuture<'a, Result<u32, Reject>> {
        Box::pin(async move { self.pipeline.load_full().forget(ids, &for_pipeline(cx)).await })
    }

    fn models(&self, caller: &Caller) -> Vec<ModelCard> {
        let (pipeline, scope) = (self.pipeline.load(), &caller.scope);
        let allowed = pipeline.models().iter().filter(|model| scope.allows(&model.name));
        let mut cards: Vec<ModelCard> =
            allowed.map(|model| ModelCard { pricing: self.pricing(&model.name), ..card(model) }).collect();
        if pipeline.routes() && scope.allows(ROUTED_MODEL) {
            let id = ROUTED_MODEL.to_owned();
            let owned_by = "tidegate".to_owned();
            let (context_tokens, capabilities) = (None, Vec::new());
            cards.push(ModelCard { id, created: 0, owned_by, context_tokens, capabilities, pricing: None });
        }
        cards
    }

    fn ready(&self) -> Result<(), String> {
        if let Some(books) = &self.books {
            books.ledger.health()?;
        }
        let pipeline = self.pipeline.load();
        pipeline.check_stages().map_err(|why| format!("a closed stage did not load: {why}"))?;
        for model in pipeline.models().iter() {
            if let ModelBackend::Engine(engine) = &model.backend
                && let tidegate_engine::Health::NotReady(why) = engine.handle.health()
            {
                return Err(format!("model `{}`: {why}", model.name));
            }
        }
        Ok(())
    }

    fn reload(&self) -> BoxFuture<'_, Result<Vec<String>, Reject>> {
        Box::pin(async move {
            let reject = |why: String| Reject::new(RejectKind::Invalid, Fault::Operator, why);
            let refused = match self.reloader.get() {
                None => reject("this server has nothing to reload".into()),
                Some(reloader) => match reloader.reload().await {
                    Ok(facts) => return Ok(facts),
                    Err(error) if reload::may_pass(&error) => {
                        Reject::unavailable(Fault::Operator, format!("{error:#}"), reload::AGAIN_S)
                    }
                    Err(error) => reject(format!("{error:#}")),
                },
            };
            Err(refused.code("reload_refused"))
        })
    }

    fn reloading(&self) -> Option<String> {
        self.reloader.get()?.under_way()
    }

    fn administer<'a>(&'a self, what: Administration, by: &'a Caller) -> BoxFuture<'a, Result<Bytes, Reject>> {
        Box::pin(async move {
            let (desk, books) = self.desk()?;
            let shown = match what {
                Administration::Keys => desk.list(by).await,
                Administration::MakeKey(body) => desk.make(&body, by, books).await,
                Administration::RotateKey { name, grace_s } => desk.rotate(&name, grace_s, by, books).await,
                Administration::RevokeKey(name) => desk.revoke(&name, by, books).await,
                Administration::Projects(page) => desk.projects(by, &page).await,
                Administration::Project(id) => desk.project(&id, by).await,
                Administration::MakeProject(body) => desk.make_project(&body, by, books).await,
                Administration::ChangeProject { id, body } => desk.change_project(&id, &body, by, books).await,
                Administration::ArchiveProject(id) => desk.archive_project(&id, by, books).await,
                Administration::Members { project, page } => desk.members(&project, by, &page).await,
                Administration::Member { project, user } => desk.member(&project, &user, by).await,
                Administration::ChangeMember { project, change } => {
                    desk.change_member(&project, change, by, books).await
                }
            };
            Ok(Bytes::from(shown?.to_string()))
        })
    }

    fn usage(&self, query: UsageQuery, by: &Caller) -> BoxFuture<'_, Result<Vec<UsageSum>, Reject>> {
        let by = Owner::of(by);
        Box::pin(async move {
            let db = &self.books.as_ref().ok_or_else(tidegate_api::no_store)?.db;
            let usage = Usage::new(db.clone());
            db.in_turn(&by, async move { usage.sums(&query).await }).await.map_err(store_failed)
        })
    }

    fn currency(&self) -> String {
        self.books.as_ref().map_or_else(|| "usd".into(), |books| books.currency.clone())
    }

    fn metrics(&self) -> String {
        self.metrics.render()
    }
}

fn for_pipeline(cx: RequestContext) -> tidegate_pipeline::RequestContext {
    let RequestContext { request_id, generation, caller, retention, hops, history, notebook, aborted } = cx;
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

fn card(model: &Model) -> ModelCard {
    let owned_by = match &model.backend {
        ModelBackend::Engine(_) => "tidegate".to_owned(),
        // Where it is, is nobody's business but the operator's.
        ModelBackend::Upstream(_) => "upstream".to_owned(),
    };
    let context_tokens = (model.context_tokens > 0).then_some(model.context_tokens);
    let capabilities = capabilities(&model.backend);
    ModelCard { id: model.name.clone(), created: model.created, owned_by, context_tokens, capabilities, pricing: None }
}

/// What a model of the own engine can do; of an upstream's nobody here knows.
fn capabilities(backend: &ModelBackend) -> Vec<&'static str> {
    let ModelBackend::Engine(engine) = backend else { return Vec::new() };
    match engine.makes {
        Makes::Text => {}
        Makes::Vectors { .. } => return vec!["embeddings"],
        Makes::Labels(_) => return vec!["classification"],
    }
    let (dialect, chats) = (engine.text.dialect(), engine.text.has_template());
    let all = [
        ("completions", true),
        ("chat", chats),
        ("tools", chats && dialect.tools != ToolFormat::None),
        ("reasoning", chats && dialect.reasoning.is_some()),
        ("logprobs", true),
    ];
    all.into_iter().filter_map(|(name, can)| can.then_some(name)).collect()
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
