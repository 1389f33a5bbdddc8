//! `tidegate check`: what would keep a server from starting, but for weights and for what is elsewhere: nobody is asked.
//! Variables that are not set, a driver that is missing and a folder that cannot be made are facts and no errors, since the
//! server may run elsewhere.

use super::{Plugins, backends, load_stages, model_configs, models, stages};
use crate::books;
use crate::callers;
use crate::config::{Config, ModelConfig, Overrides, Wrong, entry, variable};
use crate::outside::models::KnownModels;
use anyhow::Context;
use std::path::Path;
use std::sync::Arc;

/// Validates a config's file as a start would, and goes on with what can be looked at where something is wrong.
pub fn check_file(file: &Path, overrides: Overrides) -> anyhow::Result<Vec<String>> {
    let (config, wrong) = Config::look_at(file, overrides)?;
    look(&config, wrong).with_context(|| format!("in the config {}", file.display()))
}

/// Validates a config as a start would: reads the models' configs and loads the plugins. Gives one line for each thing
/// that was checked, or an error that has all that is wrong.
pub fn check(config: &Config) -> anyhow::Result<Vec<String>> {
    look(config, Wrong::default())
}

fn look(config: &Config, mut wrong: Wrong) -> anyhow::Result<Vec<String>> {
    wrong.settle();
    look_at_others(config, &mut wrong);
    let (cache, mut facts) = (config.cache_folder(), Vec::new());
    for (i, model) in model_configs(config).iter().enumerate() {
        facts.extend(wrong.look(&entry("models", i), &[], || models::check(config, model, &cache)));
    }
    look_at_stages(config, &mut facts, &mut wrong);
    wrong.none()?;
    facts.extend(config.plugins.kept_facts());
    facts.extend(backends::missing(&config.compute));
    facts.extend(config.store.as_ref().and_then(|store| unmakeable(&store.path)));
    facts.extend(unset(config));
    facts.extend(config.unbilled());
    facts.extend(deserted(config));
    Ok(facts)
}

/// What is neither a model nor a plugin.
fn look_at_others(config: &Config, wrong: &mut Wrong) {
    wrong.look("engine", &["models"], || models::check_memory(config));
    wrong.look("server.tls", &[], || crate::listen::read_tls(&config.server));
    if ["keys", "tenants"].iter().all(|place| wrong.is_sound(place)) {
        wrong.look("auth", &[], || callers::auth(config, &Arc::default(), None));
    }
    if let Some(events) = config.store.as_ref().and_then(|store| store.events.as_ref()) {
        wrong.look("store.events", &["egress"], || books::check_events(events, &config.egress));
    }
    if let Some(shared) = &config.shared {
        wrong.look("shared.url", &[], || tidegate_shared::check_url(&shared.url).context("in shared.url"));
        wrong.look("shared.ca", &[], || shared.authority().map(drop));
    }
}

fn look_at_stages(config: &Config, facts: &mut Vec<String>, wrong: &mut Wrong) {
    let names = model_configs(config).into_iter().map(|model| model.name).collect();
    // In memory, wherever a server keeps it: nobody asks the store.
    let start = || Plugins::start(config, Arc::new(KnownModels(names)), None, None);
    let Some(plugins) = wrong.look("plugins", &[], start) else { return };
    match load_stages(&plugins, config, &|_| {}, facts, wrong) {
        Ok((stages, _)) => stages::look_at_failed(&stages, wrong),
        Err(why) => wrong.add("pipeline", why),
    }
}

/// A line for a folder that cannot be made here, or not be written. Nothing is made to find out.
fn unmakeable(folder: &Path) -> Option<String> {
    let there = folder.ancestors().map(|part| if part == Path::new("") { Path::new(".") } else { part });
    let (part, is) = there.into_iter().find_map(|part| Some((part, std::fs::metadata(part).ok()?)))?;
    let why = match (is.is_dir(), is.permissions().readonly()) {
        (false, _) => "is no folder",
        (true, true) => "cannot be written",
        (true, false) => return None,
    };
    let (folder, part) = (folder.display(), part.display());
    Some(format!("store     {folder} of store.path cannot be made here, and a server would not start: {part} {why}"))
}

/// A line about tenants that nobody is of, as far as the config itself says that.
fn deserted(config: &Config) -> Option<String> {
    let also = if config.store.is_some() { " (beside keys of the store, which is not asked)" } else { "" };
    Some(format!("{}{also}", config.deserted()?))
}

/// A line for each variable that the config names and that is not set here. Plugins do not load without theirs.
fn unset(config: &Config) -> impl Iterator<Item = String> {
    let store = config.store.as_ref();
    let events = store.and_then(|store| store.events.as_ref());
    let named = [
        ("store.postgres_env", store.and_then(|store| store.postgres_env.as_ref())),
        ("store.events.secret_env", events.and_then(|events| events.secret_env.as_ref())),
        ("store.events.token_env", events.and_then(|events| events.token_env.as_ref())),
        ("store.events.kafka.password_env", events.and_then(|events| events.kafka.as_ref()?.password_env.as_ref())),
        ("shared.password_env", config.shared.as_ref().and_then(|shared| shared.password_env.as_ref())),
        ("auth.login.client_secret_env", config.auth.login.as_ref().and_then(|login| login.client_secret_env.as_ref())),
    ];
    let named = named.into_iter().filter_map(|(key, name)| Some((key.to_owned(), name?)));
    let of_model = |model: &ModelConfig| format!("models.api_key_env (model `{}`)", model.name);
    let models = config.models.iter().filter_map(move |model| Some((of_model(model), model.api_key_env.as_ref()?)));
    let unset = named.chain(models).filter(|(_, name)| variable(name).is_err());
    unset.map(|(key, name)| format!("variable  ${name} of {key} is not set here, and a server would not start without"))
}
