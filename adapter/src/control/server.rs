//! Server of a node's control socket: one thread, one request at a time.
//!
//! Clients that do not send or do not read delay no other client: sockets are non-blocking, and a client beyond
//! [`CLIENTS_MAX`] replaces the one that was idle for the longest time. Every wait has a limit, and no wait holds the
//! node's lock.

use std::{
    cell::{Cell, RefCell},
    collections::HashMap,
    fs::{self, File},
    io, iter,
    net::Shutdown,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::net::{UnixListener, UnixStream},
    },
    path::{Path, PathBuf},
    thread::JoinHandle,
    time::{Duration, Instant},
};

use host_stack::{
    node::{Node, WaitError},
    socket::{ConnectionRow, Request as HostRequest},
    stream::OffloadState,
};
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use offload_engine::{
    chimney::client::OffloadHandle,
    descriptor::{Guarded, are_lost, move_to_high_number},
    engine::{ConnectionSnapshot, NodeClient},
    link::{CaptureOutput, CaptureStatus},
    socket::TcpStatistics,
    thread,
};
use rdma_over_tcp::{
    adapter::{Adapter, Stack},
    rnic::ConnectionEntry,
};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::{Mode, fchmod},
    net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, socket_with},
    process::{Uid, geteuid},
};

use self::session::Session;
use super::{
    BACKLOG, CLIENTS_MAX, HOST_LIMIT, MOVE_LIMIT, REQUEST_BYTES_MAX, ROWS_MAX, SNAPSHOTS_MAX,
    VERSION,
    message::{
        Answer, CaptureReport, Destination, Move, NodeName, Operation, Page, Reply, Request,
    },
    record::{AdapterCounters, Record},
    socket_path::{self, ControlSocketPath, PATH_BYTES_MAX},
};
use crate::{error::Error, output::CaptureFile};

mod session;

/// Poll interval for the state of a connection that is being offloaded or uploaded.
const MOVE_INTERVAL: Duration = Duration::from_millis(5);
/// Minimum pause between two turns of the server.
const TURN_INTERVAL_MIN: Duration = Duration::from_millis(1);
/// Pause after a failed accept: without free descriptors it would fail again immediately.
const ACCEPT_RETRY_INTERVAL: Duration = Duration::from_millis(100);

/// Connections that a control socket serves.
pub trait Controlled: Send + 'static {
    /// Returns listeners and connections, ordered by handle.
    ///
    /// # Errors
    /// No reply within the limit.
    fn rows(&self, limit: Duration) -> Result<Vec<ConnectionRow>, WaitError>;

    /// Returns the listener or connection with this handle; `None`: not found.
    ///
    /// # Errors
    /// As [`Controlled::rows`].
    fn row(
        &self,
        handle: OffloadHandle,
        limit: Duration,
    ) -> Result<Option<ConnectionRow>, WaitError>;

    /// Returns snapshots of these connections from the target; `None`: not offloaded.
    fn snapshots(&self, handles: &[OffloadHandle]) -> Vec<Option<ConnectionSnapshot>>;

    /// Returns the kernel's statistics of these connections; `None`: not on a kernel socket.
    fn statistics(&self, handles: &[OffloadHandle]) -> Vec<Option<TcpStatistics>> {
        vec![None; handles.len()]
    }

    /// Returns the counters of the adapter; `None`: no adapter.
    fn counters(&self) -> Option<AdapterCounters> {
        None
    }

    /// Returns the connections of queue pairs.
    fn queue_pairs(&self) -> Vec<ConnectionEntry> {
        Vec::new()
    }

    /// Starts a capture with an interface of this name. `open` creates the file of a queue.
    ///
    /// # Errors
    /// Errors of `open`, of the file, or a capture runs. Then no capture was started.
    fn start_capture(&self, interface: &str, open: &mut OpenCapture<'_>) -> io::Result<()>;

    /// Stops the capture and returns its final state; `None`: none runs.
    fn stop_capture(&self) -> Option<CaptureStatus>;

    /// Returns the state of the capture; `None`: none runs.
    fn capture(&self) -> Option<CaptureStatus>;

    /// Requests the offload or upload of a connection from the host stack.
    ///
    /// # Errors
    /// Connections of this implementation cannot move.
    fn move_to(&self, handle: OffloadHandle, to: Destination) -> io::Result<()>;
}

