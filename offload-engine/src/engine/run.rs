//! One iteration of the run loop. Received frames are passed to their connection or to the host, timers run, and each
//! touched connection is processed.

use bytes::Bytes;

use super::{
    Clients, Engine, FROM_HOST_MESSAGES_MAX, TRANSMIT_SEGMENTS_MAX,
    adapter::FrameCount,
    connections::HeldFrames,
    port::{FromHost, TO_HOST_FRAMES_MAX, ToHost},
    upcalls::{EventOutcome, deliver_backlog, raise_events, receive},
};
use crate::{
    chimney::tree::TargetContext,
    frame::{IcmpError, SACK_BLOCKS_MAX, TcpFrame, classify, classify_fragment, classify_icmp},
    link::{Link, RxChecksum, RxFrame, TxOffload},
    tcp::{SackBlock, SeqNum},
    time::Instant,
};

const NO_SACK: [SackBlock; SACK_BLOCKS_MAX] =
    [SackBlock { start: SeqNum(0), end: SeqNum(0) }; SACK_BLOCKS_MAX];

/// Connections that get a turn to send in one iteration, after those that are ready.
const WAITING_CONNECTIONS_MAX: usize = 64;

/// Bytes of a frame that may be a request. A small frame that is not a request costs its batch one more poll.
const LONE_FRAME_BYTES_MAX: usize = 1024;

impl Engine {
    /// Runs one iteration. Returns true if there was work. If not, the caller may sleep until [`Engine::poll_at`], a
    /// readable link or a rung doorbell.
    ///
    /// # Errors
    /// The device of the link was removed.
    pub fn poll(&mut self, now: Instant, clients: &mut Clients) -> std::io::Result<bool> {
        // The next batch starts with the next poll.
        self.has_batch_left = true;
        self.poll_first_frame(now, clients)
    }

    /// Variant of [`Engine::poll`] for a caller that polls again soon. The iteration ends after the first frame of a
    /// batch if that frame is small and requires a response from the client. [`Engine::flush`] then sends an immediate
    /// response sooner, with the acknowledgment. The next poll continues the batch.
    ///
    /// # Errors
    /// The device of the link was removed.
    pub fn poll_first_frame(
        &mut self,
        now: Instant,
        clients: &mut Clients,
    ) -> std::io::Result<bool> {
        let mut busy = self.resend_stalled(now);
        busy |= self.process_delayed_trees(now, clients);
        busy |= self.take_from_host(now, clients);
        busy |= self.take_from_link(now, clients)?;
        if self.has_batch_left {
            self.flush_link(now);
            return Ok(true);
        }
        busy |= self.process_passed(now, clients);
        busy |= self.run_timers(now);
        busy |= clients.poll(now, &mut self.connections);
        if !self.borrowed.is_empty() {
            busy |= self.release_loans();
        }
        busy |= self.flush(now, clients);
        Ok(busy)
    }

    /// True if the last iteration ended after the first frame of its batch.
    pub const fn has_batch_left(&self) -> bool {
        self.has_batch_left
    }

    /// Time at which [`Engine::poll`] must be called again without another event.
    pub fn poll_at(&self, clients: &Clients) -> Option<Instant> {
        [self.connections.next_timer(), self.link.poll_at(), clients.poll_at()]
            .into_iter()
            .flatten()
            .min()
    }

    /// Processes the connections that were touched: delivers events and transmits segments. Part of every
    /// [`Engine::poll`]. Call it after using [`Engine::connections`] from outside, so that posted data is sent
    /// immediately. Returns true if there was work.
    pub fn flush(&mut self, now: Instant, clients: &mut Clients) -> bool {
        // An unfinished connection moves to the end of the queue. It is processed again in the next iteration, after
        // frames were received.
        let mut turns = self.connections.ready_len();
        let mut busy = turns > 0;
        let mut waiting_left = WAITING_CONNECTIONS_MAX;
        loop {
            for _ in 0..turns {
                let Some(slot) = self.connections.next_ready() else { break };
                self.drain(now, slot, clients);
                self.trace(now, slot);
            }
            // With a full link another connection sends nothing until the link is writable.
            if waiting_left == 0 || self.is_stalled() || !self.connections.start_turn() {
                break;
            }
            (turns, busy, waiting_left) = (1, true, waiting_left - 1);
        }
        self.flush_link(now);
        busy && !self.is_stalled()
    }

    /// Ends a batch of transmits.
    #[inline]
    fn flush_link(&mut self, now: Instant) {
        if core::mem::take(&mut self.unflushed) {
            self.link.flush(now);
        }
    }

