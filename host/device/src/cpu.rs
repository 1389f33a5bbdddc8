//! The fast backend: packed weights, register tiles, paged attention, its own threads.
//!
//! What holds of every instruction set, and is tested: a row's result does not depend, to the bit, on the rows
//! beside it, on how its prompt was cut, on what came from the cache, or on the number of threads. See `gemm` and
//! `attention` for how the order of every sum is fixed.
//!
//! | instruction set | bf16 weights | rounding beyond f32 arithmetic |
//! |---|---|---|
//! | portable, AVX2, AVX-512 | widened to f32, exactly | none |
//! | AVX-512 with BF16 | two-term dot products | activations of linear layers to bf16 |
//! | AMX | the same in tiles, pairs summed in another order | the same |
//!
//! Why the last two round: `docs/decisions/0006`. Weights keep their type (bf16, f16, f32); a cache of bf16 rounds
//! keys and values, see [`CacheElem`]. Tolerances against `reference` are one table in `tests/cpu.rs`. Read next:
//! `cpu/executor.rs`.
#![allow(unsafe_code, reason = "SIMD and buffers shared by threads; every block says why it holds")]
#![allow(clippy::needless_range_loop, reason = "register tiles are arrays indexed by compile-time constants")]

mod attention;
mod cache;
mod executor;
mod gemm;
mod load;
mod memory;
mod norm;
mod pack;
mod pool;
mod simd;

use crate::executor::{Backend, DeviceError, Executor, Limits};
use crate::program::Program;
use crate::weights::{DType, WeightSource};
use simd::Simd;
use simd::portable::Portable;
use std::sync::Arc;

const NAME: &str = "cpu";

/// Instruction sets, best last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Isa {
    /// The best that the processor has.
    #[default]
    Auto,
    /// What the compiler's baseline allows.
    Portable,
    /// AVX2 with FMA and F16C.
    Avx2,
    /// AVX-512F; bit for bit what AVX2 computes.
    Avx512,
    /// AVX-512F with BF16: activations of linear layers over bf16 weights are rounded to bf16.
    Avx512Bf16,
    /// The same with the tiles of AMX; results differ in the last bits, since pairs are summed in another order.
    Amx,
}

/// Element of the key and value cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CacheElem {
    /// bf16 for a model published in bf16, else f32.
    #[default]
    LikeModel,
    /// Half the memory; keys and values are rounded to 8 bits of mantissa.
    Bf16,
    /// Nothing is rounded.
    F32,
}

/// How to compute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuOptions {
    /// Threads of an executor, the caller's included; at least 1.
    pub threads: usize,
    /// Which instructions.
    pub isa: Isa,
    /// What the cache holds.
    pub cache: CacheElem,
}

impl Default for CpuOptions {
    /// As many threads as the process may use, the best instructions, the cache like the model.
    fn default() -> Self {
        let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Self { threads, isa: Isa::Auto, cache: CacheElem::LikeModel }
    }
}

/// An instruction set that the processor has.
#[derive(Clone, Copy, Debug)]
enum Detected {
    Portable(Portable<{ simd::EXACT }>),
    #[cfg(target_arch = "x86_64")]
    Avx2(simd::avx2::Avx2),
    #[cfg(target_arch = "x86_64")]
    Avx512(simd::avx512::Avx512<{ simd::EXACT }>),
    #[cfg(target_arch = "x86_64")]
    Avx512Bf16(simd::avx512::Avx512<{ simd::DOT }>),
    #[cfg(target_arch = "x86_64")]
    Amx(simd::avx512::Avx512<{ simd::TILES }>),
}

