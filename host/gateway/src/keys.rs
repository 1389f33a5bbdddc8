//! Keys that are made while the server runs (`/admin/keys`), beside those of its config. The store keeps them, each as its
//! hash only; several gateways on one store have the same ones, a few seconds apart. So it is with projects
//! (`keys/projects.rs`).

mod administrators;
mod bounds;
mod kept;
mod members;
mod projects;
mod shut_out;

use crate::books::Books;
use crate::callers;
use crate::config::{Config, KeyConfig, PipelineConfig, check_tenant};
use crate::key::secret;
use administrators::last_administrator;
use kept::{entry, has_ended, parsed, shown};
use serde_json::{Map, Value, json};
pub(crate) use shut_out::ShutOut;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tidegate_api::{Answers, Auth, SharedAuth, store_failed};
use tidegate_store::{Added, Ended, KeptKey, KeptProject, Keys, Projects};
use tidegate_types::clock::{millis, unix_ms};
use tidegate_types::{Caller, Fault, Reject, RejectKind};

/// The keys and projects of a running server.
pub(crate) struct KeyDesk {
    keys: Keys,
    projects: Projects,
    auth: SharedAuth,
    taken: Mutex<Taken>,
    /// Held while what is valid is read, compared and taken: whoever began before another must not take what is older
    /// behind it.
    turn: tokio::sync::Mutex<()>,
}

/// What the valid keys were made of.
#[derive(Clone)]
struct Taken {
    /// What the file says, and what kinds its stages were found to be.
    config: Config,
    kept: Vec<KeptKey>,
    projects: Vec<KeptProject>,
}

/// How often keys that another gateway made are looked for.
const LOOK: Duration = Duration::from_secs(3);
/// Valid keys of a tenant that are made here, and of those that have ended.
const MOST: u32 = 1000;

impl KeyDesk {
    /// Lets in whom `config` and the store name.
    pub(crate) async fn open(config: &Config, books: &Books, auth: SharedAuth) -> anyhow::Result<Self> {
        let (keys, projects) = (Keys::new(books.db.clone()), Projects::new(books.db.clone()));
        let taken = Taken { config: config.clone(), kept: keys.all().await?, projects: projects.all().await? };
        taken.shut_out().warn();
        let desk = Self { keys, projects, auth, taken: Mutex::new(taken.clone()), turn: tokio::sync::Mutex::default() };
        let auth = desk.take(taken, books).await?;
        desk.auth.replace(auth);
        Ok(desk)
    }

    /// From now on it is known of each plugin what its stages are, be it that the config does not say so.
    pub(crate) fn know(&self, loaded: PipelineConfig) {
        self.lock().config.pipeline = Some(loaded);
    }

    /// A line about tenants of the config that nobody is of, be it by a key that is kept.
    pub(crate) fn deserted(&self) -> Option<String> {
        let whole = self.lock().whole();
        whole.deserted()
    }

    /// Takes a changed config, what was `loaded` of it and what `answers` by that, with the keys that are kept; gives those that let
    /// nobody in for it.
    pub(crate) async fn reload(
        &self,
        config: &Config,
        loaded: PipelineConfig,
        answers: Arc<dyn Answers>,
        books: &Books,
    ) -> anyhow::Result<ShutOut> {
        let _turn = self.turn.lock().await;
        let config = Config { pipeline: Some(loaded), ..config.clone() };
        let taken = Taken { config, ..self.lock().clone() };
        let shut_out = taken.shut_out();
        let auth = self.take(taken, books).await?;
        self.auth.replace_both(auth, answers);
        shut_out.warn();
        Ok(shut_out)
    }

    /// Gives what lets in who may come by that. Whoever calls this has the turn, or is the only one there.
    async fn take(&self, taken: Taken, books: &Books) -> anyhow::Result<Auth> {
        let all = taken.whole();
        let auth = callers::auth(&all, &self.auth.issuers(), Some(&books.db))?;
        books.replace(&all).await?;
        *self.lock() = taken;
        Ok(auth)
    }

    /// Takes what the store has now, where that is something else.
    pub(crate) async fn look(&self, books: &Books) -> anyhow::Result<()> {
        let _turn = self.turn.lock().await;
        let (kept, projects) = (self.keys.all().await?, self.projects.all().await?);
        let before = self.lock().clone();
        match before.kept == kept && before.projects == projects {
            // Others spend from the same budgets.
            true if books.is_shared => books.replace(&before.whole()).await,
            true => Ok(()),
            false => {
                let now = Taken { kept, projects, ..before.clone() };
                self.let_go(&before, &now, books)?;
                let auth = self.take(now, books).await?;
                self.auth.replace(auth);
                Ok(())
            }
        }
    }

    /// Lets nobody in any more who has ended since. What is spent of budgets, which takes its time and may not be had, is for
    /// those who come.
    fn let_go(&self, before: &Taken, now: &Taken, books: &Books) -> anyhow::Result<()> {
        let mut left = now.clone();
        left.kept.retain(|key| before.kept.iter().any(|known| known.hash == key.hash));
        left.projects.retain(|project| before.projects.iter().any(|known| known.id == project.id));
        let auth = callers::auth(&left.whole(), &self.auth.issuers(), Some(&books.db))?;
        self.auth.replace(auth);
        Ok(())
    }

