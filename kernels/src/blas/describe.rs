//! A product as cuBLASLt wants it described: handles that are given back when dropped.

use super::{CUBLAS_BASE, Element, Matrix, TRANSPOSED, call};
use crate::driver::Ptr;
use crate::error::CudaError;
use cudarc::cublaslt::sys;

/// One problem, described.
pub(super) struct Shape {
    pub(super) product: Description,
    pub(super) weight: Layout,
    pub(super) input: Layout,
    pub(super) out: Layout,
}

impl Shape {
    /// `scale` is the input's factor, `out` the type of the output.
    pub(super) fn new(
        matrix: &Matrix,
        rows: usize,
        (scale, out): (Option<Ptr<f32>>, Element),
    ) -> Result<Self, CudaError> {
        let element = matrix.weight.element.kind();
        Ok(Self {
            product: Description::new(matrix.bias.map(|bias| bias.address), [matrix.weight.scale, scale])?,
            weight: Layout::new(element, matrix.ins, matrix.outs)?,
            input: Layout::new(element, matrix.ins, rows)?,
            out: Layout::new(out.kind(), matrix.outs, rows)?,
        })
    }
}

pub(super) struct Description(pub(super) sys::cublasLtMatmulDesc_t);

impl Description {
    fn new(bias: Option<u64>, scales: [Option<Ptr<f32>>; 2]) -> Result<Self, CudaError> {
        use sys::cublasLtMatmulDescAttributes_t as Attribute;
        let mut handle = std::ptr::null_mut();
        let (compute, scale) = (sys::cublasComputeType_t::CUBLAS_COMPUTE_32F, sys::cudaDataType_t::CUDA_R_32F);
        // SAFETY: `handle` is written.
        unsafe { call!(cublasLtMatmulDescCreate(&mut handle, compute, scale))? };
        let made = Self(handle);
        made.set(Attribute::CUBLASLT_MATMUL_DESC_TRANSA, &TRANSPOSED)?;
        if let Some(bias) = bias {
            made.set(Attribute::CUBLASLT_MATMUL_DESC_EPILOGUE, &sys::cublasLtEpilogue_t::CUBLASLT_EPILOGUE_BIAS)?;
            made.set(Attribute::CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias)?;
        }
        let which = [Attribute::CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, Attribute::CUBLASLT_MATMUL_DESC_B_SCALE_POINTER];
        for (attribute, scale) in which.into_iter().zip(scales) {
            scale.map_or(Ok(()), |scale| made.set(attribute, &scale.address()))?;
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
