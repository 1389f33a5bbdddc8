//! [`Model`]: everything about a folder that the engine needs.

use crate::config::{Config, architecture};
use crate::error::ModelError;
use crate::files;
use crate::fingerprint::{self, Fingerprint};
use crate::generation::Generation;
use crate::json::Object;
use crate::registry::{self, Architecture};
use crate::weights::Weights;
use std::path::Path;
use std::sync::Arc;
use tidegate_device::{Program, WeightSource};
use tidegate_types::Sampling;

const MAX_CONFIG_BYTES: u64 = 4 << 20;

/// An opened folder. Its weights are mapped, not read; a backend copies them when it loads, and `weights` may be
/// dropped after that.
#[derive(Debug)]
pub struct Model {
    /// The folder's own name.
    pub name: String,
    /// As in `architectures` of config.json.
    pub architecture: &'static str,
    /// What a backend loads.
    pub program: Arc<Program>,
    /// Where a backend takes the weights from.
    pub weights: Arc<Weights>,
    /// Tokens that end an answer, all within the vocabulary; empty if the folder names none.
    pub eos_token_ids: Vec<u32>,
    /// What to do where a caller says nothing.
    pub sampling: Sampling,
    /// Tells checkpoints apart.
    pub fingerprint: Fingerprint,
}

impl Model {
    /// Opens a Hugging Face folder: `config.json`, `generation_config.json` if there is one, and safetensors.
    pub fn open(dir: &Path) -> Result<Self, ModelError> {
        let path = dir.join("config.json");
        let config_bytes = files::read(&path, MAX_CONFIG_BYTES)?;
        let object = Object::parse(&path, &config_bytes)?;
        let family = find_architecture(&object)?;
        let config = Config::read(&object)?;
        let mut program = (family.build)(&config).map_err(|why| object.wrong("layer_types", why))?;
        let weights = Weights::open(dir)?;
        weights.check(&program)?;
        if config.dtype.is_none() {
            program.dtype = embedding_dtype(&program, &weights).unwrap_or(program.dtype);
        }
        let generation = read_generation(dir, config.vocab)?;
        Ok(Self {
            name: folder_name(dir),
            architecture: family.name,
            program: Arc::new(program),
            // Those of generation_config.json where it names some, as transformers does.
            eos_token_ids: generation.eos_token_ids.unwrap_or(config.eos_token_ids),
            sampling: generation.sampling,
            fingerprint: fingerprint::of(&config_bytes, &weights),
            weights: Arc::new(weights),
        })
    }

    /// Longest sequence, prompt and answer together, in tokens.
    pub fn max_positions(&self) -> usize {
        self.program.dims.max_positions
    }
}

fn find_architecture(object: &Object) -> Result<&'static Architecture, ModelError> {
    let name = architecture(object)?;
    registry::find(name).ok_or_else(|| ModelError::UnknownArchitecture {
        path: object.path().to_owned(),
        name: name.to_owned(),
        supported: registry::names(),
    })
}

fn read_generation(dir: &Path, vocab: usize) -> Result<Generation, ModelError> {
    let path = dir.join("generation_config.json");
    match files::read_optional(&path, MAX_CONFIG_BYTES)? {
        Some(bytes) => Generation::read(&Object::parse(&path, &bytes)?, vocab),
        None => Ok(Generation::default()),
    }
}

fn embedding_dtype(program: &Program, weights: &Weights) -> Option<tidegate_device::DType> {
    weights.tensor(&program.weights.first()?.name).map(|view| view.dtype)
}

fn folder_name(dir: &Path) -> String {
    let full = dir.canonicalize().unwrap_or_else(|_| dir.to_owned());
    full.file_name().map_or_else(|| "model".to_owned(), |name| name.to_string_lossy().into_owned())
}
