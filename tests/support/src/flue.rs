//! Command under test: started as root or as an ordinary user, and used as a pipe.

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

/// Command `program` with space-separated arguments.
pub fn command(program: impl AsRef<OsStr>, arguments: &str) -> Command {
    let mut command = Command::new(program);
    command.args(arguments.split_whitespace());
    command
}

/// Temporary directory of a test, readable and writable by all users, removed on drop.
#[derive(Debug)]
pub struct Scratch(PathBuf);

impl Scratch {
    /// Creates an empty directory.
    ///
    /// # Panics
    ///
    /// If the directory for temporary files is not writable.
    pub fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        loop {
            let (id, count) = (std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
            let path = std::env::temp_dir().join(format!("flue-test-{id}-{count}"));
            match fs::create_dir(&path) {
                Ok(()) => {
                    fs::set_permissions(&path, Permissions::from_mode(0o1777))
                        .expect("the test owns the directory");
                    return Self(path);
                }
                // Left by a killed test with the same process id, or in use by a process of another container.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => panic!("{}: {error}", path.display()),
            }
        }
    }

    /// Path of a file in it, existing or not.
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
        // A leftover in the directory for temporary files is not a failure.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// User without privileges: `nobody`.
pub const ORDINARY_USER_ID: u32 = 65_534;

/// Command `program` with `arguments`, run as [`ORDINARY_USER_ID`] without capabilities. `/dev/net/tun` is
/// accessible to that user, as on most distributions. The device node is in a mount namespace of the program's
/// own; the machine's node is unchanged.
///
/// Needs [`Need::InitialRoot`](crate::needs::Need::InitialRoot), `unshare` and `setpriv`.
///
/// # Panics
///
/// If `program` cannot be copied to `scratch`, where the user can access it.
pub fn as_ordinary_user(scratch: &Scratch, program: &Path, arguments: &str) -> Command {
    let copy = scratch.file("program");
    // By another process: a concurrent fork of this one inherits no descriptor that makes the copy busy.
    let copied = Command::new("install").args(["-m", "755", "--"]).arg(program).arg(&copy).status();
    assert!(copied.is_ok_and(|status| status.success()), "the program cannot be copied");
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

/// Writes the first `bytes` bytes of the stream of `seed` to the process, closes its input, and hashes its
/// output, both concurrently, until it exits. It must have been started with
/// [`Output::Bytes`](crate::process::Output::Bytes).
///
/// Returns the digest of the output, and the error that ended the input early, if any. The exit status is
/// available from the process afterwards.
///
/// # Panics
///
/// If it has not exited within `limit`.
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
        // If this panics the process has been killed, so both threads end.
        process.wait(limit);
        let join = "writing and hashing do not panic";
        (summer.join().expect(join), feeder.join().expect(join))
    })
}
