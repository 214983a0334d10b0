//! Checks of the program's file: reasons why the dynamic loader would not load flue's library.
//!
//! The loader ignores its variables for a program that gains privileges, and a statically linked program has no loader.
//! For a script, its interpreter is checked. A file that cannot be read or is not ELF is passed to exec(2) unchecked.

use std::{
    env,
    ffi::{OsStr, OsString},
    fmt,
    fs::{self, File},
    io::Read as _,
    os::unix::{
        ffi::{OsStrExt as _, OsStringExt as _},
        fs::MetadataExt as _,
    },
    path::{Path, PathBuf},
};

use object::{
    Endianness, ReadCache, ReadRef,
    elf::{DT_SONAME, FileHeader32, FileHeader64, PT_INTERP},
    read::elf::{Dyn as _, FileHeader, ProgramHeader as _},
};
use rustix::{fs::getxattr, io::Errno, process::getuid};

use crate::failure::Failure;

/// Mode bits with which exec(2) changes user or group.
const SET_ID_BITS: u32 = 0o6000;
/// Nested interpreters that the kernel follows (BINPRM_MAX_RECURSION).
const INTERPRETERS_MAX: usize = 5;
/// Bytes of a script's first line that the kernel reads (BINPRM_BUF_SIZE).
const FIRST_LINE_BYTES: usize = 256;
/// Directories that execvp(3) searches without PATH.
const PATH_DEFAULT: &str = "/bin:/usr/bin";

/// Obstacle that affects only this program, not the programs that it starts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Obstacle {
    /// Statically linked: no dynamic loader.
    Static,
    /// The loader is for another class or machine than the library.
    OtherMachine,
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Static => "statically linked",
            Self::OtherMachine => "built for another architecture than the library",
        })
    }
}

/// Properties of an ELF file that determine if the library can be loaded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Image {
    /// Class, byte order and machine.
    machine: (bool, bool, u16),
    /// True if a dynamic loader starts it, or it is one.
    is_dynamic: bool,
}

/// Checks the file that exec(2) would start.
///
/// # Errors
/// [`Failure::lacking`]: the program gains privileges, and the loader ignores the variables for it and its children.
pub(super) fn check(
    program: &OsStr,
    library: &Path,
) -> Result<Option<(PathBuf, Obstacle)>, Failure> {
    let Some(file) = find(program).and_then(interpreter_of) else { return Ok(None) };
    if let Some(privilege) = privilege(&file) {
        return Err(Failure::lacking(format!(
            "{}: {privilege}: the dynamic loader ignores LD_LIBRARY_PATH and LD_PRELOAD",
            file.display()
        ))
        .with_hint("run a copy of the file, which has no privilege"));
    }
    let Some(image) = Image::read(&file) else { return Ok(None) };
    let is_other = Image::read(library).is_some_and(|library| library.machine != image.machine);
    let obstacle = match (image.is_dynamic, is_other) {
        (false, _) => Some(Obstacle::Static),
        (true, true) => Some(Obstacle::OtherMachine),
        (true, false) => None,
    };
    Ok(obstacle.map(|obstacle| (file, obstacle)))
}

/// Returns the file of a program, as found by execvp(3).
fn find(program: &OsStr) -> Option<PathBuf> {
    let is_program = |file: &PathBuf| {
        file.is_file() && rustix::fs::access(file, rustix::fs::Access::EXEC_OK).is_ok()
    };
    if program.as_bytes().contains(&b'/') {
        return Some(PathBuf::from(program)).filter(is_program);
    }
    let path = env::var_os("PATH").unwrap_or_else(|| PATH_DEFAULT.into());
    env::split_paths(&path).map(|place| place.join(program)).find(is_program)
}

