//! Cores that do not sleep while something is measured. A core that has nothing to do sleeps; that of a virtual machine is given
//! back to the host, and who wakes it waits for the host, for longer than a stage takes. Here each core has a loop of the lowest
//! priority, which yields to whatever else there is.

use crate::cores;
use anyhow::Context;
use std::hint::black_box;
use std::io::Read;
use std::process::{Child, Command, Stdio};

/// The loops; they end with it.
pub(crate) struct Awake(Vec<Child>);

impl Awake {
    /// Keeps the cores of such a list awake.
    pub(crate) fn keep(list: &str) -> anyhow::Result<Self> {
        let mut awake = Self(Vec::new());
        for core in cores::each_of(list) {
            let mut chrt = Command::new("chrt");
            chrt.args(["--idle", "0"]).arg(std::env::current_exe()?).args(["awake"]).stdin(Stdio::piped());
            let child = chrt.spawn().context("cannot run `chrt`, of util-linux")?;
            cores::keep_on(child.id(), &core.to_string())?;
            awake.0.push(child);
        }
        Ok(awake)
    }
}

impl Drop for Awake {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// The loop of one core, until its standard input is closed: until whoever began it is gone.
pub(crate) fn run() -> anyhow::Result<()> {
    std::thread::spawn(|| {
        loop {
            black_box(());
        }
    });
    let _ = std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}
