//! The host's half of the chimney: handing connections over, and taking refused ones back.

use alloc::{boxed::Box, vec::Vec};

use bytes::Bytes;
use offload_engine::{
    chimney::{
        client::{InitiateOffload, OffloadHandle},
        state::ConnectionState,
    },
    engine::port::FromHost,
    nbl::NetBufferList,
    status::NdisStatus,
    time::Instant,
};
use smoltcp::socket::tcp::{self, State};

use super::{
    Host,
    connection::{Connection, Initiating, Offloaded, Owner, ReceiveHalf, SendHalf, Stage},
    ingress::configure,
};
use crate::{
    clock::{self, to_smoltcp},
    handoff::{
        self,
        export::{ExportError, Surroundings, export, push_acknowledgement},
        import::{Imported, import},
    },
    observer::Flow,
    socket::{HostError, Notice, OffloadPolicy},
    wire,
};

/// Whether a connection is to be offloaded.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Wish {
    No,
    /// At the end of its handshake.
    AtOnce,
    /// It has carried enough.
    Later,
}

impl Host {
    /// Hands over every connection whose time has come. Everything that the engine had queued has
    /// been seen by smoltcp, and everything that smoltcp had to acknowledge has been sent (CH-INI-7).
    pub(super) fn hand_over(&mut self, now: Instant) -> bool {
        let handles = self.connections.keys().copied().collect::<Vec<_>>();
        let mut work = false;
        for handle in handles {
            match self.connections.get(&handle).map(|connection| self.wish(connection)) {
                Some(Wish::AtOnce) => work |= self.offload(now, handle, true),
                Some(Wish::Later) => work |= self.offload(now, handle, false),
                Some(Wish::No) | None => {}
            }
        }
        work
    }

    pub(super) fn wish(&self, connection: &Connection) -> Wish {
        let socket = self.sockets.get::<tcp::Socket<'_>>(connection.socket);
        let transferable = matches!(socket.state(), State::Established | State::CloseWait);
        if !transferable || connection.stays {
            return Wish::No;
        }
        let carried = connection.receive.read.max(connection.send.answered);
        match (connection.stage, self.config.policy) {
            (Stage::Handshake(_), OffloadPolicy::Always) => Wish::AtOnce,
            (Stage::Handshake(_), _) if connection.must_offload => Wish::AtOnce,
            (Stage::Open, OffloadPolicy::Auto)
                if carried >= self.config.auto_offload_bytes && !connection.send.shutdown =>
            {
                Wish::Later
            }
            _ => Wish::No,
        }
    }

    /// Takes the connection out of smoltcp and sends it down. Returns whether anything was done.
    fn offload(&mut self, now: Instant, handle: OffloadHandle, at_once: bool) -> bool {
        if at_once && let Some(connection) = self.connections.get_mut(&handle) {
            connection.establish();
        }
        // Sends that are not acknowledged move along; of those that are, the client hears now.
        self.answer_sends(handle);
        let Some(connection) = self.connections.get(&handle) else { return false };
        let socket = self.sockets.get::<tcp::Socket<'_>>(connection.socket);
        if connection.rcv_nxt(socket) != connection.flow.acknowledged {
            self.push_acknowledgement(now, handle);
        }
        let Some(connection) = self.connections.get(&handle) else { return false };
        let slot = connection.socket;
        let socket = handoff::take(&mut self.sockets, slot);
        let surroundings = Surroundings {
            tuple: connection.tuple,
            flow: &connection.flow,
            snd_una: connection.snd_una(&socket),
            rcv_nxt: connection.rcv_nxt(&socket),
            cached: self.config.cached(),
            path_mtu: self.paths.mtu(now, connection.tuple.remote.ip(), self.config.mtu as u32),
            ts_time: self.timestamps.at(now),
        };
        match export(now, socket, &surroundings) {
            Ok(state) => self.initiate(handle, state, at_once),
            Err(refused) => {
                let (error, socket) = *refused;
                self.export_refused(handle, error, socket)
            }
        }
    }

