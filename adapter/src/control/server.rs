//! The node's side of its control socket: one thread, one request at a time.
//!
//! Clients that do not send, or do not read, delay no other client: sockets are non-blocking, and a client beyond
//! [`CLIENTS_MAX`] replaces the one that was idle for the longest time. No wait is unlimited, and none holds the node.

use std::{
    cell::Cell,
    collections::HashMap,
    fs, io, iter,
    net::Shutdown,
    os::{
        fd::{AsFd, BorrowedFd},
        unix::{
            fs::PermissionsExt,
            net::{UnixListener, UnixStream},
        },
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
use offload_engine::{
    chimney::client::OffloadHandle,
    descriptor::{Guarded, are_lost, moved_up},
    engine::{ConnectionSnapshot, NodeClient},
    thread,
};
use rdma_over_tcp::{
    adapter::{Adapter, Stack},
    rnic::ConnectionEntry,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use self::session::Session;
use super::{
    BACKLOG, CLIENTS_MAX, HOST_LIMIT, LOOK_MAX, MOVE_LIMIT, REQUEST_BYTES_MAX, ROWS_MAX, VERSION,
    message::{Answer, Ask, Destination, Move, NodeName, Page, Reply, Request},
    place::{self as places, ControlPlace, PATH_BYTES_MAX},
    record::Record,
};
use crate::error::Error;

mod session;

/// How often a connection that is to move is looked at.
const MOVE_INTERVAL: Duration = Duration::from_millis(5);
/// Shortest rest between two turns of the server.
const REST_MIN: Duration = Duration::from_millis(1);
/// Rest after an accept that failed: without descriptors it would fail again at once.
const ACCEPT_REST: Duration = Duration::from_millis(100);

/// The connections that a control socket serves.
pub trait Controlled: Send + 'static {
    /// Listeners and connections, by handle.
    ///
    /// # Errors
    /// No answer within the limit.
    fn rows(&self, limit: Duration) -> Result<Vec<ConnectionRow>, WaitError>;

    /// The one with this handle; `None`: not found.
    ///
    /// # Errors
    /// As [`Controlled::rows`].
    fn row(
        &self,
        handle: OffloadHandle,
        limit: Duration,
    ) -> Result<Option<ConnectionRow>, WaitError>;

    /// State of these connections in the target; `None`: not offloaded.
    fn look(&self, handles: &[OffloadHandle]) -> Vec<Option<ConnectionSnapshot>>;

    /// The connections that are those of queue pairs.
    fn queue_pairs(&self) -> Vec<ConnectionEntry> {
        Vec::new()
    }

    /// Has the host stack hand a connection over.
    ///
    /// # Errors
    /// Its connections stay where they are.
    fn move_to(&self, handle: OffloadHandle, to: Destination) -> io::Result<()>;
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

    fn look(&self, handles: &[OffloadHandle]) -> Vec<Option<ConnectionSnapshot>> {
        self.look(handles)
    }

    fn move_to(&self, handle: OffloadHandle, to: Destination) -> io::Result<()> {
        self.request(match to {
            Destination::Target => HostRequest::Offload { handle },
            Destination::Host => HostRequest::Upload { handle },
        });
        Ok(())
    }
}

/// The adapters of one device, at least one: they share its stacks, and each has queue pairs of its own.
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

    fn look(&self, handles: &[OffloadHandle]) -> Vec<Option<ConnectionSnapshot>> {
        self[0].look(handles)
    }

    fn queue_pairs(&self) -> Vec<ConnectionEntry> {
        self.iter().flat_map(Adapter::connections).collect()
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

/// A control socket that is served; it goes away with this value.
#[derive(Debug)]
pub struct Control {
    path: PathBuf,
    /// Shutting it down ends the thread.
    stop: Option<Guarded<UnixStream>>,
    thread: Option<JoinHandle<()>>,
}

impl Control {
    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        if let Some(stop) = self.stop.take()
            && stop.is_intact()
        {
            // A child of a fork may have it open, too: closing would not be seen.
            let _ = stop.shutdown(Shutdown::Both);
        }
        // Before the thread's end: nobody is to wait for one that will not answer.
        let _ = fs::remove_file(&self.path);
        // One that sleeps on lost descriptors cannot be woken.
        if let Some(thread) = self.thread.take()
            && !are_lost()
            && thread.join().is_err()
        {
            tracing::error!("the thread of the control socket has panicked");
        }
    }
}

/// Serves a control socket where `place` says, under the name of its node.
///
/// # Errors
/// `--control PATH` cannot be had. A node whose socket was not requested runs without, and logs that.
pub fn serve(
    node: impl Controlled,
    name: NodeName,
    place: &ControlPlace,
) -> Result<Option<Control>, Error> {
    let Some(path) = place.socket(&name.tap, name.pid) else { return Ok(None) };
    let made = match place {
        ControlPlace::Directory(directory) => places::make_directory(directory).map(|()| {
            places::sweep(directory);
            // Of a process that had this id before.
            let _ = fs::remove_file(&path);
        }),
        ControlPlace::Path(_) => remove_stale(&path),
        ControlPlace::None => Ok(()),
    };
    match made.and_then(|()| start(node, name, path)) {
        Ok(control) => Ok(Some(control)),
        Err(failure) if matches!(place, ControlPlace::Path(_)) => Err(failure),
        Err(failure) => {
            tracing::warn!(%failure, "no control socket");
            Ok(None)
        }
    }
}

/// Makes room for a socket where one is that nobody listens on; anything else there stays.
fn remove_stale(path: &Path) -> Result<(), Error> {
    match UnixStream::connect(path) {
        Ok(_) => Err(Error::operation(format!(
            "--control {}: another process listens there",
            path.display()
        ))),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            use std::os::unix::fs::FileTypeExt;
            let is_socket =
                fs::symlink_metadata(path).is_ok_and(|metadata| metadata.file_type().is_socket());
            if is_socket {
                // What is wrong if it fails, `bind` will say.
                let _ = fs::remove_file(path);
            }
            Ok(())
        }
        Err(_) => Ok(()),
    }
}

/// Listens on `path` and serves what comes.
///
/// # Errors
/// The socket or the thread cannot be had.
pub fn start(node: impl Controlled, name: NodeName, path: PathBuf) -> Result<Control, Error> {
    let failed = |error: io::Error| {
        let length = path.as_os_str().len();
        let why = if length > PATH_BYTES_MAX {
            format!("{length} bytes, a Unix socket's path has at most {PATH_BYTES_MAX}")
        } else {
            error.to_string()
        };
        Error::operation(format!("control socket {}: {why}", path.display()))
    };
    let listener = moved_up(UnixListener::bind(&path).map_err(failed)?.into());
    let listener = Guarded::from(UnixListener::from(listener));
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).map_err(failed)?;
    rustix::net::listen(&listener, BACKLOG).map_err(|error| failed(error.into()))?;
    listener.set_nonblocking(true).map_err(failed)?;
    let (stop, stopped) = UnixStream::pair().map_err(failed)?;
    let [stop, stopped] =
        [stop, stopped].map(|it| Guarded::from(UnixStream::from(moved_up(it.into()))));
    let server = Server { node, name, stopped, is_short: Cell::new(false) };
    let run = move || server.run(&listener);
    let thread = thread::start("flue-control", run).map_err(failed)?;
    Ok(Control { path, stop: Some(stop), thread: Some(thread) })
}

