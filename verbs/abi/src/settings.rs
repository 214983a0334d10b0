//! Settings of the library in the environment of a program. Those of its adapter override the options that `flue run`
//! passes in one variable. Without a setting, the default of the adapter applies.

use core::ffi::CStr;

/// Names under which programs load the library: those of rdma-core, and of its development packages, which some
/// programs pass to dlopen(3).
pub const LIBRARY_NAMES: [&str; 4] =
    ["libibverbs.so.1", "librdmacm.so.1", "libibverbs.so", "librdmacm.so"];

/// Name of the library's file where cargo builds it and where packages install it.
pub const LIBRARY_FILE: &str = "libflue_verbs.so";

/// Name of the file of the path functions, in the directory of the library.
pub const PATHS_LIBRARY_FILE: &str = "libflue_verbs_paths.so";

/// Name of the device.
pub const DEVICE_NAME: &str = "flue0";

/// Name of a character device of verbs, without its number.
pub const NODE_PREFIX: &str = "uverbs";

/// Directory with the files of the device, whose name starts with that of the character device and a hyphen.
pub const FILES: &str = "FLUE_VERBS_FILES";

/// [`FILES`] for getenv(3).
pub const FILES_C: &CStr = c"FLUE_VERBS_FILES";

/// Returns the name of the character device from the path of a directory in [`FILES`]. `None`: no such directory.
#[must_use]
pub fn node_of(directory: &[u8]) -> Option<&[u8]> {
    let is_number = |it: &[u8]| !it.is_empty() && it.iter().all(u8::is_ascii_digit);
    let name = directory.strip_prefix(b"/")?.rsplit(|octet| *octet == b'/').next()?;
    let node = name.get(..name.iter().position(|octet| *octet == b'-')?)?;
    node.strip_prefix(NODE_PREFIX.as_bytes()).filter(|number| is_number(number)).map(|_| node)
}

/// Path of the library's file for `flue run`, unless `--library` gives one.
pub const LIBRARY: &str = "FLUE_VERBS_LIBRARY";

/// File to which the library appends its log. Without it, nothing is logged.
pub const LOG: &str = "FLUE_VERBS_LOG";

/// File for a capture of the connections' bytes. `%p` in its name is replaced with the process id.
pub const PCAP: &str = "FLUE_VERBS_PCAP";

/// `on` or `off`: request CRCs of FPDUs.
pub const MPA_CRC: &str = "FLUE_VERBS_MPA_CRC";

/// `on` or `off`: request markers from the peer.
pub const MPA_MARKERS: &str = "FLUE_VERBS_MPA_MARKERS";

/// `1`, `2` or `auto`: revision of the MPA Request.
pub const MPA_REVISION: &str = "FLUE_VERBS_MPA_REVISION";

/// `send`, `write` or `read`: the only ready-to-receive message that is offered or accepted.
pub const RTR: &str = "FLUE_VERBS_RTR";

/// `on` or `off`: atomics and immediate data (RFC 7306). MPA does not negotiate them, so every peer must support them.
pub const RFC7306: &str = "FLUE_VERBS_RFC7306";

/// Seconds, with or without a fraction, for which a message waits for a posted receive. 0: it ends the connection at
/// once.
pub const RECEIVE_WAIT: &str = "FLUE_VERBS_RECEIVE_WAIT";

/// Node on a TAP that a launcher has prepared, in JSON, with its capture. Replaces the transport of the launcher's
/// options.
pub const TAP: &str = "FLUE_VERBS_TAP";

/// `HOST=NODE,...`: mapping of kernel addresses to node addresses.
pub const MAP: &str = "FLUE_VERBS_MAP";

/// `[HOST:]PORT=PORT,...`: mapping of the program's ports to RDMA ports.
pub const PORT_MAP: &str = "FLUE_VERBS_PORT_MAP";

/// `iwarp` or `roce`: the device that the program sees.
pub const DEVICE: &str = "FLUE_VERBS_DEVICE";

/// `FIRST-LAST`: ports at which peers reach the queue pairs that the program connects itself.
pub const RENDEZVOUS_PORTS: &str = "FLUE_VERBS_RENDEZVOUS_PORTS";

/// File of the launcher, in which processes of the program record their usage of the device.
pub const USAGE: &str = "FLUE_VERBS_USAGE";

/// Path of the control socket, or `none`.
pub const CONTROL: &str = "FLUE_VERBS_CONTROL";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directory_names_the_character_device() {
        assert_eq!(node_of(b"/run/user/1/flue-verbs-1-2/uverbs12-01-9"), Some(&b"uverbs12"[..]));
        for other in ["", "uverbs0-1", "/", "/uverbs0", "/tmp/umad0-1", "/uverbs0-1/x", "/uverbs-1"]
        {
            assert_eq!(node_of(other.as_bytes()), None, "{other}");
        }
    }
}
