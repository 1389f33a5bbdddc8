//! A running server: assembled, listening, and stopped without losing an answer.

use crate::assemble::{Assembled, assemble};
use crate::books::{self, Books};
use crate::callers;
use crate::config::{ClientAuthConfig, Config, ServerConfig};
use crate::invitation::invitation;
use crate::keep::Keeping;
use crate::keys::{self, KeyDesk};
use crate::observe;
use crate::reload::Reloader;
use crate::service::PipelineService;
use anyhow::Context;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tidegate_api::{Api, ClientAuthority, Door, Lanes, Limits, Listener, Server, SharedAuth, SharedLogs, Tls};
use tidegate_limits::shared::SharedLimits;
use tidegate_pipeline::{ModelBackend, Pipeline};
use tidegate_sandbox::capability::KvStore;
use tidegate_shared::{LogSettings, Shared};
use tokio_util::task::AbortOnDropHandle;

/// A server that answers. Dropping it ends it at once, and with it all that it holds; [`Running::stop`] loses no answer.
pub struct Running {
    /// Where it listens.
    pub addr: SocketAddr,
    /// Where the administrator's routes are, where they have an address of their own.
    pub admin_addr: Option<SocketAddr>,
    /// One line for each fact about it.
    pub facts: Vec<String>,
    server: Server,
    /// Let go of after what follows answers, which runs there too.
    _lanes: Arc<Lanes>,
    service: Arc<PipelineService>,
    reloader: Arc<Reloader>,
    /// Tidies what is kept.
    tidying: Option<AbortOnDropHandle<()>>,
    /// Look for changed files, where that is wanted, and for keys of others; tend the metrics.
    watchers: Vec<AbortOnDropHandle<()>>,
    /// Let go of at the very end.
    shared: Option<Shared>,
}

/// For what follows answers, once the last one has left.
const AFTERWORK: Duration = Duration::from_secs(2);

impl Running {
    /// Takes no new requests, gives running answers `grace` to end, then stops the engines.
    pub async fn stop(self, grace: Duration) {
        self.watchers.iter().for_each(AbortOnDropHandle::abort);
        self.server.stop(grace).await;
        let pipeline = self.service.pipeline();
        if !pipeline.settle(AFTERWORK).await {
            tracing::warn!("memories or observers were still at work, and were cut off");
        }
        for model in pipeline.models().iter() {
            if let ModelBackend::Engine(engine) = &model.backend {
                engine.handle.shutdown(Duration::from_secs(1)).await;
            }
        }
        if let Some(tidying) = &self.tidying {
            tidying.abort();
        }
        if let Some(books) = self.service.books() {
            books.close().await;
        }
        if let Some(shared) = self.shared {
            shared.close().await;
        }
    }

    /// The pipeline that answers new requests, for tests.
    pub fn pipeline(&self) -> Arc<Pipeline> {
        self.service.pipeline()
    }

