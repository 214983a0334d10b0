//! Node of a program that a launcher starts and outlives.
//!
//! When a process is killed, its node ends without resetting its connections. So the launcher opens the TAP and keeps
//! it open; the program inherits the descriptor. The program's node records its connections in a memory file that both
//! processes share (`table`; one write when a connection begins or ends). When the program has exited, the launcher
//! resets the connections that are still recorded (`reset`).
//!
//! One process at a time uses the TAP: the process that holds the lock on the table. The lock ends with its process.
//! The next process resets the remaining connections before it starts its node.

mod reset;
mod segment;
mod table;
mod tracker;

use std::{
    fs::{self, DirEntry, File},
    io,
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::{ffi::OsStrExt as _, fs::MetadataExt as _},
    },
};

use host_stack::dad::Detection;
use offload_engine::{
    descriptor::move_to_high_number,
    link::{Link, NapiMode},
};
use rdma_over_tcp::{
    adapter::{self, Adapter},
    rnic,
};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::{FlockOperation, MemfdFlags, fcntl_lock, memfd_create},
    io::{Errno, FdFlags, fcntl_setfd},
    process::{Pid, PidfdFlags, Signal, getpid, pidfd_open, pidfd_send_signal},
};
use serde::{Deserialize, Serialize};

use self::{reset::reset, table::Table, tracker::Tracker};
use crate::{NodeOptions, error::Error, node::start_traces};

/// Node that a launcher has prepared for a program.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LaunchedNode {
    /// Options of the node, with the inherited descriptor of its TAP.
    pub options: NodeOptions,
    /// Inherited descriptor of the table of connections.
    table_fd: i32,
}

/// Launcher's side of a node: keeps the TAP and the table open.
#[derive(Debug)]
pub struct Launch {
    /// Node for the program.
    pub node: LaunchedNode,
    /// Descriptor of the TAP, held open.
    _tap: OwnedFd,
    table: File,
}

impl Launch {
    /// Opens the TAP and sets up the kernel's side of it. Programs started afterwards inherit its descriptor.
    ///
    /// # Errors
    /// As [`NodeOptions::open`].
    pub fn prepare(options: &NodeOptions) -> Result<Self, Error> {
        let options = options.clone().completed()?;
        let (tap, name) = options.open_descriptor()?;
        let failed = |error: Errno| Error::operation(format!("table of connections: {error}"));
        let table = memfd_create(TABLE_NAME, MemfdFlags::empty()).map_err(failed)?;
        // Programs that become a daemon close low descriptor numbers.
        let [tap, table] = [tap, table].map(inheritable);
        let options = NodeOptions {
            tap: name,
            tap_fd: Some(tap.as_raw_fd()),
            // The launcher has already done the settings below.
            detection: Detection::Off,
            bridge: None,
            host_addresses: Vec::new(),
            txqueuelen: None,
            napi: NapiMode::Off,
            ..options
        };
        let node = LaunchedNode { options, table_fd: table.as_raw_fd() };
        Ok(Self { node, _tap: tap, table: table.into() })
    }

    /// Resets the connections of a dead program, unless another process uses the node.
    ///
    /// # Errors
    /// The TAP or the table cannot be used.
    pub fn reset_left(&self) -> Result<(), Error> {
        let Self { node, _tap, table } = self;
        if !lock(table)? {
            return Ok(());
        }
        let failed = |error| Error::operation(format!("table of connections: {error}"));
        let left = Table::read(table).map_err(failed)?;
        if left.is_empty() {
            return Ok(());
        }
        let bare = node.options.without_observers();
        let link = bare.open_links()?.links.pop();
        let mut link = link.ok_or_else(|| Error::operation("TAP: no queue"))?;
        reset(&mut *link, bare.mac().0, &bare, &left)
            .map_err(|error| Error::operation(format!("reset connections: {error}")))
    }
}

/// Name of the table, and its link in `/proc`.
const TABLE_NAME: &str = "flue-connections";
const TABLE_LINK: &[u8] = b"/memfd:flue-connections (deleted)";

/// Moves a descriptor to a high number and clears its close-on-exec flag.
fn inheritable(descriptor: OwnedFd) -> OwnedFd {
    let moved = move_to_high_number(descriptor);
    // Cannot fail for an open descriptor.
    let _ = fcntl_setfd(&moved, FdFlags::empty());
    moved
}

/// Maximum rounds of killing: a process may start another one while the list is read.
const KILL_ROUNDS_MAX: usize = 16;
/// Time limit for the kernel to end a killed process.
const KILL_LIMIT: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

