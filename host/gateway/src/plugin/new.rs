//! `tidegate plugin new`: a project that builds and passes its test, from files that the program carries.

use super::NewArgs;
use super::build::shell_word;
use super::project::{FILE, Language, Manifest, check_name};
use anyhow::{Context, bail};
use std::io::Write;
use std::path::Path;

/// Paths in the repository, and texts: `wit/`, `plugins/sdk/`, `plugins/templates/`.
const FILES: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/author_files.rs"));

/// The SDK's package, which is in the workspace of each project in Rust.
const SDK: &str = "tidegate-plugin-sdk";

pub(super) fn run(args: &NewArgs, out: &mut dyn Write) -> anyhow::Result<()> {
    check_name(&args.name)?;
    // Cargo reads no workspace with two packages of a name.
    if args.lang == Language::Rust && args.name == SDK {
        bail!("a plugin in Rust is not named `{SDK}`, as the SDK beside it is; give it another name");
    }
    let folder = args.into.join(&args.name);
    if folder.exists() {
        bail!("{} is there already", folder.display());
    }
    write_all(&folder, &project(&args.name, args.lang, &args.stage)?)?;
    let shown = folder.display();
    writeln!(out, "{shown}: write the plugin in {}, its cases in tests.toml; then", args.lang.source())?;
    let word = shell_word(&folder);
    writeln!(out, "\n    cd {word}\n    tidegate plugin build\n    tidegate plugin test")?;
    Ok(())
}

/// All of them or none, also where somebody interrupts it: the half of a project would be in the way of the next attempt.
fn write_all(folder: &Path, files: &[(String, String)]) -> anyhow::Result<()> {
    let name = folder.file_name().context("a project has a name")?;
    let unfinished = folder.with_file_name(format!(".{}.unfinished", name.to_string_lossy()));
    remove(&unfinished)?;
    let made = files.iter().try_for_each(|(path, text)| write(&unfinished.join(path), text)).and_then(|()| {
        std::fs::rename(&unfinished, folder).with_context(|| format!("cannot make {}", folder.display()))
    });
    if made.is_err() {
        remove(&unfinished)?;
    }
    made
}

fn remove(folder: &Path) -> anyhow::Result<()> {
    if folder.exists() {
        std::fs::remove_dir_all(folder).with_context(|| format!("cannot remove {}", folder.display()))?;
    }
    Ok(())
}

fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    let parent = path.parent().context("a file is in a folder")?;
    std::fs::create_dir_all(parent).with_context(|| format!("cannot make {}", parent.display()))?;
    std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

/// A project's files.
fn project(name: &str, lang: Language, stage: &str) -> anyhow::Result<Vec<(String, String)>> {
    let template = format!("plugins/templates/{}/{stage}.{}", lang.folder(), lang.extension());
    let Some(source) = file(&template) else {
        bail!("no template for `{stage}` in {}; there are: {}", lang.folder(), stages(lang).join(", "));
    };
    let cases = file(&format!("plugins/templates/cases/{stage}.toml")).context("every stage has its cases")?;
    let manifest = Manifest { name: name.into(), lang };
    let mut files = vec![
        (FILE.into(), toml::to_string(&manifest)?),
        (lang.source(), source.replace("{{name}}", name)),
        ("tests.toml".into(), cases.into()),
        (".gitignore".into(), "/dist\n/target\nnode_modules\n.venv\n__pycache__\n*.pem\n".into()),
        ("README.md".into(), readme(name, lang, stage)),
    ];
    files.extend(logged(lang).map(|(name, text)| (name, text.into())));
    if lang == Language::Rust {
        // The SDK generates its bindings from `../../wit`; for other languages `plugin build` lays the contract out.
        files.extend(contract().map(|(path, text)| (path.into(), text.into())));
        let manifest = file("plugins/templates/rust/Cargo.toml").context("Rust has a manifest")?;
        files.push(("Cargo.toml".into(), manifest.replace("{{name}}", name)));
        let sdk = FILES.iter().filter_map(|(path, text)| Some((path.strip_prefix("plugins/sdk/")?, *text)));
        files.extend(sdk.map(|(path, text)| (format!("vendor/sdk/{path}"), text.into())));
    } else {
        files.push(("wit/project.wit".into(), world(stage)));
    }
    Ok(files)
}

/// What logs exceptions: the file's name beside the plugin, and text. Not of Rust, whose SDK logs panics, and of C, which
/// has its own way to the log; an exception of the others would say nothing.
pub(super) fn logged(lang: Language) -> Option<(String, &'static str)> {
    let name = format!("logged.{}", lang.extension());
    let text = file(&format!("plugins/templates/logged/{name}"))?;
    Some((name, text))
}

