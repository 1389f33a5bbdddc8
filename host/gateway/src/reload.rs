//! Taking a changed config and changed plugin files while requests run. What is new is loaded and checked aside, then
//! swapped in whole, who is let in together with what answers them; requests that run finish on what they began with. What cannot
//! be used is refused with its reason, and the old goes on.
//!
//! What can change is the pipeline (its stages, their components, configs, grants and limits), whose plugins are trusted,
//! the keys, the issuers of tokens, what tenants may, the limits, budgets and prices of keys, tenants and models, and what is in
//! the files of `[server.tls]`. A change of anything else needs a restart, and is refused as a whole, so that no config runs by
//! halves. What limits have counted goes on counting. What the command line said in place of the file goes on counting too.
//!
//! Files may be on a disk that is away, and nobody can say for how long: they are read where only the reload waits for them, and
//! whoever comes meanwhile is told after a moment what it is at.

mod restart;
mod step;

use crate::assemble::{self, Plugins, admission};
use crate::callers;
use crate::config::{Config, Seen, StageConfig};
use crate::keys::ShutOut;
use crate::listen;
use crate::service::{PipelineAnswers, PipelineService};
use anyhow::Context;
use metrics::counter;
use restart::check_restart;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::{Arc, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};
use step::{Busy, Step};
use tidegate_api::{Auth, SharedAuth, Tls};
use tidegate_identity::Issuers;
use tidegate_store::StoreError;
use tokio::sync::Mutex;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

/// How often the watcher looks. A file that is being written is looked at again after this time.
const WATCH: Duration = Duration::from_millis(500);
/// After so many seconds it tries again what was refused for a reason that may pass, as others may.
pub(crate) const AGAIN_S: u32 = 5;
/// For how long somebody waits for a reload that is under way.
const PATIENCE: Duration = Duration::from_secs(5);
/// What is under way for so long is told in the log, each time that it is.
const LONG: Duration = Duration::from_secs(30);

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
    /// What the reload that is under way is at.
    step: std::sync::Mutex<Option<Arc<Step>>>,
    /// Since when a config that may be good is not taken, for a reason that may pass.
    owed: std::sync::Mutex<Option<Instant>>,
}

/// A reload until it has been taken or refused. One that is cut off before, as when the server stops, leaves what it has seen to
/// the watcher.
struct UnderWay<'r> {
    reloader: &'r Reloader,
    step: Arc<Step>,
    /// What had been seen when it began.
    before: Option<Seen>,
}

