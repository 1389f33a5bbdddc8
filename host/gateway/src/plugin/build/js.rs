//! JavaScript on QuickJS. The component imports nothing but the contract: WASI is stubbed with traps, and the
//! synchronous runtime is taken, since the host runs no component-model async.

use super::exports::{capital, exported, functions, interfaces};
use super::{Project, exports, find, run_tool, shell_word, wit};
use anyhow::bail;
use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

/// The tool that components were last proven with.
const TOOL: &str = "componentize-qjs@0.4.5";

pub(super) fn build(project: &Project, component: &Path) -> anyhow::Result<()> {
    let local = project.folder.join("node_modules/.bin/componentize-qjs");
    // Without a prefix `npm` may install into a folder above, which has a package of its own.
    let remedy = format!("npm install {TOOL} --prefix {}", shell_word(&project.folder));
    let tool = find(&[local, "componentize-qjs".into()], &remedy)?;
    check_exports(project)?;
    let mut command = Command::new(tool);
    command.current_dir(&project.folder).args(["--wit", wit(project)?, "--world", "project", "--js", "plugin.js"]);
    command.args(["--sync", "--opt-size", "--minify", "--stub-wasi", "--output"]).arg(component);
    run_tool(&mut command)
}

/// What the world asks for and the source does not have would build, and trap without a word at each call.
fn check_exports(project: &Project) -> anyhow::Result<()> {
    let (world, source) = (project.read("wit/project.wit")?, project.read("plugin.js")?);
    if let Some((stage, name)) = missing_export(&world, &source) {
        bail!(
            "plugin.js has no `{name}`, and wit/project.wit says that the plugin exports `{stage}`; \
             write `export const {name} = logged({{ ... }})` with `import {{ logged }} from \"./logged.js\"`, or correct \
             wit/project.wit"
        )
    }
    if let Some((stage, name)) = missing_function(&world, &source) {
        bail!(
            "plugin.js has no `{name}`, which the contract asks for in `{stage}`; put it beside the other functions there"
        );
    }
    Ok(())
}

/// The first interface that the world exports and whose name in JavaScript is nowhere in the source.
fn missing_export<'a>(world: &'a str, source: &str) -> Option<(&'a str, String)> {
    // What another file exports may have any name there.
    if source.contains("export *") {
        return None;
    }
    let words = words(source);
    exported(world).map(|stage| (stage, camel(stage))).find(|(_, name)| !words.contains(name.as_str()))
}

/// The first function of such an interface, or of `meta`, whose name is nowhere in the source: its export, and the name.
fn missing_function(world: &str, source: &str) -> Option<(String, String)> {
    // What other files give may have any name there.
    if source.contains("export *") || !imports(source).all(is_known) {
        return None;
    }
    let words = words(source);
    let mut all = interfaces(world).flat_map(|stage| functions(stage).map(move |name| (camel(stage), camel(name))));
    all.find(|(_, name)| !words.contains(name.as_str()))
}

/// All that may be a name there.
fn words(source: &str) -> BTreeSet<&str> {
    exports::words(source).collect()
}

/// What a source takes names from: `./more.js` of `import { more } from "./more.js"`.
fn imports(source: &str) -> impl Iterator<Item = &str> {
    let behind = source.split("from").skip(1).map(str::trim_start);
    behind.filter_map(|rest| rest.strip_prefix(['"', '\''])?.split(['"', '\'']).next())
}

/// Whether that holds none of the plugin's functions: the contract, and what logs.
fn is_known(import: &str) -> bool {
    import.starts_with("tidegate:") || import == "./logged.js"
}

/// `stream-guard` as JavaScript has it, `streamGuard`.
fn camel(name: &str) -> String {
    let mut parts = name.split('-');
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |name, part| name + &capital(part))
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
    fn a_function_that_the_source_does_not_have_is_found() {
        let world = "world project {\n  include base;\n  export memory;\n}\n";
        let missing = |source: &str| missing_function(world, source).map(|(of, name)| format!("{of} {name}"));
        let meta = "export const meta = logged({\n  describe() {},\n  configure() {},\n});\n";
        let memory = "export const memory = logged({\n  recall() {},\n  remember: keep,\n  async forget() {},\n});\n";
        let whole = format!("import {{ logged }} from './logged.js';\n{meta}{memory}");
        assert_eq!(missing(&whole), None);
        assert_eq!(missing(&whole.replace("forget", "forgets")).as_deref(), Some("memory forget"));
        assert_eq!(missing(&whole.replace("configure", "config")).as_deref(), Some("meta configure"));
        assert_eq!(missing(&format!("import {{ memory }} from \"./memory.js\";\n{meta}")), None);
        let streams = missing_function("export tidegate:plugin/stream-guard@0.1.0;", meta);
        assert_eq!(streams, Some(("streamGuard".into(), "inspectWindow".into())));
    }

    #[test]
    fn a_stage_is_named_by_its_interface_and_a_function_is_no_stage() {
        let world =
            "world project {\n  export tidegate:plugin/prompt-guard@0.1.0;\n  export warm-up: func() -> u32;\n}\n";
        assert_eq!(missing_export(world, "export const promptGuard = {};\n"), None);
        assert_eq!(missing_export(world, ""), Some(("prompt-guard", "promptGuard".to_owned())));
    }
}
