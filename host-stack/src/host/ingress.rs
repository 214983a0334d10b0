//! Frames from the engine: whose they are, and what is done before smoltcp sees them.

use alloc::vec::Vec;
use core::sync::atomic::Ordering;

use offload_engine::{
    chimney::{
        client::OffloadHandle,
        provider::{Forward, OffloadProvider},
        state::TcpCached,
    },
    status::NdisStatus,
    time::Instant,
};
use smoltcp::socket::tcp;

use super::{
    BACKLOG_MAX, CONNECTIONS_MAX, HANDSHAKE_MAX, HELD_BYTES_MAX, HELD_FRAMES_MAX, Host,
    connection::{
        Connection, History, OffloadStage, Owner, ReceiveHalf, SendHalf, Stage, Stay, specified,
    },
    neighbors::SOLICIT_DELAY,
};
use crate::{
    clock::{self, to_smoltcp},
    handoff::import::fresh_socket,
    observer::Flow,
    socket::ListenerId,
    wire::{self, FourTuple, Frame, TcpFrame},
};

/// What happens to a frame.
enum Verdict {
    /// smoltcp gets it.
    Process,
    /// smoltcp gets it, and the listener's socket becomes a connection by it.
    Accept(ListenerId, FourTuple),
    /// The target gets it.
    Forward(OffloadHandle),
    /// Nobody gets it.
    Drop,
}

impl Host {
    pub(super) fn receive(&mut self, now: Instant, frame: Vec<u8>, checksum_valid: bool) {
        let verdict = match wire::parse(&frame) {
            Frame::Tcp(segment) if !checksum_valid && !segment.checksum_is_right() => {
                self.stats.checksum_errors += 1;
                Verdict::Drop
            }
            // smoltcp would drop these; so nothing may be learned from them. A bridge floods frames of
            // other stations, and TCP is unicast (RFC 1122 s4.2.3.10).
            Frame::Tcp(segment) if !segment.is_well_formed => Verdict::Drop,
            Frame::Tcp(segment) if segment.destination_mac != self.config.mac => Verdict::Drop,
            Frame::Tcp(segment) => self.judge(now, &segment),
            Frame::Fragment => {
                self.stats.fragments_dropped += 1;
                Verdict::Drop
            }
            Frame::Other => {
                self.hear_of_neighbor(now, &frame);
                Verdict::Process
            }
        };
        match verdict {
            Verdict::Process => self.process(now, frame),
            Verdict::Accept(listener, tuple) => self.accept(now, listener, tuple, frame),
            Verdict::Forward(handle) => self.forward(handle, frame),
            Verdict::Drop => {}
        }
    }

    fn judge(&mut self, now: Instant, segment: &TcpFrame<'_>) -> Verdict {
        let tuple = segment.received_on();
        match self.owners.get(&tuple).copied() {
            Some(Owner::Target(handle)) => Verdict::Forward(handle),
            Some(Owner::Host(handle)) if segment.is_open_request() => {
                self.judge_known_syn(now, handle, segment)
            }
            Some(Owner::Host(handle)) => {
                if let Some(connection) = self.connections.get_mut(&handle) {
                    connection.flow.incoming(now, segment);
                }
                Verdict::Process
            }
            None if segment.is_open_request() => self.judge_new_syn(tuple),
            None => Verdict::Process,
        }
    }

