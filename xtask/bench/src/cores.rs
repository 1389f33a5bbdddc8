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

/// The first two of them; none where there are fewer.
pub(crate) fn two_of(allowed: &str) -> Option<[String; 2]> {
    let mut cores = each_of(allowed);
    Some([cores.next()?.to_string(), cores.next()?.to_string()])
}

/// Each core of such a list.
pub(crate) fn each_of(allowed: &str) -> impl Iterator<Item = u32> {
    let ends = |range: &str| -> Option<(u32, u32)> {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        Some((first.parse().ok()?, last.parse().ok()?))
    };
    allowed.split(',').filter_map(ends).flat_map(|(first, last)| first..=last)
}

/// Keeps all threads of a process on `cores`, and what they start.
pub(crate) fn keep_on(process: u32, cores: &str) -> anyhow::Result<()> {
    let mut taskset = Command::new("taskset");
    taskset.args(["--all-tasks", "--cpu-list", "--pid", cores, &process.to_string()]).stdout(Stdio::null());
    let status = taskset.status().context("cannot run `taskset`, of util-linux")?;
    anyhow::ensure!(status.success(), "`taskset` could not keep process {process} on {cores}: {status}");
    Ok(())
}

/// What `start` starts, on `cores`, as it would be on a machine that has no others; this program goes back to its `own`.
pub(crate) fn started_on<T>(cores: &str, own: &str, start: impl FnOnce() -> anyhow::Result<T>) -> anyhow::Result<T> {
    keep_on(std::process::id(), cores)?;
    let started = start();
    keep_on(std::process::id(), own)?;
    started
}

#[cfg(test)]
mod tests {
    use super::two_of;

    #[test]
    fn two_cores_are_taken_of_any_list() {
        let two = |a: &str, b: &str| Some([a.to_owned(), b.to_owned()]);
        assert_eq!([two_of("0-1"), two_of("3,5-7"), two_of("4-9")], [two("0", "1"), two("3", "5"), two("4", "5")]);
        assert_eq!([two_of("2"), two_of("")], [None, None]);
    }
}