    fn take_from_host(&mut self, now: Instant, clients: &mut Clients) -> bool {
        if let Some(tree) = self.delayed_terminate.take() {
            self.terminate_or_delay(now, tree, clients);
            if self.delayed_terminate.is_some() {
                return false;
            }
        }
        // The usual case, and this check is cheaper than `try_recv`.
        if self.from_host.is_empty() {
            return false;
        }
        for taken in 0..FROM_HOST_MESSAGES_MAX {
            let Ok(message) = self.from_host.try_recv() else { return taken > 0 };
            match message {
                FromHost::Frame(data) => {
                    self.stats.tx_from_host += 1;
                    let comment = self.hand_over_comment(&data);
                    self.transmit_or_stall(now, TxOffload::default(), &data, &[], comment);
                }
                FromHost::Initiate(tree) => self.take_initiate(now, tree, clients),
                FromHost::Query(tree) => self.query(now, tree, clients),
                FromHost::Update(tree) => self.update(now, tree),
                FromHost::Invalidate(tree) => self.invalidate(now, tree, clients),
                FromHost::Terminate(tree) => {
                    self.terminate_or_delay(now, tree, clients);
                    if self.delayed_terminate.is_some() {
                        return true;
                    }
                }
                FromHost::Forward(segment) => self.forward(now, segment, clients),
                FromHost::Forwarded(connection) => self.process_early(now, connection, clients),
                FromHost::RemoveClient(client) => self.remove_client(now, client, clients),
            }
        }
        true
    }

    pub(super) fn notify_host(&self, message: ToHost) {
        // A host stack that was dropped needs no notification.
        let _ = self.to_host.send(message);
        self.host_doorbell.ring();
    }

