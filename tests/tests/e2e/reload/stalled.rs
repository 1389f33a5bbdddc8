//! Reloads that wait for what they read, as for a disk that is away.

use super::{Files, GUARD, WATCHED, becomes, blocks, reload, status};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tidegate::plugin::{PackArgs, PluginCommand};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

/// A packed plugin, as the only stage, whose component is a pipe: whoever reads it waits for the other end, as for a disk that is
/// away.
struct Stalled {
    pipe: PathBuf,
    component: Vec<u8>,
}

impl Stalled {
    /// Beside the config.
    async fn pack(files: &Files) -> Self {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("guests/dist/honest.wasm");
        let component = std::fs::read(&path).unwrap();
        let folder = files.path("guard.oci");
        let pack = PluginCommand::Pack(PackArgs { path, output: Some(folder.clone()), sign: None });
        let pack = move || tidegate::plugin::run(pack, &mut Vec::new()).unwrap();
        tokio::task::spawn_blocking(pack).await.unwrap();
        let mut blobs = std::fs::read_dir(folder.join("blobs/sha256")).unwrap().map(|blob| blob.unwrap().path());
        let pipe = blobs.find(|blob| std::fs::read(blob).unwrap() == component).unwrap();
        std::fs::remove_file(&pipe).unwrap();
        make_pipe(&pipe);
        Self { pipe, component }
    }

    fn stage() -> String {
        GUARD.replace("guard.wasm", "guard.oci")
    }

    /// It is read to its end by whoever reads it now.
    async fn go_on(&self, waiting: std::fs::File) {
        let (pipe, component) = (self.pipe.clone(), self.component.clone());
        tokio::task::spawn_blocking(move || std::fs::write(pipe, component).unwrap()).await.unwrap();
        drop(waiting);
    }
}

fn make_pipe(path: &Path) {
    assert!(std::process::Command::new("mkfifo").arg(path).status().unwrap().success());
}

/// Waits until somebody reads a pipe, and keeps them reading.
async fn somebody_reads(pipe: &Path) -> std::fs::File {
    let reader = read_within(pipe, Duration::from_secs(60)).await;
    reader.unwrap_or_else(|| panic!("nobody reads {}", pipe.display()))
}

