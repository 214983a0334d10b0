//! Client of control sockets: lists the running nodes and sends a request to one of them.

use std::{
    fs::{self, File},
    io::{self, IoSlice, Read, Write},
    mem::MaybeUninit,
    os::{
        fd::AsFd as _,
        unix::{fs::FileTypeExt, net::UnixStream},
    },
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use rustix::{
    cmsg_space,
    net::{
        AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
        SocketFlags, SocketType, sendmsg,
        sockopt::{Timeout, set_socket_timeout},
    },
};

use super::{
    ANSWER_BYTES_MAX, ANSWER_LIMIT, FILES_MAX, VERSION,
    message::{Answer, CaptureReport, NodeName, Operation, Page, Reply, Request},
    record::Record,
    socket_path,
};
use crate::{
    error::Error,
    output::{create_capture, of_queue},
};

/// Time limit for a reply.
pub const LIMIT: Duration = Duration::from_secs(10);
/// Minimum time of one reply: a socket without a time limit would wait forever.
const LEFT_MIN: Duration = Duration::from_millis(1);
/// Maximum number of connections that are listed for one node.
pub const CONNECTIONS_MAX: usize = 1 << 20;

/// Selection of nodes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Nodes {
    /// All nodes of this user.
    All,
    /// The node with this socket.
    Path(PathBuf),
    /// The nodes on a TAP, or in a program, of this name.
    Name(String),
    /// The node in this process.
    Pid(u32),
}

impl Nodes {
    /// Parses the value of `--node`.
    pub fn parse(option: Option<&str>) -> Self {
        match option {
            None => Self::All,
            Some(text) if text.contains('/') => Self::Path(text.into()),
            Some(text) => match text.parse() {
                Ok(pid) => Self::Pid(pid),
                Err(_) => Self::Name(text.into()),
            },
        }
    }

    fn names(&self, path: &Path) -> bool {
        match (self, socket_path::parse(path)) {
            (Self::All, _) => true,
            (Self::Path(own), _) => own == path,
            (Self::Name(own), Some((tap, pid))) => {
                own == tap || program_name(pid).as_ref() == Some(own)
            }
            (Self::Pid(own), Some((_, pid))) => *own == pid,
            (Self::Name(_) | Self::Pid(_), None) => false,
        }
    }
}

/// Returns the name of the program of a process; `None`: not readable, as for a process of another user or in another
/// namespace.
pub fn program_name(pid: u32) -> Option<String> {
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
    Some(name.trim_end().to_owned())
}

/// Returns the control sockets of running nodes, and the directory or path that was searched.
///
/// # Errors
/// The selected node was not found, or the directory is not owned by the user alone.
pub fn find(nodes: &Nodes) -> Result<(Vec<PathBuf>, PathBuf), Error> {
    if let Nodes::Path(path) = nodes {
        return Ok((vec![path.clone()], path.clone()));
    }
    let directory = socket_path::directory();
    let shown = directory.display();
    let mut sockets = socket_path::sockets(&directory)
        .map_err(|error| Error::operation(format!("control sockets: {shown}: {error}")))?;
    sockets.retain(|path| nodes.names(path) && is_alive(path));
    if sockets.is_empty() && *nodes != Nodes::All {
        let wanted = match nodes {
            Nodes::Name(name) => format!("TAP or program {name}"),
            Nodes::Pid(pid) => format!("process {pid}"),
            Nodes::All | Nodes::Path(_) => String::new(),
        };
        return Err(Error::operation(format!("node of {wanted}: no control socket in {shown}")));
    }
    Ok((sockets, directory))
}

/// Returns true if a process listens on the socket. A killed process leaves a socket without a listener.
fn is_alive(path: &Path) -> bool {
    match connect(path, LEFT_MIN) {
        Ok(_) => true,
        Err(error) => {
            !matches!(error.kind(), io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound)
        }
    }
}

/// Time limit of the replies of one node.
#[derive(Clone, Copy, Debug)]
struct Deadline {
    at: Instant,
    limit: Duration,
}

impl Deadline {
    fn after(limit: Duration) -> Self {
        Self { at: Instant::now() + limit, limit }
    }

    /// Returns the time left, at least [`LEFT_MIN`].
    fn left(self) -> Duration {
        self.at.saturating_duration_since(Instant::now()).max(LEFT_MIN)
    }
}

/// Connects to the socket. Waits for a process that has not accepted its previous clients for at most `limit`, unlike
/// [`UnixStream::connect`].
///
/// # Errors
/// Errors of connect(2); `WouldBlock` if the process does not accept.
fn connect(path: &Path, limit: Duration) -> io::Result<UnixStream> {
    let flags = SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    set_socket_timeout(&socket, Timeout::Send, Some(limit))?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket.into())
}

/// Sends a request to the node at `path` and returns its answer.
///
/// # Errors
/// The node cannot be reached, does not reply within [`LIMIT`], or its reply is not valid.
pub fn request(path: &Path, operation: Operation) -> Result<Answer, Error> {
    request_within(path, operation, &[], Deadline::after(LIMIT))
}

