//! Lookup of the library: a file of a build or of a package, otherwise the copy in this executable.
//!
//! A copy is unpacked once, to a private directory of [`directory`](super::directory) whose name contains the hash of
//! its content.

use std::{
    env, fs,
    path::{Path, PathBuf},
};

use flue_verbs_abi::settings::{self, LIBRARY_FILE};

use super::directory;
use crate::failure::Failure;

/// Libraries in this executable: name, content, hash.
type Embedded = [(&'static str, &'static [u8], u64); 2];

/// Returns the libraries in this executable. A build without optimization has none: its own are next to it, and they
/// have several times the size.
#[cfg(all(feature = "embed", not(debug_assertions)))]
fn embedded() -> Option<Embedded> {
    use settings::PATHS_LIBRARY_FILE;

    let (verbs, verbs_hash) = flue_embed::cdylib!(flue_verbs)?;
    let (paths, paths_hash) = flue_embed::cdylib!(flue_verbs_paths)?;
    Some([(LIBRARY_FILE, verbs, verbs_hash), (PATHS_LIBRARY_FILE, paths, paths_hash)])
}

#[cfg(not(all(feature = "embed", not(debug_assertions))))]
const fn embedded() -> Option<Embedded> {
    None
}

/// Returns the directories of a library that was built or installed with the executable in `beside`: its own, those of
/// packages below the same prefix, and that of a dependency built by cargo.
fn places(beside: &Path) -> [PathBuf; 5] {
    let multiarch = format!("../lib/{}-linux-gnu/flue", env::consts::ARCH);
    ["", "../lib/flue", &multiarch, "../lib64/flue", "deps"].map(|place| beside.join(place))
}

/// Returns the file of the library.
///
/// # Errors
/// [`Failure::lacking`]: not found, or no directory is suitable for a copy.
pub fn find_library(configured: Option<&Path>) -> Result<PathBuf, Failure> {
    let configured =
        configured.map(Path::to_owned).or_else(|| env::var_os(settings::LIBRARY).map(Into::into));
    if let Some(file) = configured {
        return fs::canonicalize(&file)
            .map_err(|error| Failure::lacking(format!("library {}: {error}", file.display())));
    }
    let executable = env::current_exe()
        .and_then(fs::canonicalize)
        .map_err(|error| Failure::lacking(format!("path of the flue executable: {error}")))?;
    let beside = executable.parent().unwrap_or_else(|| Path::new("/"));
    find_in(beside, embedded().as_ref().map(|it| &it[..]))
}

fn find_in(
    beside: &Path,
    embedded: Option<&[(&'static str, &[u8], u64)]>,
) -> Result<PathBuf, Failure> {
    let places = places(beside);
    if let Some(found) =
        places.iter().find_map(|place| place.join(LIBRARY_FILE).canonicalize().ok())
    {
        return Ok(found);
    }
    if let Some(embedded) = embedded {
        return directory::unpack(embedded);
    }
    let names = places.map(|place| place.display().to_string()).join(", ");
    Err(Failure::lacking(format!("library {LIBRARY_FILE}: not found in {names}"))
        .with_hint("cargo build --release, or set --library FILE"))
}

#[cfg(test)]
mod tests {
    use flue_verbs_abi::settings::PATHS_LIBRARY_FILE;

    use super::*;

    #[test]
    fn installed_library_precedes_the_copy() {
        let prefix = env::temp_dir().join(format!("flue-library-{}", std::process::id()));
        let bin = prefix.join("bin");
        fs::create_dir_all(&bin).unwrap();
        let missing = find_in(&bin, None).unwrap_err().message;
        let multiarch = format!("/bin/../lib/{}-linux-gnu/flue", env::consts::ARCH);
        assert!(missing.contains(&multiarch), "{missing}");
        for place in ["lib64/flue", "lib/flue", "bin"] {
            fs::create_dir_all(prefix.join(place)).unwrap();
            let library = prefix.join(place).join(LIBRARY_FILE);
            fs::write(&library, "").unwrap();
            let never = [(LIBRARY_FILE, &b"copy"[..], 1)];
            let library = library.canonicalize().unwrap();
            assert_eq!(find_in(&bin, Some(&never)).unwrap(), library);
        }
        fs::remove_dir_all(&prefix).unwrap();
    }

    #[test]
    fn copy_is_unpacked_once_and_used_in_its_directory() {
        let copies = |content: &'static [u8], hash| {
            [(LIBRARY_FILE, content, hash), (PATHS_LIBRARY_FILE, &b"paths"[..], 2)]
        };
        let nowhere = Path::new("/nonexistent");
        // The object of the directory requires an ELF file.
        let executable: &'static [u8] = fs::read(env::current_exe().unwrap()).unwrap().leak();
        let hash = u64::from(std::process::id());
        let first = find_in(nowhere, Some(&copies(executable, hash))).unwrap();
        let paths = first.with_file_name(PATHS_LIBRARY_FILE);
        assert_eq!(fs::read(&first).unwrap(), executable);
        assert_eq!(fs::read(&paths).unwrap(), b"paths");
        // A file of another length is left by a full disk or another program.
        fs::write(&paths, "").unwrap();
        let written = fs::metadata(&first).unwrap().modified().unwrap();
        assert_eq!(find_in(nowhere, Some(&copies(executable, hash))).unwrap(), first);
        assert_eq!(fs::metadata(&first).unwrap().modified().unwrap(), written);
        assert_eq!(fs::read(&paths).unwrap(), b"paths");
        let other = find_in(nowhere, Some(&copies(b"other", hash + (1 << 32)))).unwrap();
        assert_ne!(other, first);
        let used = directory::prepare(&first).unwrap();
        assert_eq!(Some(&*used.path), first.parent());
        assert_eq!(fs::read_link(used.path.join("libibverbs.so.1")).unwrap(), first);
        for directory in [first.parent(), other.parent()].into_iter().flatten() {
            fs::remove_dir_all(directory).unwrap();
        }
    }
}
