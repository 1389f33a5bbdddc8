//! What the command line of `serve` says in place of the config file. A file is checked with it, and a reload applies it to
//! the changed file again: there is one config that counts.

use super::{BackendConfig, Config, ModelConfig};
use anyhow::bail;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

/// In place of keys of the file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Overrides {
    /// `server.listen`
    pub listen: Option<SocketAddr>,
    /// `compute.backend`
    pub backend: Option<BackendConfig>,
    /// `compute.deterministic`, where it is not set there.
    pub deterministic: bool,
    /// All models: names and folders. One that the file names too keeps its price and its limits.
    pub models: Vec<(String, PathBuf)>,
}

impl Overrides {
    /// `DIR` or `NAME=DIR`; a folder alone gives its own name.
    pub fn model(argument: &str) -> anyhow::Result<(String, PathBuf)> {
        if let Some((name, folder)) = argument.split_once('=') {
            return Ok((name.to_owned(), folder.into()));
        }
        match Path::new(argument).file_name().and_then(|name| name.to_str()) {
            Some(name) => Ok((name.to_owned(), argument.into())),
            None => bail!("--model {argument}: the folder gives no name; write NAME={argument}"),
        }
    }

    pub(super) fn apply(&self, config: &mut Config) {
        if let Some(listen) = self.listen {
            config.server.listen = listen;
        }
        if let Some(backend) = self.backend {
            config.compute.backend = backend;
        }
        config.compute.deterministic |= self.deterministic;
        if !self.models.is_empty() {
            let models = self.models.iter().map(|(name, folder)| terms_of(config, ModelConfig::folder(name, folder)));
            config.models = models.collect();
        }
    }
}

/// The model with what the file says of the name's price and limits, which are the callers' and not the folder's.
fn terms_of(config: &Config, model: ModelConfig) -> ModelConfig {
    match config.models.iter().find(|entry| entry.name == model.name) {
        Some(entry) => ModelConfig { price: entry.price, limits: entry.limits.clone(), ..model },
        None => model,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_of_the_command_line_keeps_the_files_price_and_limits() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("tidegate.toml");
        let text = "[[models]]\nname = \"chat\"\nupstream = \"http://h\"\nprice = { input = 1.0, output = 2.0 }\n\
                    limits = { concurrency = 3 }\n[[models]]\nname = \"other\"\npath = \"o\"\n[store]\npath = \"d\"\n";
        std::fs::write(&file, text).unwrap();
        let models = ["chat=here", "b/new"].map(|argument| Overrides::model(argument).unwrap()).into();
        let config = Config::load_with(&file, Overrides { models, ..Overrides::default() }).unwrap();
        let [chat, new] = &config.models[..] else { panic!("{:?}", config.models) };
        assert_eq!((chat.path.as_deref(), chat.upstream.as_deref()), (Some(Path::new("here")), None));
        assert_eq!((chat.price.map(|price| price.output), chat.limits.concurrency), (Some(2.0), Some(3)));
        assert_eq!((new.name.as_str(), new.path.as_deref(), new.price), ("new", Some(Path::new("b/new")), None));
        assert!(Overrides::model("..").unwrap_err().to_string().contains("write NAME=.."));
    }

    #[test]
    fn a_file_is_checked_with_what_the_command_line_says() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("tidegate.toml");
        std::fs::write(&file, "[server]\nlisten = \"0.0.0.0:80\"\n").unwrap();
        let listen = |address: &str| Overrides { listen: address.parse().ok(), ..Overrides::default() };
        assert!(Config::load(&file).is_err());
        Config::load_with(&file, listen("127.0.0.1:80")).unwrap();
        std::fs::write(&file, "").unwrap();
        let why = format!("{:#}", Config::load_with(&file, listen("0.0.0.0:80")).unwrap_err());
        assert!(why.contains("tidegate.toml") && why.contains("tidegate key NAME"), "{why}");
    }
}
