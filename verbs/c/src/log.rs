//! Log file, which remains usable when the program closes descriptors.
//!
//! The file stays open. If the program has closed its descriptor, or none was available at the start, each line opens
//! the file by its path. If no descriptor is available for that either, a thread with a separate descriptor table
//! writes the line.

use std::{
    fs::{File, OpenOptions},
    io::{self, Write},
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use offload_engine::{
    descriptor::{Guarded, move_to_high_number},
    thread,
};
use rustix::thread::{UnshareFlags, unshare_unsafe};

/// Log file, opened for appending.
#[derive(Debug)]
pub(crate) struct LogFile {
    /// Absolute path: the program may change its directory.
    path: PathBuf,
    /// Open file, with device and inode.
    open: Option<(Guarded<File>, (u64, u64))>,
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().create(true).append(true).open(path)
}

fn inode(file: &File) -> Option<(u64, u64)> {
    file.metadata().ok().map(|it| (it.dev(), it.ino()))
}

impl LogFile {
    /// Opens the log at `path`. If that fails, each write tries again.
    pub(crate) fn new(path: &Path) -> Self {
        let path = std::path::absolute(path).unwrap_or_else(|_| path.into());
        let opened = open(&path).ok().map(|file| File::from(move_to_high_number(file.into())));
        let open = opened.and_then(|file| inode(&file).map(|inode| (file.into(), inode)));
        Self { path, open }
    }

    /// Returns the open file, unless its descriptor number now refers to another file.
    fn intact(&self) -> Option<&File> {
        let (file, inode_at_open) = self.open.as_ref()?;
        (inode(file) == Some(*inode_at_open)).then_some(file)
    }
}

impl Write for &LogFile {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if let Some(mut file) = self.intact() {
            return file.write(line);
        }
        match open(&self.path) {
            Err(error) if error.raw_os_error() == Some(libc::EMFILE) => {
                write_on_thread(self.path.clone(), line.to_vec())?;
                Ok(line.len())
            }
            file => file?.write(line),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Appends a line on a thread with a copy of the descriptor table, in which one number is closed.
fn write_on_thread(path: PathBuf, line: Vec<u8>) -> io::Result<()> {
    let run = move || {
        // SAFETY: the thread uses no descriptor that another part of the process opens or closes.
        unsafe {
            unshare_unsafe(UnshareFlags::FILES)?;
            // The number stays open in the descriptor table of the process.
            rustix::io::close(0);
        }
        open(&path)?.write_all(&line)
    };
    thread::start("flue-log", run)?.join().unwrap_or_else(|_| Err(io::ErrorKind::Other.into()))
}
