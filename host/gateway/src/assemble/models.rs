//! Models: folders for the own engine, and upstreams.

use super::backends::{Backends, Chosen};
use super::model_configs;
use super::tokens::{grammars_in, grammars_of};
use crate::bundled;
use crate::cli::WorkerArgs;
use crate::config::{BUNDLED, BackendConfig, ComputeConfig, Config, ModelConfig};
use anyhow::{Context, anyhow, bail};
use arc_swap::ArcSwap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tidegate_device::Backend;
use tidegate_engine::{Ahead, EngineHandle, ExecutorFactory, Isolation, ModelFacts, WorkerCommand, worker};
use tidegate_pipeline::{EngineModel, Makes, Model, ModelBackend, Models};
use tidegate_text::{AddSpecial, TextModel, TextOverrides};
use tidegate_types::clock::unix_s;
use tidegate_upstream::{ApiKey, Replicas, UpstreamConfig};

/// Loads all models of the config.
pub(super) fn load(config: &Config, cache: &Path, facts: &mut Vec<String>) -> anyhow::Result<Models> {
    let backends = Backends::open(&config.compute, cache)?;
    if !backends.has_device() {
        check_memory(config)?;
    }
    let mut models = Models::default();
    let entries = model_configs(config);
    // Those that are still to be loaded divide what a device has free.
    let mut sharers = entries.iter().filter(|entry| entry.path.is_some()).count();
    for entry in entries {
        let model = if entry.path.is_none() {
            upstream(config, &entry, facts)?
        } else {
            let model = own(config, &entry, (cache, sharers), &backends, facts)
                .with_context(|| format!("model `{}` cannot be loaded", entry.name))?;
            sharers -= 1;
            model
        };
        models.insert(model).map_err(|why| anyhow!(why))?;
    }
    Ok(models)
}

/// Refuses caches that the machine has no memory for: the allocation would end the program.
pub(super) fn check_memory(config: &Config) -> anyhow::Result<()> {
    let Ok(info) = std::fs::read_to_string("/proc/meminfo") else { return Ok(()) };
    let total = info.lines().find_map(|line| line.strip_prefix("MemTotal:")?.trim().strip_suffix(" kB")?.parse().ok());
    let Some(total_kib): Option<usize> = total else { return Ok(()) };
    let own = model_configs(config).iter().filter(|model| model.path.is_some()).count();
    let (each, total) = (config.engine.cache_mib(), total_kib >> 10);
    if own > 0 && each > total / own {
        bail!("engine.kv_cache_mib is {each} for each of {own} models, but this machine has {total} MiB of memory");
    }
    Ok(())
}

/// Reads what can be checked without loading weights into memory.
pub(super) fn check(config: &Config, entry: &ModelConfig, cache: &Path) -> anyhow::Result<String> {
    if entry.path.is_none() {
        replicas(config, entry, None)?;
        return Ok(format!("model     {}", located(entry)));
    }
    let folder = folder(entry, cache)?;
    let opened = || -> anyhow::Result<String> {
        let model = tidegate_model::Model::open(&folder)?;
        open_text(entry, &folder, &model)?;
        let (makes, what) = makes(&model)?;
        if !matches!(makes, Makes::Text) && config.pipeline()?.default.contains(&entry.name) {
            bail!("pipeline.default names it, and it has no answers{what}");
        }
        Ok(format!("model     {} ({}, {} tokens of context)", entry.name, model.architecture, model.max_positions()))
    };
    opened().with_context(|| format!("model `{}` cannot be loaded", entry.name))
}

fn folder(entry: &ModelConfig, cache: &Path) -> anyhow::Result<PathBuf> {
    match &entry.path {
        Some(path) if path == Path::new(BUNDLED) => bundled::starter_folder(cache),
        Some(path) => Ok(path.clone()),
        None => Err(anyhow!("model `{}` has no folder", entry.name)),
    }
}

