//! Directory in which a program finds the library under the names of the originals.
//!
//! It is created in `$XDG_RUNTIME_DIR`, or in the directory for temporary files if that is unusable. Only its user can
//! write to it, and it is kept for later runs. Its path is an element of lists that the dynamic loader splits, so it
//! contains none of [`SEPARATORS`]. It contains links to the library, the objects of [`preload`], and
//! directories of [`files`](super::files).

use std::{
    env,
    ffi::OsStr,
    fs, io,
    os::unix::{
        ffi::OsStrExt as _,
        fs::{DirBuilderExt as _, MetadataExt as _, symlink},
    },
    path::{Path, PathBuf},
    process,
};

use flue_verbs_abi::settings;

use super::preload;
use crate::failure::Failure;

/// Characters that end an element of the loader's lists, or start a substitution in it.
const SEPARATORS: &[u8] = b":; $";
/// Write permission of users other than owner and group.
const OTHER_USERS_WRITE: u32 = 0o002;
/// Write permission of users other than the owner.
const NOT_OWNER_WRITE: u32 = 0o022;
const STICKY: u32 = 0o1000;

/// Prepared directory.
#[derive(Debug)]
pub(super) struct Directory {
    /// Path of the directory.
    pub(super) path: PathBuf,
    /// Objects for LD_PRELOAD.
    pub(super) preloads: Vec<PathBuf>,
}

impl Directory {
    /// Creates a link in the directory, and returns its path, which the loader does not split.
    ///
    /// # Errors
    /// The directory cannot be written.
    pub(super) fn link(&self, name: &str, target: &Path) -> Result<PathBuf, Failure> {
        let path = self.path.join(name);
        link(&path, target)
            .map_err(|error| Failure::work(format!("{}: {error}", path.display())))?;
        Ok(path)
    }
}

/// Returns the complete directory.
///
/// # Errors
/// [`Failure::lacking`]: it cannot be created in any place, or another user can write to it.
pub(super) fn prepare(library: &Path) -> Result<Directory, Failure> {
    let user = rustix::process::geteuid().as_raw();
    let is_own =
        |path: &PathBuf| fs::metadata(path).is_ok_and(|it| it.is_dir() && it.uid() == user);
    // The directory of a login session belongs to the user, and is removed with the session.
    let session = env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(is_own);
    let mut refusals = Vec::new();
    for base in session.into_iter().chain([env::temp_dir()]) {
        match prepare_in(&base, library, user) {
            Ok(directory) => return Ok(directory),
            Err(refusal) => refusals.push(refusal),
        }
    }
    Err(Failure::lacking(refusals.join("; ")).with_hint(format!(
        "set TMPDIR to a directory that user {user} can write to, with free space, without ':', \
         ';', '$' or space in its path"
    )))
}

fn prepare_in(base: &Path, library: &Path, user: u32) -> Result<Directory, String> {
    let failed = |path: &Path, error: io::Error| format!("{}: {error}", path.display());
    // The program may change its working directory.
    let base = std::path::absolute(base).map_err(|error| failed(base, error))?;
    if base.as_os_str().as_bytes().iter().any(|octet| SEPARATORS.contains(octet)) {
        return Err(format!("{}: path with ':', ';', '$' or space", base.display()));
    }
    let mode = fs::metadata(&base).map_err(|error| failed(&base, error))?.mode();
    if mode & OTHER_USERS_WRITE != 0 && mode & STICKY == 0 {
        let base = base.display();
        return Err(format!("{base}: every user can rename its entries, expected the sticky bit"));
    }
    let directory = base.join(format!("flue-verbs-{user}-{:016x}", hash(library.as_os_str())));
    let failed = |error| failed(&directory, error);
    match fs::DirBuilder::new().mode(0o700).create(&directory) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(failed(error)),
        _ => {}
    }
    let found = fs::symlink_metadata(&directory).map_err(failed)?;
    if !found.is_dir() || found.uid() != user || found.mode() & NOT_OWNER_WRITE != 0 {
        let directory = directory.display();
        return Err(format!(
            "{directory}: expected a directory that only user {user} can write to"
        ));
    }
    for name in settings::LIBRARY_NAMES {
        link(&directory.join(name), library).map_err(failed)?;
    }
    let linked = directory.join(settings::LIBRARY_NAMES[0]);
    let mut preloads = Vec::new();
    // Programs are linked to these names; the others are for dlopen(3).
    for name in settings::LIBRARY_NAMES.into_iter().filter(|name| name.ends_with(".so.1")) {
        let path = directory.join(format!("preload-{name}"));
        let octets = preload::object(name, &linked)?;
        if !fs::read(&path).is_ok_and(|found| found == octets) {
            replace(&path, |path| fs::write(path, &octets)).map_err(failed)?;
        }
        preloads.push(path);
    }
    Ok(Directory { path: directory, preloads })
}

/// Creates a link, or replaces one with another target.
fn link(path: &Path, target: &Path) -> io::Result<()> {
    if fs::read_link(path).is_ok_and(|found| found == target) {
        return Ok(());
    }
    replace(path, |path| symlink(target, path))
}

/// Creates or replaces a file atomically: other launchers may start programs concurrently.
pub(super) fn replace(path: &Path, create: impl FnOnce(&Path) -> io::Result<()>) -> io::Result<()> {
    let mut fresh = path.as_os_str().to_owned();
    fresh.push(format!(".{}", process::id()));
    // Left over from a killed process with the same id.
    let _ = fs::remove_file(&fresh);
    create(Path::new(&fresh))?;
    fs::rename(&fresh, path)
}

/// Returns the FNV-1a hash of a path: a directory name per library that is the same in every run.
fn hash(path: &OsStr) -> u64 {
    path.as_bytes().iter().fold(0xcbf2_9ce4_8422_2325, |hash, octet| {
        (hash ^ u64::from(*octet)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directory_is_created_once_and_repaired() {
        let library = env::current_exe().unwrap();
        let Directory { path: directory, preloads } = prepare(&library).unwrap();
        let links =
            || settings::LIBRARY_NAMES.map(|name| fs::read_link(directory.join(name)).unwrap());
        let expected = settings::LIBRARY_NAMES.map(|_| library.clone());
        assert_eq!(links(), expected);
        fs::remove_file(directory.join(settings::LIBRARY_NAMES[1])).unwrap();
        symlink("/nowhere", directory.join(settings::LIBRARY_NAMES[1])).unwrap();
        fs::write(&preloads[1], "half").unwrap();
        assert_eq!(prepare(&library).unwrap().path, directory);
        assert!(fs::read(&preloads[1]).unwrap().starts_with(b"\x7fELF"));
        assert_eq!(links(), expected);
        let left = fs::read_dir(&directory).unwrap().count();
        assert_eq!(left, expected.len() + preloads.len(), "unexpected files");
        fs::remove_dir_all(&directory).unwrap();
    }
}
