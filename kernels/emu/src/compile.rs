//! Compiles the kernels and the stand-in driver, one object for each source, and links them.

use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Why nothing was built; the test says so and passes, unless [`crate::REQUIRE`] is set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Skip(pub String);

/// A change to a source before it is compiled: to show that a defect is caught.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replacement<'a> {
    /// Name of a file in `kernels/cuda`.
    pub file: &'a str,
    /// Text that stands in it exactly once.
    pub from: &'a str,
    /// What takes its place.
    pub to: &'a str,
}

/// What to build.
#[derive(Clone, Copy, Debug, Default)]
pub struct Build<'a> {
    /// With the address and undefined-behaviour sanitizers.
    pub sanitized: bool,
    /// At most one change.
    pub replacement: Option<Replacement<'a>>,
}

struct Source {
    name: String,
    text: String,
}

impl Source {
    fn is_header(&self) -> bool {
        self.name.ends_with(".h") || self.name.ends_with(".cuh")
    }

    fn add_to(&self, hasher: &mut blake3::Hasher) {
        hasher.update(self.name.as_bytes()).update(self.text.as_bytes());
    }
}

impl Build<'_> {
    /// The libraries, built now or earlier. `Err` inside: there is no compiler here.
    pub fn libraries(&self) -> Result<Result<Libraries, Skip>> {
        let Some(compiler) = compiler() else {
            let why = "no C++ compiler (tried $CXX, g++, clang++): the CUDA backend is not tested".to_owned();
            if std::env::var_os(crate::REQUIRE).is_some() {
                bail!("{why}, and {} is set", crate::REQUIRE);
            }
            return Ok(Err(Skip(why)));
        };
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        let mut sources = read(&here.join("../cuda"))?;
        sources.extend(read(&here.join("cpp"))?);
        if let Some(change) = self.replacement {
            change.apply(&mut sources)?;
        }
        Ok(Ok(Compiler::new(self, compiler, &sources)?.build(&sources)?))
    }
}

/// Paths of the stand-ins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Libraries {
    /// The driver, with all kernels.
    pub cuda: PathBuf,
    /// Matrix products.
    pub cublaslt: PathBuf,
    /// The compiler.
    pub nvrtc: PathBuf,
}

/// How objects are made, and a digest of what they all depend on.
struct Compiler {
    program: String,
    flags: Vec<&'static str>,
    folder: PathBuf,
    include: PathBuf,
    common: blake3::Hasher,
}

impl Compiler {
    fn new(build: &Build<'_>, program: String, sources: &[Source]) -> Result<Self> {
        // `-w`: NVIDIA's pragmas are unknown here, and nvcc is the compiler whose warnings count.
        let mut flags = vec!["-std=c++17", "-O1", "-fPIC", "-DCUEMU", "-ffp-contract=off", "-fvisibility=hidden", "-w"];
        if build.sanitized {
            flags.extend(["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-g1"]);
        }
        let headers: Vec<&Source> = sources.iter().filter(|source| source.is_header()).collect();
        let mut common = blake3::Hasher::new();
        common.update(program.as_bytes()).update(flags.join(" ").as_bytes());
        headers.iter().for_each(|header| header.add_to(&mut common));
        let folder = out_folder()?;
        let include = folder.join(format!("include-{}", digest(&common)));
        write_headers(&include, &headers)?;
        Ok(Self { program, flags, folder, include, common })
    }

    fn build(&self, sources: &[Source]) -> Result<Libraries> {
        let named = |name: &str| sources.iter().filter(|source| source.name == name).collect::<Vec<_>>();
        let mut driver = named("driver.cpp");
        driver.extend(sources.iter().filter(|source| source.name.ends_with(".cu")));
        let cuda = self.link("libcuda.so", &driver, None)?;
        Ok(Libraries {
            cublaslt: self.link("libcublasLt.so", &named("cublaslt.cpp"), Some(&cuda))?,
            nvrtc: self.link("libnvrtc.so", &named("nvrtc.cpp"), None)?,
            cuda,
        })
    }

