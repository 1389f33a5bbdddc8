//! What a component is, learned without granting it anything: for authors, and for operators before they install it.
//! Its `describe` runs, as at load, in an instance of its own where every capability is denied.

use crate::capability::Grant;
use crate::error::LoadCause;
use crate::imports;
use crate::load::{Opened, blueprint, compile, describe, find_stages, interface, on_own_thread};
use crate::sandbox::{Core, PluginSpec};
use crate::stage::{Descriptor, StageKind};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// What a component exports, imports and says of itself.
#[derive(Clone, Debug, PartialEq)]
pub struct Anatomy {
    /// The stages that it exports.
    pub stages: BTreeSet<StageKind>,
    /// The interfaces that it exports, by name: their order within a component is the linker's, and differs from build to build.
    pub exports: Vec<String>,
    /// What it imports, by name, as above.
    pub imports: Vec<Import>,
    /// Its descriptor, checked.
    pub descriptor: Descriptor,
}

/// One interface that a component imports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Import {
    /// Such as `tidegate:plugin/kv@0.1.0`.
    pub interface: String,
    /// The capability to grant, such as `kv`; `None` where there is nothing to grant.
    pub capability: Option<&'static str>,
    /// The line of the operator's config that grants it; empty where there is nothing to grant.
    pub config_line: &'static str,
}

impl Anatomy {
    /// The capabilities that it needs, by name, each with the line of the operator's config that grants it: those that it
    /// imports, and `secrets` where it says so and has requests for the host to fill them into.
    pub fn needs(&self) -> BTreeMap<&'static str, &'static str> {
        let named = |import: &Import| Some((import.capability?, import.config_line));
        let mut needs: BTreeMap<_, _> = self.imports.iter().filter_map(named).collect();
        let secrets = Grant::Secrets;
        if let Some(name) = secrets.capability()
            && needs.contains_key("http")
            && self.descriptor.capabilities.contains_key(name)
        {
            needs.insert(name, secrets.config_line());
        }
        needs
    }

    /// What it imports of these, which was all that counted before `secrets` did without an import.
    pub fn imported(&self) -> BTreeSet<&'static str> {
        self.imports.iter().filter_map(|import| import.capability).collect()
    }
}

pub(crate) fn inspect(core: &Arc<Core>, component: &[u8]) -> Result<Anatomy, LoadCause> {
    let compiled = compile(core, component)?;
    let ty = compiled.component_type();
    let names: BTreeSet<String> = ty.imports(&core.engine).map(|(name, _)| name.to_owned()).collect();
    let exports: BTreeSet<String> = ty.exports(&core.engine).map(|(name, _)| name.to_owned()).collect();
    let imports = names.into_iter().map(import).collect::<Result<Vec<_>, _>>()?;
    let pre = core.linker.instantiate_pre(&compiled).map_err(|e| LoadCause::Contract(format!("{e:#}")))?;
    let stages = find_stages(core, &compiled, &pre)?;
    let kinds = stages.kinds();
    let nothing = Opened { documents: None, http: None };
    let spec = PluginSpec::new("inspected", Arc::<[u8]>::default());
    let blueprint = blueprint(core, spec, pre, stages, nothing, &Value::Object(Default::default()));
    let descriptor = on_own_thread(describe(core, &blueprint), LoadCause::Describe)?;
    Ok(Anatomy { stages: kinds, exports: exports.into_iter().collect(), imports, descriptor })
}

/// The stages that a component exports, whatever else may be wrong with it: nothing of it is run.
pub(crate) fn exported_stages(core: &Core, component: &[u8]) -> Result<BTreeSet<StageKind>, LoadCause> {
    let compiled = compile(core, component)?;
    let exports = compiled.component_type();
    let names: BTreeSet<&str> = exports.exports(&core.engine).map(|(name, _)| name).collect();
    Ok(StageKind::ALL.into_iter().filter(|kind| names.contains(interface(*kind).as_str())).collect())
}

fn import(interface: String) -> Result<Import, LoadCause> {
    let grant = imports::find(&interface)?;
    Ok(Import { interface, capability: grant.capability(), config_line: grant.config_line() })
}
