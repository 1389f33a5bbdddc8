//! The measured process.

use crate::cores;
use crate::load::KEY;
use anyhow::{Context, bail};
use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Which guard is on the path.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stages {
    /// No gateway: a bare hyper proxy.
    Floor,
    None,
    /// A prompt guard that has no opinion: what the sandbox itself costs.
    NoOp,
    PromptGuard,
    StreamGuard,
    Both,
}

impl fmt::Display for Stages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Floor => "bare hyper proxy",
            Self::None => "no guard",
            Self::NoOp => "a no-op prompt guard",
            Self::PromptGuard => "pii-guard on prompts",
            Self::StreamGuard => "pii-guard on streams",
            Self::Both => "pii-guard on both",
        })
    }
}

impl Stages {
    fn config(self) -> String {
        let text = match self {
            Self::Floor | Self::None => "[pipeline]\n",
            Self::PromptGuard => "[[pipeline.stage]]\nplugin = \"pii-guard\"\nstages = [\"prompt-guard\"]\n",
            Self::StreamGuard => "[[pipeline.stage]]\nplugin = \"pii-guard\"\nstages = [\"stream-guard\"]\n",
            Self::Both => "[[pipeline.stage]]\nplugin = \"pii-guard\"\n",
            Self::NoOp => {
                let guest = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/guests/dist/honest.wasm");
                return format!(
                    "[[pipeline.stage]]\nplugin = \"honest\"\nfile = \"{guest}\"\nstages = [\"prompt-guard\"]\n"
                );
            }
        };
        text.to_owned()
    }

    pub(crate) fn request_goal(self) -> Option<f64> {
        (self == Self::PromptGuard).then_some(40.0)
    }

    pub(crate) fn event_goal(self) -> Option<f64> {
        match self {
            Self::None => Some(8.0),
            Self::StreamGuard => Some(11.0),
            Self::Floor | Self::NoOp | Self::PromptGuard | Self::Both => None,
        }
    }
}

/// An address of this machine that nobody listens on.
pub(crate) fn free_address() -> anyhow::Result<SocketAddr> {
    Ok(std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?)
}

/// May reload the config of the measured gateway.
const OPERATOR: &str = "tg-operator";

/// A gateway in front of the stand-in upstream; killed when dropped.
pub(crate) struct Gateway {
    pub(crate) addr: SocketAddr,
    child: Child,
    folder: TempDir,
}

impl Gateway {
    pub(crate) fn start(program: &Path, upstream: SocketAddr, stages: Stages) -> anyhow::Result<Self> {
        if stages == Stages::Floor {
            let addr = free_address()?;
            let mut floor = Command::new(std::env::current_exe()?);
            floor.args(["floor", &addr.to_string(), &upstream.to_string()]);
            return Self::spawn(addr, floor, tempfile::tempdir()?);
        }
        Self::serving(program, &of_upstream(upstream, stages))
    }

    /// Goes over to other stages, in the same process.
    pub(crate) async fn reload(&self, upstream: SocketAddr, stages: Stages) -> anyhow::Result<()> {
        configure(&self.folder, self.addr, &of_upstream(upstream, stages))?;
        let request = format!(
            "POST /admin/reload HTTP/1.1\r\nhost: bench\r\nauthorization: Bearer {OPERATOR}\r\nconnection: close\r\n\
             content-length: 0\r\n\r\n"
        );
        let mut socket = TcpStream::connect(self.addr).await?;
        socket.write_all(request.as_bytes()).await?;
        let mut answer = String::new();
        socket.read_to_string(&mut answer).await?;
        anyhow::ensure!(answer.starts_with("HTTP/1.1 200"), "the reload was answered {answer}");
        Ok(())
    }

    /// One that has the bundled model, with the rest of its config.
    pub(crate) fn with_starter(program: &Path, rest: &str) -> anyhow::Result<Self> {
        Self::serving(program, &format!("path = \"bundled\"\n{rest}"))
    }

