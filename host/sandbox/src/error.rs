//! Why a sandbox cannot start or a plugin cannot be loaded. Both are the operator's to mend, so each message names
//! the thing, the limit and the remedy. Why a call fails is [`crate::stage::CallError`].

use crate::schema::NO_SUCH_KEY;
use crate::stage::StageKind;
use std::path::PathBuf;

/// Why the sandbox cannot start.
#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    /// wasmtime refuses the configuration, or the machine has too little address space.
    #[error("the WebAssembly engine cannot start: {0}")]
    Engine(String),
    /// The cache directory cannot be made or read.
    #[error("the cache directory `{}` cannot be used: {message}", path.display())]
    CacheDir {
        /// The directory.
        path: PathBuf,
        /// What failed.
        message: String,
    },
    /// Others may write to the cache directory, and what lies there is run as machine code.
    #[error(
        "the cache directory `{}` may be written by others (mode {mode:o}); empty it and run `chmod 700` on it",
        path.display()
    )]
    CacheDirOpen {
        /// The directory.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// The cache directory may be somebody else's, and what lies there is run as machine code.
    #[error("the cache directory `{}` may be another user's: {why}; mend that, or set another `cache_dir`", path.display())]
    CacheDirForeign {
        /// The directory.
        path: PathBuf,
        /// Why it may be.
        why: String,
    },
    /// No random bytes from the system.
    #[error("the system gives no random bytes: {0}")]
    Random(String),
}

impl SandboxError {
    /// Whether it would start without a cache.
    pub fn is_of_cache(&self) -> bool {
        matches!(self, Self::CacheDir { .. } | Self::CacheDirOpen { .. } | Self::CacheDirForeign { .. })
    }
}

/// Why a plugin cannot be loaded.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("plugin `{plugin}`: {cause}")]
pub struct LoadError {
    /// The plugin's name in the config.
    pub plugin: String,
    /// What is wrong.
    pub cause: LoadCause,
}

