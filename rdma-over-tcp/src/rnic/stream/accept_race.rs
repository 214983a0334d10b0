//! Additional messages for a peer that may not have processed the first FPDU.
//!
//! Linux siw sends its Reply before it monitors its socket, so it does not process an FPDU that arrives in between
//! until more data arrives. An initiator that has received nothing within [`Config::accept_race_timeout`] after its
//! first FPDU, which may be the RTR, therefore sends a zero-length Write. It gives no completion. Further ones follow,
//! each after twice the previous interval, up to [`EMPTY_WRITES_MAX`] in total, because the peer's accept may take any
//! time. A disconnect needs none: its FIN has the same effect.
//!
//! [`Config::accept_race_timeout`]: crate::rnic::Config::accept_race_timeout

use crate::mpa::startup::{Enhanced, Negotiated, Role, RtrKind};

/// Maximum number of zero-length Writes to a peer that sends no data.
pub(super) const EMPTY_WRITES_MAX: u32 = 6;

/// State of the workaround on one connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum AcceptRace {
    /// No empty Write is needed or allowed, or all were sent.
    Never,
    /// The first FPDU has not been sent.
    Waiting,
    /// The stream's deadline is that of the next empty Write, after `sent` earlier ones.
    Armed { sent: u32 },
}

impl AcceptRace {
    /// Only an initiator sends them: a responder must not send first (MPA-7.1.2-10), and its peer processes incoming
    /// data. In the peer-to-peer model the peer must have offered the zero-length Write as RTR. In the client-server
    /// model, and for a peer without enhanced data, it is an ordinary Write (RDM-5.1-3) that is not the first message.
    /// It uses neither IRD nor ORD, and no receive.
    pub(super) fn new(negotiated: &Negotiated, peer: Option<&Enhanced>) -> Self {
        let supports_write = match negotiated.rtr {
            None | Some(RtrKind::Write) => true,
            Some(RtrKind::Send | RtrKind::Read) => peer.is_some_and(|peer| peer.rtr.write),
        };
        match negotiated.role {
            Role::Initiator if supports_write => Self::Waiting,
            Role::Initiator | Role::Responder => Self::Never,
        }
    }
}
