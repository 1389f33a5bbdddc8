//! Matrix products by cuBLASLt, through as little of it as linear layers need.
//!
//! A product is `out[rows, m] = input[rows, k] * weight[m, k]^T + bias[m]`, all row-major: to cuBLASLt, which is
//! column-major, the transposed weight times the input. Sums are f32; the output is bf16, or f32 for logits.
//!
//! The algorithm is what the library's heuristic ranks first for the number of rows, asked once for each. With
//! [`Algorithms::Fixed`] it is the one for the largest batch whatever the rows, so that a row's result does not
//! depend on the rows beside it; small batches pay for that.

use crate::driver::{Ptr, Slice, Stream};
use crate::error::CudaError;
use crate::probe::{NoCuda, require_library};
use cudarc::cublaslt::sys;
use half::bf16;
use std::collections::HashMap;
use std::ffi::c_void;

/// What this file calls.
const ENTRY_POINTS: &[&str] = &[
    "cublasLtCreate",
    "cublasLtDestroy",
    "cublasLtMatmulDescCreate",
    "cublasLtMatmulDescDestroy",
    "cublasLtMatmulDescSetAttribute",
    "cublasLtMatrixLayoutCreate",
    "cublasLtMatrixLayoutDestroy",
    "cublasLtMatmulPreferenceCreate",
    "cublasLtMatmulPreferenceDestroy",
    "cublasLtMatmulPreferenceSetAttribute",
    "cublasLtMatmulAlgoGetHeuristic",
    "cublasLtMatmul",
];

/// Scratch memory that algorithms may use; what NVIDIA advises for Hopper.
pub const WORKSPACE_BYTES: usize = 32 << 20;

/// `CUBLAS_OP_T`, of a header that cudarc does not bind here.
const TRANSPOSED: i32 = 1;

/// A call as a `Result`. Its numbers are cuBLAS's, moved out of the way of the driver's.
macro_rules! call {
    ($name:ident($($arg:expr),* $(,)?)) => {
        match sys::$name($($arg),*) as i32 {
            0 => Ok(()),
            status => Err(CudaError { call: stringify!($name), code: CUBLAS_BASE + status }),
        }
    };
}

/// Added to cuBLAS's status numbers.
pub const CUBLAS_BASE: i32 = 100_000;

/// Which algorithm serves a number of rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithms {
    /// The best for it.
    Best,
    /// The one for the largest batch.
    Fixed,
}

/// A weight matrix with what happens to its products.
#[derive(Clone, Copy, Debug)]
pub struct Matrix {
    /// `[outs, ins]`
    pub weight: Slice<bf16>,
    /// `[outs]`
    pub bias: Option<Slice<bf16>>,
    /// Outputs.
    pub outs: usize,
    /// Inputs.
    pub ins: usize,
}

