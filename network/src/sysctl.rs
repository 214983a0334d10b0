//! Settings under `/proc/sys/net` of the caller's network namespace.

use std::{fs, io, path::PathBuf};

use super::NetError;

/// Effect of a write to a setting.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Applied {
    /// The setting was written.
    Yes,
    /// The setting does not exist (without IPv6, for example), or /proc/sys is read-only, as in most containers.
    NotAvailable,
}

/// Disables IPv6 on an interface. The kernel then sends no router solicitations and no duplicate address detection,
/// which would appear in captures.
///
/// # Errors
/// Any error except those that [`Applied::NotAvailable`] covers.
pub fn disable_ipv6(interface: &str) -> Result<Applied, NetError> {
    write(&["ipv6", "conf", interface, "disable_ipv6"], "1")
}

/// Enables IPv6 on an interface, without duplicate address detection and router advertisements.
///
/// # Errors
/// As [`disable_ipv6`].
pub fn enable_ipv6_without_dad(interface: &str) -> Result<Applied, NetError> {
    for (setting, value) in
        [("disable_ipv6", "0"), ("accept_dad", "0"), ("accept_ra", "0"), ("autoconf", "0")]
    {
        if write(&["ipv6", "conf", interface, setting], value)? == Applied::NotAvailable {
            return Ok(Applied::NotAvailable);
        }
    }
    Ok(Applied::Yes)
}

/// Writes a setting; `setting` is the path below /proc/sys/net.
///
/// # Errors
/// As [`disable_ipv6`].
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
            Ok(Applied::NotAvailable)
        }
        Err(source) => {
            Err(NetError { operation: "write setting", object: path.display().to_string(), source })
        }
    }
}
