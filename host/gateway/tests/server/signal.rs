//! Signals to processes.

use std::process::Command;

/// Sends one, such as `TERM`. By the shell, which is everywhere; the program `kill` is not.
pub fn send(pid: u32, name: &str) {
    assert!(Command::new("sh").args(["-c", &format!("kill -{name} {pid}")]).status().unwrap().success());
}
