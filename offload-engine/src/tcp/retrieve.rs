//! Upload requests of the target (CH §8.2), and the ideal send backlog (CH-ST-2).
//!
//! Mandatory reasons stop the connection: nothing more is processed, acknowledged or sent, and posted requests are kept
//! for the upload (CH-EVT-1). Optional reasons are disabled unless [`UploadThresholds`] enables them; the connection
//! continues, with or without an upload. They are raised in ESTABLISHED only: CH-EVT-2 excludes FIN_WAIT_1, FIN_WAIT_2
//! and CLOSE_WAIT, and in later states a connection is about to end. At most one of them is raised per RTT and per
//! [`UPLOAD_REQUEST_INTERVAL`].
//!
//! SendBacklogChange is raised when the ideal size has doubled or halved since it was indicated, at most once per RTT.

use super::{
    Activity, Connection, Event, SEND_BACKLOG, SmallIo, TcpPhase, Timer, UploadReason,
    congestion::Congestion, saturate,
};
use crate::time::{Duration, Instant};

/// Minimum time between two optional upload requests.
pub const UPLOAD_REQUEST_INTERVAL: Duration = Duration::from_secs(1);

/// Counters of the current sample, compared with the thresholds.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct UploadMonitor {
    requested_at: Option<Instant>,
    bytes_moved: u64,
    bytes_sent: u64,
    bytes_resent: u64,
    small_requests: u32,
    bytes_indicated: u64,
    segments: u64,
    fragments: u64,
    data_segments: u64,
    out_of_order: u64,
}

/// Ideal send backlog, as last indicated.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct SendBacklog {
    indicated: u32,
    indicated_at: Option<Instant>,
}

impl Connection {
    /// Counts a fragment of a datagram from this connection's peer that was passed to the host (CH §9.1,
    /// HighFragmentation).
    pub fn note_fragment(&mut self, now: Instant) {
        self.now = now;
        self.upload_monitor.fragments += 1;
        self.check_fragments();
    }

    /// SendBacklogSize: bytes that the poster should keep posted and not completed (CH-ST-2). This is the congestion
    /// controller's estimate of the bandwidth-delay product, bounded by the peer's window, plus [`SEND_BACKLOG`], so
    /// that unsent data is queued when an acknowledgment arrives. It does not depend on the bytes posted.
    pub fn send_backlog_size(&self) -> u32 {
        let window = self.congestion.cwnd().min(self.snd.wnd);
        u32::try_from(window + SEND_BACKLOG as u64).unwrap_or(u32::MAX)
    }

    /// ReceiveBacklogSize: bytes received and not yet consumed (CH-ST-3).
    pub fn receive_backlog_size(&self) -> u32 {
        u32::try_from(self.receiver.backlog_bytes()).unwrap_or(u32::MAX)
    }

    /// Initializes the monitor at the offload.
    pub(super) fn start_upload_monitor(&mut self) {
        self.send_backlog = SendBacklog { indicated: self.send_backlog_size(), indicated_at: None };
        self.start_activity_timer();
    }

    /// CH-ST-2, SendBacklogChange: small changes are not indicated.
    #[inline]
    pub(super) fn indicate_send_backlog(&mut self) {
        let SendBacklog { indicated, indicated_at } = self.send_backlog;
        let size = self.send_backlog_size();
        if size < indicated.saturating_mul(2) && size.saturating_mul(2) > indicated {
            return;
        }
        let round_trip = self.rtt.srtt().unwrap_or_default();
        if indicated_at.is_some_and(|at| self.now - at < round_trip) {
            return;
        }
        self.send_backlog = SendBacklog { indicated: size, indicated_at: Some(self.now) };
        self.events.push_back(Event::SendBacklogChange(saturate(size.into())));
    }

    /// Requests an upload for an optional reason (CH-EVT-1, -2).
    pub(super) fn request_optional_upload(&mut self, reason: UploadReason) {
        let interval = self.rtt.srtt().unwrap_or_default().max(UPLOAD_REQUEST_INTERVAL);
        let too_soon = self.upload_monitor.requested_at.is_some_and(|at| self.now - at < interval);
        if too_soon || self.phase != TcpPhase::Established || self.stopped {
            return;
        }
        self.upload_monitor.requested_at = Some(self.now);
        self.events.push_back(Event::Retrieve(reason));
    }