/// What is wrong with a plugin, its config or its grants.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum LoadCause {
    /// The bytes are not a component.
    #[error("not a WebAssembly component: {0}")]
    NotAComponent(String),
    /// The component does not compile.
    #[error("the component does not compile: {0}")]
    Compile(String),
    /// It imports a capability that was not granted.
    #[error(
        "it imports `{import}`, which is not granted; to allow it, add `{line}` to the stage's [pipeline.stage.grants]"
    )]
    Ungranted {
        /// The interface.
        import: String,
        /// The config line that grants it.
        line: String,
    },
    /// It imports something that this host does not have.
    #[error("it imports `{import}`, which this host does not have; it has {known}")]
    UnknownImport {
        /// The import.
        import: String,
        /// The interfaces that may be imported.
        known: String,
    },
    /// It imports WASI, which plugins do not get.
    #[error(
        "it imports `{import}`, but plugins get no WASI; build Rust for `wasm32-unknown-unknown`, JavaScript and Python \
         with `--stub-wasi` (`tidegate plugin build` does), C without `stdio.h` and `time.h` (its log is \
         `tidegate_plugin_log_write`), and use the capabilities of `tidegate:plugin`"
    )]
    Wasi {
        /// The import.
        import: String,
    },
    /// It exports no stage.
    #[error("it exports no stage, only [{found}]; a plugin exports at least one of {known} of `tidegate:plugin@0.1.0`")]
    NoStage {
        /// The stages of the contract.
        known: String,
        /// What it exports instead.
        found: String,
    },
    /// The config names no stage at all.
    #[error("`stages` is empty; leave it out for all that the plugin exports: {exported}")]
    NoStageWanted {
        /// The stages that it has.
        exported: String,
    },
    /// The config names a stage that the component does not export.
    #[error("it does not export the stage `{}`; it exports {exported}", stage.as_str())]
    MissingStage {
        /// The stage that the config names.
        stage: StageKind,
        /// The stages that it has.
        exported: String,
    },
    /// An export has another type than the contract says.
    #[error("its exports do not fit `tidegate:plugin@0.1.0`: {0}")]
    Contract(String),
    /// `describe` failed.
    #[error("`describe` failed: {0}")]
    Describe(String),
    /// The descriptor is not as the contract says.
    #[error("its descriptor is wrong{}: {message}", at(key))]
    Descriptor {
        /// The descriptor's key, as a path; empty for the whole.
        key: String,
        /// What is wrong.
        message: String,
    },
    /// The operator's config does not fit the plugin's schema.
    #[error("config key `{path}`: {message}")]
    Config {
        /// The config's key, as a path.
        path: String,
        /// What is wrong.
        message: String,
    },
    /// `configure` refused the config or failed.
    #[error("`configure` failed: {0}")]
    Configure(String),
    /// A limit is out of the sandbox's bounds.
    #[error("limit `{limit}` is {asked}; {remedy}")]
    Limit {
        /// The limit's name.
        limit: &'static str,
        /// What the config asks for.
        asked: u64,
        /// What to do.
        remedy: String,
    },
    /// It sees content and imports `http`, and only one of the two is granted.
    #[error(
        "it sees content ({stages}) and imports `tidegate:plugin/http@0.1.0`: what callers write could leave this \
         machine; to allow it, add `content = true` to the stage's [pipeline.stage.grants], or leave the stages out"
    )]
    ContentLeaves {
        /// The stages that see content.
        stages: String,
    },
    /// It sees no content, but reads what those that do may have kept, and imports `http`.
    #[error(
        "it reads what other plugins keep in `vectors` ({collections}), which may be what callers write, and imports \
         `tidegate:plugin/http@0.1.0`: that could leave this machine; to allow it, add `content = true` to the stage's \
         [pipeline.stage.grants]"
    )]
    KeptContentLeaves {
        /// The collections that it is granted.
        collections: String,
    },
    /// What a grant names is not there, or cannot be used.
    #[error("grant `{capability}`: {message}")]
    Grant {
        /// `http`, `models`, ...
        capability: &'static str,
        /// What is wrong.
        message: String,
    },
    /// Tenants may not share its instances.
    #[error("`shared` is for plugins that are deterministic and import no granted capability; leave it out")]
    Shared,
    /// What it is after `configure` may depend on more than component and config.
    #[error("`snapshot` is for plugins that are deterministic and import no granted capability; leave it out")]
    Snapshot,
    /// A granted folder cannot be opened.
    #[error("grant `documents`: {0}")]
    Documents(String),
}

fn at(key: &str) -> String {
    if key.is_empty() { String::new() } else { format!(" at `{key}`") }
}

impl LoadCause {
    /// What is wrong, without the names of other keys that the message suggests: whoever looks there for the key at fault is
    /// not to find the one that may have been meant.
    pub fn fault(&self) -> String {
        let whole = self.to_string();
        match (self, whole.find(NO_SUCH_KEY)) {
            (Self::Config { .. }, Some(at)) => whole[..at + NO_SUCH_KEY.len()].to_owned(),
            _ => whole,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_descriptor_is_wrong_at_a_key_or_as_a_whole() {
        let said = |key: &str| LoadCause::Descriptor { key: key.into(), message: "why".into() }.to_string();
        assert_eq!(said("name"), "its descriptor is wrong at `name`: why");
        assert_eq!(said(""), "its descriptor is wrong: why");
    }

    #[test]
    fn a_fault_is_said_without_the_keys_that_are_there() {
        let cause = |said: &str| LoadCause::Config { path: "config.wrod".into(), message: said.into() };
        for hint in ["; did you mean `word`?", "; there are replacement, word", ""] {
            let said = format!("it fits none of the choices; of the first: {NO_SUCH_KEY}");
            assert_eq!(cause(&(said.clone() + hint)).fault(), format!("config key `config.wrod`: {said}"));
        }
        assert_eq!(cause("it is not text").fault(), "config key `config.wrod`: it is not text");
        let own = LoadCause::Configure(format!("{NO_SUCH_KEY}: word"));
        assert_eq!(own.fault(), own.to_string(), "what a plugin says is whole");
    }
}
