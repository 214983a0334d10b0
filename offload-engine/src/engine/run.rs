//! One iteration of the run loop, step by step.

use std::{format, string::String, vec::Vec};

use bytes::Bytes;

use super::{
    Clients, Engine, FROM_HOST_MESSAGES_MAX, NodeClient, Stalled, TRANSMIT_SEGMENTS_MAX,
    adapter::Counted,
    connections::{HeldFrames, Offloaded},
    loans::SegmentLender,
    payload::{Payload, Places},
    port::{FromHost, TO_HOST_FRAMES_MAX, ToHost},
};
use crate::{
    chimney::{
        client::{ConnectionEvent, ConnectionIo, OffloadHandle},
        tree::TargetContext,
    },
    frame::{
        HEADER_BYTES_MAX, HeaderTemplate, IcmpError, SACK_BLOCKS_MAX, TcpFrame, classify,
        classify_fragment, classify_icmp,
    },
    link::{
        Lender, RxChecksum, RxFrame, TX_PAYLOAD_SLICES_MAX, TxChecksum, TxFrame, TxOffload,
        TxOutcome, TxSegment,
    },
    memory::Piece,
    nbl::{NblChain, ReceiveChain},
    state::ConnectionState,
    tcp::{self, Consumer, Event, Flags, SackBlock, Segment, SeqNum, Transmit},
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

    fn resend_stalled(&mut self, now: Instant) -> bool {
        let mut busy = false;
        while let Some(Stalled { frame, head_len, offload }) = self.stalled.front() {
            let (head, payload) = frame.split_at(*head_len);
            let payload = [Piece::Private(payload)];
            let (offload, payload) = (*offload, &payload[..]);
            let frame = TxFrame { offload, head, payload, lender: None, comment: None };
            if self.link.transmit(now, &frame) == TxOutcome::Full {
                break;
            }
            self.unflushed = true;
            self.stalled.pop_front();
            busy = true;
        }
        busy
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
            && self.connections.only_ready().is_some_and(|offloaded| offloaded.tcp.awaits_answer())
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
        let mut later = !stalled && offloaded.tcp.has_only_sent();
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

    /// Sends a segment of a connection. `reset`: it ends one that was established. A super-segment that is larger
    /// than what the link segments is cut here: one look at TCP and one record of what is in flight for all of
    /// its frames.
    pub(super) fn transmit_segment(
        &mut self,
        now: Instant,
        slot: usize,
        transmit: &Transmit,
        reset: bool,
    ) {
        let wants_comments = self.link.wants_comments();
        let Self {
            connections,
            link,
            capabilities,
            statistics,
            stalled,
            stats,
            borrowed,
            unflushed,
            ..
        } = self;
        let Some(offloaded) = connections.slot(slot) else { return };
        let statistics = &mut statistics[usize::from(offloaded.headers.is_ipv6())];
        if reset {
            statistics.reset_established();
        }
        let is_invalid = offloaded.tcp.is_invalid();
        let frame_payload_max = offloaded.super_segment_max();
        let Offloaded { tcp, headers, note, spoken, loans, .. } = offloaded;
        *spoken |= !is_invalid;
        let mut payload = Payload::new(tcp.payload(transmit));
        let mut segment = *transmit;
        let mut left = transmit.payload_len;
        loop {
            segment.payload_len = left.min(frame_payload_max);
            left -= segment.payload_len;
            let last = left == 0;
            segment.flags = flags_of_piece(transmit.flags, segment.seq == transmit.seq, last);
            let pieces = match segment.payload_len <= segment.mss {
                true => 1,
                false => segment.payload_len.div_ceil(segment.mss.max(1)),
            };
            let mut header = [0; HEADER_BYTES_MAX];
            let header_len = write_header(headers, &segment, pieces, &mut header);
            let header = &mut header[..header_len];
            let counted = Counted {
                segments: pieces,
                header_octets: header_len - headers.ip_offset(),
                payload_octets: segment.payload_len,
            };
            if is_invalid {
                // CH-INV-2: the RST of an abortive disconnect.
                stats.tx_invalid += 1;
                statistics.sent(&segment, counted, None);
                return;
            }
            let mut places = Places::new();
            let payload = payload.cut(segment.payload_len, &mut places);
            let comment = wants_comments.then(|| comment_of(note.take(), &segment)).flatten();
            let offload = if capabilities.tx_checksum {
                offload_of(headers, &segment, header_len)
            } else {
                headers.finish_checksum(header, payload.iter().copied());
                TxOffload::default()
            };
            let lender = SegmentLender { tcp, transmit, loans };
            let (lender, comment) = (Some(&lender as &dyn Lender), comment.as_deref());
            let frame = TxFrame { offload, head: header, payload, lender, comment };
            // Behind what waits, or it would overtake it.
            let outcome = match stalled.is_empty() {
                true => link.transmit(now, &frame),
                false => TxOutcome::Full,
            };
            if outcome == TxOutcome::Full {
                stats.tx_stalled += 1;
                let copy = Stalled { frame: gather(&frame), head_len: header_len, offload };
                stalled.push_back(copy);
            }
            stats.tx_segments += 1;
            statistics.sent(&segment, counted, Some(outcome));
            if last {
                Self::note_loan(loans, slot, borrowed);
                *unflushed = true;
                return;
            }
            segment.seq += segment.payload_len as u32;
            segment.nbl_context = None;
        }
    }

    /// Sends a frame of the host stack, or keeps it while the link is full.
    fn transmit_or_stall(
        &mut self,
        now: Instant,
        offload: TxOffload,
        head: &[u8],
        payload: &[Piece<'_>],
        comment: Option<&str>,
    ) {
        let frame = TxFrame { offload, head, payload, lender: None, comment };
        // Behind what waits, as above.
        let full = !self.stalled.is_empty();
        self.unflushed = true;
        if full || self.link.transmit(now, &frame) == TxOutcome::Full {
            if self.is_stalled() {
                self.stats.tx_lost += 1;
                return;
            }
            self.stats.tx_stalled += 1;
            self.stalled.push_back(Stalled {
                frame: gather(&frame),
                head_len: head.len(),
                offload,
            });
        }
    }
}

const _: () = assert!(tcp::SLICES_MAX <= TX_PAYLOAD_SLICES_MAX);

fn gather(frame: &TxFrame<'_>) -> Vec<u8> {
    let mut all = Vec::with_capacity(frame.len());
    frame.gather_into(&mut all);
    all
}

/// The flags of one of the frames that a super-segment is cut into, as a link does it: what ends stands on the last,
/// CWR on the first (RFC 3168 §6.1.2).
pub(super) fn flags_of_piece(flags: Flags, first: bool, last: bool) -> Flags {
    let end = if last { Flags::default() } else { Flags::PSH | Flags::FIN };
    let start = if first { Flags::default() } else { Flags::CWR };
    Flags(flags.0 & !(end | start).0)
}

fn offload_of(headers: &HeaderTemplate, transmit: &Transmit, header_len: usize) -> TxOffload {
    let checksum = Some(TxChecksum { start: headers.tcp_offset() as u16, offset: 16 });
    let segment = (transmit.payload_len > transmit.mss).then(|| TxSegment {
        size: transmit.mss as u16,
        header_len: header_len as u16,
        ipv6: headers.is_ipv6(),
    });
    TxOffload { checksum, segment }
}

/// Writes the headers of a segment, or of one that the link cuts into `pieces`. Returns their length.
fn write_header(
    headers: &mut HeaderTemplate,
    transmit: &Transmit,
    pieces: usize,
    header: &mut [u8; HEADER_BYTES_MAX],
) -> usize {
    headers.write(header, &transmit.header(), u16::try_from(pieces).unwrap_or(u16::MAX))
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

/// The comment of a segment in a capture: first after a hand-over, and the list whose bytes it carries.
fn comment_of(hand_over: Option<&str>, transmit: &Transmit) -> Option<String> {
    let again = if transmit.retransmission { ", retransmission" } else { "" };
    match (hand_over, transmit.nbl_context) {
        (None, None) => None,
        (Some(hand_over), None) => Some(hand_over.into()),
        (None, Some(context)) => Some(format!("NBL {context:#x}{again}")),
        (Some(hand_over), Some(context)) => Some(format!("{hand_over}; NBL {context:#x}{again}")),
    }
}

/// A segment through TCP and up to the client.
fn receive(
    now: Instant,
    offloaded: &mut Offloaded,
    segment: &Segment<'_>,
    buffer: Option<&Bytes>,
    client: &mut dyn NodeClient,
) {
    let received = offloaded.tcp.handle_segment(now, segment);
    let data = &segment.payload[received.in_order];
    let mut upcalls = Upcalls { buffer, ..Upcalls::new(now, offloaded, client) };
    offloaded.tcp.deliver(now, data, received.push, &mut upcalls);
}

/// Places and indicates buffered data until it is gone or refused (CH §7.4).
pub(super) fn deliver_backlog(
    now: Instant,
    offloaded: &mut Offloaded,
    client: &mut dyn NodeClient,
) {
    let mut upcalls = Upcalls::new(now, offloaded, client);
    offloaded.tcp.deliver_waiting(now, &mut upcalls);
}

/// A connection's way to its client while bytes are delivered.
struct Upcalls<'c> {
    handle: OffloadHandle,
    now: Instant,
    super_segment_max: usize,
    is_lent: bool,
    /// What holds the frame, if it is lent.
    buffer: Option<&'c Bytes>,
    client: &'c mut dyn NodeClient,
}

impl<'c> Upcalls<'c> {
    fn new(now: Instant, offloaded: &mut Offloaded, client: &'c mut dyn NodeClient) -> Self {
        let super_segment_max = offloaded.super_segment_max();
        let (handle, is_lent) = (offloaded.handle, offloaded.loans.may_be_lent());
        Self { handle, now, super_segment_max, is_lent, buffer: None, client }
    }

    fn io<'a>(&self, connection: &'a mut tcp::Connection) -> ConnectionIo<'a>
    where
        'c: 'a,
    {
        let &Self { handle, now, super_segment_max, is_lent, buffer, client: _ } = self;
        ConnectionIo { handle, now, connection, super_segment_max, is_lent, buffer }
    }
}

impl Consumer for Upcalls<'_> {
    fn receive_complete(&mut self, connection: &mut tcp::Connection, chain: ReceiveChain) {
        let io = &mut self.io(connection);
        self.client.receive_complete(io, chain);
    }

    fn indicate(&mut self, connection: &mut tcp::Connection, data: &[u8], push: bool) -> usize {
        let io = &mut self.io(connection);
        self.client.receive(io, data, push)
    }
}

