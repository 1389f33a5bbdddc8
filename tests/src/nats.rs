//! A NATS server of a test's own, with JetStream on disk, which it may kill and bring back.

use std::io::Read;
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A running server on a free port.
pub struct Nats {
    port: u16,
    folder: tempfile::TempDir,
    child: Child,
}

/// Where the program is, if not on the path; with it, a missing program is a failure.
const PROGRAM: &str = "TIDEGATE_TEST_NATS";

impl Nats {
    /// `None`, said loudly, where this machine has no such program.
    pub fn start() -> Option<Self> {
        let named = std::env::var(PROGRAM).ok();
        if Command::new(program()).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_err() {
            assert!(named.is_none(), "{PROGRAM} names {}, which does not start", program());
            tidegate_skipped::skipped!("with NATS: there is no nats-server here, and {PROGRAM} names none");
            return None;
        }
        let folder = tempfile::tempdir().unwrap();
        let started = (0..20).find_map(|_| {
            let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
            Some((port, run(port, folder.path())?))
        });
        let (port, child) = started.expect("each port was taken meanwhile");
        Some(Self { port, folder, child })
    }

    pub fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }

    /// What its streams hold stays on disk.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Anew, at the same port, with its streams.
    pub fn revive(&mut self) {
        self.child = run(self.port, self.folder.path()).expect("its port was taken meanwhile");
    }
}

fn program() -> String {
    std::env::var(PROGRAM).unwrap_or_else(|_| "nats-server".into())
}

/// `None` where somebody else was faster to take the port.
fn run(port: u16, folder: &Path) -> Option<Child> {
    // Another's server at this port has another name.
    let name = folder.file_name().unwrap().to_str().unwrap();
    let mut command = Command::new(program());
    command.args(["--addr", "127.0.0.1", "--port", &port.to_string(), "--name", name, "--jetstream", "--store_dir"]);
    let mut child = command.arg(folder).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let started = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if greeting(port).is_some_and(|greeting| greeting.contains(name)) {
            return Some(child);
        }
        assert!(started.elapsed() < Duration::from_secs(20), "nats-server does not answer");
        std::thread::sleep(Duration::from_millis(10));
    }
    None
}

/// What a server says first, with its name.
fn greeting(port: u16) -> Option<String> {
    let mut socket = TcpStream::connect(("127.0.0.1", port)).ok()?;
    socket.set_read_timeout(Some(Duration::from_secs(5))).ok()?;
    let mut said = vec![0; 4096];
    let read = socket.read(&mut said).ok()?;
    Some(String::from_utf8_lossy(&said[..read]).into_owned())
}

impl Drop for Nats {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}
