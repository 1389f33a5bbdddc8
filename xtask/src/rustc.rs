//! What a compiler says of itself.

use std::path::{Path, PathBuf};
use std::process::Command;

/// All of `rustc -vV`, of which [`after`] has a line.
pub fn about(rustc: &Path) -> Option<String> {
    said(Command::new(rustc).arg("-vV"))
}

/// Where it keeps its libraries and sources.
pub fn sysroot(rustc: &Path) -> Option<PathBuf> {
    let text = said(Command::new(rustc).args(["--print", "sysroot"]))?;
    (!text.trim().is_empty()).then(|| PathBuf::from(text.trim()))
}

/// The programs that came with it.
pub fn tools(sysroot: &Path, host: &str) -> PathBuf {
    sysroot.join("lib/rustlib").join(host).join("bin")
}

/// The rest of the line that begins with `name`.
pub fn after<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| line.strip_prefix(name))
}

/// What a program wrote, if it ended well.
pub fn said(command: &mut Command) -> Option<String> {
    let output = command.output().ok()?;
    output.status.success().then(|| String::from_utf8(output.stdout).ok())?
}
