//! What can be wrong with a model's folder. Every message names the file and what to do about it where that is
//! not plain.

use std::path::PathBuf;

/// Why a model did not open.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// A file cannot be read.
    #[error("cannot read {}: {cause}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        cause: std::io::Error,
    },
    /// A file is larger than such a file can sensibly be.
    #[error("{} has {bytes} bytes; at most {limit} are read", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// Its size.
        bytes: u64,
        /// The cap.
        limit: u64,
    },
    /// A file is not the JSON that it should be.
    #[error("{} is not valid: {why}", path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// What the parser said.
        why: String,
    },
    /// A key is missing, of the wrong type, or out of range.
    #[error("{}: `{key}` {why}", path.display())]
    Key {
        /// The file.
        path: PathBuf,
        /// The key, with dots into nested objects.
        key: String,
        /// What is wrong with it.
        why: String,
    },
    /// The folder asks for something that this program does not do.
    #[error("{}: {what} is not supported; supported: {supported}", path.display())]
    Unsupported {
        /// The file.
        path: PathBuf,
        /// Key and value.
        what: String,
        /// What could stand there.
        supported: String,
    },
    /// No architecture of this name.
    #[error("unknown architecture `{name}` in {}; supported: {supported}", path.display())]
    UnknownArchitecture {
        /// `config.json`.
        path: PathBuf,
        /// What it names.
        name: String,
        /// Names that would do.
        supported: String,
    },
    /// The folder has no safetensors.
    #[error("{} has neither model.safetensors nor model.safetensors.index.json; convert the weights to safetensors", dir.display())]
    NoWeights {
        /// The folder.
        dir: PathBuf,
    },
    /// A safetensors file or its index contradicts itself.
    #[error("{} is corrupt: {why}; download it again", path.display())]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// What does not fit.
        why: String,
    },
    /// A tensor does not fit the config, or has a type that is not supported.
    #[error("tensor `{tensor}` in {}: {why}", path.display())]
    Tensor {
        /// The file that holds it, or the folder where no file does.
        path: PathBuf,
        /// Its name.
        tensor: String,
        /// What does not fit.
        why: String,
    },
}
