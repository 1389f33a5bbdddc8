//! What `api` asks for. Requests are answered by `service/answers.rs`.

mod answers;

use crate::books::Books;
use crate::config::ModelConfig;
use crate::keys::KeyDesk;
use crate::observe::Metrics;
use crate::reload::{self, Reloader};
pub(crate) use answers::PipelineAnswers;
use arc_swap::ArcSwap;
use bytes::Bytes;
use std::sync::{Arc, OnceLock};
use tidegate_api::{Administration, BoxFuture, ModelCard, ModelPricing, Service, store_failed};
use tidegate_ledger::{CallPrices, Price};
use tidegate_pipeline::{Makes, Model, ModelBackend, Pipeline};
use tidegate_store::{Usage, UsageQuery, UsageSum};
use tidegate_text::ToolFormat;
use tidegate_turns::Owner;
use tidegate_types::{Caller, Fault, ROUTED_MODEL, Reject, RejectKind};

/// What is behind the HTTP side beside the answers.
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

    /// The one that answers new requests.
    pub(crate) fn pipeline(&self) -> Arc<Pipeline> {
        self.pipeline.load_full()
    }

    /// From now on this one answers new requests.
    pub(crate) fn replace(&self, pipeline: Arc<Pipeline>) {
        self.pipeline.store(pipeline);
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