/// Creates the capture file of a queue.
pub type OpenCapture<'a> = dyn FnMut(usize) -> io::Result<CaptureOutput> + 'a;

/// Returns the sum of the captures of several queues; `None`: none runs.
fn sum(captures: impl Iterator<Item = CaptureStatus>) -> Option<CaptureStatus> {
    captures.reduce(|sum, one| CaptureStatus {
        frames: sum.frames + one.frames,
        error: sum.error.or(one.error),
    })
}

fn host_error(error: WaitError) -> String {
    format!("host stack: {error} ({}s)", HOST_LIMIT.as_secs())
}

impl<C: NodeClient + 'static> Controlled for Node<C> {
    fn rows(&self, limit: Duration) -> Result<Vec<ConnectionRow>, WaitError> {
        self.list(limit)
    }

    fn row(
        &self,
        handle: OffloadHandle,
        limit: Duration,
    ) -> Result<Option<ConnectionRow>, WaitError> {
        self.find(handle, limit)
    }

    fn snapshots(&self, handles: &[OffloadHandle]) -> Vec<Option<ConnectionSnapshot>> {
        self.snapshots(handles)
    }

    fn start_capture(&self, interface: &str, open: &mut OpenCapture<'_>) -> io::Result<()> {
        let (mut started, mut queue) = (Ok(()), 0);
        self.with_engines(|engine, now| {
            if started.is_ok() {
                started = open(queue).and_then(|it| engine.start_capture(now, it, interface));
                queue += 1;
            }
        });
        started.inspect_err(|_| drop(Controlled::stop_capture(self)))
    }

    fn stop_capture(&self) -> Option<CaptureStatus> {
        let mut stopped = Vec::new();
        self.with_engines(|engine, _| stopped.extend(engine.stop_capture()));
        sum(stopped.into_iter())
    }

    fn capture(&self) -> Option<CaptureStatus> {
        let mut found = Vec::new();
        self.with_engines(|engine, _| found.extend(engine.capture()));
        sum(found.into_iter())
    }

    fn move_to(&self, handle: OffloadHandle, to: Destination) -> io::Result<()> {
        self.request(match to {
            Destination::Target => HostRequest::Offload { handle },
            Destination::Host => HostRequest::Upload { handle },
        });
        Ok(())
    }
}

/// Adapters of one device, at least one. They share the stacks; each has its own queue pairs.
impl Controlled for Vec<Adapter> {
    fn rows(&self, limit: Duration) -> Result<Vec<ConnectionRow>, WaitError> {
        self[0].list(limit)
    }

    fn row(
        &self,
        handle: OffloadHandle,
        limit: Duration,
    ) -> Result<Option<ConnectionRow>, WaitError> {
        self[0].find(handle, limit)
    }

    fn snapshots(&self, handles: &[OffloadHandle]) -> Vec<Option<ConnectionSnapshot>> {
        self[0].snapshots(handles)
    }

    fn statistics(&self, handles: &[OffloadHandle]) -> Vec<Option<TcpStatistics>> {
        self[0].statistics(handles)
    }

    fn counters(&self) -> Option<AdapterCounters> {
        let counters = self.iter().map(|it| it.with(|core, _| core.counters()));
        Some(counters.fold(AdapterCounters::default(), |sum, it| sum.plus(&it)))
    }

    fn queue_pairs(&self) -> Vec<ConnectionEntry> {
        self.iter().flat_map(Adapter::connections).collect()
    }

    fn start_capture(&self, interface: &str, open: &mut OpenCapture<'_>) -> io::Result<()> {
        for (queue, adapter) in self.iter().enumerate() {
            let started = open(queue).and_then(|output| adapter.start_capture(output, interface));
            if let Err(error) = started {
                self[..queue].iter().for_each(|it| drop(it.stop_capture()));
                return Err(error);
            }
        }
        Ok(())
    }

