//! Cores that do not sleep while something is measured. A core that has nothing to do sleeps; that of a virtual machine is given
//! back to the host, and who wakes it waits for the host, for longer than a stage takes. Here each core has a loop of the lowest
//! priority, which yields to whatever else there is. It is not for machines where that costs others: whose cores are two threads
//! of one, or that may use a part of their time only.

use crate::{cores, gateway};
use anyhow::Context;
use std::hint::spin_loop;
use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

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
            let process = child.id();
            awake.0.push(child);
            cores::keep_on(process, &core.to_string())?;
        }
        std::thread::sleep(Duration::from_millis(100));
        awake.check()?;
        Ok(awake)
    }

    /// Whether the loops run: `chrt` may have been refused.
    pub(crate) fn check(&mut self) -> anyhow::Result<()> {
        for child in &mut self.0 {
            anyhow::ensure!(child.try_wait()?.is_none(), "a loop that was to keep a core awake has ended");
            anyhow::ensure!(
                gateway::cpu_us(child.id())? > 10_000.0,
                "a loop that was to keep a core awake does not run"
            );
        }
        Ok(())
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
            spin_loop();
        }
    });
    let _ = std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}
