//! Matrix products by cuBLASLt, through as little of it as linear layers need.
//!
//! A product is `out[rows, m] = input[rows, k] * weight[m, k]^T + bias[m]`, all row-major: to cuBLASLt, which is
//! column-major, the transposed weight times the input. Sums are f32; the output is bf16 or f16, or f32 for logits. The
//! operands are both bf16, both f16, or both FP8 with a factor each; the kernels around are bf16, and so are models.
//!
//! Algorithms are chosen for a few numbers of rows; a batch takes that of the next larger one. [`Blas::tune`] times what
//! the library's heuristic proposes for each, once for a device and version of the library; what it has not timed takes
//! the heuristic's first. With [`Algorithms::Fixed`] it is one of the heuristic's for a middling batch whatever the rows, so
//! that a row's result depends neither on the rows beside it nor on what was faster one day; the smallest batches and the
//! largest pay for it.
//! Read next: `blas/tuning.rs`.

mod describe;
mod operand;
mod tuning;

use crate::driver::{Ptr, Slice, Stream};
use crate::error::CudaError;
use crate::probe::{NoCuda, require_library};
use cudarc::cublaslt::sys;
use describe::{Preference, Shape};
pub use operand::{E4m3, Element, Operand, Product};
use std::collections::HashMap;
use std::ffi::c_void;
pub use tuning::Bench;

/// What this file calls.
const ENTRY_POINTS: &[&str] = &[
    "cublasLtCreate",
    "cublasLtDestroy",
    "cublasLtGetVersion",
    "cublasLtMatmulDescCreate",
    "cublasLtMatmulDescDestroy",
    "cublasLtMatmulDescSetAttribute",
    "cublasLtMatrixLayoutCreate",
    "cublasLtMatrixLayoutDestroy",
    "cublasLtMatmulPreferenceCreate",
    "cublasLtMatmulPreferenceDestroy",
    "cublasLtMatmulPreferenceSetAttribute",
    "cublasLtMatmulAlgoGetHeuristic",
    "cublasLtMatmulAlgoCheck",
    "cublasLtMatmul",
];

/// Algorithms that are looked at for each; the heuristic's order is good, and the best is rarely further back.
const CANDIDATES: usize = 6;

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
use call;

/// Added to cuBLAS's status numbers.
pub const CUBLAS_BASE: i32 = 100_000;
const INVALID_VALUE: i32 = CUBLAS_BASE + sys::cublasStatus_t::CUBLAS_STATUS_INVALID_VALUE as i32;
const NOT_SUPPORTED: i32 = CUBLAS_BASE + sys::cublasStatus_t::CUBLAS_STATUS_NOT_SUPPORTED as i32;

/// Whether an algorithm does not do for a shape; nothing was queued.
fn is_refusal(error: CudaError) -> bool {
    matches!(error.code, INVALID_VALUE | NOT_SUPPORTED)
}

/// Numbers of rows that algorithms are chosen for, and the powers of two above them: those that graphs are made for.
const BUCKETS: [usize; 14] = [1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 160, 192, 256];

/// The rows that a fixed algorithm is proposed for: between decoding batches and prompts. On an H100 and in the shapes of an
/// 8B model decoding took 6 to 47 % more than with the best ones, and prompts 10 %; with one that is proposed for 8192 rows,
/// 39 to 88 % and 2 %.
const FIXED_ROWS: usize = 256;

/// Which algorithm serves a number of rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithms {
    /// The fastest for it.
    Best,
    /// One for all.
    Fixed,
}

/// A weight matrix with what happens to its products.
#[derive(Clone, Copy, Debug)]
pub struct Matrix {
    /// `[outs, ins]`
    pub weight: Operand,
    /// `[outs]`, of the output's type.
    pub bias: Option<Operand>,
    /// Outputs.
    pub outs: usize,
    /// Inputs.
    pub ins: usize,
}

/// What an algorithm is chosen for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Key {
    outs: usize,
    ins: usize,
    rows: usize,
    /// Of both operands.
    element: Element,
    out: Element,
    biased: bool,
}

impl Key {
    fn new(matrix: &Matrix, rows: usize, out: Element) -> Self {
        let Matrix { weight, bias, outs, ins } = matrix;
        Self { outs: *outs, ins: *ins, rows, element: weight.element, out, biased: bias.is_some() }
    }
}

