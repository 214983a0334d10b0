//! Errors of verbs programs: numbers of errno(3).

use std::{fmt, io};

use rdma_over_tcp::rnic::{ConnectError, VerbError};

/// Error number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Errno(pub i32);

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        io::Error::from_raw_os_error(self.0).fmt(f)
    }
}

macro_rules! numbers {
    ($($name:ident)*) => {
        impl Errno {$(
            #[doc = concat!("`E", stringify!($name), "`.")]
            pub const $name: Self = Self(rustix::io::Errno::$name.raw_os_error());
        )*}
    };
}

numbers! {
    ACCESS ADDRINUSE ADDRNOTAVAIL AFNOSUPPORT BUSY CONNABORTED CONNREFUSED CONNRESET FAULT HOSTUNREACH INTR INVAL
    IO ISCONN MSGSIZE NETUNREACH NODEV NOMEM NOSYS NOTCONN OPNOTSUPP PERM TIMEDOUT AGAIN ALREADY BADF INPROGRESS
    PIPE PROTO MFILE NFILE
}

impl From<rustix::io::Errno> for Errno {
    fn from(error: rustix::io::Errno) -> Self {
        Self(error.raw_os_error())
    }
}

impl From<io::Error> for Errno {
    fn from(error: io::Error) -> Self {
        Self(error.raw_os_error().unwrap_or(Self::IO.0))
    }
}

impl From<VerbError> for Errno {
    fn from(error: VerbError) -> Self {
        match error {
            // Kernel drivers report a full queue this way.
            VerbError::QueueFull | VerbError::NoResources => Self::NOMEM,
            VerbError::ReadOnly => Self::FAULT,
            VerbError::NoExtensions => Self::OPNOTSUPP,
            VerbError::DeviceLost => Self::NODEV,
            _ => Self::INVAL,
        }
    }
}

impl From<ConnectError> for Errno {
    fn from(error: ConnectError) -> Self {
        match error {
            ConnectError::Refused => Self::CONNREFUSED,
            ConnectError::Aborted | ConnectError::Cancelled => Self::CONNRESET,
            ConnectError::TimedOut => Self::TIMEDOUT,
            ConnectError::HostUnreachable => Self::HOSTUNREACH,
            ConnectError::NetworkUnreachable => Self::NETUNREACH,
            ConnectError::InvalidAddress | ConnectError::NoPorts => Self::ADDRNOTAVAIL,
            ConnectError::AddressInUse | ConnectError::ConnectionExists => Self::ADDRINUSE,
            ConnectError::QpConnected => Self::ISCONN,
            ConnectError::NoResources => Self::NOMEM,
            ConnectError::NoDescriptors => Self::MFILE,
            ConnectError::DeviceLost => Self::NODEV,
            _ => Self::INVAL,
        }
    }
}
