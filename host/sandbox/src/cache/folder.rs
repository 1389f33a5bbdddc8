//! The directory of the cache, where nobody but this user may put what is run as machine code: it is this user's own, no
//! other may write to it, and none can put another in its place. The system's administrator, who may do anything, counts as
//! nobody here.

use crate::error::SandboxError;
use std::fs::{DirBuilder, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// Makes the directory, and gives its real path: a link on the way may lead elsewhere tomorrow.
pub(super) fn make_private(path: &Path) -> Result<PathBuf, SandboxError> {
    let mut builder = DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(path).map_err(|error| unusable(path, &error))?;
    #[cfg(unix)]
    let real = unix::check(path)?;
    #[cfg(not(unix))]
    let real = path.into();
    Ok(real)
}

/// What a file there has; `None` where another user may have written it, be it before the directory was closed to others.
pub(super) fn read_own(path: &Path) -> io::Result<Option<Vec<u8>>> {
    let mut file = File::open(path)?;
    #[cfg(unix)]
    if !unix::is_own(&file, path)? {
        return Ok(None);
    }
    let mut content = Vec::new();
    file.read_to_end(&mut content)?;
    Ok(Some(content))
}

/// Makes a file that nobody else may write to, whatever the process lets others do with what it makes.
pub(super) fn create_own(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)
}

fn unusable(path: &Path, error: &io::Error) -> SandboxError {
    SandboxError::CacheDir { path: path.into(), message: error.to_string() }
}

#[cfg(unix)]
mod unix {
    use super::{Path, PathBuf, SandboxError, io, unusable};
    use crate::cache::part;
    use std::fs::{self, File, Metadata};
    use std::os::unix::fs::MetadataExt;

    /// In a directory that all may write to: each may move its own entries only.
    const STICKY: u32 = 0o1000;

    pub(super) fn check(path: &Path) -> Result<PathBuf, SandboxError> {
        let failed = |error: io::Error| unusable(path, &error);
        let foreign = |why: String| Err(SandboxError::CacheDirForeign { path: path.into(), why });
        if fs::symlink_metadata(path).map_err(failed)?.is_symlink() {
            return foreign("it is a symbolic link".into());
        }
        let real = path.canonicalize().map_err(failed)?;
        let about = fs::symlink_metadata(&real).map_err(failed)?;
        let mode = about.mode() & 0o777;
        if mode & 0o022 != 0 {
            return Err(SandboxError::CacheDirOpen { path: path.into(), mode });
        }
        let own = own_user(&real).map_err(failed)?;
        if about.uid() != own {
            return foreign(format!("it is of user {}, and this is user {own}", about.uid()));
        }
        match replaceable(&real, own).map_err(failed)? {
            Some((folder, about)) => foreign(format!(
                "others may put another in the place of `{}`, for what it lies in is of user {} and group {} and has mode {:o}",
                folder.display(),
                about.uid(),
                about.gid(),
                about.mode() & 0o7777
            )),
            None => Ok(real),
        }
    }

    /// The first of the directory and those that it lies in that others may replace: who owns what it lies in may, and who may
    /// write there, unless it is kept by who owns it. A group that has the user's own number is the user's alone.
    fn replaceable(real: &Path, own: u32) -> io::Result<Option<(&Path, Metadata)>> {
        for (folder, parent) in real.ancestors().zip(real.ancestors().skip(1)) {
            let about = fs::metadata(parent)?;
            let of_others = if about.gid() == own { 0o002 } else { 0o022 };
            let is_kept = |folder: &Metadata| about.mode() & STICKY != 0 && [own, 0].contains(&folder.uid());
            let is_open = about.mode() & of_others != 0 && !is_kept(&fs::metadata(folder)?);
            if is_open || ![own, 0].contains(&about.uid()) {
                return Ok(Some((folder, about)));
            }
        }
        Ok(None)
    }

    /// Whether a file in the directory is its owner's, or the system's, and nobody else may write to it.
    pub(super) fn is_own(file: &File, path: &Path) -> io::Result<bool> {
        let (about, folder) = (file.metadata()?, fs::metadata(path.parent().unwrap_or(path))?);
        Ok(about.mode() & 0o022 == 0 && [folder.uid(), 0].contains(&about.uid()))
    }

    /// As whom this process makes files: the owner of one that it makes. Where it can make none, whose process it is.
    fn own_user(dir: &Path) -> io::Result<u32> {
        let made = part(dir, "owner", |path| File::create_new(path)).and_then(|(file, path)| {
            let about = file.metadata();
            fs::remove_file(path)?;
            about
        });
        let about = made.or_else(|error| fs::metadata("/proc/self").map_err(|_| error))?;
        Ok(about.uid())
    }
}
