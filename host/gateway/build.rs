//! Collects what `tidegate plugin new` writes into projects (templates, the contract, the Rust SDK), so that the
//! program carries it. The files stay where their own tests are; this only lists them.

#![allow(clippy::expect_used, clippy::print_stdout, reason = "a build script fails its build, and speaks to cargo")]

use std::fmt::Write;
use std::path::{Path, PathBuf};

fn main() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut list = String::from("&[\n");
    for folder in ["wit", "plugins/sdk", "plugins/templates"] {
        println!("cargo::rerun-if-changed={}", root.join(folder).display());
        for file in files(&root.join(folder)) {
            let name = file.strip_prefix(&root).expect("it is below the root").to_string_lossy().into_owned();
            let path = file.canonicalize().expect("it is there");
            writeln!(list, "({name:?}, include_str!({path:?})),").expect("a string takes every write");
        }
    }
    list.push(']');
    let out = std::env::var("OUT_DIR").expect("cargo sets it");
    std::fs::write(Path::new(&out).join("author_files.rs"), list).expect("the output folder is writable");
}

/// All files below a folder, in order.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut entries: Vec<PathBuf> =
        std::fs::read_dir(folder).expect("it is a folder").map(|entry| entry.expect("it is read").path()).collect();
    entries.sort();
    let below = |path: PathBuf| if path.is_dir() { files(&path) } else { vec![path] };
    entries.into_iter().flat_map(below).collect()
}
