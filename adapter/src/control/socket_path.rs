//! Path of control sockets: `TAP-PID.sock` in `$XDG_RUNTIME_DIR/flue`, or in `/tmp/flue-UID` if that variable is not
//! set.
//!
//! The directory is created with mode 0700. It is used only if the user owns it and no other user has access, because
//! in /tmp another user may have created it first. A killed process leaves its socket, without a listener. The next
//! node removes the sockets of processes that do not exist.

use std::{
    env, fs, io,
    os::unix::fs::{DirBuilderExt, MetadataExt},
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use crate::error::Error;

/// Maximum number of directory entries that are read.
pub const ENTRIES_MAX: usize = 4096;
/// Maximum path length of a Unix socket, bytes: `sun_path` less its NUL.
pub const PATH_BYTES_MAX: usize = 107;

/// Location of a node's control socket.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ControlSocketPath {
    /// No control socket.
    None,
    /// In this directory, with TAP and process id as its name. The node runs without the socket if that fails.
    Directory(PathBuf),
    /// At this path. Opening the node fails if the socket cannot be created.
    Path(PathBuf),
}

impl ControlSocketPath {
    /// Converts the value of `--control`; `None`: the option was not given.
    pub fn resolve(option: Option<&Path>) -> Self {
        match option {
            Some(path) if path == Path::new("none") => Self::None,
            Some(path) => Self::Path(path.to_owned()),
            None => Self::Directory(directory()),
        }
    }

    /// Returns the socket's path for a node on `tap` in the process `pid`.
    pub fn socket(&self, tap: &str, pid: u32) -> Option<PathBuf> {
        match self {
            Self::None => None,
            Self::Directory(directory) => Some(directory.join(format!("{tap}-{pid}.sock"))),
            Self::Path(path) => Some(path.clone()),
        }
    }
}

/// Returns the directory of this user's sockets.
pub fn directory() -> PathBuf {
    let runtime = env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let own = rustix::process::geteuid().as_raw();
    // After a change of user (su), XDG_RUNTIME_DIR may still be that of the previous user.
    let is_ours =
        |path: &Path| fs::metadata(path).is_ok_and(|found| found.is_dir() && found.uid() == own);
    match runtime.filter(|path| path.is_absolute() && is_ours(path)) {
        Some(path) => path.join("flue"),
        None => format!("/tmp/flue-{own}").into(),
    }
}

/// Creates the directory if it does not exist, and checks that the user owns it exclusively.
///
/// # Errors
/// It cannot be created, or [`check_directory`] fails.
pub fn make_directory(path: &Path) -> Result<(), Error> {
    let failed =
        |error: io::Error| Error::operation(format!("control socket: {}: {error}", path.display()));
    match fs::DirBuilder::new().mode(0o700).create(path) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(failed(error)),
    }
    check_directory(path).map_err(failed)
}

/// Checks that the user owns the directory and no other user can read or write it.
///
/// # Errors
/// It does not exist, is not a directory, belongs to another user, or is accessible to other users.
pub fn check_directory(path: &Path) -> io::Result<()> {
    let metadata = fs::symlink_metadata(path)?;
    let refused = |why: String| Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
    let (owner, mode) = (metadata.uid(), metadata.mode() & 0o777);
    let own = rustix::process::geteuid().as_raw();
    if !metadata.is_dir() {
        return refused("not a directory".into());
    }
    if owner != own {
        return refused(format!("owner is user {owner}, expected {own}"));
    }
    if mode & 0o077 != 0 {
        return refused(format!("mode {mode:o} permits access by other users, expected 700"));
    }
    Ok(())
}

/// Returns the sockets of a directory, sorted by name.
///
/// # Errors
/// The directory cannot be read; a directory that does not exist is empty.
pub fn sockets(directory: &Path) -> io::Result<Vec<PathBuf>> {
    match check_directory(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        checked => checked?,
    }
    let is_socket = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "sock");
    let entries = fs::read_dir(directory)?.take(ENTRIES_MAX);
    let mut paths: Vec<_> =
        entries.filter_map(|entry| Some(entry.ok()?.path())).filter(is_socket).collect();
    paths.sort();
    Ok(paths)
}

/// Returns the TAP and process id in a socket's name.
pub fn parse(path: &Path) -> Option<(&str, u32)> {
    let (tap, pid) = path.file_stem()?.to_str()?.rsplit_once('-')?;
    Some((tap, pid.parse().ok()?))
}

/// Removes the sockets of ended processes from the directory.
pub fn sweep(directory: &Path) {
    for path in sockets(directory).unwrap_or_default() {
        let has_ended = |pid: u32| !Path::new(&format!("/proc/{pid}")).exists();
        if parse(&path).is_some_and(|(_, pid)| has_ended(pid)) {
            // Fails if another node has removed it already.
            let _ = fs::remove_file(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn scratch(name: &str) -> PathBuf {
        let path = env::temp_dir().join(format!("flue-place-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        path
    }

    #[test]
    fn socket_name_has_tap_and_process() {
        let socket_path = ControlSocketPath::Directory("/run/user/0/flue".into());
        let socket = socket_path.socket("my-tap", 71).unwrap();
        assert_eq!(socket, Path::new("/run/user/0/flue/my-tap-71.sock"));
        assert_eq!(parse(&socket), Some(("my-tap", 71)));
        assert_eq!(parse(Path::new("/x/tap.sock")), None);
        assert_eq!(parse(Path::new("/x/tap-x.sock")), None);
        assert_eq!(ControlSocketPath::resolve(Some(Path::new("none"))), ControlSocketPath::None);
        assert_eq!(ControlSocketPath::None.socket("tap", 1), None);
    }

    #[test]
    fn directory_accessible_to_other_users_is_refused() {
        let path = scratch("open");
        make_directory(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o700);
        make_directory(&path).expect("it is there, and ours");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        let failure = make_directory(&path).unwrap_err();
        assert!(failure.message().contains("mode 755"), "{failure}");
        fs::remove_dir(&path).unwrap();
        fs::write(&path, "").unwrap();
        let failure = make_directory(&path).unwrap_err();
        assert!(failure.message().contains("not a directory"), "{failure}");
        fs::remove_file(&path).unwrap();
        assert_eq!(sockets(&path).unwrap(), Vec::<PathBuf>::new());
    }

    #[test]
    fn sockets_of_ended_processes_are_removed() {
        let path = scratch("sweep");
        make_directory(&path).unwrap();
        // Process ids are below 2^22.
        let (dead, alive) =
            (path.join("tap-4194305.sock"), path.join(format!("tap-{}.sock", std::process::id())));
        let foreign = path.join("notes.txt");
        for file in [&dead, &alive, &foreign] {
            fs::write(file, "").unwrap();
        }
        assert_eq!(sockets(&path).unwrap().len(), 2, "no socket is no .sock");
        sweep(&path);
        assert_eq!(sockets(&path).unwrap(), [alive]);
        assert!(foreign.exists());
        fs::remove_dir_all(&path).unwrap();
    }
}
