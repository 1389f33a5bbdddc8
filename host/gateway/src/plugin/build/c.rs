//! C: bindings by the library of wit-bindgen, so that authors need not install its program; clang with wasi-libc's headers and
//! library, linked to a component by rustup's `wasm-component-ld`. Nothing of WASI is left as long as the plugin opens no files.

use super::rust::{linkers, path};
use super::{Project, find, run_tool, wit};
use anyhow::{Context, bail};
use std::path::{Path, PathBuf};
use std::process::Command;
use wit_bindgen_core::{Files, wit_parser::Resolve};

const CLANG: &str = "apt-get install --no-install-recommends clang wasi-libc";

pub(super) fn build(project: &Project, component: &Path) -> anyhow::Result<()> {
    let clang = find(&["clang".into()], CLANG)?;
    let libc = libc()?;
    let linkers = linkers().context("no wasm-component-ld; it comes with rustup's toolchains (https://rustup.rs)")?;
    let bindings = project.folder.join("target/bindings");
    bind(&project.folder.join(wit(project)?), &bindings)?;

    let mut compile = Command::new(clang);
    compile.current_dir(&project.folder).args([
        "--target=wasm32-wasi",
        "-O2",
        "-Wall",
        "-nodefaultlibs",
        "-nostartfiles",
    ]);
    compile.arg("-isystem").arg(libc.join("include/wasm32-wasi")).arg("-I").arg(&bindings);
    compile.arg("-L").arg(libc.join("lib/wasm32-wasi"));
    // clang takes the linker that it is told, and that looks for `wasm-ld` in the path.
    compile.arg(format!("-fuse-ld={}", linkers.join("wasm-component-ld").display())).env("PATH", path(&linkers)?);
    compile.args(["-Wl,--no-entry", "-Wl,--strip-debug", "plugin.c"]).arg(bindings.join("project.c"));
    compile.arg(bindings.join("project_component_type.o")).args(["-lc", "-o"]).arg(component);
    run_tool(&mut compile)
}

/// Writes the header and source of the world `project`, and the object that tells the linker of it.
fn bind(wit: &Path, into: &Path) -> anyhow::Result<()> {
    let mut resolve = Resolve::default();
    let pushed = resolve.push_dir(wit);
    let (package, _) = pushed.map_err(|error| anyhow::Error::msg(resolve.render_error(&error)))?;
    let world = resolve.select_world(&[package], Some("project"))?;
    let mut files = Files::default();
    wit_bindgen_c::Opts::default().build().generate(&mut resolve, world, &mut files)?;
    std::fs::create_dir_all(into).with_context(|| format!("cannot make {}", into.display()))?;
    for (name, bytes) in files.iter() {
        let path = into.join(name);
        std::fs::write(&path, bytes).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

/// The folder that has wasi-libc in its `include` and `lib`.
fn libc() -> anyhow::Result<PathBuf> {
    let folders = ["/usr", "/usr/local", "/opt/wasi-sysroot", "/opt/wasi-sdk/share/wasi-sysroot"];
    let has = |folder: &Path| folder.join("include/wasm32-wasi/stdlib.h").exists();
    match folders.into_iter().map(Path::new).find(|folder| has(folder)) {
        Some(folder) => Ok(folder.to_owned()),
        None => bail!("wasi-libc is not there; to install it:\n\n    {CLANG}\n"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_of_the_world_is_shown_where_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let into = folder.path().join("bindings");
        let bound = |world: &str| {
            std::fs::write(folder.path().join("project.wit"), format!("package a:b;\n{world}\n")).unwrap();
            bind(folder.path(), &into).map_err(|error| error.to_string())
        };
        bound("world project { export run: func(); }").unwrap();
        for file in ["project.h", "project.c", "project_component_type.o"] {
            assert!(into.join(file).exists(), "{file}");
        }
        for (world, fault) in [
            ("world project {", "project.wit:3"),
            ("world project { export nonesuch; }", "project.wit:2:24"),
            ("world other {}", "World `project` not found"),
        ] {
            let said = bound(world).unwrap_err();
            assert!(said.contains(fault), "{said}");
        }
    }
}
