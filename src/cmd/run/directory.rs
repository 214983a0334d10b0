//! Directory in which a program finds the library under the names of the originals.
//!
//! It is created in `$XDG_RUNTIME_DIR`, or in the directory for temporary files if that is unusable. Only its user can
//! write to it. It is kept for later runs, and removed by a launcher that creates another one if no process has used it
//! for [`UNUSED_AFTER`]. Its path is an element of lists that the dynamic loader splits, so it contains none of
//! [`SEPARATORS`]. It contains links to the library or the library itself ([`unpack`]), the objects of [`preload`], and
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
    time::Duration,
};

use flue_verbs_abi::settings;
use rustix::fs::{AtFlags, CWD, StatVfsMountFlags, Timespec, Timestamps, UTIME_NOW, utimensat};

use super::{environments, preload};
use crate::failure::Failure;

/// Characters that end an element of the loader's lists, or start a substitution in it.
const SEPARATORS: &[u8] = b":; $";
/// Write permission of users other than owner and group.
const OTHER_USERS_WRITE: u32 = 0o002;
/// Write permission of users other than the owner.
const NOT_OWNER_WRITE: u32 = 0o022;
const STICKY: u32 = 0o1000;
/// Start of the name, before user and hash.
const PREFIX: &str = "flue-verbs";
/// Time without a use after which a directory is removed. Processes of other PID namespaces are not listed.
const UNUSED_AFTER: Duration = Duration::from_secs(24 * 3600);

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
        // The unpacked file itself.
        if path == target {
            return Ok(path);
        }
        link(&path, target)
            .map_err(|error| Failure::work(format!("{}: {error}", path.display())))?;
        Ok(path)
    }
}

/// Returns the complete directory. That of an unpacked library is the one that contains it.
///
/// # Errors
/// [`Failure::lacking`]: it cannot be created in any place, or another user can write to it.
pub(super) fn prepare(library: &Path) -> Result<Directory, Failure> {
    let user = rustix::process::geteuid().as_raw();
    let name = name(user, hash(library.as_os_str()));
    let unpacked = library.parent().filter(|it| it.file_name().is_some_and(|it| is_name(it, user)));
    match unpacked.and_then(|it| Some((it.parent()?, it.file_name()?.to_str()?))) {
        Some((base, name)) => {
            in_first(user, [base.to_owned()], |base| complete(private(base, name, user)?, library))
        }
        None => in_first(user, bases(user), |base| complete(private(base, &name, user)?, library)),
    }
}

/// Writes files, each with its name, content and hash, to a directory from which they can be executed, unless they
/// exist. Returns the path of the first.
///
/// # Errors
/// [`Failure::lacking`]: there is no such directory.
pub(super) fn unpack(files: &[(&str, &[u8], u64)]) -> Result<PathBuf, Failure> {
    let user = rustix::process::geteuid().as_raw();
    let hash = files.iter().fold(0, |all: u64, (_, _, hash)| all.rotate_left(1) ^ hash);
    in_first(user, bases(user), |base| {
        let mount = rustix::fs::statvfs(base);
        if mount.is_ok_and(|it| it.f_flag.contains(StatVfsMountFlags::NOEXEC)) {
            return Err(format!("{}: file system mounted noexec", base.display()));
        }
        let directory = private(base, &name(user, hash), user)?;
        for (name, octets, _) in files {
            let path = directory.join(name);
            let is_complete = fs::symlink_metadata(&path)
                .is_ok_and(|it| it.is_file() && it.len() == octets.len() as u64);
            if !is_complete {
                replace(&path, |path| fs::write(path, octets))
                    .map_err(|error| format!("{}: {error}", path.display()))?;
            }
        }
        Ok(files.first().map_or_else(PathBuf::new, |(name, _, _)| directory.join(name)))
    })
}

/// Returns the places for directories, in order of preference.
fn bases(user: u32) -> impl IntoIterator<Item = PathBuf> {
    let is_own =
        move |path: &PathBuf| fs::metadata(path).is_ok_and(|it| it.is_dir() && it.uid() == user);
    // The directory of a login session belongs to the user, and is removed with the session.
    let session = env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(is_own);
    session.into_iter().chain([env::temp_dir()])
}

/// Returns the result for the first place that is suitable.
///
/// # Errors
/// [`Failure::lacking`]: none is.
fn in_first<T>(
    user: u32,
    bases: impl IntoIterator<Item = PathBuf>,
    prepare: impl Fn(&Path) -> Result<T, String>,
) -> Result<T, Failure> {
    let mut refusals = Vec::new();
    for base in bases {
        match prepare(&base) {
            Ok(prepared) => return Ok(prepared),
            Err(refusal) => refusals.push(refusal),
        }
    }
    Err(Failure::lacking(refusals.join("; ")).with_hint(format!(
        "set TMPDIR to a directory that user {user} can write to, with free space, without ':', \
         ';', '$' or space in its path"
    )))
}