    /// Takes the config file and the plugins anew, whole or not at all; one line for each part that runs then.
    pub async fn reload(&self) -> anyhow::Result<Vec<String>> {
        self.reloader.reload().await
    }
}

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
    let certificate = read_tls(&config.server)?;
    let listener = listen(&config.server, certificate.clone())?;
    let addr = listener.address()?;
    let admin = admin_listener(&config.server, certificate.clone())?;
    let admin_addr = admin.as_ref().map(Listener::address).transpose()?;
    let auth = SharedAuth::from(callers::auth(&config, &Arc::default(), None)?);
    let limits = limits(&config.server);
    let tls = certificate.is_some();
    let books = Books::open(&config).await?.map(Arc::new);
    let desk = match &books {
        Some(books) => Some(Arc::new(KeyDesk::open(&config, books, auth.clone()).await?)),
        None => None,
    };
    let pseudonym_key = match &books {
        Some(books) => Some(books.pseudonym_key().await?),
        None => None,
    };
    let ledger = books.as_ref().map(|books| Arc::clone(&books.ledger));
    let kv = books.as_ref().map(|books| Arc::new(config.plugins.kv_in(&books.db)));
    let kv_of_plugins = kv.clone().filter(|_| config.plugins.has_kv_in_store()).map(|kv| kv as Arc<dyn KvStore>);
    let store = config.store.clone();
    let shared = share(&config)?;
    let limits_of_all = shared.as_ref().map(|shared| shared.limits() as Arc<dyn SharedLimits>);
    let assembling = tokio::task::spawn_blocking(move || {
        assemble(&config, ledger, limits_of_all, pseudonym_key, kv_of_plugins).map(|assembled| (config, assembled))
    });
    let (config, Assembled { pipeline, plugins, mut facts }) = assembling.await.context("assembling panicked")??;
    let keeping = books.as_ref().map(|books| Keeping::new(&config, books.db.clone())).transpose()?;
    let staying = match &keeping {
        Some(keeping) => keeping.stay().await,
        None => None,
    };
    let service = Arc::new(PipelineService::new(Arc::clone(&pipeline), books.clone(), metrics.clone()));
    let telling = shared.as_ref().zip(books.as_ref().filter(|books| books.is_shared));
    let telling =
        telling.map(|(shared, books)| tokio::spawn(books::tell_set_aside(Arc::clone(&books.ledger), shared.board())));
    let key_watcher = desk.clone().zip(books).map(|(desk, books)| tokio::spawn(keys::watch(desk, books)));
    desk.into_iter().for_each(|desk| service.set_desk(desk));
    let reloader = Arc::new(Reloader::new(&config, &service, plugins, auth.clone(), certificate));
    service.set_reloader(Arc::clone(&reloader));
    let watcher = config.server.watch.then(|| tokio::spawn(Arc::clone(&reloader).watch()));
    let upkeep = tokio::spawn(observe::upkeep(metrics));
    let tidying_kv = kv.map(|kv| tokio::spawn(kv.tidy()));
    let watchers =
        [upkeep].into_iter().chain(watcher).chain(key_watcher).chain(telling).chain(staying).chain(tidying_kv);
    let watchers = watchers.map(AbortOnDropHandle::new).collect();
    let api: Arc<dyn tidegate_api::Service> = service.clone();
    let kept = keeping.as_ref().map(Keeping::kept);
    let tidying = keeping.as_ref().map(|keeping| AbortOnDropHandle::new(keeping.tidy()));
    let logs = shared.as_ref().map(|shared| shared.logs() as Arc<dyn SharedLogs>);
    let listeners = [listener].into_iter().chain(admin).collect();
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let lanes = Arc::new(Lanes::start(processors).context("the threads for connections do not start")?);
    let api = Api::new(api, auth, limits, Arc::clone(&lanes)).with_kept(kept).with_shared(logs);
    let server = tidegate_api::serve(listeners, api);
    facts.extend(store.iter().map(Books::fact));
    facts.extend(config.plugins.kv_fact());
    facts.extend(
        config.shared.as_ref().map(|shared| format!("shared    with {} gateways by {}", shared.gateways, shared.url)),
    );
    facts.extend(admin_addr.map(|addr| format!("admin     {}://{addr}/admin", if tls { "https" } else { "http" })));
    facts.extend(invitation(addr, tls, &config, &pipeline)?);
    Ok(Running { addr, admin_addr, facts, server, _lanes: lanes, service, reloader, tidying, watchers, shared })
}

/// Begins to share with other gateways, where that is configured.
fn share(config: &Config) -> anyhow::Result<Option<Shared>> {
    let Some(shared) = &config.shared else { return Ok(None) };
    let logs = LogSettings { keep: config.server.streams.to_limits().keep };
    Ok(Some(Shared::start(shared.to_shared()?, logs).context("in [shared]")?))
}

fn listen(config: &ServerConfig, tls: Option<Tls>) -> anyhow::Result<Listener> {
    // Others' machines reach no administrator's route by chance.
    let door = match config.admin_listen {
        None if config.listen.ip().is_loopback() => Door::Every,
        _ => Door::Callers,
    };
    Ok(Listener::bind(config.listen, tls, door)?)
}

fn admin_listener(config: &ServerConfig, tls: Option<Tls>) -> anyhow::Result<Option<Listener>> {
    let Some(address) = config.admin_listen else { return Ok(None) };
    Ok(Some(Listener::bind(address, tls, Door::Administrators)?))
}

/// The certificate and its key, where HTTPS is configured.
pub(crate) fn read_tls(config: &ServerConfig) -> anyhow::Result<Option<Tls>> {
    let Some(files) = &config.tls else { return Ok(None) };
    let read = |path: &std::path::Path| std::fs::read(path).with_context(|| format!("cannot read {}", path.display()));
    // Whoever installed one before is fine too.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let authority = files.client_ca.as_deref().map(read).transpose()?;
    let required = files.client_auth == ClientAuthConfig::Required;
    let clients = authority.as_deref().map(|certificates| ClientAuthority { certificates, required });
    let tls = Tls::from_pem(&read(&files.cert)?, &read(&files.key)?, clients);
    Ok(Some(tls.with_context(|| format!("{} and its key cannot be served", files.cert.display()))?))
}

fn limits(config: &ServerConfig) -> Limits {
    Limits {
        max_connections: config.max_connections,
        max_body_bytes: config.max_body_bytes,
        header_timeout: Duration::from_millis(config.header_timeout_ms),
        body_timeout: Duration::from_millis(config.body_timeout_ms),
        streams: config.streams.to_limits(),
        obfuscation: config.streams.obfuscation,
        ..Limits::default()
    }
}
