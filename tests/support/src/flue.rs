//! The command under test: started as root or as an ordinary user, and used as a pipe.

use std::ffi::OsStr;
use std::fs::{self, Permissions};
use std::io::{self, Read as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use crate::process::Process;
use crate::stream::{Digest, HashingSink, Stream};

/// `program` with arguments divided by spaces.
pub fn command(program: impl AsRef<OsStr>, arguments: &str) -> Command {
    let mut command = Command::new(program);
    command.args(arguments.split_whitespace());
    command
}

/// A directory of a test, readable and writable by everybody, removed with its value.
#[derive(Debug)]
pub struct Scratch(PathBuf);

impl Scratch {
    /// A new empty directory.
    ///
    /// # Panics
    ///
    /// When the directory for temporary files cannot be written to.
    pub fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        loop {
            let (id, count) = (std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
            let path = std::env::temp_dir().join(format!("flue-test-{id}-{count}"));
            match fs::create_dir(&path) {
                Ok(()) => {
                    fs::set_permissions(&path, Permissions::from_mode(0o1777)).expect("it is ours");
                    return Self(path);
                }
                // A killed test that had our process id has left it, or one of another container has it.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => panic!("{}: {error}", path.display()),
            }
        }
    }

    /// The path of a file in it, there or not.
    pub fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Default for Scratch {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // A leftover in the directory for temporary files is no reason to fail.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A user without any right: nobody.
pub const ORDINARY_USER_ID: u32 = 65_534;

/// `program` with `arguments`, run as [`ORDINARY_USER_ID`] without a capability, for whom
/// `/dev/net/tun` can be opened, as it is on most distributions. That device node lives in a mount
/// namespace of the program's own; the machine's is not touched.
///
/// Needs [`Need::InitialRoot`](crate::needs::Need::InitialRoot), `unshare` and `setpriv`.
///
/// # Panics
///
/// When `program` cannot be copied to `scratch`, where the user can reach it.
pub fn as_ordinary_user(scratch: &Scratch, program: &Path, arguments: &str) -> Command {
    let copy = scratch.file("program");
    fs::copy(program, &copy).expect("the program can be copied");
    fs::set_permissions(&copy, Permissions::from_mode(0o755)).expect("the copy is ours");
    let script = format!(
        "mknod \"$1\" c 10 200 && chmod 666 \"$1\" && mount --bind \"$1\" /dev/net/tun && \
         shift && exec setpriv --reuid={ORDINARY_USER_ID} --regid={ORDINARY_USER_ID} \
         --clear-groups --inh-caps=-all -- \"$@\""
    );
    let mut command = Command::new("unshare");
    command.args(["--mount", "--", "sh", "-c", &script, "sh"]);
    command.arg(scratch.file("tun")).arg(copy).args(arguments.split_whitespace());
    command.current_dir(&scratch.0);
    command
}

/// Feeds the first `bytes` bytes of the stream of `seed` to the process, closes its input, and
/// sums its output, both at once, until it ends. It must have been started with
/// [`Output::Bytes`](crate::process::Output::Bytes).
///
/// Returns the digest of the output, and the error that ended the input early, if one did. What the process
/// ended with is to be asked of it afterwards.
///
/// # Panics
///
/// When it has not ended within `limit`.
pub fn exchange(
    process: &mut Process,
    seed: u64,
    bytes: u64,
    limit: Duration,
) -> (Digest, Option<io::Error>) {
    let (mut input, output) = (process.take_input(), process.take_output());
    thread::scope(|scope| {
        let feeder = scope.spawn(move || {
            io::copy(&mut Stream::new(seed).take(bytes), &mut input).err()
            // `input` is dropped here: end of file.
        });
        let summer = scope.spawn(move || HashingSink::drain(output).expect("a pipe can be read"));
        // If this panics the process has been killed, so both threads come to their end.
        process.wait(limit);
        let join = "feeding and summing do not panic";
        (summer.join().expect(join), feeder.join().expect(join))
    })
}
