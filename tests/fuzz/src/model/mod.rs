//! Connection under test, and its invariants.

mod finale;
mod forge;
mod requests;
mod setup;
mod stream;
mod wire;

use std::collections::HashSet;

use flue_test_support::ranges::Ranges;
use offload_engine::{
    chimney::client::{Disconnect, UploadReason},
    tcp::{Connection, Event, Info, TcpPhase, TxLimits},
    time::{Duration, Instant},
};

use self::{requests::Requests, stream::Stream};
use crate::script::{Op, Setup};

/// Size of the largest GSO packet, in bytes.
const GSO_PAYLOAD_MAX: usize = 65_160;
/// Maximum bytes posted by a run, so that it ends soon.
const POSTED_MAX: u64 = 300_000;
/// Minimum time without progress before a connection may be aborted.
const PROGRESS_TIMEOUT_MIN: Duration = Duration::from_secs(30);

/// Counters of the cases that a run has exercised.
#[derive(Clone, Copy, Default, Debug)]
pub struct Summary {
    /// Segments that the connection sent.
    pub sent: u64,
    /// Segments that the connection received.
    pub segments: u64,
    /// Received segments that had to be dropped.
    pub dropped: u64,
    /// Bytes delivered to the consumer.
    pub delivered: u64,
    /// Bytes retransmitted.
    pub resent: u64,
    /// Retransmission timeouts.
    pub timeouts: u64,
    /// Window probes.
    pub window_probes: u64,
    /// SACK blocks checked.
    pub sack_blocks: u64,
    /// Challenge ACKs.
    pub challenges: u64,
    /// Runs that ended with a reset.
    pub resets: u64,
    /// Runs that ended with an upload.
    pub uploads: u64,
    /// Runs that ended with an abort.
    pub aborts: u64,
    /// Runs in which both streams were complete and closed.
    pub closed: u64,
}

impl Summary {
    /// Adds the counters of another run.
    pub fn add(&mut self, other: &Self) {
        let Self {
            sent,
            segments,
            dropped,
            delivered,
            resent,
            timeouts,
            window_probes,
            sack_blocks,
            challenges,
            resets,
            uploads,
            aborts,
            closed,
        } = other;
        self.sent += sent;
        self.segments += segments;
        self.dropped += dropped;
        self.delivered += delivered;
        self.resent += resent;
        self.timeouts += timeouts;
        self.window_probes += window_probes;
        self.sack_blocks += sack_blocks;
        self.challenges += challenges;
        self.resets += resets;
        self.uploads += uploads;
        self.aborts += aborts;
        self.closed += closed;
    }
}

/// End of a connection: no further event is possible.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum End {
    Reset,
    Upload,
    Abort,
    Closed,
}

/// Outcomes that the current step allows.
#[derive(Clone, Copy, Default, Debug)]
struct AllowedOutcomes {
    reset: bool,
    urgent: bool,
    timeout: bool,
}

/// Connection, its environment, and the model of both streams. Offsets count from the initial sequence numbers.
struct World {
    tcp: Connection,
    setup: Setup,
    now: Instant,
    summary: Summary,
    end: Option<End>,
    allowed_outcomes: AllowedOutcomes,

    // Receive direction.
    delivered: u64,
    /// Right edge of the advertised window.
    edge: u64,
    /// True bytes that the peer has sent inside the window, in segments that may be processed.
    sent: Ranges,
    /// Ranges reported in SACK blocks.
    sacked: Ranges,
    /// End of the peer's stream so far: the highest offset used inside the window.
    highest: u64,
    /// Offset of its FIN.
    fin: Option<u64>,
    peer_closed: bool,
    /// Bytes that the consumer still accepts; `None`: unlimited.
    accept_limit: Option<u64>,

    // Send direction.
    requests: Requests,
    una: u64,
    snd_max: u64,
    wnd: u64,
    fin_sent: bool,
    progress_at: Instant,

    // State of the peer.
    /// Newest sequence and acknowledgment offset used.
    newest: (i64, u64),
    wnd_max: u64,
    /// Offset of its clock from the time, in milliseconds.
    clock: u32,
    jumped: bool,
    /// True if it has marked data with CE.
    marked: bool,
    stamps: HashSet<u32>,
    /// Newest timestamp of this side.
    our_stamp: Option<u32>,
}

/// Executes and checks a script.
///
/// # Panics
/// If the connection violates a rule.
pub fn run(setup: &Setup, ops: &[Op]) -> Summary {
    let mut world = World::new(setup);
    for op in ops {
        world.apply(*op);
        world.check_quiet();
        if world.end.is_some() {
            break;
        }
    }
    if world.end.is_none() {
        world.run_conforming_peer();
    }
    world.conclude()
}