    fn stop_capture(&self) -> Option<CaptureStatus> {
        sum(self.iter().filter_map(|it| it.stop_capture()))
    }

    fn capture(&self) -> Option<CaptureStatus> {
        sum(self.iter().filter_map(|it| it.capture()))
    }

    fn move_to(&self, handle: OffloadHandle, to: Destination) -> io::Result<()> {
        self[0].migrate(
            handle,
            match to {
                Destination::Target => Stack::Target,
                Destination::Host => Stack::Host,
            },
        )
    }
}

/// File of a control socket, removed when it is dropped.
#[derive(Debug)]
struct SocketFile(PathBuf);

impl Drop for SocketFile {
    fn drop(&mut self) {
        // Another process may have removed it.
        let _ = fs::remove_file(&self.0);
    }
}

/// A control socket that accepts no client yet. Dropping it removes the socket.
#[derive(Debug)]
pub struct ControlListener {
    listener: Guarded<UnixListener>,
    file: SocketFile,
    name: NodeName,
}

/// A control socket with its server. Dropping it removes the socket.
#[derive(Debug)]
pub struct Control {
    /// `None`: removed.
    file: Option<SocketFile>,
    /// Stop signal: shutting it down ends the thread.
    stop: Option<Guarded<UnixStream>>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Control {
    fn drop(&mut self) {
        if let Some(stop) = self.stop.take()
            && stop.is_intact()
        {
            // Shutdown instead of close: a forked child may hold the descriptor, and close would have no effect.
            let _ = stop.shutdown(Shutdown::Both);
        }
        // Remove the socket before the thread ends: no client may connect to a socket that sends no reply.
        drop(self.file.take());
        // After the descriptors were lost, a sleeping thread cannot be woken.
        if let Some(thread) = self.thread.take()
            && !are_lost()
            && thread.join().is_err()
        {
            tracing::error!("control socket: thread panicked");
        }
    }
}

/// Serves a control socket at the location of `socket_path`, under the name of its node.
///
/// # Errors
/// As [`listen`] and [`ControlListener::serve`].
pub fn serve(
    node: impl Controlled,
    name: NodeName,
    socket_path: &ControlSocketPath,
) -> Result<Option<Control>, Error> {
    listen(name, socket_path)?.map(|listener| listener.serve(node)).transpose()
}

/// Creates a control socket at the location of `socket_path`, under the name of its node.
///
/// # Errors
/// The socket of `--control PATH` cannot be created. Without that option the node runs without a socket, and logs it.
pub fn listen(
    name: NodeName,
    socket_path: &ControlSocketPath,
) -> Result<Option<ControlListener>, Error> {
    let Some(path) = socket_path.socket(&name.tap, name.pid) else { return Ok(None) };
    let made = match socket_path {
        ControlSocketPath::Directory(directory) => {
            socket_path::make_directory(directory).map(|()| {
                socket_path::sweep(directory);
                // Left by an ended process with the same id.
                let _ = fs::remove_file(&path);
            })
        }
        ControlSocketPath::Path(_) => remove_stale(&path),
        ControlSocketPath::None => Ok(()),
    };
    match made.and_then(|()| ControlListener::bind(name, path)) {
        Ok(listener) => Ok(Some(listener)),
        Err(failure) if matches!(socket_path, ControlSocketPath::Path(_)) => Err(failure),
        Err(failure) => {
            tracing::warn!(%failure, "control socket: disabled");
            Ok(None)
        }
    }
}

/// Removes a socket without a listener at `path`. Any other file there is kept.
fn remove_stale(path: &Path) -> Result<(), Error> {
    match UnixStream::connect(path) {
        Ok(_) => Err(Error::operation(format!(
            "--control {}: another process listens on this socket",
            path.display()
        ))),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            use std::os::unix::fs::FileTypeExt;
            let is_socket =
                fs::symlink_metadata(path).is_ok_and(|metadata| metadata.file_type().is_socket());
            if is_socket {
                // If this fails, `bind` reports the error.
                let _ = fs::remove_file(path);
            }
            Ok(())
        }
        Err(_) => Ok(()),
    }
}

