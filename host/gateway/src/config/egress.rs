//! `[egress]`: what holds wherever this server asks others.

use super::at_start;
use crate::artifact::registry::certificates;
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

    /// Reads the file.
    pub(super) fn read(&mut self, running: Option<&Self>) -> anyhow::Result<()> {
        let Some(file) = &self.ca else { return Ok(()) };
        let held = running.filter(|running| running.ca == self.ca).map(|running| &running.roots);
        self.roots = at_start::read("egress.ca", file, held, certificates)?;
        Ok(())
    }
}
