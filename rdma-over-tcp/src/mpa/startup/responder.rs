//! Responder of start-up: the side that sends the Reply.

use bytes::Bytes;

use super::{
    Enhanced, Frame, FrameKind, Framing, Negotiated, PrivateData, ReadDepth, ReadLimits, Revision,
    Role, RtrKind, RtrSet, StartupError,
};

/// Configuration of a responder, independent of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResponderConfig {
    /// True if CRCs are preferred. False only on an administrator's explicit configuration (MPA-4.4-2).
    pub crc: bool,
    /// True if markers are requested from the peer.
    pub markers: bool,
    /// RTR messages that this side supports. An empty set means Write (MPE-9.2-2).
    pub rtr: RtrSet,
}

impl Default for ResponderConfig {
    /// CRC, no markers, RTR of any kind except Send, which would consume a receive of the ULP.
    fn default() -> Self {
        Self { crc: true, markers: false, rtr: RtrSet { send: false, write: true, read: true } }
    }
}

/// Responder before the Request is received.
#[derive(Clone, Debug)]
pub struct Responder {
    config: ResponderConfig,
}

/// Request that the ULP has to accept or reject.
#[derive(Clone, Debug)]
pub struct Offer {
    config: ResponderConfig,
    revision: Revision,
    crc: bool,
    markers: bool,
    enhanced: Option<Enhanced>,
    private_data: Bytes,
}

impl Responder {
    /// Creates a responder with this configuration.
    pub const fn new(config: ResponderConfig) -> Self {
        Self { config }
    }

    /// Parses the octets received from the peer so far; `None` while octets are missing.
    ///
    /// # Errors
    /// [`StartupError::Frame`], and [`StartupError::EarlyData`] if octets follow the Request: an initiator must not
    /// send before the Reply.
    pub fn receive(&self, octets: &[u8]) -> Result<Option<Offer>, StartupError> {
        match Frame::parse(FrameKind::Request, octets)? {
            None => Ok(None),
            Some((_, taken)) if taken < octets.len() => {
                Err(StartupError::EarlyData { octets: octets.len() - taken })
            }
            Some((frame, _)) => Ok(Some(self.handle_request(&frame))),
        }
    }

    /// Converts a Request to an offer. A well-formed Request causes no error: R is not checked (MPA-7.1.1-7).
    pub fn handle_request(&self, request: &Frame) -> Offer {
        let Frame { kind: _, markers, crc, reject: _, revision, enhanced, private_data } = request;
        Offer {
            config: self.config,
            revision: *revision,
            crc: *crc,
            markers: *markers,
            enhanced: *enhanced,
            private_data: private_data.as_bytes().clone(),
        }
    }
}

impl Offer {
    /// Returns the revision of the Request.
    pub const fn revision(&self) -> Revision {
        self.revision
    }

    /// Returns the initiator's parameters, for the ULP (MPE-9.1-1).
    pub const fn peer(&self) -> Option<&Enhanced> {
        self.enhanced.as_ref()
    }

    /// Returns the private data of the initiator's ULP.
    pub const fn private_data(&self) -> &Bytes {
        &self.private_data
    }

    /// Accepts the Request. Returns the Reply, to be sent in one segment with no octets after it, and the negotiated
    /// parameters. The decoder starts before the Reply is sent, and no FPDU is sent before one is received.
    pub fn accept(self, limits: ReadLimits, private_data: PrivateData) -> (Bytes, Negotiated) {
        let mut limits =
            ReadLimits { ird: limits.ird.min(ReadDepth::MAX), ord: limits.ord.min(ReadDepth::MAX) };
        let rtr = self.choose_rtr();
        let enhanced = self.enhanced.map(|peer| {
            if rtr == Some(RtrKind::Read) {
                limits.ird = limits.ird.max(1); // MPE-9.1-3
            }
            if let Some(ird) = peer.ird.reads() {
                limits.ord = limits.ord.min(ird); // MPE-9.1-2
            }
            // Unspecified limits are answered as unspecified: MPE-9.1-8, MPE-9.1-9.
            let answer = |asked: ReadDepth, own| {
                if asked == ReadDepth::UNSPECIFIED { asked } else { ReadDepth::new(own) }
            };
            Enhanced {
                ird: answer(peer.ord, limits.ird),
                ord: answer(peer.ird, limits.ord),
                peer_to_peer: peer.peer_to_peer,
                rtr: rtr.map_or(RtrSet::NONE, RtrSet::only),
            }
        });
        let framing = Framing {
            crc: self.config.crc || self.crc,
            send_markers: self.markers,
            receive_markers: self.config.markers,
        };
        let negotiated = Negotiated {
            role: Role::Responder,
            revision: self.revision,
            enhanced: enhanced.is_some(),
            framing,
            limits,
            rtr,
        };
        (self.reply(false, framing.crc, enhanced, private_data), negotiated)
    }

    /// Rejects the Request. `limits` are those required by this side (MPE-9.1-4). MPA ends with this Reply, and the ULP
    /// decides about TCP (MPA-7.1.2-4).
    pub fn reject(self, limits: ReadLimits, private_data: PrivateData) -> Bytes {
        let enhanced = self.enhanced.map(|peer| Enhanced {
            ird: ReadDepth::new(limits.ird),
            ord: ReadDepth::new(limits.ord),
            peer_to_peer: peer.peer_to_peer,
            rtr: self.choose_rtr().map_or(RtrSet::NONE, RtrSet::only),
        });
        let crc = self.config.crc || self.crc;
        self.reply(true, crc, enhanced, private_data)
    }

    /// Selects exactly one kind, so that both sides expect the same message: Write before Read before Send, of those
    /// offered, otherwise of this side's own (MPE-9.2-5).
    fn choose_rtr(&self) -> Option<RtrKind> {
        let peer = self.enhanced.filter(|peer| peer.peer_to_peer)?;
        let own = self.config.rtr;
        let kind = peer.rtr.and(own).preferred().or_else(|| own.preferred());
        Some(kind.unwrap_or(RtrKind::Write))
    }

    fn reply(
        self,
        reject: bool,
        crc: bool,
        enhanced: Option<Enhanced>,
        private_data: PrivateData,
    ) -> Bytes {
        Frame {
            kind: FrameKind::Reply,
            markers: self.config.markers,
            crc,
            reject,
            revision: self.revision,
            enhanced,
            private_data,
        }
        .emit()
    }
}
