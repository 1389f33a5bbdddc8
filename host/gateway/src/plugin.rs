//! `tidegate plugin ...`: the tools of plugin authors. Each command is a file; what they share is [`workbench`], a
//! sandbox like the server's in which a plugin meets a scripted world. Read next: `fixture.rs` for the format of tests.

pub mod bench;
pub mod build;
mod cases;
mod digest;
pub mod fixture;
pub mod inspect;
pub mod new;
pub mod project;
mod script;
mod stream;
pub mod test;
mod workbench;

use clap::{Args, Subcommand};
use std::io::Write;
use std::path::PathBuf;

/// What to do with a plugin.
#[derive(Debug, Subcommand)]
pub enum PluginCommand {
    /// Say what a component is: stages, imports and the grants that they need, settings, size, digest.
    Inspect(InspectArgs),
    /// Make a project that builds and passes its test.
    New(NewArgs),
    /// Build the project in this folder into a component.
    Build(ProjectArgs),
    /// Run a component through the cases in `tests.toml`, stream guards in every chunking.
    Test(TestArgs),
    /// Measure a component: a new instance, a call, memory.
    Bench(TestArgs),
}

/// Options of `plugin inspect`.
#[derive(Debug, Args)]
pub struct InspectArgs {
    /// The component.
    pub file: PathBuf,
    /// Answer as JSON.
    #[arg(long)]
    pub json: bool,
}

/// Options of `plugin new`.
#[derive(Debug, Args)]
pub struct NewArgs {
    /// The plugin's name, `[a-z][a-z0-9-]*`, and the folder's.
    pub name: String,
    /// What it is written in.
    #[arg(long, value_enum)]
    pub lang: project::Language,
    /// The stage that it serves, such as `stream-guard`.
    #[arg(long)]
    pub stage: String,
    /// Where the folder is made; default: here.
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub into: PathBuf,
}

/// The project to work on.
#[derive(Debug, Args)]
pub struct ProjectArgs {
    /// The project's folder.
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub project: PathBuf,
}

/// Options of `plugin test` and `plugin bench`.
#[derive(Debug, Args)]
pub struct TestArgs {
    /// The component; default: what `plugin build` made.
    pub file: Option<PathBuf>,
    /// The cases; default: `tests.toml` of the project.
    #[arg(long, value_name = "FILE")]
    pub cases: Option<PathBuf>,
    /// The project's folder.
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub project: PathBuf,
}

/// Runs a command; what it found goes to `out`.
pub fn run(command: PluginCommand, out: &mut dyn Write) -> anyhow::Result<()> {
    match command {
        PluginCommand::Inspect(args) => inspect::run(&args, out),
        PluginCommand::New(args) => new::run(&args, out),
        PluginCommand::Build(args) => build::run(&args.project, out),
        PluginCommand::Test(args) => test::run(&args, out),
        PluginCommand::Bench(args) => bench::run(&args, out),
    }
}
