//! The command line. `tidegate` alone serves.

mod overrides;
mod remote;

pub use overrides::{FileArgs, OverrideArgs};
pub use remote::{
    KeyArgs, KeyCommand, NewKeyArgs, NewProjectArgs, ProjectCommand, ProjectTerms, ServerArgs, UsageArgs,
};

use crate::config::{BackendConfig, Config};
use crate::plugin::PluginCommand;
use clap::{Args, Parser, Subcommand, ValueEnum};
use std::ffi::OsString;
use std::path::PathBuf;

/// An OpenAI-compatible gateway with its own inference engine and WebAssembly plugins.
#[derive(Debug, Parser)]
#[command(version, args_conflicts_with_subcommands = true)]
pub struct Cli {
    /// What to do; without one, serve.
    #[command(subcommand)]
    pub command: Option<Command>,
    /// Options of `serve`.
    #[command(flatten)]
    pub serve: ServeArgs,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Serve (the default).
    Serve(ServeArgs),
    /// Validate a config and its plugins, and say all that is wrong, and where.
    Check(FileArgs),
    /// Chat in the terminal with a running server, a line at a time; Ctrl-D ends.
    Chat(ChatArgs),
    /// Make API keys: for the config, or at a running server, where they are listed, replaced and taken back too.
    Key(KeyArgs),
    /// List, make, change and archive projects at a running server.
    #[command(subcommand)]
    Project(ProjectCommand),
    /// Print what was used, from a running server.
    Usage(UsageArgs),
    /// Check the books: what the store bills against prices and journal. The server may run.
    Audit(FileArgs),
    /// Write, test, measure and inspect plugins.
    #[command(subcommand)]
    Plugin(PluginCommand),
    /// The engine's child process; started by `engine.isolation = "process"`.
    #[command(hide = true)]
    EngineWorker(WorkerArgs),
}

/// Options of `serve`; each overrides the config file.
#[derive(Debug, Default, Args)]
pub struct ServeArgs {
    /// The config file.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// What counts in place of it.
    #[command(flatten)]
    pub overrides: OverrideArgs,
}

impl ServeArgs {
    /// What the server runs on: the config file, with what the command line says in its place.
    pub fn to_config(&self) -> anyhow::Result<Config> {
        match &self.config {
            Some(file) => self.overrides.load(file),
            None => Config::default().overridden(self.overrides.to_overrides()?),
        }
    }
}

/// Options of `chat`.
#[derive(Debug, Args)]
pub struct ChatArgs {
    /// The running server; default: what `TIDEGATE_SERVER` holds, or http://127.0.0.1:8080.
    // It was `--url` before all commands were alike in that.
    #[arg(long, alias = "url", value_name = "URL")]
    pub server: Option<String>,
    /// The model; default: `auto` where the server's routers choose, else its first that answers chats.
    #[arg(long)]
    pub model: Option<String>,
    /// Name of the environment variable that holds the API key.
    #[arg(long, default_value = "TIDEGATE_API_KEY")]
    pub api_key_env: String,
    /// Certificates in PEM that are trusted besides the public ones.
    #[arg(long, value_name = "FILE")]
    pub ca: Option<PathBuf>,
    /// Instructions for the model.
    #[arg(long)]
    pub system: Option<String>,
}

/// What a worker process is told; written by [`WorkerArgs::to_args`], read by clap.
#[derive(Debug, Args)]
pub struct WorkerArgs {
    /// The model's name.
    #[arg(long)]
    pub name: String,
    /// Its folder.
    #[arg(long)]
    pub folder: PathBuf,
    /// What to compute on.
    #[arg(long, value_enum)]
    pub backend: BackendConfig,
    /// Compute threads; 0 takes one for each core.
    #[arg(long)]
    pub threads: usize,
    /// Which CUDA device.
    #[arg(long, default_value_t = 0)]
    pub device: usize,
    /// See `compute.deterministic`.
    #[arg(long)]
    pub deterministic: bool,
    /// Where compiled kernels are kept.
    #[arg(long)]
    pub cache: PathBuf,
    /// Bound on the context.
    #[arg(long)]
    pub context_tokens: Option<u32>,
    /// Counts in place of the templates in the folder, which are not read then.
    #[arg(long)]
    pub chat_template: Option<PathBuf>,
}

impl WorkerArgs {
    /// The command line that gives these.
    pub fn to_args(&self) -> Vec<OsString> {
        let backend = self.backend.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default();
        let mut args: Vec<OsString> =
            ["engine-worker", "--name", &self.name, "--backend", &backend].map(Into::into).into();
        args.extend(["--threads".into(), self.threads.to_string().into()]);
        args.extend(["--device".into(), self.device.to_string().into()]);
        args.extend(self.deterministic.then(|| "--deterministic".into()));
        args.extend(["--cache".into(), self.cache.clone().into_os_string()]);
        args.extend(["--folder".into(), self.folder.clone().into_os_string()]);
        if let Some(tokens) = self.context_tokens {
            args.extend(["--context-tokens".into(), tokens.to_string().into()]);
        }
        if let Some(template) = &self.chat_template {
            args.extend(["--chat-template".into(), template.clone().into_os_string()]);
        }
        args
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_alone_is_no_address_and_says_how_one_is_written() {
        let why = Cli::try_parse_from(["tidegate", "--listen", "8080"]).unwrap_err().to_string();
        assert!(why.contains("write it as 127.0.0.1:8080"), "{why}");
        assert!(Cli::try_parse_from(["tidegate", "--listen", "127.0.0.1:8080"]).is_ok());
    }

    #[test]
    fn help_of_a_new_key_says_that_without_a_server_it_is_for_the_config() {
        let help = |args: &[&str]| Cli::try_parse_from(args).unwrap_err().to_string();
        let new = help(&["tidegate", "key", "new", "--help"]);
        assert!(new.contains("without it, a key for the config") && !new.contains("TIDEGATE_SERVER"), "{new}");
        assert!(help(&["tidegate", "key", "list", "--help"]).contains("TIDEGATE_SERVER"));
    }

    #[test]
    fn chat_takes_the_servers_url_by_its_old_name_too() {
        for name in ["--server", "--url"] {
            let cli = Cli::try_parse_from(["tidegate", "chat", name, "http://h:1"]).unwrap();
            let Some(Command::Chat(args)) = cli.command else { panic!("no chat") };
            assert_eq!(args.server.as_deref(), Some("http://h:1"), "{name}");
        }
        let both = Cli::try_parse_from(["tidegate", "chat", "--server", "http://h:1", "--url", "http://h:2"]);
        assert!(both.is_err(), "they are one option");
    }
}
