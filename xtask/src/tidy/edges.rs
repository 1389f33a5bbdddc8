//! Which crate may depend on which, and who may name wasmtime and HTTP. Dependencies go only down.
//!
//! Only what ships counts: a crate's tests may use any other crate that does not depend on it.

use crate::plugins::read_toml;
use anyhow::{Context, Result};
use std::path::Path;

/// Every member with what it depends on, lowest first. A crate that is not here is a violation: a new one states its
/// place. So is an edge that no manifest has: nobody would notice who takes it up again.
const EDGES: &[(&str, &[&str])] = &[
    ("types", &[]),
    ("fair", &["types"]),
    ("turns", &["types", "fair"]),
    ("limits", &["types"]),
    ("settled", &[]),
    ("egress", &["settled"]),
    ("trace", &["egress"]),
    ("identity", &["types", "fair", "egress"]),
    ("wire", &["types"]),
    ("text", &["types"]),
    ("grammar", &["types"]),
    ("device", &["types"]),
    ("kernels", &["types", "device"]),
    ("model", &["types", "device"]),
    ("engine", &["types", "grammar", "device", "fair"]),
    ("sandbox", &["types", "fair", "turns"]),
    ("upstream", &["types", "wire", "egress", "trace"]),
    ("ledger", &["types"]),
    (
        "pipeline",
        &[
            "types", "trace", "ledger", "model", "engine", "upstream", "sandbox", "text", "grammar", "fair", "turns",
            "limits",
        ],
    ),
    ("streams", &["types"]),
    ("shared", &["types", "fair", "limits", "streams"]),
    ("store", &["types", "fair", "turns", "ledger"]),
    ("api", &["types", "fair", "turns", "settled", "trace", "wire", "identity", "streams", "store"]),
    (
        "gateway",
        &[
            "types", "turns", "limits", "egress", "trace", "identity", "wire", "text", "grammar", "device", "kernels",
            "model", "engine", "sandbox", "upstream", "shared", "ledger", "store", "pipeline", "api",
        ],
    ),
];

const HTTP: &str = "only `api` and `egress` know HTTP; use their types";

/// Dependencies that only some members may name, and why.
const RESERVED: &[(&str, &[&str], &str)] = &[
    ("wasmtime", &["sandbox"], "only `sandbox` knows the plugin runtime; use its types"),
    ("hyper", &["api", "egress"], HTTP),
    ("hyper-util", &["api", "egress"], HTTP),
    ("h2", &["egress"], HTTP),
    ("http-body-util", &["egress"], HTTP),
    // Its types are `hyper`'s own: nobody needs it beside that.
    ("http", &[], HTTP),
    ("opentelemetry-http", &["trace"], "only `trace` is handed requests by an exporter of OpenTelemetry's"),
    ("redis", &["shared"], "only `shared` speaks to Valkey and Redis; use the traits of `limits` and `streams`"),
    ("llguidance", &["grammar"], "only `grammar` knows how masks are made; use its types"),
    ("cudarc", &["kernels"], "only `kernels` knows CUDA, behind its probe; use its types"),
];

/// Edges that the table does not allow or that only it has, reserved dependencies elsewhere, and crates without the shared lints.
pub fn check(root: &Path) -> Result<Vec<String>> {
    let workspace = read_toml(&root.join("Cargo.toml"))?;
    let members = workspace.get("workspace").and_then(|w| w.get("members")).and_then(toml::Value::as_array);
    let mut violations = Vec::new();
    for member in members.into_iter().flatten().filter_map(toml::Value::as_str) {
        let shown = format!("{member}/Cargo.toml");
        let manifest = read_toml(&root.join(&shown))?;
        let name = manifest.get("package").and_then(|p| p.get("name")).and_then(toml::Value::as_str);
        let name = name.with_context(|| format!("{shown}: has no package name"))?;
        let found = check_member(name, &manifest).into_iter().chain(unused_edges(name, &manifest));
        violations.extend(found.map(|what| format!("{shown}: {what}")));
    }
    Ok(violations)
}

fn check_member(package: &str, manifest: &toml::Table) -> Vec<String> {
    let mut violations = Vec::new();
    let inherits = manifest.get("lints").and_then(|l| l.get("workspace")).and_then(toml::Value::as_bool);
    if inherits != Some(true) {
        violations.push("does not take the shared lints; add `[lints] workspace = true`".into());
    }
    // Tests and chores are not part of the program.
    if matches!(package, "tidegate-tests" | "tidegate-skipped" | "tidegate-emu" | "xtask" | "tidegate-bench") {
        return violations;
    }
    let crate_name = short(package).unwrap_or(package);
    let Some((_, allowed)) = EDGES.iter().find(|(name, _)| *name == crate_name) else {
        violations.push(format!("`{package}` has no place in the table; add it to EDGES in xtask/src/tidy/edges.rs"));
        return violations;
    };
    for dependency in shipped_dependencies(manifest) {
        if let Some(lower) = short(dependency).filter(|lower| !allowed.contains(lower)) {
            let may = if allowed.is_empty() { "nothing".into() } else { allowed.join(", ") };
            violations.push(format!("`{crate_name}` may not depend on `{lower}`, only on {may}; move the code down"));
        }
        let reserved = RESERVED.iter().find(|(name, who, _)| *name == dependency && !who.contains(&crate_name));
        if let Some((name, _, remedy)) = reserved {
            violations.push(format!("`{crate_name}` names `{name}`; {remedy}"));
        }
    }
    violations
}