impl World {
    fn apply(&mut self, op: Op) {
        self.allowed_outcomes = AllowedOutcomes::default();
        match op {
            Op::Segment(forged) => self.forge(forged),
            Op::Post { lists, len } => self.post(lists, len),
            Op::Transmit { count, gso_packets } => {
                self.transmit(usize::from(count), gso_packets);
            }
            Op::Timer => self.fire_next_timer(),
            Op::Wait { micros } => {
                self.now += Duration::from_micros(u64::from(micros));
                self.fire_due_timers();
            }
            Op::Refuse { after } => self.accept_limit = Some(u64::from(after)),
            Op::Resume => self.resume(),
            Op::Detach => {
                self.tcp.detach_tail(4_096);
            }
            Op::Disconnect { len } => self.disconnect(len),
            Op::Abort => {
                // CH-DIS-6: refused if only the consumer's part of the close remains.
                let closed = self.info().phase == TcpPhase::Closed;
                self.abort();
                if !closed {
                    self.end = Some(End::Abort);
                }
            }
        }
        self.drain_events();
    }

    fn info(&self) -> Info {
        self.tcp.info(self.now)
    }

    /// True if the peer's FIN is before RCV.NXT.
    fn fin_reached(&self) -> bool {
        let Info { phase, bytes_received, .. } = self.info();
        match phase {
            TcpPhase::CloseWait | TcpPhase::LastAck | TcpPhase::Closing | TcpPhase::TimeWait => {
                true
            }
            TcpPhase::Established | TcpPhase::FinWait1 | TcpPhase::FinWait2 => false,
            TcpPhase::Closed => self.fin == Some(bytes_received),
        }
    }

    /// RCV.NXT.
    fn rcv_nxt(&self) -> u64 {
        self.info().bytes_received + u64::from(self.fin_reached())
    }

    /// Sends all due segments, or at most `count`.
    fn transmit(&mut self, count: usize, gso_packets: bool) -> usize {
        let gso_payload_max = if gso_packets { GSO_PAYLOAD_MAX } else { 0 };
        for sent in 0..count {
            let limits = TxLimits { gso_payload_max, new_data: true };
            let Some(transmit) = self.tcp.poll_transmit(self.now, limits) else {
                self.check_timers();
                return sent;
            };
            assert!(sent < 10_000, "poll_transmit does not end");
            self.check_transmit(&transmit, gso_payload_max);
        }
        count
    }

    fn fire_next_timer(&mut self) {
        self.transmit(usize::MAX, true);
        if let Some(deadline) = self.tcp.poll_timeout() {
            self.now = self.now.max(deadline);
            self.fire_due_timers();
        }
    }

    fn fire_due_timers(&mut self) {
        if self.tcp.poll_timeout().is_some_and(|deadline| deadline <= self.now) {
            self.allowed_outcomes.timeout = self.now - self.progress_at >= PROGRESS_TIMEOUT_MIN;
            self.tcp.handle_timeout(self.now);
        }
    }

    // Consumer.

    /// Bytes of `data` that the consumer accepts; `data` must continue the stream.
    fn offer(&mut self, data: &[u8]) -> usize {
        let wanted = self.accept_limit.unwrap_or(u64::MAX).min(data.len() as u64);
        if let Err(at) = Stream::Theirs.check(self.delivered, &data[..wanted as usize]) {
            panic!("wrong byte at {at} of the peer's stream");
        }
        self.delivered += wanted;
        assert!(self.delivered <= self.edge, "bytes beyond the advertised window");
        assert!(self.fin.is_none_or(|fin| self.delivered <= fin), "bytes after the FIN");
        if let Some(accept_limit) = &mut self.accept_limit {
            *accept_limit -= wanted;
        }
        if (wanted as usize) < data.len() {
            self.tcp.block_receive();
        }
        wanted as usize
    }

    fn take_backlog(&mut self) {
        while !self.tcp.receive_blocked()
            && let Some((data, _)) = self.tcp.backlog()
        {
            let data = data.clone();
            let taken = self.offer(&data);
            self.tcp.backlog_consumed(taken);
        }
    }

    fn resume(&mut self) {
        self.accept_limit = None;
        self.tcp.resume_receive();
        self.take_backlog();
    }

    // Events.

