//! Minimal TCP: an upper bound for any engine.
//!
//! It opens a connection, counts sequence numbers, respects the peer's window and acknowledges in-order data. It has no
//! retransmission, congestion control or timers.

use flue_report::failure::Failure;

use super::{
    frame::{
        self, ACK, Checksum, FIN, HEADERS_BYTES, Head, RST, SYN, Segment, Station, VNET_BYTES,
        WINDOW_SCALE,
    },
    measure::SpinThenYield,
    test_bed::{FRAME_BYTES_MAX, NEAR, Tap},
};

/// Payload buffers, bytes: larger than L1, as an application's would be.
const MEMORY_BYTES: usize = 1 << 20;

/// Result of one read of the TAP.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Arrival {
    /// No frame.
    Nothing,
    /// A frame without new payload, or for another station.
    Other,
    /// In-order payload, bytes.
    Data(usize),
}

/// Counters of unexpected segments.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct ErrorCounters {
    /// Segments beyond RCV.NXT: an earlier one is missing.
    pub(super) gaps: u64,
    /// Segments received before.
    pub(super) duplicates: u64,
    /// Segments with a wrong checksum.
    pub(super) damaged: u64,
}

/// Connection of the minimal TCP.
pub(super) struct Engine {
    tap: Tap,
    head: Head,
    verifies: bool,
    snd_nxt: u32,
    snd_una: u32,
    snd_wnd: u32,
    peer_scale: u32,
    rcv_nxt: u32,
    last_ack: u32,
    window: u16,
    is_open: bool,
    has_ended: bool,
    inbox: Vec<u8>,
    inbox_at: usize,
    outbox: Vec<u8>,
    outbox_at: usize,
    pub(super) errors: ErrorCounters,
}

/// Settings of the minimal TCP.
#[derive(Clone, Copy, Debug)]
pub(super) struct Settings {
    pub(super) mss: u16,
    pub(super) checksum: Checksum,
    /// Receive window, bytes.
    pub(super) window_bytes: u32,
    /// Station of the peer.
    pub(super) far: Station,
}

impl Engine {
    /// Creates a connection before its handshake.
    pub(super) fn new(tap: Tap, settings: Settings) -> Self {
        let Settings { mss, checksum, window_bytes, far } = settings;
        let head = Head::new(NEAR, far, tap.vnet_header(), checksum, mss);
        let first = 1_000_000;
        Self {
            verifies: !tap.vnet_header(),
            tap,
            head,
            snd_nxt: first,
            snd_una: first,
            snd_wnd: 0,
            peer_scale: 0,
            rcv_nxt: 0,
            last_ack: 0,
            window: (window_bytes >> WINDOW_SCALE).min(u16::MAX.into()) as u16,
            is_open: false,
            has_ended: false,
            // Touched, so that there are no page faults during the run.
            inbox: vec![1; MEMORY_BYTES + FRAME_BYTES_MAX],
            inbox_at: 0,
            outbox: vec![0x5a; MEMORY_BYTES + FRAME_BYTES_MAX],
            outbox_at: 0,
            errors: ErrorCounters::default(),
        }
    }

    /// Connects to the listening peer.
    pub(super) fn connect(&mut self) -> Result<(), Failure> {
        self.transmit(SYN, 0)?;
        let mut idle = SpinThenYield::new();
        while !self.is_open {
            if self.receive()? == Arrival::Nothing && !idle.wait() {
                return Err(Failure::work("kernel socket: no SYN-ACK within the time limit"));
            }
        }
        self.acknowledge()
    }

    /// Returns the bytes that may be sent now.
    pub(super) fn room_bytes(&self, in_flight_max_bytes: u32) -> usize {
        let window = self.snd_wnd.min(in_flight_max_bytes);
        window.saturating_sub(self.in_flight_bytes()) as usize
    }

    /// Returns the peer's receive window, bytes.
    pub(super) const fn window_bytes(&self) -> usize {
        self.snd_wnd as usize
    }

    /// Returns the bytes sent and not acknowledged.
    pub(super) const fn in_flight_bytes(&self) -> u32 {
        self.snd_nxt.wrapping_sub(self.snd_una)
    }

    /// Returns the bytes received and not acknowledged.
    pub(super) const fn unacknowledged_bytes(&self) -> u32 {
        self.rcv_nxt.wrapping_sub(self.last_ack)
    }

    /// Returns true if the peer has sent its FIN.
    pub(super) const fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// Sends the next bytes of the payload buffer.
    pub(super) fn send(&mut self, bytes: usize) -> Result<(), Failure> {
        self.transmit(ACK, bytes)
    }

    /// Sends an acknowledgment.
    pub(super) fn acknowledge(&mut self) -> Result<(), Failure> {
        self.transmit(ACK, 0)
    }