/// Events that were raised to the client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Raised {
    /// None.
    Nothing,
    /// At least one.
    Some,
    /// The connection is over.
    End,
}

/// Raises pending events to the client. Common case: none.
#[inline]
pub(super) fn raise_events(
    now: Instant,
    offloaded: &mut Offloaded,
    client: &mut dyn NodeClient,
) -> Raised {
    match offloaded.poll_event() {
        None => Raised::Nothing,
        Some(event) => raise(now, offloaded, event, client),
    }
}

/// `first`, and what comes behind it.
fn raise(
    now: Instant,
    offloaded: &mut Offloaded,
    first: Event,
    client: &mut dyn NodeClient,
) -> Raised {
    let mut next = Some(first);
    while let Some(event) = next {
        if let Event::Retrieve(reason) = event {
            offloaded.retrieves.push(reason);
        }
        let io = &mut offloaded.io(now);
        match event {
            Event::ReceiveComplete(chain) => client.receive_complete(io, chain),
            Event::SendComplete(chain) => {
                if let Some(chain) = without_disconnect_data(chain) {
                    client.send_complete(io, chain);
                }
            }
            Event::DisconnectComplete(nbl) => client.disconnect_complete(io, nbl),
            Event::SendBacklogChange(size) => {
                client.event(io, ConnectionEvent::SendBacklogChange(size));
            }
            Event::PeerClosed => client.event(io, ConnectionEvent::Disconnect),
            Event::Reset => client.event(io, ConnectionEvent::Abort),
            Event::Retrieve(reason) => client.event(io, ConnectionEvent::Retrieve(reason)),
            Event::Closed => {
                client.event(io, ConnectionEvent::Released);
                return Raised::End;
            }
        }
        next = offloaded.poll_event();
    }
    Raised::Some
}

/// A chain without the data of a disconnect that has completed before (see [`ConnectionState::DISCONNECT_DATA`]).
fn without_disconnect_data(mut chain: NblChain) -> Option<NblChain> {
    if chain.back().is_some_and(|list| list.context == ConnectionState::DISCONNECT_DATA) {
        chain.pop_back();
        return (!chain.is_empty()).then_some(chain);
    }
    Some(chain)
}