    /// The keys that were made here and that `by` may see, the refused ones included; none is shown.
    pub(crate) async fn list(&self, by: &Caller) -> Result<Value, Reject> {
        let kept = self.keys.all().await.map_err(store_failed)?;
        let data: Vec<Value> = kept.iter().filter(|key| bounds::sees(by, key)).map(shown).collect();
        Ok(json!({"object": "list", "data": data}))
    }

    /// Makes a key as `body` describes it, in the form of the config's entry; the answer is the only one that has it.
    pub(crate) async fn make(&self, body: &[u8], by: &Caller, books: &Books) -> Result<Value, Reject> {
        let (secret, hash) = secret().map_err(|error| Reject::internal(Fault::Operator, format!("{error:#}")))?;
        let mut settings: Map<String, Value> = serde_json::from_slice(body)
            .map_err(|error| invalid(format!("the body must be an object that describes the key: {error}")))?;
        if settings.remove("hash").is_some() {
            return Err(invalid("leave `hash` out: the server makes the key".into()).at("hash"));
        }
        bounds::complete(by, &mut settings);
        let key = self.checked(&mut settings, &hash, by)?;
        let kept = KeptKey {
            tenant: key.tenant().to_owned(),
            expires_ms: key.expires.and_then(|expiry| expiry.0.duration_since(UNIX_EPOCH).ok()).map(millis),
            name: key.name,
            hash,
            settings: Value::Object(settings).to_string(),
            created_ms: unix_ms(),
            created_by: by.name(),
            revoked_ms: None,
        };
        match self.keys.add(&kept, MOST).await.map_err(store_failed)? {
            Added::Done => self.show(&kept, &secret, books).await,
            Added::Refused => {
                let message = format!("there is a key `{}` already; rotate it, or take another name", kept.name);
                Err(Reject::new(RejectKind::Conflict, Fault::Client, message).at("name").code("key_exists"))
            }
            Added::TooMany => Err(too_many("end some that nobody needs")),
        }
    }

    /// Makes a key in the place of another, which goes on for `grace_s` seconds.
    pub(crate) async fn rotate(&self, name: &str, grace_s: u64, by: &Caller, books: &Books) -> Result<Value, Reject> {
        let (secret, hash) = secret().map_err(|error| Reject::internal(Fault::Operator, format!("{error:#}")))?;
        let now = unix_ms();
        let newest = self.newest(name).await?;
        bounds::check_known(by, &newest)?;
        let entry = parsed(&newest).map_err(|error| invalid(format!("{error:#}")))?;
        bounds::check_reach(by, &entry)?;
        bounds::check_end(self.end_for(by), &entry)?;
        self.check_usable(&entry)?;
        let of = newest.hash.clone();
        let kept = KeptKey { hash, created_ms: now, created_by: by.name(), ..newest };
        let end = now.saturating_add(grace_s.saturating_mul(1000));
        match self.keys.rotate(&kept, &of, end, MOST).await.map_err(store_failed)? {
            Added::Done => self.show(&kept, &secret, books).await,
            Added::Refused => Err(unknown(name)),
            Added::TooMany => Err(too_many("leave the old one no `grace_s`, or end some that nobody needs")),
        }
    }

    /// Refuses a key from now on.
    pub(crate) async fn revoke(&self, name: &str, by: &Caller, books: &Books) -> Result<Value, Reject> {
        if !by.admin {
            bounds::check_known(by, &self.newest(name).await?)?;
        }
        let may = self.lock().keeps_an_administrator(|key| key.name == name);
        match self.keys.revoke(name, unix_ms(), may).await.map_err(store_failed)? {
            Ended::Done => {}
            Ended::Unknown => return Err(unknown(name)),
            Ended::Refused => return Err(last_administrator(name)),
        }
        self.apply(books).await?;
        Ok(json!({"object": "api_key.deleted", "name": name, "deleted": true}))
    }

    /// By when the keys that `by` makes must end: with its own. Those of the config are the operator's, who ends what they
    /// made.
    fn end_for(&self, by: &Caller) -> Option<SystemTime> {
        let of_config = || self.lock().config.keys.iter().any(|key| *key.name == *by.key_name);
        by.expires.filter(|_| !of_config())
    }

    /// Refuses to make a key anew that would let nobody in.
    fn check_usable(&self, key: &KeyConfig) -> Result<(), Reject> {
        if has_ended(key) {
            let message = "the key has ended by its `expires`; make another";
            return Err(Reject::new(RejectKind::Conflict, Fault::Client, message).code("key_ended"));
        }
        if self.lock().is_of_config(&key.name) {
            let message = "the config has a key, an issuer or a certificate of this name; make a key of another";
            return Err(Reject::new(RejectKind::Conflict, Fault::Client, message).code("key_exists"));
        }
        let Some(project) = &key.project else { return Ok(()) };
        let found = self.lock().whole().project(key.tenant(), project).map(drop);
        let message = "the key's project is archived; make a key of another";
        found.map_err(|_| Reject::new(RejectKind::Conflict, Fault::Client, message).code("project_archived"))
    }

