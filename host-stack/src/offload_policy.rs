//! Policy for the offload and upload of connections.
//!
//! | rule | setting | default |
//! |---|---|---|
//! | offloaded connections | [`OffloadPolicy`]; also those whose client requires it, unless `Never` | `Always` |
//! | offload time with `Auto` | after a byte count in one direction, or at an age | [`AUTO_OFFLOAD_BYTES`], no age |
//! | ports | all, or a list, local or remote | all |
//! | followed upload reasons | the mandatory ones, and a list of optional ones | none |
//! | rest in the host after such an upload | [`OffloadRules::holddown`] | 10 s |
//! | rest after an upload by the client | until it requests an offload ([`crate::socket::Request::Offload`]) | |
//! | rest after a refusal | the same time if the target may have room later; otherwise permanent | 10 s |
//!
//! The rest prevents oscillation: an uploaded connection that still satisfies the policy is not offloaded again at
//! once, and a refused one is not offered in each iteration. A client's own request
//! ([`crate::socket::Request::Offload`]) overrides it. While the target has indicated a pause nothing is offloaded.

use alloc::vec::Vec;

use offload_engine::status::NdisStatus;
use offload_engine::{chimney::client::UploadReason, time::Duration};

#[cfg(doc)]
use crate::socket::{AUTO_OFFLOAD_BYTES, OffloadPolicy};

/// Details of the offload policy.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OffloadRules {
    /// Age since the handshake at which [`OffloadPolicy::Auto`] offloads a connection; `None`: no age limit.
    pub after_age: Option<Duration>,
    /// Ports, local or remote, of the connections that the policy offloads; `None`: any port.
    pub ports: Option<Vec<u16>>,
    /// Optional upload reasons that the host follows.
    pub upload_on: UploadReasons,
    /// Minimum time of a connection in the host after a refusal, or after an upload not requested by its client.
    pub holddown: Duration,
}

impl Default for OffloadRules {
    fn default() -> Self {
        Self {
            after_age: None,
            ports: None,
            upload_on: UploadReasons::default(),
            holddown: Duration::from_secs(10),
        }
    }
}

impl OffloadRules {
    /// True if the policy offloads connections with these ports.
    pub(crate) fn covers(&self, local: u16, remote: u16) -> bool {
        self.ports.as_ref().is_none_or(|ports| ports.contains(&local) || ports.contains(&remote))
    }
}

/// Set of upload reasons.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct UploadReasons(u32);

impl UploadReasons {
    /// Returns the set with `reason` added.
    #[must_use]
    pub const fn with(self, reason: UploadReason) -> Self {
        Self(self.0 | 1 << reason as u32)
    }

    /// True if the set contains `reason`.
    pub const fn contains(self, reason: UploadReason) -> bool {
        self.0 & 1 << reason as u32 != 0
    }
}

/// True if the target may accept later what it has refused with `status`: a table was full, memory was short, or its
/// condition may change. Defects of the connection itself are permanent.
pub(crate) fn may_change(status: NdisStatus) -> bool {
    !matches!(
        status,
        NdisStatus::OFFLOAD_TCP_RCV_WINDOW
            | NdisStatus::OFFLOAD_VLAN_MISMATCH
            | NdisStatus::OFFLOAD_PATH_MTU
            | NdisStatus::NOT_SUPPORTED
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPTIONAL: [UploadReason; 6] = [
        UploadReason::LowActivity,
        UploadReason::HighDropRate,
        UploadReason::SmallIo,
        UploadReason::NoBufferPreposting,
        UploadReason::HighFragmentation,
        UploadReason::HighOutOfOrderPackets,
    ];

    // CH §8.2: each reason is either mandatory or optional.
    #[test]
    fn reasons_are_mandatory_or_optional() {
        let mandatory = [
            UploadReason::ReceivedUrgentData,
            UploadReason::TimeoutExpiration,
            UploadReason::InvalidState,
            UploadReason::UploadRequested,
            UploadReason::HardwareFailure,
        ];
        assert!(mandatory.into_iter().all(UploadReason::is_mandatory));
        assert!(!OPTIONAL.into_iter().any(UploadReason::is_mandatory));
        assert_eq!(mandatory.len() + OPTIONAL.len(), 11);
        let some = UploadReasons::default().with(UploadReason::SmallIo);
        let named = OPTIONAL.into_iter().filter(|reason| some.contains(*reason));
        assert_eq!(named.collect::<Vec<_>>(), [UploadReason::SmallIo]);
    }

    #[test]
    fn ports_are_local_or_remote() {
        let rules = OffloadRules { ports: Some([80, 443].into()), ..OffloadRules::default() };
        assert!(rules.covers(80, 1) && rules.covers(1, 443) && !rules.covers(1, 2));
        assert!(OffloadRules::default().covers(1, 2));
    }
}
