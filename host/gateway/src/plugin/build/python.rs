//! Python on CPython. The component imports nothing but the contract: WASI is stubbed with traps. Python's own `random`
//! then repeats itself in each instance; the contract's `random` does not.

use super::exports::{capital, functions, interfaces, words};
use super::{Project, find, run_tool, shell_word, wit};
use crate::config::nearest::nearest;
use anyhow::bail;
use std::path::Path;
use std::process::Command;

/// The tool that components were last proven with.
const TOOL: &str = "componentize-py==0.25.1";

/// Modules that hold none of the plugin's methods: what the tool and the template give, and of Python's own those that plugins
/// have a use for.
const KNOWN_MODULES: [&str; 41] = [
    "__future__",
    "abc",
    "base64",
    "binascii",
    "bisect",
    "collections",
    "componentize_py_types",
    "contextlib",
    "copy",
    "dataclasses",
    "datetime",
    "decimal",
    "difflib",
    "enum",
    "fractions",
    "functools",
    "hashlib",
    "heapq",
    "hmac",
    "html",
    "io",
    "ipaddress",
    "itertools",
    "json",
    "logged",
    "math",
    "operator",
    "random",
    "re",
    "statistics",
    "string",
    "struct",
    "sys",
    "textwrap",
    "time",
    "types",
    "typing",
    "unicodedata",
    "urllib",
    "uuid",
    "wit_world",
];

pub(super) fn build(project: &Project, component: &Path) -> anyhow::Result<()> {
    let venv = project.folder.join(".venv");
    let remedy =
        format!("python3 -m venv {} && {} install {TOOL}", shell_word(&venv), shell_word(&venv.join("bin/pip")));
    let tool = find(&[venv.join("bin/componentize-py"), "componentize-py".into()], &remedy)?;
    check_exports(project)?;
    let mut command = Command::new(tool);
    command.current_dir(&project.folder).args(["--wit-path", wit(project)?, "--world", "project"]);
    tell_of_packages(&mut command, &venv);
    command.args(["componentize", "plugin"]);
    command.args(["--stub-wasi", "--output"]).arg(component);
    run_tool(&mut command)
}

/// The tool looks for packages where the variable says, and not beside itself.
fn tell_of_packages(command: &mut Command, venv: &Path) {
    if venv.exists() {
        command.env("VIRTUAL_ENV", venv);
    }
}

/// A method that the world asks for and the source does not have would build, and trap without a word at each call.
fn check_exports(project: &Project) -> anyhow::Result<()> {
    let (world, source) = (project.read("wit/project.wit")?, project.read("plugin.py")?);
    let Some(Missing { class, name, meant }) = missing(&world, &source) else { return Ok(()) };
    let meant = meant.map(|meant| format!(" (did you mean it by `{meant}`?)")).unwrap_or_default();
    bail!(
        "plugin.py has no `{name}`{meant}, which the contract asks for by wit/project.wit; write it in the class `{class}` of \
         plugin.py, or correct wit/project.wit"
    )
}

/// What the world asks for and is nowhere in the source.
#[derive(Debug, PartialEq, Eq)]
struct Missing {
    class: String,
    /// A method of it, or the class itself.
    name: String,
    /// What is there and in no interface, of nearly that name.
    meant: Option<String>,
}

fn missing(world: &str, source: &str) -> Option<Missing> {
    let code = without_comments(source);
    // What other files give may have any name there.
    if !modules(&code).all(|module| KNOWN_MODULES.contains(&module)) {
        return None;
    }
    let asked = interfaces(world).flat_map(|interface| {
        let class = pascal(interface);
        let methods = functions(interface).map(snake);
        std::iter::once(class.clone()).chain(methods).map(move |name| (class.clone(), name))
    });
    let asked: Vec<(String, String)> = asked.collect();
    let is_there = |name: &str| words(&code).any(|word| word == name);
    let (class, name) = asked.iter().find(|(_, name)| !is_there(name))?;
    let is_asked = |word: &str| asked.iter().any(|(_, name)| name == word);
    let meant = nearest(name, defined(&code).filter(|word| !is_asked(word)));
    Some(Missing { class: class.clone(), name: name.clone(), meant: meant.map(str::to_owned) })
}

