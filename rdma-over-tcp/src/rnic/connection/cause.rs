//! Causes of failed connection attempts: detecting end, layer, and problem.
//!
//! Interfaces map a [`ConnectError`] to a status. A [`ConnectCause`] distinguishes the cases behind one such error.

use core::{fmt, time::Duration};

use crate::{
    error::{EndReason, Loss},
    mpa::startup::{FrameError, StartupError},
    rnic::status::ConnectError,
};

/// Cause of a failed connection attempt.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ConnectCause {
    /// TCP could not connect, or the call failed locally.
    Tcp(ConnectError),
    /// The TCP handshake was not answered within this time.
    NoHandshake(Duration),
    /// MPA start-up failed: the Reply rejects, is invalid, or does not match the Request.
    Startup(StartupError),
    /// The peer sent no Reply within this time.
    NoReply(Duration),
    /// The peer received the Reply, but sent no message within this time.
    NoFirstMessage(Duration),
    /// The local consumer did not answer the connection request within this time.
    NotAnswered(Duration),
    /// The peer closed the connection during start-up.
    Closed,
    /// The connection was lost or failed during start-up.
    Ended(EndReason),
}

impl ConnectCause {
    /// Returns true if the peer may not support enhanced start-up: it closes, resets, or answers in the plain form
    /// (MPE-10-3).
    pub(crate) const fn suggests_plain(&self) -> bool {
        matches!(
            self,
            Self::Startup(StartupError::Form { .. })
                | Self::Closed
                | Self::Ended(EndReason::Lost(Loss::Reset))
        )
    }
}

/// Private data shown as text if it is printable, otherwise as hexadecimal digits.
struct PrivateText<'a>(&'a [u8]);

impl fmt::Display for PrivateText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match core::str::from_utf8(self.0) {
            Ok(text) if !text.chars().any(char::is_control) => write!(f, "\"{text}\""),
            _ => self.0.iter().try_for_each(|octet| write!(f, "{octet:02x}")),
        }
    }
}

impl fmt::Display for ConnectCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(error) => write!(f, "TCP: {error}"),
            Self::NoHandshake(limit) => {
                write!(f, "TCP: no response from the peer within {} s", limit.as_secs_f64())
            }
            Self::Startup(error) => startup(f, error),
            Self::NoReply(limit) => {
                write!(f, "MPA: no Reply from the peer within {} s", limit.as_secs_f64())
            }
            Self::NoFirstMessage(limit) => write!(
                f,
                "MPA: no message from the peer within {} s after the Reply",
                limit.as_secs_f64()
            ),
            Self::NotAnswered(limit) => {
                write!(f, "MPA: Request not answered by this side within {} s", limit.as_secs_f64())
            }
            Self::Closed => f.write_str("MPA: connection closed by the peer during start-up"),
            Self::Ended(reason) => write!(f, "MPA start-up failed: {reason}"),
        }
    }
}

/// Writes a failure of MPA start-up with its number.
fn startup(f: &mut fmt::Formatter<'_>, error: &StartupError) -> fmt::Result {
    match error {
        StartupError::Rejected { private_data, .. } if private_data.is_empty() => {
            return f.write_str("MPA: connection rejected by the peer, without private data");
        }
        StartupError::Rejected { private_data, .. } => {
            let text = PrivateText(private_data);
            return write!(f, "MPA: connection rejected by the peer, with {text}");
        }
        StartupError::Frame(FrameError::Key { .. }) => {
            write!(f, "MPA: the peer's response is not a Reply: {error}")?;
        }
        StartupError::Frame(_) | StartupError::Form { .. } => {
            write!(f, "MPA: invalid Reply from the peer: {error}")?;
        }
        StartupError::EarlyData { .. }
        | StartupError::InsufficientIrd { .. }
        | StartupError::NoMatchingRtr { .. }
        | StartupError::ReadRtrWithoutIrd { .. } => {
            write!(f, "MPA: connection refused by this side: {error}")?
        }
    }
    match error.wire() {
        Some(wire) => write!(f, " ({})", wire.number()),
        None => Ok(()),
    }
}
