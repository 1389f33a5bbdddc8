//! Taking a changed config and changed plugin files while requests run. What is new is loaded and checked aside, then
//! swapped in whole; requests that run finish on what they began with. What cannot be used is refused with its reason,
//! and the old goes on.
//!
//! What can change is the pipeline (its stages, their components, configs, grants and limits), whose plugins are trusted,
//! the keys, the issuers of tokens, what tenants may, the limits, budgets and prices of keys, tenants and models, and what is in
//! the files of `[server.tls]`. A change of anything else needs a restart, and is refused as a whole, so that no config runs by
//! halves. What limits have counted goes on counting. What the command line said in place of the file goes on counting too.

mod restart;

use crate::assemble::{self, Plugins};
use crate::callers;
use crate::config::{Config, Seen};
use crate::keys::ShutOut;
use crate::listen;
use crate::service::PipelineService;
use anyhow::Context;
use metrics::counter;
use restart::check_restart;
use std::path::PathBuf;
use std::sync::{Arc, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};
use tidegate_api::{SharedAuth, Tls};
use tidegate_store::StoreError;
use tokio::sync::Mutex;

/// How often the watcher looks. A file that is being written is looked at again after this time.
const WATCH: Duration = Duration::from_millis(500);
/// After so many seconds it tries again what was refused for a reason that may pass, as others may.
pub(crate) const AGAIN_S: u32 = 5;

/// Reloads one server.
pub(crate) struct Reloader {
    /// Where the config is from; without a file there is nothing to take anew.
    source: Option<PathBuf>,
    /// Weak, since the service has this for its callers.
    service: Weak<PipelineService>,
    plugins: Plugins,
    auth: SharedAuth,
    /// What new connections are secured by, where they are.
    tls: Option<Tls>,
    /// What file and command line said when they were taken last. Held while a reload runs: one at a time.
    taken: Mutex<Config>,
    /// The files of the config that was read last, be it taken or refused.
    seen: std::sync::Mutex<Seen>,
    /// Since when a config that may be good is not taken, for a reason that may pass.
    owed: std::sync::Mutex<Option<Instant>>,
}

/// A reload until it has been taken or refused. One that is cut off before, as when the server stops, leaves what it has seen to
/// the watcher.
struct UnderWay<'r> {
    reloader: &'r Reloader,
    /// What had been seen when it began.
    before: Option<Seen>,
}

impl<'r> UnderWay<'r> {
    fn begin(reloader: &'r Reloader) -> Self {
        let before = Some(locked(&reloader.seen).clone());
        Self { reloader, before }
    }

    fn end<T>(mut self, outcome: &anyhow::Result<T>) {
        self.before = None;
        let is_owed = outcome.as_ref().is_err_and(may_pass);
        *locked(&self.reloader.owed) = is_owed.then(Instant::now);
        count(if outcome.is_ok() { "taken" } else { "refused" });
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        if let Some(before) = self.before.take() {
            *locked(&self.reloader.seen) = before;
            tracing::warn!("a reload was cut off: the old config goes on");
            count("cut-off");
        }
    }
}

fn locked<T>(what: &std::sync::Mutex<T>) -> MutexGuard<'_, T> {
    what.lock().unwrap_or_else(PoisonError::into_inner)
}

fn count(outcome: &'static str) {
    counter!("tidegate_reloads_total", "outcome" => outcome).increment(1);
}

impl Reloader {
    /// `config` is what runs.
    pub(crate) fn new(
        config: &Config,
        service: &Arc<PipelineService>,
        plugins: Plugins,
        auth: SharedAuth,
        tls: Option<Tls>,
    ) -> Self {
        // Whoever embeds this program may have changed what runs; a reload compares what was read with what is read.
        let taken = config.as_read.as_deref().unwrap_or(config).clone();
        Self {
            source: config.source.clone(),
            service: Arc::downgrade(service),
            plugins,
            auth,
            tls,
            seen: std::sync::Mutex::new(taken.files.clone()),
            owed: std::sync::Mutex::default(),
            taken: Mutex::new(taken),
        }
    }

