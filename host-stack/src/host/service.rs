//! Service of connections in the host: progress in smoltcp, reported to their clients.

use alloc::vec::Vec;

use bytes::Bytes;
use offload_engine::{
    chimney::client::OffloadHandle,
    time::{Duration, Instant},
};
use smoltcp::socket::tcp::{self, State};

use super::{
    Host, HostConfig,
    connection::{Connection, Stage, fin_received},
    objects::PathKey,
    offload::OffloadTiming,
    ports::Name,
};
use crate::{
    observer::Flow,
    socket::{HostError, Notice, RECEIVE_CREDIT_BYTES},
};

/// Peer MSS used by smoltcp if the SYN has no MSS option.
const DEFAULT_MSS: u16 = 536;
/// Smallest MSS used by smoltcp.
const REMOTE_MSS_MIN: usize = 48;
/// Bytes of the timestamps option, padded (RFC 7323 appendix A).
const TIMESTAMP_BYTES: usize = 12;

impl Host {
    /// Services every connection in the host once. Returns true if anything was done.
    pub(super) fn serve(&mut self, now: Instant) -> bool {
        let handles = self.connections.keys().copied().collect::<Vec<_>>();
        let mut work = false;
        for handle in handles {
            work |= match self.connections.get(&handle).map(|connection| connection.stage) {
                Some(Stage::Handshake(deadline)) => self.serve_handshake(now, handle, deadline),
                Some(Stage::Open) => self.serve_open(now, handle),
                Some(Stage::Lingering) => self.serve_lingering(now, handle),
                None => false,
            };
        }
        work
    }

    pub(super) fn state_of(&self, connection: &Connection) -> State {
        self.sockets.get::<tcp::Socket<'_>>(connection.socket).state()
    }

    fn serve_handshake(&mut self, now: Instant, handle: OffloadHandle, deadline: Instant) -> bool {
        let Some(connection) = self.connections.get_mut(&handle) else { return false };
        let mut deadline = deadline;
        // The peer's answer may be among the frames that have arrived while the process was stopped.
        if !connection.is_limit_extended
            && let Some(extended) = deadline.extended_if_overdue(now)
        {
            deadline = extended;
            connection.stage = Stage::Handshake(deadline);
            connection.is_limit_extended = true;
        }
        let Some(connection) = self.connections.get(&handle) else { return false };
        let error = match self.state_of(connection) {
            // `hand_over` ran first. A connection still here stays in the host, or is retried for the duration of a
            // handshake at most: the peer is already in ESTABLISHED.
            State::Established | State::CloseWait
                if now >= deadline
                    || self.offload_timing(now, connection) != OffloadTiming::AtOnce =>
            {
                self.announce(now, handle);
                return true;
            }
            State::Closed | State::Listen if connection.flow.syn_received() => HostError::Reset,
            State::Closed => HostError::Refused,
            _ if now < deadline => return self.solicit_next_hop(now, handle),
            _ if connection.flow.syn_sent() => HostError::TimedOut,
            _ => HostError::HostUnreachable,
        };
        self.stats.attempt_fails += 1;
        if connection.listener.is_none() {
            let client = connection.client_id();
            self.ports.fail(handle);
            self.abort_sends(handle);
            self.notify(client, Notice::ConnectFailed { handle, error });
        }
        self.forget(handle);
        true
    }

    /// Announces an established connection that stays in the host.
    fn announce(&mut self, now: Instant, handle: OffloadHandle) {
        let Some(connection) = self.connections.get_mut(&handle) else { return };
        connection.history.opened_at = now;
        self.stats.passive_opens += u64::from(connection.listener.is_some());
        connection.establish();
        let notice = connection.established(handle, false, &self.config);
        let client = connection.client_id();
        self.enter(handle, Stage::Open);
        self.notify(client, notice);
        self.serve_open(now, handle);
    }

    /// Moves a connection to its next stage, and frees its entry in the listener's backlog.
    pub(super) fn enter(&mut self, handle: OffloadHandle, stage: Stage) {
        let Some(connection) = self.connections.get_mut(&handle) else { return };
        let old_stage = core::mem::replace(&mut connection.stage, stage);
        let listener = connection.listener;
        self.release_backlog(listener, old_stage);
        if stage == Stage::Lingering {
            self.ports.release(Name::Connection(handle));
        }
    }

    fn serve_open(&mut self, now: Instant, handle: OffloadHandle) -> bool {
        let answered = self.complete_sends(handle);
        if answered && let Some(connection) = self.connections.get(&handle) {
            let path = PathKey::of(&connection.tuple);
            self.confirm_neighbor(now, &path);
        }
        let forced_retransmit = self.wake_stalled(now, handle);
        forced_retransmit
            | answered
            | self.write(handle)
            | self.deliver(handle)
            | self.detect_end(now, handle)
    }

