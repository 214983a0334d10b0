//! Options of loss recovery.

/// Switches for the parts of loss recovery, all enabled by default. Disable one for comparison, or on a network that it
/// does not suit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RecoveryOptions {
    /// Detect losses by time (RFC 8985 §6). Otherwise count sacked data (RFC 6675). No effect without SACK.
    pub rack: bool,
    /// Probe for a lost tail after two RTTs (RFC 8985 §7). Otherwise it is detected by the retransmission timer.
    pub tail_loss_probe: bool,
    /// Reduce the flight in proportion to the delivered bytes in fast recovery (RFC 9937). Otherwise nothing is sent
    /// until the flight is below the slow start threshold (RFC 6675 §5).
    pub prr: bool,
    /// Send new data on the first duplicate ACKs (RFC 3042).
    pub limited_transmit: bool,
    /// Lower the duplicate ACK threshold for a small flight without new data to send (RFC 5827). No effect if losses
    /// are detected by time, which needs no threshold.
    pub early_retransmit: bool,
    /// Send new data before further retransmissions after a timeout, to detect a spurious timeout (RFC 5682).
    pub f_rto: bool,
    /// Undo a reduction of the congestion window that was spurious: by timestamps (RFC 3522, RFC 4015), by DSACK, or
    /// after F-RTO.
    pub undo: bool,
    /// Process DSACKs (RFC 2883): they complete probes, widen the reordering window, and detect unnecessary
    /// retransmissions.
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
