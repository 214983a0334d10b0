//! Frames from the engine: classification, and processing ahead of smoltcp.

use alloc::vec::Vec;
use offload_engine::{
    chimney::{client::OffloadHandle, provider::Forward},
    engine::port::FromHost,
    frame::FlowKey,
    state::{MacAddress, TcpCached},
    status::NdisStatus,
    tcp::SeqNum,
    time::Instant,
};
use smoltcp::socket::tcp;

use super::{
    HELD_BYTES_MAX, HELD_FRAMES_MAX, Host,
    connection::{Connection, OffloadStage, Owner, Stage},
    ports::Name,
    shards::{ClientId, ShardId},
    time_wait::Answer,
};
use crate::{
    clock::{self, to_smoltcp},
    handoff::{
        import::fresh_socket,
        rewind::{can_rewind, rewind},
        take,
    },
    observer::Flow,
    retrieve::{SegmentFrames, retrieve},
    socket::ListenerId,
    wire::{self, Frame, FrameAddresses, Segment},
};

/// Disposition of a frame.
pub(super) enum Verdict {
    /// Passed to smoltcp.
    Process,
    /// Passed to smoltcp with this window, in the segment at this offset.
    ProcessWith(u16, usize),
    /// Forwarded to the target.
    Forward(OffloadHandle),
    /// Dropped.
    Drop,
}

impl Host {
    /// Handles a frame received on the queue of `shard`.
    pub(super) fn receive(
        &mut self,
        now: Instant,
        shard: ShardId,
        mut frame: Vec<u8>,
        checksum_valid: bool,
    ) {
        let verdict = match wire::parse(&frame) {
            Frame::Tcp(segment) if !checksum_valid && !segment.frame.checksum_is_valid() => {
                self.stats.checksum_errors += 1;
                Verdict::Drop
            }
            // smoltcp would drop these, so they must not update any state. A bridge floods frames of other stations,
            // and TCP is unicast (RFC 1122 §4.2.3.10).
            Frame::Tcp(segment) if !segment.is_well_formed => Verdict::Drop,
            Frame::Tcp(segment) if segment.destination_mac != self.config.mac => Verdict::Drop,
            Frame::Tcp(segment) => self.classify(now, shard, &segment),
            Frame::BadHeader => Verdict::Drop,
            Frame::Fragment => {
                self.stats.fragments_dropped += 1;
                Verdict::Drop
            }
            Frame::Other if self.defend(now, &frame) => Verdict::Drop,
            Frame::Other => {
                self.read_announcement(now, &frame);
                Verdict::Process
            }
        };
        match verdict {
            Verdict::Process => {
                self.process(now, frame);
                self.deliver_datagrams();
            }
            Verdict::ProcessWith(window, tcp_at) => {
                wire::set_window(&mut frame, tcp_at, window);
                self.process(now, frame);
            }
            Verdict::Forward(handle) => self.forward(handle, frame),
            Verdict::Drop => {}
        }
    }

    fn classify(&mut self, now: Instant, shard: ShardId, segment: &Segment<'_>) -> Verdict {
        let tuple = segment.received_on();
        match self.owners.get(&tuple).copied() {
            Some(Owner::Target(handle)) => Verdict::Forward(handle),
            Some(Owner::Host(handle)) if segment.is_open_request() => {
                self.handle_known_syn(now, shard, handle, segment)
            }
            Some(Owner::Host(handle)) => self.handle_known(now, handle, segment),
            Some(Owner::HalfOpen(handle)) => self.handle_half_open(now, handle, segment),
            None if segment.is_open_request() => match self.time_waits.rejects(now, segment) {
                true => {
                    self.stats.duplicate_syns += 1;
                    Verdict::Drop
                }
                false => self.handle_new_syn(now, shard, segment),
            },
            None => match self.handle_cookie(now, shard, segment) {
                Some(verdict) => verdict,
                None => self.handle_late(now, segment),
            },
        }
    }

    /// Handles a segment of no connection, or of a closed one.
    fn handle_late(&mut self, now: Instant, segment: &Segment<'_>) -> Verdict {
        match self.time_waits.answer(now, self.config.time_wait, segment) {
            Answer::Unknown => return Verdict::Process,
            Answer::None => {}
            Answer::Acknowledge(shard, flow) => {
                self.acknowledge(now, shard, &flow, segment.source_mac, segment.frame.flow);
            }
        }
        Verdict::Drop
    }

