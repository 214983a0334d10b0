//! A connection that is about to go back to the host, or that may not send because an object below it was
//! invalidated.
//!
//! A terminate (CH §5.5) is: [`Connection::prepare_upload`]; then events up and segments out until there are
//! none, which are the ACK that is owed and no data; then [`Connection::into_state`]. No segment is processed
//! in between (CH-TRM-7). What the client posts in between goes back with the rest.
//!
//! Invalidated (CH §5.4), a connection sends nothing. As soon as it has something to send it stops with
//! Retrieve(InvalidState), once. One that has nothing to send waits, and goes on if its path is linked to
//! another neighbor.

use super::{Connection, Event, Owed, TcpPhase, Transmit, UploadReason, receive::AckDue};
use crate::{state::ConnectionState, status::NdisStatus, time::Instant};

/// What keeps a connection from sending.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Hold {
    /// It is being uploaded: nothing but the ACK that is owed.
    pub(super) uploading: bool,
    /// An object that it depends on was invalidated: nothing at all.
    invalid: bool,
}

impl Hold {
    pub(super) const fn any(self) -> bool {
        self.uploading || self.invalid
    }
}

impl Connection {
    /// The host takes the connection back. Everything that must be completed UPLOAD_IN_PROGRESS becomes
    /// events, an ACK that was delayed is due now (CH-TRM-3, -11). Outstanding sends stay: they go back as
    /// they are (CH-TRM-5). Receive requests do not; to be called when what waits has been delivered as far as
    /// they take it (CH-TRM-6).
    pub fn prepare_upload(&mut self, now: Instant) {
        self.now = now;
        self.hold.uploading = true;
        self.return_receives();
        if self.is_ended() {
            return;
        }
        self.surrender_disconnect();
        if !self.stopped && self.receiver.ack_due() != AckDue::No {
            self.receiver.ack_now();
        }
    }

    /// CH-TRM-3, CH-DIS-1: a graceful disconnect of a connection that is being uploaded is the host's to finish.
    pub(super) fn surrender_disconnect(&mut self) {
        if !self.hold.uploading {
            return;
        }
        let list = self.queue.surrender_disconnect(self.snd.una, ConnectionState::DISCONNECT_DATA);
        self.events.extend(list.map(Event::DisconnectComplete));
    }

    /// An object that the connection depends on has become invalid, or valid again (CH-INV-2).
    pub fn set_invalid(&mut self, now: Instant, invalid: bool) {
        self.now = now;
        self.hold.invalid = invalid;
    }

    /// The next segment of a connection that is held back.
    pub(super) fn poll_transmit_held(&mut self) -> Option<Transmit> {
        if !self.hold.invalid {
            let due = self.receiver.ack_due() == AckDue::Now;
            return due.then(|| self.transmit_bare(self.acceptable_seq()));
        }
        let Owed { reset: _, window_probe, tail_probe, keep_alive, small_segment: _ } = self.owed;
        let wants = self.snd.una < self.send_end()
            || self.receiver.ack_due() != AckDue::No
            || window_probe
            || tail_probe
            || keep_alive;
        if wants && !self.hold.uploading {
            // CH §13 #10: raised once, at the first attempt to send.
            self.stop(UploadReason::InvalidState);
        }
        None
    }

    /// The connection's state cannot be trusted any more (CH §5.6): it stops, and the client is notified first that it
    /// is to be uploaded, then that it is lost. To be followed by [`Connection::give_up`] when the host terminates.
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

    /// Ends a connection that has failed: outstanding requests complete REQUEST_ABORTED (CH §5.6), nothing goes out.
    pub fn give_up(&mut self, now: Instant) {
        self.now = now;
        self.abort_requests();
        if let Some(mut list) = self.aborting.take() {
            list.complete(NdisStatus::REQUEST_ABORTED, 0);
            self.events.push_back(Event::DisconnectComplete(list));
        }
        self.abort_receives();
        self.end();
    }

    /// A mandatory reason was raised: no segment is processed any more. Those that come belong to the host
    /// once it has the connection back (CH §9.3).
    pub const fn is_stopped(&self) -> bool {
        self.stopped
    }

    /// Whether an object that the connection depends on is invalid: nothing may go out.
    pub const fn is_invalid(&self) -> bool {
        self.hold.invalid
    }

    /// Whether cached variables have changed since this was asked last.
    pub const fn take_cached_changed(&mut self) -> bool {
        core::mem::replace(&mut self.cached_changed, false)
    }

    /// The connection is closed, and only events are pending.
    pub fn is_closed(&self) -> bool {
        self.is_ended()
    }

    /// Bytes that the peer has acknowledged, and bytes received in order, since the take-over.
    pub const fn bytes_moved(&self) -> (u64, u64) {
        (self.counters.bytes_acked, self.counters.bytes_received)
    }

    /// Its state in the sense of RFC 9293.
    pub const fn phase(&self) -> TcpPhase {
        self.phase
    }

    /// Makes an ACK due in TIME-WAIT, if something was retransmitted before. Returns whether.
    pub fn repeat_last_ack(&mut self) -> bool {
        let waits = self.phase == TcpPhase::TimeWait && self.counters.total_retrans > 0;
        if waits {
            self.receiver.ack_now();
        }
        waits
    }
}

impl TcpPhase {
    /// Whether a connection in this state counts as established (CH §11, CurrentlyEstablished).
    pub const fn is_established(self) -> bool {
        matches!(self, Self::Established | Self::CloseWait)
    }
}
