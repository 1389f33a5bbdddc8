//! The program as a process of its own, for tests that kill it.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// A running gateway; killed when dropped.
pub struct Server {
    pub child: Child,
    pub addr: String,
}

#[allow(dead_code, reason = "each file of tests takes what it needs of it")]
impl Server {
    /// Starts it with a config file and waits until it listens.
    pub fn with(config: &Path) -> Self {
        Self::run(Self::command(config).stderr(Stdio::null()))
    }

    /// What starts it.
    pub fn command(config: &Path) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        command.args(["serve", "--config", config.to_str().unwrap()]);
        command.env("XDG_CACHE_HOME", std::env::temp_dir().join("tidegate-tests-cache"));
        command
    }

    /// Waits until it listens.
    pub fn run(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
        let listening = lines.find(|line| line.starts_with("listening ")).expect("the server ended");
        let addr = listening.split("//").nth(1).unwrap().split(' ').next().unwrap().to_owned();
        std::thread::spawn(move || lines.for_each(drop));
        Self { child, addr }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
