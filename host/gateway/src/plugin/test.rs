//! `tidegate plugin test`: a component in a scripted world, case by case.

use super::fixture::Fixtures;
use super::{TestArgs, cases, project, workbench};
use anyhow::{Context, bail};
use std::io::Write;
use std::path::PathBuf;

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
    Ok((workbench::component(&file)?, Fixtures::load(&cases)?))
}

/// Writes a line for each case; answers how many failed.
pub fn run_cases(component: &[u8], fixtures: &Fixtures, out: &mut dyn Write) -> anyhow::Result<usize> {
    let runtime = workbench::runtime()?;
    let shared = workbench::load(component, fixtures, &fixtures.config)?;
    let mut failed = 0;
    for case in &fixtures.case {
        let plugin = match &case.config {
            None => Ok(shared.clone()),
            Some(config) => workbench::load(component, fixtures, config),
        };
        // A config that is refused is an outcome too.
        let outcome = match plugin {
            Ok(plugin) => runtime.block_on(cases::outcome(&plugin, &case.ask)),
            Err(error) if case.expect.contains_key("error") => {
                Ok((serde_json::json!({"error": format!("{error:#}")}), 1))
            }
            Err(error) => Err(error.context("the plugin does not load")),
        };
        let wrong = match &outcome {
            Ok((outcome, _)) => cases::differences(&case.expect, outcome),
            Err(error) => vec![format!("{error:#}")],
        };
        let chunkings = outcome.as_ref().map_or(1, |(_, chunkings)| *chunkings);
        let note = if chunkings > 1 { format!(" ({chunkings} chunkings)") } else { String::new() };
        writeln!(out, "{}  {}{note}", if wrong.is_empty() { "ok    " } else { "FAILED" }, case.name)?;
        for line in &wrong {
            writeln!(out, "        {line}")?;
        }
        failed += usize::from(!wrong.is_empty());
    }
    out.flush().context("the output is closed")?;
    Ok(failed)
}