    /// With the rest of a config, of which the model's name is the last before.
    fn serving(program: &Path, rest: &str) -> anyhow::Result<Self> {
        let (folder, addr) = (tempfile::tempdir()?, free_address()?);
        configure(&folder, addr, rest)?;
        let mut gateway = Command::new(program);
        gateway.args(["serve", "--config"]).arg(config_in(&folder));
        Self::spawn(addr, gateway, folder)
    }

    fn spawn(addr: SocketAddr, mut command: Command, folder: TempDir) -> anyhow::Result<Self> {
        // A program that counts for a profile (`cargo xtask release`) does so where it was built to.
        command.env("RUST_LOG", "error").env_remove("LLVM_PROFILE_FILE").stdout(Stdio::null());
        let child = command.spawn();
        let child = child.with_context(|| format!("cannot start {}", command.get_program().display()))?;
        Ok(Self { addr, child, folder })
    }

    pub(crate) async fn wait_ready(&self) -> anyhow::Result<()> {
        for _ in 0..300 {
            if TcpStream::connect(self.addr).await.is_ok() {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        bail!("the gateway does not listen on {}", self.addr)
    }

    /// Asks it to stop, as an operator does, and waits until it has: one that counts for a profile writes that at its end.
    pub(crate) async fn end(mut self) -> anyhow::Result<()> {
        let asked = Command::new("kill").args(["-TERM", &self.child.id().to_string()]).status();
        anyhow::ensure!(asked.context("cannot run `kill`")?.success(), "the gateway is gone");
        for _ in 0..600 {
            if let Some(status) = self.child.try_wait()? {
                anyhow::ensure!(status.success(), "the gateway ended with {status}");
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        bail!("the gateway did not end within a minute")
    }

    /// Keeps it on `cores`.
    pub(crate) fn keep_on(&self, cores: &str) -> anyhow::Result<()> {
        cores::keep_on(self.child.id(), cores)
    }

    /// User and system time so far.
    pub(crate) fn cpu_us(&self) -> anyhow::Result<f64> {
        cpu_us(self.child.id())
    }

    /// Resident memory.
    pub(crate) fn resident_mib(&self) -> anyhow::Result<f64> {
        self.mib("VmRSS:")
    }

    /// The most that it was.
    pub(crate) fn most_resident_mib(&self) -> anyhow::Result<f64> {
        self.mib("VmHWM:")
    }

    fn mib(&self, name: &'static str) -> anyhow::Result<f64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let line = status.lines().find(|line| line.starts_with(name)).context(name)?;
        let kib: f64 = line.split_whitespace().nth(1).context(name)?.parse()?;
        Ok(kib / 1024.0)
    }
}

fn of_upstream(upstream: SocketAddr, stages: Stages) -> String {
    format!("upstream = \"http://{upstream}/v1\"\n{}", stages.config())
}

fn configure(folder: &TempDir, addr: SocketAddr, rest: &str) -> anyhow::Result<()> {
    let hash = |key: &str| blake3::hash(key.as_bytes());
    let config = format!(
        "[server]\nlisten = \"{addr}\"\nmax_connections = 25000\n\
         [[keys]]\nname = \"bench\"\nhash = \"blake3:{}\"\n\
         [[keys]]\nname = \"operator\"\nadmin = true\nhash = \"blake3:{}\"\n\
         [[models]]\nname = \"m\"\n{rest}",
        hash(KEY),
        hash(OPERATOR),
    );
    Ok(std::fs::write(config_in(folder), config)?)
}

fn config_in(folder: &TempDir) -> PathBuf {
    folder.path().join("tidegate.toml")
}

/// What a process has used so far.
pub(crate) fn cpu_us(process: u32) -> anyhow::Result<f64> {
    let mut total = 0.0;
    for task in std::fs::read_dir(format!("/proc/{process}/task"))? {
        let stat = std::fs::read_to_string(task?.path().join("schedstat"))?;
        let nanos: f64 = stat.split(' ').next().unwrap_or_default().parse()?;
        total += nanos / 1000.0;
    }
    Ok(total)
}

impl Drop for Gateway {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Splitmix: the same cuts in each run.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) % bound
    }
}
