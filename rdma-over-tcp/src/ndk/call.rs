//! Errors and small steps that blocking and asynchronous calls share.

use alloc::{string::String, vec, vec::Vec};
use core::fmt;

use super::{ConnectCause, Connector, NtStatus};

/// A call of NDK that failed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("NDK: {call}: {status}{}", CauseSuffix(.cause.as_ref()))]
pub struct CallError {
    /// The call, in words.
    pub call: String,
    /// Its status.
    pub status: NtStatus,
    /// Of a connect or accept: why ([`Connector::failure`]).
    pub cause: Option<ConnectCause>,
}

/// The end of an error's text.
struct CauseSuffix<'a>(Option<&'a ConnectCause>);

impl fmt::Display for CauseSuffix<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.map_or(Ok(()), |cause| write!(f, ": {cause}"))
    }
}

/// Rejects a connection that nobody will look at, with private data, and closes its connector.
pub fn turn_away(connector: &Connector, private_data: &[u8]) {
    // A peer that has gone meanwhile needs no answer.
    let _ = connector.reject(private_data);
    let _ = connector.close(|| {});
}

/// The private data of the peer's request or answer, until this side answers in its turn (NDK-CD-2).
pub(super) fn peer_data(connector: &Connector) -> Vec<u8> {
    let (_, required, _) = connector.connection_data(None);
    let mut data = vec![0; required];
    if connector.connection_data(Some(&mut data)).0 != NtStatus::SUCCESS {
        data.clear(); // the peer has gone meanwhile
    }
    data
}