    /// Takes the file anew; gives one line for each part that runs now.
    pub(crate) async fn reload(&self) -> anyhow::Result<Vec<String>> {
        let mut taken = self.taken.lock().await;
        let under_way = UnderWay::begin(self);
        let outcome = self.take(&taken).await;
        under_way.end(&outcome);
        match outcome {
            Ok((config, facts)) => {
                *taken = config;
                tracing::info!("the config was taken anew: {}", facts.join("; "));
                Ok(facts)
            }
            Err(error) => {
                tracing::error!("the config was not taken, the old one goes on: {error:#}");
                Err(error)
            }
        }
    }

    async fn take(&self, taken: &Config) -> anyhow::Result<(Config, Vec<String>)> {
        let path = self.source.clone().context("the server runs without a config file; there is nothing to reload")?;
        // Should it not even be read: it is looked at again when something changes from now on.
        let now = locked(&self.seen).again();
        *locked(&self.seen) = now;
        let config = Config::load_again(&path, taken)?;
        locked(&self.seen).clone_from(&config.files);
        check_restart(taken, &config)?;
        let auth = callers::auth(&config, &self.auth.issuers(), None)?;
        let renewed = listen::read_tls(&config.server)?;
        let (plugins, new) = (self.plugins.clone(), config.clone());
        let loading = tokio::task::spawn_blocking(move || {
            let mut facts = Vec::new();
            let (stages, pipeline) = assemble::load_all_stages(&plugins, &new, &mut facts)?;
            anyhow::Ok((stages, pipeline, facts))
        });
        let (stages, loaded, mut facts) = loading.await.context("loading panicked")??;
        let service = self.service.upgrade().context("the server has stopped")?;
        assemble::check_default_route(&service.pipeline(), &stages)?;
        let (store, max_tool_turns) = (service.desk().ok(), loaded.max_tool_turns);
        let shut_out = match store {
            Some((desk, books)) => desk.reload(&config, loaded, books).await?,
            None => ShutOut::default(),
        };
        service.replace_stages(stages, max_tool_turns);
        service.replace_quotas(&config.models);
        if store.is_none() {
            self.auth.replace(auth);
        }
        if let (Some(tls), Some(renewed)) = (&self.tls, &renewed) {
            tls.replace(renewed);
        }
        facts.push(keys_fact(&config, self.auth.is_local_only()));
        facts.extend(shut_out.facts());
        facts.extend(issuers_fact(&config));
        facts.extend(config.unbilled());
        facts.extend(store.map_or_else(|| config.deserted(), |(desk, _)| desk.deserted()));
        facts.extend(config.server.tls.as_ref().map(|tls| format!("tls       {}", tls.cert.display())));
        Ok((config, facts))
    }

    /// Reloads whenever a file of the config that was read last has changed and then rested for a moment, and what is owed again
    /// after a while. What changes while a reload runs looks otherwise than what that has read.
    pub(crate) async fn watch(self: Arc<Self>) {
        let mut changing = None;
        loop {
            tokio::time::sleep(WATCH).await;
            let seen = locked(&self.seen).clone();
            let now = seen.again();
            let is_due =
                || locked(&self.owed).is_some_and(|since| since.elapsed() >= Duration::from_secs(AGAIN_S.into()));
            if changing.as_ref() == Some(&now) || (now == seen && is_due()) {
                // What is wrong was logged and counted; the next change is another chance.
                let _ = self.reload().await;
                changing = None;
            } else {
                changing = (now != seen).then_some(now);
            }
        }
    }
}

/// Whether the store is the reason, which was away or full, and not the config.
pub(crate) fn may_pass(error: &anyhow::Error) -> bool {
    let passes = |error: &StoreError| matches!(error, StoreError::Unavailable(_) | StoreError::Full(_));
    error.chain().any(|cause| cause.downcast_ref().is_some_and(passes))
}

/// Keys that were made while the server ran are beside those of the config.
fn keys_fact(config: &Config, is_local_only: bool) -> String {
    let names: Vec<&str> = config.keys.iter().map(|key| key.name.as_str()).collect();
    if is_local_only {
        "keys      none: this machine only".into()
    } else if names.is_empty() {
        "keys      none in the config".into()
    } else {
        format!("keys      {}", names.join(", "))
    }
}

fn issuers_fact(config: &Config) -> Option<String> {
    let names: Vec<&str> = config.auth.issuer.iter().map(|issuer| issuer.name.as_str()).collect();
    (!names.is_empty()).then(|| format!("issuers   {}", names.join(", ")))
}
