//! Initiator of start-up: the side that sends the Request.

use bytes::Bytes;

use super::{
    Enhanced, Frame, FrameKind, Framing, Negotiated, ReadDepth, ReadLimits, Revision, Role,
    RtrKind, RtrSet, StartupConfig, StartupError,
};

/// Initiator of start-up.
#[derive(Clone, Debug)]
pub struct Initiator {
    config: StartupConfig,
}

/// Reply that accepts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// Result of the negotiation. This side may send immediately, its RTR message first.
    pub negotiated: Negotiated,
    /// The responder's parameters, for the ULP (MPE-9.1-7).
    pub peer: Option<Enhanced>,
    /// Private data of the responder's ULP.
    pub private_data: Bytes,
}

impl Initiator {
    /// Creates an initiator with this configuration.
    pub const fn new(config: StartupConfig) -> Self {
        Self { config }
    }

    /// Changes whether the Request requests CRCs, before it is sent.
    pub const fn request_crc(&mut self, crc: bool) {
        self.config.crc = crc;
    }

    /// Returns the Request, to be sent in one segment with no octets after it.
    pub fn request(&self) -> Bytes {
        let StartupConfig { revision, crc, markers, limits, rtr, private_data } = &self.config;
        let enhanced = (*revision >= Revision::Two).then(|| Enhanced {
            ird: ReadDepth::new(limits.ird),
            ord: ReadDepth::new(limits.ord),
            peer_to_peer: *rtr != RtrSet::NONE,
            rtr: *rtr,
        });
        Frame {
            kind: FrameKind::Request,
            markers: *markers,
            crc: *crc,
            reject: false,
            revision: *revision,
            enhanced,
            private_data: private_data.clone(),
        }
        .emit()
    }

    /// Parses the octets received from the peer so far. Returns the outcome and the length of the Reply in octets, or
    /// `None` while octets are missing. FPDUs may follow directly after the Reply: the decoder starts at that octet.
    ///
    /// # Errors
    /// As [`handle_reply`](Self::handle_reply), and [`StartupError::Frame`].
    pub fn receive(&self, octets: &[u8]) -> Result<Option<(Reply, usize)>, StartupError> {
        match Frame::parse(FrameKind::Reply, octets)? {
            None => Ok(None),
            Some((frame, taken)) => Ok(Some((self.handle_reply(&frame)?, taken))),
        }
    }

    /// Compares the Reply with the Request.
    ///
    /// # Errors
    /// Any [`StartupError`] except `Frame` and `EarlyData`.
    pub fn handle_reply(&self, reply: &Frame) -> Result<Reply, StartupError> {
        let StartupConfig { revision, crc, markers, limits, rtr, private_data: _ } = &self.config;
        if reply.reject {
            return Err(StartupError::Rejected {
                private_data: reply.private_data.as_bytes().clone(),
                enhanced: reply.enhanced,
            });
        }
        let asked_enhanced = *revision >= Revision::Two;
        if reply.revision > *revision || reply.enhanced.is_some() != asked_enhanced {
            return Err(StartupError::Form {
                revision: reply.revision,
                enhanced: reply.enhanced.is_some(),
                requested: *revision,
            });
        }
        let framing = Framing {
            crc: *crc || reply.crc,
            send_markers: reply.markers,
            receive_markers: *markers,
        };
        let limits =
            ReadLimits { ird: limits.ird.min(ReadDepth::MAX), ord: limits.ord.min(ReadDepth::MAX) };
        let (limits, rtr) = match &reply.enhanced {
            None => (limits, None),
            Some(peer) => {
                (agree_on_reads(limits, peer, framing)?, choose_rtr(*rtr, peer, framing)?)
            }
        };
        Ok(Reply {
            negotiated: Negotiated {
                role: Role::Initiator,
                revision: reply.revision,
                enhanced: reply.enhanced.is_some(),
                framing,
                limits,
                rtr,
            },
            peer: reply.enhanced,
            private_data: reply.private_data.as_bytes().clone(),
        })
    }
}

/// Limits ORD to the responder's IRD; IRD must be at least the responder's ORD (MPE-9.1-5). An unspecified value has no
/// effect (MPE-9.1-10).
fn agree_on_reads(
    limits: ReadLimits,
    peer: &Enhanced,
    framing: Framing,
) -> Result<ReadLimits, StartupError> {
    match peer.ord.reads() {
        Some(wanted) if wanted > limits.ird => {
            Err(StartupError::InsufficientIrd { wanted, have: limits.ird, framing })
        }
        _ => Ok(ReadLimits {
            ird: limits.ird,
            ord: peer.ird.reads().map_or(limits.ord, |ird| ird.min(limits.ord)),
        }),
    }
}

/// Selects one of the offered kinds that the responder set (MPE-9.2-7). A Reply with A=0 sets none.
fn choose_rtr(
    offered: RtrSet,
    peer: &Enhanced,
    framing: Framing,
) -> Result<Option<RtrKind>, StartupError> {
    if offered == RtrSet::NONE {
        return Ok(None);
    }
    let theirs = if peer.peer_to_peer { peer.rtr } else { RtrSet::NONE };
    let common = offered.and(theirs);
    let usable = RtrSet { read: common.read && peer.ird.reads() != Some(0), ..common };
    match usable.preferred() {
        Some(kind) => Ok(Some(kind)),
        None if common.read => Err(StartupError::ReadRtrWithoutIrd { framing }),
        None => Err(StartupError::NoMatchingRtr { ours: offered, theirs, framing }),
    }
}
