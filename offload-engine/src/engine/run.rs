//! One iteration of the run loop, step by step: what is received goes to its connection or to the host, timers run,
//! and each connection that was touched has a turn.

use bytes::Bytes;

use super::{
    Clients, Engine, FROM_HOST_MESSAGES_MAX, TRANSMIT_SEGMENTS_MAX,
    adapter::Counted,
    connections::HeldFrames,
    port::{FromHost, TO_HOST_FRAMES_MAX, ToHost},
    upcalls::{Raised, deliver_backlog, raise_events, receive},
};
use crate::{
    chimney::tree::TargetContext,
    frame::{IcmpError, SACK_BLOCKS_MAX, TcpFrame, classify, classify_fragment, classify_icmp},
    link::{RxChecksum, RxFrame, TxOffload},
    tcp::{SackBlock, SeqNum},
    time::Instant,
};

const NO_SACK: [SackBlock; SACK_BLOCKS_MAX] =
    [SackBlock { start: SeqNum(0), end: SeqNum(0) }; SACK_BLOCKS_MAX];

/// Bytes of a frame that may be a question. A small one that is not costs a poll more for its batch.
const LONE_FRAME_BYTES_MAX: usize = 1024;

impl Engine {
    /// One iteration. Returns whether there was anything to do; if not, the caller may sleep until
    /// [`Engine::poll_at`], a readable link or a rung doorbell.
    ///
    /// # Errors
    /// The link is gone.
    pub fn poll(&mut self, now: Instant, clients: &mut Clients) -> std::io::Result<bool> {
        // The next batch begins with the next poll.
        self.is_ahead = true;
        self.poll_first(now, clients)
    }

    /// As [`Engine::poll`], for a caller that polls again soon: the iteration ends behind the first frame of a batch,
    /// before the look for a second one, if the frame is small and what it asks for is an answer. So an answer that
    /// is given at once goes out sooner, by [`Engine::flush`], and carries the acknowledgement. The next poll goes on
    /// with the batch.
    ///
    /// # Errors
    /// The link is gone.
    pub fn poll_first(&mut self, now: Instant, clients: &mut Clients) -> std::io::Result<bool> {
        let mut busy = self.resend_stalled(now);
        busy |= self.take_held_trees(now, clients);
        busy |= self.take_from_host(now, clients);
        busy |= self.take_from_link(now, clients)?;
        if self.is_ahead {
            self.flush_link(now);
            return Ok(true);
        }
        busy |= self.take_passed(now, clients);
        busy |= self.run_timers(now);
        busy |= clients.poll(now, &mut self.connections);
        if !self.borrowed.is_empty() {
            busy |= self.take_loans_back();
        }
        busy |= self.flush(now, clients);
        Ok(busy)
    }

    /// The last iteration has ended behind the first frame of its batch.
    pub const fn is_ahead(&self) -> bool {
        self.is_ahead
    }

    /// When [`Engine::poll`] has to be called again though nothing has happened.
    pub fn poll_at(&self, clients: &Clients) -> Option<Instant> {
        [self.connections.next_timer(), self.link.poll_at(), clients.poll_at()]
            .into_iter()
            .flatten()
            .min()
    }

    /// Drains the connections that were touched: events up, segments out. Part of every
    /// [`Engine::poll`]; call it after acting on [`Engine::connections`] from outside, so that what
    /// was posted leaves at once. Returns whether there was anything to do.
    pub fn flush(&mut self, now: Instant, clients: &mut Clients) -> bool {
        // A connection that is not through goes to the end of the queue; it has its next turn in the
        // next iteration, when frames have been received.
        let turns = self.connections.ready_len();
        for _ in 0..turns {
            let Some(slot) = self.connections.next_ready() else { break };
            self.drain(now, slot, clients);
            self.trace(now, slot);
        }
        self.flush_link(now);
        // A full link: another turn of the loop sends nothing until it is writable.
        turns > 0 && !self.is_stalled()
    }

    /// The end of a batch of transmits.
    #[inline]
    fn flush_link(&mut self, now: Instant) {
        if core::mem::take(&mut self.unflushed) {
            self.link.flush(now);
        }
    }