    /// Completes the lists that the peer has acknowledged.
    pub(super) fn complete_sends(&mut self, handle: OffloadHandle) -> bool {
        let Some(connection) = self.connections.get_mut(&handle) else { return false };
        let socket = self.sockets.get::<tcp::Socket<'_>>(connection.socket);
        let acknowledged = connection.acknowledged(socket);
        let chain = connection.send.take_complete(acknowledged);
        let (work, client) = (!chain.is_empty(), connection.client_id());
        if work {
            self.notify(client, Notice::Sent { handle, chain });
        }
        work
    }

    /// Completes all lists of a connection that has ended, or is about to (CH-SNC-1, -2).
    pub(super) fn abort_sends(&mut self, handle: OffloadHandle) {
        let Some(connection) = self.connections.get_mut(&handle) else { return };
        let socket = self.sockets.get::<tcp::Socket<'_>>(connection.socket);
        let acknowledged = connection.acknowledged(socket);
        let (chain, client) = (connection.send.abort(acknowledged), connection.client_id());
        if !chain.is_empty() {
            self.notify(client, Notice::Sent { handle, chain });
        }
    }

    /// Writes the client's data into the socket, then its FIN.
    fn write(&mut self, handle: OffloadHandle) -> bool {
        let Some(connection) = self.connections.get(&handle) else { return false };
        let tcp = self.tcp_of(connection.client_id());
        let Some(connection) = self.connections.get_mut(&handle) else { return false };
        let socket = self.sockets.get_mut::<tcp::Socket<'_>>(connection.socket);
        let send = &mut connection.send;
        let mut work = socket.may_send() && send.write(socket, connection.flow.snd_max);
        if send.shutdown
            && send.all_written()
            && socket.may_send()
            && needs_no_window(socket, &connection.flow)
        {
            socket.close();
            work = true;
        }
        // smoltcp counts from the last received segment, even if no answer is due. So the timeout is set only while an
        // answer is due, or if keep-alive requires it; never in TIME-WAIT. A segment that acknowledges nothing new does
        // not answer a retransmission: a path may lose all large segments and carry small ones.
        let closing = matches!(socket.state(), State::FinWait1 | State::LastAck | State::Closing);
        let timeout = if closing || socket.send_queue() > 0 {
            let Flow { last_received_at, progressed_at, .. } = connection.flow;
            let idle = connection.idle_before_forced_retransmit().unwrap_or(Duration::ZERO)
                + last_received_at.saturating_since(progressed_at);
            let limit = self.config.retransmission_max();
            limit.map(|time| time.saturating_sub(idle).as_millis() as u64)
        } else if socket.state() != State::TimeWait && tcp.keep_alive_enabled {
            // smoltcp probes at one interval; this is the time until an unanswered connection ends.
            let probes = 1 + u32::from(tcp.keep_alive_probes());
            let unasked = self.tcp_since.saturating_since(connection.flow.last_received_at);
            Some((unasked + tcp.keep_alive_idle() * probes).as_millis() as u64)
        } else {
            None
        };
        socket.set_timeout(timeout.map(smoltcp::time::Duration::from_millis));
        work
    }

    /// Writes lists that were held until earlier ones were sent. Returns true if any were written.
    pub(super) fn write_held(&mut self) -> bool {
        let held = self.connections.iter().filter(|(_, found)| found.send.is_held);
        let held = held.map(|(handle, _)| *handle).collect::<Vec<_>>();
        held.into_iter().fold(false, |work, handle| self.write(handle) | work)
    }

    /// Delivers received data to the client, as far as its credit permits. In TIME-WAIT no more data can arrive, and
    /// smoltcp discards undelivered data at its end. So the client receives all of it, at most one receive buffer
    /// beyond its credit.
    fn deliver(&mut self, handle: OffloadHandle) -> bool {
        let mut work = false;
        while let Some(connection) = self.connections.get_mut(&handle) {
            let socket = self.sockets.get_mut::<tcp::Socket<'_>>(connection.socket);
            let receive = &mut connection.receive;
            let credit = match socket.state() {
                State::TimeWait => usize::MAX,
                _ => RECEIVE_CREDIT_BYTES.saturating_sub(receive.unconsumed),
            };
            if credit == 0 || !socket.can_recv() {
                break;
            }
            let taken = socket.recv(|data| {
                let count = data.len().min(credit);
                (count, Bytes::copy_from_slice(&data[..count]))
            });
            let Ok(data) = taken else { break };
            receive.read += data.len() as u64;
            receive.unconsumed += data.len();
            work = true;
            let client = connection.client_id();
            self.notify(client, Notice::Data { handle, data });
        }
        work
    }