fn own(
    config: &Config,
    entry: &ModelConfig,
    (cache, sharers): (&Path, usize),
    backends: &Backends,
    facts: &mut Vec<String>,
) -> anyhow::Result<Model> {
    let folder = folder(entry, cache)?;
    let opened = tidegate_model::Model::open(&folder)?;
    let text = Arc::new(open_text(entry, &folder, &opened)?);
    let stop_token_ids = stop_tokens(&opened.eos_token_ids, text.eos());
    let defaults = opened.sampling.clone();
    let (makes, what) = makes(&opened)?;
    facts.push(format!("model     {} ({}{what}, {})", entry.name, opened.architecture, folder.display()));
    let Chosen { backend, kind, fact } = backends.choose(&opened.program);
    facts.push(format!("backend   {fact}"));
    let model_facts = model_facts(entry, &opened, backend.as_ref());
    let wanted = model_facts.max_positions;
    let mut engine = config.engine.clone();
    engine.fit_cache(backend.as_ref(), &opened.program, sharers)?;
    let cache_mib = engine.cache_mib();
    facts.push(format!("cache     {cache_mib} MiB for keys and values"));
    if !matches!(makes, Makes::Text) && engine.ahead == Ahead::Always {
        facts.push("ahead     never: vectors are made step by step, whatever engine.ahead says".to_owned());
    }
    let fingerprint = hex(&opened.fingerprint.0[..8]);
    let grammars = matches!(makes, Makes::Text).then(|| Arc::new(grammars_of(&text, opened.program.dims.vocab)));
    let handle = match engine.isolation {
        Isolation::Thread => {
            EngineHandle::start_holding(engine, model_facts, grammars.clone(), factory(opened, &backend))?
        }
        Isolation::Process => {
            drop(opened);
            EngineHandle::start_process(engine, model_facts, worker_command(config, entry, &folder, kind)?)?
        }
    };
    let context_tokens = u32::try_from(handle.context())?;
    if handle.context() < wanted {
        facts.push(format!(
            "context   {context_tokens} tokens of {wanted}: engine.kv_cache_mib = {cache_mib} holds no more"
        ));
    }
    let engine = EngineModel { fingerprint, handle, text, grammars, stop_token_ids, defaults, makes };
    let backend = ModelBackend::Engine(Box::new(engine));
    let quota = ArcSwap::from_pointee(entry.limits.clone());
    let fallbacks = entry.fallbacks.clone();
    Ok(Model { name: entry.name.clone(), created: unix_s(), context_tokens, quota, fallbacks, backend })
}

/// The model's text side, whose prompts the model must be able to read: of a token that it has no row for a prompt would be
/// refused as if its caller had sent a wrong one. Rows without a token are common and in nobody's way, and so are published
/// folders with a control token too many, which callers cannot write: only a template may.
fn open_text(entry: &ModelConfig, folder: &Path, model: &tidegate_model::Model) -> anyhow::Result<TextModel> {
    let text = TextModel::open_with(folder, &entry.text_overrides())?;
    let rows = model.program.dims.vocab;
    let written = |id: &u32| text.token_text(*id).is_some() && !text.is_control(*id);
    let mut beyond = u32::try_from(rows)?..u32::try_from(text.vocab_size().max(rows))?;
    let mut stray =
        beyond.find(written).or_else(|| beyond_rows(&text.encode_literal("a", AddSpecial::Yes).ok()?, rows));
    let answers = matches!(makes(model)?.0, Makes::Text);
    check_overrides(entry, answers, &text)?;
    if answers {
        let prompts = text.plainest_prompts()?;
        stray = stray.or_else(|| prompts.iter().find_map(|prompt| beyond_rows(prompt, rows)));
    }
    let Some(stray) = stray else { return Ok(text) };
    bail!(
        "{} has ids for {} tokens, but the model has rows for {rows} (`vocab_size` of config.json), so none for {:?}; download \
         the model's folder again, or take out of tokenizer.json or the chat template what was added to it",
        folder.join("tokenizer.json").display(),
        text.vocab_size(),
        text.token_text(stray).unwrap_or_default(),
    )
}

/// Refuses what would do nothing.
fn check_overrides(entry: &ModelConfig, answers: bool, text: &TextModel) -> anyhow::Result<()> {
    let overridden = [("tool_format", entry.tool_format.is_some()), ("chat_template", entry.chat_template.is_some())];
    let Some((key, _)) = overridden.into_iter().find(|(_, is_given)| *is_given) else { return Ok(()) };
    if !answers {
        bail!("`{key}` is for models that answer chats, which this one does not; leave it out");
    }
    if !text.has_template() {
        bail!("`tool_format` goes with a chat template, and the folder has none; name one with `chat_template`");
    }
    Ok(())
}

/// The first token of a prompt that a model of so many rows cannot read.
fn beyond_rows(prompt: &[u32], rows: usize) -> Option<u32> {
    prompt.iter().copied().find(|id| *id as usize >= rows)
}

/// What the model is for, and that in words.
fn makes(opened: &tidegate_model::Model) -> anyhow::Result<(Makes, String)> {
    let numbers = u32::try_from(opened.program.dims.hidden)?;
    Ok(match (&opened.classifier, opened.program.pooling()) {
        (Some(classifier), _) => {
            (Makes::Labels(Arc::clone(classifier)), format!(", {} labels", classifier.labels().len()))
        }
        (None, Some(_)) => (Makes::Vectors { dimensions: numbers }, format!(", vectors of {numbers} numbers")),
        (None, None) => (Makes::Text, String::new()),
    })
}

fn model_facts(entry: &ModelConfig, opened: &tidegate_model::Model, backend: &dyn Backend) -> ModelFacts {
    let mut facts = ModelFacts::of(&entry.name, opened.fingerprint.0, &opened.program, backend);
    if let Some(limit) = entry.context_tokens {
        facts.max_positions = facts.max_positions.min(limit as usize);
    }
    facts
}

/// Loads the weights, again after a lost device.
fn factory(opened: tidegate_model::Model, backend: &Arc<dyn Backend>) -> ExecutorFactory {
    let (program, weights, device) = (opened.program, opened.weights, Arc::clone(backend));
    Box::new(move |limits| device.load(Arc::clone(&program), weights.as_ref(), limits))
}

