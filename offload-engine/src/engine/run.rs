//! One iteration of the run loop, step by step.

use std::{boxed::Box, format, io::IoSlice, string::String, vec::Vec};

use super::{
    Engine, FROM_HOST_MESSAGES_MAX, NodeClient, STALLED_FRAMES_MAX, Stalled, TRANSMIT_SEGMENTS_MAX,
    connections::Offloaded,
    port::{FromHost, TO_HOST_FRAMES_MAX, ToHost},
    trace::TraceRow,
};
use crate::{
    chimney::client::{
        ConnectionEvent, ConnectionIo, InitiateOffload, OffloadClient, OffloadHandle,
    },
    frame::{
        HEADER_BYTES_MAX, IcmpError, SACK_BLOCKS_MAX, SegmentHeader, TcpFrame, classify,
        classify_forwarded, classify_icmp,
    },
    link::{
        RxBatch, RxChecksum, RxFrame, TX_PAYLOAD_SLICES_MAX, TxChecksum, TxFrame, TxOffload,
        TxOutcome, TxSegment,
    },
    nbl::ReceiveChain,
    status::NdisStatus,
    tcp::{self, Consumer, Event, SackBlock, Segment, SeqNum, Transmit, TxLimits},
    time::Instant,
};

const NO_SACK: [SackBlock; SACK_BLOCKS_MAX] =
    [SackBlock { start: SeqNum(0), end: SeqNum(0) }; SACK_BLOCKS_MAX];

impl Engine {
    /// One iteration. Returns whether there was anything to do; if not, the caller may sleep until
    /// [`Engine::poll_at`], a readable link or a rung doorbell.
    ///
    /// # Errors
    /// The link is gone.
    pub fn poll(&mut self, now: Instant, client: &mut impl NodeClient) -> std::io::Result<bool> {
        let mut busy = self.resend_stalled(now);
        busy |= self.take_from_host(now, client);
        busy |= self.take_from_link(now, client)?;
        busy |= self.run_timers(now);
        busy |= client.poll(now, &mut self.connections);
        busy |= self.flush(now, client);
        Ok(busy)
    }

    /// When [`Engine::poll`] has to be called again though nothing has happened.
    pub fn poll_at(&self, client: &impl NodeClient) -> Option<Instant> {
        [self.connections.next_timer(), self.link.poll_at(), client.poll_at()]
            .into_iter()
            .flatten()
            .min()
    }

    /// Drains the connections that were touched: events up, segments out. Part of every
    /// [`Engine::poll`]; call it after acting on [`Engine::connections`] from outside, so that what
    /// was posted leaves at once. Returns whether there was anything to do.
    pub fn flush(&mut self, now: Instant, client: &mut impl NodeClient) -> bool {
        // A connection that is not through goes to the end of the queue; it has its next turn in the
        // next iteration, when frames have been received.
        let turns = self.connections.ready_len();
        for _ in 0..turns {
            let Some(slot) = self.connections.next_ready() else { break };
            self.drain(now, slot, client);
            self.trace(now, slot);
        }
        turns > 0
    }

    fn resend_stalled(&mut self, now: Instant) -> bool {
        let mut busy = false;
        while let Some(Stalled { frame, head_len, offload }) = self.stalled.front() {
            let (head, payload) = frame.split_at(*head_len);
            let payload = [IoSlice::new(payload)];
            let frame = TxFrame { offload: *offload, head, payload: &payload, comment: None };
            if self.link.transmit(now, &frame) == TxOutcome::Full {
                break;
            }
            self.stalled.pop_front();
            busy = true;
        }
        busy
    }

    fn take_from_host(&mut self, now: Instant, client: &mut impl NodeClient) -> bool {
        for taken in 0..FROM_HOST_MESSAGES_MAX {
            let Ok(message) = self.from_host.try_recv() else { return taken > 0 };
            match message {
                FromHost::Frame(data) => {
                    self.stats.tx_from_host += 1;
                    self.transmit_or_stall(now, TxOffload::default(), &data, &[], None);
                }
                FromHost::Initiate(request) => self.initiate(now, request, client),
                FromHost::Forward(data) => self.take_forwarded(now, &data, client),
            }
        }
        true
    }

