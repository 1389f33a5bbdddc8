//! A Redis of a test's own, which it may kill, stall and bring back.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A running server on a free port. Nothing it holds is on disk, unless it is told to save it.
pub struct Redis {
    port: u16,
    folder: PathBuf,
    child: Child,
}

/// Where the program is, if not on the path; with it, a missing program is a failure.
const PROGRAM: &str = "TIDEGATE_TEST_REDIS";

impl Redis {
    /// `None`, said loudly, where this machine has no such program.
    pub fn start() -> Option<Self> {
        Self::start_in(&std::env::temp_dir())
    }

    /// The same; what it saves is in `folder`, as it is.
    pub fn start_in(folder: &Path) -> Option<Self> {
        let named = std::env::var(PROGRAM).ok();
        let program = named.clone().unwrap_or_else(|| "redis-server".into());
        if Command::new(&program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_err() {
            assert!(named.is_none(), "{PROGRAM} names {program}, which does not start");
            tidegate_skipped::skipped!("with Redis: there is no redis-server here, and {PROGRAM} names none");
            return None;
        }
        (0..20).find_map(|_| {
            let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
            Self::at(&program, port, folder)
        })
    }

    /// `None` where somebody else was faster to take the port.
    fn at(program: &str, port: u16, folder: &Path) -> Option<Self> {
        let child = Command::new(program)
            .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"])
            .args(["--rdbcompression", "no", "--dir"])
            .arg(folder)
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let mut redis = Self { port, folder: folder.to_owned(), child };
        let started = Instant::now();
        while redis.child.try_wait().unwrap().is_none() {
            if redis.try_ask("PING").is_some_and(|answer| answer.starts_with("+PONG")) {
                return Some(redis);
            }
            assert!(started.elapsed() < Duration::from_secs(20), "redis-server does not answer");
            std::thread::sleep(Duration::from_millis(10));
        }
        None
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Everything it held is gone.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Anew, at the same port.
    pub fn revive(&mut self) {
        let program = std::env::var(PROGRAM).unwrap_or_else(|_| "redis-server".into());
        let started = Instant::now();
        *self = loop {
            match Self::at(&program, self.port, &self.folder) {
                Some(redis) => break redis,
                // Mostly by a connection of somebody else, which ends.
                None => assert!(started.elapsed() < Duration::from_secs(60), "its port was taken meanwhile"),
            }
            std::thread::sleep(Duration::from_millis(100));
        };
    }

    /// It takes connections, and answers nothing.
    pub fn stall(&self) {
        self.signal("-STOP");
    }

    pub fn go_on(&self) {
        self.signal("-CONT");
    }

    fn signal(&self, signal: &str) {
        // By the shell: not every machine has the program `kill`.
        let kill = format!("kill {signal} {}", self.child.id());
        assert!(Command::new("sh").args(["-c", &kill]).status().unwrap().success());
    }

    /// What it says to a command without spaces in its arguments.
    pub fn ask(&self, command: &str) -> String {
        self.try_ask(command).unwrap()
    }

    fn try_ask(&self, command: &str) -> Option<String> {
        let mut socket = TcpStream::connect(("127.0.0.1", self.port)).ok()?;
        socket.set_read_timeout(Some(Duration::from_secs(5))).ok()?;
        socket.write_all(format!("{command}\r\nQUIT\r\n").as_bytes()).ok()?;
        let mut answer = String::new();
        socket.read_to_string(&mut answer).ok()?;
        Some(answer)
    }

    /// How often scripts were run.
    pub fn num_scripts(&self) -> u64 {
        let stats = self.ask("INFO commandstats");
        let calls = stats.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:calls="));
        calls.map_or(0, |rest| rest.split(',').next().unwrap().parse().unwrap())
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
