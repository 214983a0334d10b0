//! Settings under `/proc/sys/net` of the caller's network namespace.

use std::{fs, io, path::PathBuf};

use super::NetError;

/// Whether a setting took effect.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Applied {
    /// It is set.
    Yes,
    /// The kernel has no such setting (without IPv6, for example), or /proc/sys is read-only, as in most containers.
    NotHere,
}

/// Disables IPv6 on an interface: no link-local address, router solicitation or duplicate address detection, hence no
/// unexpected frames in captures.
///
/// # Errors
/// Other than [`Applied::NotHere`].
pub fn silence_ipv6(interface: &str) -> Result<Applied, NetError> {
    write(&["ipv6", "conf", interface, "disable_ipv6"], "1")
}

/// Enables IPv6 on an interface, without duplicate address detection and router advertisements.
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

/// Writes the setting at this path below /proc/sys/net.
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
