//! Environments of the running processes, which contain the directories that they use.

use std::fs;

/// Returns the environments that this user can read. A process that executes a program at this moment has none until
/// execve(2) has completed.
pub(super) fn read() -> impl Iterator<Item = Vec<u8>> {
    let processes = fs::read_dir("/proc").into_iter().flatten();
    processes.flatten().filter_map(|process| fs::read(process.path().join("environ")).ok())
}

/// Process with a variable in its environment, killed when dropped.
#[cfg(test)]
pub(super) struct Process(std::process::Child);

#[cfg(test)]
impl Process {
    /// Returns when the environment of the process can be read.
    pub(super) fn with(name: &str, value: &std::ffi::OsStr) -> Self {
        use std::{
            io::{Read as _, Write as _},
            process::{Command, Stdio},
        };
        let mut command = Command::new("cat");
        let piped = command.env(name, value).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = Self(piped.spawn().unwrap());
        // `spawn` returns before execve(2) has completed.
        process.0.stdin.as_mut().unwrap().write_all(b"x").unwrap();
        process.0.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        process
    }
}

#[cfg(test)]
impl Drop for Process {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}
