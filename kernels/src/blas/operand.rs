//! What a product is made of: memory with the type of its elements.

use crate::driver::{Ptr, Slice};
use cudarc::cublaslt::sys::cudaDataType_t as Type;
use half::{bf16, f16};

/// The type of a matrix' elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Element {
    /// bf16
    Bf16,
    /// IEEE half precision.
    F16,
    /// FP8 with four bits of exponent and three of mantissa; its matrix has a factor.
    E4m3,
    /// Single precision; of outputs only.
    F32,
}

impl Element {
    pub(super) fn kind(self) -> Type {
        match self {
            Self::Bf16 => Type::CUDA_R_16BF,
            Self::F16 => Type::CUDA_R_16F,
            Self::E4m3 => Type::CUDA_R_8F_E4M3,
            Self::F32 => Type::CUDA_R_32F,
        }
    }
}

/// The bits of an [`Element::E4m3`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct E4m3(pub u8);

/// A matrix that is multiplied.
#[derive(Clone, Copy, Debug)]
pub struct Operand {
    pub(super) address: u64,
    pub(super) len: usize,
    pub(super) element: Element,
    /// What its elements are multiplied by, in device memory.
    pub(super) scale: Option<Ptr<f32>>,
}

impl Operand {
    fn of<T>(slice: Slice<T>, element: Element) -> Self {
        Self { address: slice.ptr().address(), len: slice.len(), element, scale: None }
    }

    /// FP8 elements with the factor of all of them, which the device reads when it multiplies: at an address that 16
    /// divides, as the library asks for.
    pub fn scaled(slice: Slice<E4m3>, scale: Slice<f32>) -> Self {
        Self { scale: Some(scale.ptr()), ..Self::of(slice, Element::E4m3) }
    }
}

impl From<Slice<bf16>> for Operand {
    fn from(slice: Slice<bf16>) -> Self {
        Self::of(slice, Element::Bf16)
    }
}

impl From<Slice<f16>> for Operand {
    fn from(slice: Slice<f16>) -> Self {
        Self::of(slice, Element::F16)
    }
}

/// Where a product goes.
#[derive(Clone, Copy, Debug)]
pub enum Product {
    /// Activations.
    Bf16(Slice<bf16>),
    /// Activations in half precision.
    F16(Slice<f16>),
    /// Logits.
    F32(Slice<f32>),
}

impl Product {
    pub(super) fn address(&self) -> u64 {
        match self {
            Self::Bf16(out) => out.ptr().address(),
            Self::F16(out) => out.ptr().address(),
            Self::F32(out) => out.ptr().address(),
        }
    }

    pub(super) fn len(&self) -> usize {
        match self {
            Self::Bf16(out) => out.len(),
            Self::F16(out) => out.len(),
            Self::F32(out) => out.len(),
        }
    }

    pub(super) fn element(&self) -> Element {
        match self {
            Self::Bf16(_) => Element::Bf16,
            Self::F16(_) => Element::F16,
            Self::F32(_) => Element::F32,
        }
    }
}
