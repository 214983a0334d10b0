//! Path MTU: ICMP errors and black-hole detection (RFC 1191, 8201, 2923, 5927, 5461).
//!
//! An ICMP error is accepted only if it quotes a byte in flight (RFC 5927 §4.1). *Too big* reduces the path MTU and
//! never raises it. The dropped segments are retransmitted at once, in smaller segments. The congestion window is not
//! reduced, as a router dropped them for their size. Every other error is soft: it is counted and kept as the reason of
//! a later timeout, but never closes the connection (RFC 9293 §3.9.2.2 MUST-56; for "hard" errors RFC 5461 §4.1, RFC
//! 5927 §5.2).
//!
//! A black hole drops packets that are too big and sends no ICMP error. [`BLACK_HOLE_TIMEOUTS`] consecutive timeouts of
//! a segment reduce its size: payload of 1024 bytes, then of 536, with IPv6 of 1220. If a segment of its size was
//! acknowledged before, loss is more likely, and it takes [`BLACK_HOLE_TIMEOUTS_PROVEN`] timeouts. An acknowledgment
//! of more than the small segment shows that the large ones were delayed, not dropped.
//!
//! [`RAISE_AFTER`] a reduction the original size is tried again (RFC 1191 §6.3). If the path is still narrow this costs
//! one flight, or [`BLACK_HOLE_TIMEOUTS`] timeouts in a black hole.
//!
//! Limits: [`MTU_MIN_IPV4`], [`MTU_MIN_IPV6`]; [`REDUCTIONS_PER_FLIGHT_MAX`]. The path MTU itself is the host's cached
//! variable (CH-UPD-5). Reductions here affect this connection only; the host receives the same ICMP message.

use super::{
    Connection, PathError, PathErrorKind, SoftError, TIMESTAMPS_OPTION, Timer,
    congestion::Congestion, saturate, seq::Position,
};
use crate::{
    state::TcpConst,
    time::{Duration, Instant},
};

/// Smallest path MTU accepted from an ICMP message over IPv4, in bytes. A smaller value is ignored, as a forgery would
/// cost more than it helps (RFC 5927 §7.2); 552 is Linux' `min_pmtu`.
pub const MTU_MIN_IPV4: u32 = 552;
/// Smallest path MTU accepted over IPv6: RFC 8201 §4 discards messages that report less than the smallest link MTU.
pub const MTU_MIN_IPV6: u32 = 1280;
/// Consecutive timeouts of a segment after which its size is reduced, while none of its size was acknowledged: R1 of
/// RFC 9293 §3.8.3.
pub const BLACK_HOLE_TIMEOUTS: u8 = 3;
/// Consecutive timeouts after a segment of this size was acknowledged. At five percent loss in both directions, one
/// timeout in a hundred is followed by two more, and almost none by four.
pub const BLACK_HOLE_TIMEOUTS_PROVEN: u8 = 5;
/// Time after which the original size is tried again (RFC 1191 §6.3 recommends ten minutes; RFC 8201 §4 at least five).
pub const RAISE_AFTER: Duration = Duration::from_secs(600);
/// Reductions by ICMP per flight of the first one: a path may have several links, each narrower than the one before it,
/// but not many.
pub const REDUCTIONS_PER_FLIGHT_MAX: u8 = 4;

/// Smallest MSS accepted from a peer, in bytes with options: Linux' `tcp_min_snd_mss`, against peers that force one
/// byte per segment (CVE-2019-11479). IPv4 requires at most 536 - 40 of any peer (RFC 9293 §3.7.1), and at least 28
/// fits the smallest MTU (RFC 791: 68).
const MSS_MIN: usize = 48;
/// Common link MTUs at or above [`MTU_MIN_IPV4`], for routers that do not report theirs (RFC 1191 §7.1).
const PLATEAUS: [u32; 9] = [65_535, 32_000, 17_914, 8_166, 4_352, 2_002, 1_492, 1_006, 576];
/// Path MTUs tried in a black hole: payload of 1024 bytes (RFC 4821 §7.2), and of 536 (RFC 9293 MUST-15).
const FALLBACKS_IPV4: [u32; 2] = [1024 + HEADERS_IPV4, 536 + HEADERS_IPV4];
const FALLBACKS_IPV6: [u32; 1] = [MTU_MIN_IPV6];
/// Bytes of IP and TCP headers without options.
const HEADERS_IPV4: u32 = 40;
const HEADERS_IPV6: u32 = 60;