    fn push_acknowledgement(&mut self, now: Instant, handle: OffloadHandle) {
        let Some(connection) = self.connections.get_mut(&handle) else { return };
        push_acknowledgement(
            to_smoltcp(now),
            &mut self.interface,
            &mut self.device,
            &mut self.sockets,
            &mut connection.socket,
        );
        self.send_down(now);
    }

    fn initiate(
        &mut self,
        handle: OffloadHandle,
        mut state: Box<ConnectionState>,
        at_once: bool,
    ) -> bool {
        let Some(connection) = self.connections.remove(&handle) else { return false };
        self.left(connection.listener, connection.stage);
        let notice = connection.established(handle, true);
        let Connection { client, listener, tuple, must_offload, send, receive, .. } = connection;
        // The frames that come from now on are the target's.
        self.owners.insert(tuple, Owner::Target(handle));
        let unanswered = send.unanswered();
        let initiating =
            Initiating { frames: Vec::new(), unconsumed: receive.unconsumed, aborted: false };
        self.offloaded.insert(
            handle,
            Offloaded {
                tuple,
                client,
                listener,
                must_offload,
                initiating: Some(Box::new(initiating)),
            },
        );
        self.stats.initiates += 1;
        if at_once {
            self.stats.passive_opens += u64::from(listener.is_some());
            self.tell(notice);
            // What was sent before the client could know of the hand-over comes back.
            for data in send.pending {
                self.tell(Notice::Returned { handle, data, shutdown: false });
            }
            if send.shutdown {
                self.tell(Notice::Returned { handle, data: Bytes::new(), shutdown: true });
            }
        } else {
            for data in send.pending {
                state.send_data.push_back(NetBufferList::from_mdl(0, data));
            }
            self.tell(Notice::Offloading { handle, unanswered });
        }
        self.tell_engine(FromHost::InitiateConnection(InitiateOffload { handle, client, state }));
        true
    }

    fn export_refused(
        &mut self,
        handle: OffloadHandle,
        error: ExportError,
        socket: tcp::Socket<'static>,
    ) -> bool {
        let slot = self.sockets.add(socket);
        let Some(connection) = self.connections.get_mut(&handle) else { return false };
        connection.socket = slot;
        match error {
            // Its next hop has to be found first, and smoltcp wakes us; or the peer's next segment does.
            ExportError::AcknowledgementDue | ExportError::AcknowledgementOverlooked => {
                return false;
            }
            ExportError::Phase(_) | ExportError::Disagreement(_) | ExportError::Lost(_) => {}
        }
        tracing::warn!(tuple = ?connection.tuple, %error, "connection not offloaded");
        connection.stays = true;
        self.stats.exports_refused += 1;
        let lost = matches!(error, ExportError::Lost(_));
        self.stats.handoffs_lost += u64::from(lost);
        if lost || connection.must_offload {
            self.end_unoffloaded(handle);
        }
        true
    }

    /// A connection that cannot go on in the host.
    fn end_unoffloaded(&mut self, handle: OffloadHandle) {
        let Some(connection) = self.connections.get(&handle) else { return };
        let error = HostError::OffloadRefused;
        match (connection.stage, connection.listener) {
            (Stage::Open, _) => self.tell(Notice::Closed { handle, error: Some(error) }),
            (Stage::Handshake(_), None) => self.tell(Notice::ConnectFailed { handle, error }),
            (Stage::Handshake(_), Some(_)) | (Stage::Lingering, _) => {}
        }
        self.reset(handle);
    }