/// A comment may name what the code has not. One within a string takes the rest of its line along, where nothing is defined.
fn without_comments(source: &str) -> String {
    source.lines().flat_map(|line| [line.split('#').next().unwrap_or_default(), "\n"]).collect()
}

/// The names of methods, functions and classes.
fn defined(code: &str) -> impl Iterator<Item = &str> {
    let names = code.lines().filter_map(|line| {
        let line = line.trim_start();
        let line = line.strip_prefix("async ").unwrap_or(line);
        line.strip_prefix("def ").or(line.strip_prefix("class "))
    });
    names.filter_map(|rest| words(rest.trim_start()).next())
}

/// `wit_world` of `from wit_world.imports import log`; of `import a, b` both.
fn modules(code: &str) -> impl Iterator<Item = &str> {
    let lines = code.lines().map(str::trim_start).filter_map(|line| match line.strip_prefix("from ") {
        Some(rest) => Some(rest.split_whitespace().next().unwrap_or_default()),
        None => line.strip_prefix("import "),
    });
    let modules = lines.flat_map(|names| names.split(','));
    modules.map(|name| name.trim_start().split([' ', '.']).next().unwrap_or_default())
}

/// `stream-guard` as Python has an interface, `StreamGuard`.
fn pascal(name: &str) -> String {
    name.split('-').map(capital).collect()
}

/// `inspect-window` as Python has a function, `inspect_window`.
fn snake(name: &str) -> String {
    name.replace('-', "_")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    const WORLD: &str = "world project {\n  include base;\n  export prompt-guard;\n}\n";
    const SOURCE: &str = "import json, re\nfrom wit_world.imports import log\nfrom logged import logged\n\n\
        # Built in `configure`.\n@logged\nclass Meta:\n    def describe(self):\n        return json.dumps({})\n\n    \
        def configure(self, text):\n        pass\n\n\nclass PromptGuard:\n    \
        def inspect_prompt(self, ctx, prompt):\n        pass\n";

    fn check(from: &str, to: &str, expected: Option<(&str, &str, Option<&str>)>) {
        let source = SOURCE.replacen(from, to, 1);
        assert_ne!(source, SOURCE, "{from}");
        let found = missing(WORLD, &source);
        let found = found.as_ref().map(|Missing { class, name, meant }| (&**class, &**name, meant.as_deref()));
        assert_eq!(found, expected, "{to}");
    }

    #[test]
    fn the_tool_is_told_where_a_project_has_its_packages() {
        let folder = tempfile::tempdir().unwrap();
        let venv = folder.path().join(".venv");
        let told = || {
            let mut command = Command::new("tool");
            tell_of_packages(&mut command, &venv);
            command.get_envs().find_map(|(_, value)| value.map(PathBuf::from))
        };
        assert_eq!(told(), None, "the author's own environment stays");
        std::fs::create_dir(&venv).unwrap();
        assert_eq!(told().as_ref(), Some(&venv));
    }

    #[test]
    fn a_method_that_the_source_does_not_have_is_found_with_the_nearest_that_it_has() {
        assert_eq!(missing(WORLD, SOURCE), None);
        let prompt = |meant| Some(("PromptGuard", "inspect_prompt", meant));
        check("inspect_prompt", "inspect_promt", prompt(Some("inspect_promt")));
        check("inspect_prompt", "inspectPrompt", prompt(Some("inspectPrompt")));
        check("inspect_prompt", "look", prompt(None));
        check("def configure", "def config", Some(("Meta", "configure", Some("config"))));
        check("class PromptGuard", "class PromtGuard", Some(("PromptGuard", "PromptGuard", Some("PromtGuard"))));
    }

    #[test]
    fn what_comes_from_elsewhere_may_have_the_method() {
        let renamed = |import: &str| {
            let source = SOURCE.replacen("inspect_prompt", "inspect_promt", 1);
            missing(WORLD, &format!("{import}\n{source}")).is_none()
        };
        for import in ["from guards import Base", "import guards", "import json, guards", "from .guards import Base"] {
            assert!(renamed(import), "{import}");
        }
        for import in ["import json as j", "from collections.abc import Mapping", "    import math"] {
            assert!(!renamed(import), "{import}");
        }
        check("def inspect_prompt", "inspect_prompt = look\n    def look", None);
    }
}