/// Effective send MSS without the options of every segment (RFC 6691, RFC 9293 §3.7.1).
pub(super) fn effective_mss(constant: &TcpConst, path_mtu_payload: usize) -> u64 {
    let option = if constant.timestamp_enabled { TIMESTAMPS_OPTION } else { 0 };
    let mss = path_mtu_payload.min(usize::from(constant.remote_mss)).max(MSS_MIN);
    (mss - option) as u64
}

/// Path MTU of a connection. All MTUs are bytes of an IP packet.
#[derive(Clone, Copy, Debug)]
pub(super) struct PathMtu {
    /// Path MTU set by the host and the link.
    configured: u32,
    current: u32,
    ipv6: bool,
    raise_at: Option<Instant>,
    /// Payload bytes of the largest segment acknowledged since the path MTU changed.
    proven: u64,
    /// Path MTU before a black-hole reduction, until data is acknowledged.
    before_black_hole: Option<u32>,
    /// Timeouts of the current segment that have already caused a reduction.
    timeouts_handled: u8,
    /// End of the flight at the first ICMP reduction.
    flight_end: Position,
    flight_reductions: u8,
    /// Last soft error, and SND.UNA at that time: an advance makes it obsolete.
    soft_error: Option<(SoftError, Position)>,
}

impl PathMtu {
    /// `payload`: bytes of a packet without IP and TCP headers, options not deducted.
    pub(super) fn new(payload: usize, ipv6: bool, una: Position) -> Self {
        let mut path = Self {
            configured: 0,
            current: 0,
            ipv6,
            raise_at: None,
            proven: 0,
            before_black_hole: None,
            timeouts_handled: 0,
            flight_end: una,
            flight_reductions: 0,
            soft_error: None,
        };
        path.configure(payload);
        path
    }

    /// Sets the path MTU configured by the host.
    fn configure(&mut self, payload: usize) {
        let payload = u32::try_from(payload).unwrap_or(u32::MAX);
        self.configured = payload.saturating_add(self.headers());
        self.current = self.configured;
        self.raise_at = None;
    }

    const fn headers(&self) -> u32 {
        if self.ipv6 { HEADERS_IPV6 } else { HEADERS_IPV4 }
    }

    const fn min_mtu(&self) -> u32 {
        if self.ipv6 { MTU_MIN_IPV6 } else { MTU_MIN_IPV4 }
    }

    fn payload(&self, mtu: u32) -> usize {
        saturate(u64::from(mtu.saturating_sub(self.headers())))
    }

    /// Soft error, if no data was acknowledged since.
    pub(super) fn soft_error(&self, una: Position) -> Option<SoftError> {
        self.soft_error.filter(|(_, then)| *then == una).map(|(error, _)| error)
    }

    /// MTU reported by a too-big message; `None` if it is not smaller or not plausible.
    fn reported(&self, next_hop_mtu: u32, packet_len: u32) -> Option<u32> {
        // RFC 1191 §5: a packet sent before the last reduction has no new information.
        let below = |mtu: &&u32| **mtu < packet_len;
        let mtu = match next_hop_mtu {
            0 => *PLATEAUS.iter().find(below)?,
            mtu => mtu,
        };
        (self.min_mtu() <= mtu && mtu < self.current).then_some(mtu)
    }
}

impl Connection {
    /// Processes an ICMP error that quotes a segment of this connection. Returns true if it was accepted because its
    /// sequence number is in flight (RFC 5927 §4.1). Call [`Connection::poll_transmit`] afterwards.
    pub fn handle_path_error(&mut self, now: Instant, error: &PathError) -> bool {
        self.now = now;
        let at = self.snd.una.locate(error.seq);
        let in_flight = self.snd.una <= at && at < self.snd.max;
        if self.stopped || self.is_ended() || !in_flight {
            self.counters.path_errors_ignored += 1;
            return false;
        }
        match error.kind {
            PathErrorKind::TooBig { next_hop_mtu, packet_len } => {
                self.on_too_big(next_hop_mtu, packet_len);
            }
            PathErrorKind::Soft(soft) => {
                self.counters.soft_errors += 1;
                self.path_mtu.soft_error = Some((soft, self.snd.una));
            }
        }
        true
    }

