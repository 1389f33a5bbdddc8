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
    fn add_to(&self, hasher: &mut blake3::Hasher) {
        hasher.update(self.name.as_bytes()).update(self.text.as_bytes());
    }
}

impl Build<'_> {
    /// The path of the library, built now or earlier. `Err` inside: there is no compiler here.
    pub fn library(&self) -> Result<Result<PathBuf, Skip>> {
        let Some(compiler) = compiler() else {
            let why = "no C++ compiler (tried $CXX, g++, clang++): the CUDA kernels are not tested".to_owned();
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
        Ok(Ok(self.compile(&compiler, &sources)?))
    }

    fn compile(&self, compiler: &str, sources: &[Source]) -> Result<PathBuf> {
        let folder = out_folder()?;
        let (units, headers): (Vec<&Source>, Vec<&Source>) =
            sources.iter().partition(|s| s.name.ends_with(".cu") || s.name == "driver.cpp");
        let mut flags = vec!["-std=c++17", "-O1", "-fPIC", "-DCUEMU", "-ffp-contract=off", "-fvisibility=hidden"];
        // `-w`: NVIDIA's pragmas are unknown here, and nvcc is the compiler whose warnings count.
        flags.push("-w");
        if self.sanitized {
            flags.extend(["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-g1"]);
        }
        let mut common = blake3::Hasher::new();
        common.update(compiler.as_bytes()).update(flags.join(" ").as_bytes());
        headers.iter().for_each(|header| header.add_to(&mut common));
        let mut all = common.clone();
        units.iter().for_each(|unit| unit.add_to(&mut all));
        let library = folder.join(format!("libcuda-{}.so", digest(&all)));
        if library.exists() {
            return Ok(library);
        }
        let include = folder.join(format!("include-{}", digest(&common)));
        write_headers(&include, &headers)?;
        let mut objects = Vec::new();
        for unit in units {
            let mut hasher = common.clone();
            unit.add_to(&mut hasher);
            let object = folder.join(format!("{}-{}.o", unit.name, digest(&hasher)));
            if !object.exists() {
                let source = object.with_extension("cpp");
                std::fs::write(&source, &unit.text)?;
                let mut command = Command::new(compiler);
                command.args(&flags).arg("-I").arg(&include).arg("-c").arg(&source);
                run_to(command, &object)?;
            }
            objects.push(object);
        }
        let mut command = Command::new(compiler);
        command.args(&flags).args(["-shared", "-Wl,-soname,libcuda.so"]).args(&objects);
        run_to(command, &library)?;
        Ok(library)
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