/// As [`request`], with the descriptors of `files`, at most [`FILES_MAX`].
fn request_within(
    path: &Path,
    operation: Operation,
    files: &[File],
    deadline: Deadline,
) -> Result<Answer, Error> {
    let failed = |what: &str, error: io::Error| {
        Error::operation(format!("control socket {}: {what}: {error}", path.display()))
    };
    let mut stream =
        connect(path, deadline.left()).map_err(|error| match unreachable(path, &error) {
            Some(problem) => {
                Error::Unreachable(format!("control socket {}: {problem}", path.display()))
            }
            None if error.kind() == io::ErrorKind::WouldBlock => {
                failed("connect", io::Error::other("the process does not accept clients"))
            }
            None => failed("connect", error),
        })?;
    let mut line = serde_json::to_vec(&Request::new(operation))
        .map_err(|error| failed("request", io::Error::other(error)))?;
    line.push(b'\n');
    let write_limit = ANSWER_LIMIT.min(deadline.left());
    stream.set_write_timeout(Some(write_limit)).map_err(|error| failed("time limit", error))?;
    send(&mut stream, &line, files).map_err(|error| failed("request", error))?;
    let answer = read_line(&mut stream, deadline).map_err(|error| failed("answer", error))?;
    let reply: Reply = serde_json::from_slice(&answer)
        .map_err(|error| failed("answer", io::Error::new(io::ErrorKind::InvalidData, error)))?;
    if reply.flue_control != VERSION {
        let why = format!("version {}, expected {VERSION}", reply.flue_control);
        return Err(failed("answer", io::Error::other(why)));
    }
    match reply.answer {
        Answer::Failed { message } => Err(Error::operation(message)),
        answer => Ok(answer),
    }
}

/// Sends a request, with the descriptors of `files` at its first octets.
pub(super) fn send(stream: &mut UnixStream, line: &[u8], files: &[File]) -> io::Result<()> {
    let descriptors: Vec<_> = files.iter().map(File::as_fd).collect();
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(FILES_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(&descriptors)) {
        return Err(io::Error::other(format!("more than {FILES_MAX} files")));
    }
    let sent = sendmsg(&*stream, &[IoSlice::new(line)], &mut control, SendFlags::NOSIGNAL)?;
    stream.write_all(&line[sent..])
}

/// Problem of a control socket that does not accept connections; `None` if `error` describes it.
fn unreachable(path: &Path, error: &io::Error) -> Option<&'static str> {
    if !matches!(error.kind(), io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound) {
        return None;
    }
    let Ok(metadata) = path.metadata() else { return Some("not found") };
    let file_type = metadata.file_type();
    Some(if file_type.is_dir() {
        "a directory, expected a socket"
    } else if !file_type.is_socket() {
        "not a socket"
    } else {
        "no listener: the process of the node has exited"
    })
}

fn read_line(stream: &mut UnixStream, deadline: Deadline) -> io::Result<Vec<u8>> {
    let Deadline { at, limit } = deadline;
    let mut answer = Vec::new();
    let mut piece = vec![0; 64 * 1024];
    loop {
        let left = at.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::Error::new(
                io::ErrorKind::TimedOut,
                format!("no answer within {limit:?}"),
            ));
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut piece) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => answer.extend_from_slice(&piece[..count]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
            Err(error) => return Err(error),
        }
        if answer.last() == Some(&b'\n') {
            return Ok(answer);
        }
        if answer.len() > ANSWER_BYTES_MAX {
            let why = format!("expected at most {ANSWER_BYTES_MAX} bytes");
            return Err(io::Error::new(io::ErrorKind::InvalidData, why));
        }
    }
}

/// Starts a capture of the node at `path` to a file that does not exist, an absolute path; `None`: stops it. Returns
/// its state. This process creates the file; with several queues, each has one: `name.1.pcapng`.
///
/// # Errors
/// As [`request`]; or a file cannot be created, or no capture is running.
pub fn capture(path: &Path, file: Option<PathBuf>) -> Result<CaptureReport, Error> {
    let deadline = Deadline::after(LIMIT);
    let Some(file) = file else {
        return captured(path, request_within(path, Operation::StopCapture, &[], deadline)?);
    };
    let failed = |error: &dyn std::fmt::Display| {
        Error::operation(format!("capture {}: {error}", file.display()))
    };
    if !file.is_absolute() {
        return Err(failed(&"expected an absolute path"));
    }
    // No connection follows the largest handle.
    let identity = Operation::List { after: Some(u64::MAX), state: false };
    let Answer::List(page) = request_within(path, identity, &[], deadline)? else {
        return Err(unexpected(path, "the identity of the node"));
    };
    let mut created = Vec::new();
    let files = (0..page.node.queues.into()).map(|queue| {
        let path = of_queue(&file, queue);
        let made = create_capture(&path).map_err(|error| failed(&error))?;
        created.push(path);
        Ok(made)
    });
    let files: Result<Vec<File>, Error> = files.collect();
    let started = files.and_then(|files| {
        let operation = Operation::StartCapture { path: file.clone() };
        captured(path, request_within(path, operation, &files, deadline)?)
    });
    started.inspect_err(|_| {
        for path in created {
            // Empty, or with a header only.
            let _ = fs::remove_file(path);
        }
    })
}

