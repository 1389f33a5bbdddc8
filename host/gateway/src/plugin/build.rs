//! `tidegate plugin build`: finds the toolchain of the project's language, runs it, and checks what came out. A tool
//! that is missing is an error that names the command which installs it.

mod c;
mod js;
mod python;
mod rust;

use super::project::{Language, Project};
use super::workbench;
use crate::artifact::digest::Digest;
use anyhow::{Context, bail};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

pub(super) fn run(folder: &Path, out: &mut dyn Write) -> anyhow::Result<()> {
    let project = Project::open(folder)?;
    let component = build(&project)?;
    let bytes = workbench::component(&component)?;
    let anatomy = workbench::sandbox(Default::default())?.inspect(&bytes).context("the component is not a plugin")?;
    let stages: Vec<&str> = anatomy.stages.iter().map(|stage| stage.as_str()).collect();
    let (stages, size) = (stages.join(", "), bytes.len());
    writeln!(out, "{}: {stages}, {size} bytes, {}", component.display(), Digest::of(&bytes))?;
    Ok(())
}

/// Builds a project; answers where the component is.
pub fn build(project: &Project) -> anyhow::Result<PathBuf> {
    let component = project.component();
    let dist = component.parent().context("a file is in a folder")?;
    std::fs::create_dir_all(dist).with_context(|| format!("cannot make {}", dist.display()))?;
    match project.manifest.lang {
        Language::Rust => rust::build(project, &component),
        Language::C => c::build(project, &component),
        Language::Js => js::build(project, &component),
        Language::Python => python::build(project, &component),
    }?;
    Ok(component)
}

/// Lays out the contract and the project's own world in `target/wit`; answers the path from the project's folder.
fn wit(project: &Project) -> anyhow::Result<&'static str> {
    const WIT: &str = "target/wit";
    let folder = project.folder.join(WIT);
    std::fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    for (path, text) in super::new::contract() {
        std::fs::write(project.folder.join("target").join(path), text)?;
    }
    let world = project.folder.join("wit/project.wit");
    std::fs::copy(&world, folder.join("project.wit")).with_context(|| format!("cannot copy {}", world.display()))?;
    Ok(WIT)
}

/// The first of the programs that starts; else what installs it.
fn find(programs: &[PathBuf], remedy: &str) -> anyhow::Result<PathBuf> {
    let starts = |program: &&PathBuf| {
        let quiet = Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
        quiet.is_ok()
    };
    match programs.iter().find(starts) {
        Some(program) => Ok(program.clone()),
        None => {
            let name = programs.last().map(|program| program.display().to_string()).unwrap_or_default();
            bail!("`{name}` is not there; to install it:\n\n    {remedy}\n")
        }
    }
}

/// Runs a tool; its own words are the error.
fn run_tool(command: &mut Command) -> anyhow::Result<()> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.output().with_context(|| format!("cannot run {name}"))?;
    if !output.status.success() {
        let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        bail!("{name} failed ({}):\n{stdout}{stderr}", output.status);
    }
    Ok(())
}
