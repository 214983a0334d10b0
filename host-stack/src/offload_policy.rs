//! Which connections are offloaded when, and when they come back.
//!
//! | question | answer | default |
//! |---|---|---|
//! | Which at all? | [`OffloadPolicy`]; those whose client needs it, unless `Never` | `Always` |
//! | `Auto`: when? | after so many bytes in one direction, or so long a life | [`AUTO_OFFLOAD_BYTES`], no age |
//! | On which ports? | all, or those that are named, local or remote | all |
//! | Which reasons bring one back? | the mandatory ones; of the optional ones, those that are named | none |
//! | How long does it stay then? | [`OffloadRules::rest`] | 10 s |
//! | And when its client has asked for it? | until it asks otherwise ([`crate::socket::Request::Offload`]) | |
//! | And when the target has refused it? | as long, if the target may have room later; else for good | 10 s |
//!
//! The rest keeps a connection from bouncing: what has just come back is not sent down again because it still fits the
//! policy, and what the target has no room for is not offered again in each iteration. A client's own
//! request ([`crate::socket::Request::Offload`]) overrides it. While the target has indicated a pause nothing is
//! offloaded at all.

use alloc::vec::Vec;

use offload_engine::status::NdisStatus;
use offload_engine::{chimney::client::UploadReason, time::Duration};

#[cfg(doc)]
use crate::socket::{AUTO_OFFLOAD_BYTES, OffloadPolicy};

/// The policy's details.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OffloadRules {
    /// Age, counted from the handshake, at which [`OffloadPolicy::Auto`] offloads a connection; `None`: age does not
    /// matter.
    pub after_age: Option<Duration>,
    /// Only connections with one of these ports, local or remote, are offloaded by policy; `None`: any port.
    pub ports: Option<Vec<u16>>,
    /// Optional upload reasons that are followed.
    pub upload_on: UploadReasons,
    /// How long a connection stays in the host after an upload that its client has not asked for, or a refusal.
    pub rest: Duration,
}

impl Default for OffloadRules {
    fn default() -> Self {
        Self {
            after_age: None,
            ports: None,
            upload_on: UploadReasons::default(),
            rest: Duration::from_secs(10),
        }
    }
}

impl OffloadRules {
    /// Whether connections with these ports are offloaded by policy.
    pub(crate) fn covers(&self, local: u16, remote: u16) -> bool {
        self.ports.as_ref().is_none_or(|ports| ports.contains(&local) || ports.contains(&remote))
    }
}

/// A set of upload reasons.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct UploadReasons(u32);

impl UploadReasons {
    /// The set with `reason`.
    #[must_use]
    pub const fn with(self, reason: UploadReason) -> Self {
        Self(self.0 | 1 << reason as u32)
    }

    /// Whether `reason` is among them.
    pub const fn contains(self, reason: UploadReason) -> bool {
        self.0 & 1 << reason as u32 != 0
    }
}

/// Whether what the target has refused with `status` may be accepted later: a table was full, memory was short, or
/// its judgement may change. What is wrong with the connection itself stays wrong.
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

    // CH §8.2: each reason is one or the other.
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
