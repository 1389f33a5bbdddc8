//! What a server is told beside its config file. Commands that look at that file are told the same, and see what runs.

use crate::config::{BackendConfig, Config, Overrides, address};
use clap::Args;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

/// In place of what the config file says.
#[derive(Clone, Debug, Default, Args)]
pub struct OverrideArgs {
    /// Address to listen on.
    #[arg(long, value_name = "ADDR", value_parser = address::parse)]
    pub listen: Option<SocketAddr>,
    /// A Hugging Face model folder, as `DIR` or `NAME=DIR`; may be given again. Models of the config are not served
    /// then; one of a name that it has keeps the price and limits from there.
    #[arg(long = "model", value_name = "[NAME=]DIR")]
    pub models: Vec<String>,
    /// What the engine computes on.
    #[arg(long, value_enum)]
    pub backend: Option<BackendConfig>,
    /// On CUDA: the same tokens whatever runs beside a request, at a cost in speed.
    #[arg(long)]
    pub deterministic: bool,
}

impl OverrideArgs {
    /// The config file with these in its place.
    pub fn load(&self, file: &Path) -> anyhow::Result<Config> {
        Config::load_with(file, self.to_overrides()?)
    }

    /// As a config takes them.
    pub fn to_overrides(&self) -> anyhow::Result<Overrides> {
        let Self { listen, models, backend, deterministic } = self.clone();
        let models = models.iter().map(|model| Overrides::model(model)).collect::<anyhow::Result<_>>()?;
        Ok(Overrides { listen, backend, deterministic, models })
    }
}

/// A config file, and what its server is started with.
#[derive(Debug, Args)]
pub struct FileArgs {
    /// The config file.
    pub file: PathBuf,
    /// What else.
    #[command(flatten, next_help_heading = "What the server is started with in place of it")]
    pub overrides: OverrideArgs,
}

impl FileArgs {
    /// The config that the server runs on.
    pub fn to_config(&self) -> anyhow::Result<Config> {
        self.overrides.load(&self.file)
    }
}

#[cfg(test)]
mod tests {
    use crate::cli::{Cli, Command};
    use clap::Parser;

    #[test]
    fn what_a_server_is_started_with_is_taken_by_all_that_look_at_its_config() {
        let told = ["--listen", "127.0.0.1:1", "--model", "a=b", "--backend", "reference", "--deterministic"];
        let parse = |command: &[&str]| Cli::try_parse_from(command.iter().chain(&told)).unwrap();
        let serve = parse(&["tidegate", "serve", "--config", "f"]);
        let Some(Command::Serve(args)) = serve.command else { panic!("no serve") };
        let expected = args.overrides.to_overrides().unwrap();
        assert_ne!(expected, crate::config::Overrides::default());
        for command in [&["check"][..], &["audit"], &["plugin", "lock"]] {
            let words = [&["tidegate"][..], command, &["f"]].concat();
            let found = match parse(&words).command {
                Some(Command::Check(args) | Command::Audit(args)) => args.overrides,
                Some(Command::Plugin(crate::plugin::PluginCommand::Lock(args))) => args.overrides,
                other => panic!("{other:?}"),
            };
            assert_eq!(found.to_overrides().unwrap(), expected, "{command:?}");
        }
    }
}