    fn take_from_host(&mut self, now: Instant, clients: &mut Clients) -> bool {
        if let Some(tree) = self.lent_tree.take() {
            self.terminate_unlent(now, tree, clients);
            if self.lent_tree.is_some() {
                return false;
            }
        }
        // Mostly so: a look is cheaper than a try.
        if self.from_host.is_empty() {
            return false;
        }
        for taken in 0..FROM_HOST_MESSAGES_MAX {
            let Ok(message) = self.from_host.try_recv() else { return taken > 0 };
            match message {
                FromHost::Frame(data) => {
                    self.stats.tx_from_host += 1;
                    let comment = self.hand_over_note(&data);
                    self.transmit_or_stall(now, TxOffload::default(), &data, &[], comment);
                }
                FromHost::Initiate(tree) => self.take_initiate(now, tree, clients),
                FromHost::Query(tree) => self.query(now, tree, clients),
                FromHost::Update(tree) => self.update(now, tree),
                FromHost::Invalidate(tree) => self.invalidate(now, tree, clients),
                FromHost::Terminate(tree) => {
                    self.terminate_unlent(now, tree, clients);
                    if self.lent_tree.is_some() {
                        return true;
                    }
                }
                FromHost::Forward(segment) => self.forward(now, segment, clients),
                FromHost::Forwarded(connection) => self.take_early(now, connection, clients),
                FromHost::Leave(client) => self.leave(now, client, clients),
            }
        }
        true
    }

    pub(super) fn notify_host(&self, message: ToHost) {
        // A host stack that is gone needs no telling.
        let _ = self.to_host.send(message);
        self.host_doorbell.ring();
    }

    /// A batch of frames, at most [`EngineConfig::rx_batch_frames_max`](super::EngineConfig) of them and little more
    /// than `rx_batch_bytes_max` bytes. Each is processed right after it was read, while the cache holds it, and its
    /// buffer is the next one's: so the batch never takes more of the cache than [`RX_BUFFERS`].
    fn take_from_link(&mut self, now: Instant, clients: &mut Clients) -> std::io::Result<bool> {
        let may_end_early = !core::mem::take(&mut self.is_ahead);
        let mut buffers = core::mem::take(&mut self.batch);
        let to_host_before = self.stats.rx_to_host;
        let (mut frames, mut bytes) = (0, 0);
        let received = loop {
            buffers.clear();
            let received = self.link.receive(now, &mut buffers);
            buffers.lend();
            for frame in buffers.frames() {
                bytes += frame.data.len();
                self.take_frame(now, &frame, clients);
            }
            frames += buffers.len();
            let is_full = buffers.is_full();
            buffers.give_back();
            self.is_ahead = may_end_early && frames == 1 && self.awaits_answer(bytes);
            if self.is_ahead {
                break Ok(true);
            }
            let is_over = frames >= self.config.rx_batch_frames_max
                || bytes >= self.config.rx_batch_bytes_max
                || !is_full;
            match received {
                Ok(_) if !is_over => {}
                Ok(_) => break Ok(frames > 0),
                // A device that has gone reports it again after the frames before.
                Err(_) if frames > 0 => break Ok(true),
                Err(error) => break Err(error),
            }
        };
        self.batch = buffers;
        if self.stats.rx_to_host != to_host_before {
            self.host_doorbell.ring();
        }
        received
    }

    /// Whether the batch may be interrupted behind its only frame, of `bytes`: nothing is due for its connection until
    /// the client has answered.
    fn awaits_answer(&mut self, bytes: usize) -> bool {
        bytes <= LONE_FRAME_BYTES_MAX
            && self
                .connections
                .only_ready()
                .is_some_and(|offloaded| offloaded.tcp.only_delayed_ack_pending())
    }