    /// Sends an ACK that smoltcp has not generated, on the queue of `shard`.
    pub(super) fn acknowledge(
        &mut self,
        now: Instant,
        shard: ShardId,
        flow: &Flow,
        peer: MacAddress,
        ends: FlowKey,
    ) {
        let ack = flow.acknowledgment(self.timestamps.at(now));
        let way =
            FrameAddresses { macs: (self.config.mac, peer), from: ends.local(), to: ends.remote() };
        let frame = wire::ack_frame(way, self.config.tcp.ttl_or_hop_limit, &ack);
        self.stats.frames_out += u64::from(frame.is_some());
        if let Some(frame) = frame {
            self.shards[shard].send_to_engine(FromHost::Frame(frame));
        }
    }

    /// Handles a segment of a connection in smoltcp. Parts that smoltcp would not read are processed first.
    pub(super) fn handle_known(
        &mut self,
        now: Instant,
        handle: OffloadHandle,
        segment: &Segment<'_>,
    ) -> Verdict {
        let Some(connection) = self.connections.get_mut(&handle) else { return Verdict::Process };
        if let Stage::Handshake(_) = connection.stage {
            connection.establish();
        }
        let slot = connection.socket;
        let socket = self.sockets.get::<tcp::Socket<'_>>(slot);
        let is_accepted = connection.listener.is_some();
        if segment.is_reset() && is_accepted && socket.state() == tcp::State::SynReceived {
            connection.flow.incoming(now, segment);
            // smoltcp would return to LISTEN, and accept the next SYN for this connection.
            if connection.flow.reset_received {
                self.stats.attempt_fails += 1;
                self.forget(handle);
            }
            return Verdict::Drop;
        }
        // A peer that has closed last and dropped its state answers late segments with RST. Received data is still
        // delivered to the client (RFC 1337; RFC 9293 §3.10.7.4: the user is not signaled).
        if segment.is_reset() && connection.both_closed(socket) {
            return Verdict::Drop;
        }
        if connection.flow.is_overrun(now, segment) {
            self.rewind(now, handle, segment.ack);
        }
        let Some(connection) = self.connections.get_mut(&handle) else { return Verdict::Process };
        let slot = connection.socket;
        let socket = self.sockets.get::<tcp::Socket<'_>>(slot);
        let seq_state = connection.seq_state(socket);
        let SegmentFrames { ahead, mut whole } =
            retrieve(segment, &connection.flow, socket, seq_state);
        let window = connection.flow.kept_window(segment);
        if let Some(mut frame) = ahead {
            let Frame::Tcp(first) = wire::parse(&frame) else { return Verdict::Drop };
            let tcp_at = first.tcp_at;
            connection.flow.incoming(now, &first);
            wire::set_window(&mut frame, tcp_at, window.unwrap_or(segment.window));
            self.process(now, frame);
            // A connection that this segment has ended would answer the rest with RST.
            whole &= self.sockets.get::<tcp::Socket<'_>>(slot).state() != tcp::State::Closed;
        }
        if let Some(connection) = self.connections.get_mut(&handle) {
            connection.flow.incoming(now, segment);
        }
        match window {
            _ if !whole => Verdict::Drop,
            _ if self.process_with_kept(now, handle, segment, window) => Verdict::Drop,
            Some(window) => Verdict::ProcessWith(window, segment.tcp_at),
            None => Verdict::Process,
        }
    }

