//! One kernel connection: its write queue, and the adapter's I/O during a call.

use alloc::{collections::VecDeque, vec::Vec};
use core::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};

use offload_engine::{
    memory::Piece,
    nbl::NetBufferList,
    socket::{self, PIECES_MAX, TcpInfo},
    time::{Duration, Instant},
};
use rustix::{
    event::epoll::{self, EventData, EventFlags},
    io::Errno,
    net::sockopt,
};

use super::connection::ConnectionSocket;
use crate::{
    rnic::{StreamId, transport::LlpStream},
    transport::buffers::{Buffers, Spare},
};

/// Events of a connection. Writability is requested after a write has found no room.
pub(super) const READABLE: EventFlags = EventFlags::IN.union(EventFlags::RDHUP);

/// Queued bytes at which the stream has no more room: they are still in the cache when the kernel copies them.
const QUEUE_BYTES_MAX: usize = 256 * 1024;

/// Approximate bytes of a list of FPDUs: GSO packets of the kernel without their headers. An aligned list ends a
/// segment, and fewer short segments are better.
const LIST_BYTES: usize = 4 * 65_160;

/// Bytes of the largest segment until the kernel reports it.
const DEFAULT_MSS: usize = 536;

/// Bytes written between two runs of the loop above which posts may be delayed until the next one.
const BUSY_BYTES: usize = 4096;

/// Stage of a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stage {
    /// In the handshake.
    Connecting,
    Open,
}

/// Stage of the end of the sending direction.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum SendState {
    Open,
    /// A FIN is queued after the data.
    FinQueued,
    /// The kernel has the FIN.
    FinSent,
    /// The peer has acknowledged the FIN.
    FinAcknowledged,
}

/// State of the adapter's acceptance of received data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ReceiveState {
    Accepting,
    /// The adapter refuses data; the socket is not read.
    Refused,
    /// The adapter accepts data again; the socket is not watched yet.
    Resumed,
}

/// List to be written.
#[derive(Debug)]
struct Queued {
    list: NetBufferList,
    /// True if its last segment is short, and no data may be appended to it.
    ends_segment: bool,
}

/// Kernel connection.
#[derive(Debug)]
pub(super) struct SocketStream {
    pub(super) socket: ConnectionSocket,
    pub(super) stage: Stage,
    pub(super) send_state: SendState,
    /// Time limit of the handshake, or of the peer's FIN.
    pub(super) deadline: Option<Instant>,
    /// True if the peer's FIN was received.
    pub(super) is_fin_received: bool,
    /// True if the stream must be reset.
    pub(super) is_reset: bool,
    /// True if the exit of the process, or the end of the adapter, sends a FIN instead of a reset.
    pub(super) sends_fin_at_exit: bool,
    /// True if the kernel's buffer has room, as far as known.
    pub(super) is_writable: bool,
    is_room_watched: bool,
    /// Name in the epoll set.
    name: u64,
    /// True if it is in the list of streams that have more to read or to write.
    pub(super) is_ready: bool,
    /// Acceptance of received data by the adapter.
    pub(super) receive_state: ReceiveState,
    /// Data refused by the adapter.
    pub(super) refused: Vec<u8>,
    /// True if each list begins a segment.
    is_aligned: bool,
    queue: VecDeque<Queued>,
    queued_bytes: usize,
    mss: usize,
    /// True if data does not leave this host: the ends have the same IP address, or loopback addresses.
    is_on_one_host: bool,
    /// Run of the loop, and bytes written in this run and in the last one with writes.
    run: u64,
    written: [usize; 2],
}

impl SocketStream {
    pub(super) const fn new(
        id: StreamId,
        socket: ConnectionSocket,
        stage: Stage,
        is_aligned: bool,
    ) -> Self {
        Self {
            is_room_watched: false,
            name: id.0,
            socket,
            stage,
            send_state: SendState::Open,
            deadline: None,
            is_fin_received: false,
            is_reset: false,
            sends_fin_at_exit: false,
            is_writable: true,
            is_ready: false,
            receive_state: ReceiveState::Accepting,
            refused: Vec::new(),
            is_aligned,
            queue: VecDeque::new(),
            queued_bytes: 0,
            mss: DEFAULT_MSS,
            is_on_one_host: false,
            run: 0,
            written: [0; 2],
        }
    }