    /// Receives a batch of at most [`EngineConfig::rx_batch_frames_max`](super::EngineConfig) frames and little more
    /// than `rx_batch_bytes_max` bytes. Each frame is processed right after it was read, while it is cached, and the
    /// next frame reuses its buffer. So the batch never occupies more of the cache than [`RX_BUFFERS`].
    fn take_from_link(&mut self, now: Instant, clients: &mut Clients) -> std::io::Result<bool> {
        let may_end_early = !core::mem::take(&mut self.has_batch_left);
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
            buffers.return_lent();
            self.has_batch_left = may_end_early && frames == 1 && self.awaits_answer(bytes);
            if self.has_batch_left {
                break Ok(true);
            }
            let is_over = frames >= self.config.rx_batch_frames_max
                || bytes >= self.config.rx_batch_bytes_max
                || !is_full;
            match received {
                Ok(_) if !is_over => {}
                Ok(_) => break Ok(frames > 0),
                // A removed device reports the error again after the frames received before.
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

    /// True if the batch may be interrupted after its only frame, of `bytes`: its connection has nothing to send until
    /// the client has responded.
    fn awaits_answer(&mut self, bytes: usize) -> bool {
        bytes <= LONE_FRAME_BYTES_MAX
            && self
                .connections
                .only_ready()
                .is_some_and(|offloaded| offloaded.tcp.only_delayed_ack_pending())
    }

    /// Demultiplexes a frame: segments of an offloaded connection to that connection, and other frames to the host.
    pub(super) fn take_frame(&mut self, now: Instant, frame: &RxFrame<'_>, clients: &mut Clients) {
        // A frame flooded by a switch is for another station.
        let ours = frame.data.first_chunk().is_some_and(|to| self.objects.is_ours(to));
        let tcp = if ours { classify(frame.data) } else { None };
        let found = tcp.as_ref().and_then(|tcp| Some((tcp, self.connections.find(&tcp.flow)?)));
        let Some((tcp, slot)) = found else {
            if ours && self.pass_to_owner(frame) {
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
            // The connection is released as soon as its client has consumed the rest (CH §9.1).
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

    /// Processes the frames kept while the host forwarded older ones, in order.
    fn process_early(&mut self, now: Instant, connection: TargetContext, clients: &mut Clients) {
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

    /// Keeps the segment that stopped a connection, and all later ones, for the host (CH §9.3).
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

    /// Applies an ICMP error to its offloaded connection. The caller passes the frame to the host as well (CH §9.1, RFC
    /// 9293 MUST-54).
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

    /// Counts a fragment, which is passed to the host (CH §9.1). Many fragments are a reason for an upload
    /// (HighFragmentation).
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
        // The caller rings the host's doorbell once per batch.
        let _ = self.to_host.send(ToHost::Frame {
            data: frame.data.to_vec(),
            checksum_valid: frame.checksum == RxChecksum::Valid,
        });
    }

    /// Passes a segment to its connection. Returns true if the connection has stopped.
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
        // The neighbor is reachable if a sent segment arrived: data that is acknowledged now, or a segment to which the
        // received data responds (CH §9.7).
        if acked_now != acked || (received_now != received && offloaded.sent_since_data) {
            offloaded.progress = true;
            offloaded.sent_since_data = false;
        }
        let (stopped, ready) = (offloaded.tcp.is_stopped(), offloaded.ready);
        if established && offloaded.tcp.is_closed() {
            self.statistics(frame.is_ipv6()).reset_established();
        }
        if acked_now != acked {
            self.connections.count_in_flight(slot);
        }
        if !ready {
            self.connections.mark_ready(slot);
        }
        stopped
    }

    fn run_timers(&mut self, now: Instant) -> bool {
        let mut busy = false;
        while let Some(slot) = self.connections.pop_timer(now) {
            if let Some(offloaded) = self.connections.slot(slot) {
                offloaded.tcp.handle_timeout(now);
            }
            self.connections.count_in_flight(slot);
            self.connections.mark_ready(slot);
            self.connections.schedule(slot);
            busy = true;
        }
        busy
    }

    /// Processes one connection: delivers events, offers send room to the client, transmits segments.
    fn drain(&mut self, now: Instant, slot: usize, clients: &mut Clients) {
        let stalled = self.is_stalled();
        let Some(offloaded) = self.connections.slot(slot) else { return };
        let client = clients.of(offloaded.client);
        let path = offloaded.path;
        if core::mem::take(&mut offloaded.progress) {
            self.objects.confirm(now, path);
        }
        // A response is sent before the completion of the client's earlier sends is reported.
        let mut later = !stalled && offloaded.tcp.only_small_send_pending();
        if offloaded.tcp.take_cached_changed() {
            self.renew_headers(now, slot);
        }
        let mut queried = false;
        // Offered once per call, with or without room, for a client that was requested to act on the connection.
        // Sending consumes queue and window equally, so new room results from received data only.
        let mut offer = true;
        for _ in 0..TRANSMIT_SEGMENTS_MAX {
            let stalled = self.is_stalled();
            let Some(mut offloaded) = self.connections.slot(slot) else { return };
            let raised = match later {
                true => EventOutcome::None,
                false => raise_events(now, offloaded, client),
            };
            if raised != EventOutcome::None {
                self.notify_retrieves(slot);
                if raised == EventOutcome::Closed {
                    self.release(now, slot);
                    return;
                }
                let Some(found) = self.connections.slot(slot) else { return };
                offloaded = found;
            }
            let waits = offloaded.tcp.backlog().is_some();
            if waits {
                deliver_backlog(now, offloaded, client);
            }
            let news = waits || raised == EventOutcome::Raised;
            if core::mem::take(&mut offer) || news && offloaded.tcp.send_room() > 0 {
                client.send_room(&mut offloaded.io(now));
            }
            if stalled {
                break;
            }
            let new_data = self.connections.may_send(slot);
            let Some(offloaded) = self.connections.slot(slot) else { return };
            let transmit = offloaded.poll_transmit(now, new_data);
            let was_later = core::mem::take(&mut later);
            let Some((transmit, reset)) = transmit else {
                // Or the client accepts data again that it refused.
                if was_later || offloaded.tcp.may_deliver() {
                    continue;
                }
                let raised = raise_events(now, offloaded, client);
                if raised != EventOutcome::None {
                    self.notify_retrieves(slot);
                }
                match raised {
                    EventOutcome::Closed => self.release(now, slot),
                    EventOutcome::None | EventOutcome::Raised => self.connections.schedule(slot),
                }
                return;
            };
            if !core::mem::replace(&mut queried, true) {
                self.query_reachability(now, path);
            }
            self.transmit_segment(now, slot, &transmit, reset);
            self.connections.count_in_flight(slot);
        }
        self.connections.schedule(slot);
        self.connections.mark_ready(slot);
    }
}

/// Returns the contribution of a received frame to the counters.
fn received(frame: &TcpFrame<'_>, gso_size: usize) -> FrameCount {
    let (header_octets, payload_octets) = frame.octets();
    let segments = match gso_size {
        0 => 1,
        size => payload_octets.div_ceil(size).max(1),
    };
    FrameCount { segments, header_octets, payload_octets }
}
