//! Python on CPython. The component imports nothing but the contract: WASI is stubbed with traps. Python's own `random`
//! then repeats itself in each instance; the contract's `random` does not.

use super::{Project, find, run_tool, shell_word, wit};
use std::path::Path;
use std::process::Command;

/// The tool that components were last proven with.
const TOOL: &str = "componentize-py==0.25.1";

pub(super) fn build(project: &Project, component: &Path) -> anyhow::Result<()> {
    let venv = project.folder.join(".venv");
    let remedy =
        format!("python3 -m venv {} && {} install {TOOL}", shell_word(&venv), shell_word(&venv.join("bin/pip")));
    let tool = find(&[venv.join("bin/componentize-py"), "componentize-py".into()], &remedy)?;
    let mut command = Command::new(tool);
    command.current_dir(&project.folder).args(["--wit-path", wit(project)?, "--world", "project"]);
    command.args(["componentize", "plugin"]);
    command.args(["--stub-wasi", "--output"]).arg(component);
    run_tool(&mut command)
}
