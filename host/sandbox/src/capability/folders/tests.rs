use super::reads::MAX_READS;
use super::*;
use std::fs;

fn tenant() -> TenantId {
    TenantId::new("t")
}

fn mounts(folder: &Path) -> Mounts {
    Folders::default().mounts("one", &docs(folder)).unwrap()
}

fn docs(folder: &Path) -> BTreeMap<String, PathBuf> {
    BTreeMap::from([("docs".to_owned(), folder.to_owned())])
}

fn opened(folder: &Path) -> Folder {
    Folder::root(&folder.canonicalize().unwrap()).unwrap()
}

fn tree() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for path in ["b.txt", "a/z.txt", "a/b/c.txt", "a-b.txt"] {
        let path = folder.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, "0123456789").unwrap();
    }
    folder
}

fn paths(page: Vec<DocumentEntry>) -> Vec<String> {
    page.into_iter().map(|entry| entry.path).collect()
}

#[test]
fn pages_of_any_size_give_the_same_list_in_order() {
    let folder = tree();
    let mounts = mounts(folder.path());
    let all = paths(mounts.list_now(None, 100).unwrap());
    assert_eq!(all, ["docs/a/b/c.txt", "docs/a/z.txt", "docs/a-b.txt", "docs/b.txt"]);
    for limit in 1..=5 {
        let mut paged: Vec<String> = Vec::new();
        loop {
            let page = paths(mounts.list_now(paged.last().map(String::as_str), limit).unwrap());
            if page.is_empty() {
                break;
            }
            paged.extend(page);
        }
        assert_eq!(paged, all, "limit {limit}");
    }
}

#[test]
fn a_read_is_cut_at_the_documents_end() {
    let folder = tree();
    let mounts = mounts(folder.path());
    assert_eq!(mounts.read_now("docs/b.txt", 8, 100).unwrap(), b"89");
    assert_eq!(mounts.read_now("docs/b.txt", 2, 3).unwrap(), b"234");
    assert_eq!(mounts.read_now("docs/b.txt", 99, 3).unwrap(), b"");
}

#[test]
fn no_path_leaves_its_mount() {
    let folder = tree();
    let mounts = mounts(folder.path());
    for path in [
        "",
        "/",
        "docs",
        "docs/",
        "docs//b.txt",
        "docs/../docs/b.txt",
        "docs/a/../b.txt",
        "docs/./b.txt",
        "../etc/passwd",
        "/etc/passwd",
        "etc/passwd",
        "docs/a\\z.txt",
        "docs/b.txt/",
        "docs/b.txt/x",
        "docs/b.txt\0",
        "docs/a",
        "other/b.txt",
        "docs/..",
        "docs/a/b/../../../../etc/passwd",
        "docs/%2e%2e/x",
        "docs/\u{ff0e}\u{ff0e}/x",
    ] {
        let refused = mounts.read_now(path, 0, 10);
        assert!(matches!(refused, Err(CapabilityError::Invalid(_))), "{path:?}: {refused:?}");
    }
}

#[test]
fn a_folder_below_that_cannot_be_listed_keeps_nobody_from_the_others() {
    let (folder, said) = (tree(), Said::default());
    let gone = folder.path().join("gone");
    let list = |shown: &str, depth: usize| {
        let mut page = Page { entries: Vec::new(), limit: 100, said: &said };
        walk(Folder::root(&gone), shown, &[], depth, &mut page).map(|()| page.entries.len())
    };
    assert_eq!(list("docs/gone", MAX_DEPTH - 1).unwrap(), 0, "it has vanished");
    list("docs", MAX_DEPTH).expect_err("the mount itself");
    assert!(is_left_out(ErrorKind::PermissionDenied) && !is_left_out(ErrorKind::TimedOut));
}

#[cfg(target_os = "linux")]
#[test]
fn what_cannot_be_read_or_shown_is_said_once() {
    use std::os::unix::ffi::OsStrExt;
    // A file that is there, and whose first bytes nobody may read.
    let own = mounts(Path::new("/proc/self"));
    for _ in 0..2 {
        let failed = own.read_now("docs/mem", 0, 1);
        assert!(matches!(failed, Err(CapabilityError::Unavailable(_))), "{failed:?}");
        assert!(!own.said.is_new("docs/mem", Wrong::Read));
    }
    let folder = tree();
    fs::write(folder.path().join(std::ffi::OsStr::from_bytes(b"\xff")), "").unwrap();
    let mounts = mounts(folder.path());
    assert_eq!(mounts.list_now(None, 100).unwrap().len(), 4);
    assert!(!mounts.said.is_new("docs", Wrong::Name));
}

