//! What programs of their own measure for the table of plugins: the guard as native code, beside the sandboxed one
//! (`plugins/pii-guard/examples/native.rs`, compiled from the same sources with the same profile and asked about the same
//! text; the plugins are another workspace), and the boundary alone (`host/sandbox/examples/boundary.rs`, since only the
//! sandbox names wasmtime).

use anyhow::Context;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The guard's program.
pub(crate) struct Native(PathBuf);

impl Native {
    pub(crate) fn at(path: impl Into<PathBuf>) -> Self {
        Self(path.into())
    }

    /// Microseconds of CPU for a prompt.
    pub(crate) fn prompt_us(&self, text: &str) -> anyhow::Result<f64> {
        figure(&self.0, Some("prompt"), text)
    }

    /// Microseconds of CPU for an event of a stream.
    pub(crate) fn event_us(&self, text: &str) -> anyhow::Result<f64> {
        figure(&self.0, Some("event"), text)
    }
}

/// Nanoseconds of CPU for a call of an export that does nothing: as a function, and as a future.
pub(crate) fn no_op_ns(program: &Path) -> anyhow::Result<(f64, f64)> {
    let said = run(program, None, "")?;
    let mut figures = said.lines().map(str::parse);
    let (call, future) = (figures.next(), figures.next());
    let both = call.zip(future).with_context(|| format!("{} answered {said:?}", program.display()))?;
    Ok((both.0?, both.1?))
}

fn figure(program: &Path, argument: Option<&str>, text: &str) -> anyhow::Result<f64> {
    let said = run(program, argument, text)?;
    said.trim().parse().with_context(|| format!("{} answered {said:?}", program.display()))
}

fn run(program: &Path, argument: Option<&str>, text: &str) -> anyhow::Result<String> {
    let shown = program.display();
    let mut command = Command::new(program);
    let mut child = command
        .args(argument)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot run {shown}"))?;
    // Dropped at the end of the statement, which ends the text; who reads none may be gone already.
    let _ = child.stdin.take().context("a child without input")?.write_all(text.as_bytes());
    let output = child.wait_with_output()?;
    anyhow::ensure!(output.status.success(), "{shown} failed: {}", output.status);
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