impl Detected {
    /// `None` where the processor lacks it.
    #[cfg(target_arch = "x86_64")]
    fn new(isa: Isa) -> Option<Self> {
        use simd::{avx2::Avx2, avx512::Avx512};
        match isa {
            Isa::Portable => Some(Self::Portable(Portable)),
            Isa::Avx2 => Avx2::detect().map(Self::Avx2),
            Isa::Avx512 => Avx512::detect().map(Self::Avx512),
            Isa::Avx512Bf16 => Avx512::detect().map(Self::Avx512Bf16),
            Isa::Amx => Avx512::detect().map(Self::Amx),
            Isa::Auto => {
                let best_first = [Isa::Amx, Isa::Avx512Bf16, Isa::Avx512, Isa::Avx2, Isa::Portable];
                best_first.into_iter().find_map(Self::new)
            }
        }
    }

    /// `None` where the processor lacks it.
    #[cfg(not(target_arch = "x86_64"))]
    fn new(isa: Isa) -> Option<Self> {
        matches!(isa, Isa::Portable | Isa::Auto).then_some(Self::Portable(Portable))
    }

    fn name(self) -> &'static str {
        fn of<S: Simd>(_: S) -> &'static str {
            S::NAME
        }
        match self {
            Self::Portable(s) => of(s),
            #[cfg(target_arch = "x86_64")]
            Self::Avx2(s) => of(s),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512(s) => of(s),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512Bf16(s) => of(s),
            #[cfg(target_arch = "x86_64")]
            Self::Amx(s) => of(s),
        }
    }
}

/// The backend `cpu`.
#[derive(Clone, Copy, Debug)]
pub struct CpuBackend {
    options: CpuOptions,
    detected: Detected,
}

impl CpuBackend {
    /// Refuses instructions that the processor lacks, and zero threads.
    pub fn new(options: CpuOptions) -> Result<Self, DeviceError> {
        let refuse = |what| DeviceError::Unsupported { backend: NAME, what };
        if options.threads == 0 {
            return Err(refuse("0 threads; it needs at least 1".to_owned()));
        }
        let lacks = || refuse(format!("{:?} on this processor; `Auto` takes what it has", options.isa));
        let detected = Detected::new(options.isa).ok_or_else(lacks)?;
        Ok(Self { options, detected })
    }

    fn cache_dtype(&self, program: &Program) -> DType {
        match self.options.cache {
            CacheElem::Bf16 => DType::BF16,
            CacheElem::F32 => DType::F32,
            CacheElem::LikeModel if program.dtype == DType::BF16 => DType::BF16,
            CacheElem::LikeModel => DType::F32,
        }
    }

    fn load_on<S: Simd>(
        &self,
        s: S,
        program: Arc<Program>,
        weights: &dyn WeightSource,
        limits: Limits,
    ) -> Result<Box<dyn Executor>, DeviceError> {
        let dtype = self.cache_dtype(&program);
        Ok(Box::new(executor::CpuExecutor::new(s, self.options.threads, dtype, program, weights, limits)?))
    }
}

impl Backend for CpuBackend {
    fn name(&self) -> &'static str {
        NAME
    }

    fn describe(&self) -> String {
        let threads = self.options.threads;
        format!("{}, {threads} thread{}", self.detected.name(), if threads == 1 { "" } else { "s" })
    }

    fn kv_elem_bytes(&self, program: &Program) -> usize {
        self.cache_dtype(program).size()
    }

    fn kv_bytes_per_token(&self, program: &Program) -> usize {
        cache::bytes_per_token(&program.dims, self.cache_dtype(program))
    }

    fn load(
        &self,
        program: Arc<Program>,
        weights: &dyn WeightSource,
        limits: Limits,
    ) -> Result<Box<dyn Executor>, DeviceError> {
        match self.detected {
            Detected::Portable(s) => self.load_on(s, program, weights, limits),
            #[cfg(target_arch = "x86_64")]
            Detected::Avx2(s) => self.load_on(s, program, weights, limits),
            #[cfg(target_arch = "x86_64")]
            Detected::Avx512(s) => self.load_on(s, program, weights, limits),
            #[cfg(target_arch = "x86_64")]
            Detected::Avx512Bf16(s) => self.load_on(s, program, weights, limits),
            #[cfg(target_arch = "x86_64")]
            Detected::Amx(s) => self.load_on(s, program, weights, limits),
        }
    }
}
