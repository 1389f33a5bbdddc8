//! A NATS server of a test's own, with JetStream on disk, which it may kill and bring back.

use std::net::{TcpListener, TcpStream};
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
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let folder = tempfile::tempdir().unwrap();
        let child = run(port, folder.path());
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
        self.child = run(self.port, self.folder.path());
    }
}

fn program() -> String {
    std::env::var(PROGRAM).unwrap_or_else(|_| "nats-server".into())
}

fn run(port: u16, folder: &std::path::Path) -> Child {
    let mut command = Command::new(program());
    command.args(["--addr", "127.0.0.1", "--port", &port.to_string(), "--jetstream", "--store_dir"]).arg(folder);
    let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let started = Instant::now();
    while TcpStream::connect(("127.0.0.1", port)).is_err() {
        assert!(started.elapsed() < Duration::from_secs(20), "nats-server does not answer");
        std::thread::sleep(Duration::from_millis(10));
    }
    child
}

impl Drop for Nats {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}
