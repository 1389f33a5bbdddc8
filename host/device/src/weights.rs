//! Where a backend gets its weights: a checked view of bytes, and nothing about files.

/// Element types of checkpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DType {
    /// 4 bytes.
    F32,
    /// 2 bytes, 5 bits of exponent.
    F16,
    /// 2 bytes, 8 bits of exponent.
    BF16,
}

impl DType {
    /// Bytes of one element.
    pub fn size(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::BF16 => 2,
        }
    }
}

/// A tensor's bytes, little-endian, row-major; `data.len()` is the product of `shape` times the element size
/// (the source has checked that). Not necessarily aligned.
#[derive(Clone, Copy, Debug)]
pub struct TensorView<'a> {
    /// Element type.
    pub dtype: DType,
    /// Row-major shape.
    pub shape: &'a [usize],
    /// The bytes.
    pub data: &'a [u8],
}

/// Gives tensors by name; `model::weights` implements it over mapped safetensors files.
pub trait WeightSource: Send + Sync {
    /// The tensor of that name, or `None`.
    fn tensor(&self, name: &str) -> Option<TensorView<'_>>;
}