    /// A SYN for a 4-tuple that smoltcp has. Its set may hold a listener's socket before the
    /// connection's, which would take the SYN for a second connection; and the connection's own would
    /// not answer a SYN, except one that crossed its own (RFC 9293 s3.5, simultaneous open).
    fn judge_known_syn(
        &mut self,
        now: Instant,
        handle: OffloadHandle,
        segment: &TcpFrame<'_>,
    ) -> Verdict {
        let Some(connection) = self.connections.get_mut(&handle) else { return Verdict::Drop };
        match self.sockets.get::<tcp::Socket<'_>>(connection.socket).state() {
            tcp::State::SynSent => {
                connection.flow.incoming(now, segment);
                Verdict::Process
            }
            // RFC 9293 s3.10.7.4: a SYN beyond the old connection may reopen its 4-tuple.
            tcp::State::TimeWait if segment.seq.is_after(connection.flow.acknowledged) => {
                self.forget(handle);
                self.judge_new_syn(segment.received_on())
            }
            _ => {
                self.stats.duplicate_syns += 1;
                Verdict::Drop
            }
        }
    }

    fn judge_new_syn(&mut self, tuple: FourTuple) -> Verdict {
        let found = self.listeners.iter().find(|(_, listener)| listener.hears(tuple.local));
        let Some((&id, listener)) = found else {
            return Verdict::Process;
        };
        // smoltcp would take a SYN that came by broadcast.
        if !self.config.is_ours(tuple.local.ip()) {
            return Verdict::Drop;
        }
        if listener.socket.is_none() || self.connections.len() >= CONNECTIONS_MAX {
            self.stats.listen_overflows += 1;
            return Verdict::Drop;
        }
        Verdict::Accept(ListenerId(id), tuple)
    }

    fn process(&mut self, now: Instant, frame: Vec<u8>) {
        self.device.received.push_back(frame);
        let at = to_smoltcp(now);
        let _ = self.interface.poll_ingress_single(at, &mut self.device, &mut self.sockets);
        self.send_down(now);
    }

    /// Lets the listener's socket take the SYN, and puts another one in its place.
    fn accept(&mut self, now: Instant, id: ListenerId, tuple: FourTuple, frame: Vec<u8>) {
        let Some(listener) = self.listener(id) else { return };
        let Some(socket) = listener.socket else { return };
        let (client, must_offload) = (listener.client, listener.must_offload);
        let mut flow = Flow::new(now);
        if let Frame::Tcp(segment) = wire::parse(&frame) {
            flow.incoming(now, &segment);
        }
        self.process(now, frame);
        if self.sockets.get::<tcp::Socket<'_>>(socket).state() != tcp::State::SynReceived {
            return;
        }
        let handle = OffloadHandle(self.clients.next_id.fetch_add(1, Ordering::Relaxed));
        self.owners.insert(tuple, Owner::Host(handle));
        self.connections.insert(
            handle,
            Connection {
                client,
                listener: Some(id),
                tuple,
                socket,
                flow,
                scale_raise: self.config.scale_raise(),
                must_offload,
                stay: Stay::No,
                wanted: false,
                history: History::new(now),
                stage: Stage::Handshake(now + HANDSHAKE_MAX),
                solicit_at: now + SOLICIT_DELAY,
                send: SendHalf::default(),
                receive: ReceiveHalf::default(),
            },
        );
        if let Some(listener) = self.listeners.get_mut(&id.0) {
            listener.socket = None;
            listener.half_open += 1;
        }
        self.replenish(id);
    }

    /// Puts a socket in LISTEN if the backlog has room and there is none.
    pub(super) fn replenish(&mut self, id: ListenerId) {
        let Some(listener) = self.listener(id) else { return };
        if listener.socket.is_some() || listener.half_open >= listener.backlog.clamp(1, BACKLOG_MAX)
        {
            return;
        }
        let (address, port) = (specified(listener.local), listener.local.port());
        let mut socket = self.make_socket();
        let endpoint = smoltcp::wire::IpListenEndpoint { addr: address.map(Into::into), port };
        // Fails only for port 0, which `listen` has replaced.
        if socket.listen(endpoint).is_ok() {
            let handle = self.sockets.add(socket);
            if let Some(listener) = self.listeners.get_mut(&id.0) {
                listener.socket = Some(handle);
            }
        }
    }

    /// A fresh socket with the host's settings.
    pub(super) fn make_socket(&self) -> tcp::Socket<'static> {
        let mut socket = fresh_socket(self.config.receive_buffer, self.config.send_buffer);
        if self.config.timestamps {
            socket.set_tsval_generator(Some(clock::tsval));
        }
        configure(&mut socket, &self.config.tcp);
        socket
    }

    /// CH-FWD-2: the host got it before the hand-over was done, or because of IP options. CH-FWD-3: not
    /// while the connection changes hands.
    fn forward(&mut self, handle: OffloadHandle, frame: Vec<u8>) {
        let Some(offloaded) = self.offloaded.get_mut(&handle) else { return };
        match offloaded.stage {
            OffloadStage::With(connection) => {
                self.stats.forwards += 1;
                let status = NdisStatus::PENDING;
                self.engine.forward(Forward { connection, frame, status });
                self.ring = true;
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

    /// The target is done with a frame. What it did not process because the connection was on its way up
    /// is the host's to process, when it has arrived.
    pub(super) fn forwarded(&mut self, now: Instant, segment: Forward) {
        if segment.status == NdisStatus::UPLOAD_IN_PROGRESS {
            // Verified before it was forwarded.
            self.receive(now, segment.frame, true);
        }
    }

    /// Drops what the host knows of a connection, and its socket, without a word to anybody.
    pub(super) fn forget(&mut self, handle: OffloadHandle) {
        let Some(connection) = self.connections.remove(&handle) else { return };
        self.owners.remove(&connection.tuple);
        self.sockets.remove(connection.socket);
        self.left(connection.listener, connection.stage);
    }

    /// A connection of `listener` has left `stage`: its place in the backlog may be free.
    pub(super) fn left(&mut self, listener: Option<ListenerId>, stage: Stage) {
        if let (Some(id), Stage::Handshake(_)) = (listener, stage)
            && let Some(listener) = self.listeners.get_mut(&id.0)
        {
            listener.half_open -= 1;
            self.replenish(id);
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