    /// CH-FWD-5: as if from the wire; the host has verified the checksum. What is no connection's is
    /// dropped: the host has it from us, so giving it back would go in circles.
    fn take_forwarded(&mut self, now: Instant, data: &[u8], client: &mut impl NodeClient) {
        let found = classify_forwarded(data)
            .and_then(|tcp| self.connections.find(&tcp.flow).map(|slot| (tcp, slot)));
        match found {
            Some((tcp, slot)) => {
                self.stats.forwards += 1;
                self.take_segment(now, slot, &tcp, 0, client);
            }
            None => self.stats.forwards_dropped += 1,
        }
    }

    fn initiate(&mut self, now: Instant, request: InitiateOffload, client: &mut impl NodeClient) {
        let handle = request.handle;
        // What the host stack has told the client before it sent this comes first.
        client.poll(now, &mut self.connections);
        let (status, state) = match self.connections.insert(now, request) {
            Ok(slot) => {
                self.stats.initiates += 1;
                if let Some(offloaded) = self.connections.slot(slot) {
                    let tag = offloaded.client;
                    client.offloaded(&mut offloaded.io(now), tag);
                }
                self.connections.mark_ready(slot);
                (NdisStatus::SUCCESS, None)
            }
            Err((status, state)) => {
                self.stats.initiate_failures += 1;
                (status, Some(state))
            }
        };
        self.tell_host(ToHost::InitiateComplete { handle, status, state });
    }

    fn tell_host(&self, message: ToHost) {
        // A host stack that is gone needs no telling.
        let _ = self.to_host.send(message);
        self.host_doorbell.ring();
    }

    fn take_from_link(
        &mut self,
        now: Instant,
        client: &mut impl NodeClient,
    ) -> std::io::Result<bool> {
        let mut batch = core::mem::replace(&mut self.batch, RxBatch::new(0));
        batch.clear();
        let received = self.link.receive(now, &mut batch);
        let to_host_before = self.stats.rx_to_host;
        for frame in batch.frames() {
            self.take_frame(now, &frame, client);
        }
        let busy = !batch.is_empty();
        self.batch = batch;
        if self.stats.rx_to_host != to_host_before {
            self.host_doorbell.ring();
        }
        received.map(|_| busy)
    }

    /// The switch: a segment of an offloaded connection to that connection, all else to the host.
    fn take_frame(&mut self, now: Instant, frame: &RxFrame<'_>, client: &mut impl NodeClient) {
        // What a switch floods is another station's.
        let ours = frame.data.get(..6) == Some(&self.config.mac.0);
        let found = classify(frame.data)
            .filter(|_| ours)
            .and_then(|tcp| self.connections.find(&tcp.flow).map(|slot| (tcp, slot)));
        let Some((tcp, slot)) = found else {
            if ours {
                self.take_icmp(now, frame.data);
            }
            self.frame_to_host(frame);
            return;
        };
        if !self.connections.accepts(slot, tcp.vlan) {
            self.stats.rx_vlan_dropped += 1;
            return;
        }
        self.stats.rx_segments += 1;
        if frame.checksum == RxChecksum::Unverified && !tcp.checksum_is_valid() {
            self.stats.rx_checksum_errors += 1;
            return;
        }
        self.take_segment(now, slot, &tcp, frame.gso_size, client);
    }

