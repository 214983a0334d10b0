//! Sockets as seen by packetdrill, on streams of the node under test.
//!
//! Nothing here blocks. A call that would block returns [`Progress::Later`]; the caller advances the time and
//! repeats it ([`crate::instance`]).
//!
//! Descriptors are real ones, of `/dev/null`: packetdrill closes the descriptors that a script has left open by
//! close(2).

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::{
    collections::HashMap,
    fs::File,
    os::fd::{AsRawFd, IntoRawFd, OwnedFd, RawFd},
};

use bytes::{Buf, Bytes};
use host_stack::{
    socket::{HostError, ListenerId},
    stream::{OffloadState, StreamStatus},
};
use offload_engine::{chimney::client::OffloadHandle, state::TcpCached, time::Duration};
use rustix::{event::PollFlags, io::Errno};

use crate::{client::Client, machine::Machine, settings::Settings};

/// Time limit of a handshake: Linux' six SYNs and the wait after the last (tcp_syn_retries).
const CONNECT_TIMEOUT: Duration = Duration::from_secs(127);

/// Result of a call so far.
pub(crate) enum Progress<T> {
    Done(Result<T, Errno>),
    /// Would block.
    Later,
}

/// Kind of a socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Fresh,
    Listening(ListenerId),
    Stream(OffloadHandle),
}

/// Socket of a descriptor.
#[derive(Debug)]
pub(crate) struct Socket {
    file: OwnedFd,
    pub(crate) kind: Kind,
    v6: bool,
    pub(crate) nonblocking: bool,
    pub(crate) bound: Option<SocketAddr>,
    pub(crate) tcp: TcpCached,
    pub(crate) send_buffer: usize,
    /// SO_LINGER, seconds.
    pub(crate) linger: Option<u32>,
    read_shut: bool,
    write_shut: bool,
    /// True if the connection's error was reported.
    is_error_reported: bool,
    /// Data received, but not requested yet.
    leftover: Bytes,
}

/// Sockets of a process, and their node.
pub(crate) struct Sockets {
    pub(crate) machine: Machine,
    table: HashMap<RawFd, Socket>,
}

impl Socket {
    fn new(v6: bool, settings: &Settings) -> Result<Self, Errno> {
        let file = File::options().read(true).write(true).open("/dev/null");
        let initial_rcv_wnd = u32::try_from(settings.receive_buffer).unwrap_or(u32::MAX);
        Ok(Self {
            file: file.map_err(|_| Errno::MFILE)?.into(),
            kind: Kind::Fresh,
            v6,
            nonblocking: false,
            bound: None,
            // Linux' defaults: Nagle, 9 probes after 2 hours, every 75 s.
            tcp: TcpCached {
                nagling_enabled: true,
                initial_rcv_wnd,
                ka_probe_count: 9,
                ka_timeout: 7_200_000,
                ka_interval: 75_000,
                ..TcpCached::default()
            },
            send_buffer: settings.send_buffer,
            linger: None,
            read_shut: false,
            write_shut: false,
            is_error_reported: false,
            leftover: Bytes::new(),
        })
    }

    /// Address in the socket's family: IPv4 on an IPv6 socket is mapped (RFC 4291 §2.5.5.2).
    fn shown(&self, address: SocketAddr) -> SocketAddr {
        match address.ip() {
            IpAddr::V4(v4) if self.v6 => (v4.to_ipv6_mapped(), address.port()).into(),
            _ => address,
        }
    }
}

