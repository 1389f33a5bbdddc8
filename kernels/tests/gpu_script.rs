//! `tests/gpu/run.sh` from its first line to its last, with the stand-in driver where it will find a GPU's: tiny
//! shapes, the debug build's programs, and every row of the table.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stderr, reason = "helpers of tests")]

use std::ffi::OsString;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tidegate_emu::{Build, REQUIRE};

/// A bundle of links to what this build has made, the stand-ins by the names of NVIDIA's libraries, and a place for
/// results.
struct Stage {
    folder: TempDir,
}

impl Stage {
    /// `None` where something is missing, which is said; `cargo test` builds all of it before it runs any test.
    fn set() -> Option<Self> {
        let libraries = Build::default().libraries().unwrap().ok()?;
        let folder = tempfile::tempdir().unwrap();
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        let link = |from: &Path, to: &str| {
            let to = folder.path().join(to);
            std::fs::create_dir_all(to.parent().unwrap()).unwrap();
            symlink(from, to).unwrap();
        };
        for (library, name) in [
            (&libraries.cuda, "libcuda.so"),
            (&libraries.cublaslt, "libcublasLt.so"),
            (&libraries.nvrtc, "libnvrtc.so"),
        ] {
            link(library, &format!("lib/{name}"));
        }
        for name in ["tidegate", "gpu_bench", "kernel_checks", "backend_checks"] {
            let Some(program) = program(name) else {
                assert!(std::env::var_os(REQUIRE).is_none(), "{name} is not built; `cargo test` builds it");
                tidegate_skipped::skipped!("{name} is not built; `cargo test` builds it");
                return None;
            };
            link(&program, &format!("bundle/{name}"));
        }
        link(&here.join("../tests/fixtures/models"), "bundle/fixtures");
        link(&here.join("../tests/gpu"), "bundle/gpu");
        Some(Self { folder })
    }

    fn script(&self) -> Command {
        let at = |name| self.folder.path().join(name);
        let mut command = Command::new(at("bundle/gpu/run.sh"));
        command.args([&at("bundle"), &at("out")]).arg("--tiny").env("LD_LIBRARY_PATH", at("lib"));
        command
            .env("PYTHON", python())
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.folder.path().join("out").join(name)).unwrap_or_default()
    }
}

/// As for the tests of clients: one with PyTorch and transformers runs the peers too.
fn python() -> OsString {
    std::env::var_os("TIDEGATE_TEST_PYTHON").unwrap_or_else(|| "python3".into())
}

fn has(module: &str) -> bool {
    let found = format!("import importlib.util, sys; sys.exit(importlib.util.find_spec('{module}') is None)");
    Command::new(python()).args(["-c", &found]).status().is_ok_and(|status| status.success())
}

/// Where cargo puts it; of a test, the newest.
fn program(name: &str) -> Option<PathBuf> {
    let deps = std::env::current_exe().unwrap().parent().unwrap().to_owned();
    let profile = deps.parent().unwrap();
    let test = match name {
        "tidegate" => return Some(profile.join(name)).filter(|path| path.exists()),
        "gpu_bench" => return Some(profile.join("examples").join(name)).filter(|path| path.exists()),
        "kernel_checks" => "emulated-",
        _ => "backend-",
    };
    let programs = std::fs::read_dir(&deps).unwrap().map(|entry| entry.unwrap().path());
    let named = |path: &PathBuf| {
        path.extension().is_none() && path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(test))
    };
    programs.filter(named).max_by_key(|path| path.metadata().unwrap().modified().unwrap())
}

#[test]
fn the_whole_script_runs_dry_and_names_what_it_did_not_measure() {
    let Some(stage) = Stage::set() else { return };
    let output = stage.script().output().unwrap();
    let (table, said) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let rows = stage.read("rows.jsonl");
    assert!(output.status.success(), "{said}\n{rows}\n{table}");
    assert!(table.contains("Device: cuemu") && table.contains("**A dry run.**"), "{table}");
    let figures = table.lines().filter(|line| line.starts_with("| tiny") && line.split('|').count() != 7);
    let cells: Vec<Vec<&str>> = figures.map(|line| line.split('|').map(str::trim).collect()).collect();
    assert_eq!(cells.len(), 9, "{table}");
    for cells in cells {
        let measured = cells[3];
        assert!(measured.parse::<f64>().is_ok_and(|value| value > 0.0), "{cells:?}\n{said}\n{rows}");
        // A peer that is not there is named, and has no number; one that is there has one.
        let peers = cells[6..].iter().zip(["torch", "transformers"]).filter(|(cell, _)| !cell.is_empty());
        for (cell, module) in peers {
            let measured = cell.starts_with(|c: char| c.is_ascii_digit());
            assert!(measured || cell.starts_with("not measured: "), "{cells:?}");
            assert_eq!(measured, has(module), "{module}: {cells:?}\n{said}\n{rows}");
        }
    }
    for module in ["torch", "transformers"].into_iter().filter(|module| !has(module)) {
        tidegate_skipped::skipped!("{module} as a peer in the GPU benchmark's dry run: Python does not have it");
    }
    let kernels = table.lines().filter(|line| line.contains(": attend_") || line.contains(": product "));
    assert_eq!(kernels.count(), 4 * (1 + 5), "{table}");
    for check in ["kernels against the reference", "models against the CPU", "answers over HTTP are the CPU's"] {
        let line = table.lines().find(|line| line.contains(check)).unwrap();
        assert!(line.trim_end().ends_with("| 0 |"), "{line}\n{said}");
    }
}

#[test]
fn a_run_that_is_cut_off_keeps_what_it_has() {
    let Some(stage) = Stage::set() else { return };
    let mut script = stage.script().spawn().unwrap();
    let start = Instant::now();
    while !stage.read("rows.jsonl").contains("\"device\"") {
        assert!(start.elapsed() < Duration::from_secs(60), "the first row does not come");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(Command::new("sh").args(["-c", &format!("kill {}", script.id())]).status().unwrap().success());
    assert_eq!(script.wait().unwrap().code(), Some(130));
    let table = stage.read("table.md");
    assert!(table.contains("Device: cuemu") && table.contains("not measured yet"), "{table}");
}

#[test]
fn a_run_ends_in_its_time_and_says_what_there_was_no_time_for() {
    let Some(stage) = Stage::set() else { return };
    let start = Instant::now();
    let output = stage.script().args(["--seconds", "8"]).output().unwrap();
    // A part that is cut off has five seconds more, and the table is made after each.
    assert!(start.elapsed() < Duration::from_secs(30), "{:?}", start.elapsed());
    assert_eq!(output.status.code(), Some(1), "what was not checked fails the run");
    let table = stage.read("table.md");
    assert!(table.contains("Device: cuemu") && table.contains("not measured: no time was left"), "{table}");
}
