//! NVIDIA's compiler and disassembler from its Python wheels: they need no GPU and no installation.

use anyhow::{Context, Result, bail};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// All of CUDA 13.0, but for the disassembler, of which there is no 13.0; the newer one reads 13.0's cubins.
const WHEELS: [&str; 6] = [
    "nvidia-cuda-nvcc==13.0.88",
    "nvidia-nvvm==13.0.88",
    "nvidia-cuda-crt==13.0.88",
    "nvidia-cuda-runtime==13.0.96",
    "nvidia-cuda-cuobjdump==13.2.86",
    "nvidia-cuda-nvdisasm==13.2.86",
];

/// An unpacked toolkit.
pub struct Toolkit {
    folder: PathBuf,
}

impl Toolkit {
    /// Fetches the wheels into `folder`, unless they are there. `$PYTHON` (or `python3`) brings pip.
    pub fn fetch(folder: &Path, say: &mut dyn FnMut(&str)) -> Result<Self> {
        let toolkit = Self { folder: folder.join("nvidia/cu13") };
        if toolkit.folder.join("complete").exists() {
            return Ok(toolkit);
        }
        say(&format!("fetching {} into {}", WHEELS.join(" "), folder.display()));
        let python = std::env::var_os("PYTHON").unwrap_or_else(|| "python3".into());
        let mut command = Command::new(python);
        command.args(["-m", "pip", "install", "--quiet", "--no-deps", "--no-compile", "--only-binary=:all:"]);
        let status = command.arg("--target").arg(folder).args(WHEELS).status().context("cannot start Python")?;
        if !status.success() {
            bail!("pip could not fetch NVIDIA's compiler");
        }
        for programs in ["bin", "nvvm/bin"] {
            for entry in std::fs::read_dir(toolkit.folder.join(programs))? {
                let path = entry?.path();
                std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755))?;
            }
        }
        std::fs::write(toolkit.folder.join("complete"), "")?;
        Ok(toolkit)
    }

    /// Compiles a kernel file for `sm_ARCH`; gives the log of ptxas.
    pub fn compile(&self, source: &Path, arch: &str, cubin: &Path) -> Result<String> {
        let mut command = Command::new(self.folder.join("bin/nvcc"));
        command.args(["-std=c++17", "-cubin", "-Xptxas", "-v", "--Werror", "all-warnings"]);
        command.arg(format!("-gencode=arch=compute_{arch},code=sm_{arch}")).arg("-o").arg(cubin).arg(source);
        let output = command.output().context("cannot start nvcc")?;
        let log = String::from_utf8_lossy(&output.stderr).into_owned();
        if !output.status.success() {
            bail!("nvcc failed for {} on sm_{arch}:\n{log}", source.display());
        }
        Ok(log)
    }

    /// A cubin's instructions.
    pub fn disassemble(&self, cubin: &Path) -> Result<String> {
        let path = std::env::join_paths(
            std::iter::once(self.folder.join("bin"))
                .chain(std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default())),
        )?;
        let mut command = Command::new(self.folder.join("bin/cuobjdump"));
        let output = command.arg("-sass").arg(cubin).env("PATH", path).output().context("cannot start cuobjdump")?;
        if !output.status.success() {
            bail!("cuobjdump failed for {}:\n{}", cubin.display(), String::from_utf8_lossy(&output.stderr));
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}