    /// The switch: a segment of an offloaded connection to that connection, all else to the host.
    pub(super) fn take_frame(&mut self, now: Instant, frame: &RxFrame<'_>, clients: &mut Clients) {
        // What a switch floods is another station's.
        let ours = frame.data.first_chunk().is_some_and(|to| self.objects.is_ours(to));
        let tcp = if ours { classify(frame.data) } else { None };
        let found = tcp.as_ref().and_then(|tcp| Some((tcp, self.connections.find(&tcp.flow)?)));
        let Some((tcp, slot)) = found else {
            if ours && self.pass_on(frame) {
                return;
            }
            if ours {
                self.take_icmp(now, frame.data);
                self.note_fragment(now, frame.data);
            }
            self.frame_to_host(frame);
            return;
        };
        let counted = received(tcp, frame.gso_size);
        let Self { connections, statistics, stats, .. } = self;
        let Some(offloaded) = connections.slot(slot) else { return };
        let statistics = &mut statistics[usize::from(tcp.is_ipv6())];
        statistics.received(counted);
        if !offloaded.accepts(tcp.vlan) {
            statistics.discarded(counted);
            stats.rx_vlan_dropped += 1;
            return;
        }
        statistics.delivered(counted);
        stats.rx_segments += 1;
        if frame.checksum == RxChecksum::Unverified && !tcp.checksum_is_valid() {
            statistics.failed(counted);
            stats.rx_checksum_errors += 1;
            return;
        }
        if offloaded.tcp.is_closed() {
            // CH §9.1: it ends as soon as its client has taken the rest.
            self.frame_to_host(frame);
            return;
        }
        if let Some(early) = &mut offloaded.early {
            match early.push(frame.data) {
                true => stats.rx_held += 1,
                false => stats.rx_held_dropped += 1,
            }
            return;
        }
        let stopped = self.take_segment(now, slot, tcp, frame.gso_size, frame.buffer, clients);
        if stopped {
            self.hold(slot, frame.data);
        }
    }

    /// All that is older has been forwarded: what has come meanwhile, in its order.
    fn take_early(&mut self, now: Instant, connection: TargetContext, clients: &mut Clients) {
        let Some(slot) = self.connections.find_context(connection) else { return };
        let early = self.connections.slot(slot).and_then(|found| found.early.take());
        for frame in early.into_iter().flat_map(HeldFrames::into_frames) {
            let stopped = self.connections.slot(slot).is_none_or(|found| found.tcp.is_stopped());
            if !stopped && let Some(tcp) = classify(&frame) {
                self.take_segment(now, slot, &tcp, 0, None, clients);
            }
            self.hold(slot, &frame);
        }
    }

    /// CH §9.3: the segment that stopped a connection, and all that come behind it, wait for the host.
    fn hold(&mut self, slot: usize, frame: &[u8]) {
        let offloaded = self.connections.slot(slot);
        let Some(offloaded) = offloaded.filter(|offloaded| offloaded.tcp.is_stopped()) else {
            return;
        };
        match offloaded.held.push(frame) {
            true => self.stats.rx_held += 1,
            false => self.stats.rx_held_dropped += 1,
        }
    }

    /// An ICMP error about an offloaded connection concerns it too; the frame is the host's all the same
    /// (CH §9.1, RFC 9293 MUST-54).
    fn take_icmp(&mut self, now: Instant, frame: &[u8]) {
        let Some(IcmpError { flow, vlan, error }) = classify_icmp(frame) else { return };
        let Some(slot) = self.connections.find(&flow) else { return };
        let Some(offloaded) = self.connections.slot(slot) else { return };
        if !offloaded.accepts(vlan) {
            return;
        }
        let before = offloaded.tcp.path_mtu();
        if !offloaded.tcp.handle_path_error(now, &error) {
            self.stats.rx_path_errors_ignored += 1;
            return;
        }
        self.stats.rx_path_errors += 1;
        let (handle, path_mtu) = (offloaded.handle, offloaded.tcp.path_mtu());
        self.connections.mark_ready(slot);
        if path_mtu < before {
            self.notify_host(ToHost::PathMtu { handle, path_mtu });
        }
    }

    /// A fragment is the host's (CH §9.1). Many of them are a reason to upload their connection (HighFragmentation).
    fn note_fragment(&mut self, now: Instant, frame: &[u8]) {
        let Some(flow) = classify_fragment(frame) else { return };
        let Some(slot) = self.connections.find(&flow) else { return };
        if let Some(offloaded) = self.connections.slot(slot) {
            self.stats.rx_fragments += 1;
            offloaded.tcp.note_fragment(now);
            self.connections.mark_ready(slot);
        }
    }

    fn frame_to_host(&mut self, frame: &RxFrame<'_>) {
        if self.to_host.len() >= TO_HOST_FRAMES_MAX {
            self.stats.rx_to_host_dropped += 1;
            return;
        }
        self.stats.rx_to_host += 1;
        // Rung once per batch, by the caller.
        let _ = self.to_host.send(ToHost::Frame {
            data: frame.data.to_vec(),
            checksum_valid: frame.checksum == RxChecksum::Valid,
        });
    }

