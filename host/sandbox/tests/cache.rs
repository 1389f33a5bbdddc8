//! Compiled components on disk: used when whole, compiled again when not, never trusted otherwise.

use crate::support::{ctx, inspect, small, spec};
use std::fs;
use std::path::{Path, PathBuf};
use tidegate_sandbox::{Sandbox, SandboxConfig, SandboxError};

fn sandbox(dir: &Path) -> Sandbox {
    Sandbox::new(SandboxConfig { cache_dir: Some(dir.to_owned()), ..small() }).unwrap()
}

fn files(dir: &Path) -> Vec<PathBuf> {
    let mut files: Vec<_> = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

async fn loads_and_runs(dir: &Path) {
    let plugin = sandbox(dir).load(spec("panics")).unwrap();
    inspect(&plugin, &ctx(), "hello").await.unwrap();
}

#[tokio::test]
async fn a_compiled_component_is_kept_and_used_again() {
    let dir = tempfile::tempdir().unwrap();
    loads_and_runs(dir.path()).await;
    let [file] = &files(dir.path())[..] else { panic!("one file") };
    let written = fs::metadata(file).unwrap().modified().unwrap();
    loads_and_runs(dir.path()).await;
    assert_eq!(fs::metadata(file).unwrap().modified().unwrap(), written, "it was not compiled again");
    assert_eq!(files(dir.path()).len(), 1);
}

#[tokio::test]
async fn a_damaged_file_is_compiled_again_and_replaced() {
    let dir = tempfile::tempdir().unwrap();
    loads_and_runs(dir.path()).await;
    let file = files(dir.path()).remove(0);
    let good = fs::read(&file).unwrap();
    let (mut flipped, mut swapped) = (good.clone(), good.clone());
    flipped[good.len() / 2] ^= 1;
    swapped[0] ^= 1;
    for damaged in [flipped, swapped, good[..good.len() - 1].to_vec(), good[..10].to_vec(), vec![], vec![0; 4096]] {
        fs::write(&file, &damaged).unwrap();
        loads_and_runs(dir.path()).await;
        assert_eq!(fs::read(&file).unwrap().len(), good.len(), "{} bytes were replaced", damaged.len());
        assert_ne!(fs::read(&file).unwrap(), damaged);
    }
}

#[tokio::test]
async fn a_whole_file_under_another_name_is_not_trusted() {
    let dir = tempfile::tempdir().unwrap();
    let sandbox = sandbox(dir.path());
    sandbox.load(spec("panics")).unwrap();
    let panics = files(dir.path()).remove(0);
    sandbox.load(spec("loops")).unwrap();
    let loops = files(dir.path()).into_iter().find(|file| *file != panics).unwrap();
    fs::copy(&loops, &panics).unwrap();
    let plugin = sandbox.load(spec("panics")).unwrap();
    assert_eq!(plugin.descriptor().name, "panics");
}

/// What becomes of them: `a_build_is_put_together_of_the_one_before_where_that_is_whole` of the sandbox.
#[test]
fn functions_are_kept_for_authors_alone() {
    for (for_authors, kept) in [(false, 0), (true, 1)] {
        let dir = tempfile::tempdir().unwrap();
        let config = SandboxConfig { cache_dir: Some(dir.path().to_owned()), for_authors, ..small() };
        Sandbox::new(config).unwrap().load(spec("panics")).unwrap();
        let functions = files(dir.path()).iter().filter(|file| file.extension().unwrap() == "functions").count();
        assert_eq!((functions, files(dir.path()).len()), (kept, kept + 1));
    }
}

#[tokio::test]
async fn the_cache_is_bounded() {
    let dir = tempfile::tempdir().unwrap();
    let config = SandboxConfig { cache_dir: Some(dir.path().to_owned()), cache_bytes: 1, ..small() };
    let sandbox = Sandbox::new(config).unwrap();
    sandbox.load(spec("panics")).unwrap();
    sandbox.load(spec("loops")).unwrap();
    assert_eq!(files(dir.path()).len(), 1, "the newest stays");
}

#[cfg(unix)]
#[test]
fn the_directory_is_private() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let cache = dir.path().join("a/b");
    sandbox(&cache);
    assert_eq!(fs::metadata(&cache).unwrap().permissions().mode() & 0o777, 0o700);
    fs::set_permissions(&cache, fs::Permissions::from_mode(0o777)).unwrap();
    let refused = Sandbox::new(SandboxConfig { cache_dir: Some(cache), ..small() }).err().unwrap();
    assert!(matches!(refused, SandboxError::CacheDirOpen { mode: 0o777, .. }), "{refused}");
}

/// It may be older than the directory's being closed to others.
#[cfg(unix)]
#[test]
fn a_file_that_others_may_write_to_is_not_run() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let load = || sandbox(dir.path()).load(spec("panics")).unwrap();
    let mode = || fs::metadata(&files(dir.path())[0]).unwrap().permissions().mode() & 0o777;
    load();
    assert_eq!(mode(), 0o600);
    for open in [0o620, 0o602, 0o666] {
        fs::set_permissions(&files(dir.path())[0], fs::Permissions::from_mode(open)).unwrap();
        load();
        assert_eq!(mode(), 0o600, "it is compiled again, and another file");
    }
}

#[cfg(unix)]
#[track_caller]
fn is_foreign(dir: &Path, part: &str) {
    let refused = Sandbox::new(SandboxConfig { cache_dir: Some(dir.to_owned()), ..small() }).err().unwrap();
    assert!(matches!(&refused, SandboxError::CacheDirForeign { why, .. } if why.contains(part)), "{refused}");
}

#[cfg(unix)]
#[test]
fn a_directory_of_another_user_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    // Only who may do anything gives files away; for others, most directories of the system are somebody else's.
    let given_away = std::os::unix::fs::chown(dir.path(), Some(12_345), None).is_ok();
    is_foreign(if given_away { dir.path() } else { Path::new("/usr") }, "it is of user ");
}

#[cfg(unix)]
#[test]
fn a_link_to_a_directory_is_refused_and_one_on_the_way_is_followed_once() {
    let dir = tempfile::tempdir().unwrap();
    let (own, link) = (dir.path().join("own"), dir.path().join("link"));
    fs::create_dir(&own).unwrap();
    std::os::unix::fs::symlink(&own, &link).unwrap();
    is_foreign(&link, "symbolic link");
    let sandbox = sandbox(&link.join("cache"));
    fs::remove_file(&link).unwrap();
    sandbox.load(spec("panics")).unwrap();
    assert_eq!(files(&own.join("cache")).len(), 1);
}

#[cfg(unix)]
#[test]
fn a_directory_that_others_may_put_another_in_the_place_of_is_refused() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let (shared, cache) = (dir.path().join("shared"), dir.path().join("shared/a/b"));
    let allow = |mode| fs::set_permissions(&shared, fs::Permissions::from_mode(mode)).unwrap();
    fs::create_dir(&shared).unwrap();
    allow(0o777);
    is_foreign(&cache, "shared/a`");
    allow(0o1777);
    sandbox(&cache);
    let give = |path: &Path, user, group| std::os::unix::fs::chown(path, user, group).is_ok();
    if give(&shared.join("a"), Some(12_345), None) {
        is_foreign(&cache, "shared/a/b`");
        assert!(give(&shared.join("a"), Some(0), None));
    }
    allow(0o755);
    sandbox(&cache);
    if give(&shared, None, Some(12_345)) {
        allow(0o775);
        is_foreign(&cache, "shared/a`");
        assert!(give(&shared, Some(12_345), Some(0)));
        allow(0o755);
        is_foreign(&cache, "shared/a`");
    }
}
