//! Errors and helpers shared by blocking and asynchronous calls.

use alloc::{string::String, vec, vec::Vec};
use core::fmt;

use super::{ConnectCause, Connector, NtStatus};

/// Failed NDK call.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("NDK: {call}: {status}{}", CauseSuffix(.cause.as_ref()))]
pub struct CallError {
    /// Description of the call.
    pub call: String,
    /// Status of the call.
    pub status: NtStatus,
    /// Cause of a failed connect or accept ([`Connector::failure`]).
    pub cause: Option<ConnectCause>,
}

/// Suffix of the error's text.
struct CauseSuffix<'a>(Option<&'a ConnectCause>);

impl fmt::Display for CauseSuffix<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.map_or(Ok(()), |cause| write!(f, ": {cause}"))
    }
}

/// Rejects a connection for which there is no consumer, with private data, and closes its connector.
pub fn reject_and_close(connector: &Connector, private_data: &[u8]) {
    // The rejection fails if the peer has already aborted; no reply is needed then.
    let _ = connector.reject(private_data);
    let _ = connector.close(|| {});
}

/// Returns the private data of the peer's request or reply. It is available until this side replies (NDK-CD-2).
pub(super) fn peer_data(connector: &Connector) -> Vec<u8> {
    let (_, required, _) = connector.connection_data(None);
    let mut data = vec![0; required];
    if connector.connection_data(Some(&mut data)).0 != NtStatus::SUCCESS {
        data.clear(); // the peer has aborted
    }
    data
}
