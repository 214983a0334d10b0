//! Policies and time limits of an adapter.

use offload_engine::time::Duration;

use super::{info::AdapterInfo, objects::Capabilities};
use crate::mpa::startup::{Revision, RtrSet};

/// How large FPDUs are cut.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum FpduSize {
    /// By the EMSS: no FPDU crosses a segment, and every segment begins with one (RFC 5044 5.1). Needed by
    /// peers such as siw, which fail when pad and CRC are split over segments.
    Emss,
    /// As large as MPA and the link's super-segment allow: fewer headers and CRCs where super-segments
    /// flow.
    Max,
    /// As [`FpduSize::Max`] where the path carries super-segments, but pad and CRC are never split over the segments
    /// that it is cut into; as [`FpduSize::Emss`] elsewhere, and for peers that demand markers.
    #[default]
    Auto,
}

/// Configuration of an adapter.
#[derive(Clone, Debug)]
pub struct AdapterConfig {
    /// Limits told to consumers.
    pub info: AdapterInfo,
    /// Table sizes.
    pub capabilities: Capabilities,
    /// Seed of the tokens.
    pub seed: u128,
    /// Size of FPDUs.
    pub fpdu_size: FpduSize,
    /// Ask for CRCs. A peer's wish turns them on anyway.
    pub crc: bool,
    /// Ask the peer for markers.
    pub markers: bool,
    /// Revision of the Request. One for peers that know no other: then there is no RTR, read limits are not
    /// negotiated, and the active consumer has to send first (NDK-CON-9).
    pub revision: Revision,
    /// RTR messages that this side sends and understands (RFC 6581 9.2); none: the client-server model.
    pub rtr: RtrSet,
    /// TCP handshake of a connect.
    pub connect_timeout: Duration,
    /// From the Request to the Reply, at the active side (RFC 5044 7.1.2).
    pub reply_timeout: Duration,
    /// From the connection to the Request, at the passive side.
    pub request_timeout: Duration,
    /// From the Reply to the peer's first FPDU: a consumer may be slow to complete (NDK-CON-6).
    pub accept_timeout: Duration,
    /// From a disconnect to the acknowledgement of its FIN.
    pub disconnect_timeout: Duration,
    /// From a Terminate to the reset, if the peer does not close.
    pub terminate_timeout: Duration,
    /// Flush when the peer closes, as NDSPI programs expect (NDK-DISC-3). NDKPI says no.
    pub flush_on_peer_close: bool,
}

impl Default for AdapterConfig {
    fn default() -> Self {
        Self {
            info: AdapterInfo::default(),
            capabilities: Capabilities::default(),
            seed: 1,
            fpdu_size: FpduSize::default(),
            crc: true,
            markers: false,
            revision: Revision::Two,
            rtr: RtrSet { send: false, write: true, read: true },
            connect_timeout: Duration::from_secs(30),
            reply_timeout: Duration::from_secs(10),
            request_timeout: Duration::from_secs(5),
            accept_timeout: Duration::from_secs(120),
            disconnect_timeout: Duration::from_secs(30),
            terminate_timeout: Duration::from_secs(5),
            flush_on_peer_close: false,
        }
    }
}