impl ControlListener {
    /// Creates a socket at `path`.
    ///
    /// # Errors
    /// The socket cannot be created.
    pub fn bind(name: NodeName, path: PathBuf) -> Result<Self, Error> {
        let failed = |error: io::Error| {
            let length = path.as_os_str().len();
            let why = if length > PATH_BYTES_MAX {
                format!("path of {length} bytes, expected at most {PATH_BYTES_MAX}")
            } else {
                error.to_string()
            };
            Error::operation(format!("control socket {}: {why}", path.display()))
        };
        let listener = bind_privately(&path).map_err(|error| failed(error.into()))?;
        let file = SocketFile(path.clone());
        rustix::net::listen(&listener, BACKLOG).map_err(|error| failed(error.into()))?;
        let listener = UnixListener::from(move_to_high_number(listener)).into();
        Ok(Self { listener, file, name })
    }

    /// Returns the path of the socket.
    pub fn path(&self) -> &Path {
        &self.file.0
    }

    /// Starts the server's thread.
    ///
    /// # Errors
    /// No descriptor or thread is available.
    pub fn serve(self, node: impl Controlled) -> Result<Control, Error> {
        let Self { listener, file, name } = self;
        let path = file.0.display().to_string();
        let failed = |error| Error::operation(format!("control socket {path}: {error}"));
        let (stop, stopped) = UnixStream::pair().map_err(failed)?;
        let [stop, stopped] = [stop, stopped]
            .map(|it| Guarded::from(UnixStream::from(move_to_high_number(it.into()))));
        let capture = RefCell::new(None);
        let server = Server { node, name, stopped, is_short: Cell::new(false), capture };
        let run = move || server.run(&listener);
        let thread = thread::start("flue-control", run).map_err(failed)?;
        Ok(Control { file: Some(file), stop: Some(stop), thread: Some(thread) })
    }
}

/// Creates a non-blocking socket at `path` that only this user can connect to.
fn bind_privately(path: &Path) -> rustix::io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    // The file inherits the mode of the socket. chmod(2) would follow a link that another user put at the path.
    fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    bind(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}

/// The control socket is being closed.
struct Stopped;

struct Server<N> {
    node: N,
    name: NodeName,
    stopped: Guarded<UnixStream>,
    /// True if the last accept failed.
    is_short: Cell<bool>,
    /// Capture that a client started, until it is stopped.
    capture: RefCell<Option<CaptureReport>>,
}

impl<N: Controlled> Server<N> {
    fn run(&self, listener: &UnixListener) {
        let mut sessions = Vec::with_capacity(CLIENTS_MAX);
        while self.turn(listener, &mut sessions).is_ok() {}
    }

    /// Waits for clients, accepts one, and replies to complete requests.
    fn turn(&self, listener: &UnixListener, sessions: &mut Vec<Session>) -> Result<(), Stopped> {
        let clients = sessions.iter().map(|it| (it.client().as_fd(), it.events()));
        let others: Vec<_> = clients.chain([(listener.as_fd(), PollFlags::IN)]).collect();
        self.wait(&others, sessions.iter().map(Session::deadline).min())?;
        let mut rest = TURN_INTERVAL_MIN;
        match accept(listener) {
            Ok(Some(session)) => {
                if sessions.len() == CLIENTS_MAX
                    && let Some((longest, _)) =
                        sessions.iter().enumerate().min_by_key(|(_, it)| it.active_at())
                {
                    tracing::debug!("control socket: client replaced");
                    sessions.swap_remove(longest);
                }
                sessions.push(session);
            }
            Ok(None) => self.is_short.set(false),
            Err(error) => {
                // Log once per shortage: accept fails repeatedly while clients are pending.
                if !self.is_short.replace(true) {
                    tracing::warn!(%error, "control socket: accept failed");
                }
                rest = ACCEPT_RETRY_INTERVAL;
            }
        }
        let mut busy = Duration::ZERO;
        sessions.retain_mut(|session| {
            let proceeded = session.proceed(|line, files| {
                let began = Instant::now();
                let answer = self.answer(line, files);
                busy += began.elapsed().min(HOST_LIMIT);
                let mut text = serde_json::to_vec(&Reply::new(answer)).map_err(io::Error::other)?;
                text.push(b'\n');
                Ok(text)
            });
            match proceeded {
                Ok(is_complete) => !is_complete,
                Err(error) => {
                    tracing::debug!(%error, "control socket: client failed");
                    false
                }
            }
        });
        // Continuous requests leave the node at least half of its time.
        self.rest(rest.max(busy))
    }

