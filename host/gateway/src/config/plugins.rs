//! `[plugins]`: whose plugins are taken.

use crate::artifact::key::PublicKey;
use serde::Deserialize;

/// `[plugins]`
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default, deny_unknown_fields)]
pub struct PluginsConfig {
    /// With keys here, every plugin that the program does not carry must be signed by one of them.
    pub trusted_keys: Vec<PublicKey>,
}