/// The node ends.
struct Stopped;

struct Server<N> {
    node: N,
    name: NodeName,
    stopped: Guarded<UnixStream>,
    /// The last accept has failed.
    is_short: Cell<bool>,
}

impl<N: Controlled> Server<N> {
    fn run(&self, listener: &UnixListener) {
        let mut sessions = Vec::with_capacity(CLIENTS_MAX);
        while self.turn(listener, &mut sessions).is_ok() {}
    }

    /// Waits for clients, accepts one, and answers the requests that are complete.
    fn turn(&self, listener: &UnixListener, sessions: &mut Vec<Session>) -> Result<(), Stopped> {
        let clients = sessions.iter().map(|it| (it.client().as_fd(), it.events()));
        let others: Vec<_> = clients.chain([(listener.as_fd(), PollFlags::IN)]).collect();
        self.wait(&others, sessions.iter().map(Session::deadline).min())?;
        let mut rest = REST_MIN;
        match accept(listener) {
            Ok(Some(session)) => {
                if sessions.len() == CLIENTS_MAX
                    && let Some((longest, _)) =
                        sessions.iter().enumerate().min_by_key(|(_, it)| it.active_at())
                {
                    tracing::debug!("client of the control socket: replaced by another one");
                    sessions.swap_remove(longest);
                }
                sessions.push(session);
            }
            Ok(None) => self.is_short.set(false),
            Err(error) => {
                // Once for clients that wait.
                if !self.is_short.replace(true) {
                    tracing::warn!(%error, "accept on the control socket");
                }
                rest = ACCEPT_REST;
            }
        }
        let mut busy = Duration::ZERO;
        sessions.retain_mut(|session| {
            let proceeded = session.proceed(|line| {
                let began = Instant::now();
                let answer = self.answer(line);
                busy += began.elapsed().min(HOST_LIMIT);
                let mut text = serde_json::to_vec(&Reply::new(answer)).map_err(io::Error::other)?;
                text.push(b'\n');
                Ok(text)
            });
            match proceeded {
                Ok(is_complete) => !is_complete,
                Err(error) => {
                    tracing::debug!(%error, "client of the control socket");
                    false
                }
            }
        });
        // Requests without pause leave the node at least half of its time.
        self.rest(rest.max(busy))
    }

