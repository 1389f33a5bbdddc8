//! `tidegate plugin build`: finds the toolchain of the project's language, runs it, and checks what came out. A tool
//! that is missing is an error that names the command which installs it.

mod c;
mod exports;
mod js;
mod python;
mod rust;

use super::project::{self, Language, Project};
use super::workbench;
use crate::artifact::digest::Digest;
use crate::artifact::whole;
use anyhow::{Context, bail};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

pub(super) fn run(folder: &Path, out: &mut dyn Write) -> anyhow::Result<()> {
    let project = Project::open(folder, project::BY_OPTION)?;
    if let Some(name) = bring_log(&project)? {
        writeln!(out, "{name}: written, since {} imports it", project.manifest.lang.source())?;
    }
    let component = project.component();
    let dist = component.parent().context("a file is in a folder")?;
    std::fs::create_dir_all(dist).with_context(|| format!("cannot make {}", dist.display()))?;
    let unfinished = component.with_extension("unfinished.wasm");
    let built = build(&project, &unfinished).and_then(|()| finish(&unfinished, &component));
    let said = built.inspect_err(|_| drop(std::fs::remove_file(&unfinished)))?;
    writeln!(out, "{}: {said}", component.display())?;
    Ok(())
}

/// Checks what was built, and puts it where servers read it: one that does so meanwhile has the old one or the new one, and the old
/// one stays where the new one is no plugin.
fn finish(unfinished: &Path, component: &Path) -> anyhow::Result<String> {
    let bytes = workbench::component(unfinished)?;
    let anatomy = workbench::inspect(&bytes)?;
    std::fs::rename(unfinished, component).with_context(|| format!("cannot write {}", component.display()))?;
    let stages: Vec<&str> = anatomy.stages.iter().map(|stage| stage.as_str()).collect();
    Ok(format!("{}, {} bytes, {}", stages.join(", "), bytes.len(), Digest::of(&bytes)))
}

/// Writes what logs exceptions, where the source imports it and the project is older than it; answers its name.
fn bring_log(project: &Project) -> anyhow::Result<Option<String>> {
    let lang = project.manifest.lang;
    let Some((name, text)) = super::new::logged(lang) else { return Ok(None) };
    // Of a source that cannot be read the build says more.
    let source = std::fs::read_to_string(project.folder.join(lang.source())).unwrap_or_default();
    let imports = match lang {
        Language::Python => ["from logged import", "import logged"],
        _ => ["\"./logged.js\"", "'./logged.js'"],
    };
    let path = project.folder.join(&name);
    if path.exists() || !imports.iter().any(|import| source.contains(import)) {
        return Ok(None);
    }
    whole::write_anew(&path, text.as_bytes())?;
    Ok(Some(name))
}

fn build(project: &Project, into: &Path) -> anyhow::Result<()> {
    match project.manifest.lang {
        Language::Rust => rust::build(project, into),
        Language::C => c::build(project, into),
        Language::Js => js::build(project, into),
        Language::Python => python::build(project, into),
    }
}

/// Lays out the contract and the project's own world in `target/wit`; answers the path from the project's folder.
fn wit(project: &Project) -> anyhow::Result<&'static str> {
    const WIT: &str = "target/wit";
    let folder = project.folder.join(WIT);
    std::fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    for (path, text) in super::new::contract() {
        let path = project.folder.join("target").join(path);
        std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    let world = project.folder.join("wit/project.wit");
    std::fs::copy(&world, folder.join("project.wit")).with_context(|| format!("cannot copy {}", world.display()))?;
    Ok(WIT)
}

/// The first of the programs that starts; else what installs it.
fn find(programs: &[PathBuf], remedy: &str) -> anyhow::Result<PathBuf> {
    let starts = |program: &&PathBuf| {
        let quiet = Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
        quiet.is_ok()
    };
    match programs.iter().find(starts) {
        Some(program) => Ok(program.clone()),
        None => {
            let name = programs.last().map(|program| program.display().to_string()).unwrap_or_default();
            bail!("`{name}` is not there; to install it:\n\n    {remedy}\n")
        }
    }
}

/// A path as a shell takes it for one word.
pub(super) fn shell_word(path: &Path) -> String {
    let path = path.display().to_string();
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+".contains(c);
    if path.chars().all(plain) { path } else { format!("'{}'", path.replace('\'', r"'\''")) }
}

/// Runs a tool; its own words are the error, and where it has done its work, such as a compiler with warnings, are said beside
/// this program's.
fn run_tool(command: &mut Command) -> anyhow::Result<()> {
    run_tool_beside(command, &mut std::io::stderr())
}

fn run_tool_beside(command: &mut Command, beside: &mut dyn Write) -> anyhow::Result<()> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.output().with_context(|| format!("cannot run {name}"))?;
    if !output.status.success() {
        let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        bail!("{name} failed ({}):\n{stdout}{stderr}", output.status);
    }
    // Nobody may read it, which is no reason to fail.
    let _ = beside.write_all(&output.stderr);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_one_word_of_a_shell() {
        for (path, word) in [("/a/b-c_1.0", "/a/b-c_1.0"), ("/my plugin", "'/my plugin'"), ("/it's", r"'/it'\''s'")] {
            assert_eq!(shell_word(Path::new(path)), word);
        }
    }

    #[test]
    fn what_a_tool_warns_of_is_said() {
        let said = |script: &str| {
            let mut beside = Vec::new();
            let ran = run_tool_beside(Command::new("sh").args(["-c", script]), &mut beside);
            (ran.map_err(|error| error.to_string()), String::from_utf8(beside).unwrap())
        };
        assert_eq!(said("echo all is well; echo 'unused result' >&2"), (Ok(()), "unused result\n".into()));
        let (failed, beside) = said("echo 'no such type' >&2; exit 1");
        assert!(failed.unwrap_err().contains("no such type") && beside.is_empty());
    }

    #[test]
    fn a_project_older_than_what_logs_exceptions_gets_it_once_it_imports_it() {
        for (lang, source, import) in [
            ("js", "plugin.js", "import { logged } from \"./logged.js\";\n"),
            ("js", "plugin.js", "import { logged } from './logged.js';\n"),
            ("python", "plugin.py", "from logged import logged\n"),
        ] {
            let folder = tempfile::tempdir().unwrap();
            let write = |file: &str, text: &str| std::fs::write(folder.path().join(file), text).unwrap();
            write("plugin.toml", &format!("name = \"old\"\nlang = \"{lang}\"\n"));
            write(source, "# it logged nothing\n");
            let project = Project::open(folder.path(), "").unwrap();
            assert_eq!(bring_log(&project).unwrap(), None, "{source} is built as it always was");
            write(source, import);
            let name = bring_log(&project).unwrap().unwrap();
            let written = std::fs::read_to_string(folder.path().join(&name)).unwrap();
            assert!(written.contains("log") && name.starts_with("logged."), "{name}");
            write(&name, "the author's own");
            assert_eq!(bring_log(&project).unwrap(), None, "{name} is there");
        }
    }

    #[test]
    fn what_is_no_plugin_takes_the_place_of_none() {
        let folder = tempfile::tempdir().unwrap();
        let [unfinished, component] = ["hush.unfinished.wasm", "hush.wasm"].map(|name| folder.path().join(name));
        std::fs::write(&unfinished, "no component").unwrap();
        std::fs::write(&component, "the last good one").unwrap();
        let failed = finish(&unfinished, &component).unwrap_err();
        assert!(failed.to_string().contains("not a plugin"), "{failed:#}");
        assert_eq!(std::fs::read(&component).unwrap(), b"the last good one");
    }
}