    /// Sends a FIN.
    pub(super) fn finish(&mut self) -> Result<(), Failure> {
        self.transmit(FIN | ACK, 0)
    }

    fn transmit(&mut self, flags: u8, bytes: usize) -> Result<(), Failure> {
        let window = if flags & SYN == 0 { self.window } else { u16::MAX };
        let ack = if flags & ACK == 0 { 0 } else { self.rcv_nxt };
        let segment = Segment { seq: self.snd_nxt, ack, flags, window };
        let payload = &self.outbox[self.outbox_at..self.outbox_at + bytes];
        self.tap.gather(self.head.patch(segment, payload), payload)?;
        let sequence = bytes as u32 + u32::from(flags & (SYN | FIN) != 0);
        self.snd_nxt = self.snd_nxt.wrapping_add(sequence);
        self.last_ack = self.rcv_nxt;
        self.outbox_at += bytes;
        if self.outbox_at >= MEMORY_BYTES {
            self.outbox_at = 0;
        }
        Ok(())
    }

    /// Processes one frame, if one is available.
    pub(super) fn receive(&mut self) -> Result<Arrival, Failure> {
        let mut front = [0; VNET_BYTES + HEADERS_BYTES];
        let skip = VNET_BYTES - self.tap.front_bytes();
        let room = &mut self.inbox[self.inbox_at..self.inbox_at + FRAME_BYTES_MAX];
        let Some(bytes) = self.tap.scatter(&mut front[skip..], room)? else {
            return Ok(Arrival::Nothing);
        };
        let frame_bytes = bytes.saturating_sub(self.tap.front_bytes());
        let head = &front[VNET_BYTES..VNET_BYTES + frame_bytes.min(HEADERS_BYTES)];
        let rest_bytes = frame_bytes.saturating_sub(HEADERS_BYTES);
        let Some(received) = frame::parse(head, rest_bytes, NEAR.port) else {
            self.answer_arp(head)?;
            return Ok(Arrival::Other);
        };
        if self.verifies
            && !self.is_checksum_valid(head, received.options_bytes + received.payload_bytes)
        {
            self.errors.damaged += 1;
            return Ok(Arrival::Other);
        }
        self.accept(received)
    }

    fn is_checksum_valid(&self, head: &[u8], rest_bytes: usize) -> bool {
        let rest = &self.inbox[self.inbox_at..self.inbox_at + rest_bytes];
        head.first_chunk().is_some_and(|head| frame::is_checksum_valid(head, rest))
    }

    fn answer_arp(&self, frame: &[u8]) -> Result<(), Failure> {
        let Some(answer) = frame::arp_answer(frame, NEAR) else { return Ok(()) };
        // A header of zeros requests no offload.
        let mut bytes = [0; VNET_BYTES + frame::ARP_BYTES];
        bytes[VNET_BYTES..].copy_from_slice(&answer);
        self.tap.write(&bytes[VNET_BYTES - self.tap.front_bytes()..])
    }

    fn accept(&mut self, received: frame::Received) -> Result<Arrival, Failure> {
        let frame::Received { segment, options_bytes, payload_bytes } = received;
        let Segment { seq, ack, flags, window } = segment;
        if flags & RST != 0 {
            return Err(Failure::work("kernel socket: connection reset"));
        }
        if flags & SYN != 0 {
            let options = &self.inbox[self.inbox_at..self.inbox_at + options_bytes];
            self.peer_scale = frame::window_scale(options);
            (self.rcv_nxt, self.snd_una) = (seq.wrapping_add(1), ack);
            self.snd_wnd = window.into(); // RFC 7323 §2.2: the window of a SYN is not scaled
            self.is_open = true;
            return Ok(Arrival::Other);
        }
        if ack.wrapping_sub(self.snd_una) <= self.in_flight_bytes() {
            self.snd_una = ack;
            self.snd_wnd = u32::from(window) << self.peer_scale;
        }
        let is_last = flags & FIN != 0;
        if payload_bytes == 0 && !is_last {
            return Ok(Arrival::Other);
        }
        let distance = seq.wrapping_sub(self.rcv_nxt) as i32;
        if distance != 0 || options_bytes != 0 {
            let count =
                if distance < 0 { &mut self.errors.duplicates } else { &mut self.errors.gaps };
            *count += 1;
            self.acknowledge()?;
            return Ok(Arrival::Other);
        }
        self.rcv_nxt = seq.wrapping_add(payload_bytes as u32 + u32::from(is_last));
        self.inbox_at += payload_bytes;
        if self.inbox_at >= MEMORY_BYTES {
            self.inbox_at = 0;
        }
        self.has_ended |= is_last;
        Ok(if payload_bytes > 0 { Arrival::Data(payload_bytes) } else { Arrival::Other })
    }
}