/// A product with its addresses.
struct Call<'a> {
    matrix: &'a Matrix,
    input: Operand,
    out: u64,
    shape: &'a Shape,
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
        input: impl Into<Operand>,
        out: Product,
    ) -> Result<(), CudaError> {
        let input = input.into();
        if rows == 0 {
            return Ok(());
        }
        let fits = out.len() >= rows * matrix.outs && input.len >= rows * matrix.ins;
        if !fits || matrix.weight.len < matrix.outs * matrix.ins || matrix.weight.element != input.element {
            return Err(CudaError { call: "cublasLtMatmul", code: 1 });
        }
        let of = (input.scale, out.element());
        let shape = Shape::new(matrix, rows, of)?;
        let call = Call { matrix, input, out: out.address(), shape: &shape };
        let algorithm = self.algorithm(matrix, self.bucket(rows), of)?;
        match self.queue(stream, &call, &algorithm) {
            // An algorithm for more rows need not take fewer; where one was promised for all, that is an error.
            Err(error) if is_refusal(error) && self.algorithms == Algorithms::Best && self.bucket(rows) != rows => {
                let algorithm = self.algorithm(matrix, rows, of)?;
                self.queue(stream, &call, &algorithm)
            }
            done => done,
        }
    }

    fn queue(&self, stream: &Stream, call: &Call<'_>, algorithm: &sys::cublasLtMatmulAlgo_t) -> Result<(), CudaError> {
        let Call { matrix, input, out, shape } = call;
        let (one, zero) = (1f32, 0f32);
        let pointer = |address: u64| address as *const c_void;
        // SAFETY: the shapes were compared with the buffers above; the device reads and writes them in stream order.
        unsafe {
            call!(cublasLtMatmul(
                self.handle,
                shape.product.0,
                std::ptr::from_ref(&one).cast(),
                pointer(matrix.weight.address),
                shape.weight.0,
                pointer(input.address),
                shape.input.0,
                std::ptr::from_ref(&zero).cast(),
                pointer(*out),
                shape.out.0,
                pointer(*out).cast_mut(),
                shape.out.0,
                algorithm,
                pointer(self.workspace.ptr().address()).cast_mut(),
                self.workspace.bytes(),
                stream.raw().cast(),
            ))
        }
    }

    /// The number of rows whose algorithm `rows` rows take.
    fn bucket(&self, rows: usize) -> usize {
        match self.algorithms {
            Algorithms::Fixed => self.max_rows,
            Algorithms::Best => self.buckets().find(|bucket| *bucket >= rows).unwrap_or(rows),
        }
    }

    /// All that algorithms are chosen for, in order.
    fn buckets(&self) -> impl Iterator<Item = usize> + use<> {
        let max_rows = self.max_rows;
        let above = (0..).map(|power| 512usize << power).take_while(move |bucket| *bucket < max_rows);
        BUCKETS.into_iter().take_while(move |bucket| *bucket < max_rows).chain(above).chain([max_rows])
    }

    /// `of`: the input's factor, and the output's type.
    fn algorithm(
        &mut self,
        matrix: &Matrix,
        rows: usize,
        of: (Option<Ptr<f32>>, Element),
    ) -> Result<sys::cublasLtMatmulAlgo_t, CudaError> {
        let key = Key::new(matrix, rows, of.1);
        if let Some(found) = self.chosen.get(&key) {
            return Ok(*found);
        }
        let found = match self.algorithms {
            Algorithms::Best => self.propose(&Shape::new(matrix, rows, of)?, 1)?[0],
            Algorithms::Fixed => self.fixed(matrix, of)?,
        };
        self.chosen.insert(key, found);
        Ok(found)
    }

    /// The first proposal that takes one row and the most: of those for [`FIXED_ROWS`], for the most, and for one.
    fn fixed(&self, matrix: &Matrix, of: (Option<Ptr<f32>>, Element)) -> Result<sys::cublasLtMatmulAlgo_t, CudaError> {
        let shape = |rows| Shape::new(matrix, rows, of);
        let (one, most) = (shape(1)?, shape(self.max_rows)?);
        for rows in [FIXED_ROWS.min(self.max_rows), self.max_rows, 1] {
            for algorithm in self.propose(&shape(rows)?, CANDIDATES)? {
                if self.takes(&one, &algorithm)? && self.takes(&most, &algorithm)? {
                    return Ok(algorithm);
                }
            }
        }
        Err(CudaError { call: "cublasLtMatmulAlgoCheck", code: NOT_SUPPORTED })
    }

    /// Whether an algorithm does for a shape, with the workspace that there is.
    fn takes(&self, shape: &Shape, algorithm: &sys::cublasLtMatmulAlgo_t) -> Result<bool, CudaError> {
        // SAFETY: a struct of numbers, for which zero is a value.
        let mut result: sys::cublasLtMatmulHeuristicResult_t = unsafe { std::mem::zeroed() };
        // SAFETY: all handles are alive; `result` is written.
        let checked = unsafe {
            call!(cublasLtMatmulAlgoCheck(
                self.handle,
                shape.product.0,
                shape.weight.0,
                shape.input.0,
                shape.out.0,
                shape.out.0,
                algorithm,
                &mut result,
            ))
        };
        match checked {
            Ok(()) => Ok(result.workspaceSize <= self.workspace.bytes()),
            Err(error) if is_refusal(error) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// What the heuristic proposes, the best by its estimate first: at least one, at most `most`.
    fn propose(&self, shape: &Shape, most: usize) -> Result<Vec<sys::cublasLtMatmulAlgo_t>, CudaError> {
        let preference = Preference::new(self.workspace.bytes())?;
        // SAFETY: a struct of numbers, for which zero is a value.
        let zero: sys::cublasLtMatmulHeuristicResult_t = unsafe { std::mem::zeroed() };
        let (mut results, mut count) = (vec![zero; most], 0);
        // SAFETY: all handles are alive; as many results are asked for as there is room for.
        unsafe {
            call!(cublasLtMatmulAlgoGetHeuristic(
                self.handle,
                shape.product.0,
                shape.weight.0,
                shape.input.0,
                shape.out.0,
                shape.out.0,
                preference.0,
                most as i32,
                results.as_mut_ptr(),
                &mut count,
            ))?;
        }
        results.truncate(usize::try_from(count).unwrap_or(0));
        if results.is_empty() {
            return Err(CudaError { call: "cublasLtMatmulAlgoGetHeuristic", code: NOT_SUPPORTED });
        }
        Ok(results.into_iter().map(|result| result.algo).collect())
    }
}

impl Drop for Blas {
    fn drop(&mut self) {
        // SAFETY: made in `new`. A failure has no remedy here.
        let _ = unsafe { call!(cublasLtDestroy(self.handle)) };
    }
}
