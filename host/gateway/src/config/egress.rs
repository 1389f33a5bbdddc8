//! `[egress]`: what holds wherever this server asks others.

use crate::artifact::registry::certificates;
use anyhow::Context;
use serde::Deserialize;
use std::path::{Path, PathBuf};
use tidegate_egress::CertificateDer;

/// `[egress]`
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default, deny_unknown_fields)]
pub struct EgressConfig {
    /// Who signs the certificates of those that are asked, beside the public authorities.
    pub ca: Option<PathBuf>,
    /// What was in that file when the config was read.
    #[serde(skip)]
    pub(crate) roots: Vec<CertificateDer<'static>>,
}

impl EgressConfig {
    pub(super) fn resolve_paths(&mut self, folder: &Path) {
        self.ca = self.ca.take().map(|file| folder.join(file));
    }

    /// Reads the file, at the start. What runs goes on with what it holds then, whatever becomes of it: under the same name
    /// a reload is not about it, and must not fail for it.
    pub(super) fn read(&mut self, running: Option<&Self>) -> anyhow::Result<()> {
        let Some(file) = &self.ca else { return Ok(()) };
        let found = certificates(file).context("egress.ca");
        let Some(running) = running.filter(|running| running.ca == self.ca) else {
            self.roots = found?;
            return Ok(());
        };
        match found {
            Ok(roots) if roots == running.roots => {}
            Ok(_) => tracing::warn!("egress.ca: {} has changed, which counts from the next start on", file.display()),
            Err(error) => tracing::warn!("{error:#}; what it held at the start goes on until the next one"),
        }
        self.roots.clone_from(&running.roots);
        Ok(())
    }
}
