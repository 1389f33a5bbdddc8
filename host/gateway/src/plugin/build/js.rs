//! JavaScript on QuickJS. The component imports nothing but the contract: WASI is stubbed with traps, and the
//! synchronous runtime is taken, since the host runs no component-model async.

use super::{Project, find, run_tool, wit};
use anyhow::{Context, bail};
use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

/// The tool that components were last proven with.
const REMEDY: &str = "npm install componentize-qjs@0.4.5";

pub(super) fn build(project: &Project, component: &Path) -> anyhow::Result<()> {
    let local = project.folder.join("node_modules/.bin/componentize-qjs");
    let tool = find(&[local, "componentize-qjs".into()], REMEDY)?;
    check_exports(project)?;
    let mut command = Command::new(tool);
    command.current_dir(&project.folder).args(["--wit", wit(project)?, "--world", "project", "--js", "plugin.js"]);
    command.args(["--sync", "--opt-size", "--minify", "--stub-wasi", "--output"]).arg(component);
    run_tool(&mut command)
}

/// What the world asks for and the source does not have would build, and trap without a word at each call.
fn check_exports(project: &Project) -> anyhow::Result<()> {
    let read = |file: &str| {
        let path = project.folder.join(file);
        std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))
    };
    match missing_export(&read("wit/project.wit")?, &read("plugin.js")?) {
        Some((stage, name)) => bail!(
            "plugin.js has no `{name}`, and wit/project.wit says that the plugin exports `{stage}`; \
             write `export const {name} = logged({{ ... }})` with `import {{ logged }} from \"./logged.js\"`, or correct \
             wit/project.wit"
        ),
        None => Ok(()),
    }
}

/// The first interface that the world exports and whose name in JavaScript is nowhere in the source.
fn missing_export<'a>(world: &'a str, source: &str) -> Option<(&'a str, String)> {
    // What another file exports may have any name there.
    if source.contains("export *") {
        return None;
    }
    let words: BTreeSet<&str> = source.split(|c: char| !c.is_alphanumeric() && c != '_' && c != '$').collect();
    let exported = world.lines().filter_map(|line| interface(line.trim().strip_prefix("export ")?.strip_suffix(';')?));
    exported.map(|stage| (stage, camel(stage))).find(|(_, name)| !words.contains(name.as_str()))
}

/// `stream-guard` of `stream-guard` and of `tidegate:plugin/stream-guard@0.1.0`; a function of the world's own is none.
fn interface(exported: &str) -> Option<&str> {
    let name = match exported.split_once('/') {
        Some((_, name)) => name.split('@').next()?,
        None => exported,
    };
    let name = name.trim();
    (!name.contains(':')).then_some(name)
}

/// `stream-guard` as JavaScript has it, `streamGuard`.
fn camel(name: &str) -> String {
    let mut parts = name.split('-');
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |name, part| {
        let (initial, rest) = part.split_at(part.chars().next().map_or(0, char::len_utf8));
        name + &initial.to_uppercase() + rest
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stage_that_the_source_does_not_export_is_found() {
        let world = "world project {\n  include base;\n  export prompt-guard;\n  export stream-guard;\n}\n";
        let missing = |source| missing_export(world, source).map(|(stage, name)| format!("{stage} {name}"));
        let both = "export const promptGuard = logged({});\nexport const streamGuard = logged({});\n";
        assert_eq!(missing(both), None);
        assert_eq!(missing("export const promptGuard = {};\n").as_deref(), Some("stream-guard streamGuard"));
        assert_eq!(
            missing("const streamGuards = 1;\nexport const promptGuard = {};\n").as_deref(),
            Some("stream-guard streamGuard")
        );
        assert_eq!(missing("export * from \"./guards.js\";\n"), None);
    }

    #[test]
    fn a_stage_is_named_by_its_interface_and_a_function_is_no_stage() {
        let world =
            "world project {\n  export tidegate:plugin/prompt-guard@0.1.0;\n  export warm-up: func() -> u32;\n}\n";
        assert_eq!(missing_export(world, "export const promptGuard = {};\n"), None);
        assert_eq!(missing_export(world, ""), Some(("prompt-guard", "promptGuard".to_owned())));
    }
}
