//! Which cores a program may run on.

use anyhow::Context;
use std::process::{Command, Stdio};

/// Those that this program may run on, as `taskset` takes them.
pub(crate) fn allowed() -> anyhow::Result<String> {
    const NAME: &str = "Cpus_allowed_list:";
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix(NAME)).context(NAME)?;
    Ok(line.trim().to_owned())
}

/// Keeps all threads of a process on `cores`, and what they start.
pub(crate) fn keep_on(process: u32, cores: &str) -> anyhow::Result<()> {
    let mut taskset = Command::new("taskset");
    taskset.args(["--all-tasks", "--cpu-list", "--pid", cores, &process.to_string()]).stdout(Stdio::null());
    let status = taskset.status().context("cannot run `taskset`, of util-linux")?;
    anyhow::ensure!(status.success(), "`taskset` could not keep process {process} on {cores}: {status}");
    Ok(())
}
