//! `[plugins]`: whose plugins are taken, and what all of them may use together.

use super::{LimitsConfig, PipelineConfig, StageConfig};
use crate::artifact::key::PublicKey;
use anyhow::{bail, ensure};
use serde::Deserialize;
use tidegate_sandbox::SandboxConfig;

/// A WebAssembly memory has no more.
const MAX_INSTANCE_MIB: usize = 4096;
const MAX_INSTANCES: u32 = 16_384;
/// Address space that instances may reserve. Processors have 128 TiB, of which other things need some.
const MAX_RESERVED_MIB: usize = 64 << 20;

/// `[plugins]`
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(default, deny_unknown_fields)]
pub struct PluginsConfig {
    /// With keys here, every plugin that the program does not carry must be signed by one of them.
    pub trusted_keys: Vec<PublicKey>,
    /// Live instances of all plugins and tenants; past it only for tenants below their share of it.
    pub instances: u32,
    /// The same, beside those, of plugins that wait for others (`http`, `models`).
    pub waiting_instances: u32,
    /// Memory of all instances together; past it only for tenants below their share of it.
    pub memory_mib: usize,
    /// The most that the limits of a stage may give one instance.
    pub instance_memory_mib: usize,
}

impl Default for PluginsConfig {
    fn default() -> Self {
        let sandbox = SandboxConfig::default();
        Self {
            trusted_keys: Vec::new(),
            instances: sandbox.total_instances,
            waiting_instances: sandbox.total_waiting_instances,
            memory_mib: sandbox.total_memory_bytes >> 20,
            instance_memory_mib: sandbox.max_memory_bytes >> 20,
        }
    }
}

impl PluginsConfig {
    pub(super) fn check(&self) -> anyhow::Result<()> {
        for (key, value) in [("instances", self.instances), ("waiting_instances", self.waiting_instances)] {
            ensure!((1..=MAX_INSTANCES).contains(&value), "plugins.{key} is {value}; it may be 1 to {MAX_INSTANCES}");
        }
        let (own, all) = (self.instance_memory_mib, self.memory_mib);
        ensure!(
            (1..=MAX_INSTANCE_MIB).contains(&own),
            "plugins.instance_memory_mib is {own}; it may be 1 to {MAX_INSTANCE_MIB}"
        );
        ensure!(
            all >= own,
            "plugins.memory_mib is {all}, less than one instance may have (instance_memory_mib = {own})"
        );
        ensure!(all <= usize::MAX >> 21, "plugins.memory_mib is {all}, which no machine has");
        let reserved = self.sandbox(SandboxConfig::default()).reserved_bytes() >> 20;
        if reserved > MAX_RESERVED_MIB {
            bail!(
                "plugins.instances, waiting_instances and instance_memory_mib together reserve {reserved} MiB of address \
                 space, and at most {MAX_RESERVED_MIB} are there; lower one of them"
            );
        }
        Ok(())
    }

    /// Refuses a stage that asks for more than there is for one instance.
    pub(super) fn check_stage(&self, stage: &StageConfig) -> anyhow::Result<()> {
        let (most, name) = (self.instance_memory_mib, &stage.plugin);
        match stage.limits.memory_mib {
            Some(asked) if asked > most => {
                bail!(
                    "stage `{name}`: limits.memory_mib is {asked}, and plugins.instance_memory_mib allows {most}; raise it"
                )
            }
            Some(0) => bail!("stage `{name}`: limits.memory_mib is 0; no plugin runs in that"),
            _ => Ok(()),
        }
    }

    /// Gives every stage that says nothing of its memory the default, or what one instance may have where that is less.
    pub(crate) fn fit(&self, pipeline: &mut PipelineConfig) {
        let default = LimitsConfig::default().to_limits().memory_bytes >> 20;
        for stage in &mut pipeline.stage {
            stage.limits.memory_mib.get_or_insert(default.min(self.instance_memory_mib));
        }
    }

    /// The sandbox within these bounds.
    pub(crate) fn sandbox(&self, config: SandboxConfig) -> SandboxConfig {
        SandboxConfig {
            max_memory_bytes: self.instance_memory_mib << 20,
            total_memory_bytes: self.memory_mib << 20,
            total_instances: self.instances,
            total_waiting_instances: self.waiting_instances,
            ..config
        }
    }

    /// Whether both have the same bounds, which hold from the start on.
    pub(crate) fn is_as_large_as(&self, other: &Self) -> bool {
        let without_keys = |config: &Self| Self { trusted_keys: Vec::new(), ..config.clone() };
        without_keys(self) == without_keys(other)
    }
}

#[cfg(test)]
mod tests {
    use super::super::Config;

    #[test]
    fn bounds_that_cannot_be_are_refused_by_name_with_what_they_may_be() {
        let stage = |mib: usize| format!("[[pipeline.stage]]\nplugin = \"x\"\nlimits = {{ memory_mib = {mib} }}\n");
        for (text, expected) in [
            ("[plugins]\ninstances = 0", "plugins.instances is 0; it may be 1 to 16384"),
            ("[plugins]\nwaiting_instances = 20000", "plugins.waiting_instances is 20000; it may be"),
            ("[plugins]\ninstance_memory_mib = 0", "plugins.instance_memory_mib is 0; it may be 1 to 4096"),
            ("[plugins]\ninstance_memory_mib = 5000", "it may be 1 to 4096"),
            ("[plugins]\nmemory_mib = 63", "less than one instance may have (instance_memory_mib = 64)"),
            ("[plugins]\nmemory_mib = 9223372036854775807", "which no machine has"),
            (
                "[plugins]\ninstances = 16384\nmemory_mib = 4096\ninstance_memory_mib = 4096",
                "MiB of address space, and at most 67108864 are there",
            ),
            (&stage(65), "stage `x`: limits.memory_mib is 65, and plugins.instance_memory_mib allows 64; raise it"),
            (&stage(0), "limits.memory_mib is 0"),
        ] {
            let why = format!("{:#}", Config::parse(text).unwrap_err());
            assert!(why.contains(expected), "{text}: {why}");
        }
        Config::parse(&format!("[plugins]\ninstance_memory_mib = 65\n{}", stage(65))).unwrap();
    }
}