/// This program as it runs. What lies in its place by now may be another build, which a worker must not be: they speak without
/// versions.
fn this_program() -> std::io::Result<PathBuf> {
    let running = Path::new("/proc/self/exe");
    if cfg!(target_os = "linux") && running.exists() { Ok(running.into()) } else { std::env::current_exe() }
}

/// This program again, told which model to load.
fn worker_command(
    config: &Config,
    entry: &ModelConfig,
    folder: &Path,
    backend: BackendConfig,
) -> anyhow::Result<WorkerCommand> {
    let program = match &config.worker_program {
        Some(program) => program.clone(),
        None => this_program().context("this program does not find itself, to start a worker process")?,
    };
    let args = WorkerArgs {
        name: entry.name.clone(),
        folder: folder.to_owned(),
        backend,
        threads: config.compute.threads,
        device: config.compute.device,
        deterministic: config.compute.deterministic,
        cache: config.cache_folder(),
        context_tokens: entry.context_tokens,
        chat_template: entry.chat_template.clone(),
    };
    Ok(WorkerCommand { program, args: args.to_args() })
}

/// The child's side of `isolation = "process"`.
pub fn run_worker(args: WorkerArgs) -> anyhow::Result<()> {
    // The system names a process by the path that it was started by, which says nothing here.
    if cfg!(target_os = "linux") {
        let _ = std::fs::write("/proc/self/comm", "tidegate");
    }
    let compute = ComputeConfig {
        backend: args.backend,
        threads: args.threads,
        device: args.device,
        deterministic: args.deterministic,
    };
    let backends = Backends::open(&compute, &args.cache)?;
    let opened = tidegate_model::Model::open(&args.folder)?;
    let backend = backends.choose(&opened.program).backend;
    let (folder, chat_template) = (args.folder.clone(), args.chat_template);
    let overrides = TextOverrides { chat_template, ..TextOverrides::default() };
    let entry = ModelConfig { context_tokens: args.context_tokens, ..ModelConfig::folder(args.name, args.folder) };
    let facts = model_facts(&entry, &opened, backend.as_ref());
    let grammars = Some(Arc::new(grammars_in(folder, overrides, opened.program.dims.vocab)));
    Ok(worker::run(std::io::stdin(), std::io::stdout(), &facts, grammars, factory(opened, &backend))?)
}

/// The end tokens that the model's configs name, and the tokenizer's own: of a model that was trained on to chat, often
/// the tokenizer alone names the one that ends a turn.
fn stop_tokens(named: &[u32], tokenizers: Option<u32>) -> Vec<u32> {
    let own = tokenizers.filter(|id| !named.contains(id));
    named.iter().copied().chain(own).collect()
}

fn upstream(config: &Config, entry: &ModelConfig, facts: &mut Vec<String>) -> anyhow::Result<Model> {
    let replicas = replicas(config, entry, upstream_key(entry)?)?;
    facts.push(format!("model     {}", located(entry)));
    let context_tokens = entry.context_tokens.unwrap_or(0);
    let (quota, backend) = (ArcSwap::from_pointee(entry.limits.clone()), ModelBackend::Upstream(replicas));
    let fallbacks = entry.fallbacks.clone();
    Ok(Model { name: entry.name.clone(), created: unix_s(), context_tokens, quota, fallbacks, backend })
}

/// The servers of a model, which are asked nothing yet.
fn replicas(config: &Config, entry: &ModelConfig, key: Option<ApiKey>) -> anyhow::Result<Replicas> {
    let remote_name = entry.upstream_model.as_ref().unwrap_or(&entry.name);
    let urls = entry.urls();
    let server = |url: &&str| {
        let name = if urls.len() > 1 { format!("{} at {url}", entry.name) } else { entry.name.clone() };
        let options = entry.request_options();
        let mut server = UpstreamConfig::new(name, *url, remote_name);
        server.connector.extra_roots.clone_from(&config.egress.roots);
        UpstreamConfig { api_key: key.clone(), options, ..server }
    };
    let servers = urls.iter().map(server).collect();
    let retry = entry.retry.clone().unwrap_or_default().to_retry();
    let breaker = entry.breaker.clone().unwrap_or_default().to_breaker();
    Replicas::new(&entry.name, servers, retry, &breaker).with_context(|| format!("model `{}`", entry.name))
}

/// A model's name, and where it is.
fn located(entry: &ModelConfig) -> String {
    format!("{} at {}", entry.name, entry.urls().join(", "))
}

fn upstream_key(entry: &ModelConfig) -> anyhow::Result<Option<ApiKey>> {
    let Some(variable) = &entry.api_key_env else { return Ok(None) };
    let key = crate::config::variable(variable).with_context(|| {
        format!("model `{}` takes its upstream's key from ${variable}, which is not set", entry.name)
    })?;
    Ok(Some(ApiKey::new(key)))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tokenizers_end_token_ends_an_answer_beside_those_of_the_configs() {
        assert_eq!(stop_tokens(&[2], Some(7)), [2, 7]);
        assert_eq!(stop_tokens(&[2, 7], Some(7)), [2, 7]);
        assert_eq!(stop_tokens(&[], Some(7)), [7]);
        assert_eq!(stop_tokens(&[2], None), [2]);
    }
}