    /// Marks everything unacknowledged in smoltcp as unsent; `ack` is acknowledged next.
    fn rewind(&mut self, now: Instant, handle: OffloadHandle, ack: SeqNum) {
        let is_due = |connection: &Connection, socket: &tcp::Socket<'_>| {
            connection.rcv_nxt(socket) != connection.flow.acknowledged
        };
        let Some(connection) = self.connections.get(&handle) else { return };
        let socket = self.sockets.get::<tcp::Socket<'_>>(connection.socket);
        // A FIN alone is retransmitted into any window.
        let queued = connection.snd_una(socket) + socket.send_queue() as u32;
        if !can_rewind(socket.state()) || ack.is_at_or_after(queued) {
            return;
        }
        if is_due(connection, socket) {
            self.push_acknowledgment(now, handle);
        }
        let Some(connection) = self.connections.get_mut(&handle) else { return };
        let socket = self.sockets.get::<tcp::Socket<'_>>(connection.socket);
        if is_due(connection, socket) {
            return;
        }
        let ends = (connection.snd_una(socket), connection.rcv_nxt(socket));
        let socket = take(&mut self.sockets, connection.socket);
        let socket = rewind(to_smoltcp(now), connection.tuple, socket, ends);
        connection.socket = self.sockets.add(socket);
        connection.flow.rewound();
    }

    /// Handles a SYN for a 4-tuple that smoltcp has. A listener's socket may precede the connection's in the set and
    /// accept the SYN as a second connection. The connection's own socket would not answer a SYN, unless it crossed its
    /// own (RFC 9293 §3.5, simultaneous open).
    fn handle_known_syn(
        &mut self,
        now: Instant,
        shard: ShardId,
        handle: OffloadHandle,
        segment: &Segment<'_>,
    ) -> Verdict {
        let Some(connection) = self.connections.get_mut(&handle) else { return Verdict::Drop };
        match self.sockets.get::<tcp::Socket<'_>>(connection.socket).state() {
            tcp::State::SynSent => {
                connection.flow.incoming(now, segment);
                Verdict::Process
            }
            // RFC 9293 §3.10.7.4: a SYN beyond the old connection's sequence numbers may reopen its 4-tuple.
            tcp::State::TimeWait if segment.seq.is_after(connection.flow.acknowledged) => {
                self.forget(handle);
                self.handle_new_syn(now, shard, segment)
            }
            _ => {
                self.stats.duplicate_syns += 1;
                Verdict::Drop
            }
        }
    }

    pub(super) fn process(&mut self, now: Instant, frame: Vec<u8>) {
        self.ingress(now, Some(frame));
        self.pass_sent_frames(now);
    }

    /// Passes a frame to smoltcp; its answers stay in the device's queue.
    pub(super) fn ingress(&mut self, now: Instant, frame: Option<Vec<u8>>) {
        self.device.received.extend(frame);
        let at = to_smoltcp(now);
        let _ = self.interface.poll_ingress_single(at, &mut self.device, &mut self.sockets);
    }

    /// Creates a socket with the host's settings.
    pub(super) fn make_socket(&self, client: ClientId) -> tcp::Socket<'static> {
        let mut socket = fresh_socket(self.config.receive_buffer, self.config.send_buffer);
        if self.config.timestamps {
            socket.set_tsval_generator(Some(clock::tsval));
        }
        configure(&mut socket, &self.tcp_of(client));
        socket
    }

    /// CH-FWD-2: frames reach the host before the offload completes, or because of IP options. CH-FWD-3: none is
    /// forwarded during a transition.
    fn forward(&mut self, handle: OffloadHandle, frame: Vec<u8>) {
        let Some(offloaded) = self.offloaded.get_mut(&handle) else { return };
        match offloaded.stage {
            OffloadStage::With(connection) => {
                self.stats.forwards += 1;
                let status = NdisStatus::PENDING;
                let shard = offloaded.shard;
                self.shards[shard].engine.forward(Forward { connection, frame, status });
            }
            _ if offloaded.frames.len() < HELD_FRAMES_MAX
                && offloaded.frame_bytes + frame.len() <= HELD_BYTES_MAX =>
            {
                offloaded.frame_bytes += frame.len();
                offloaded.frames.push(frame);
            }
            _ => self.stats.forwards_dropped += 1,
        }
    }

    /// Handles a frame that the target has returned. A frame that it did not process because of an upload in progress
    /// is processed by the host after the upload.
    pub(super) fn forwarded(&mut self, now: Instant, shard: ShardId, segment: Forward) {
        if segment.status == NdisStatus::UPLOAD_IN_PROGRESS {
            // Verified before it was forwarded.
            self.receive(now, shard, segment.frame, true);
        }
    }

    /// Both sides have closed: a TIME-WAIT record answers late segments. `is_first`: this side closed first, and its
    /// 4-tuple is not reused for a while.
    pub(super) fn retire(&mut self, now: Instant, handle: OffloadHandle, is_first: bool) {
        if let Some(Connection { shard, tuple, flow, .. }) = self.connections.get(&handle) {
            let time = self.config.time_wait;
            self.time_waits.insert(now, (time, is_first), *tuple, (*shard, *flow));
        }
        self.forget(handle);
    }

    /// Removes a connection and its socket from the host, without a notice or a segment.
    pub(super) fn forget(&mut self, handle: OffloadHandle) {
        let Some(connection) = self.connections.remove(&handle) else { return };
        self.owners.remove(&connection.tuple);
        self.ports.release(Name::Connection(handle));
        self.sockets.remove(connection.socket);
        self.shards[connection.shard].connections -= 1;
        self.release_backlog(connection.listener, connection.stage);
    }

    /// Frees a connection's entry in the backlog of `listener` if it has left the handshake `stage`.
    pub(super) fn release_backlog(&mut self, listener: Option<ListenerId>, stage: Stage) {
        if let (Some(id), Stage::Handshake(_)) = (listener, stage)
            && let Some(listener) = self.listeners.get_mut(&id.0)
        {
            listener.half_open -= 1;
        }
    }
}

/// The host's settings for a socket in its own set.
pub(super) fn configure(socket: &mut tcp::Socket<'_>, tcp: &TcpCached) {
    socket.set_nagle_enabled(tcp.nagling_enabled);
    socket.set_hop_limit(Some(tcp.ttl_or_hop_limit));
    let idle = tcp.keep_alive_idle().into();
    socket.set_keep_alive(tcp.keep_alive_enabled.then_some(idle));
}