impl<'r> UnderWay<'r> {
    fn begin(reloader: &'r Reloader) -> Self {
        let (step, before) = (Arc::new(Step::begin()), Some(locked(&reloader.seen).clone()));
        *locked(&reloader.step) = Some(Arc::clone(&step));
        Self { reloader, step, before }
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
        *locked(&self.reloader.step) = None;
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
            step: std::sync::Mutex::default(),
            owed: std::sync::Mutex::default(),
            taken: Mutex::new(taken),
        }
    }

    /// Takes the file anew; gives one line for each part that runs now.
    pub(crate) async fn reload(&self) -> anyhow::Result<Vec<String>> {
        let Ok(mut taken) = timeout(PATIENCE, self.taken.lock()).await else {
            let busy = Busy(self.under_way().unwrap_or_else(|| "under way".into()));
            tracing::error!("the config was not taken: {busy}");
            return Err(busy.into());
        };
        let under_way = UnderWay::begin(self);
        // What it holds is large; whoever awaits it holds a pointer.
        let outcome = self.told(Box::pin(self.take(&taken, &under_way.step))).await;
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

    /// What the reload that is under way is at, and since when.
    pub(crate) fn under_way(&self) -> Option<String> {
        locked(&self.step).as_ref().map(|step| step.to_string())
    }

    /// Waits for a reload, and says what it is at where that is long.
    async fn told<T>(&self, taking: impl Future<Output = T>) -> T {
        let mut taking = pin!(taking);
        loop {
            match timeout(LONG, &mut taking).await {
                Ok(outcome) => return outcome,
                Err(_) => tracing::warn!("a reload is {}", self.under_way().unwrap_or_default()),
            }
        }
    }

    /// Reads the file and those that it names, beside the threads of connections.
    async fn read(&self, taken: &Config, step: &Step) -> anyhow::Result<Fresh> {
        let path = self.source.clone().context("the server runs without a config file; there is nothing to reload")?;
        step.is(format!("it reads {} and the files that it names", path.display()));
        let (before, running, issuers) = (locked(&self.seen).clone(), taken.clone(), self.auth.issuers());
        let reading = spawn_blocking(move || {
            // Should it not even be read: it is looked at again when something changes from now on.
            let now = before.again();
            let (seen, fresh) = Fresh::read(&path, &running, &issuers);
            (seen.unwrap_or(now), fresh)
        });
        let (seen, fresh) = reading.await.context("reading panicked")?;
        *locked(&self.seen) = seen;
        fresh
    }

    async fn take(&self, taken: &Config, step: &Arc<Step>) -> anyhow::Result<(Config, Vec<String>)> {
        let Fresh { config, auth, tls: renewed } = self.read(taken, step).await?;
        let (plugins, new, at) = (self.plugins.clone(), config.clone(), Arc::clone(step));
        let loading = spawn_blocking(move || {
            let mut facts = Vec::new();
            let begins = |stage: &StageConfig| at.is(loads(stage));
            let (stages, pipeline) = assemble::load_all_stages(&plugins, &new, &begins, &mut facts)?;
            anyhow::Ok((stages, pipeline, facts))
        });
        let (stages, loaded, mut facts) = loading.await.context("loading panicked")??;
        step.is("it takes what was loaded, and asks the store".into());
        let service = self.service.upgrade().context("the server has stopped")?;
        assemble::check_default_route(&service.pipeline(), &stages)?;
        let pipeline = service.pipeline().with_stages(stages, loaded.tool_limits());
        let answers = Arc::new(PipelineAnswers(Arc::clone(&pipeline)));
        let store = service.desk().ok();
        let shut_out = match store {
            Some((desk, books)) => desk.reload(&config, loaded, answers, books).await?,
            None => {
                self.auth.replace_both(auth, answers);
                ShutOut::default()
            }
        };
        service.replace(pipeline);
        service.replace_quotas(&config.models);
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
            let looked_at = seen.clone();
            let Ok(now) = spawn_blocking(move || looked_at.again()).await else { continue };
            if locked(&self.step).is_some() || *locked(&self.seen) != seen {
                // Somebody else's runs, or has read meanwhile: what it does not take is seen once it has ended.
                changing = None;
                continue;
            }
            let is_due =
                || locked(&self.owed).is_some_and(|since| since.elapsed() >= Duration::from_secs(AGAIN_S.into()));
            if has_rested(&seen, &now, changing.as_ref()) || (now == seen && is_due()) {
                // What is wrong was logged and counted; the next change is another chance.
                let _ = self.reload().await;
                changing = None;
            } else {
                changing = (now != seen).then_some(now);
            }
        }
    }
}

/// Whether what has changed looks as it did a moment `before`. What was `seen` meanwhile somebody else has taken, and is no change.
fn has_rested(seen: &Seen, now: &Seen, before: Option<&Seen>) -> bool {
    now != seen && before == Some(now)
}

/// A config that was read, and what it names but for plugins.
struct Fresh {
    config: Config,
    auth: Auth,
    tls: Option<Tls>,
}

impl Fresh {
    /// Blocks. Gives how the files looked that the config is of, where it could be read, be it refused.
    fn read(path: &Path, running: &Config, issuers: &Arc<Issuers>) -> (Option<Seen>, anyhow::Result<Self>) {
        let is_regular = Seen::of([path.to_owned()]).check_regular();
        let config = match is_regular.and_then(|()| Config::load_again(path, running)) {
            Ok(config) => config,
            Err(why) => return (None, Err(why)),
        };
        (Some(config.files.clone()), Self::check(config, running, issuers))
    }

    fn check(config: Config, running: &Config, issuers: &Arc<Issuers>) -> anyhow::Result<Self> {
        config.files.check_regular()?;
        check_restart(running, &config)?;
        let auth = callers::auth(&config, issuers, None)?;
        let tls = listen::read_tls(&config.server)?;
        Ok(Self { config, auth, tls })
    }
}

fn loads(stage: &StageConfig) -> String {
    let from = admission::source(stage).map(|source| format!(" from {source}")).unwrap_or_default();
    format!("it loads the plugin `{}`{from}", stage.plugin)
}

/// Whether it may be taken later as it is: the store was away or full, or another reload was under way.
pub(crate) fn may_pass(error: &anyhow::Error) -> bool {
    let passes = |error: &StoreError| matches!(error, StoreError::Unavailable(_) | StoreError::Full(_));
    error.chain().any(|cause| cause.is::<Busy>() || cause.downcast_ref().is_some_and(passes))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_changed_and_rests_is_taken_once() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("tidegate.toml");
        let looks = ["", "a", "ab"].map(|text| {
            std::fs::write(&file, text).unwrap();
            Seen::of([file.clone()])
        });
        let [old, new, newer] = &looks;
        assert!(has_rested(old, new, Some(new)));
        assert!(!has_rested(old, new, None) && !has_rested(old, newer, Some(new)), "it may go on changing");
        // A reload that began and ended since then.
        assert!(!has_rested(new, new, Some(new)) && !has_rested(old, old, None));
    }
}