/// As an index would forget a document that is not listed, however short its folder was away.
#[test]
fn a_document_of_which_nothing_can_be_learned_ends_the_listing_unless_it_is_gone_or_forbidden() {
    let said = Said::default();
    let fails = |why: ErrorKind| about(Err(why.into()), "docs/a", &said);
    for why in [ErrorKind::NotFound, ErrorKind::NotADirectory, ErrorKind::PermissionDenied] {
        assert!(fails(why).unwrap().is_none(), "{why}");
        assert_eq!(said.is_new("docs/a", Wrong::About), why != ErrorKind::PermissionDenied, "{why}");
        said.is_over("docs/a", Wrong::About);
        fails(why).unwrap();
    }
    for why in [ErrorKind::StaleNetworkFileHandle, ErrorKind::TimedOut, ErrorKind::Other] {
        let failed = fails(why).unwrap_err();
        assert!(matches!(&failed, CapabilityError::Unavailable(about) if about.contains("docs/a")), "{failed}");
    }
    let folder = tree();
    assert!(about(opened(folder.path()).about("a"), "docs/a", &said).unwrap().is_some());
    assert!(said.is_new("docs/a", Wrong::About), "it is well again");
}

#[test]
fn a_folder_that_can_be_listed_again_is_news_when_it_cannot() {
    let (folder, said) = (tree(), Said::default());
    let gone = folder.path().join("gone");
    for wrong in [Wrong::List, Wrong::Name] {
        assert!(said.is_new("docs", wrong));
    }
    let list = |path: &Path| {
        let mut page = Page { entries: Vec::new(), limit: 100, said: &said };
        walk(Folder::root(path), "docs", &[], MAX_DEPTH, &mut page)
    };
    list(&gone).unwrap_err();
    assert!(!said.is_new("docs", Wrong::List));
    list(&folder.path().canonicalize().unwrap()).unwrap();
    assert!(said.is_new("docs", Wrong::List) && said.is_new("docs", Wrong::Name));
}

#[test]
fn a_folder_that_lies_too_deep_is_left_out_and_that_is_said() {
    let folder = tree();
    let deep = "d/".repeat(MAX_DEPTH);
    fs::create_dir_all(folder.path().join(format!("{deep}d"))).unwrap();
    for path in [format!("{deep}seen"), format!("{deep}d/unseen")] {
        fs::write(folder.path().join(path), "").unwrap();
    }
    let mounts = mounts(folder.path());
    let listed = paths(mounts.list_now(None, 100).unwrap());
    assert!(listed.contains(&format!("docs/{deep}seen")) && listed.len() == 5, "{listed:?}");
    assert!(!mounts.said.is_new(&format!("docs/{deep}d"), Wrong::Depth));
}

#[cfg(unix)]
#[test]
fn links_are_neither_listed_nor_opened() {
    let (outside, folder) = (tree(), tree());
    std::os::unix::fs::symlink(outside.path().join("b.txt"), folder.path().join("file-link")).unwrap();
    std::os::unix::fs::symlink(outside.path(), folder.path().join("folder-link")).unwrap();
    std::os::unix::fs::symlink(folder.path().join("b.txt"), folder.path().join("inner-link")).unwrap();
    let mounts = mounts(folder.path());
    assert_eq!(mounts.list_now(None, 100).unwrap().len(), 4);
    for path in ["docs/file-link", "docs/folder-link/b.txt", "docs/inner-link"] {
        assert!(matches!(mounts.read_now(path, 0, 10), Err(CapabilityError::Invalid(_))), "{path}");
    }
}

/// As who may write to the folder can do between any two looks at it.
#[cfg(unix)]
#[test]
fn what_was_opened_stays_what_it_was_whatever_comes_in_its_place() {
    let (outside, folder) = (tree(), tree());
    fs::write(outside.path().join("a/secret"), "").unwrap();
    let root = opened(folder.path());
    let inner = root.folder("a").unwrap();
    fs::rename(folder.path().join("a"), folder.path().join("aside")).unwrap();
    std::os::unix::fs::symlink(outside.path().join("a"), folder.path().join("a")).unwrap();
    let mut names: Vec<_> = inner.names().unwrap().map(|name| name.unwrap().into_string().unwrap()).collect();
    names.sort();
    assert_eq!(names, ["b", "z.txt"]);
    assert!(inner.about("z.txt").is_ok() && inner.about("secret").is_err() && inner.file("secret").is_err());
    // The link is none that is opened.
    let refused = root.folder("a").err().unwrap().kind();
    assert!(is_left_out(refused), "{refused}");
    std::os::unix::fs::symlink(outside.path().join("b.txt"), folder.path().join("linked")).unwrap();
    assert_eq!(root.file_at_once("linked").unwrap_err().kind(), ErrorKind::NotFound);
}