    /// A segment to its connection. Returns whether that has stopped.
    pub(super) fn take_segment(
        &mut self,
        now: Instant,
        slot: usize,
        frame: &TcpFrame<'_>,
        gso_size: usize,
        buffer: Option<&Bytes>,
        clients: &mut Clients,
    ) -> bool {
        let Some(offloaded) = self.connections.slot(slot) else { return false };
        let mut sack = NO_SACK;
        let segment = frame.segment(gso_size, &mut sack);
        let established = offloaded.tcp.phase().is_established();
        let (acked, received) = offloaded.tcp.bytes_moved();
        receive(now, offloaded, &segment, buffer, clients.of(offloaded.client));
        let (acked_now, received_now) = offloaded.tcp.bytes_moved();
        // CH §9.7: what we sent has arrived, be it data or an acknowledgement that data answers.
        if acked_now != acked || (received_now != received && offloaded.spoken) {
            offloaded.progress = true;
            offloaded.spoken = false;
        }
        let stopped = offloaded.tcp.is_stopped();
        if established && offloaded.tcp.is_closed() {
            self.statistics(frame.is_ipv6()).reset_established();
        }
        self.connections.mark_ready(slot);
        stopped
    }

    fn run_timers(&mut self, now: Instant) -> bool {
        let mut busy = false;
        while let Some(slot) = self.connections.pop_timer(now) {
            if let Some(offloaded) = self.connections.slot(slot) {
                offloaded.tcp.handle_timeout(now);
            }
            self.connections.mark_ready(slot);
            self.connections.schedule(slot);
            busy = true;
        }
        busy
    }

    /// One connection's turn: events up, room to the client, segments out.
    fn drain(&mut self, now: Instant, slot: usize, clients: &mut Clients) {
        let stalled = self.is_stalled();
        let Some(offloaded) = self.connections.slot(slot) else { return };
        let client = clients.of(offloaded.client);
        let path = offloaded.path;
        if core::mem::take(&mut offloaded.progress) {
            self.objects.confirm(now, path);
        }
        // An answer is sent before the completion of the client's earlier sends is reported.
        let mut later = !stalled && offloaded.tcp.only_small_send_pending();
        if offloaded.tcp.take_cached_changed() {
            self.renew_headers(now, slot);
        }
        let mut asked = false;
        // Once in a turn, whether there is room or not, for a client that was asked to act on the connection.
        // Sending consumes queue and window equally, so new room comes with received data only.
        let mut offer = true;
        for _ in 0..TRANSMIT_SEGMENTS_MAX {
            let Some(offloaded) = self.connections.slot(slot) else { return };
            let raised = match later {
                true => Raised::Nothing,
                false => raise_events(now, offloaded, client),
            };
            if raised != Raised::Nothing {
                self.notify_retrieves(slot);
            }
            if raised == Raised::End {
                self.release(now, slot);
                return;
            }
            let stalled = self.is_stalled();
            let Some(offloaded) = self.connections.slot(slot) else { return };
            let waits = offloaded.tcp.backlog().is_some();
            if waits {
                deliver_backlog(now, offloaded, client);
            }
            let news = waits || raised == Raised::Some;
            if core::mem::take(&mut offer) || news && offloaded.tcp.send_room() > 0 {
                client.send_room(&mut offloaded.io(now));
            }
            if stalled {
                break;
            }
            let transmit = offloaded.poll_transmit(now);
            let was_later = core::mem::take(&mut later);
            let Some((transmit, reset)) = transmit else {
                // Or the client takes again what it has refused.
                if was_later || offloaded.tcp.may_deliver() {
                    continue;
                }
                let raised = raise_events(now, offloaded, client);
                if raised != Raised::Nothing {
                    self.notify_retrieves(slot);
                }
                match raised {
                    Raised::End => self.release(now, slot),
                    Raised::Nothing | Raised::Some => self.connections.schedule(slot),
                }
                return;
            };
            if !core::mem::replace(&mut asked, true) {
                self.ask_reachability(now, path);
            }
            self.transmit_segment(now, slot, &transmit, reset);
        }
        self.connections.schedule(slot);
        self.connections.mark_ready(slot);
    }
}

/// What a received frame counts for.
fn received(frame: &TcpFrame<'_>, gso_size: usize) -> Counted {
    let (header_octets, payload_octets) = frame.octets();
    let segments = match gso_size {
        0 => 1,
        size => payload_octets.div_ceil(size).max(1),
    };
    Counted { segments, header_octets, payload_octets }
}
