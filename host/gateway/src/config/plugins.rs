//! `[plugins]`: whose plugins are taken, and what all of them may use together.

use super::{LimitsConfig, PipelineConfig, StageConfig};
use crate::artifact::key::PublicKey;
use crate::outside::InStore;
use anyhow::{bail, ensure};
use serde::Deserialize;
use std::collections::BTreeSet;
use std::sync::Arc;
use tidegate_sandbox::SandboxConfig;
use tidegate_sandbox::capability::{KvStore, MemoryKv, MemoryVectors, VectorStore};
use tidegate_store::Db;

/// A WebAssembly memory has no more.
const MAX_INSTANCE_MIB: usize = 4096;
const MAX_INSTANCES: u32 = 16_384;
/// Of which the double can be counted in bytes.
const MAX_MIB: usize = usize::MAX >> 21;
/// Address space that instances may reserve. Processors have 128 TiB, of which other things need some.
const MAX_RESERVED_MIB: usize = 64 << 20;

/// `[plugins]`
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(default, deny_unknown_fields)]
pub struct PluginsConfig {
    /// With keys here, every plugin that the program does not carry must be signed by one of them.
    pub trusted_keys: Vec<PublicKey>,
    /// Whether a lock must be there where stages name plugins that the program does not carry.
    pub locked: bool,
    /// Live instances of all plugins and tenants; past it only for tenants below their share of it.
    pub instances: u32,
    /// The same, beside those, of plugins that wait for others (`http`, `models`, `documents`, `kv` and `vectors` in the store).
    pub waiting_instances: u32,
    /// Memory of all instances together; past it only for tenants below their share of it.
    pub memory_mib: usize,
    /// The most that the limits of a stage may give one instance.
    pub instance_memory_mib: usize,
    /// Where what plugins keep in `kv` is.
    pub kv: KeptIn,
    /// What all plugins together may keep there; past it only tenants below their share of it.
    pub kv_mib: u64,
    /// Where what they keep in `vectors` is.
    pub vectors: KeptIn,
    /// What all of them may keep there; past it only tenants below their share of it.
    pub vectors_mib: usize,
    /// The same of one project, or of one tenant's requests that are in none.
    pub owner_vectors_mib: usize,
}

/// `plugins.kv`, `plugins.vectors`
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum KeptIn {
    /// In this process's memory, as long as it runs.
    #[default]
    Memory,
    /// In `[store]`, for good, and for all gateways that share it.
    Store,
}

impl Default for PluginsConfig {
    fn default() -> Self {
        let sandbox = SandboxConfig::default();
        Self {
            trusted_keys: Vec::new(),
            locked: false,
            instances: sandbox.total_instances,
            waiting_instances: sandbox.total_waiting_instances,
            memory_mib: sandbox.total_memory_bytes >> 20,
            instance_memory_mib: sandbox.max_memory_bytes >> 20,
            kv: KeptIn::Memory,
            kv_mib: SandboxConfig::KV_BYTES >> 20,
            vectors: KeptIn::Memory,
            vectors_mib: SandboxConfig::VECTOR_BYTES >> 20,
            owner_vectors_mib: SandboxConfig::OWNER_VECTOR_BYTES >> 20,
        }
    }
}

impl PluginsConfig {
    pub(super) fn check(&self, has_store: bool) -> anyhow::Result<()> {
        for (key, kept_in) in [("kv", self.kv), ("vectors", self.vectors)] {
            ensure!(
                has_store || kept_in == KeptIn::Memory,
                "plugins.{key} is \"store\", and there is no [store]; add one with a `path`, or set plugins.{key} to \"memory\""
            );
        }
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
        for (key, value) in [("memory_mib", all), ("vectors_mib", self.vectors_mib)] {
            ensure!(value <= MAX_MIB, "plugins.{key} is {value}, which no machine has");
        }
        ensure!(self.kv_mib <= MAX_MIB as u64, "plugins.kv_mib is {}, which no machine has", self.kv_mib);
        let (own, all) = (self.owner_vectors_mib, self.vectors_mib);
        ensure!(own <= all, "plugins.owner_vectors_mib is {own}, more than all may have (vectors_mib = {all})");
        let reserved = self.sandbox(SandboxConfig::default(), None).reserved_bytes() >> 20;
        if reserved > MAX_RESERVED_MIB {
            bail!(
                "plugins.instances, waiting_instances and instance_memory_mib together reserve {reserved} MiB of address \
                 space, and at most {MAX_RESERVED_MIB} are there; lower one of them"
            );
        }
        Ok(())
    }

