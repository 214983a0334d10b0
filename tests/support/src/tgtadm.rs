//! tgtadm, which configures a tgtd through its control socket.

use std::path::Path;
use std::process::Command;

use crate::needs::find_tool;

/// Environment variable with the control socket of tgtd and of tgtadm.
pub const SOCKET: &str = "TGT_IPC_SOCKET";

/// Runs tgtadm with `words` on the tgtd whose control socket is `socket`.
///
/// # Errors
/// If no tgtd accepts commands at the socket, or the tgtd rejects this one.
///
/// # Panics
/// If tgtadm is not installed.
pub fn tgtadm(socket: &Path, words: &str) -> Result<(), String> {
    let mut tgtadm = Command::new(find_tool("tgtadm").expect("tgtadm is installed with tgtd"));
    tgtadm.args(words.split_whitespace()).env(SOCKET, socket);
    let output = tgtadm.output().map_err(|error| format!("tgtadm: {error}"))?;
    let text = String::from_utf8_lossy(&output.stderr);
    if output.status.success() { Ok(()) } else { Err(format!("tgtadm {words}: {text}")) }
}
