//! Output files of options, such as captures and traces, and their first write error.
//!
//! Threads write such a file and continue after an error. The error is logged when it occurs. It is also kept
//! until the end of the process, whose exit status it determines ([`take_failure`]).

use std::{
    ffi::OsString,
    fs::{File, OpenOptions},
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

use offload_engine::descriptor::{Guarded, move_to_high_number};
use rustix::io::Errno;

use crate::error::Error;

/// First failure of this process that was not yet taken.
static FAILED: Mutex<Option<Error>> = Mutex::new(None);

/// Output file of an option.
#[derive(Debug)]
pub struct OutputFile {
    file: Guarded<File>,
    /// Option and path, for messages.
    name: String,
    has_failed: bool,
}

impl OutputFile {
    /// Creates or truncates the file of `option`. Its descriptor has a high number, which survives programs that close
    /// all low ones.
    ///
    /// # Errors
    /// Errors of the file system, with option and path.
    pub fn create(option: &str, path: &Path) -> Result<Self, Error> {
        let name = format!("{option} {}", path.display());
        match File::create(path) {
            Ok(file) => {
                let file = File::from(move_to_high_number(file.into())).into();
                Ok(Self { file, name, has_failed: false })
            }
            Err(error) => Err(failure(&name, &error)),
        }
    }

    /// Returns option and path, for messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Keeps the error, unless an earlier one is kept, and logs the first one of the file.
    fn note<T>(&mut self, result: io::Result<T>) -> io::Result<T> {
        if let Err(error) = &result
            && error.kind() != io::ErrorKind::Interrupted
        {
            if !self.has_failed {
                tracing::error!(file = %self.name, %error, "output stopped: write error");
            }
            self.has_failed = true;
            let mut failed = FAILED.lock().unwrap_or_else(PoisonError::into_inner);
            failed.get_or_insert_with(|| failure(&self.name, error));
        }
        result
    }
}

impl Write for OutputFile {
    fn write(&mut self, octets: &[u8]) -> io::Result<usize> {
        let written = match self.file.is_intact() {
            true => self.file.write(octets),
            false => Err(Errno::BADF.into()),
        };
        self.note(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        let flushed = self.file.flush();
        self.note(flushed)
    }
}

/// Capture file of a running node, created by a client of the control socket. Its errors are reported by the control
/// socket, and do not determine the exit status.
#[derive(Debug)]
pub(crate) struct CaptureFile(Guarded<File>);

impl CaptureFile {
    /// Takes the file of a client.
    ///
    /// # Errors
    /// It is not a regular file: a write to it might block.
    pub(crate) fn new(file: Guarded<File>) -> io::Result<Self> {
        match file.metadata()?.is_file() {
            true => Ok(Self(file)),
            false => Err(io::Error::new(io::ErrorKind::InvalidInput, "expected a regular file")),
        }
    }
}

/// Creates the file of a capture with mode 0600. An existing file or link of any user is refused.
///
/// # Errors
/// AlreadyExists, and other errors of the file system.
pub(crate) fn create_capture(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    // O_EXCL does not follow a link either.
    options.write(true).create_new(true).mode(0o600).open(path)
}

impl Write for CaptureFile {
    fn write(&mut self, octets: &[u8]) -> io::Result<usize> {
        match self.0.is_intact() {
            true => self.0.write(octets),
            false => Err(Errno::BADF.into()),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// Returns the file name of a queue: `path` itself for the first queue, then `name.1.ext` and so on.
pub(crate) fn of_queue(path: &Path, queue: usize) -> PathBuf {
    let Some(stem) = path.file_stem().filter(|_| queue > 0) else { return path.to_owned() };
    let mut name = OsString::from(stem);
    name.push(format!(".{queue}"));
    if let Some(extension) = path.extension() {
        name.push(".");
        name.push(extension);
    }
    path.with_file_name(name)
}

fn failure(name: &str, error: &io::Error) -> Error {
    Error::operation(format!("{name}: {error}"))
}

/// Returns the first error of an output file of this process since the last call. The result is final once the nodes
/// that write the files are dropped.
pub fn take_failure() -> Option<Error> {
    FAILED.lock().unwrap_or_else(PoisonError::into_inner).take()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Cause;

    #[test]
    fn capture_of_an_existing_file_or_link_is_refused() {
        use std::os::unix::fs::{PermissionsExt, symlink};

        let directory = std::env::temp_dir().join(format!("flue-capture-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let [file, link, dangling] = ["file", "link", "dangling"].map(|name| directory.join(name));
        let made = CaptureFile::new(create_capture(&file).unwrap().into());
        made.unwrap().write_all(b"x").unwrap();
        let mode = std::fs::metadata(&file).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        symlink(&file, &link).unwrap();
        symlink(directory.join("absent"), &dangling).unwrap();
        for path in [&file, &link, &dangling] {
            let kind = create_capture(path).unwrap_err().kind();
            assert_eq!(kind, io::ErrorKind::AlreadyExists, "{path:?}");
        }
        assert!(!directory.join("absent").exists(), "a link was followed");
        assert_eq!(std::fs::read(&file).unwrap(), b"x");
        std::fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn each_queue_has_files_of_its_own() {
        let of = |path: &str, queue| of_queue(path.as_ref(), queue).display().to_string();
        assert_eq!(of("/tmp/run.pcapng", 0), "/tmp/run.pcapng");
        assert_eq!(of("/tmp/run.pcapng", 1), "/tmp/run.1.pcapng");
        assert_eq!(of("run.v2.csv", 15), "run.v2.15.csv");
        assert_eq!(of("trace", 2), "trace.2");
    }

    // One test only: the failure is global to the process.
    #[test]
    fn first_error_is_kept_once() {
        let absent = OutputFile::create("--pcap", Path::new("/nonexistent/file")).unwrap_err();
        let text = "--pcap /nonexistent/file: No such file or directory (os error 2)";
        assert_eq!(absent.message(), text);
        assert_eq!(take_failure(), None, "the failure was taken before");
        for option in ["--pcap", "--tcp-trace"] {
            let mut file = OutputFile::create(option, Path::new("/dev/full")).unwrap();
            file.write_all(b"x").unwrap_err();
        }
        let failure = take_failure().unwrap();
        assert_eq!(failure.message(), "--pcap /dev/full: No space left on device (os error 28)");
        assert_eq!((failure.cause(), take_failure()), (Cause::Operation, None));
    }
}
