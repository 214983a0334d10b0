//! NdkQueryExtensionInterface: an interface beyond NDKPI, by its GUID.

use super::{Adapter, Connector, Cq, Listener, Mr, Mw, NtStatus, Pd, Qp, SharedEndpoint, Srq};
use crate::ndk::info::NdkVersion;

/// GUID, as its fields print.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Guid(pub u128);

/// Interface of atomics and immediate data (RFC 7306), supported by queue pairs:
/// `{b2ad6a2e-6c1d-4f0b-9d55-0c730600a701}`.
pub const RFC7306_INTERFACE: Guid = Guid(0xb2ad_6a2e_6c1d_4f0b_9d55_0c73_0600_a701);

/// Supported version of [`RFC7306_INTERFACE`].
pub const RFC7306_VERSION: NdkVersion = NdkVersion { major: 1, minor: 0 };

/// NDK_EXTENSION_INTERFACE.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ExtensionInterface {
    /// Atomics and immediate data: [`Qp::allow_extensions`], [`Qp::fetch_add`], [`Qp::compare_swap`], [`Qp::atomic`]
    /// and [`Qp::immediate`].
    Rfc7306,
}

fn of_qp(guid: Guid, version: NdkVersion) -> Result<ExtensionInterface, NtStatus> {
    let is_known = guid == RFC7306_INTERFACE && version.is_met_by(RFC7306_VERSION);
    if is_known { Ok(ExtensionInterface::Rfc7306) } else { Err(NtStatus::NOT_SUPPORTED) }
}

impl Qp {
    /// NdkQueryExtensionInterface: [`RFC7306_INTERFACE`].
    ///
    /// # Errors
    /// [`NtStatus::NOT_SUPPORTED`]: no such interface, or not in this version.
    pub fn query_extension(
        &self,
        guid: Guid,
        version: NdkVersion,
    ) -> Result<ExtensionInterface, NtStatus> {
        of_qp(guid, version)
    }
}

macro_rules! without_extension {
    ($($name:ident)*) => {$(
        impl $name {
            /// NdkQueryExtensionInterface: objects of this type have no extension interface.
            ///
            /// # Errors
            /// Always [`NtStatus::NOT_SUPPORTED`].
            pub const fn query_extension(
                &self,
                _guid: Guid,
                _version: NdkVersion,
            ) -> Result<ExtensionInterface, NtStatus> {
                Err(NtStatus::NOT_SUPPORTED)
            }
        }
    )*};
}

without_extension! { Adapter Pd Cq Mr Mw Srq Connector Listener SharedEndpoint }