/// The contract's files: `wit/NAME.wit`, and text.
pub(super) fn contract() -> impl Iterator<Item = (&'static str, &'static str)> {
    FILES.iter().copied().filter(|(path, _)| path.starts_with("wit/") && path.ends_with(".wit"))
}

fn file(path: &str) -> Option<&'static str> {
    FILES.iter().find(|(known, _)| *known == path).map(|(_, text)| *text)
}

/// The stages that have a template in a language.
pub fn stages(lang: Language) -> Vec<&'static str> {
    let folder = format!("plugins/templates/{}/", lang.folder());
    let name =
        |path: &'static str| path.strip_prefix(folder.as_str())?.strip_suffix(lang.extension())?.strip_suffix('.');
    FILES.iter().filter_map(|(path, _)| name(path)).collect()
}

/// What the component exports and imports. In Rust the SDK sees to it, by `export!` and `.needs` of the descriptor.
fn world(stage: &str) -> String {
    let import = if keeps(stage) { "  import kv;\n" } else { "" };
    format!(
        "package tidegate:plugin@0.1.0;\n\n\
         /// What this plugin exports and imports. A capability that it uses is one line more: `import kv;`, and a\n\
         /// reason in the `capabilities` of its descriptor.\n\
         world project {{\n  include base;\n{import}  export {stage};\n}}\n"
    )
}

/// Whether the template of a stage uses `kv`, which is granted.
fn keeps(stage: &str) -> bool {
    stage == "memory"
}

fn readme(name: &str, lang: Language, stage: &str) -> String {
    let source = lang.source();
    let grants = if keeps(stage) { "\n    [pipeline.stage.grants]\n    kv_kib = 64\n" } else { "" };
    format!(
        "# {name}\n\nA `{stage}` for Tidegate, in `{source}`.\n\n    \
         tidegate plugin build     # dist/{name}.wasm\n    \
         tidegate plugin test      # the cases in tests.toml\n    \
         tidegate plugin bench     # what a call costs\n    \
         tidegate plugin inspect dist/{name}.wasm\n\n\
         In a server's config:\n\n    [[pipeline.stage]]\n    plugin = \"{name}\"\n    file = \"dist/{name}.wasm\"\n{grants}"
    )
}

#[cfg(test)]
mod tests {
    use super::super::fixture::Fixtures;
    use super::*;
    use tidegate_sandbox::stage::StageKind;

    #[test]
    fn every_template_has_cases_that_parse_and_no_hole() {
        for lang in [Language::Rust, Language::C, Language::Js, Language::Python] {
            let kinds: Vec<&str> = StageKind::ALL.iter().map(|kind| kind.as_str()).collect();
            let mut sorted = (kinds.clone(), stages(lang));
            sorted.0.sort_unstable();
            sorted.1.sort_unstable();
            assert_eq!(sorted.0, sorted.1, "{lang:?} has a template for every kind of stage");
            for stage in kinds {
                let files = project("my-plugin", lang, stage).unwrap();
                assert!(files.iter().all(|(path, text)| path.starts_with("vendor") || !text.contains("{{")), "{stage}");
                let cases = files.iter().find(|(path, _)| path == "tests.toml").unwrap();
                let source = &files.iter().find(|(path, _)| *path == lang.source()).unwrap().1;
                let logged = source.matches("@logged\nclass ").count() + source.matches(" = logged({\n").count();
                let expected = if matches!(lang, Language::Js | Language::Python) { 2 } else { 0 };
                assert_eq!(logged, expected, "{lang:?} {stage}: what it exports logs its exceptions");
                let has_file = files.iter().any(|(path, _)| path.starts_with("logged."));
                assert_eq!(has_file, expected > 0, "{lang:?} {stage}");
                Fixtures::parse(&cases.1).unwrap_or_else(|error| panic!("{stage}: {error:#}"));
            }
        }
    }

    /// In Rust a file that decides nothing would be changed in vain.
    #[test]
    fn a_project_says_in_a_world_what_it_exports_except_in_rust() {
        for lang in [Language::Rust, Language::C, Language::Js, Language::Python] {
            let files = project("my-plugin", lang, "memory").unwrap();
            let world = files.iter().find(|(path, _)| path == "wit/project.wit");
            assert_eq!(world.is_none(), lang == Language::Rust, "{lang:?}");
            assert!(world.is_none_or(|(_, text)| text.contains("import kv;\n  export memory;")), "{lang:?}");
        }
    }