    fn on_too_big(&mut self, next_hop_mtu: u32, packet_len: u32) {
        let Some(mtu) = self.path_mtu.reported(next_hop_mtu, packet_len) else { return };
        let path = &mut self.path_mtu;
        if self.snd.una >= path.flight_end {
            path.flight_end = self.snd.max;
            path.flight_reductions = 0;
        }
        if !self.config.path.icmp_too_big || path.flight_reductions >= REDUCTIONS_PER_FLIGHT_MAX {
            return;
        }
        path.flight_reductions += 1;
        self.path_mtu.before_black_hole = None;
        self.reduce_path_mtu(mtu);
        // RFC 1191 §6.4, RFC 8201 §5.4: not congestion, so the window is kept. As in Linux all segments are
        // retransmitted at once, not one: the dropped ones have left the path.
        self.recovery.on_path_mtu_reduced(self.mss);
        if !self.recovery.is_idle() {
            self.timers.set(Timer::Retransmit, self.rtt.timeout(self.now));
        }
        self.arm_tail_probe();
    }

    /// Processes an acceptable acknowledgment up to `ack`, before SND.UNA advances.
    pub(super) fn confirm_path_mtu(&mut self, ack: Position) {
        let acked = ack.since(self.snd.una);
        if acked == 0 {
            return;
        }
        // A timeout retransmits one segment, of the smaller size; more acknowledged bytes were sent before.
        if let Some(before) = self.path_mtu.before_black_hole.take().filter(|_| acked > self.mss) {
            self.path_mtu.raise_at = None;
            self.set_path_mtu(before);
        }
        if self.path_mtu.proven < self.mss.min(acked) {
            let first = self.first_len();
            if first <= acked {
                self.path_mtu.proven = self.path_mtu.proven.max(first);
            }
        }
    }

    /// RFC 2923 §2.1, RFC 4821 §7.7: processes the `attempts`th consecutive timeout of one segment. After the threshold
    /// its size is reduced, if there is a smaller one.
    pub(super) fn detect_black_hole(&mut self, attempts: u8) {
        if attempts == 1 {
            self.path_mtu.timeouts_handled = 0;
        }
        let first = self.first_len();
        let timeouts = if first <= self.path_mtu.proven {
            BLACK_HOLE_TIMEOUTS_PROVEN
        } else {
            BLACK_HOLE_TIMEOUTS
        };
        let enough = attempts.saturating_sub(self.path_mtu.timeouts_handled) >= timeouts;
        if !enough || !self.config.path.black_hole_detection {
            return;
        }
        let fallbacks: &[u32] = if self.path_mtu.ipv6 { &FALLBACKS_IPV6 } else { &FALLBACKS_IPV4 };
        let smaller =
            |mtu: &&u32| effective_mss(&self.constant, self.path_mtu.payload(**mtu)) < first;
        if let Some(&mtu) = fallbacks.iter().find(smaller) {
            self.counters.black_holes += 1;
            self.path_mtu.before_black_hole.get_or_insert(self.path_mtu.current);
            self.path_mtu.timeouts_handled = attempts;
            self.reduce_path_mtu(mtu);
        }
    }

    /// Payload bytes of the segment at SND.UNA if retransmitted now.
    fn first_len(&self) -> u64 {
        let each_list = self.config.push == super::PushPolicy::EachList;
        let cut = self.queue.measure(self.snd.una, saturate(self.mss), each_list);
        cut.len as u64
    }

    fn reduce_path_mtu(&mut self, mtu: u32) {
        self.counters.path_mtu_reductions += 1;
        self.path_mtu.raise_at = Some(self.now + RAISE_AFTER);
        self.set_path_mtu(mtu);
    }

    fn set_path_mtu(&mut self, mtu: u32) {
        self.path_mtu.current = mtu;
        self.path_mtu.proven = 0;
        self.mss = effective_mss(&self.constant, self.path_mtu.payload(mtu));
        self.congestion.set_mss(self.mss);
    }

    /// Tries the original size again after [`RAISE_AFTER`] (RFC 1191 §6.3).
    pub(super) fn raise_path_mtu(&mut self) {
        if self.path_mtu.raise_at.is_some_and(|at| at <= self.now) {
            self.path_mtu.raise_at = None;
            self.set_path_mtu(self.path_mtu.configured);
        }
    }

    /// Path MTU in bytes of an IP packet.
    pub fn path_mtu(&self) -> u32 {
        self.path_mtu.current
    }

    /// Sets a changed path MTU (CH-UPD-5); see [`Connection::from_state`] for the argument. Lost data is retransmitted
    /// in segments of the new size.
    pub fn update_path_mtu(&mut self, path_mtu_payload: usize) {
        self.path_mtu.configure(path_mtu_payload);
        self.set_path_mtu(self.path_mtu.configured);
    }
}
