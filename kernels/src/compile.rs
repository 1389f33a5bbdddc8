//! The kernels as images for this device: compiled by NVRTC when the program starts, and kept on disk.
//!
//! A kept image is named by a digest of everything that it is made of (sources, options, architecture, compiler) and
//! begins with a digest of itself, so that a file that was cut short or changed is compiled again and never loaded.

use crate::kept;
use crate::probe::{NoCuda, require_library};
use cudarc::nvrtc::sys;
use std::ffi::{CStr, CString, c_char};
use std::path::Path;

/// What this file calls.
const ENTRY_POINTS: &[&str] = &[
    "nvrtcVersion",
    "nvrtcCreateProgram",
    "nvrtcDestroyProgram",
    "nvrtcCompileProgram",
    "nvrtcGetProgramLogSize",
    "nvrtcGetProgramLog",
    "nvrtcGetCUBINSize",
    "nvrtcGetCUBIN",
];

/// A source by its name.
#[derive(Clone, Copy, Debug)]
pub struct Source {
    /// As `#include` names it.
    pub name: &'static str,
    /// Its text.
    pub text: &'static str,
}

macro_rules! sources {
    ($($name:literal),* $(,)?) => {
        &[$(Source { name: $name, text: include_str!(concat!("../cuda/", $name)) }),*]
    };
}

/// Every kernel file.
pub const KERNELS: &[Source] = sources![
    "add_rms_norm.cu",
    "attend_prefill.cu",
    "attend_split.cu",
    "embed.cu",
    "gated_activation.cu",
    "rope_cache.cu",
    "sample.cu",
];

/// What they include.
pub const HEADERS: &[Source] = sources!["attention.cuh", "common.cuh", "philox.cuh", "select.cuh"];

/// Why there are no images.
#[derive(Debug, thiserror::Error)]
pub enum CompileError {
    /// The compiler's library is not there.
    #[error(transparent)]
    NoCompiler(#[from] NoCuda),
    /// NVRTC refused a call.
    #[error("{call} failed with {code}")]
    Call {
        /// The entry point.
        call: &'static str,
        /// NVRTC's number.
        code: i32,
    },
    /// A kernel does not compile.
    #[error("{name} does not compile for {arch}:\n{log}")]
    Source {
        /// The file.
        name: &'static str,
        /// The architecture.
        arch: String,
        /// What the compiler said.
        log: String,
    },
}

macro_rules! call {
    ($name:ident($($arg:expr),* $(,)?)) => {
        match sys::$name($($arg),*) as i32 {
            0 => Ok(()),
            code => Err(CompileError::Call { call: stringify!($name), code }),
        }
    };
}

/// The name that NVRTC knows a compute capability by; Hopper's own instructions need the `a`.
pub fn arch_name((major, minor): (i32, i32)) -> String {
    let suffix = if (major, minor) == (9, 0) { "a" } else { "" };
    format!("sm_{major}{minor}{suffix}")
}

/// All images for an architecture, from `cache` where they are, compiled and put there where they are not. A cache
/// that cannot be written costs time at the next start and nothing else.
pub fn images(arch: &str, cache: Option<&Path>) -> Result<Vec<Vec<u8>>, CompileError> {
    require_library("libnvrtc", &["libnvrtc.so", "libnvrtc.so.13"], ENTRY_POINTS)?;
    let version = version()?;
    let image = |source: &'static Source| {
        let path = cache.map(|folder| folder.join(file_name(source, arch, version)));
        if let Some(kept) = path.as_deref().and_then(kept::read) {
            return Ok(kept);
        }
        let image = compile(source, arch)?;
        path.as_deref().map(|path| kept::write(path, &image));
        Ok(image)
    };
    // A second for each file on one core; they do not share anything.
    std::thread::scope(|scope| {
        let workers: Vec<_> = KERNELS.iter().map(|source| scope.spawn(move || image(source))).collect();
        let join = |worker: std::thread::ScopedJoinHandle<'_, Result<Vec<u8>, CompileError>>| {
            worker.join().unwrap_or(Err(CompileError::Call { call: "nvrtcCompileProgram", code: -1 }))
        };
        workers.into_iter().map(join).collect()
    })
}

fn version() -> Result<(i32, i32), CompileError> {
    let (mut major, mut minor) = (0, 0);
    // SAFETY: both are written.
    unsafe { call!(nvrtcVersion(&mut major, &mut minor))? };
    Ok((major, minor))
}

fn options(arch: &str) -> [String; 2] {
    [format!("--gpu-architecture={arch}"), "--std=c++17".to_owned()]
}

