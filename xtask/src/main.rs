//! Project chores: `cargo xtask plugins` builds the shipped plugins, `cargo xtask kernels`
//! compiles the CUDA kernels, `cargo xtask tidy` checks the rules of the
//! house. Each chore is a module that returns what it found; this file prints it.

mod bench;
mod cargo;
mod gpu;
mod kernels;
mod plugins;
mod release;
mod rustc;
mod tidy;

use anyhow::{Result, bail};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

const USAGE: &str = "\
usage: cargo xtask <chore>

  plugins [--check] [--target-dir DIR] [--into DIR] [NAME...]
      builds plugins/ and tests/guests/ into their dist/ folders, all or those that are named
      --check         only compares digests with the lock files; needs no toolchain
      --target-dir    where cargo works (or PLUGINS_TARGET_DIR; default: target/ of each workspace)
      --into          where the components go, in place of dist/; digests are not noted then
  kernels [--out DIR]
      compiles kernels/cuda for sm_80, sm_90a and sm_100 with NVIDIA's compiler from its Python wheels (fetched once
      into target/); prints registers and spills; fails on a spill or where a kernel lacks the instructions that its
      file names
      --out           where the cubins go (default: target/cubins)
  gpu DIR
      builds what a machine with a GPU needs to prove and measure the CUDA backend, into one folder; there
      `DIR/gpu/run.sh DIR OUT` does it
  release
      builds `tidegate` by a profile of its load: twice, with the benchmark's load between; takes LLVM's `llvm-profdata` of
      the compiler's version (`rustup component add llvm-tools`)
  bench
      measures gateway and engine; prints tables and JSON
  bench plugins
      measures what a plugin's call, instance and stage cost; prints a table and JSON
  chaos streams
      cuts thousands of resumable streams at random bytes and reads them on; prints what was lost and what it costs
  chaos ledger
      kills a gateway 200 times (TIDEGATE_CHAOS_KILLS) while clients stream and leave; prints what was billed of it
  tidy
      checks the rules of the house: crate edges, unsafe, examples, guests, versions, digests";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match run(&arguments) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &[String]) -> Result<ExitCode> {
    match arguments.split_first() {
        Some((chore, rest)) if chore == "plugins" => build_or_check(rest),
        Some((chore, rest)) if chore == "kernels" => kernels(rest),
        Some((chore, [folder])) if chore == "gpu" => {
            gpu::bundle(&root(), Path::new(folder)).map(|()| ExitCode::SUCCESS)
        }
        Some((chore, [])) if chore == "release" => {
            eprintln!("{}", release::build(&root())?.display());
            Ok(ExitCode::SUCCESS)
        }
        Some((chore, [what])) if chore == "bench" && what == "plugins" => {
            bench::plugins(&root()).map(|()| ExitCode::SUCCESS)
        }
        Some((chore, [])) if chore == "bench" => bench::run(&root()).map(|()| ExitCode::SUCCESS),
        Some((chore, [what])) if chore == "chaos" && ["streams", "ledger"].contains(&what.as_str()) => {
            bench::chaos(&root(), what).map(|()| ExitCode::SUCCESS)
        }
        Some((chore, [])) if chore == "tidy" => Ok(report(&tidy::check(&root())?)),
        _ => bail!("{USAGE}"),
    }
}

fn build_or_check(arguments: &[String]) -> Result<ExitCode> {
    let mut check = false;
    let target_dir = std::env::var_os("PLUGINS_TARGET_DIR").map(PathBuf::from);
    let mut build = plugins::Build { target_dir, ..plugins::Build::default() };
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--check" => check = true,
            "--target-dir" | "--into" => {
                let Some(dir) = arguments.next().map(PathBuf::from) else {
                    bail!("{argument} needs a folder\n\n{USAGE}")
                };
                *(if argument == "--into" { &mut build.into } else { &mut build.target_dir }) = Some(dir);
            }
            flag if flag.starts_with('-') => bail!("unknown option `{flag}`\n\n{USAGE}"),
            name => build.names.push(name.to_owned()),
        }
    }
    let root = root();
    if check {
        let violations = plugins::check(&root)?;
        return Ok(report(&tidy::Report { violations, warnings: Vec::new() }));
    }
    for line in plugins::build(&root, &build)? {
        eprintln!("{line}");
    }
    Ok(ExitCode::SUCCESS)
}

fn kernels(arguments: &[String]) -> Result<ExitCode> {
    let root = root();
    let out = match arguments {
        [] => root.join("target/cubins"),
        [flag, folder] if flag == "--out" => PathBuf::from(folder),
        _ => bail!("{USAGE}"),
    };
    let violations = kernels::compile(&root, &out, &mut |line| eprintln!("{line}"))?;
    Ok(report(&tidy::Report { violations, warnings: Vec::new() }))
}

/// One line each, warnings first; violations fail.
fn report(report: &tidy::Report) -> ExitCode {
    for warning in &report.warnings {
        eprintln!("warning: {warning}");
    }
    for violation in &report.violations {
        eprintln!("error: {violation}");
    }
    if report.violations.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// The repository: this crate's folder is one below it.
fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_owned()
}