    /// Waits until one of `others` is ready or the deadline has passed.
    fn wait(
        &self,
        others: &[(BorrowedFd<'_>, PollFlags)],
        deadline: Option<Instant>,
    ) -> Result<(), Stopped> {
        loop {
            if are_lost() {
                return Err(Stopped);
            }
            let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                return Ok(());
            }
            let timeout = left.and_then(|left| Timespec::try_from(left).ok());
            let others = others.iter().map(|&(fd, events)| PollFd::from_borrowed_fd(fd, events));
            let stopped = PollFd::new(&self.stopped, PollFlags::IN);
            let mut waits: Vec<_> = iter::once(stopped).chain(others).collect();
            match poll(&mut waits, timeout.as_ref()) {
                Ok(_) if !waits[0].revents().is_empty() => return Err(Stopped),
                Ok(0) | Err(rustix::io::Errno::INTR) => {}
                Ok(_) => return Ok(()),
                Err(error) => {
                    tracing::warn!(%error, "control socket: poll failed");
                    return Ok(());
                }
            }
        }
    }

    /// Pauses for `time`, unless the server is stopped.
    fn rest(&self, time: Duration) -> Result<(), Stopped> {
        self.wait(&[], Some(Instant::now() + time))
    }

    fn answer(&self, line: &[u8], files: Vec<Guarded<File>>) -> Answer {
        let failed = |message: String| Answer::Failed { message };
        if line.len() == REQUEST_BYTES_MAX {
            return failed(format!(
                "control: request too long, expected at most {REQUEST_BYTES_MAX} bytes"
            ));
        }
        let request: Request = match serde_json::from_slice(line) {
            Ok(request) => request,
            Err(error) => return failed(format!("control: invalid request: {error}")),
        };
        let Request { flue_control, operation } = request;
        if flue_control != VERSION {
            return failed(format!("control: version {flue_control}, expected {VERSION}"));
        }
        let answered = match operation {
            Operation::List { after, state } => self.list(after, state),
            Operation::Move(wanted) => self.hand_over(wanted),
            Operation::StartCapture { path } => self.start_capture(path, files),
            Operation::StopCapture => self.stop_capture(),
        };
        answered.unwrap_or_else(failed)
    }

    fn list(&self, after: Option<u64>, state: bool) -> Result<Answer, String> {
        let mut rows = self.node.rows(HOST_LIMIT).map_err(host_error)?;
        rows.retain(|row| after.is_none_or(|after| row.handle.0 > after));
        let more = rows.len() > ROWS_MAX;
        rows.truncate(ROWS_MAX);
        let queue_pairs = self.node.queue_pairs().into_iter();
        let queue_pairs: HashMap<_, _> =
            queue_pairs.map(|it| ((it.local, Some(it.remote)), it)).collect();
        let mut connections = Vec::with_capacity(rows.len());
        for rows in rows.chunks(SNAPSHOTS_MAX) {
            let handles: Vec<_> = rows.iter().map(|row| row.handle).collect();
            let looks = self.node.snapshots(&handles);
            let statistics = self.node.statistics(&handles);
            connections.extend(rows.iter().zip(looks).zip(statistics).map(
                |((row, look), statistics)| {
                    let mut record = Record::new(row, look, state);
                    if let Some(statistics) = statistics {
                        record.set_statistics(&statistics);
                    }
                    if let Some(entry) = queue_pairs.get(&(row.local, row.remote)) {
                        record.set_queue_pair(entry);
                    }
                    record
                },
            ));
        }
        let (node, adapter) = (self.name.clone(), self.node.counters());
        let capture = self.refresh_capture();
        Ok(Answer::List(Box::new(Page { node, adapter, capture, connections, more })))
    }

    fn start_capture(&self, path: PathBuf, files: Vec<Guarded<File>>) -> Result<Answer, String> {
        let failed = |error: &dyn std::fmt::Display| format!("capture {}: {error}", path.display());
        if let Some(running) = self.refresh_capture().filter(|it| it.is_running) {
            return Err(failed(&format_args!("already running: {}", running.path.display())));
        }
        let mut files = files.into_iter();
        let mut open = |queue: usize| -> io::Result<CaptureOutput> {
            let missing = || io::Error::other(format!("no descriptor for queue {queue}"));
            let file = CaptureFile::new(files.next().ok_or_else(missing)?)?;
            Ok(Box::new(file) as CaptureOutput)
        };
        self.node.start_capture(&self.name.tap, &mut open).map_err(|error| failed(&error))?;
        let report = CaptureReport { path, is_running: true, frames: 0, error: None };
        *self.capture.borrow_mut() = Some(report.clone());
        Ok(Answer::Capture(report))
    }

    fn stop_capture(&self) -> Result<Answer, String> {
        let Some(mut report) = self.refresh_capture() else {
            return Err("capture: none is running".into());
        };
        if report.is_running
            && let Some(CaptureStatus { frames, error }) = self.node.stop_capture()
        {
            (report.frames, report.error) = (frames, error);
        }
        report.is_running = false;
        *self.capture.borrow_mut() = None;
        Ok(Answer::Capture(report))
    }

    /// Updates the state of the capture and returns it. A capture whose file cannot be written is stopped.
    fn refresh_capture(&self) -> Option<CaptureReport> {
        let mut capture = self.capture.borrow_mut();
        let report = capture.as_mut()?;
        if report.is_running
            && let Some(CaptureStatus { frames, error }) = self.node.capture()
        {
            (report.frames, report.is_running) = (frames, error.is_none());
            if error.is_some() {
                report.error = error;
                let _ = self.node.stop_capture();
            }
        }
        Some(report.clone())
    }

    fn hand_over(&self, wanted: Move) -> Result<Answer, String> {
        let Move { handle, to, begin, refusals } = wanted;
        let goal = match to {
            Destination::Target => OffloadState::Offloaded,
            Destination::Host => OffloadState::InHost,
        };
        if begin {
            self.node.move_to(OffloadHandle(handle), to).map_err(|error| error.to_string())?;
        }
        let deadline = Instant::now() + MOVE_LIMIT;
        loop {
            let row = self.node.row(OffloadHandle(handle), HOST_LIMIT).map_err(host_error)?;
            let record = row.map(|row| Box::new(Record::new(&row, None, false)));
            let settled = record
                .as_ref()
                .is_none_or(|record| record.offload_state == goal || record.refusals > refusals);
            if settled || Instant::now() >= deadline || self.rest(MOVE_INTERVAL).is_err() {
                return Ok(Answer::Moved { connection: record });
            }
        }
    }
}

/// Accepts a client of this user or of root; `None`: there is none.
fn accept(listener: &UnixListener) -> io::Result<Option<Session>> {
    match listener.accept() {
        Ok((client, _)) => {
            let user = Uid::from_raw(getsockopt(&client, PeerCredentials)?.uid());
            if !is_permitted(user) {
                tracing::debug!(%user, "control socket: client of another user refused");
                return Ok(None);
            }
            Session::new(move_to_high_number(client.into()).into()).map(Some)
        }
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
        Err(error) => Err(error),
    }
}

/// Returns true if a client of this user is served. The mode of the socket already excludes other users, except on file
/// systems without modes.
fn is_permitted(user: Uid) -> bool {
    user == geteuid() || user == Uid::ROOT
}

#[cfg(test)]
mod tests;