    /// Adapts the stream to the path between the local and the remote address, when it opens.
    pub(super) fn adapt_to(&mut self, (local, remote): (SocketAddr, SocketAddr)) {
        let (local, remote) = (local.ip(), remote.ip());
        self.is_on_one_host = local == remote || local.is_loopback() && remote.is_loopback();
        self.update_mss();
    }

    /// Reads the segment size from the kernel.
    fn update_mss(&mut self) {
        if let Some(info) = TcpInfo::of(self.socket.as_fd())
            && info.mss > 0
        {
            self.mss = info.mss;
        }
    }

    pub(super) const fn queued_bytes(&self) -> usize {
        self.queued_bytes
    }

    pub(super) fn has_queued(&self) -> bool {
        !self.queue.is_empty()
    }

    /// Returns true if data is queued, and the kernel's buffer has no room.
    pub(super) fn awaits_room(&self) -> bool {
        !self.is_writable && self.has_queued()
    }

    /// Writes queued data to the kernel with one system call. Passes the pieces and the number of bytes written to
    /// `record`, and returns the number.
    ///
    /// # Errors
    /// The connection has failed. A full buffer is not an error.
    pub(super) fn write(
        &mut self,
        run: u64,
        poller: &OwnedFd,
        record: impl FnOnce(&mut dyn Iterator<Item = Piece<'_>>, usize),
    ) -> Result<usize, Errno> {
        // Several lists share a write, up to the end of a record.
        let count = self.queue.iter().take(PIECES_MAX).position(|queued| queued.ends_segment);
        let ends_record = count.is_some();
        let count = count.map_or(PIECES_MAX, |last| last + 1);
        let pieces = || self.queue.iter().take(count).flat_map(|queued| queued.list.pieces());
        match socket::send(self.socket.as_fd(), pieces(), ends_record) {
            Ok(bytes) => {
                record(&mut pieces(), bytes);
                self.count_written(run, bytes);
                Ok(bytes)
            }
            Err(Errno::AGAIN) => {
                self.is_writable = false;
                self.watch_room(poller)?;
                Ok(0)
            }
            Err(Errno::INTR) => Ok(0),
            Err(error) => Err(error),
        }
    }

    /// Adds writability to the watched events, after the first write that found no room.
    fn watch_room(&mut self, poller: &OwnedFd) -> Result<(), Errno> {
        if !core::mem::replace(&mut self.is_room_watched, true) {
            self.watch(poller)?;
        }
        Ok(())
    }

    /// Arms the epoll set with the current events, once each: a FIN stays readable until the consumer ends its side.
    fn watch(&self, poller: &OwnedFd) -> Result<(), Errno> {
        let mut events = EventFlags::ET;
        if self.receive_state != ReceiveState::Refused {
            events |= READABLE;
        }
        if self.is_room_watched {
            events |= EventFlags::OUT;
        }
        epoll::modify(poller, &self.socket, EventData::new_u64(self.name), events)
    }

    /// Keeps data refused by the adapter; the socket is not read until the adapter accepts data again.
    pub(super) fn refuse(&mut self, data: &[u8], poller: &OwnedFd) -> Result<(), Errno> {
        self.refused.clear();
        self.refused.extend_from_slice(data);
        self.receive_state = ReceiveState::Refused;
        self.watch(poller)
    }

    /// Resumes reading after the adapter accepts data again. Returns true if reading was paused.
    pub(super) fn finish_resume(&mut self, poller: &OwnedFd) -> Result<bool, Errno> {
        if self.receive_state != ReceiveState::Resumed {
            return Ok(false);
        }
        self.receive_state = ReceiveState::Accepting;
        self.watch(poller)?;
        Ok(true)
    }

    fn count_written(&mut self, run: u64, bytes: usize) {
        if run != self.run {
            self.written[1] = if run == self.run + 1 { self.written[0] } else { 0 };
            (self.run, self.written[0]) = (run, 0);
        }
        self.written[0] += bytes;
    }

    /// Removes written bytes from the queue. Returns the serial of the last list removed.
    pub(super) fn advance(&mut self, mut bytes: usize, spare: &mut Spare) -> Option<u64> {
        self.queued_bytes -= bytes;
        let mut end = None;
        while let Some(Queued { list, .. }) = self.queue.front_mut() {
            let length = list.data_length();
            if bytes < length {
                for buffer in &mut list.net_buffers {
                    let count = bytes.min(buffer.data_length());
                    buffer.advance(count);
                    bytes -= count;
                }
                return end;
            }
            bytes -= length;
            end = Some(list.context);
            let Some(Queued { list, .. }) = self.queue.pop_front() else { break };
            spare.keep(list.net_buffers);
        }
        end
    }

    /// Makes the kernel send a FIN: the exit of the process no longer resets the connection.
    pub(super) fn shut_down(&mut self, poller: &OwnedFd) -> Result<(), Errno> {
        sockopt::set_socket_linger(&self.socket, None)?;
        rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Write)?;
        self.send_state = SendState::FinSent;
        // The acknowledgment of the FIN is reported as an event of a writable socket; this one is always writable now.
        self.watch_room(poller)
    }

