//! One safetensors file: 8 bytes of header length, a JSON header, the tensors' bytes.
//!
//! The crate `safetensors` checks the header (offsets without gaps or overlap, sizes that match shapes, the last
//! one at the end of the file); what it hands over is checked against the map once more, since here slices are
//! taken from it.

use crate::error::ModelError;
use safetensors::tensor::Metadata;
use safetensors::{Dtype, SafeTensorError, SafeTensors};
use std::collections::HashMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use tidegate_device::{DType, MappedFile, TensorView};

/// Headers of the largest published models stay under a tenth of this.
const MAX_HEADER_BYTES: u64 = 32 << 20;
const LENGTH_BYTES: usize = 8;

/// A mapped file and where its tensors lie.
#[derive(Debug)]
pub(crate) struct Shard {
    path: PathBuf,
    file: MappedFile,
    data_start: usize,
    tensors: HashMap<String, Entry>,
}

#[derive(Debug)]
struct Entry {
    dtype: Dtype,
    shape: Vec<usize>,
    /// Within the file.
    range: Range<usize>,
}

impl Shard {
    pub(super) fn open(path: PathBuf) -> Result<Self, ModelError> {
        let file = MappedFile::open(&path).map_err(|cause| ModelError::Read { path: path.clone(), cause })?;
        let corrupt = |why: String| ModelError::Corrupt { path: path.clone(), why };
        let (data_start, metadata) = header(file.bytes()).map_err(corrupt)?;
        let tensors = entries(&metadata, data_start, file.bytes().len()).map_err(corrupt)?;
        Ok(Self { path, file, data_start, tensors })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The file's bytes up to the first tensor.
    pub(crate) fn header(&self) -> &[u8] {
        &self.file.bytes()[..self.data_start]
    }

    /// The bytes of every tensor, in order of their names.
    pub(crate) fn contents(&self) -> impl Iterator<Item = &[u8]> {
        let mut entries: Vec<_> = self.tensors.iter().collect();
        entries.sort_by_key(|(name, _)| name.as_str());
        entries.into_iter().map(|(_, entry)| &self.file.bytes()[entry.range.clone()])
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    pub(super) fn contains(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    /// The tensor, unless it is absent or of a type that backends do not know.
    pub(super) fn tensor(&self, name: &str) -> Option<TensorView<'_>> {
        let entry = self.tensors.get(name)?;
        let dtype = match entry.dtype {
            Dtype::F32 => DType::F32,
            Dtype::F16 => DType::F16,
            Dtype::BF16 => DType::BF16,
            _ => return None,
        };
        Some(TensorView { dtype, shape: &entry.shape, data: &self.file.bytes()[entry.range.clone()] })
    }

    pub(super) fn dtype_name(&self, name: &str) -> String {
        self.tensors.get(name).map_or_else(String::new, |entry| format!("{:?}", entry.dtype))
    }
}

/// Where the tensors' bytes start, and what the header says of them.
fn header(bytes: &[u8]) -> Result<(usize, Metadata), String> {
    let length: [u8; LENGTH_BYTES] = bytes
        .get(..LENGTH_BYTES)
        .and_then(|b| b.try_into().ok())
        .ok_or_else(|| format!("it has {} bytes and no header", bytes.len()))?;
    let length = u64::from_le_bytes(length);
    if length > MAX_HEADER_BYTES {
        return Err(format!("its header claims {length} bytes; at most {MAX_HEADER_BYTES} are read"));
    }
    if length as usize > bytes.len() - LENGTH_BYTES {
        return Err(format!("its header claims {length} bytes of {} in the file", bytes.len()));
    }
    let (length, metadata) = SafeTensors::read_metadata(bytes).map_err(|e| explain(&e, bytes.len()))?;
    Ok((LENGTH_BYTES + length, metadata))
}

fn explain(error: &SafeTensorError, file_len: usize) -> String {
    match error {
        SafeTensorError::MetadataIncompleteBuffer => {
            format!("its tensors do not end where its {file_len} bytes do; it is cut short or has bytes too many")
        }
        SafeTensorError::InvalidOffset(name) => format!("tensor `{name}` overlaps another or leaves a gap"),
        SafeTensorError::TensorInvalidInfo => "the bytes of a tensor do not match its shape and type".to_owned(),
        SafeTensorError::ValidationOverflow => "a tensor's shape overflows".to_owned(),
        other => other.to_string(),
    }
}

fn entries(metadata: &Metadata, data_start: usize, file_len: usize) -> Result<HashMap<String, Entry>, String> {
    let entry = |(name, info): (String, &safetensors::tensor::TensorInfo)| {
        let (start, end) = info.data_offsets;
        let outside = || format!("tensor `{name}` lies at {start}..{end}, outside of the file");
        let from = data_start.checked_add(start).ok_or_else(outside)?;
        let range = from..data_start.checked_add(end).ok_or_else(outside)?;
        if range.start > range.end || range.end > file_len {
            return Err(outside());
        }
        let elems = info.shape.iter().try_fold(1usize, |n, &dim| n.checked_mul(dim));
        let bits = elems.and_then(|n| n.checked_mul(info.dtype.bitsize()));
        if bits != range.len().checked_mul(8) {
            return Err(format!("tensor `{name}` has {} bytes for shape {:?}", range.len(), info.shape));
        }
        Ok((name, Entry { dtype: info.dtype, shape: info.shape.clone(), range }))
    };
    metadata.tensors().into_iter().map(entry).collect()
}
