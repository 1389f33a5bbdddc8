//! `tidegate plugin test`: a component in a scripted world, case by case.

use super::counted::Counted;
use super::fixture::{Ask, Case, Fixtures};
use super::guest_log::heard;
use super::workbench::World;
use super::{TestArgs, cases, project, workbench};
use crate::assemble::HOLDBACK_BYTES;
use anyhow::{Context, bail};
use serde_json::{Value, json};
use std::ffi::OsStr;
use std::io::Write;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;
use tidegate_sandbox::{LoadCause, LoadError};
use tokio::runtime::Runtime;

pub(super) fn run(args: &TestArgs, out: &mut dyn Write) -> anyhow::Result<()> {
    let (component, fixtures) = open(args, out)?;
    let failed = run_cases(&component, &fixtures, out)?;
    match failed {
        0 => Ok(()),
        failed => bail!("{failed} of {} cases failed", fixtures.case.len()),
    }
}

/// The component and the cases that the arguments name.
pub(super) fn open(args: &TestArgs, out: &mut dyn Write) -> anyhow::Result<(Vec<u8>, Fixtures)> {
    let file = match &args.file {
        Some(file) => file.clone(),
        None => project::Project::open(&args.project, project::BY_OPTION)?.built(out)?,
    };
    let cases: PathBuf = args.cases.clone().unwrap_or_else(|| args.project.join("tests.toml"));
    // A component has its project's name.
    let name = file.file_stem().and_then(OsStr::to_str).filter(|name| project::check_name(name).is_ok());
    let plugin = name.map(str::to_owned);
    Ok((workbench::component(&file)?, Fixtures { plugin, ..Fixtures::load(&cases)? }))
}

/// Writes a line for each case, and below one that failed why, with what the plugin wrote to the log meanwhile; answers how
/// many failed.
pub fn run_cases(component: &[u8], fixtures: &Fixtures, out: &mut dyn Write) -> anyhow::Result<usize> {
    let counted = Counted::default();
    metrics::with_local_recorder(&counted, || run_counted(component, fixtures, &counted, out))
}

/// The same, where what plugins count is counted.
fn run_counted(component: &[u8], fixtures: &Fixtures, counted: &Counted, out: &mut dyn Write) -> anyhow::Result<usize> {
    let runtime = workbench::runtime()?;
    let (shared, log) = heard(|| shared(component, fixtures).transpose());
    if shared.is_err() {
        write_log(&log, out)?;
    }
    let shared = shared?;
    let refused_log = if matches!(shared, Some(Err(_))) { log } else { Vec::new() };
    let trial = Trial { runtime, component, fixtures, shared, counted };
    let mut failed = 0;
    for case in &fixtures.case {
        let (Ran { wrong, chunkings, remarks }, log) = heard(|| trial.run(case));
        let note = if chunkings > 1 { format!(" ({chunkings} chunkings)") } else { String::new() };
        writeln!(out, "{}  {}{note}", if wrong.is_empty() { "ok    " } else { "FAILED" }, case.name)?;
        remarks.iter().try_for_each(|line| writeln!(out, "        {line}"))?;
        if !wrong.is_empty() {
            failed += 1;
            wrong.iter().try_for_each(|line| writeln!(out, "        {line}"))?;
            if case.config.is_none() {
                write_log(&refused_log, out)?;
            }
            write_log(&log, out)?;
        }
    }
    out.flush().context("the output is closed")?;
    Ok(failed)
}

/// A plugin in its world, or why it refuses its config, which a case may be about.
type Loaded = Result<Rc<World>, LoadError>;

/// Fails where anything but the config is at fault: nothing that is asked of the plugin then would say anything of it.
fn loaded(component: &[u8], fixtures: &Fixtures, config: &toml::Table) -> anyhow::Result<Loaded> {
    let error = match workbench::load(component, fixtures, config) {
        Ok(world) => return Ok(Ok(Rc::new(world))),
        Err(error) => error,
    };
    match error.downcast_ref::<LoadError>() {
        Some(known) if matches!(known.cause, LoadCause::Config { .. } | LoadCause::Configure(_)) => {
            Ok(Err(known.clone()))
        }
        _ => Err(error),
    }
}