    /// Returns true once, after the peer has acknowledged this side's FIN.
    pub(super) fn take_fin_acknowledged(&mut self) -> bool {
        let is_acknowledged = self.send_state == SendState::FinSent
            && TcpInfo::of(self.socket.as_fd()).is_none_or(|info| info.is_shut_down());
        if is_acknowledged {
            self.send_state = SendState::FinAcknowledged;
        }
        is_acknowledged
    }

    /// Makes the kernel reset the connection immediately, or when the socket is closed: a child of a fork may have it
    /// open, too.
    pub(super) fn reset_on_close(&self) {
        let _ = rustix::net::connect_unspec(&self.socket);
        // A socket that is already disconnected needs no linger option.
        let _ = sockopt::set_socket_linger(&self.socket, Some(Duration::ZERO));
    }
}

/// I/O of a stream during a call.
pub(super) struct SocketIo<'a> {
    pub(super) now: Instant,
    pub(super) stream: &'a mut SocketStream,
    pub(super) spare: &'a mut Spare,
}

impl LlpStream for SocketIo<'_> {
    type List = Buffers;

    const CAN_REFUSE_DATA: bool = true;
    const READS_PAYLOAD_ONCE: bool = true;

    fn resume_receive(&mut self) {
        if self.stream.receive_state == ReceiveState::Refused {
            self.stream.receive_state = ReceiveState::Resumed;
        }
    }

    fn send_fin_at_exit(&mut self) {
        // Only a connection that has ended returns an error.
        let _ = sockopt::set_socket_linger(&self.stream.socket, None);
        self.stream.sends_fin_at_exit = true;
    }

    fn now(&self) -> Instant {
        self.now
    }

    fn list(&mut self) -> Buffers {
        self.spare.take()
    }

    fn keep(&mut self, list: Buffers) {
        self.spare.keep(list.0);
    }

    fn send(&mut self, serial: u64, list: Buffers) {
        let list = NetBufferList { net_buffers: list.0, ..NetBufferList::new(serial) };
        let length = list.data_length();
        let ends_segment = self.stream.is_aligned && !length.is_multiple_of(self.stream.mss);
        self.stream.queued_bytes += length;
        self.stream.queue.push_back(Queued { list, ends_segment });
    }

    fn shutdown(&mut self) {
        self.stream.send_state = self.stream.send_state.max(SendState::FinQueued);
    }

    fn reset(&mut self) {
        self.stream.is_reset = true;
    }

    fn send_room(&self) -> usize {
        QUEUE_BYTES_MAX.saturating_sub(self.stream.queued_bytes)
    }

    fn send_outstanding(&self) -> usize {
        self.stream.queued_bytes
    }

    fn unacknowledged(&self) -> usize {
        self.stream.queued_bytes + socket::unacknowledged(self.stream.socket.as_fd())
    }

    fn has_peer_closed(&self) -> bool {
        TcpInfo::of(self.stream.socket.as_fd()).is_some_and(|info| info.has_peer_closed())
    }

    fn is_on_one_host(&self) -> bool {
        self.stream.is_on_one_host
    }

    fn is_busy(&self) -> bool {
        self.stream.queued_bytes + self.stream.written.iter().max().unwrap_or(&0) > BUSY_BYTES
    }

    fn path_octets(&self) -> usize {
        // The kernel's buffer is the limit.
        usize::MAX
    }

    fn detach_tail(&mut self, _octets_max: usize) -> bool {
        // Written data does not wait for its acknowledgment.
        false
    }

    fn detach_withdrawn(&mut self) {
        let lists = self.stream.queue.iter_mut().map(|queued| &mut queued.list);
        let buffers = lists.flat_map(|list| &mut list.net_buffers);
        buffers.for_each(|buffer| buffer.detach_withdrawn());
    }

    fn effective_mss(&self) -> usize {
        self.stream.mss
    }

    fn gso_payload_max(&self) -> usize {
        LIST_BYTES.max(self.stream.mss) / self.stream.mss * self.stream.mss
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;
    use std::net::{TcpListener, TcpStream};

    use offload_engine::nbl::NetBuffer;

    use super::*;

    const MSS: usize = 1000;

    #[test]
    fn ends_with_one_address_or_loopback_addresses_are_on_one_host() {
        for (local, remote, is_on_one_host) in [
            ("127.0.0.1:1", "127.0.0.2:2", true),
            ("[::1]:1", "127.0.0.1:2", true),
            ("10.0.0.1:1", "10.0.0.1:2", true),
            ("10.0.0.1:1", "10.0.0.2:2", false),
            ("127.0.0.1:1", "10.0.0.1:2", false),
        ] {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let near = ConnectionSocket::create(|| Ok(OwnedFd::from(near).into())).unwrap();
            let mut stream = SocketStream::new(StreamId(1), near, Stage::Open, false);
            stream.adapt_to((local.parse().unwrap(), remote.parse().unwrap()));
            assert_eq!(stream.is_on_one_host, is_on_one_host, "{local} {remote}");
        }
    }

    // Lists that end with a full segment share a write with the next; a short one ends it.
    #[test]
    fn full_lists_share_a_write() {
        let lengths = [2 * MSS, 3 * MSS, MSS + 4, 2 * MSS, MSS];
        for (is_aligned, writes) in [(true, vec![6 * MSS + 4, 3 * MSS]), (false, vec![9 * MSS + 4])]
        {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let near = ConnectionSocket::create(|| Ok(OwnedFd::from(near).into())).unwrap();
            let poller = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
            let mut stream = SocketStream::new(StreamId(1), near, Stage::Open, is_aligned);
            stream.mss = MSS;
            let mut spare = Spare::default();
            let mut io = SocketIo { now: Instant::ZERO, stream: &mut stream, spare: &mut spare };
            for (length, serial) in lengths.into_iter().zip(1..) {
                io.send(serial, Buffers(vec![NetBuffer::from(vec![7; length])]));
            }
            let mut ends = Vec::new();
            for bytes in writes {
                assert_eq!(stream.write(1, &poller, |_, _| {}), Ok(bytes), "{is_aligned}");
                ends.extend(stream.advance(bytes, &mut spare));
            }
            assert_eq!(stream.queued_bytes(), 0);
            assert_eq!(ends.last(), Some(&5));
        }
    }
}