    /// Refuses a stage that asks for more than there is, for one instance or at all.
    pub(super) fn check_stage(&self, stage: &StageConfig) -> anyhow::Result<()> {
        let (most, name) = (self.instance_memory_mib, &stage.plugin);
        if let Some(kib) = stage.grants.kv_kib.filter(|kib| *kib > self.kv_mib << 10) {
            bail!(
                "stage `{name}`: grants.kv_kib is {kib}, and plugins.kv_mib allows all plugins together {} KiB; raise it",
                self.kv_mib << 10
            );
        }
        self.check_instances(stage)?;
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

    /// Refuses more instances than any plugin can have. Which of the two bounds is a plugin's is known once it is loaded.
    fn check_instances(&self, stage: &StageConfig) -> anyhow::Result<()> {
        let (own, waiting) = (self.instances, self.waiting_instances);
        match stage.limits.instances {
            Some(asked) if asked > own.max(waiting) as usize => bail!(
                "stage `{}`: limits.instances is {asked}, and plugins.instances allows {own}, plugins.waiting_instances, for \
                 plugins that wait for others, {waiting}; raise the one that counts for it",
                stage.plugin
            ),
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

    /// The sandbox within these bounds. What plugins keep is in memory where there is no store.
    pub(crate) fn sandbox(&self, config: SandboxConfig, in_store: Option<&InStore>) -> SandboxConfig {
        let stored = |kept_in: KeptIn| in_store.filter(|_| kept_in == KeptIn::Store);
        let kv: Arc<dyn KvStore> = match stored(self.kv) {
            Some(in_store) => in_store.kv.clone(),
            None => Arc::new(MemoryKv::new(self.kv_mib << 20)),
        };
        let vectors: Arc<dyn VectorStore> = match stored(self.vectors) {
            Some(in_store) => in_store.vectors.clone(),
            None => Arc::new(MemoryVectors::new(self.owner_vectors_mib << 20, self.vectors_mib << 20)),
        };
        SandboxConfig {
            max_memory_bytes: self.instance_memory_mib << 20,
            total_memory_bytes: self.memory_mib << 20,
            total_instances: self.instances,
            total_waiting_instances: self.waiting_instances,
            kv,
            vectors,
            ..config
        }
    }

    /// Whether a plugin that uses these capabilities keeps something in the store.
    pub(crate) fn is_in_store(&self, used: &BTreeSet<&'static str>) -> bool {
        let kept = [("kv", self.kv), ("vectors", self.vectors)];
        kept.iter().any(|(capability, kept_in)| *kept_in == KeptIn::Store && used.contains(capability))
    }

    /// What plugins keep in a store, as far as they do.
    pub(crate) fn in_store(&self, db: &Db) -> InStore {
        let [own, all] = [self.owner_vectors_mib, self.vectors_mib].map(|mib| (mib as u64) << 20);
        InStore::new(db, self.kv_mib << 20, own, all)
    }

    /// One line each for the operator about what is not in memory.
    pub(crate) fn kept_facts(&self) -> Vec<String> {
        let mut facts = Vec::new();
        if self.kv == KeptIn::Store {
            let mib = self.kv_mib;
            facts.push(format!("kv        of plugins in the store, {mib} MiB at most; it outlives a restart"));
        }
        if self.vectors == KeptIn::Store {
            let mib = self.vectors_mib;
            let alone = if self.kv == KeptIn::Memory { ", and what they keep in `kv` does not" } else { "" };
            facts.push(format!("vectors   of plugins in the store, {mib} MiB at most; they outlive a restart{alone}"));
        }
        facts
    }

    /// Whether both have the same bounds and places, which hold from the start on.
    pub(crate) fn is_as_large_as(&self, other: &Self) -> bool {
        let bounds = |config: &Self| Self { trusted_keys: Vec::new(), locked: false, ..config.clone() };
        bounds(self) == bounds(other)
    }
}

#[cfg(test)]
mod tests {
    use super::super::Config;
    use tidegate_sandbox::SandboxConfig;
    use tidegate_sandbox::capability::{Collection, Namespace, VectorEntry};
    use tidegate_types::TenantId;

    #[test]
    fn bounds_that_cannot_be_are_refused_by_name_with_what_they_may_be() {
        let stage = |mib: usize| format!("[[pipeline.stage]]\nplugin = \"x\"\nlimits = {{ memory_mib = {mib} }}\n");
        for (text, expected) in [
            ("[plugins]\ninstances = 0", "plugins.instances is 0; it may be 1 to 16384"),
            ("[plugins]\nwaiting_instances = 20000", "plugins.waiting_instances is 20000; it may be"),
            ("[plugins]\ninstance_memory_mib = 0", "plugins.instance_memory_mib is 0; it may be 1 to 4096"),
            ("[plugins]\ninstance_memory_mib = 5000", "it may be 1 to 4096"),
            ("[plugins]\nmemory_mib = 63", "less than one instance may have (instance_memory_mib = 64)"),
            ("[plugins]\nmemory_mib = 9223372036854775807", "plugins.memory_mib is 9223372036854775807, which no"),
            ("[plugins]\nkv_mib = 9223372036854775807", "plugins.kv_mib is 9223372036854775807, which no machine has"),
            ("[plugins]\nkv = \"disk\"", "unknown variant `disk`, expected `memory` or `store`"),
            (
                "[plugins]\nkv = \"store\"",
                "plugins.kv is \"store\", and there is no [store]; add one with a `path`, or",
            ),
            ("[plugins]\nvectors = \"store\"", "plugins.vectors is \"store\", and there is no [store]; add one with"),
            ("[plugins]\nvectors_mib = 9223372036854775807", "plugins.vectors_mib is 9223372036854775807, which no"),
            (
                "[plugins]\nvectors_mib = 63",
                "plugins.owner_vectors_mib is 64, more than all may have (vectors_mib = 63)",
            ),
            (
                "[plugins]\ninstances = 16384\nmemory_mib = 4096\ninstance_memory_mib = 4096",
                "MiB of address space, and at most 67108864 are there",
            ),
            (&stage(65), "stage `x`: limits.memory_mib is 65, and plugins.instance_memory_mib allows 64; raise it"),
            (&stage(0), "limits.memory_mib is 0"),
            (
                "[[pipeline.stage]]\nplugin = \"x\"\nlimits = { instances = 513 }",
                "stage `x`: limits.instances is 513, and plugins.instances allows 256, plugins.waiting_instances, for",
            ),
            (
                "[plugins]\ninstances = 9\nwaiting_instances = 8\n[[pipeline.stage]]\nplugin = \"x\"\n\
                 limits = { instances = 10 }",
                "limits.instances is 10, and plugins.instances allows 9, plugins.waiting_instances, for plugins that wait for \
                 others, 8; raise the one",
            ),
            (
                "[plugins]\nkv_mib = 1\n[[pipeline.stage]]\nplugin = \"x\"\ngrants = { kv_kib = 1025 }",
                "stage `x`: grants.kv_kib is 1025, and plugins.kv_mib allows all plugins together 1024 KiB; raise it",
            ),
        ] {
            let why = format!("{:#}", Config::parse(text).unwrap_err());
            assert!(why.contains(expected), "{text}: {why}");
        }
        Config::parse(&format!("[plugins]\ninstance_memory_mib = 65\n{}", stage(65))).unwrap();
        // What a stage says nothing of is not asked for.
        Config::parse(&format!("[plugins]\ninstances = 1\nwaiting_instances = 1\n{}", stage(1))).unwrap();
        Config::parse(&stage(1).replace("memory_mib = 1", "instances = 512")).unwrap();
        Config::parse("[plugins]\nkv = \"store\"\nvectors = \"store\"\n[store]\npath = \"data\"\n").unwrap();
    }

    #[test]
    fn where_things_are_kept_is_taken_at_the_start_alone() {
        let of = |key: &str| Config::parse(&format!("[plugins]\n{key}\n[store]\npath = \"data\"\n")).unwrap().plugins;
        for key in ["kv", "vectors"] {
            let [silent, memory, store] = ["", "= \"memory\"", "= \"store\""].map(|to| match to {
                "" => of(""),
                to => of(&format!("{key} {to}")),
            });
            assert!(silent.is_as_large_as(&memory) && !memory.is_as_large_as(&store) && !store.is_as_large_as(&memory));
        }
    }

    #[tokio::test]
    async fn what_plugins_keep_has_the_bounds_of_the_config() {
        let text = "[plugins]\nkv_mib = 1\nvectors_mib = 2\nowner_vectors_mib = 1";
        let sandbox = Config::parse(text).unwrap().plugins.sandbox(SandboxConfig::default(), None);
        let mib = 1 << 20;
        let owner = |n: usize| TenantId::new(format!("tenant-{n}"));
        let kept = async |n: usize| {
            let space = Namespace::of_tenant("p", owner(n));
            sandbox.kv.set(&space, "k".into(), vec![0; mib - 1000], None, u64::MAX).await
        };
        kept(0).await.unwrap();
        kept(1).await.expect("its share");
        let full = kept(2).await.unwrap_err().to_string();
        assert!(full.contains("the 1048576 bytes of storage of all plugins (`plugins.kv_mib`)"), "{full}");
        let put = async |n: usize, id: &str| {
            let collection = Collection::of_tenant("c", owner(n));
            let payload = vec![("k".into(), "x".repeat(mib - 1000))];
            sandbox.vectors.put(&collection, vec![VectorEntry { id: id.into(), vector: vec![1.0], payload }]).await
        };
        put(0, "a").await.unwrap();
        let own = put(0, "b").await.unwrap_err().to_string();
        assert!(own.contains("the 1048576 bytes") && own.contains("`plugins.owner_vectors_mib`"), "{own}");
        for n in 1..4 {
            put(n, "a").await.unwrap();
        }
        let full = put(4, "a").await.unwrap_err().to_string();
        assert!(full.contains("the 2097152 bytes of all vectors (`plugins.vectors_mib`)"), "{full}");
    }
}
