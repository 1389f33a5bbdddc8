//! Files that are read at the start alone.

use super::Seen;
use anyhow::Context;
use std::path::Path;

/// What is in a file of the config. What runs goes on with what that held at the start, whatever became of it: under the same name
/// a reload is not about it, and must not fail for it.
pub(super) fn read<T: Clone + PartialEq>(
    key: &'static str,
    file: &Path,
    running: Option<&T>,
    read: impl FnOnce(&Path) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let found = Seen::of([file.to_owned()]).check_regular().and_then(|()| read(file)).context(key);
    let Some(running) = running else { return found };
    match found {
        Ok(found) if found == *running => {}
        Ok(_) => tracing::warn!("{key}: {} has changed, which counts from the next start on", file.display()),
        Err(error) => tracing::warn!("{error:#}; what it held at the start goes on until the next one"),
    }
    Ok(running.clone())
}