    /// Waits until one of `others` is ready or the time is over.
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
                    tracing::warn!(%error, "poll of the control socket");
                    return Ok(());
                }
            }
        }
    }

    /// Rests for that long, unless the node ends.
    fn rest(&self, time: Duration) -> Result<(), Stopped> {
        self.wait(&[], Some(Instant::now() + time))
    }

    fn answer(&self, line: &[u8]) -> Answer {
        let failed = |message: String| Answer::Failed { message };
        if line.len() == REQUEST_BYTES_MAX {
            return failed(format!("control: a request has at most {REQUEST_BYTES_MAX} bytes"));
        }
        let request: Request = match serde_json::from_slice(line) {
            Ok(request) => request,
            Err(error) => return failed(format!("control: not a request: {error}")),
        };
        let Request { flue_control, ask } = request;
        if flue_control != VERSION {
            return failed(format!("control: version {flue_control}; this node speaks {VERSION}"));
        }
        let answered = match ask {
            Ask::List { after, state } => self.list(after, state),
            Ask::Move(wanted) => self.hand_over(wanted),
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
            queue_pairs.map(|it| ((it.local, Some(it.remote)), it.qp)).collect();
        let mut connections = Vec::with_capacity(rows.len());
        for rows in rows.chunks(LOOK_MAX) {
            let handles: Vec<_> = rows.iter().map(|row| row.handle).collect();
            let looks = self.node.look(&handles);
            connections.extend(rows.iter().zip(looks).map(|(row, look)| {
                let qp = queue_pairs.get(&(row.local, row.remote)).copied();
                Record { qp, ..Record::new(row, look, state) }
            }));
        }
        Ok(Answer::List(Box::new(Page { node: self.name.clone(), connections, more })))
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

/// Accepts a client, if there is one.
fn accept(listener: &UnixListener) -> io::Result<Option<Session>> {
    match listener.accept() {
        Ok((client, _)) => Session::new(moved_up(client.into()).into()).map(Some),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests;
