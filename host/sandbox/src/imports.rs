//! What a component may import: the interfaces of the contract that its grants cover, and nothing else. This check is
//! the sandbox's gate; the linker behind it offers every capability.

use crate::capability::{Grant, IMPORTS};
use crate::error::LoadCause;
use crate::stage::Grants;
use std::collections::BTreeSet;

/// Refuses the first import that is not granted; else answers the capabilities that the component uses.
pub(crate) fn check<'a>(
    imports: impl Iterator<Item = &'a str>,
    grants: &Grants,
) -> Result<BTreeSet<&'static str>, LoadCause> {
    let mut used = BTreeSet::new();
    for import in imports {
        let grant = find(import)?;
        if !is_granted(grant, grants) {
            return Err(LoadCause::Ungranted { import: import.into(), line: grant.config_line().into() });
        }
        used.extend(grant.capability());
    }
    Ok(used)
}

pub(crate) fn find(import: &str) -> Result<Grant, LoadCause> {
    let known = IMPORTS.iter().find(|(name, _)| *name == import);
    known.map(|(_, grant)| *grant).ok_or_else(|| {
        if import.starts_with("wasi:") {
            return LoadCause::Wasi { import: import.into() };
        }
        let known: Vec<_> = IMPORTS.iter().map(|(name, _)| *name).collect();
        LoadCause::UnknownImport { import: import.into(), known: known.join(", ") }
    })
}

fn is_granted(grant: Grant, grants: &Grants) -> bool {
    match grant {
        Grant::Always => true,
        Grant::Kv => grants.kv_bytes.is_some(),
        Grant::Documents => !grants.documents.is_empty(),
        Grant::Secrets => !grants.secrets.is_empty(),
        Grant::Http => grants.http.is_some(),
        Grant::Models => !grants.models.is_empty(),
        Grant::Vectors => !grants.vectors.is_empty(),
        Grant::Random => grants.random,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = "tidegate:plugin/log@0.1.0";
    const KV: &str = "tidegate:plugin/kv@0.1.0";

    #[test]
    fn what_is_always_there_needs_no_grant() {
        assert_eq!(check([LOG].into_iter(), &Grants::default()), Ok(BTreeSet::new()));
    }

    #[test]
    fn an_ungranted_import_names_the_line_that_grants_it() {
        let refused = check([LOG, KV].into_iter(), &Grants::default()).unwrap_err().to_string();
        assert!(refused.contains(KV) && refused.contains("`kv_kib = 1024`"), "{refused}");
        let granted = Grants { kv_bytes: Some(1), ..Grants::default() };
        assert_eq!(check([LOG, KV].into_iter(), &granted), Ok(BTreeSet::from(["kv"])));
    }

    #[test]
    fn wasi_and_the_unknown_are_refused_whatever_is_granted() {
        let documents = [("d".to_owned(), "/".into())].into();
        let all = Grants { kv_bytes: Some(1), documents, random: true, ..Grants::default() };
        let wasi = check(["wasi:cli/environment@0.2.0"].into_iter(), &all).unwrap_err();
        assert!(matches!(&wasi, LoadCause::Wasi { import } if import == "wasi:cli/environment@0.2.0"));
        assert!(wasi.to_string().contains("wasm32-unknown-unknown"));
        for unknown in ["tidegate:plugin/shell@0.1.0", "tidegate:plugin/kv@0.2.0", "env", ""] {
            assert!(matches!(check([unknown].into_iter(), &all), Err(LoadCause::UnknownImport { .. })), "{unknown}");
        }
    }
}
