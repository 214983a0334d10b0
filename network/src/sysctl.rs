//! Settings under `/proc/sys/net` of the caller's network namespace.

use std::{fs, io, path::PathBuf};

use super::NetError;

/// Whether a setting could be made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Applied {
    /// It holds now.
    Yes,
    /// The kernel has no such setting (IPv6 is not built in, say), or /proc/sys is read-only, as in
    /// most containers.
    NotHere,
}

/// Stops an interface from speaking IPv6 by itself: no link-local address, no router solicitation, no
/// duplicate address detection, hence nothing in captures that nobody asked for.
///
/// # Errors
/// Other than that the setting does not exist or cannot be written to here.
pub fn silence_ipv6(interface: &str) -> Result<Applied, NetError> {
    write(&["ipv6", "conf", interface, "disable_ipv6"], "1")
}

/// Lets an interface have IPv6 addresses, but no duplicate address detection and no routers' advice.
///
/// # Errors
/// As [`silence_ipv6`].
pub fn calm_ipv6(interface: &str) -> Result<Applied, NetError> {
    for (setting, value) in
        [("disable_ipv6", "0"), ("accept_dad", "0"), ("accept_ra", "0"), ("autoconf", "0")]
    {
        if write(&["ipv6", "conf", interface, setting], value)? == Applied::NotHere {
            return Ok(Applied::NotHere);
        }
    }
    Ok(Applied::Yes)
}

/// Sets what is at this path below /proc/sys/net.
///
/// # Errors
/// As [`silence_ipv6`].
pub fn write(setting: &[&str], value: &str) -> Result<Applied, NetError> {
    let mut path = PathBuf::from("/proc/sys/net");
    path.extend(setting);
    match fs::write(&path, value) {
        Ok(()) => Ok(Applied::Yes),
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::NotFound | io::ErrorKind::ReadOnlyFilesystem
            ) =>
        {
            Ok(Applied::NotHere)
        }
        Err(source) => {
            Err(NetError { operation: "write setting", object: path.display().to_string(), source })
        }
    }
}