/// Where a product goes.
#[derive(Clone, Copy, Debug)]
pub enum Product {
    /// Activations.
    Bf16(Slice<bf16>),
    /// Logits.
    F32(Slice<f32>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Key {
    outs: usize,
    ins: usize,
    rows: usize,
    wide: bool,
    biased: bool,
}

/// The library's handle, and the algorithms that it was asked for.
#[derive(Debug)]
pub struct Blas {
    handle: sys::cublasLtHandle_t,
    workspace: Slice<u8>,
    algorithms: Algorithms,
    max_rows: usize,
    chosen: HashMap<Key, sys::cublasLtMatmulAlgo_t>,
}

// SAFETY: a handle may be used from any thread, by one at a time.
unsafe impl Send for Blas {}

/// Whether the library is there; before anything else of this file.
pub fn probe() -> Result<(), NoCuda> {
    require_library("libcublasLt", &["libcublasLt.so", "libcublasLt.so.13"], ENTRY_POINTS)
}

impl Blas {
    /// For batches of up to `max_rows` rows. [`probe`] must have succeeded.
    pub fn new(workspace: Slice<u8>, max_rows: usize, algorithms: Algorithms) -> Result<Self, CudaError> {
        let mut handle = std::ptr::null_mut();
        // SAFETY: the library is there; `handle` is written.
        unsafe { call!(cublasLtCreate(&mut handle))? };
        Ok(Self { handle, workspace, algorithms, max_rows, chosen: HashMap::new() })
    }

    /// Queues a product of the first `rows` rows.
    pub fn multiply(
        &mut self,
        stream: &Stream,
        matrix: &Matrix,
        rows: usize,
        input: Slice<bf16>,
        out: Product,
    ) -> Result<(), CudaError> {
        if rows == 0 {
            return Ok(());
        }
        let (ptr, room) = match out {
            Product::Bf16(out) => (out.ptr().address(), out.len()),
            Product::F32(out) => (out.ptr().address(), out.len()),
        };
        let fits = room >= rows * matrix.outs && input.len() >= rows * matrix.ins;
        if !fits || matrix.weight.len() < matrix.outs * matrix.ins {
            return Err(CudaError { call: "cublasLtMatmul", code: 1 });
        }
        let wide = matches!(out, Product::F32(_));
        let shape = Shape::new(matrix, rows, wide)?;
        let algorithm = self.algorithm(matrix, rows, wide)?;
        let (one, zero) = (1f32, 0f32);
        let pointer = |address: u64| address as *const c_void;
        // SAFETY: the shapes were compared with the buffers above; the device reads and writes them in stream order.
        unsafe {
            call!(cublasLtMatmul(
                self.handle,
                shape.product.0,
                std::ptr::from_ref(&one).cast(),
                pointer(matrix.weight.ptr().address()),
                shape.weight.0,
                pointer(input.ptr().address()),
                shape.input.0,
                std::ptr::from_ref(&zero).cast(),
                pointer(ptr),
                shape.out.0,
                pointer(ptr).cast_mut(),
                shape.out.0,
                &algorithm,
                pointer(self.workspace.ptr().address()).cast_mut(),
                self.workspace.bytes(),
                stream.raw().cast(),
            ))
        }
    }

    fn algorithm(&mut self, matrix: &Matrix, rows: usize, wide: bool) -> Result<sys::cublasLtMatmulAlgo_t, CudaError> {
        let rows = if self.algorithms == Algorithms::Fixed { self.max_rows.max(rows) } else { rows };
        let key = Key { outs: matrix.outs, ins: matrix.ins, rows, wide, biased: matrix.bias.is_some() };
        if let Some(found) = self.chosen.get(&key) {
            return Ok(*found);
        }
        let found = self.ask(&Shape::new(matrix, rows, wide)?)?;
        self.chosen.insert(key, found);
        Ok(found)
    }

    /// The heuristic's first choice.
    fn ask(&self, shape: &Shape) -> Result<sys::cublasLtMatmulAlgo_t, CudaError> {
        let preference = Preference::new(self.workspace.bytes())?;
        // SAFETY: a struct of numbers, for which zero is a value.
        let mut result: sys::cublasLtMatmulHeuristicResult_t = unsafe { std::mem::zeroed() };
        let mut count = 0;
        // SAFETY: all handles are alive; one result is asked for, and there is room for one.
        unsafe {
            call!(cublasLtMatmulAlgoGetHeuristic(
                self.handle,
                shape.product.0,
                shape.weight.0,
                shape.input.0,
                shape.out.0,
                shape.out.0,
                preference.0,
                1,
                &mut result,
                &mut count,
            ))?;
        }
        if count == 0 {
            let status = sys::cublasStatus_t::CUBLAS_STATUS_NOT_SUPPORTED as i32;
            return Err(CudaError { call: "cublasLtMatmulAlgoGetHeuristic", code: CUBLAS_BASE + status });
        }
        Ok(result.algo)
    }
}

impl Drop for Blas {
    fn drop(&mut self) {
        // SAFETY: made in `new`. A failure has no remedy here.
        let _ = unsafe { call!(cublasLtDestroy(self.handle)) };
    }
}

/// One problem, described.
struct Shape {
    product: Description,
    weight: Layout,
    input: Layout,
    out: Layout,
}

impl Shape {
    fn new(matrix: &Matrix, rows: usize, wide: bool) -> Result<Self, CudaError> {
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

struct Description(sys::cublasLtMatmulDesc_t);

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

struct Layout(sys::cublasLtMatrixLayout_t);

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

struct Preference(sys::cublasLtMatmulPreference_t);

impl Preference {
    fn new(workspace_bytes: usize) -> Result<Self, CudaError> {
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
