//! From a config to a running server, step by step: addresses, what lasts, the pipeline, what looks after it, answers.

use crate::assemble::{Assembled, assemble};
use crate::books::{self, Books};
use crate::callers;
use crate::config::{Config, ServerConfig};
use crate::invitation::invitation;
use crate::keep::Keeping;
use crate::keys::{self, KeyDesk};
use crate::listen::{self, Bound};
use crate::observe;
use crate::outside::InStore;
use crate::reload::Reloader;
use crate::serve::Running;
use crate::service::{PipelineAnswers, PipelineService};
use anyhow::Context;
use std::sync::Arc;
use std::time::Duration;
use tidegate_api::{Api, Lanes, Server, Service, SharedAuth, SharedLogs};
use tidegate_limits::shared::SharedLimits;
use tidegate_shared::{LogSettings, Shared};
use tokio_util::task::AbortOnDropHandle;

/// Assembles what `config` says and serves it.
pub async fn start(config: Config) -> anyhow::Result<Running> {
    // What is held on the way to a server is large; whoever awaits this holds a pointer.
    Box::pin(run(config)).await
}

async fn run(config: Config) -> anyhow::Result<Running> {
    config.check()?;
    // Whoever installed one before is fine too.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let metrics = observe::recorder()?;
    let bound = Bound::new(&config.server)?;
    let lasting = Lasting::open(&config).await?;
    let (config, Assembled { pipeline, loaded, plugins, mut facts }) = lasting.assemble(config).await?;
    if let Some(desk) = &lasting.desk {
        desk.know(loaded);
    }
    let keeping = lasting.books.as_ref().map(|books| Keeping::new(&config, books.db.clone())).transpose()?;
    let service = Arc::new(PipelineService::new(Arc::clone(&pipeline), lasting.books.clone(), metrics.clone()));
    lasting.auth.answer_by(Arc::new(PipelineAnswers(Arc::clone(&pipeline))));
    let (auth, certificate) = (lasting.auth.clone(), bound.certificate.clone());
    let reloader = Arc::new(Reloader::new(&config, &service, plugins, auth, certificate));
    service.set_reloader(Arc::clone(&reloader));
    let mut watchers = lasting.watch(&service);
    watchers.push(spawn(observe::upkeep(metrics)));
    watchers.extend(config.server.watch.then(|| spawn(Arc::clone(&reloader).watch())));
    let mut signs: Vec<_> = lasting.tell().into_iter().collect();
    let tidying = match &keeping {
        Some(keeping) => {
            signs.extend(keeping.stay().await.map(AbortOnDropHandle::new));
            Some(AbortOnDropHandle::new(keeping.tidy()))
        }
        None => None,
    };
    facts.extend(own_facts(&config, &bound));
    facts.extend(lasting.desk.as_ref().map_or_else(|| config.deserted(), |desk| desk.deserted()));
    facts.extend(invitation(
        bound.addr,
        bound.certificate.is_some(),
        (&config, lasting.auth.is_local_only()),
        &pipeline,
    )?);
    let (addr, admin_addr) = (bound.addr, bound.admin_addr);
    let (server, _lanes) = answer(&config.server, bound, service.clone(), &lasting, keeping)?;
    let (shared, settle) = (lasting.shared, Duration::from_millis(config.server.settle_ms));
    Ok(Running { addr, admin_addr, facts, server, settle, _lanes, service, reloader, tidying, watchers, signs, shared })
}

/// Begins to listen and to answer.
fn answer(
    config: &ServerConfig,
    bound: Bound,
    service: Arc<dyn Service>,
    lasting: &Lasting,
    keeping: Option<Keeping>,
) -> anyhow::Result<(Server, Arc<Lanes>)> {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let lanes = Arc::new(Lanes::start(processors).context("the threads for connections do not start")?);
    let logs = lasting.shared.as_ref().map(|shared| shared.logs() as Arc<dyn SharedLogs>);
    let api = Api::new(service, lasting.auth.clone(), listen::limits(config), Arc::clone(&lanes));
    let api = api.with_kept(keeping.as_ref().map(Keeping::kept)).with_shared(logs);
    Ok((tidegate_api::serve(bound.listeners, api)?, lanes))
}