fn unused_edges(package: &str, manifest: &toml::Table) -> Vec<String> {
    let crate_name = short(package).unwrap_or(package);
    let Some((_, allowed)) = EDGES.iter().find(|(name, _)| *name == crate_name) else { return Vec::new() };
    let taken: Vec<&str> = shipped_dependencies(manifest).into_iter().filter_map(short).collect();
    let unused = allowed.iter().filter(|edge| !taken.contains(edge));
    unused.map(|edge| format!("`{crate_name}` does not depend on `{edge}`; take that edge out of EDGES")).collect()
}

/// The folder of one of our packages: `tidegate-wire` is `wire`, and the program itself is `gateway`.
fn short(package: &str) -> Option<&str> {
    if package == "tidegate" { Some("gateway") } else { package.strip_prefix("tidegate-") }
}

fn shipped_dependencies(manifest: &toml::Table) -> Vec<&str> {
    let platforms = manifest.get("target").and_then(toml::Value::as_table).into_iter().flat_map(|t| t.values());
    let tables = std::iter::once(manifest).chain(platforms.filter_map(toml::Value::as_table));
    let sections = tables.flat_map(|table| ["dependencies", "build-dependencies"].map(|name| table.get(name)));
    sections.flatten().filter_map(toml::Value::as_table).flat_map(|s| s.keys().map(String::as_str)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn violations(package: &str, manifest: &str) -> Vec<String> {
        check_member(package, &format!("[lints]\nworkspace = true\n{manifest}").parse().unwrap())
    }

    #[test]
    fn an_edge_up_or_aside_is_named_with_what_is_allowed() {
        let found = violations("tidegate-wire", "[dependencies]\ntidegate-types.workspace = true\ntidegate-api = {}\n");
        assert_eq!(found, ["`wire` may not depend on `api`, only on types; move the code down"]);
        let found = violations("tidegate-engine", "[target.'cfg(unix)'.dependencies]\ntidegate-wire = {}\n");
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(violations("tidegate-api", "[dev-dependencies]\ntidegate = {}\n").is_empty());
        assert!(violations("tidegate", "[dependencies]\ntidegate-api.workspace = true\n").is_empty());
    }

    #[test]
    fn an_edge_that_no_manifest_has_is_named() {
        let unused = |manifest: &str| unused_edges("tidegate-trace", &manifest.parse().unwrap());
        assert_eq!(unused(""), ["`trace` does not depend on `egress`; take that edge out of EDGES"]);
        assert!(unused("[dependencies]\ntidegate-egress.workspace = true\n").is_empty());
        assert_eq!(unused("[dev-dependencies]\ntidegate-egress.workspace = true\n").len(), 1);
        assert!(unused_edges("tidegate-tests", &toml::Table::new()).is_empty());
    }

    #[test]
    fn a_reserved_dependency_is_named_with_its_owner() {
        let found = violations("tidegate-pipeline", "[dependencies]\nwasmtime.workspace = true\n");
        assert_eq!(found, ["`pipeline` names `wasmtime`; only `sandbox` knows the plugin runtime; use its types"]);
        assert!(violations("tidegate-sandbox", "[dependencies]\nwasmtime.workspace = true\n").is_empty());
        for (package, dependency, expected) in [
            ("tidegate-engine", "hyper", 1),
            ("tidegate-upstream", "hyper", 1),
            ("tidegate-egress", "http-body-util", 0),
            ("tidegate-trace", "http-body-util", 1),
            ("tidegate-trace", "opentelemetry-http", 0),
            ("tidegate-api", "opentelemetry-http", 1),
            ("tidegate-egress", "http", 1),
        ] {
            let found = violations(package, &format!("[dependencies]\n{dependency}.workspace = true\n"));
            assert_eq!(found.len(), expected, "{package} names {dependency}: {found:?}");
        }
    }

    #[test]
    fn a_crate_without_a_place_or_without_lints_is_named() {
        assert_eq!(violations("tidegate-misc", "").len(), 1);
        assert_eq!(check_member("tidegate-types", &toml::Table::new()).len(), 1);
    }

    #[test]
    fn the_table_itself_goes_only_down() {
        for (idx, (name, allowed)) in EDGES.iter().enumerate() {
            let lower: Vec<&str> = EDGES[..idx].iter().map(|(lower, _)| *lower).collect();
            assert!(allowed.iter().all(|edge| lower.contains(edge)), "{name} -> {allowed:?}");
        }
    }
}