async fn read_within(pipe: &Path, time: Duration) -> Option<std::fs::File> {
    use std::os::unix::fs::OpenOptionsExt;
    // `O_NONBLOCK`: without a reader it cannot be opened, instead of waiting for one.
    const NONBLOCK: i32 = 0o4000;
    let until = tokio::time::Instant::now() + time;
    while tokio::time::Instant::now() < until {
        if let Ok(open) = std::fs::OpenOptions::new().write(true).custom_flags(NONBLOCK).open(pipe) {
            return Some(open);
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    None
}

#[tokio::test(flavor = "multi_thread")]
async fn the_watcher_sees_what_changes_while_a_reload_runs() {
    let files = Files::new();
    files.write(&format!("{WATCHED}{}", blocks("heron")));
    let gateway = files.start().await;
    let stalled = Stalled::pack(&files).await;
    files.write(&format!("{WATCHED}{}", Stalled::stage()));
    let waiting = somebody_reads(&stalled.pipe).await;
    // The reload has its config, and waits for the component.
    files.write(&format!("{WATCHED}{}", blocks("otter")));
    stalled.go_on(waiting).await;
    becomes(&gateway, "an otter", 400).await;
}

/// What the watcher has seen change, and an administrator's reload has taken before that rested.
#[tokio::test(flavor = "multi_thread")]
async fn the_watcher_does_not_take_again_what_another_reload_has_taken() {
    let files = Files::new();
    let config = format!("{WATCHED}{}", Stalled::stage());
    files.write(&config);
    let stalled = Stalled::pack(&files).await;
    let first = async {
        let waiting = somebody_reads(&stalled.pipe).await;
        stalled.go_on(waiting).await;
    };
    let (gateway, ()) = tokio::join!(files.start(), first);
    files.write(&config.replace("20000", "20001"));
    // The watcher looks twice a second from the start on, and has looked once by then.
    tokio::time::sleep(Duration::from_millis(750)).await;
    let disk = async {
        loop {
            let waiting = somebody_reads(&stalled.pipe).await;
            // It looks again meanwhile.
            tokio::time::sleep(Duration::from_secs(1)).await;
            stalled.go_on(waiting).await;
            // Whoever has read it still has it open for a moment.
            for _ in 0..20 {
                if read_within(&stalled.pipe, Duration::from_millis(1)).await.is_none() {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(25)).await;
            }
        }
    };
    let (taken, facts) = tokio::select! {
        answered = reload(&gateway) => answered,
        () = disk => unreachable!(),
    };
    assert_eq!(taken, 200, "{facts}");
    assert!(read_within(&stalled.pipe, Duration::from_secs(2)).await.is_none(), "it was loaded anew");
    assert_eq!(status(&gateway, "refuse").await, 400);
}

/// And no watcher looks again.
#[tokio::test(flavor = "multi_thread")]
async fn a_reload_whose_administrator_has_left_comes_to_its_end() {
    let files = Files::new();
    files.write(&blocks("heron"));
    let gateway = files.start().await;
    let stalled = Stalled::pack(&files).await;
    files.write(&Stalled::stage());
    let mut asking = TcpStream::connect(gateway.addr).await.unwrap();
    let request = format!("POST /admin/reload HTTP/1.1\r\nhost: {}\r\ncontent-length: 0\r\n\r\n", gateway.addr);
    asking.write_all(request.as_bytes()).await.unwrap();
    let waiting = somebody_reads(&stalled.pipe).await;
    drop(asking);
    // For the server to hear of it.
    tokio::time::sleep(Duration::from_secs(1)).await;
    stalled.go_on(waiting).await;
    becomes(&gateway, "refuse", 400).await;
}

/// Whoever asks for a reload while one waits for a disk, be it by a signal or an administrator's, is told what that waits for.
#[tokio::test(flavor = "multi_thread")]
async fn who_comes_while_a_reload_waits_is_told_what_it_waits_for() {
    let files = Files::new();
    files.write(&blocks("heron"));
    let gateway = files.start().await;
    let stalled = Stalled::pack(&files).await;
    files.write(&Stalled::stage());
    let both = async {
        let waiting = somebody_reads(&stalled.pipe).await;
        let (by_signal, (refused, body)) = tokio::join!(gateway.running.reload(), reload(&gateway));
        let by_signal = format!("{:#}", by_signal.unwrap_err());
        for said in [&by_signal, &body] {
            let parts = ["another reload is under way since", "loads the plugin `guard` from guard.oci"];
            assert!(parts.iter().all(|part| said.contains(part)), "{said}");
        }
        assert!(refused == 503 && body.contains("reload_refused"), "{body}");
        // Nothing else waits for it.
        assert_eq!(status(&gateway, "a heron").await, 400);
        stalled.go_on(waiting).await;
    };
    let ((taken, facts), ()) = tokio::join!(reload(&gateway), both);
    assert_eq!((taken, status(&gateway, "refuse").await), (200, 400), "{facts}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pipe_is_refused_by_its_name_and_waited_for_by_nobody() {
    let files = Files::new();
    files.write(&blocks("heron"));
    let gateway = files.start().await;
    make_pipe(&files.path("guard.wasm"));
    files.write(GUARD);
    let (refused, body) = reload(&gateway).await;
    assert!(refused == 400 && body.contains("guard.wasm is a pipe, a folder or a device"), "{body}");
    std::fs::remove_file(files.path("tidegate.toml")).unwrap();
    make_pipe(&files.path("tidegate.toml"));
    let (refused, body) = reload(&gateway).await;
    assert!(refused == 400 && body.contains("tidegate.toml is a pipe, a folder or a device"), "{body}");
}
