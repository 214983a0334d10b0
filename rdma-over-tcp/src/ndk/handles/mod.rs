//! Consumer handles: object ids with a handle of their adapter.
//!
//! Handles are cheap to clone. Dropping one closes nothing: as in NDKPI, objects exist until they are closed. Every
//! call enters the core once and returns without waiting. Callbacks run afterwards, when no lock of the node is held. A
//! function that returns PENDING calls back exactly once; with any other status it never does (NDK-ASY-1).

mod adapter;
mod connection;
mod cq;
mod creation;
mod extension_interface;
mod extensions;
mod memory;
mod mr;
mod mw;
mod pd;
mod qp;
mod shared_endpoint;
mod srq;

use alloc::boxed::Box;

pub use self::{
    connection::{Connector, Listener},
    cq::Cq,
    extension_interface::{ExtensionInterface, Guid, RFC7306_INTERFACE, RFC7306_VERSION},
    memory::LogicalAddressMapping,
    mr::Mr,
    mw::Mw,
    pd::Pd,
    qp::{Invalidate, Qp},
    shared_endpoint::SharedEndpoint,
    srq::Srq,
};
use super::status::NtStatus;
use crate::{
    adapter::Adapter,
    rnic::{Close, Key},
};

/// Checks that both objects belong to one adapter, as objects used together must.
fn check_same(one: &Adapter, other: &Adapter) -> Result<(), NtStatus> {
    if one.is_same(other) { Ok(()) } else { Err(NtStatus::INVALID_PARAMETER) }
}

impl From<Close> for NtStatus {
    fn from(close: Close) -> Self {
        match close {
            Close::Done => Self::SUCCESS,
            Close::Pending => Self::PENDING,
        }
    }
}

macro_rules! closable {
    ($($name:ident as $key:ident,)*) => {$(
        impl $name {
            /// Closes the object. SUCCESS, or PENDING and `completion` follows, as the last callback for it
            /// (NDK-LIFE-1, -4, -7). Antecedents may be closed before their successors (NDK-LIFE-5).
            pub fn close(&self, completion: impl FnOnce() + Send + 'static) -> NtStatus {
                let key = Key::$key(self.id);
                self.adapter.with(|core, now| core.close_at(now, key, Box::new(completion))).into()
            }
        }
    )*};
}

closable! {
    Pd as Pd,
    Cq as Cq,
    Mr as Region,
    Mw as Window,
    Qp as Qp,
    Srq as Srq,
    Connector as Connector,
    Listener as Listener,
    SharedEndpoint as SharedEndpoint,
}
