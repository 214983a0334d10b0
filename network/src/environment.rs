//! Prerequisites of a node, and errors that name what is missing.

use std::{
    fs::{self, OpenOptions},
    io,
    os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt},
    path::Path,
};

use offload_engine::link::TapError;
use rustix::io::Errno;

use crate::Error;

/// The TUN device node.
pub const TUN_NODE: &str = "/dev/net/tun";
/// Its major and minor numbers (devices.txt of Linux).
const TUN_DEVICE: (u32, u32) = (10, 200);

/// Checks that the TUN device node exists and can be opened. Makes no interface.
///
/// # Errors
/// [`Error::prerequisite`]: node absent, another device, no permission (with mode and owner), module absent.
pub fn check_tun() -> Result<(), Error> {
    check_tun_at(Path::new(TUN_NODE))
}

fn check_tun_at(path: &Path) -> Result<(), Error> {
    let shown = path.display();
    let metadata = fs::metadata(path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => Error::prerequisite(format!("{shown} does not exist"))
            .with_hint("modprobe tun; in a container, pass the device in (--device /dev/net/tun)"),
        _ => Error::prerequisite(format!("{shown}: {error}")),
    })?;
    let device = rustix::fs::major(metadata.rdev());
    if !metadata.file_type().is_char_device()
        || (device, rustix::fs::minor(metadata.rdev())) != TUN_DEVICE
    {
        let (major, minor) = TUN_DEVICE;
        return Err(Error::prerequisite(format!(
            "{shown} is not the TUN device (character device {major}, {minor})"
        ))
        .with_hint(format!("rm {shown}; mknod -m 666 {shown} c {major} {minor}")));
    }
    let opened = OpenOptions::new().read(true).write(true).open(path);
    opened.map(drop).map_err(|error| open_failure(path, &metadata, &error))
}

fn open_failure(path: &Path, metadata: &fs::Metadata, error: &io::Error) -> Error {
    let shown = path.display();
    match error.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::ACCESS) => Error::prerequisite(format!(
            "{shown} cannot be opened: its mode is {:04o}, its owner {}:{}",
            metadata.permissions().mode() & 0o7777,
            metadata.uid(),
            metadata.gid()
        ))
        .with_hint(format!("chmod 666 {shown} (what udev does), or run as root")),
        Some(Errno::PERM) => Error::prerequisite(format!(
            "{shown} cannot be opened: forbidden by the device rules of a control group"
        ))
        .with_hint("pass the device into the container (--device /dev/net/tun)"),
        Some(Errno::NODEV | Errno::NXIO) => Error::prerequisite(format!(
            "{shown} is there, but the kernel has no TUN driver behind it"
        ))
        .with_hint("modprobe tun (CONFIG_TUN)"),
        _ => Error::prerequisite(format!("{shown} cannot be opened: {error}")),
    }
}

/// A TAP error as an [`Error`]: its cause, and the option that would help. The error's own text names device node, mode
/// and owner.
pub fn tap_error(error: TapError) -> Error {
    let mut text = error.to_string();
    if let Some(source) = std::error::Error::source(&error) {
        text = format!("{text}: {source}");
    }
    match error {
        TapError::Name { .. } => Error::option(format!("--tap: {text}")),
        TapError::Mtu { .. } => Error::option(format!("--mtu: {text}")),
        TapError::Queues { .. } => Error::option(format!("--queues: {text}")),
        TapError::NoVnetHeader { .. } => {
            Error::prerequisite(text).with_hint("--vnet auto falls back to plain frames")
        }
        TapError::NoReclaim { .. } => {
            Error::prerequisite(text).with_hint("--tx-page-recycling auto works without it")
        }
        TapError::Descriptor { .. } => Error::option(format!("--tap-fd: {text}")),
        TapError::NoMultiQueue => Error::prerequisite(text).with_hint("--queues 1"),
        TapError::NodeAbsent { .. }
        | TapError::NodeWithoutDriver { .. }
        | TapError::NodeDenied { .. }
        | TapError::NotPermitted { .. } => Error::prerequisite(text),
        _ => Error::operation(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Cause;

    #[test]
    fn an_absent_node_is_named() {
        let failure = check_tun_at(Path::new("/dev/net/no-such-node")).unwrap_err();
        assert_eq!(failure.cause, Cause::Prerequisite);
        assert!(failure.message.contains("/dev/net/no-such-node does not exist"), "{failure}");
        assert!(failure.hint.unwrap().contains("modprobe tun"));
    }

    #[test]
    fn another_device_is_refused() {
        for other in ["/dev/null", "/proc/self/status", "/"] {
            let failure = check_tun_at(Path::new(other)).unwrap_err();
            assert!(failure.message.contains("is not the TUN device"), "{failure}");
        }
    }

    #[test]
    fn errors_name_mode_and_owner() {
        let metadata = fs::metadata("/dev/null").unwrap();
        let refused = io::Error::from(Errno::ACCESS);
        let failure = open_failure(Path::new("/dev/net/tun"), &metadata, &refused);
        assert!(failure.message.contains("mode is 0666, its owner 0:0"), "{failure}");
        let forbidden = io::Error::from(Errno::PERM);
        let failure = open_failure(Path::new("/dev/net/tun"), &metadata, &forbidden);
        assert!(failure.message.contains("control group"), "{failure}");
        let absent = io::Error::from(Errno::NODEV);
        let failure = open_failure(Path::new("/dev/net/tun"), &metadata, &absent);
        assert!(failure.hint.unwrap().contains("modprobe tun"));
    }

    #[test]
    fn tap_errors_have_a_kind() {
        let name = || "flue0".to_owned();
        let cases = [
            (TapError::NodeAbsent { node: "/dev/net/tun".into() }, Cause::Prerequisite),
            (
                TapError::NodeDenied { node: "/dev/net/tun".into(), mode: 0o600, owner: 0 },
                Cause::Prerequisite,
            ),
            (TapError::NotPermitted { name: name() }, Cause::Prerequisite),
            (TapError::Busy { name: name() }, Cause::Operation),
            (TapError::NotATap { name: name() }, Cause::Operation),
            (TapError::NotMultiQueue { name: name() }, Cause::Operation),
            (TapError::NoMultiQueue, Cause::Prerequisite),
            (TapError::Queues { queues: 17 }, Cause::Option),
            (TapError::Mtu { mtu: 1 }, Cause::Option),
        ];
        for (error, kind) in cases {
            let failure = tap_error(error);
            assert_eq!(failure.cause, kind, "{failure}");
        }
        let source = io::Error::from(io::ErrorKind::Unsupported);
        let failure = tap_error(TapError::NoVnetHeader { step: "TUNSETIFF", source });
        assert!(failure.message.contains("TUNSETIFF failed: unsupported"), "{failure}");
    }
}