    /// A library of these sources that answers to `soname`.
    fn link(&self, soname: &str, units: &[&Source], needs: Option<&Path>) -> Result<PathBuf> {
        let mut all = self.common.clone();
        units.iter().for_each(|unit| unit.add_to(&mut all));
        let library = self.folder.join(format!("{}-{}.so", soname.trim_end_matches(".so"), digest(&all)));
        if library.exists() {
            return Ok(library);
        }
        let objects = units.iter().map(|unit| self.object(unit)).collect::<Result<Vec<_>>>()?;
        let mut command = Command::new(&self.program);
        command.args(&self.flags).arg("-shared").arg(format!("-Wl,-soname,{soname}")).args(objects).args(needs);
        run_to(command, &library)?;
        Ok(library)
    }

    fn object(&self, unit: &Source) -> Result<PathBuf> {
        let mut hasher = self.common.clone();
        unit.add_to(&mut hasher);
        let object = self.folder.join(format!("{}-{}.o", unit.name, digest(&hasher)));
        if !object.exists() {
            let source = object.with_extension("cpp");
            std::fs::write(&source, &unit.text)?;
            let mut command = Command::new(&self.program);
            command.args(&self.flags).arg("-I").arg(&self.include).arg("-c").arg(&source);
            run_to(command, &object)?;
        }
        Ok(object)
    }
}

impl Replacement<'_> {
    fn apply(&self, sources: &mut [Source]) -> Result<()> {
        let source = sources.iter_mut().find(|s| s.name == self.file);
        let text = &mut source.with_context(|| format!("there is no {}", self.file))?.text;
        if text.matches(self.from).count() != 1 {
            bail!("`{}` does not stand exactly once in {}", self.from, self.file);
        }
        *text = text.replace(self.from, self.to);
        Ok(())
    }
}

/// The first C++ compiler that answers.
fn compiler() -> Option<String> {
    let named = std::env::var("CXX").ok();
    let candidates = named.into_iter().chain(["g++".to_owned(), "clang++".to_owned()]);
    let mut answering = candidates
        .filter(|name| Command::new(name).arg("--version").output().is_ok_and(|output| output.status.success()));
    answering.next()
}

/// The library to preload for a sanitized build, where the compiler brings one that can be.
pub fn sanitizer_runtime() -> Option<String> {
    let output = Command::new(compiler()?).arg("-print-file-name=libasan.so").output().ok()?;
    let path = String::from_utf8(output.stdout).ok()?.trim().to_owned();
    Path::new(&path).is_absolute().then_some(path)
}

/// Beside the test's own program: `target/PROFILE/emulator`.
fn out_folder() -> Result<PathBuf> {
    let program = std::env::current_exe()?;
    let profile = program.ancestors().find(|folder| folder.join("deps").is_dir());
    let folder = profile.map_or_else(std::env::temp_dir, Path::to_owned).join("emulator");
    std::fs::create_dir_all(&folder)?;
    Ok(folder)
}

fn read(folder: &Path) -> Result<Vec<Source>> {
    let mut sources = Vec::new();
    for entry in std::fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if [".cu", ".cuh", ".cpp", ".h"].iter().any(|end| name.ends_with(end)) {
            sources.push(Source { name, text: std::fs::read_to_string(&path)? });
        }
    }
    sources.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(sources)
}

fn write_headers(folder: &Path, headers: &[&Source]) -> Result<()> {
    std::fs::create_dir_all(folder)?;
    for header in headers {
        let path = folder.join(&header.name);
        if !path.exists() {
            let aside = folder.join(format!("{}.{}", header.name, std::process::id()));
            std::fs::write(&aside, &header.text)?;
            std::fs::rename(&aside, &path)?;
        }
    }
    Ok(())
}

/// Runs a compiler that writes aside, then renames: another process may build the same.
fn run_to(mut command: Command, path: &Path) -> Result<()> {
    let aside = path.with_extension(format!("{}.tmp", std::process::id()));
    let output = command.arg("-o").arg(&aside).output().context("cannot start the C++ compiler")?;
    if !output.status.success() {
        bail!("the C++ compiler failed for {}:\n{}", path.display(), String::from_utf8_lossy(&output.stderr));
    }
    std::fs::rename(&aside, path)?;
    Ok(())
}

fn digest(hasher: &blake3::Hasher) -> String {
    hasher.finalize().to_hex()[..16].to_owned()
}
