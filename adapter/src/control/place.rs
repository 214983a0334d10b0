//! Where control sockets are: `$XDG_RUNTIME_DIR/flue`, or `/tmp/flue-UID` where that is not set, as
//! `TAP-PID.sock`.
//!
//! The directory is made with mode 0700 and used only if it is the user's own and nobody else's: in /tmp anybody may
//! have been quicker. A process that was killed leaves its socket behind. Nobody listens on it, which is how
//! it is recognised; the next node removes those whose process is gone.

use std::{
    env, fs, io,
    os::unix::fs::{DirBuilderExt, MetadataExt},
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use crate::error::Error;

/// Entries of the directory that are looked at.
pub const ENTRIES_MAX: usize = 4096;
/// Longest path of a Unix socket: `sun_path` less its NUL.
pub const PATH_BYTES_MAX: usize = 107;

/// Where a node listens.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ControlPlace {
    /// Nowhere.
    None,
    /// In this directory, under the name of TAP and process; goes on without if that fails.
    Directory(PathBuf),
    /// There, or the run fails.
    Path(PathBuf),
}

impl ControlPlace {
    /// What `--control` asks for; `None`: it was not given.
    pub fn resolve(option: Option<&Path>) -> Self {
        match option {
            Some(path) if path == Path::new("none") => Self::None,
            Some(path) => Self::Path(path.to_owned()),
            None => Self::Directory(directory()),
        }
    }

    /// The socket's path for a node on `tap` in the process `pid`.
    pub fn socket(&self, tap: &str, pid: u32) -> Option<PathBuf> {
        match self {
            Self::None => None,
            Self::Directory(directory) => Some(directory.join(format!("{tap}-{pid}.sock"))),
            Self::Path(path) => Some(path.clone()),
        }
    }
}

impl std::fmt::Display for ControlPlace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::None => f.write_str("none"),
            Self::Directory(path) => write!(f, "{}/TAP-PID.sock", path.display()),
            Self::Path(path) => write!(f, "{}", path.display()),
        }
    }
}

/// The directory of this user's sockets.
pub fn directory() -> PathBuf {
    let runtime = env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let own = rustix::process::geteuid().as_raw();
    // Who has changed user may still have the former one's.
    let is_ours =
        |path: &Path| fs::metadata(path).is_ok_and(|found| found.is_dir() && found.uid() == own);
    match runtime.filter(|path| path.is_absolute() && is_ours(path)) {
        Some(path) => path.join("flue"),
        None => format!("/tmp/flue-{own}").into(),
    }
}

/// Makes the directory, if it is not there, and sees that it is ours alone.
///
/// # Errors
/// It cannot be made, or is not.
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

/// Whether the directory is ours and nobody else can write to or look into it.
///
/// # Errors
/// It is not there, is something else, belongs to somebody else, or is open to others.
pub fn check_directory(path: &Path) -> io::Result<()> {
    let metadata = fs::symlink_metadata(path)?;
    let refused = |why: String| Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
    let (owner, mode) = (metadata.uid(), metadata.mode() & 0o777);
    let own = rustix::process::geteuid().as_raw();
    if !metadata.is_dir() {
        return refused("not a directory".into());
    }
    if owner != own {
        return refused(format!("belongs to user {owner}, not to {own}"));
    }
    if mode & 0o077 != 0 {
        return refused(format!("mode {mode:o} lets others in; it has to be 700"));
    }
    Ok(())
}

/// The sockets of a directory, by name.
///
/// # Errors
/// The directory cannot be read; one that is not there is empty.
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

/// TAP and process id in a socket's name.
pub fn parse(path: &Path) -> Option<(&str, u32)> {
    let (tap, pid) = path.file_stem()?.to_str()?.rsplit_once('-')?;
    Some((tap, pid.parse().ok()?))
}

/// Removes what processes that are gone have left in the directory.
pub fn sweep(directory: &Path) {
    for path in sockets(directory).unwrap_or_default() {
        let gone = |pid: u32| !Path::new(&format!("/proc/{pid}")).exists();
        if parse(&path).is_some_and(|(_, pid)| gone(pid)) {
            // Another node may be sweeping too.
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
    fn names_tell_tap_and_process() {
        let place = ControlPlace::Directory("/run/user/0/flue".into());
        let socket = place.socket("my-tap", 71).unwrap();
        assert_eq!(socket, Path::new("/run/user/0/flue/my-tap-71.sock"));
        assert_eq!(parse(&socket), Some(("my-tap", 71)));
        assert_eq!(parse(Path::new("/x/tap.sock")), None);
        assert_eq!(parse(Path::new("/x/tap-x.sock")), None);
        assert_eq!(ControlPlace::resolve(Some(Path::new("none"))), ControlPlace::None);
        assert_eq!(ControlPlace::None.socket("tap", 1), None);
    }

    #[test]
    fn a_directory_that_others_can_enter_is_not_used() {
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
    fn sockets_of_processes_that_are_gone_are_swept() {
        let path = scratch("sweep");
        make_directory(&path).unwrap();
        // Process ids end at 2^22.
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
