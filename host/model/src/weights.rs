//! Tensors of mapped safetensors files, single or sharded, every offset checked before anyone reads through it.
//!
//! Invariant: a tensor that [`Weights`] hands out lies within its file, and has as many bytes as shape and type
//! say. The files must not be rewritten while they are open; see [`tidegate_device::MappedFile`].

mod shard;
mod unread;

use crate::error::ModelError;
use crate::files;
use crate::json::Object;
use shard::Shard;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use tidegate_device::{Program, TensorView, WeightSource, WeightSpec};

const INDEX: &str = "model.safetensors.index.json";
const SINGLE: &str = "model.safetensors";
const MAX_INDEX_BYTES: u64 = 64 << 20;
const MAX_SHARDS: usize = 4096;

/// A model's tensors by name.
#[derive(Debug)]
pub struct Weights {
    dir: PathBuf,
    shards: Vec<Shard>,
    /// Tensor name to shard, where an index says so; a single file needs none.
    index: Option<HashMap<String, usize>>,
}

impl Weights {
    /// Maps `model.safetensors`, or the shards that `model.safetensors.index.json` names.
    pub fn open(dir: &Path) -> Result<Self, ModelError> {
        let single = dir.join(SINGLE);
        if single.exists() {
            return Ok(Self { dir: dir.to_owned(), shards: vec![Shard::open(single)?], index: None });
        }
        let path = dir.join(INDEX);
        let bytes = files::read_optional(&path, MAX_INDEX_BYTES)?;
        let bytes = bytes.ok_or_else(|| ModelError::NoWeights { dir: dir.to_owned() })?;
        Self::open_shards(dir, &Object::parse(&path, &bytes)?)
    }

    fn open_shards(dir: &Path, index: &Object) -> Result<Self, ModelError> {
        let map = index.required("weight_map", index.object("weight_map")?)?;
        let mut shards: Vec<Shard> = Vec::new();
        let mut by_file = HashMap::new();
        let mut by_tensor = HashMap::new();
        for tensor in map.keys() {
            let file = map.required(tensor, map.text(tensor)?)?;
            let shard = match by_file.get(file) {
                Some(shard) => *shard,
                None => {
                    check_file_name(&map, tensor, file)?;
                    if shards.len() == MAX_SHARDS {
                        return Err(index.wrong("weight_map", format!("names more than {MAX_SHARDS} files")));
                    }
                    shards.push(Shard::open(dir.join(file))?);
                    by_file.insert(file, shards.len() - 1);
                    shards.len() - 1
                }
            };
            if !shards[shard].contains(tensor) {
                let why = format!("{INDEX} says that it is here, but it is not");
                return Err(ModelError::Tensor { path: dir.join(file), tensor: tensor.to_owned(), why });
            }
            by_tensor.insert(tensor.to_owned(), shard);
        }
        Ok(Self { dir: dir.to_owned(), shards, index: Some(by_tensor) })
    }

    /// Checks that every weight of `program` is there, in its shape and in a type that backends know, and that its parts
    /// have no others.
    pub fn check(&self, program: &Program) -> Result<(), ModelError> {
        program.weights.iter().try_for_each(|spec| self.check_one(spec))?;
        let unread = unread::unread(self.shards.iter().flat_map(Shard::names), program);
        let Some((first, others)) = unread.split_first() else { return Ok(()) };
        let others = match others {
            [] => String::new(),
            some => format!(" ({} more, such as `{}`)", some.len(), some[..some.len().min(3)].join("`, `")),
        };
        let why = format!(
            "the model that config.json describes does not read it{others} and would answer wrongly; a key such as \
             `attention_bias` or another architecture may be missing there, or an adapter is not merged into the weights"
        );
        let path = self.shards.iter().find(|shard| shard.contains(first)).map_or(self.dir.as_path(), Shard::path);
        Err(ModelError::Tensor { path: path.to_owned(), tensor: (*first).to_owned(), why })
    }

    /// As [`Weights::check`], of one.
    pub(crate) fn check_one(&self, spec: &WeightSpec) -> Result<(), ModelError> {
        let WeightSpec { name, shape } = spec;
        let why = match self.shard_of(name) {
            None => "the model needs it, but no file has it".to_owned(),
            Some(shard) => match shard.tensor(name) {
                Some(view) if view.shape == shape => return Ok(()),
                Some(view) => format!("has shape {:?}, but config.json asks for {shape:?}", view.shape),
                None => format!("has type {}; supported: F32, F16, BF16", shard.dtype_name(name)),
            },
        };
        Err(self.fault(name, why))
    }

    /// The error that a tensor is wrong, with the file that has it.
    pub(crate) fn fault(&self, name: &str, why: String) -> ModelError {
        let path = self.shard_of(name).map_or(self.dir.as_path(), Shard::path);
        ModelError::Tensor { path: path.to_owned(), tensor: name.to_owned(), why }
    }

    /// The mapped files, in a fixed order.
    pub(crate) fn shards(&self) -> impl Iterator<Item = &Shard> {
        let mut shards: Vec<&Shard> = self.shards.iter().collect();
        shards.sort_by_key(|shard| shard.path());
        shards.into_iter()
    }

    fn shard_of(&self, name: &str) -> Option<&Shard> {
        let shard = match &self.index {
            Some(index) => *index.get(name)?,
            None => 0,
        };
        self.shards.get(shard).filter(|shard| shard.contains(name))
    }
}

impl WeightSource for Weights {
    fn tensor(&self, name: &str) -> Option<TensorView<'_>> {
        self.shard_of(name)?.tensor(name)
    }
}

/// An index may come from anyone; it must not lead out of the folder.
fn check_file_name(map: &Object, tensor: &str, file: &str) -> Result<(), ModelError> {
    let plain = Path::new(file).file_name().is_some_and(|name| name == file);
    if plain && file.ends_with(".safetensors") && !file.contains(['/', '\\']) {
        return Ok(());
    }
    Err(map.wrong(tensor, format!("is {file:?}; it must be the name of a .safetensors file in the same folder")))
}