/// Returns the name of a directory.
fn name(user: u32, hash: u64) -> String {
    format!("{PREFIX}-{user}-{hash:016x}")
}

/// Returns true for a name of [`name`].
fn is_name(name: &OsStr, user: u32) -> bool {
    let hash = name.to_str().and_then(|it| it.strip_prefix(&format!("{PREFIX}-{user}-")));
    hash.is_some_and(|it| it.len() == 16 && it.bytes().all(|octet| octet.is_ascii_hexdigit()))
}

/// Creates a directory to which only this user can write, or checks an existing one, and records its use.
fn private(base: &Path, name: &str, user: u32) -> Result<PathBuf, String> {
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
    let directory = base.join(name);
    let failed = |error| failed(&directory, error);
    match fs::DirBuilder::new().mode(0o700).create(&directory) {
        Ok(()) => remove_unused(&base, user, UNUSED_AFTER),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(failed(error)),
    }
    let found = fs::symlink_metadata(&directory).map_err(failed)?;
    if !found.is_dir() || found.uid() != user || found.mode() & NOT_OWNER_WRITE != 0 {
        let directory = directory.display();
        return Err(format!(
            "{directory}: expected a directory that only user {user} can write to"
        ));
    }
    let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
    let times = Timestamps { last_access: now, last_modification: now };
    // Fails on a read-only file system, from which nothing is removed either.
    let _ = utimensat(CWD, &directory, &times, AtFlags::empty());
    Ok(directory)
}

/// Creates the links and objects that are missing in a directory.
fn complete(directory: PathBuf, library: &Path) -> Result<Directory, String> {
    let failed = |error: io::Error| format!("{}: {error}", directory.display());
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

/// Removes directories of this user that have not been used since `limit`, and whose paths are not in the environment
/// of a process.
fn remove_unused(base: &Path, user: u32, limit: Duration) {
    let Ok(found) = fs::read_dir(base) else { return };
    let is_old = |directory: &PathBuf| {
        let found =
            fs::symlink_metadata(directory).ok().filter(|it| it.is_dir() && it.uid() == user);
        let used = found.and_then(|it| it.modified().ok());
        used.is_some_and(|it| it.elapsed().is_ok_and(|elapsed| elapsed >= limit))
    };
    let directories = found.flatten().filter(|entry| is_name(&entry.file_name(), user));
    let mut unused: Vec<_> = directories.map(|entry| entry.path()).filter(is_old).collect();
    if unused.is_empty() {
        return;
    }
    for environment in environments::read() {
        unused.retain(|directory| {
            let path = directory.as_os_str().as_bytes();
            !environment.windows(path.len()).any(|part| part == path)
        });
    }
    for directory in unused {
        // Another launcher may remove it too.
        let _ = fs::remove_dir_all(directory);
    }
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
    #[test]
    fn unused_directories_are_removed() {
        let user = rustix::process::geteuid().as_raw();
        let base = env::temp_dir().join(format!("flue-unused-{}", process::id()));
        let created = [1, 2, 3].map(|hash| base.join(name(user, hash)));
        created.iter().for_each(|directory| fs::create_dir_all(directory.join("in")).unwrap());
        let kept = [base.join(format!("{PREFIX}-{user}-1")), base.join(name(user + 1, 1))];
        kept.iter().for_each(|directory| fs::create_dir(directory).unwrap());
        remove_unused(&base, user, UNUSED_AFTER);
        let exist = || created.each_ref().map(|directory| directory.exists());
        assert_eq!(exist(), [true; 3], "recently used");
        let path = env::join_paths(["/x".as_ref(), created[1].as_path()]).unwrap();
        let program = environments::Process::with("LD_LIBRARY_PATH", &path);
        remove_unused(&base, user, Duration::ZERO);
        assert_eq!(exist(), [false, true, false], "used by a process");
        drop(program);
        // Creation of another directory does the same.
        let old = fs::File::open(&created[1]).unwrap();
        let used = std::time::SystemTime::now() - UNUSED_AFTER;
        old.set_modified(used).unwrap();
        assert_eq!(private(&base, &name(user, 2), user).unwrap(), created[1]);
        assert_eq!(exist(), [false, true, false], "its own, whose use is recorded");
        old.set_modified(used).unwrap();
        private(&base, &name(user, 3), user).unwrap();
        assert_eq!(exist(), [false, false, true]);
        assert!(kept.iter().all(|directory| directory.exists()));
        fs::remove_dir_all(&base).unwrap();
    }
}
