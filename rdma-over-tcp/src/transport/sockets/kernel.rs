//! Conversion of the kernel's addresses and errors.

use core::net::SocketAddr;
use std::{io, os::fd::BorrowedFd};

use offload_engine::{
    address::canonical, descriptor::log_shortage, state::KeepAlive, time::Duration,
};
use rustix::{
    io::Errno,
    net::{SocketAddrAny, getpeername, getsockname},
};

use crate::rnic::ConnectError;

/// Checks that the kernel supports these keep-alive times.
///
/// # Errors
/// InvalidInput if a value is out of range.
pub(super) fn check_keep_alive(keep_alive: &KeepAlive) -> io::Result<()> {
    let KeepAlive { idle, interval, probes } = keep_alive;
    let times = Duration::from_secs(1)..=Duration::from_secs(32_767);
    if times.contains(idle) && times.contains(interval) && (1..=127).contains(probes) {
        return Ok(());
    }
    let why = "keep-alive on kernel sockets: expected an idle time and interval of 1 to 32,767 s and 1 to 127 probes";
    Err(io::Error::new(io::ErrorKind::InvalidInput, why))
}

/// Returns an address of the kernel in its canonical form: an IPv4-mapped one as IPv4, a link-local one with its scope.
pub(super) fn address(found: SocketAddrAny) -> Result<SocketAddr, Errno> {
    Ok(canonical(SocketAddr::try_from(found)?))
}

/// Returns the local and the remote address.
pub(super) fn ends(socket: BorrowedFd<'_>) -> Result<(SocketAddr, SocketAddr), Errno> {
    let remote = getpeername(socket)?.ok_or(Errno::NOTCONN)?;
    Ok((address(getsockname(socket)?)?, address(remote)?))
}

/// True for errors of accept(2) that affect one connection, not the listener.
pub(super) fn is_of_one_connection(error: Errno) -> bool {
    matches!(
        error,
        Errno::CONNABORTED
            | Errno::INTR
            | Errno::PERM
            | Errno::PROTO
            | Errno::NETDOWN
            | Errno::NETUNREACH
            | Errno::HOSTUNREACH
            | Errno::HOSTDOWN
            | Errno::OPNOTSUPP
            | Errno::NOPROTOOPT
    )
}

/// Maps the error of a connect or bind; `local` is the address requested.
pub(super) fn connect_error(error: Errno, local: Option<SocketAddr>) -> ConnectError {
    match error {
        Errno::CONNREFUSED | Errno::CONNRESET => ConnectError::Refused,
        Errno::TIMEDOUT => ConnectError::TimedOut,
        Errno::HOSTUNREACH | Errno::HOSTDOWN => ConnectError::HostUnreachable,
        Errno::NETUNREACH | Errno::NETDOWN => ConnectError::NetworkUnreachable,
        Errno::ADDRINUSE => ConnectError::AddressInUse,
        // Without a requested address the kernel has no free port.
        Errno::ADDRNOTAVAIL if local.is_none() => ConnectError::NoPorts,
        Errno::ADDRNOTAVAIL | Errno::INVAL | Errno::AFNOSUPPORT | Errno::ACCESS | Errno::PERM => {
            ConnectError::InvalidAddress
        }
        Errno::MFILE | Errno::NFILE => {
            log_shortage();
            ConnectError::NoDescriptors
        }
        _ => {
            tracing::warn!(%error, "kernel socket not opened");
            ConnectError::NoResources
        }
    }
}

/// Maps the error that ended an established connection.
pub(super) fn end_error(error: Errno) -> ConnectError {
    match error {
        Errno::TIMEDOUT | Errno::HOSTUNREACH | Errno::NETUNREACH => ConnectError::TimedOut,
        _ => ConnectError::Aborted,
    }
}
