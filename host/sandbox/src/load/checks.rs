//! What a stage's limits and grants, and what a plugin says of itself, must allow before it is loaded.

use crate::blueprint::Blueprint;
use crate::error::LoadCause;
use crate::sandbox::Core;
use crate::stage::{Descriptor, Grants, Limits, StageKind};
use std::collections::BTreeSet;
use std::time::Duration;
use wasmtime::component::Component;

/// A call is somebody's request: it ends.
const MAX_TIME: Duration = Duration::from_secs(3600);
/// Bytes of a descriptor.
const MIN_OUTPUT: usize = 4 << 10;

/// A stage that may reach out, and sees content or reads collections into which stages that see it may put it, is a way out for
/// what callers write: that is granted by name. Collections are the owner's, and not the plugin's.
pub(super) fn content(
    used: &BTreeSet<&'static str>,
    stages: &BTreeSet<StageKind>,
    grants: &Grants,
) -> Result<(), LoadCause> {
    if !used.contains("http") || grants.content {
        return Ok(());
    }
    let seeing: Vec<StageKind> = stages.iter().copied().filter(|kind| kind.sees_content()).collect();
    if !seeing.is_empty() {
        return Err(LoadCause::ContentLeaves { stages: super::list(seeing) });
    }
    if used.contains("vectors") {
        let collections = grants.vectors.keys().cloned().collect::<Vec<_>>().join(", ");
        return Err(LoadCause::KeptContentLeaves { collections });
    }
    Ok(())
}

pub(super) fn limits(limits: &Limits, core: &Core) -> Result<(), LoadCause> {
    let refuse = |limit, asked: u64, remedy: String| Err(LoadCause::Limit { limit, asked, remedy });
    let most = core.config.max_memory_bytes;
    if limits.memory_bytes > most {
        return refuse("memory_bytes", limits.memory_bytes as u64, format!("the sandbox allows at most {most}"));
    }
    if limits.output_bytes < MIN_OUTPUT {
        return refuse("output_bytes", limits.output_bytes as u64, format!("a descriptor needs {MIN_OUTPUT}"));
    }
    if limits.instances == 0 || limits.waiting_instances == 0 {
        return refuse("instances", 0, "a tenant needs at least 1".into());
    }
    let by_stage = limits.stage_cpu.values().map(|time| ("cpu_ms", *time));
    for (limit, time) in [("wall_ms", limits.wall), ("cpu_ms", limits.cpu)].into_iter().chain(by_stage) {
        if time.is_zero() || time > MAX_TIME {
            return refuse(limit, time.as_millis() as u64, format!("it may be 1 to {}", MAX_TIME.as_millis()));
        }
    }
    Ok(())
}

pub(super) fn capabilities(used: &BTreeSet<&'static str>, descriptor: &Descriptor) -> Result<(), LoadCause> {
    match used.iter().find(|capability| !descriptor.capabilities.contains_key(**capability)) {
        Some(capability) => Err(LoadCause::Descriptor {
            key: "capabilities".into(),
            message: format!("it imports `{capability}` and does not say why"),
        }),
        None => Ok(()),
    }
}

/// Whether it could build something in `configure` that is true for a while only.
pub(super) fn reads_clock(core: &Core, component: &Component) -> bool {
    component.component_type().imports(&core.engine).any(|(name, _)| name.starts_with("tidegate:plugin/clock@"))
}

/// Instances that tenants share must have nothing to tell one tenant of another.
pub(super) fn shared(
    blueprint: &Blueprint,
    used: &BTreeSet<&'static str>,
    descriptor: &Descriptor,
) -> Result<(), LoadCause> {
    match blueprint.shared && !(used.is_empty() && descriptor.deterministic) {
        true => Err(LoadCause::Shared),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stage::VectorAccess;

    /// A guard may put there what it sees.
    #[test]
    fn who_reaches_out_and_reads_a_collection_needs_the_grant_of_content_though_it_sees_none_itself() {
        let check = |used: &[&'static str], stage, is_granted| {
            let vectors = [("notes", VectorAccess::Read), ("books", VectorAccess::Write)];
            let vectors = vectors.map(|(name, access)| (name.to_owned(), access)).into();
            let used = used.iter().copied().collect();
            content(&used, &[stage].into(), &Grants { content: is_granted, vectors, ..Grants::default() })
        };
        let refused = check(&["http", "vectors"], StageKind::Observer, false).unwrap_err();
        assert_eq!(refused, LoadCause::KeptContentLeaves { collections: "books, notes".into() });
        assert!(refused.to_string().contains("books, notes") && refused.to_string().contains("`content = true`"));
        for (used, stage, is_granted) in [
            (&["http", "vectors"][..], StageKind::Observer, true),
            (&["http"], StageKind::Observer, false),
            (&["vectors"], StageKind::Observer, false),
            (&["models", "vectors"], StageKind::PromptGuard, false),
            (&["http", "vectors"], StageKind::PromptGuard, true),
        ] {
            assert_eq!(check(used, stage, is_granted), Ok(()), "{used:?} {stage:?}");
        }
        let sees = check(&["http", "vectors"], StageKind::PromptGuard, false).unwrap_err();
        assert!(matches!(sees, LoadCause::ContentLeaves { .. }), "{sees}");
    }
}