fn file_name(source: &Source, arch: &str, version: (i32, i32)) -> String {
    let mut hasher = blake3::Hasher::new();
    for Source { name, text } in HEADERS.iter().chain([source]) {
        hasher.update(&(name.len() as u64).to_le_bytes()).update(name.as_bytes());
        hasher.update(&(text.len() as u64).to_le_bytes()).update(text.as_bytes());
    }
    hasher.update(format!("{version:?} {:?}", options(arch)).as_bytes());
    format!("{}-{arch}-{}.cubin", source.name.trim_end_matches(".cu"), &hasher.finalize().to_hex()[..24])
}

/// A program of NVRTC's, given back when dropped.
struct Program(sys::nvrtcProgram);

impl Program {
    fn new(source: &Source) -> Result<Self, CompileError> {
        let text = |text: &str| CString::new(text).unwrap_or_default();
        let (names, texts): (Vec<CString>, Vec<CString>) =
            HEADERS.iter().map(|header| (text(header.name), text(header.text))).unzip();
        let pointers = |all: &[CString]| all.iter().map(|text| text.as_ptr()).collect::<Vec<*const c_char>>();
        let (text, name) = (text(source.text), text(source.name));
        let (count, texts, names) = (HEADERS.len() as i32, pointers(&texts), pointers(&names));
        let mut program = std::ptr::null_mut();
        // SAFETY: all texts end in zero and outlive the call, which copies them; `program` is written.
        unsafe {
            call!(nvrtcCreateProgram(
                &mut program,
                text.as_ptr(),
                name.as_ptr(),
                count,
                texts.as_ptr(),
                names.as_ptr()
            ))?;
        }
        Ok(Self(program))
    }

    fn log(&self) -> String {
        let mut bytes = 0;
        // SAFETY: `bytes` is written.
        if unsafe { call!(nvrtcGetProgramLogSize(self.0, &mut bytes)) }.is_err() {
            return String::new();
        }
        let mut log = vec![0u8; bytes + 1];
        // SAFETY: as many bytes as were asked for, and one more that stays zero.
        let got = unsafe { call!(nvrtcGetProgramLog(self.0, log.as_mut_ptr().cast())) };
        let text = CStr::from_bytes_until_nul(&log).map(|text| text.to_string_lossy().into_owned());
        got.ok().and(text.ok()).unwrap_or_default()
    }

    fn image(&self) -> Result<Vec<u8>, CompileError> {
        let mut bytes = 0;
        // SAFETY: `bytes` is written.
        unsafe { call!(nvrtcGetCUBINSize(self.0, &mut bytes))? };
        let mut image = vec![0u8; bytes];
        // SAFETY: as many bytes as were asked for.
        unsafe { call!(nvrtcGetCUBIN(self.0, image.as_mut_ptr().cast()))? };
        Ok(image)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: made in `new`. A failure has no remedy here.
        let _ = unsafe { call!(nvrtcDestroyProgram(&mut self.0)) };
    }
}

fn compile(source: &'static Source, arch: &str) -> Result<Vec<u8>, CompileError> {
    let program = Program::new(source)?;
    let options = options(arch).map(|option| CString::new(option).unwrap_or_default());
    let pointers = options.each_ref().map(|option| option.as_ptr());
    // SAFETY: as many options as it says, which end in zero.
    let compiled = unsafe { call!(nvrtcCompileProgram(program.0, pointers.len() as i32, pointers.as_ptr())) };
    if compiled.is_err() {
        return Err(CompileError::Source { name: source.name, arch: arch.to_owned(), log: program.log() });
    }
    program.image()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kernel_file_is_listed() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("cuda");
        let names = std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
        let mut found: Vec<String> = names.collect();
        let mut listed: Vec<&str> = KERNELS.iter().chain(HEADERS).map(|source| source.name).collect();
        found.sort();
        listed.sort_unstable();
        assert_eq!(found, listed);
    }

    #[test]
    fn names_differ_by_source_architecture_and_compiler() {
        let name = |source: usize, arch, version| file_name(&KERNELS[source], arch, version);
        let all = [
            name(0, "sm_80", (13, 0)),
            name(1, "sm_80", (13, 0)),
            name(0, "sm_90a", (13, 0)),
            name(0, "sm_80", (13, 1)),
        ];
        let distinct: std::collections::HashSet<_> = all.iter().collect();
        assert_eq!(distinct.len(), 4);
        assert_eq!(arch_name((9, 0)), "sm_90a");
        assert_eq!(arch_name((10, 0)), "sm_100");
    }
}