    async fn newest(&self, name: &str) -> Result<KeptKey, Reject> {
        let all = self.keys.all().await.map_err(store_failed)?;
        kept::newest(all, name).ok_or_else(|| unknown(name))
    }

    async fn show(&self, kept: &KeptKey, secret: &str, books: &Books) -> Result<Value, Reject> {
        if let Err(reject) = self.apply(books).await {
            // Nobody is told it a second time, and the store has it: it lets its caller in once the store answers.
            tracing::warn!(key = kept.name, "a new key lets nobody in for now: {}", reject.message);
        }
        let mut shown = shown(kept);
        shown["key"] = secret.into();
        Ok(shown)
    }

    async fn apply(&self, books: &Books) -> Result<(), Reject> {
        let failed = |error: anyhow::Error| {
            let internal = |error| Reject::internal(Fault::Operator, format!("{error:#}"));
            error.downcast().map_or_else(internal, store_failed)
        };
        self.look(books).await.map_err(failed)
    }

    /// The entry that the settings and the hash make, checked as one of the config would be.
    fn checked(&self, settings: &mut Map<String, Value>, hash: &str, by: &Caller) -> Result<KeyConfig, Reject> {
        let key = entry(settings, hash).map_err(|error| invalid(format!("{error:#}")))?;
        bounds::check_new(by, &key)?;
        bounds::check_name(&key)?;
        bounds::check_end(self.end_for(by), &key)?;
        if has_ended(&key) {
            return Err(invalid("the key would let nobody in: its `expires` is past".into()).at("expires"));
        }
        check_tenant(key.tenant()).map_err(|error| invalid(error.to_string()).at("tenant"))?;
        let taken = self.lock();
        let whole = taken.whole();
        if let Some(project) = &key.project {
            let found = whole.project(key.tenant(), project);
            let (id, _) = found.map_err(|error| invalid(format!("{error:#}")).at("project"))?;
            settings.insert("project".into(), id.as_str().into());
        }
        let budget = key.budget.map(|budget| budget.to_budget(&format!("key `{}`", key.name))).transpose();
        bounds::check_names(by, settings, settings, &whole)?;
        let checked: anyhow::Result<()> = key.check(&whole).into_iter().collect();
        checked.and(budget.map(|_| ())).map_err(|error| invalid(format!("{error:#}")))?;
        if taken.is_of_config(&key.name) {
            let message = format!("the config has a key, an issuer or a certificate `{}`; take another name", key.name);
            return Err(Reject::new(RejectKind::Conflict, Fault::Client, message).at("name").code("key_exists"));
        }
        taken.check_administrated(&key)?;
        Ok(key)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Taken {
    /// The config with the projects and keys that are kept and may be used. A key that this program does not understand,
    /// whose project is no more, or whose name the config has, lets nobody in, and keeps nobody else out.
    fn whole(&self) -> Config {
        let mut all = self.config.clone();
        self.add_projects(&mut all);
        let may_count = |key: &&KeptKey| key.revoked_ms.is_none() && !self.is_of_config(&key.name);
        for key in self.kept.iter().filter(may_count) {
            match parsed(key) {
                Ok(entry) => match entry.project.as_deref().map(|project| all.project(entry.tenant(), project)) {
                    None | Some(Ok(_)) => all.keys.push(entry),
                    Some(Err(gone)) => tracing::debug!(key = key.name, "a kept key lets nobody in: {gone:#}"),
                },
                Err(error) => {
                    tracing::error!(key = key.name, "a kept key is not understood and lets nobody in: {error:#}");
                }
            }
        }
        all
    }
}

/// Looks for keys that other gateways made, for ever. The store's absence changes nothing: who was let in goes on.
pub(crate) async fn watch(desk: Arc<KeyDesk>, books: Arc<Books>) {
    let mut fails = false;
    loop {
        tokio::time::sleep(LOOK).await;
        let looked = desk.look(&books).await;
        match &looked {
            Err(error) if !fails => tracing::warn!("changes of keys and projects are not seen for now: {error:#}"),
            Ok(()) if fails => tracing::info!("changes of keys and projects are seen again"),
            _ => {}
        }
        fails = looked.is_err();
    }
}

fn invalid(message: String) -> Reject {
    Reject::new(RejectKind::Invalid, Fault::Client, message).code("invalid_value")
}

fn too_many(remedy: &str) -> Reject {
    let message = format!("the tenant has {MOST} valid keys, the most that it may; {remedy}");
    Reject::new(RejectKind::Conflict, Fault::Client, message).code("too_many_keys")
}

fn unknown(name: &str) -> Reject {
    let message = format!("there is no valid key `{name}` that was made here; a key of the config ends with its entry");
    Reject::new(RejectKind::NotFound, Fault::Client, message).code("key_not_found")
}
