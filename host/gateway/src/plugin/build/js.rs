//! JavaScript on QuickJS. The component imports nothing but the contract: WASI is stubbed with traps, and the
//! synchronous runtime is taken, since the host runs no component-model async.

use super::{Project, find, run_tool, wit};
use std::path::Path;
use std::process::Command;

/// The tool that components were last proven with.
const REMEDY: &str = "npm install componentize-qjs@0.4.5";

pub(super) fn build(project: &Project, component: &Path) -> anyhow::Result<()> {
    let local = project.folder.join("node_modules/.bin/componentize-qjs");
    let tool = find(&[local, "componentize-qjs".into()], REMEDY)?;
    let mut command = Command::new(tool);
    command.current_dir(&project.folder).args(["--wit", wit(project)?, "--world", "project", "--js", "plugin.js"]);
    command.args(["--sync", "--opt-size", "--minify", "--stub-wasi", "--output"]).arg(component);
    run_tool(&mut command)
}
