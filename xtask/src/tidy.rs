//! The rules of the house that a machine can keep. Few, each with a reason in ARCHITECTURE.md: a rule
//! that nobody would miss does not belong here.
//!
//! A violation is one line: path, what is wrong, and the remedy. Read next: [`edges`], the table of crates.

mod contract;
mod edges;
mod files;
mod invariants;
mod sources;

use crate::plugins;
use anyhow::Result;
use std::path::Path;

/// What was found.
#[derive(Debug, Default)]
pub struct Report {
    /// Broken rules: the chore fails.
    pub violations: Vec<String>,
    /// Things to look at.
    pub warnings: Vec<String>,
}

/// Checks everything.
pub fn check(root: &Path) -> Result<Report> {
    let mut report = Report::default();
    let found = &mut report.violations;
    found.extend(edges::check(root)?);
    found.extend(sources::check(root)?);
    found.extend(files::examples(root)?);
    found.extend(files::contract(root)?);
    found.extend(files::sizes(root)?);
    found.extend(contract::check(root)?);
    found.extend(invariants::check(root)?);
    found.extend(plugins::check(root)?);
    report.warnings = sources::long_files(root)?;
    Ok(report)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The test that keeps the house tidy: wrong edges, stale components and the rest fail `cargo test`.
    #[test]
    fn the_repository_keeps_its_rules() {
        let report = check(&crate::root()).unwrap();
        assert!(report.violations.is_empty(), "\n{}\n", report.violations.join("\n"));
    }
}