    fn start_activity_timer(&mut self) {
        if let Some(Activity { interval, bytes: _ }) = self.config.upload.low_activity {
            let interval = interval.max(Duration::from_millis(1));
            self.timers.set(Timer::Activity, self.now + interval);
        }
    }

    /// Evaluates a complete sample of the traffic.
    pub(super) fn on_activity_timeout(&mut self) {
        let moved = self.counters.bytes_acked + self.counters.bytes_received;
        let recent = moved - self.upload_monitor.bytes_moved;
        self.upload_monitor.bytes_moved = moved;
        if self.config.upload.low_activity.is_some_and(|least| recent < least.bytes) {
            self.request_optional_upload(UploadReason::LowActivity);
        }
        self.start_activity_timer();
    }

    /// Evaluates the drop rate after an acknowledgment.
    #[inline]
    pub(super) fn check_drop_rate(&mut self) {
        let Some(share) = self.config.upload.high_drop_rate else { return };
        let (sent, resent) = (self.counters.bytes_sent, self.counters.bytes_retrans);
        let again = resent - self.upload_monitor.bytes_resent;
        let all = sent - self.upload_monitor.bytes_sent + again;
        let Some(exceeded) = share.is_exceeded(again.div_ceil(self.mss), all / self.mss) else {
            return;
        };
        (self.upload_monitor.bytes_sent, self.upload_monitor.bytes_resent) = (sent, resent);
        if exceeded {
            self.request_optional_upload(UploadReason::HighDropRate);
        }
    }

    /// Counts `pieces` received segments. `data` is true if they have payload, `beyond` if they are out of order.
    #[inline]
    pub(super) fn check_arrival(&mut self, pieces: u32, data: bool, beyond: bool) {
        self.upload_monitor.segments += u64::from(pieces);
        self.check_fragments();
        let Some(share) = self.config.upload.high_out_of_order.filter(|_| data) else { return };
        self.upload_monitor.data_segments += u64::from(pieces);
        self.upload_monitor.out_of_order += if beyond { u64::from(pieces) } else { 0 };
        let UploadMonitor { out_of_order, data_segments, .. } = self.upload_monitor;
        let Some(exceeded) = share.is_exceeded(out_of_order, data_segments) else { return };
        (self.upload_monitor.out_of_order, self.upload_monitor.data_segments) = (0, 0);
        if exceeded {
            self.request_optional_upload(UploadReason::HighOutOfOrderPackets);
        }
    }

    #[inline]
    fn check_fragments(&mut self) {
        let Some(share) = self.config.upload.high_fragmentation else { return };
        let UploadMonitor { fragments, segments, .. } = self.upload_monitor;
        let Some(exceeded) = share.is_exceeded(fragments, fragments + segments) else { return };
        (self.upload_monitor.fragments, self.upload_monitor.segments) = (0, 0);
        if exceeded {
            self.request_optional_upload(UploadReason::HighFragmentation);
        }
    }

    /// Evaluates the size of a posted receive request with `room` free bytes.
    pub(super) fn check_posted_request(&mut self, room: usize) {
        self.upload_monitor.bytes_indicated = 0;
        let Some(SmallIo { bytes, requests }) = self.config.upload.small_io else { return };
        if room == 0 {
            return;
        }
        self.upload_monitor.small_requests =
            if room < bytes { self.upload_monitor.small_requests + 1 } else { 0 };
        if self.upload_monitor.small_requests >= requests.max(1) {
            self.upload_monitor.small_requests = 0;
            self.request_optional_upload(UploadReason::SmallIo);
        }
    }

    /// Counts `count` indicated bytes.
    #[inline]
    pub(super) fn check_indication(&mut self, count: usize) {
        let Some(most) = self.config.upload.no_buffer_preposting else { return };
        self.upload_monitor.bytes_indicated += count as u64;
        if self.upload_monitor.bytes_indicated > most {
            self.upload_monitor.bytes_indicated = 0;
            self.request_optional_upload(UploadReason::NoBufferPreposting);
        }
    }
}
