//! Which parts of loss recovery are in use.

/// One switch for each part of loss recovery. All are on by default; switching one off is for
/// comparison, and for networks that it does not suit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RecoveryOptions {
    /// Losses are found by time (RFC 8985 §6). Off: by counting what was sacked (RFC 6675). Without SACK
    /// this switch has no effect.
    pub rack: bool,
    /// A lost tail is asked for after two round trips (RFC 8985 §7). Off: the retransmission timer finds it.
    pub tail_loss_probe: bool,
    /// In fast recovery the flight shrinks in proportion to what is delivered (RFC 9937). Off: nothing is sent
    /// until the flight has fallen below the slow start threshold (RFC 6675 §5).
    pub prr: bool,
    /// The first duplicate ACKs let new data out (RFC 3042).
    pub limited_transmit: bool,
    /// A flight too small for the usual number of duplicate ACKs, with nothing new to send, needs fewer
    /// (RFC 5827). Has no effect where losses are found by time: that rule needs no number.
    pub early_retransmit: bool,
    /// After a time-out new data is sent before more is resent, to see whether the time-out was spurious
    /// (RFC 5682).
    pub f_rto: bool,
    /// A reduction of the congestion window that answered no loss is taken back: by timestamps (RFC 3522,
    /// RFC 4015), by reports of duplicates, or after F-RTO.
    pub undo: bool,
    /// Reports of duplicates (RFC 2883) are listened to: they end probes, widen the reordering window, and
    /// show that retransmissions were not needed.
    pub dsack: bool,
}

impl Default for RecoveryOptions {
    fn default() -> Self {
        Self {
            rack: true,
            tail_loss_probe: true,
            prr: true,
            limited_transmit: true,
            early_retransmit: true,
            f_rto: true,
            undo: true,
            dsack: true,
        }
    }
}