/// Returns the file itself, or the interpreter named in the first line of a script.
fn interpreter_of(mut file: PathBuf) -> Option<PathBuf> {
    for _ in 0..INTERPRETERS_MAX {
        let mut line = Vec::new();
        // A file that cannot be read may still be executable.
        if let Ok(open) = File::open(&file) {
            open.take(FIRST_LINE_BYTES as u64).read_to_end(&mut line).ok()?;
        }
        let Some(interpreter) = line.strip_prefix(b"#!") else { return Some(file) };
        let first = interpreter.split(|octet| *octet == b'\n').next()?;
        let mut words = first.split(|octet| b" \t".contains(octet));
        let word = words.find(|word| !word.is_empty())?;
        file = PathBuf::from(OsString::from_vec(word.to_vec()));
        if !file.is_file() {
            return None;
        }
    }
    None
}

/// Returns the privilege that exec(2) would grant for the file.
fn privilege(file: &Path) -> Option<&'static str> {
    let mode = fs::metadata(file).map_or(0, |it| it.mode());
    if mode & SET_ID_BITS != 0 {
        return Some("set-user-ID or set-group-ID");
    }
    // Root has the capabilities already.
    let has_capabilities = match getxattr(file, "security.capability", &mut [0; 64][..]) {
        Ok(length) => length > 0,
        Err(error) => error == Errno::RANGE,
    };
    (has_capabilities && !getuid().is_root()).then_some("file capabilities")
}

impl Image {
    fn read(file: &Path) -> Option<Self> {
        let data = ReadCache::new(File::open(file).ok()?);
        let ident: [u8; 5] = data.read_bytes_at(0, 5).ok()?.try_into().ok()?;
        match ident {
            [0x7f, b'E', b'L', b'F', 1] => Self::of::<FileHeader32<Endianness>, _>(&data),
            [0x7f, b'E', b'L', b'F', 2] => Self::of::<FileHeader64<Endianness>, _>(&data),
            _ => None,
        }
    }

    fn of<'data, E: FileHeader<Endian = Endianness>, R: ReadRef<'data>>(data: R) -> Option<Self> {
        let header = E::parse(data).ok()?;
        let endian = header.endian().ok()?;
        let segments = header.program_headers(endian, data).ok()?;
        let has_loader = segments.iter().any(|it| it.p_type(endian) == PT_INTERP);
        // The loader itself has a DT_SONAME.
        let has_name = || {
            let mut entries = segments.iter().filter_map(|it| it.dynamic(endian, data).ok()?);
            let tags = entries.next().unwrap_or_default().iter();
            tags.into_iter().any(|entry| entry.tag32(endian) == Some(DT_SONAME))
        };
        Some(Self {
            machine: (header.is_class_64(), header.is_big_endian(), header.e_machine(endian)),
            is_dynamic: has_loader || has_name(),
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn program_without_a_loader_is_static() {
        let own = env::current_exe().unwrap();
        assert!(Image::read(&own).unwrap().is_dynamic);
        assert_eq!(Image::read(Path::new("/proc/version")), None);
    }

    #[test]
    fn interpreter_of_script_is_checked() {
        let scripts = env::temp_dir().join(format!("flue-script-{}", std::process::id()));
        fs::write(&scripts, "#! \t/bin/sh -e\nexit 0\n").unwrap();
        assert_eq!(interpreter_of(scripts.clone()), Some("/bin/sh".into()));
        fs::write(&scripts, format!("#!{}\n", scripts.display())).unwrap();
        assert_eq!(interpreter_of(scripts.clone()), None, "a loop");
        fs::write(&scripts, "#!\n").unwrap();
        assert_eq!(interpreter_of(scripts.clone()), None);
        fs::remove_file(&scripts).unwrap();
        assert!(find(OsStr::new("sh")).is_some_and(|file| file.ends_with("sh")));
        assert_eq!(find(OsStr::new("/etc")), None);
    }

    proptest! {
        #[test]
        fn hostile_headers_do_not_panic(
            start in 0..256_usize,
            octets in proptest::collection::vec(any::<u8>(), 1..64),
        ) {
            let mut file = fs::read(env::current_exe().unwrap()).unwrap();
            file.truncate(4096);
            file[start..start + octets.len()].copy_from_slice(&octets);
            let _ = Image::of::<FileHeader32<Endianness>, _>(&*file);
            let _ = Image::of::<FileHeader64<Endianness>, _>(&*file);
        }
    }
}
