//! A product as cuBLASLt wants it described: handles that are given back when dropped.

use super::{CUBLAS_BASE, Matrix, TRANSPOSED, call};
use crate::driver::Ptr;
use crate::error::CudaError;
use cudarc::cublaslt::sys;
use half::bf16;

/// One problem, described.
pub(super) struct Shape {
    pub(super) product: Description,
    pub(super) weight: Layout,
    pub(super) input: Layout,
    pub(super) out: Layout,
}

impl Shape {
    pub(super) fn new(matrix: &Matrix, rows: usize, wide: bool) -> Result<Self, CudaError> {
        use sys::cudaDataType_t as Type;
        let out = if wide { Type::CUDA_R_32F } else { Type::CUDA_R_16BF };
        Ok(Self {
            product: Description::new(matrix.bias.map(|bias| bias.ptr()))?,
            weight: Layout::new(Type::CUDA_R_16BF, matrix.ins, matrix.outs)?,
            input: Layout::new(Type::CUDA_R_16BF, matrix.ins, rows)?,
            out: Layout::new(out, matrix.outs, rows)?,
        })
    }
}

pub(super) struct Description(pub(super) sys::cublasLtMatmulDesc_t);

impl Description {
    fn new(bias: Option<Ptr<bf16>>) -> Result<Self, CudaError> {
        use sys::cublasLtMatmulDescAttributes_t as Attribute;
        let mut handle = std::ptr::null_mut();
        let (compute, scale) = (sys::cublasComputeType_t::CUBLAS_COMPUTE_32F, sys::cudaDataType_t::CUDA_R_32F);
        // SAFETY: `handle` is written.
        unsafe { call!(cublasLtMatmulDescCreate(&mut handle, compute, scale))? };
        let made = Self(handle);
        made.set(Attribute::CUBLASLT_MATMUL_DESC_TRANSA, &TRANSPOSED)?;
        if let Some(bias) = bias {
            made.set(Attribute::CUBLASLT_MATMUL_DESC_EPILOGUE, &sys::cublasLtEpilogue_t::CUBLASLT_EPILOGUE_BIAS)?;
            made.set(Attribute::CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias.address())?;
        }
        Ok(made)
    }

    fn set<T>(&self, attribute: sys::cublasLtMatmulDescAttributes_t, value: &T) -> Result<(), CudaError> {
        let (value, bytes) = (std::ptr::from_ref(value).cast(), size_of::<T>());
        // SAFETY: the value has its own size, which the library compares with the attribute's.
        unsafe { call!(cublasLtMatmulDescSetAttribute(self.0, attribute, value, bytes)) }
    }
}

impl Drop for Description {
    fn drop(&mut self) {
        // SAFETY: made in `new`. A failure has no remedy here.
        let _ = unsafe { call!(cublasLtMatmulDescDestroy(self.0)) };
    }
}

pub(super) struct Layout(pub(super) sys::cublasLtMatrixLayout_t);

impl Layout {
    fn new(element: sys::cudaDataType_t, rows: usize, cols: usize) -> Result<Self, CudaError> {
        let mut handle = std::ptr::null_mut();
        // SAFETY: `handle` is written.
        unsafe { call!(cublasLtMatrixLayoutCreate(&mut handle, element, rows as u64, cols as u64, rows as i64))? };
        Ok(Self(handle))
    }
}

impl Drop for Layout {
    fn drop(&mut self) {
        // SAFETY: made in `new`. A failure has no remedy here.
        let _ = unsafe { call!(cublasLtMatrixLayoutDestroy(self.0)) };
    }
}

pub(super) struct Preference(pub(super) sys::cublasLtMatmulPreference_t);

impl Preference {
    pub(super) fn new(workspace_bytes: usize) -> Result<Self, CudaError> {
        let mut handle = std::ptr::null_mut();
        // SAFETY: `handle` is written.
        unsafe { call!(cublasLtMatmulPreferenceCreate(&mut handle))? };
        let made = Self(handle);
        let which = sys::cublasLtMatmulPreferenceAttributes_t::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES;
        let (value, bytes) = (std::ptr::from_ref(&workspace_bytes).cast(), size_of::<usize>());
        // SAFETY: the attribute is a 64-bit number.
        unsafe { call!(cublasLtMatmulPreferenceSetAttribute(made.0, which, value, bytes))? };
        Ok(made)
    }
}

impl Drop for Preference {
    fn drop(&mut self) {
        // SAFETY: made in `new`. A failure has no remedy here.
        let _ = unsafe { call!(cublasLtMatmulPreferenceDestroy(self.0)) };
    }
}
