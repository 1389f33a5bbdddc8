//! The command line. `tidegate` alone serves.

use crate::config::BackendConfig;
use clap::{Args, Parser, Subcommand};
use std::net::SocketAddr;
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
    /// Validate a config and its plugins, and say what is wrong where.
    Check {
        /// The config file.
        file: PathBuf,
    },
    /// Chat in the terminal with a running server.
    Chat(ChatArgs),
    /// Make an API key, and print it with its config entry.
    Key {
        /// The key's name.
        name: String,
    },
    /// The engine's child process; started by `engine.isolation = "process"`.
    #[command(hide = true)]
    EngineWorker,
}

/// Options of `serve`; each overrides the config file.
#[derive(Debug, Default, Args)]
pub struct ServeArgs {
    /// The config file.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Address to listen on.
    #[arg(long, value_name = "ADDR")]
    pub listen: Option<SocketAddr>,
    /// A Hugging Face model folder, as `DIR` or `NAME=DIR`; may be given again.
    #[arg(long = "model", value_name = "[NAME=]DIR")]
    pub models: Vec<String>,
    /// What the engine computes on.
    #[arg(long, value_enum)]
    pub backend: Option<BackendConfig>,
}

/// Options of `chat`.
#[derive(Debug, Args)]
pub struct ChatArgs {
    /// The server.
    #[arg(long, default_value = "http://127.0.0.1:8080")]
    pub url: String,
    /// The model; default: the server's first.
    #[arg(long)]
    pub model: Option<String>,
    /// Name of the environment variable that holds the API key.
    #[arg(long, default_value = "TIDEGATE_API_KEY")]
    pub api_key_env: String,
    /// Instructions for the model.
    #[arg(long)]
    pub system: Option<String>,
}