    /// Settings of the templates: stage, name, schema without its default, and default.
    const SETTINGS: [(&str, &str, &str, &str); 5] = [
        ("stream-guard", "word", "string", "foo"),
        ("stream-guard", "replacement", "string", "bar"),
        ("prompt-guard", "word", "string,minLength:1", "forbidden"),
        ("output-guard", "word", "string,minLength:1", "forbidden"),
        ("router", "long_tokens", "integer,minimum:1,maximum:1000000", "1000"),
    ];

    /// A template's source without what languages write in different ways: `word:{type:string,default:foo}`.
    fn bare(lang: Language, stage: &str) -> String {
        let files = project("my-plugin", lang, stage).unwrap();
        let source = &files.iter().find(|(path, _)| *path == lang.source()).unwrap().1;
        source.chars().filter(|c| !c.is_whitespace() && !"\"\\#".contains(*c)).collect()
    }

    #[test]
    fn each_setting_of_a_template_has_its_default_in_every_language_and_the_code_takes_it() {
        for lang in [Language::Rust, Language::C, Language::Js, Language::Python] {
            for (stage, name, schema, default) in SETTINGS {
                let source = bare(lang, stage);
                let declared = format!("{name}:{{type:{schema},default:{default}}}");
                let needles = match lang {
                    // The SDK gives the code what the descriptor says.
                    Language::Rust => {
                        [format!("({name},{default},"), format!("({name},r{{type:{schema}}},r{default},")]
                    }
                    Language::C => [format!("{name}[256]={default}"), format!("{name}={default};")],
                    Language::Js | Language::Python => {
                        [format!("config={{{name}:{default},"), format!(",{name}:{default},")]
                    }
                };
                assert!(lang == Language::Rust || source.contains(&declared), "{lang:?} {stage}: no {declared}");
                assert!(needles.iter().any(|needle| source.contains(needle)), "{lang:?} {stage}: none of {needles:?}");
            }
        }
    }

    #[test]
    fn templates_have_no_settings_but_those_whose_defaults_are_known() {
        for lang in [Language::Rust, Language::C, Language::Js, Language::Python] {
            for stage in stages(lang) {
                let source = bare(lang, stage);
                let count = match lang {
                    Language::Rust => source.matches(".setting(").count(),
                    _ if source.contains("config-schema:{type:object,properties:{}") => 0,
                    _ => source.matches("{type:string").count() + source.matches("{type:integer").count(),
                };
                let known = SETTINGS.iter().filter(|(of, ..)| *of == stage).count();
                assert_eq!(count, known, "{lang:?} {stage}");
            }
        }
    }

    #[test]
    fn a_template_in_c_frees_the_config_and_the_carry_that_it_was_given() {
        for stage in stages(Language::C) {
            let files = project("my-plugin", Language::C, stage).unwrap();
            let source = &files.iter().find(|(path, _)| path == "plugin.c").unwrap().1;
            assert!(source.contains("project_string_free(config);"), "{stage}");
            let carries = source.contains("project_list_u8_t *carry");
            assert_eq!(source.contains("project_list_u8_free(carry);"), carries, "{stage}");
        }
    }

    #[test]
    fn of_a_project_that_cannot_be_written_nothing_is_left() {
        let folder = tempfile::tempdir().unwrap();
        let (made, file) = (folder.path().join("made"), |path: &str| (path.to_owned(), "text".to_owned()));
        // The first is where the folder of the second would be.
        let error = write_all(&made, &[file("src"), file("src/lib.rs")]).unwrap_err();
        assert!(error.to_string().contains("src") && !made.exists(), "{error:#}");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
        // What an attempt has left that was interrupted.
        std::fs::create_dir(folder.path().join(".made.unfinished")).unwrap();
        std::fs::write(folder.path().join(".made.unfinished/plugin.js"), "half").unwrap();
        write_all(&made, &[file("src/lib.rs"), file("tests.toml")]).unwrap();
        assert!(made.join("src/lib.rs").exists() && made.join("tests.toml").exists());
        assert!(!made.join("plugin.js").exists());
    }

    #[test]
    fn the_sdk_is_named_as_it_is() {
        let files = project("my-plugin", Language::Rust, "router").unwrap();
        let manifest = files.iter().find(|(path, _)| path == "vendor/sdk/Cargo.toml").unwrap();
        assert!(manifest.1.contains(&format!("name = \"{SDK}\"\n")), "{}", manifest.1);
    }

    #[test]
    fn an_unknown_stage_is_refused_with_those_that_are_there() {
        let error = project("x", Language::Rust, "shell").unwrap_err().to_string();
        assert!(error.contains("stream-guard") && error.contains("`shell`"), "{error}");
    }
}
