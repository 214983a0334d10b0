//! More messages for a peer that may have overlooked the first.
//!
//! Linux siw sends its Reply before it watches its socket, so it does not notice an FPDU that arrives meanwhile: the
//! octets lie there until more come. An initiator that has sent its first FPDU, be it the RTR, and has received
//! nothing for [`Config::nudge_timeout`] therefore sends a zero-length Write, without a completion, and another one
//! whenever it has waited twice as long again, [`NUDGES_MAX`] of them: how long the peer needs to accept is its
//! machine's affair. A disconnect sends none: the FIN does as well.
//!
//! [`Config::nudge_timeout`]: crate::rnic::Config::nudge_timeout

use crate::mpa::startup::{Enhanced, Negotiated, Role, RtrKind};

/// Zero-length Writes that a connection sends to a peer that stays silent.
pub(super) const NUDGES_MAX: u32 = 6;

/// The nudges of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Nudge {
    /// None is needed, or allowed, or all are sent.
    Never,
    /// The first FPDU has not been sent.
    Waiting,
    /// The stream's deadline is that of the next one, behind `sent` others.
    Armed { sent: u32 },
}

impl Nudge {
    /// A responder must not send first (MPA-7.1.2-10), and its peer listens. In the peer-to-peer model the peer has to
    /// have named the zero-length Write among what it understands; in the client-server model, and to a peer without
    /// enhanced data, it is a Write as any other (RDM-5.1-3), but not the first message. It takes nothing of IRD and
    /// ORD, and no receive.
    pub(super) fn new(negotiated: &Negotiated, peer: Option<&Enhanced>) -> Self {
        let knows_write = match negotiated.rtr {
            None | Some(RtrKind::Write) => true,
            Some(RtrKind::Send | RtrKind::Read) => peer.is_some_and(|peer| peer.rtr.write),
        };
        match negotiated.role {
            Role::Initiator if knows_write => Self::Waiting,
            Role::Initiator | Role::Responder => Self::Never,
        }
    }
}