    /// Detects the peer's FIN, and the end of the connection.
    fn detect_end(&mut self, now: Instant, handle: OffloadHandle) -> bool {
        let Some(connection) = self.connections.get_mut(&handle) else { return false };
        let socket = self.sockets.get::<tcp::Socket<'_>>(connection.socket);
        let (state, client) = (socket.state(), connection.client_id());
        connection.receive.fin_received |= fin_received(state);
        if state == State::Closed {
            // Both FINs are acknowledged. An RST in answer to a later duplicate has no effect.
            let flow = &connection.flow;
            let in_order = connection.ended_in_order();
            if in_order && socket.recv_queue() > 0 {
                // Data before the FIN are delivered first.
                return false;
            }
            let tell_fin = in_order && !connection.receive.closed_notified;
            // smoltcp clears the remote endpoint after the peer's RST, or our last ACK. If it is still set, or an RST
            // was sent, the connection timed out.
            let timed_out = flow.reset_sent || socket.remote_endpoint().is_some();
            let error = match (in_order, timed_out) {
                (true, _) => None,
                (false, true) => Some(HostError::RetransmissionLimit),
                (false, false) => Some(HostError::Reset),
            };
            if tell_fin {
                self.notify(client, Notice::PeerClosed { handle });
            }
            self.abort_sends(handle);
            self.notify(client, Notice::Closed { handle, error });
            match in_order {
                true => self.retire(now, handle, false),
                false => self.forget(handle),
            }
            return true;
        }
        let mut work = false;
        if !connection.send.shut_down_notified && connection.fin_acknowledged() {
            connection.send.shut_down_notified = true;
            work = true;
            self.notify(client, Notice::ShutDown { handle });
        }
        let Some(connection) = self.connections.get_mut(&handle) else { return work };
        let socket = self.sockets.get::<tcp::Socket<'_>>(connection.socket);
        if fin_received(state) && socket.recv_queue() == 0 && !connection.receive.closed_notified {
            connection.receive.closed_notified = true;
            work = true;
            self.notify(client, Notice::PeerClosed { handle });
        }
        let Some(connection) = self.connections.get_mut(&handle) else { return work };
        // A client that shuts down its node at this notice must not prevent the delayed acknowledgment of the FIN.
        let socket = self.sockets.get::<tcp::Socket<'_>>(connection.socket);
        let acknowledged = connection.flow.acknowledged == connection.rcv_nxt(socket);
        if state == State::TimeWait && connection.receive.closed_notified && acknowledged {
            self.complete_sends(handle);
            self.notify(client, Notice::Closed { handle, error: None });
            self.retire(now, handle, true);
            return true;
        }
        work
    }

    fn serve_lingering(&mut self, now: Instant, handle: OffloadHandle) -> bool {
        let Some(connection) = self.connections.get(&handle) else { return false };
        let socket = self.sockets.get::<tcp::Socket<'_>>(connection.socket);
        // Closed with a remote endpoint: an RST is pending.
        if socket.state() == State::Closed && socket.remote_endpoint().is_none() {
            match connection.ended_in_order() && !connection.flow.reset_sent {
                true => self.retire(now, handle, false),
                false => self.forget(handle),
            }
            return true;
        }
        false
    }
}

/// True if all queued data may be sent without a wider window. In LAST-ACK smoltcp takes a segment that acknowledges
/// nothing new for an old one and ignores its window, so data would stall. In FIN-WAIT-1 it reads every window.
fn needs_no_window(socket: &tcp::Socket<'_>, flow: &Flow) -> bool {
    socket.state() != State::CloseWait || socket.send_queue() <= flow.send_window.snd_wnd as usize
}

impl Connection {
    /// Starts byte counting: both initial sequence numbers are known.
    pub(super) fn establish(&mut self) {
        if let (Some(iss), Some(irs)) = (self.flow.iss(), self.flow.irs()) {
            self.send.first = iss + 1;
            self.receive.first = irs + 1;
        }
    }

    /// True if both FINs are acknowledged, and no RST arrived before.
    fn ended_in_order(&self) -> bool {
        self.receive.fin_received && self.fin_acknowledged() && !self.flow.reset_received
    }

    pub(super) fn established(
        &self,
        handle: OffloadHandle,
        offloading: bool,
        config: &HostConfig,
    ) -> Notice {
        Notice::Established {
            handle,
            listener: self.listener,
            local: self.tuple.local(),
            remote: self.tuple.remote(),
            offloading,
            mss: self.mss(config),
        }
    }

    /// Size of the largest segment that smoltcp sends, in bytes.
    pub(super) fn mss(&self, config: &HostConfig) -> usize {
        let agreed = self.flow.agreed();
        let remote = agreed.and_then(|agreed| agreed.remote_mss).filter(|mss| *mss > 0);
        let remote = usize::from(remote.unwrap_or(DEFAULT_MSS)).max(REMOTE_MSS_MIN);
        let headers = if self.tuple.local().is_ipv4() { 40 } else { 60 };
        let timestamps = agreed.is_some_and(|agreed| agreed.timestamps);
        let options = if timestamps { TIMESTAMP_BYTES } else { 0 };
        config.mtu.saturating_sub(headers).min(remote).saturating_sub(options)
    }

    /// True if our FIN is acknowledged.
    fn fin_acknowledged(&self) -> bool {
        self.send.shutdown && self.flow.snd_una == self.send.end() + 1
    }
}
