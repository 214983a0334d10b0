//! Output files of options, such as captures and traces, and their first write error.
//!
//! Threads write such a file and continue after an error. The error is logged when it occurs. It is also kept
//! until the end of the process, whose exit status it determines ([`take_failure`]).

use std::{
    fs::File,
    io::{self, Write},
    path::Path,
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