    /// An ICMP error about an offloaded connection concerns it too; the frame is the host's all the same
    /// (CH 9.1, RFC 9293 MUST-54).
    fn take_icmp(&mut self, now: Instant, frame: &[u8]) {
        let Some(IcmpError { flow, vlan, error }) = classify_icmp(frame) else { return };
        let Some(slot) = self.connections.find(&flow) else { return };
        if !self.connections.accepts(slot, vlan) {
            return;
        }
        let Some(offloaded) = self.connections.slot(slot) else { return };
        let before = offloaded.tcp.path_mtu();
        if !offloaded.tcp.handle_path_error(now, &error) {
            self.stats.rx_path_errors_ignored += 1;
            return;
        }
        self.stats.rx_path_errors += 1;
        let (handle, path_mtu) = (offloaded.handle, offloaded.tcp.path_mtu());
        self.connections.mark_ready(slot);
        if path_mtu < before {
            self.tell_host(ToHost::PathMtu { handle, path_mtu });
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

    fn take_segment(
        &mut self,
        now: Instant,
        slot: usize,
        frame: &TcpFrame<'_>,
        gso_size: usize,
        client: &mut impl NodeClient,
    ) {
        let Some(offloaded) = self.connections.slot(slot) else { return };
        let mut sack = NO_SACK;
        let segment = frame.segment(gso_size, &mut sack);
        receive(now, offloaded, &segment, client);
        self.connections.mark_ready(slot);
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
    fn drain(&mut self, now: Instant, slot: usize, client: &mut impl NodeClient) {
        // Whether there is room or not: a client that was asked to act on the connection does it now.
        if let Some(offloaded) = self.connections.slot(slot) {
            client.send_room(&mut offloaded.io(now));
        }
        for _ in 0..TRANSMIT_SEGMENTS_MAX {
            let Some(offloaded) = self.connections.slot(slot) else { return };
            if raise_events(now, offloaded, client) {
                self.release(now, slot);
                return;
            }
            deliver_backlog(now, offloaded, client);
            if offloaded.tcp.send_room() > 0 {
                client.send_room(&mut offloaded.io(now));
            }
            if self.stalled.len() >= STALLED_FRAMES_MAX {
                break;
            }
            let Some(offloaded) = self.connections.slot(slot) else { return };
            let limits = TxLimits { super_segment_max: offloaded.super_segment_max() };
            let Some(transmit) = offloaded.tcp.poll_transmit(now, limits) else {
                if !raise_events(now, offloaded, client) {
                    self.connections.schedule(slot);
                } else {
                    self.release(now, slot);
                }
                return;
            };
            self.transmit_segment(now, slot, &transmit);
        }
        self.connections.schedule(slot);
        self.connections.mark_ready(slot);
    }

    fn trace(&mut self, now: Instant, slot: usize) {
        let Some(trace) = &mut self.trace else { return };
        let Some(offloaded) = self.connections.slot(slot) else { return };
        let sample = offloaded.tcp.trace_sample();
        if offloaded.traced.as_deref() != Some(&sample) {
            match &mut offloaded.traced {
                Some(traced) => **traced = sample,
                none => *none = Some(Box::new(sample)),
            }
            trace.write(&TraceRow { time: now, flow: offloaded.flow, sample });
        }
    }

    fn release(&mut self, now: Instant, slot: usize) {
        self.trace(now, slot);
        if let Some(offloaded) = self.connections.remove(slot) {
            self.tell_host(ToHost::Released { handle: offloaded.handle });
        }
    }

    fn transmit_segment(&mut self, now: Instant, slot: usize, transmit: &Transmit) {
        self.stats.tx_segments += 1;
        let comment = (self.link.wants_comments()).then(|| note(transmit)).flatten();
        let Some(offloaded) = self.connections.slot(slot) else { return };
        let pieces = transmit.payload_len.div_ceil(transmit.mss.max(1)).max(1);
        let mut header = [0; HEADER_BYTES_MAX];
        let header_len = offloaded.headers.write(
            &mut header,
            &SegmentHeader {
                seq: transmit.seq,
                ack: transmit.ack,
                flags: transmit.flags,
                window: transmit.window,
                timestamps: transmit.timestamps,
                sack: &transmit.sack[..transmit.sack_count],
                payload_len: transmit.payload_len,
                ecn: transmit.ecn,
            },
            u16::try_from(pieces).unwrap_or(u16::MAX),
        );
        let header = &mut header[..header_len];
        let offload = if self.capabilities.tx_checksum {
            offload_of(offloaded, transmit, header_len)
        } else {
            offloaded.headers.finish_checksum(header, offloaded.tcp.payload(transmit));
            TxOffload::default()
        };
        let mut slices = [IoSlice::new(&[]); tcp::SLICES_MAX];
        let mut count = 0;
        for slice in offloaded.tcp.payload(transmit) {
            slices[count] = IoSlice::new(slice);
            count += 1;
        }
        let frame = TxFrame {
            offload,
            head: header,
            payload: &slices[..count],
            comment: comment.as_deref(),
        };
        match self.link.transmit(now, &frame) {
            TxOutcome::Sent | TxOutcome::Dropped => {}
            TxOutcome::Full => {
                self.stats.tx_stalled += 1;
                let copy = Stalled { frame: gather(&frame), head_len: header_len, offload };
                self.stalled.push_back(copy);
            }
        }
    }

    /// Sends a frame of the host stack, or keeps it while the link is full.
    fn transmit_or_stall(
        &mut self,
        now: Instant,
        offload: TxOffload,
        head: &[u8],
        payload: &[IoSlice<'_>],
        comment: Option<&str>,
    ) {
        let frame = TxFrame { offload, head, payload, comment };
        if self.link.transmit(now, &frame) == TxOutcome::Full {
            if self.stalled.len() >= STALLED_FRAMES_MAX {
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
    let mut all = frame.head.to_vec();
    frame.payload.iter().for_each(|slice| all.extend_from_slice(slice));
    all
}

fn offload_of(offloaded: &Offloaded, transmit: &Transmit, header_len: usize) -> TxOffload {
    let checksum = Some(TxChecksum { start: offloaded.headers.tcp_offset() as u16, offset: 16 });
    let segment = (transmit.payload_len > transmit.mss).then(|| TxSegment {
        size: transmit.mss as u16,
        header_len: header_len as u16,
        ipv6: offloaded.headers.is_ipv6(),
    });
    TxOffload { checksum, segment }
}

/// What a capture says of a segment: whose bytes it carries.
fn note(transmit: &Transmit) -> Option<String> {
    let context = transmit.nbl_context?;
    let again = if transmit.retransmission { ", retransmission" } else { "" };
    Some(format!("NBL {context:#x}{again}"))
}

/// A segment through TCP and up to the client.
fn receive(
    now: Instant,
    offloaded: &mut Offloaded,
    segment: &Segment<'_>,
    client: &mut impl OffloadClient,
) {
    let received = offloaded.tcp.handle_segment(now, segment);
    let data = &segment.payload[received.in_order];
    let mut upcalls = Upcalls::new(now, offloaded, client);
    offloaded.tcp.deliver(now, data, received.push, &mut upcalls);
}

/// Places and indicates buffered data until it is gone or refused (CH 7.4).
fn deliver_backlog(now: Instant, offloaded: &mut Offloaded, client: &mut impl OffloadClient) {
    let mut upcalls = Upcalls::new(now, offloaded, client);
    offloaded.tcp.deliver_waiting(now, &mut upcalls);
}

/// A connection's way to its client while bytes are delivered.
struct Upcalls<'c, C> {
    handle: OffloadHandle,
    now: Instant,
    super_segment_max: usize,
    client: &'c mut C,
}

impl<'c, C> Upcalls<'c, C> {
    fn new(now: Instant, offloaded: &Offloaded, client: &'c mut C) -> Self {
        let super_segment_max = offloaded.super_segment_max();
        Self { handle: offloaded.handle, now, super_segment_max, client }
    }

    fn io<'a>(&self, connection: &'a mut tcp::Connection) -> ConnectionIo<'a> {
        let &Self { handle, now, super_segment_max, client: _ } = self;
        ConnectionIo { handle, now, connection, super_segment_max }
    }
}

impl<C: OffloadClient> Consumer for Upcalls<'_, C> {
    fn receive_complete(&mut self, connection: &mut tcp::Connection, chain: ReceiveChain) {
        let io = &mut self.io(connection);
        self.client.receive_complete(io, chain);
    }

    fn indicate(&mut self, connection: &mut tcp::Connection, data: &[u8], push: bool) -> usize {
        let io = &mut self.io(connection);
        self.client.receive(io, data, push)
    }
}

/// Events to the client. Returns whether the connection is over.
fn raise_events(now: Instant, offloaded: &mut Offloaded, client: &mut impl OffloadClient) -> bool {
    while let Some(event) = offloaded.tcp.poll_event() {
        let io = &mut offloaded.io(now);
        match event {
            Event::ReceiveComplete(chain) => client.receive_complete(io, chain),
            Event::SendComplete(chain) => client.send_complete(io, chain),
            Event::DisconnectComplete(nbl) => client.disconnect_complete(io, nbl),
            Event::PeerClosed => client.event(io, ConnectionEvent::Disconnect),
            Event::Reset => client.event(io, ConnectionEvent::Abort),
            Event::Retrieve(reason) => client.event(io, ConnectionEvent::Retrieve(reason)),
            Event::Closed => {
                client.event(io, ConnectionEvent::Released);
                return true;
            }
        }
    }
    false
}
