//! Usage of the device by the processes of a program, for its launcher.
//!
//! The launcher passes the path of a file. Each process that starts the device appends a record, and rewrites it when
//! it has created a queue pair or established a connection. So the record is up to date when a signal ends the process.
//! The file is opened for each write, since a program may close descriptors that it did not open.

use std::{
    fs::File,
    io::{self, Read as _, Seek as _, Write as _},
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
    sync::{Mutex, OnceLock},
};

use crate::{
    process::{GENERATIONS_MAX, generation},
    sync::lock,
};

/// Two counters of 64 bits: queue pairs, connections.
const RECORD_BYTES: usize = 16;

/// Recorders by generation of processes.
static RECORDERS: [OnceLock<Recorder>; GENERATIONS_MAX] =
    [const { OnceLock::new() }; GENERATIONS_MAX];

#[derive(Debug)]
struct Recorder {
    path: PathBuf,
    /// Offset of the record.
    at: u64,
    counts: Mutex<[u64; 2]>,
}

/// Sums over the processes of a program.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Totals {
    /// Processes that started the device.
    pub processes: u64,
    /// Queue pairs created.
    pub queue_pairs: u64,
    /// Connections established.
    pub connections: u64,
}

impl Totals {
    /// Reads the records of all processes.
    ///
    /// # Errors
    /// Errors of the file.
    pub fn read(mut file: &File) -> io::Result<Self> {
        let mut octets = Vec::new();
        file.rewind()?;
        file.read_to_end(&mut octets)?;
        let (records, _) = octets.as_chunks::<RECORD_BYTES>();
        Ok(records.iter().fold(Self::default(), |sum, record| {
            let record = u128::from_le_bytes(*record);
            Self {
                processes: sum.processes + 1,
                queue_pairs: sum.queue_pairs.saturating_add(record as u64),
                connections: sum.connections.saturating_add((record >> 64) as u64),
            }
        }))
    }
}

/// Appends the record of this process. Called once per process.
///
/// # Errors
/// Errors of the file.
pub fn begin(path: &Path) -> io::Result<()> {
    let Some(place) = RECORDERS.get(generation()) else { return Ok(()) };
    let mut file = File::options().append(true).open(path)?;
    file.write_all(&[0; RECORD_BYTES])?;
    let at = file.stream_position()? - RECORD_BYTES as u64;
    let _ = place.set(Recorder { path: path.to_owned(), at, counts: Mutex::default() });
    Ok(())
}

/// Counts a created queue pair.
pub(crate) fn count_queue_pair() {
    count(0);
}

/// Counts an established connection.
pub(crate) fn count_connection() {
    count(1);
}

fn count(index: usize) {
    let Some(Recorder { path, at, counts }) = RECORDERS.get(generation()).and_then(OnceLock::get)
    else {
        return;
    };
    let mut counts = lock(counts);
    counts[index] += 1;
    let [queue_pairs, connections] = counts.map(u128::from);
    let record = (connections << 64 | queue_pairs).to_le_bytes();
    let written = File::options().write(true).open(path);
    if let Err(error) = written.and_then(|file| file.write_all_at(&record, *at)) {
        tracing::warn!(%error, path = %path.display(), "device usage not recorded");
    }
}

#[cfg(test)]
mod tests {
    use rustix::fs::{MemfdFlags, memfd_create};
    use std::os::fd::AsRawFd as _;

    use super::*;

    #[test]
    fn records_add_up() {
        let file: File = memfd_create("usage", MemfdFlags::CLOEXEC).unwrap().into();
        assert_eq!(Totals::read(&file).unwrap(), Totals::default());
        (&file).write_all(&[7, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0]).unwrap();
        begin(Path::new(&format!("/proc/self/fd/{}", file.as_raw_fd()))).unwrap();
        count_queue_pair();
        count_queue_pair();
        count_connection();
        let expected = Totals { processes: 2, queue_pairs: 9, connections: 4 };
        assert_eq!(Totals::read(&file).unwrap(), expected);
    }
}