#[cfg(target_os = "linux")]
#[test]
fn a_listing_shows_nothing_of_where_a_link_leads_that_comes_and_goes() {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    use std::sync::atomic::{AtomicBool, Ordering};
    let (outside, folder) = (tree(), tree());
    fs::write(outside.path().join("a/secret"), "").unwrap();
    let [place, link] = ["a", "link"].map(|name| folder.path().join(name));
    std::os::unix::fs::symlink(outside.path().join("a"), &link).unwrap();
    let (mounts, is_done) = (mounts(folder.path()), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_done.load(Ordering::Relaxed) {
                renameat_with(CWD, &place, CWD, &link, RenameFlags::EXCHANGE).unwrap();
            }
        });
        let shown: Vec<_> = (0..2000).flat_map(|_| paths(mounts.list_now(None, 100).unwrap())).collect();
        is_done.store(true, Ordering::Relaxed);
        assert!(!shown.iter().any(|path| path.ends_with("secret")));
        assert!(shown.iter().any(|path| path == "docs/a/z.txt"), "it was there now and then");
    });
}

#[cfg(unix)]
#[test]
fn a_mount_is_not_there_once_a_link_leads_to_its_place() {
    let (outside, folder) = (tree(), tree());
    let mounts = mounts(&folder.path().join("a"));
    assert_eq!(mounts.read_now("docs/z.txt", 0, 1).unwrap(), b"0");
    let away = outside.path().join("away");
    fs::rename(folder.path(), &away).unwrap();
    std::os::unix::fs::symlink(&away, folder.path()).unwrap();
    assert!(matches!(mounts.read_now("docs/z.txt", 0, 1), Err(CapabilityError::Invalid(_))));
    assert!(matches!(mounts.list_now(None, 100), Err(CapabilityError::Invalid(_))));
    fs::remove_file(folder.path()).unwrap();
}

/// As one that comes in a file's place while that is opened: without a writer, opening it would not end.
#[cfg(target_os = "linux")]
#[test]
fn a_pipe_in_a_files_place_is_refused_at_once() {
    use rustix::fs::{CWD, FileType, Mode, mknodat};
    let folder = tree();
    mknodat(CWD, folder.path().join("pipe"), FileType::Fifo, Mode::RUSR, 0).unwrap();
    let (root, (done, opened)) = (opened(folder.path()), std::sync::mpsc::sync_channel(1));
    std::thread::spawn(move || done.send(root.file_at_once("pipe").map(drop)));
    let refused = opened.recv_timeout(std::time::Duration::from_secs(10)).unwrap().unwrap_err();
    assert_eq!(refused.to_string(), "not a plain file");
}

#[tokio::test]
async fn reads_that_hang_take_no_more_threads_however_many_calls_give_up() {
    use futures_util::FutureExt;
    let folder = tree();
    let mounts = Arc::new(mounts(folder.path()));
    let (let_go, gate) = std::sync::mpsc::sync_channel::<()>(1);
    let gate = Arc::new(std::sync::Mutex::new(gate));
    for _ in 0..MAX_READS {
        let gate = gate.clone();
        let hanging = move || gate.lock().unwrap().recv().map_err(|_| not_there("gone"));
        assert!(mounts.reads.run(tenant(), hanging).now_or_never().is_none(), "its call gives up");
    }
    let read = || mounts.clone().read(tenant(), "docs/b.txt".into(), 0, 4);
    let refused = read().await.unwrap_err();
    assert!(matches!(&refused, CapabilityError::Unavailable(why) if why.contains("8 reads")), "{refused}");
    let_go.send(()).unwrap();
    assert_eq!(read().await.unwrap(), b"0123", "one has ended");
    drop(let_go);
}

#[tokio::test]
async fn reads_that_hang_count_for_the_plugin_that_is_loaded_anew_and_for_no_other() {
    use futures_util::FutureExt;
    let (folder, elsewhere, folders) = (tree(), tree(), Folders::default());
    let (let_go, gate) = std::sync::mpsc::sync_channel::<()>(1);
    let gate = Arc::new(std::sync::Mutex::new(gate));
    let before = folders.mounts("one", &docs(folder.path())).unwrap();
    for _ in 0..MAX_READS {
        let gate = gate.clone();
        let hanging = move || gate.lock().unwrap().recv().map_err(|_| not_there("gone"));
        assert!(before.reads.run(tenant(), hanging).now_or_never().is_none());
    }
    drop(before);
    let read = async |plugin: &str, folder: &Path| {
        let mounts = Arc::new(folders.mounts(plugin, &docs(folder)).unwrap());
        mounts.read(tenant(), "docs/b.txt".into(), 0, 4).await.is_ok()
    };
    assert!(!read("one", folder.path()).await);
    assert!(read("other", folder.path()).await && read("one", elsewhere.path()).await);
    drop(let_go);
}

#[test]
fn a_mount_that_is_no_folder_is_refused_by_name() {
    let folder = tree();
    let open =
        |name: &str, path: PathBuf| match Folders::default().open("one", &BTreeMap::from([(name.to_owned(), path)])) {
            Ok(_) => panic!("opened"),
            Err(message) => message,
        };
    assert!(open("docs", folder.path().join("b.txt")).contains("is not a folder"));
    assert!(open("docs", folder.path().join("missing")).contains("mount `docs`"));
    assert!(open("../docs", folder.path().into()).contains("no plain name"));
}