/// Work that ends with whoever holds it.
fn spawn(work: impl Future<Output = ()> + Send + 'static) -> AbortOnDropHandle<()> {
    AbortOnDropHandle::new(tokio::spawn(work))
}

/// What outlives this run or is shared with other gateways, as far as it is configured; and who may call.
struct Lasting {
    auth: SharedAuth,
    books: Option<Arc<Books>>,
    desk: Option<Arc<KeyDesk>>,
    /// By which plugins know callers.
    pseudonym_key: Option<[u8; 32]>,
    in_store: Option<InStore>,
    shared: Option<Shared>,
}

impl Lasting {
    async fn open(config: &Config) -> anyhow::Result<Self> {
        let auth = SharedAuth::from(callers::auth(config, &Arc::default(), None)?);
        let books = Books::open(config).await?.map(Arc::new);
        let (mut desk, mut pseudonym_key) = (None, None);
        if let Some(books) = &books {
            desk = Some(Arc::new(KeyDesk::open(config, books, auth.clone()).await?));
            pseudonym_key = Some(books.pseudonym_key().await?);
        }
        let in_store = books.as_ref().map(|books| config.plugins.in_store(&books.db));
        Ok(Self { auth, books, desk, pseudonym_key, in_store, shared: share(config)? })
    }

    /// Loads models and plugins on a thread of their own.
    async fn assemble(&self, config: Config) -> anyhow::Result<(Config, Assembled)> {
        let ledger = self.books.as_ref().map(|books| Arc::clone(&books.ledger));
        let limits = self.shared.as_ref().map(|shared| shared.limits() as Arc<dyn SharedLimits>);
        let (in_store, pseudonym_key) = (self.in_store.clone(), self.pseudonym_key);
        let assembling = tokio::task::spawn_blocking(move || {
            assemble(&config, ledger, limits, pseudonym_key, in_store.as_ref()).map(|assembled| (config, assembled))
        });
        assembling.await.context("assembling panicked")?
    }

    /// Tells other gateways what is set aside here.
    fn tell(&self) -> Option<AbortOnDropHandle<()>> {
        let (shared, books) = self.shared.as_ref().zip(self.books.as_ref().filter(|books| books.is_shared))?;
        Some(spawn(books::tell_set_aside(Arc::clone(&books.ledger), shared.board())))
    }

    /// Follows what other gateways do, and sweeps what plugins have left.
    fn watch(&self, service: &PipelineService) -> Vec<AbortOnDropHandle<()>> {
        let mut watchers = Vec::new();
        if let Some((desk, books)) = self.desk.clone().zip(self.books.clone()) {
            service.set_desk(Arc::clone(&desk));
            watchers.push(spawn(keys::watch(desk, books)));
        }
        watchers.extend(self.in_store.clone().map(|in_store| spawn(in_store.tidy())));
        watchers
    }
}

/// Begins to share with other gateways, where that is configured.
fn share(config: &Config) -> anyhow::Result<Option<Shared>> {
    let Some(shared) = &config.shared else { return Ok(None) };
    let logs = LogSettings { keep: config.server.streams.to_limits().keep };
    Ok(Some(Shared::start(shared.to_shared()?, logs).context("in [shared]")?))
}

/// One line each about the store, or prices without one, what plugins keep there, other gateways, and the administrators' address.
fn own_facts(config: &Config, bound: &Bound) -> Vec<String> {
    let store = config.store.as_ref().map(Books::fact);
    let shared = config.shared.as_ref();
    let shared = shared.map(|shared| format!("shared    with {} gateways by {}", shared.gateways, shared.url));
    let scheme = if bound.certificate.is_some() { "https" } else { "http" };
    let admin = bound.admin_addr.map(|addr| format!("admin     {scheme}://{addr}/admin"));
    let unbilled = config.unbilled();
    store.into_iter().chain(unbilled).chain(config.plugins.kept_facts()).chain(shared).chain(admin).collect()
}
