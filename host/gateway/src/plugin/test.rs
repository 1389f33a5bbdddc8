//! `tidegate plugin test`: a component in a scripted world, case by case.

use super::fixture::{Case, Fixtures};
use super::guest_log::heard;
use super::{TestArgs, cases, project, workbench};
use anyhow::{Context, bail};
use std::ffi::OsStr;
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use tidegate_sandbox::Plugin;
use tokio::runtime::Runtime;

pub(super) fn run(args: &TestArgs, out: &mut dyn Write) -> anyhow::Result<()> {
    let (component, fixtures) = open(args)?;
    let failed = run_cases(&component, &fixtures, out)?;
    match failed {
        0 => Ok(()),
        failed => bail!("{failed} of {} cases failed", fixtures.case.len()),
    }
}

/// The component and the cases that the arguments name.
pub(super) fn open(args: &TestArgs) -> anyhow::Result<(Vec<u8>, Fixtures)> {
    let file = match &args.file {
        Some(file) => file.clone(),
        None => project::Project::open(&args.project)?.component(),
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
    let runtime = workbench::runtime()?;
    let (shared, log) = heard(|| workbench::load(component, fixtures, &fixtures.config));
    if shared.is_err() {
        write_log(&log, out)?;
    }
    let shared = shared?;
    let mut failed = 0;
    for case in &fixtures.case {
        let ((wrong, chunkings), log) = heard(|| run_case(&runtime, component, fixtures, &shared, case));
        let note = if chunkings > 1 { format!(" ({chunkings} chunkings)") } else { String::new() };
        writeln!(out, "{}  {}{note}", if wrong.is_empty() { "ok    " } else { "FAILED" }, case.name)?;
        if !wrong.is_empty() {
            failed += 1;
            wrong.iter().try_for_each(|line| writeln!(out, "        {line}"))?;
            write_log(&log, out)?;
        }
    }
    out.flush().context("the output is closed")?;
    Ok(failed)
}

/// What is wrong with the outcome of a case, and in how many chunkings it was tried.
fn run_case(
    runtime: &Runtime,
    component: &[u8],
    fixtures: &Fixtures,
    shared: &Arc<Plugin>,
    case: &Case,
) -> (Vec<String>, usize) {
    let plugin = match &case.config {
        None => Ok(shared.clone()),
        Some(config) => workbench::load(component, fixtures, config),
    };
    let outcome = match plugin {
        Ok(plugin) => runtime.block_on(cases::outcome(&plugin, &case.ask, fixtures.limits.holdback_bytes)),
        // A config that is refused is an outcome too.
        Err(error) if case.expect.contains_key("error") => Ok((serde_json::json!({"error": format!("{error:#}")}), 1)),
        Err(error) => Err(error.context("the plugin does not load")),
    };
    match outcome {
        Ok((outcome, chunkings)) => (cases::differences(&case.expect, &outcome), chunkings),
        Err(error) => (vec![format!("{error:#}")], 1),
    }
}

fn write_log(log: &[String], out: &mut dyn Write) -> std::io::Result<()> {
    log.iter().try_for_each(|line| writeln!(out, "        log: {line}"))
}
