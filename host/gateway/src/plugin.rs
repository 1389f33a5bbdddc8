//! `tidegate plugin ...`: the tools of plugin authors. Each command is a file; what they share is [`workbench`], a
//! sandbox like the server's in which a plugin meets a scripted world. Read next: `fixture.rs` for the format of tests.

pub mod bench;
pub mod build;
mod cases;
mod counted;
pub mod fixture;
mod guest_log;
pub mod inspect;
mod lock;
pub mod new;
mod pack;
pub mod project;
mod script;
mod settings;
mod stream;
pub mod test;
mod transfer;
mod workbench;

use crate::artifact::registry::Access;
use crate::cli::OverrideArgs;
use clap::{Args, Subcommand};
use std::io::Write;
use std::path::PathBuf;

/// What to do with a plugin.
#[derive(Debug, Subcommand)]
pub enum PluginCommand {
    /// Say what a plugin is: stages, imports and the grants that they need, settings, size, digest, signatures.
    Inspect(InspectArgs),
    /// Make a project that builds and passes its test.
    New(NewArgs),
    /// Build the project in this folder into a component.
    Build(ProjectArgs),
    /// Run a component through the cases in `tests.toml`, stream guards in many chunkings and two streams in turn.
    Test(TestArgs),
    /// Measure a component: a new instance, a call, memory.
    Bench(TestArgs),
    /// Pack a component into a folder in the OCI layout, which registries and others' tools take.
    Pack(PackArgs),
    /// Make and show the keys that sign.
    #[command(subcommand)]
    Key(KeyCommand),
    /// Sign a packed plugin, in its folder or in a registry.
    Sign(SignArgs),
    /// Put a packed plugin into a registry or another folder.
    Push(PushArgs),
    /// Take a packed plugin from a registry or another folder.
    Pull(PullArgs),
    /// Pin what the plugins of a config are, beside it.
    Lock(LockArgs),
}

/// Options of `plugin inspect`.
#[derive(Debug, Args)]
pub struct InspectArgs {
    /// A component, the folder of a packed plugin, `file:DIR[:TAG]`, `[oci://]HOST/REPOSITORY:TAG`, or the name of a shipped plugin.
    #[arg(value_name = "FILE|DIR|REF|NAME")]
    pub plugin: String,
    /// Answer as JSON.
    #[arg(long)]
    pub json: bool,
    /// How registries are reached.
    #[command(flatten)]
    pub registry: RegistryArgs,
}

/// How registries are reached.
#[derive(Debug, Args)]
pub struct RegistryArgs {
    /// Speak plain HTTP with the registry; this machine's own is spoken to so anyway.
    #[arg(long)]
    pub plain_http: bool,
    /// Certificates in PEM that are trusted besides the public ones; with it, all is HTTPS.
    #[arg(long, value_name = "FILE", conflicts_with = "plain_http")]
    pub ca: Option<PathBuf>,
}

impl RegistryArgs {
    fn access(&self) -> anyhow::Result<Access> {
        Access::new(self.plain_http, self.ca.as_deref())
    }
}

/// Options of `plugin pack`.
#[derive(Debug, Args)]
pub struct PackArgs {
    /// A component, or the folder of a project.
    #[arg(value_name = "FILE|DIR", default_value = ".")]
    pub path: PathBuf,
    /// Where to; default: beside the component, `NAME.oci`. A plugin that was packed there before is replaced; several are
    /// not.
    #[arg(long, value_name = "DIR")]
    pub output: Option<PathBuf>,
    /// Sign it with this key.
    #[arg(long, value_name = "KEY")]
    pub sign: Option<PathBuf>,
}

/// What to do with keys.
#[derive(Debug, Subcommand)]
pub enum KeyCommand {
    /// Make a key in a new file, and print its public half.
    New {
        /// The file.
        file: PathBuf,
    },
    /// Print a key's public half, or a public key of `cosign`, as a config takes it.
    Show {
        /// The file.
        file: PathBuf,
        /// As PEM, which other tools take.
        #[arg(long)]
        pem: bool,
    },
}

/// Options of `plugin sign`.
#[derive(Debug, Args)]
pub struct SignArgs {
    /// The folder of a packed plugin, or `oci://HOST/REPOSITORY:TAG`.
    #[arg(value_name = "DIR|REF")]
    pub reference: String,
    /// The key.
    #[arg(long, value_name = "FILE")]
    pub key: PathBuf,
    /// How registries are reached.
    #[command(flatten)]
    pub registry: RegistryArgs,
}

/// Options of `plugin push`.
#[derive(Debug, Args)]
pub struct PushArgs {
    /// `oci://HOST/REPOSITORY[:TAG]` or `file:DIR[:TAG]`; default tag: the version, in a folder `NAME-VERSION`.
    #[arg(value_name = "REF")]
    pub reference: String,
    /// The folder of the packed plugin; default: what `plugin pack` made of the project here.
    #[arg(long, value_name = "DIR")]
    pub from: Option<PathBuf>,
    /// How registries are reached.
    #[command(flatten)]
    pub registry: RegistryArgs,
}

/// Options of `plugin pull`.
#[derive(Debug, Args)]
pub struct PullArgs {
    /// `oci://HOST/REPOSITORY:TAG`, `...@sha256:DIGEST`, or `file:DIR`.
    #[arg(value_name = "REF")]
    pub reference: String,
    /// Where to; default: `NAME.oci` here. A plugin that was pulled there before is replaced; several are not.
    #[arg(long, value_name = "DIR")]
    pub output: Option<PathBuf>,
    /// How registries are reached.
    #[command(flatten)]
    pub registry: RegistryArgs,
}

/// Options of `plugin lock`.
#[derive(Debug, Args)]
pub struct LockArgs {
    /// The config; its lock is beside it.
    pub config: PathBuf,
    /// Take what files and tags lead to now.
    #[arg(long)]
    pub upgrade: bool,
    /// Take it even if it asks for more than before, or guards less.
    #[arg(long)]
    pub allow_more: bool,
    /// How registries are reached.
    #[command(flatten)]
    pub registry: RegistryArgs,
    /// What the config's server is started with.
    #[command(flatten, next_help_heading = "What the server is started with in place of the config")]
    pub overrides: OverrideArgs,
}

/// Options of `plugin new`.
#[derive(Debug, Args)]
pub struct NewArgs {
    /// The plugin's name, `[a-z][a-z0-9-]*`, and the folder's.
    pub name: String,
    /// What it is written in.
    #[arg(long, value_enum)]
    pub lang: project::Language,
    /// The stage that it serves: prompt-guard, stream-guard, output-guard, router, tool-provider, retriever, memory or
    /// observer.
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
        PluginCommand::Pack(args) => pack::run(&args, out),
        PluginCommand::Key(command) => pack::key(&command, out),
        PluginCommand::Sign(args) => pack::sign(&args, out),
        PluginCommand::Push(args) => transfer::push(&args, out),
        PluginCommand::Pull(args) => transfer::pull(&args, out),
        PluginCommand::Lock(args) => lock::run(&args, out),
    }
}