impl Launch {
    /// Kills the processes that have inherited the node, except the calling one, waits until they have ended, and takes
    /// the lock.
    ///
    /// # Errors
    /// Processes cannot be listed, or some remain after all rounds.
    pub fn kill_users(&self) -> Result<(), Error> {
        let failed = |error: io::Error| Error::operation(format!("processes of the node: {error}"));
        for _ in 0..KILL_ROUNDS_MAX {
            let users = self.users().map_err(failed)?;
            if users.is_empty() {
                // An exiting process closes its descriptors before its lock is released, so wait for the lock.
                return fcntl_lock(&self.table, FlockOperation::LockExclusive)
                    .map_err(|error| failed(error.into()));
            }
            for user in &users {
                // Fails if the process has ended.
                let _ = pidfd_send_signal(user, Signal::KILL);
            }
            for user in &users {
                let mut ended = [PollFd::new(user, PollFlags::IN)];
                let _ = poll(&mut ended, Some(&KILL_LIMIT));
            }
        }
        Err(Error::operation(format!(
            "processes of the node: still running after {KILL_ROUNDS_MAX} rounds of SIGKILL"
        )))
    }

    /// Returns the other processes that have a descriptor of the table.
    fn users(&self) -> io::Result<Vec<OwnedFd>> {
        let table = self.table.metadata()?;
        let is_table = |entry: DirEntry| {
            // fs::metadata follows the link to the open file.
            let found = fs::metadata(entry.path());
            found.is_ok_and(|found| (found.dev(), found.ino()) == (table.dev(), table.ino()))
        };
        let mut users = Vec::new();
        for process in fs::read_dir("/proc")? {
            let process = process?;
            let id = process.file_name().to_str().and_then(|name| name.parse::<i32>().ok());
            let Some(id) = id.and_then(Pid::from_raw).filter(|id| *id != getpid()) else {
                continue;
            };
            // Open the pidfd before listing the descriptors: the id may be reused afterwards.
            let Ok(user) = pidfd_open(id, PidfdFlags::empty()) else { continue };
            let Ok(mut descriptors) = fs::read_dir(process.path().join("fd")) else { continue };
            if descriptors.any(|entry| entry.is_ok_and(is_table)) {
                users.push(user);
            }
        }
        Ok(users)
    }
}

/// Takes the lock for this process. Returns false if another process holds it.
fn lock(table: &File) -> Result<bool, Error> {
    match fcntl_lock(table, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(true),
        Err(Errno::AGAIN | Errno::ACCESS) => Ok(false),
        Err(error) => Err(Error::operation(format!("lock the table of connections: {error}"))),
    }
}

impl LaunchedNode {
    /// Starts the node in this process, with an RDMA adapter on it.
    ///
    /// # Errors
    /// [`Error::Busy`]: another process holds the node. [`Error::Operation`]: the program has closed the inherited
    /// descriptors. Other errors are those of [`NodeOptions::open`].
    pub fn open(&self, config: rnic::Config) -> Result<Adapter, Error> {
        let failed = |error| Error::io("table of connections", &error);
        // A separate descriptor: the lock belongs to the process, and ends when any descriptor of the file is closed.
        let path = format!("/proc/self/fd/{}", self.table_fd);
        // The program may have closed the descriptor and reused its number for another file.
        let is_table = fs::read_link(&path).is_ok_and(|it| it.as_os_str().as_bytes() == TABLE_LINK);
        if !is_table {
            return Err(failed(Errno::BADF.into()));
        }
        let file = File::options().read(true).write(true).open(path).map_err(failed)?;
        // Move before locking: the move closes the first descriptor, which would release the lock.
        let file = File::from(move_to_high_number(file.into()));
        if !lock(&file)? {
            let tap = &self.options.tap;
            return Err(Error::Busy(format!("TAP {tap}: in use by another process")));
        }
        let left = Table::read(&file).map_err(failed)?;
        let options = self.options.clone().completed()?;
        let own = options.mac().0;
        let mut table = Some(Table::new(file).map_err(failed)?);
        let bare = options.without_observers();
        let links = options.open_links_on(|mut link| {
            if !left.is_empty() {
                reset(&mut *link, own, &bare, &left)
                    .map_err(|error| Error::operation(format!("reset connections: {error}")))?;
            }
            let table = table
                .take()
                .ok_or_else(|| Error::operation("TAP: several queues, expected one"))?;
            Ok(Box::new(Tracker::new(link, table)) as Box<dyn Link>)
        })?;
        let mut opened = adapter::open_queues(
            links.links,
            options.node_config(),
            rnic::Config { seed: options.seed().into(), ..config },
        )
        .map_err(|error| Error::io("start the node", &error))?;
        start_traces(links.traces, opened.iter().map(|(node, _)| node))?;
        let (_, adapter) = opened.pop().ok_or_else(|| Error::operation("TAP: no queue"))?;
        Ok(adapter)
    }
}