/// The world of cases without a config of their own, where there are some.
fn shared(component: &[u8], fixtures: &Fixtures) -> Option<anyhow::Result<Loaded>> {
    let is_asked = fixtures.case.iter().any(|case| case.config.is_none());
    is_asked.then(|| loaded(component, fixtures, &fixtures.config))
}

/// What came of a case.
struct Ran {
    /// What is wrong with the outcome.
    wrong: Vec<String>,
    /// In how many chunkings it was tried.
    chunkings: usize,
    /// What is no fault, and goes otherwise in a server.
    remarks: Vec<String>,
}

impl Ran {
    /// Of what there is no call of which more could be said.
    fn uncalled(wrong: Vec<String>) -> Self {
        Self { wrong, chunkings: 1, remarks: Vec::new() }
    }

    /// A config that is refused is an outcome too, where the case expects one. What is said beside the fault is for the author,
    /// and nothing that a case could mean: the plugin's name, the key that was meant.
    fn refused(case: &Case, refused: &LoadError) -> Self {
        let whole = || format!("the plugin does not load: {refused}");
        if !case.expect.contains_key("error") {
            return Self::uncalled(vec![whole()]);
        }
        let outcome = json!({"error": refused.cause.fault()});
        let mut wrong = cases::differences(&case.expect, &outcome, &refused.plugin);
        if !wrong.is_empty() {
            wrong.push(whole());
        }
        Self::uncalled(wrong)
    }
}

/// What cases are run with.
struct Trial<'a> {
    runtime: Runtime,
    component: &'a [u8],
    fixtures: &'a Fixtures,
    /// For cases without a config of their own.
    shared: Option<Loaded>,
    counted: &'a Counted,
}

impl Trial<'_> {
    fn run(&self, case: &Case) -> Ran {
        let loaded = match (&case.config, &self.shared) {
            (None, Some(shared)) => Ok(shared.clone()),
            (config, _) => loaded(self.component, self.fixtures, config.as_ref().unwrap_or(&self.fixtures.config)),
        };
        match loaded {
            Ok(Ok(world)) => self.ask(&world, case),
            Ok(Err(refused)) => Ran::refused(case, &refused),
            Err(error) => Ran::uncalled(vec![format!("the plugin does not load: {error:#}")]),
        }
    }

    fn ask(&self, world: &World, case: &Case) -> Ran {
        let plugin = &world.plugin;
        let (asked, exported) = (case.ask.kind(), plugin.exported_stages());
        if !exported.contains(&asked) {
            let exported: Vec<&str> = exported.iter().map(|stage| stage.as_str()).collect();
            let (asked, exported) = (asked.as_str(), exported.join(", "));
            return Ran::uncalled(vec![format!("it asks a {asked}, which the plugin is not: it exports {exported}")]);
        }
        plugin.pass_time(Duration::from_millis(case.advance_ms));
        let outcome = self.outcome(world, case);
        let remarks = workbench::remarks(plugin, asked);
        match outcome {
            Ok((outcome, chunkings)) => {
                let mut wrong = cases::differences(&case.expect, &outcome, plugin.name());
                wrong.extend(cases::not_offered(&case.ask, &case.expect, &outcome));
                wrong.extend(cases::left_out(&case.expect, &outcome));
                Ran { wrong, chunkings, remarks }
            }
            Err(error) => Ran { remarks, ..Ran::uncalled(vec![format!("{error:#}")]) },
        }
    }

    /// The outcome of a call, with what the plugin counted in it; and how many chunkings there were of a stream, of which each
    /// is counted, so that no sum says something.
    fn outcome(&self, world: &World, case: &Case) -> anyhow::Result<(Value, usize)> {
        let holdback_bytes = self.fixtures.limits.holdback_bytes.unwrap_or(HOLDBACK_BYTES);
        // What it counted when it was loaded is no call's.
        drop(self.counted.take());
        let (mut outcome, chunkings) = self.runtime.block_on(cases::outcome(world, &case.ask, holdback_bytes))?;
        if !matches!(case.ask, Ask::Stream(_)) {
            outcome["counted"] = json!(self.counted.take());
        }
        self.runtime.block_on(cases::hold_glance(world, &case.ask, &outcome))?;
        Ok((outcome, chunkings))
    }
}

fn write_log(log: &[String], out: &mut dyn Write) -> std::io::Result<()> {
    log.iter().try_for_each(|line| writeln!(out, "        log: {line}"))
}
