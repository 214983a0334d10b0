//! The side that answers.

use bytes::Bytes;

use super::{
    Enhanced, Frame, FrameKind, Framing, Negotiated, PrivateData, ReadDepth, ReadLimits, Revision,
    Role, RtrKind, RtrSet, StartupError,
};

/// Configuration of a responder, before it knows the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResponderConfig {
    /// Prefer CRCs. Off only on an administrator's explicit wish (MPA-4.4-2).
    pub crc: bool,
    /// Ask the peer for markers.
    pub markers: bool,
    /// RTR messages that this side understands. An empty set means Write (MPE-9.2-2).
    pub rtr: RtrSet,
}

impl Default for ResponderConfig {
    /// CRC, no markers, RTR of any kind but Send, which would take a receive from the ULP.
    fn default() -> Self {
        Self { crc: true, markers: false, rtr: RtrSet { send: false, write: true, read: true } }
    }
}

/// A responder that waits for the Request.
#[derive(Clone, Debug)]
pub struct Responder {
    config: ResponderConfig,
}

/// A Request that waits for the ULP to accept or reject it.
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
    /// A responder that wants this.
    pub const fn new(config: ResponderConfig) -> Self {
        Self { config }
    }

    /// Takes what has come from the peer so far; `None` while octets are missing.
    ///
    /// # Errors
    /// [`StartupError::Frame`], and [`StartupError::EarlyData`] when octets lie behind the Request:
    /// an initiator has to wait for the Reply.
    pub fn receive(&self, octets: &[u8]) -> Result<Option<Offer>, StartupError> {
        match Frame::parse(FrameKind::Request, octets)? {
            None => Ok(None),
            Some((_, taken)) if taken < octets.len() => {
                Err(StartupError::EarlyData { octets: octets.len() - taken })
            }
            Some((frame, _)) => Ok(Some(self.handle_request(&frame))),
        }
    }

    /// Turns a Request into an offer. Nothing of a well-formed Request is an error: R is not
    /// checked (MPA-7.1.1-7).
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
    /// Revision of the Request.
    pub const fn revision(&self) -> Revision {
        self.revision
    }

    /// The initiator's parameters, for the ULP (MPE-9.1-1).
    pub const fn peer(&self) -> Option<&Enhanced> {
        self.enhanced.as_ref()
    }

    /// From the initiator's ULP.
    pub const fn private_data(&self) -> &Bytes {
        &self.private_data
    }

    /// The ULP accepts. Returns the Reply, to be sent in one segment with nothing behind it, and
    /// the agreement; the decoder starts before the Reply goes out, and no FPDU is sent before one
    /// is received.
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
            // Unspecified limits are answered in kind: MPE-9.1-8, MPE-9.1-9.
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

    /// The ULP rejects. `limits` are what would have been needed (MPE-9.1-4); MPA
    /// is left behind this Reply, and the ULP decides about TCP (MPA-7.1.2-4).
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

    /// Exactly one kind is marked, so that both sides know which message comes: Write before Read
    /// before Send, of those that were offered, otherwise of this side's own (MPE-9.2-5).
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
