//! [`Model`]: everything about a folder that the engine needs.

use crate::classifier::Classifier;
use crate::config::{Config, architecture};
use crate::error::ModelError;
use crate::files;
use crate::fingerprint::{self, Fingerprint};
use crate::generation::Generation;
use crate::json::Object;
use crate::pooling;
use crate::registry::{self, Architecture};
use crate::sentences;
use crate::weights::Weights;
use std::path::Path;
use std::sync::Arc;
use tidegate_device::{Program, WeightSource};
use tidegate_types::{Pooling, Sampling};

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
    /// What makes labels of the vectors, if the model is for that.
    pub classifier: Option<Arc<Classifier>>,
}

impl Model {
    /// Opens a Hugging Face folder: `config.json`, `generation_config.json` if there is one, and safetensors. With a
    /// `modules.json` it is a model that makes vectors; one that gives labels says so by its architecture.
    pub fn open(dir: &Path) -> Result<Self, ModelError> {
        let path = dir.join("config.json");
        let config_bytes = files::read(&path, MAX_CONFIG_BYTES)?;
        let object = Object::parse(&path, &config_bytes)?;
        // Before anything else of the config, which another family may spell otherwise.
        let family = find_architecture(&object, pooling::is_said(dir))?;
        let mut config = Config::read(&object)?;
        let gives_labels = registry::is_classifier(architecture(&object)?);
        config.pooling = if gives_labels { Some(Pooling::LastToken) } else { pooling::read(dir, config.hidden)? };
        if config.pooling.is_some() {
            let longest = sentences::longest_text(dir)?;
            config.max_positions = longest.map_or(config.max_positions, |longest| longest.min(config.max_positions));
        }
        let mut program = (family.build)(&config).map_err(|why| object.wrong("layer_types", why))?;
        let weights = Weights::open(dir)?;
        if config.pooling.is_some() && weights.tensor(FINAL_NORM).is_none() {
            without_prefix(&mut program);
        }
        weights.check(&program)?;
        let classifier = gives_labels.then(|| Classifier::open(&object, config.hidden, &weights)).transpose()?;
        if config.dtype.is_none() {
            program.dtype = embedding_dtype(&program, &weights).unwrap_or(program.dtype);
        }
        let generation = read_generation(dir, config.vocab)?;
        Ok(Self {
            name: folder_name(dir),
            architecture: if gives_labels { family.classifier } else { family.name },
            program: Arc::new(program),
            // Those of generation_config.json where it names some, as transformers does.
            eos_token_ids: generation.eos_token_ids.unwrap_or(config.eos_token_ids),
            sampling: generation.sampling,
            fingerprint: fingerprint::of(&config_bytes, &weights),
            weights: Arc::new(weights),
            classifier: classifier.map(Arc::new),
        })
    }

    /// Longest sequence, prompt and answer together, in tokens.
    pub fn max_positions(&self) -> usize {
        self.program.dims.max_positions
    }
}

/// A model without a head may be published by itself: as `Qwen3Model`, its tensors without the name that they have in
/// `Qwen3ForCausalLM`.
fn find_architecture(object: &Object, makes_vectors: bool) -> Result<&'static Architecture, ModelError> {
    let name = architecture(object)?;
    let whole = name.strip_suffix("Model").filter(|_| makes_vectors).map(|name| format!("{name}ForCausalLM"));
    registry::find(whole.as_deref().unwrap_or(name)).ok_or_else(|| ModelError::UnknownArchitecture {
        path: object.path().to_owned(),
        name: name.to_owned(),
        supported: registry::names(),
    })
}

/// What every program has.
const FINAL_NORM: &str = "model.norm.weight";

fn without_prefix(program: &mut Program) {
    for spec in &mut program.weights {
        if let Some(name) = spec.name.strip_prefix("model.") {
            spec.name = name.to_owned();
        }
    }
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