fn unmapped(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

fn unspecified(v6: bool) -> IpAddr {
    if v6 { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() }
}

fn errno(error: HostError) -> Errno {
    match error {
        HostError::Refused => Errno::CONNREFUSED,
        HostError::TimedOut | HostError::RetransmissionLimit => Errno::TIMEDOUT,
        HostError::HostUnreachable => Errno::HOSTUNREACH,
        HostError::NetworkUnreachable => Errno::NETUNREACH,
        HostError::AddressNotAvailable | HostError::NoPorts => Errno::ADDRNOTAVAIL,
        HostError::AddressInUse => Errno::ADDRINUSE,
        HostError::Reset => Errno::CONNRESET,
        _ => Errno::CONNABORTED,
    }
}

impl Sockets {
    pub(crate) fn new(settings: Settings) -> Self {
        Self { machine: Machine::new(settings), table: HashMap::new() }
    }

    pub(crate) fn get(&self, fd: RawFd) -> Result<&Socket, Errno> {
        self.table.get(&fd).ok_or(Errno::BADF)
    }

    pub(crate) fn get_mut(&mut self, fd: RawFd) -> Result<&mut Socket, Errno> {
        self.table.get_mut(&fd).ok_or(Errno::BADF)
    }

    fn add(&mut self, socket: Socket) -> RawFd {
        let fd = socket.file.as_raw_fd();
        self.table.insert(fd, socket);
        fd
    }

    /// socket(2).
    pub(crate) fn socket(&mut self, domain: i32, kind: i32, protocol: i32) -> Result<RawFd, Errno> {
        let v6 = match domain {
            libc::AF_INET => false,
            libc::AF_INET6 => true,
            _ => return Err(Errno::AFNOSUPPORT),
        };
        let flags = libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        if kind & !flags != libc::SOCK_STREAM || !matches!(protocol, 0 | libc::IPPROTO_TCP) {
            return Err(Errno::PROTONOSUPPORT);
        }
        let mut socket = Socket::new(v6, &self.machine.settings)?;
        socket.nonblocking = kind & libc::SOCK_NONBLOCK != 0;
        Ok(self.add(socket))
    }

    /// bind(2).
    pub(crate) fn bind(&mut self, fd: RawFd, address: SocketAddr) -> Result<(), Errno> {
        let socket = self.get_mut(fd)?;
        if socket.bound.is_some() || socket.kind != Kind::Fresh {
            return Err(Errno::INVAL);
        }
        socket.bound = Some(unmapped(address));
        Ok(())
    }

    /// listen(2).
    pub(crate) fn listen(&mut self, fd: RawFd, backlog: i32) -> Result<(), Errno> {
        let socket = self.get(fd)?;
        let bound = socket.bound.unwrap_or_else(|| (unspecified(socket.v6), 0).into());
        if socket.kind != Kind::Fresh {
            return Err(Errno::INVAL);
        }
        self.start(fd, bound.ip())?;
        let now = self.machine.now();
        let core = self.machine.core.as_mut().ok_or(Errno::NOTCONN)?;
        let listener = core
            .clients
            .first_mut::<Client>()
            .streams
            .listen(bound, usize::try_from(backlog).unwrap_or(0));
        self.machine.settle();
        debug_assert_eq!(now, self.machine.now(), "settling takes no time");
        let core = self.machine.core.as_ref().ok_or(Errno::NOTCONN)?;
        match core.clients.first::<Client>().streams.listening(listener) {
            Some(Ok(local)) => {
                let socket = self.get_mut(fd)?;
                socket.kind = Kind::Listening(listener);
                socket.bound = Some(local);
                Ok(())
            }
            Some(Err(error)) => Err(errno(error)),
            None => Err(Errno::ADDRINUSE),
        }
    }

    /// Creates the node with the options of this socket.
    fn start(&mut self, fd: RawFd, address: IpAddr) -> Result<(), Errno> {
        let tcp = self.get(fd)?.tcp;
        let address = address.to_canonical();
        let local =
            if address.is_unspecified() { self.machine.settings.local(address) } else { address };
        self.machine.start(local, tcp);
        Ok(())
    }

    /// accept(2): the new descriptor, and the peer's address.
    pub(crate) fn accept(&mut self, fd: RawFd) -> Progress<(RawFd, SocketAddr)> {
        match self.try_accept(fd) {
            Ok(Some(accepted)) => Progress::Done(Ok(accepted)),
            Ok(None) => self.later(fd),
            Err(error) => Progress::Done(Err(error)),
        }
    }

    fn try_accept(&mut self, fd: RawFd) -> Result<Option<(RawFd, SocketAddr)>, Errno> {
        let Kind::Listening(listener) = self.get(fd)?.kind else { return Err(Errno::INVAL) };
        let core = self.machine.core.as_mut().ok_or(Errno::INVAL)?;
        let Some(handle) = core.clients.first_mut::<Client>().streams.accept(listener) else {
            return Ok(None);
        };
        let remote = core
            .clients
            .first_mut::<Client>()
            .streams
            .status(handle)
            .and_then(|status| status.remote);
        let settings = &self.machine.settings;
        let parent = self.table.get(&fd).ok_or(Errno::BADF)?;
        let socket = Socket {
            kind: Kind::Stream(handle),
            bound: parent.bound,
            tcp: parent.tcp,
            send_buffer: parent.send_buffer,
            linger: parent.linger,
            ..Socket::new(parent.v6, settings)?
        };
        let remote = parent.shown(remote.ok_or(Errno::CONNABORTED)?);
        Ok(Some((self.add(socket), remote)))
    }

    /// connect(2).
    pub(crate) fn connect(&mut self, fd: RawFd, remote: SocketAddr) -> Result<(), Errno> {
        let socket = self.get(fd)?;
        let bound = socket.bound;
        match socket.kind {
            Kind::Listening(_) => return Err(Errno::ISCONN),
            Kind::Stream(_) if self.status(fd)?.connected => return Err(Errno::ISCONN),
            Kind::Stream(_) => return Err(Errno::ALREADY),
            Kind::Fresh => {}
        }
        let remote = unmapped(remote);
        let local = bound.unwrap_or_else(|| (unspecified(remote.is_ipv6()), 0).into());
        self.start(fd, local.ip())?;
        let core = self.machine.core.as_mut().ok_or(Errno::NOTCONN)?;
        let bound = bound.filter(|bound| !bound.ip().is_unspecified());
        let handle =
            core.clients.first_mut::<Client>().streams.connect(bound, remote, CONNECT_TIMEOUT);
        self.get_mut(fd)?.kind = Kind::Stream(handle);
        self.machine.settle();
        Ok(())
    }

    /// Progress of a pending connect.
    pub(crate) fn connected(&mut self, fd: RawFd) -> Progress<()> {
        let status = match self.status(fd) {
            Ok(status) => status,
            Err(error) => return Progress::Done(Err(error)),
        };
        match self.take_error(fd, status) {
            Some(error) => Progress::Done(Err(error)),
            None if status.connected => Progress::Done(Ok(())),
            None if self.get(fd).is_ok_and(|socket| socket.nonblocking) => {
                Progress::Done(Err(Errno::INPROGRESS))
            }
            None => Progress::Later,
        }
    }

    /// Error of the connection, returned once.
    pub(crate) fn take_error(&mut self, fd: RawFd, status: StreamStatus) -> Option<Errno> {
        let socket = self.table.get_mut(&fd)?;
        let error = status.error.filter(|_| !socket.is_error_reported)?;
        socket.is_error_reported = true;
        Some(errno(error))
    }

    /// Stream of a descriptor.
    pub(crate) fn handle(&self, fd: RawFd) -> Result<OffloadHandle, Errno> {
        match self.get(fd)?.kind {
            Kind::Stream(handle) => Ok(handle),
            Kind::Fresh | Kind::Listening(_) => Err(Errno::NOTCONN),
        }
    }

    pub(crate) fn status(&self, fd: RawFd) -> Result<StreamStatus, Errno> {
        let handle = self.handle(fd)?;
        let core = self.machine.core.as_ref().ok_or(Errno::NOTCONN)?;
        core.clients.first::<Client>().streams.status(handle).ok_or(Errno::NOTCONN)
    }

    /// write(2): accepts as much of `data` as the send buffer has room for.
    pub(crate) fn write(&mut self, fd: RawFd, data: &[u8]) -> Progress<usize> {
        match self.try_write(fd, data) {
            Ok(Some(count)) => Progress::Done(Ok(count)),
            Ok(None) => self.later(fd),
            Err(error) => Progress::Done(Err(error)),
        }
    }

    fn try_write(&mut self, fd: RawFd, data: &[u8]) -> Result<Option<usize>, Errno> {
        let handle = self.handle(fd).map_err(|error| match error {
            Errno::NOTCONN => Errno::PIPE,
            other => other,
        })?;
        let status = self.status(fd)?;
        if let Some(error) = self.take_error(fd, status) {
            return Err(error);
        }
        let socket = self.get(fd)?;
        if socket.write_shut || status.closed {
            return Err(Errno::PIPE);
        }
        let send_buffer = socket.send_buffer;
        let room = send_buffer.saturating_sub(self.unacknowledged(handle, status));
        let count = data.len().min(room);
        if !status.connected || (count == 0 && !data.is_empty()) {
            return Ok(None);
        }
        let now = self.machine.now();
        if let Some(core) = self.machine.core.as_mut().filter(|_| count > 0) {
            let data = Bytes::copy_from_slice(&data[..count]);
            core.clients.first_mut::<Client>().streams.send(
                now,
                core.engine.connections(),
                handle,
                data,
            );
            self.machine.settle();
        }
        Ok(Some(count))
    }

    /// Bytes written and not acknowledged. Streams count whole lists; the target counts bytes.
    pub(crate) fn unacknowledged(&mut self, handle: OffloadHandle, status: StreamStatus) -> usize {
        let snapshot =
            self.machine.info_snapshot(handle).filter(|_| status.state == OffloadState::Offloaded);
        let outstanding = snapshot.map_or(usize::MAX, |snapshot| snapshot.outstanding as usize);
        status.unacknowledged.min(outstanding)
    }

    /// read(2): at most `count` bytes; none at the end of the stream.
    pub(crate) fn read(&mut self, fd: RawFd, count: usize) -> Progress<Bytes> {
        match self.try_read(fd, count) {
            Ok(Some(data)) => Progress::Done(Ok(data)),
            Ok(None) => self.later(fd),
            Err(error) => Progress::Done(Err(error)),
        }
    }

    fn try_read(&mut self, fd: RawFd, count: usize) -> Result<Option<Bytes>, Errno> {
        let handle = self.handle(fd)?;
        let data = self.take(fd, handle, count)?;
        if !data.is_empty() || count == 0 {
            return Ok(Some(data));
        }
        let status = self.status(fd)?;
        if let Some(error) = self.take_error(fd, status) {
            return Err(error);
        }
        let over = status.peer_closed || status.closed || self.get(fd)?.read_shut;
        Ok(over.then(Bytes::new))
    }

    /// Available data, at most `count` bytes: the data of the stream, then the data kept by the target.
    fn take(&mut self, fd: RawFd, handle: OffloadHandle, count: usize) -> Result<Bytes, Errno> {
        let mut data = Vec::new();
        let mut leftover = std::mem::take(&mut self.get_mut(fd)?.leftover);
        let mut asked = false;
        while data.len() < count {
            if leftover.is_empty() {
                let now = self.machine.now();
                let Some(core) = &mut self.machine.core else { break };
                let connections = core.engine.connections();
                match core.clients.first_mut::<Client>().streams.receive(now, connections, handle) {
                    Some(next) => leftover = next,
                    None if asked => break,
                    None => {
                        asked = true;
                        core.clients.first_mut::<Client>().request_data(
                            now,
                            connections,
                            handle,
                            count - data.len(),
                        );
                    }
                }
                self.machine.settle();
            }
            let piece = leftover.len().min(count - data.len());
            data.extend_from_slice(&leftover[..piece]);
            leftover.advance(piece);
        }
        if let Some(core) = &mut self.machine.core {
            core.clients.first_mut::<Client>().close_gate(handle);
        }
        self.get_mut(fd)?.leftover = leftover;
        Ok(data.into())
    }

    /// Bytes available to a read (SIOCINQ).
    pub(crate) fn unread(&mut self, fd: RawFd) -> usize {
        let (Ok(socket), Ok(handle)) = (self.get(fd), self.handle(fd)) else { return 0 };
        let leftover = socket.leftover.len();
        let received = self.machine.info(handle).map_or(0, |info| info.bytes_received);
        let Some(core) = &self.machine.core else { return leftover };
        let passed = core.clients.first::<Client>().passed(handle);
        let in_stream =
            core.clients.first::<Client>().streams.status(handle).map_or(0, |status| status.unread);
        let kept = usize::try_from(received.saturating_sub(passed)).unwrap_or(usize::MAX);
        leftover
            + in_stream
            + kept.max(usize::from(core.clients.first::<Client>().has_refused(handle)))
    }

    /// shutdown(2).
    pub(crate) fn shutdown(&mut self, fd: RawFd, how: i32) -> Result<(), Errno> {
        let handle = self.handle(fd)?;
        let status = self.status(fd)?;
        if !status.connected || status.closed {
            return Err(Errno::NOTCONN);
        }
        let socket = self.get_mut(fd)?;
        let (read, write) = match how {
            libc::SHUT_RD => (true, false),
            libc::SHUT_WR => (false, true),
            libc::SHUT_RDWR => (true, true),
            _ => return Err(Errno::INVAL),
        };
        socket.read_shut |= read;
        let first = write && !socket.write_shut;
        socket.write_shut |= write;
        if first {
            self.finish(handle);
        }
        Ok(())
    }

    fn finish(&mut self, handle: OffloadHandle) {
        let now = self.machine.now();
        if let Some(core) = &mut self.machine.core {
            core.clients.first_mut::<Client>().streams.shutdown(
                now,
                core.engine.connections(),
                handle,
            );
        }
        self.machine.settle();
    }

    /// close(2): an RST if data is unread (RFC 2525 §2.17) or SO_LINGER requires it, else a FIN.
    pub(crate) fn close(&mut self, fd: RawFd) -> Result<(), Errno> {
        let unread = self.unread(fd);
        let socket = self.table.remove(&fd).ok_or(Errno::BADF)?;
        let now = self.machine.now();
        let Some(core) = &mut self.machine.core else { return Ok(()) };
        match socket.kind {
            Kind::Fresh => {}
            Kind::Listening(listener) => {
                core.clients.first_mut::<Client>().streams.unlisten(listener)
            }
            Kind::Stream(handle) => {
                let status = core.clients.first_mut::<Client>().streams.status(handle);
                let abort = socket.linger == Some(0)
                    || unread > 0
                    || status.is_some_and(|status| !status.connected);
                if status.is_none_or(|status| status.closed) {
                    core.clients.first_mut::<Client>().streams.forget(
                        now,
                        core.engine.connections(),
                        handle,
                    );
                } else if abort {
                    core.clients.first_mut::<Client>().streams.abort(
                        now,
                        core.engine.connections(),
                        handle,
                    );
                } else {
                    core.clients.first_mut::<Client>().abandon(handle);
                    if !socket.write_shut {
                        self.finish(handle);
                    }
                }
            }
        }
        self.machine.settle();
        Ok(())
    }

    /// Those of `events` that are ready (poll(2)); error and hang-up are always included.
    pub(crate) fn ready(&mut self, fd: RawFd, events: PollFlags) -> PollFlags {
        let Ok(socket) = self.get(fd) else { return PollFlags::NVAL };
        let mut ready = PollFlags::empty();
        match socket.kind {
            // As in Linux: neither connected nor listening.
            Kind::Fresh => ready |= PollFlags::OUT | PollFlags::HUP,
            Kind::Listening(listener) => {
                let streams =
                    self.machine.core.as_ref().map(|core| &core.clients.first::<Client>().streams);
                let any = streams.is_some_and(|streams| streams.has_accepted(listener));
                ready.set(PollFlags::IN | PollFlags::RDNORM, any);
            }
            Kind::Stream(handle) => {
                let (shut, room) = (socket.write_shut, socket.send_buffer);
                let (read_shut, is_error_reported) = (socket.read_shut, socket.is_error_reported);
                let Ok(status) = self.status(fd) else { return PollFlags::HUP };
                let ended = status.peer_closed || status.closed || read_shut;
                ready.set(PollFlags::IN | PollFlags::RDNORM, ended || self.unread(fd) > 0);
                ready.set(PollFlags::RDHUP, ended);
                let writable = status.connected && self.unacknowledged(handle, status) < room;
                let out = PollFlags::OUT | PollFlags::WRNORM;
                ready.set(out, writable || shut || status.closed);
                ready.set(PollFlags::HUP, status.closed || (shut && ended));
                ready.set(PollFlags::ERR, status.error.is_some() && !is_error_reported);
            }
        }
        ready & (events | PollFlags::ERR | PollFlags::HUP | PollFlags::NVAL)
    }

    fn later<T>(&self, fd: RawFd) -> Progress<T> {
        match self.get(fd) {
            Ok(socket) if socket.nonblocking => Progress::Done(Err(Errno::AGAIN)),
            Ok(_) => Progress::Later,
            Err(error) => Progress::Done(Err(error)),
        }
    }
}

impl Drop for Sockets {
    /// packetdrill may have closed these descriptors already, so they must not be closed here.
    fn drop(&mut self) {
        for (_, socket) in self.table.drain() {
            let _ = socket.file.into_raw_fd();
        }
    }
}