    fn drain_events(&mut self) {
        while let Some(event) = self.tcp.poll_event() {
            assert!(self.end != Some(End::Closed), "event after Closed: {event:?}");
            match event {
                Event::SendComplete(chain) => {
                    let acked = self.info().bytes_acked;
                    self.requests.complete(
                        chain,
                        acked,
                        self.end.is_some() || self.allowed_outcomes.reset,
                    );
                }
                Event::DisconnectComplete(list) => {
                    self.requests.complete_disconnect(&list, self.allowed_outcomes.reset);
                }
                Event::SendBacklogChange(_) => {}
                Event::ReceiveComplete(_) => panic!("nothing is posted"),
                Event::PeerClosed => {
                    // CH-EVT-6: once, and after all data.
                    assert!(!self.peer_closed, "PeerClosed twice");
                    assert_eq!(self.fin, Some(self.delivered), "PeerClosed before the end");
                    self.peer_closed = true;
                }
                Event::Reset => {
                    // RFC 5961 §3.2.
                    assert!(self.allowed_outcomes.reset, "reset without a RST at RCV.NXT");
                    self.end = Some(End::Reset);
                }
                Event::Retrieve(reason) => {
                    let allowed = match reason {
                        UploadReason::ReceivedUrgentData => self.allowed_outcomes.urgent,
                        UploadReason::TimeoutExpiration => self.allowed_outcomes.timeout,
                        _ => false,
                    };
                    assert!(allowed, "timed out without a reason: {reason:?}");
                    self.end = Some(End::Upload);
                }
                Event::Closed => {
                    let ended = self.end.is_some();
                    let graceful = self.requests.is_closed_gracefully() && self.peer_closed;
                    assert!(
                        ended || graceful || self.allowed_outcomes.reset,
                        "closed without a reason"
                    );
                    if !ended {
                        self.end = Some(End::Closed);
                    }
                }
            }
        }
    }

    // Invariants after every step.

    fn check_quiet(&mut self) {
        let info = self.info();
        let una = info.bytes_acked + u64::from(self.requests.is_closed_gracefully());
        assert!(una >= self.una, "SND.UNA moves back");
        if una > self.una {
            self.una = una;
            self.progress_at = self.now;
        }
        assert!(self.una <= self.snd_max, "acknowledged {} of {}", self.una, self.snd_max);
        if self.end.is_some() {
            return;
        }
        assert_eq!(self.tcp.send_outstanding() as u64, self.requests.posted() - info.bytes_acked);
        if self.tcp.backlog().is_none() {
            assert_eq!(info.bytes_received, self.delivered, "received bytes were lost");
        }
    }

    /// RFC 9293 §3.8.1, §3.8.6.1: data that the peer must acknowledge has a timer.
    fn check_timers(&self) {
        let owed = self.requests.end() > self.una;
        if !owed || self.end.is_some() {
            return;
        }
        let deadline = self.tcp.poll_timeout();
        let rto_max = setup::config(&self.setup).rto_max;
        assert!(
            deadline.is_some_and(|deadline| deadline <= self.now + rto_max),
            "unacknowledged data, and the next deadline is {deadline:?} at {:?}: {:?}",
            self.now,
            self.info(),
        );
    }

    // End of a run.

    /// Asserts that each request has completed once, and that nothing is sent after that.
    fn conclude(mut self) -> Summary {
        if self.end == Some(End::Upload) {
            // CH-EVT-1: an abort is still possible.
            self.abort();
        }
        self.allowed_outcomes = AllowedOutcomes { reset: true, ..AllowedOutcomes::default() };
        let resets = self.transmit(usize::MAX, true);
        let aborted = matches!(self.end, Some(End::Abort | End::Upload));
        assert_eq!(resets, usize::from(aborted), "segments after the end");
        self.resume();
        self.drain_events();
        self.requests.check_answered();
        assert_eq!(self.info().phase, TcpPhase::Closed);
        assert_eq!(self.tcp.poll_timeout(), None, "a closed connection has no timers");
        self.summarize()
    }

    fn abort(&mut self) {
        let list = self.requests.abort();
        self.allowed_outcomes.reset = true;
        self.tcp.disconnect(self.now, Disconnect::Abortive, list);
    }

    fn summarize(&self) -> Summary {
        let Info { segs_out, bytes_retrans, timeouts, challenge_acks, .. } = self.info();
        let ended = |end| u64::from(self.end == Some(end));
        Summary {
            sent: segs_out,
            delivered: self.delivered,
            resent: bytes_retrans,
            timeouts,
            challenges: challenge_acks,
            resets: ended(End::Reset),
            uploads: ended(End::Upload),
            aborts: ended(End::Abort),
            closed: ended(End::Closed),
            ..self.summary
        }
    }
}
