//! A connection under upload, or with an invalidated object that keeps it from sending.
//!
//! A terminate (CH §5.5) consists of [`Connection::prepare_upload`], a drain of events and segments, and
//! [`Connection::into_state`]. The drain sends a pending ACK and no data. No segment is processed in between
//! (CH-TRM-7). Requests that the client posts in between are uploaded with the rest.
//!
//! An invalidated connection (CH §5.4) sends nothing. At its first attempt to send it stops with
//! Retrieve(InvalidState), once. Without anything to send it stays idle, and continues if its path is linked to another
//! neighbor.

use super::{
    Connection, Event, PendingSegments, TcpPhase, Transmit, UploadReason, receive::AckDue,
};
use crate::{state::ConnectionState, status::NdisStatus, time::Instant};

/// Conditions that keep a connection from sending.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Hold {
    /// True during an upload: only a pending ACK is sent.
    pub(super) uploading: bool,
    /// True if an object that the connection depends on was invalidated: nothing is sent.
    invalid: bool,
}

impl Hold {
    pub(super) const fn any(self) -> bool {
        self.uploading || self.invalid
    }
}

impl Connection {
    /// Starts the upload. Requests that must complete UPLOAD_IN_PROGRESS become events, and a delayed ACK becomes due
    /// (CH-TRM-3, -11). Outstanding sends are uploaded unchanged (CH-TRM-5). Receive requests are not: call this after
    /// pending data was delivered to them as far as they take it (CH-TRM-6).
    pub fn prepare_upload(&mut self, now: Instant) {
        self.now = now;
        self.hold.uploading = true;
        self.return_receives();
        if self.is_ended() {
            return;
        }
        self.return_disconnect();
        if !self.stopped && self.receiver.ack_due() != AckDue::No {
            self.receiver.ack_now();
        }
    }

    /// CH-TRM-3, CH-DIS-1: the host finishes the graceful disconnect of a connection under upload.
    pub(super) fn return_disconnect(&mut self) {
        if !self.hold.uploading {
            return;
        }
        let list = self.queue.return_disconnect(self.snd.una, ConnectionState::DISCONNECT_DATA);
        self.events.extend(list.map(Event::DisconnectComplete));
    }

    /// Sets the validity of an object that the connection depends on (CH-INV-2).
    pub fn set_invalid(&mut self, now: Instant, invalid: bool) {
        self.now = now;
        self.hold.invalid = invalid;
    }

    /// Returns the next segment of a held connection.
    pub(super) fn poll_transmit_held(&mut self) -> Option<Transmit> {
        if !self.hold.invalid {
            let due = self.receiver.ack_due() == AckDue::Now;
            return due.then(|| self.transmit_pure_ack(self.acceptable_seq()));
        }
        let PendingSegments { reset: _, window_probe, tail_probe, keep_alive, small_segment: _ } =
            self.pending;
        let has_output = self.snd.una < self.send_end()
            || self.receiver.ack_due() != AckDue::No
            || window_probe
            || tail_probe
            || keep_alive;
        if has_output && !self.hold.uploading {
            // CH §13 #10: raised once, at the first attempt to send.
            self.stop(UploadReason::InvalidState);
        }
        None
    }

    /// Stops the connection because its state is corrupt (CH §5.6). The client gets the upload request first, then the
    /// reset. [`Connection::close_failed`] follows when the host terminates.
    pub fn fail(&mut self, now: Instant) {
        self.now = now;
        if self.is_ended() {
            return;
        }
        self.stop(UploadReason::HardwareFailure);
        self.receiver.discard();
        self.aborted = true;
        self.peer_closed_raised = true;
        self.events.push_back(Event::Reset);
    }

    /// Closes a failed connection: outstanding requests complete REQUEST_ABORTED (CH §5.6), and nothing is sent.
    pub fn close_failed(&mut self, now: Instant) {
        self.now = now;
        self.abort_requests();
        if let Some(mut list) = self.aborting.take() {
            list.complete(NdisStatus::REQUEST_ABORTED, 0);
            self.events.push_back(Event::DisconnectComplete(list));
        }
        self.abort_receives();
        self.end();
    }

    /// True after a mandatory upload reason: segments are not processed. They belong to the host after the upload (CH
    /// §9.3).
    pub const fn is_stopped(&self) -> bool {
        self.stopped
    }

    /// True if an object that the connection depends on is invalid: nothing may be sent.
    pub const fn is_invalid(&self) -> bool {
        self.hold.invalid
    }

    /// True if cached variables have changed since the last call.
    pub const fn take_cached_changed(&mut self) -> bool {
        core::mem::replace(&mut self.cached_changed, false)
    }

    /// True if the connection is closed and only events are pending.
    pub fn is_closed(&self) -> bool {
        self.is_ended()
    }

    /// Bytes that the peer has acknowledged, and bytes received in order, since the offload.
    pub const fn bytes_moved(&self) -> (u64, u64) {
        (self.counters.bytes_acked, self.counters.bytes_received)
    }

    /// State of RFC 9293.
    pub const fn phase(&self) -> TcpPhase {
        self.phase
    }

    /// Makes an ACK due in TIME-WAIT if something was retransmitted before, and returns true if so.
    pub fn repeat_last_ack(&mut self) -> bool {
        let is_due = self.phase == TcpPhase::TimeWait && self.counters.total_retrans > 0;
        if is_due {
            self.receiver.ack_now();
        }
        is_due
    }
}

impl TcpPhase {
    /// True if a connection in this state counts as established (CH §11, CurrentlyEstablished).
    pub const fn is_established(self) -> bool {
        matches!(self, Self::Established | Self::CloseWait)
    }
}