/// Returns the state of a capture in an answer.
fn captured(path: &Path, answer: Answer) -> Result<CaptureReport, Error> {
    match answer {
        Answer::Capture(report) => Ok(report),
        _ => Err(unexpected(path, "the state of a capture")),
    }
}

fn unexpected(path: &Path, expected: &str) -> Error {
    Error::operation(format!(
        "control socket {}: unexpected answer, expected {expected}",
        path.display()
    ))
}

/// Returns all listeners and connections of the node at `path`.
///
/// # Errors
/// As [`page`].
pub fn list(path: &Path, state: bool) -> Result<(NodeName, Vec<Record>), Error> {
    page(path, state, LIMIT).map(|Page { node, connections, .. }| (node, connections))
}

/// Returns all listeners and connections of the node at `path` as one page, with the counters of its adapter. `limit`:
/// time for all replies of the node.
///
/// # Errors
/// As [`request`]; or there are more than [`CONNECTIONS_MAX`].
pub fn page(path: &Path, state: bool, limit: Duration) -> Result<Page, Error> {
    let deadline = Deadline::after(limit);
    let mut connections: Vec<Record> = Vec::new();
    loop {
        let after = connections.last().map(|record| record.handle);
        let Answer::List(mut page) =
            request_within(path, Operation::List { after, state }, &[], deadline)?
        else {
            return Err(unexpected(path, "a list of connections"));
        };
        let more = page.more && !page.connections.is_empty();
        connections.append(&mut page.connections);
        if !more {
            return Ok(Page { connections, more: false, ..*page });
        }
        if connections.len() >= CONNECTIONS_MAX {
            return Err(Error::operation(format!(
                "control socket {}: expected at most {CONNECTIONS_MAX} connections",
                path.display()
            )));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{env, fs, os::unix::net::UnixListener};

    use super::*;

    #[test]
    fn node_is_selected_by_its_tap_or_its_program() {
        let pid = std::process::id();
        let path = PathBuf::from(format!("/run/flue/flue0-{pid}.sock"));
        let program = program_name(pid).unwrap();
        for (name, is_selected) in [("flue0", true), (&*program, true), ("flue1", false)] {
            assert_eq!(Nodes::Name(name.into()).names(&path), is_selected, "{name}");
        }
    }

    #[test]
    fn path_without_node_is_reported() {
        let directory = env::temp_dir().join(format!("flue-client-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let (file, socket) = (directory.join("file"), directory.join("socket"));
        fs::write(&file, "").unwrap();
        drop(UnixListener::bind(&socket).unwrap());
        let absent = directory.join("absent");
        for (path, problem) in [
            (&directory, "a directory, expected a socket"),
            (&file, "not a socket"),
            (&absent, "not found"),
            (&socket, "no listener: the process of the node has exited"),
        ] {
            let failure = list(path, false).unwrap_err();
            assert_eq!(failure.message(), format!("control socket {}: {problem}", path.display()));
            assert_eq!(failure.hint(), Some("\"flue ss\" lists running nodes"));
        }
        fs::remove_dir_all(directory).unwrap();
    }

    // A stopped process: its listener takes clients until the backlog is full, and sends no reply.
    #[test]
    fn process_that_does_not_accept_is_reported_within_limit() {
        let path = env::temp_dir().join(format!("flue-stopped-{}", std::process::id()));
        let listener = UnixListener::bind(&path).unwrap();
        rustix::net::listen(&listener, 1).unwrap();
        let limit = Duration::from_millis(20);
        let problems: Vec<_> =
            (0..3).map(|_| page(&path, false, limit).unwrap_err().message().to_owned()).collect();
        fs::remove_file(&path).unwrap();
        assert!(problems[0].ends_with("answer: no answer within 20ms"), "{problems:?}");
        assert!(
            problems[2].ends_with("connect: the process does not accept clients"),
            "{problems:?}"
        );
    }

    #[test]
    fn nodes_are_selected_by_path_process_or_tap() {
        assert_eq!(Nodes::parse(None), Nodes::All);
        assert_eq!(Nodes::parse(Some("./a.sock")), Nodes::Path("./a.sock".into()));
        assert_eq!(Nodes::parse(Some("71")), Nodes::Pid(71));
        assert_eq!(Nodes::parse(Some("flue0")), Nodes::Name("flue0".into()));
        let path = Path::new("/run/flue/flue0-71.sock");
        for text in ["/run/flue/flue0-71.sock", "71", "flue0"] {
            assert!(Nodes::parse(Some(text)).names(path), "{text}");
        }
        for text in ["/run/flue/flue1-71.sock", "7", "flue"] {
            assert!(!Nodes::parse(Some(text)).names(path), "{text}");
        }
    }
}