    /// The target has answered.
    pub(super) fn initiate_complete(
        &mut self,
        now: Instant,
        handle: OffloadHandle,
        status: NdisStatus,
        state: Option<Box<ConnectionState>>,
    ) {
        let Some(offloaded) = self.offloaded.get_mut(&handle) else { return };
        let Some(initiating) = offloaded.initiating.take() else { return };
        match state {
            None if status == NdisStatus::SUCCESS => {
                for frame in initiating.frames {
                    self.stats.forwards += 1;
                    self.tell_engine(FromHost::ForwardFrame(frame));
                }
            }
            None => {
                // Without its state nothing can be said to the peer: its next segment meets an RST.
                self.stats.handoffs_lost += 1;
                self.released(handle);
                let error = Some(HostError::OffloadRefused);
                self.tell(Notice::Closed { handle, error });
            }
            Some(state) => {
                tracing::warn!(tuple = ?offloaded.tuple, %status, "the target refused a connection");
                self.stats.initiates_refused += 1;
                self.take_back(now, handle, &state, *initiating);
            }
        }
    }

    /// The connection has ended, and the target has let go of it.
    pub(super) fn released(&mut self, handle: OffloadHandle) {
        if let Some(offloaded) = self.offloaded.remove(&handle) {
            self.owners.remove(&offloaded.tuple);
        }
    }

    /// A refused connection lives on in the host, or ends with an RST if its client cannot use it there.
    fn take_back(
        &mut self,
        now: Instant,
        handle: OffloadHandle,
        state: &ConnectionState,
        initiating: Initiating,
    ) {
        let Some(offloaded) = self.offloaded.remove(&handle) else { return };
        let Initiating { frames, unconsumed, aborted } = initiating;
        if aborted || offloaded.must_offload {
            let error = if aborted { HostError::Aborted } else { HostError::OffloadRefused };
            self.end_state(handle, &offloaded, state, error);
            return;
        }
        match import(to_smoltcp(now), state, self.config.send_buffer, clock::tsval) {
            Ok(imported) => {
                self.stats.imports += 1;
                self.settle(now, handle, offloaded, state, imported, unconsumed);
                for frame in frames {
                    // Verified before it was held.
                    self.receive(now, frame, true);
                }
            }
            Err(error) => {
                tracing::error!(tuple = ?offloaded.tuple, %error, "connection lost on its way back");
                self.stats.handoffs_lost += 1;
                self.end_state(handle, &offloaded, state, HostError::OffloadRefused);
            }
        }
    }

    /// Resets a connection of which only the state is left.
    fn end_state(
        &mut self,
        handle: OffloadHandle,
        offloaded: &Offloaded,
        state: &ConnectionState,
        error: HostError,
    ) {
        self.owners.remove(&offloaded.tuple);
        if let Some(frame) = wire::reset_frame(state, self.config.mac) {
            self.stats.frames_out += 1;
            self.tell_engine(FromHost::Frame(frame));
        }
        self.tell(Notice::Closed { handle, error: Some(error) });
    }

    /// Puts an imported socket among the others, and tells its client that it serves it again.
    fn settle(
        &mut self,
        now: Instant,
        handle: OffloadHandle,
        offloaded: Offloaded,
        state: &ConnectionState,
        imported: Imported,
        unconsumed: usize,
    ) {
        let Offloaded { tuple, client, listener, must_offload, initiating: _ } = offloaded;
        let Imported { mut socket, rest, written, close } = imported;
        configure(&mut socket, &self.config.tcp);
        let undelivered = socket.recv_queue() as u32;
        let fin = u32::from(socket.state() == State::CloseWait);
        let connection = Connection {
            client,
            listener,
            tuple,
            socket: self.sockets.add(socket),
            flow: Flow::restored(state, now),
            // The import has made a buffer of the wire's scale.
            scale_raise: 0,
            must_offload,
            stays: true,
            stage: Stage::Open,
            solicit_at: now,
            send: SendHalf {
                first: state.tcp.delegated.snd_una,
                written,
                answered: 0,
                pending: rest,
                shutdown: close,
            },
            receive: ReceiveHalf {
                first: state.tcp.delegated.rcv_nxt - undelivered - fin,
                read: 0,
                unconsumed,
                closed_told: false,
            },
        };
        self.owners.insert(tuple, Owner::Host(handle));
        self.tell(connection.established(handle, false));
        self.connections.insert(handle, connection);
    }
}
