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
/// Major and minor number of the TUN device (devices.txt of Linux).
const TUN_DEVICE: (u32, u32) = (10, 200);

/// Checks that the TUN device node exists and can be opened. Creates no interface.
///
/// # Errors
/// [`Error::prerequisite`]: node absent, another device, no permission (with mode and owner), module absent.
pub fn check_tun() -> Result<(), Error> {
    check_tun_at(Path::new(TUN_NODE))
}

fn check_tun_at(path: &Path) -> Result<(), Error> {
    let shown = path.display();
    let metadata = fs::metadata(path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => Error::prerequisite(format!("{shown}: not found"))
            .with_hint("modprobe tun; in a container, add --device /dev/net/tun"),
        _ => Error::prerequisite(format!("{shown}: {error}")),
    })?;
    let device = rustix::fs::major(metadata.rdev());
    if !metadata.file_type().is_char_device()
        || (device, rustix::fs::minor(metadata.rdev())) != TUN_DEVICE
    {
        let (major, minor) = TUN_DEVICE;
        return Err(Error::prerequisite(format!(
            "{shown}: not the TUN device, expected character device {major}:{minor}"
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
            "{shown}: permission denied: mode {:04o}, owner {}:{}",
            metadata.permissions().mode() & 0o7777,
            metadata.uid(),
            metadata.gid()
        ))
        .with_hint(format!("chmod 666 {shown} (as udev does), or run as root")),
        Some(Errno::PERM) => Error::prerequisite(format!(
            "{shown}: forbidden by the device rules of a control group"
        ))
        .with_hint("start the container with --device /dev/net/tun"),
        Some(Errno::NODEV | Errno::NXIO) => {
            Error::prerequisite(format!("{shown}: the kernel has no TUN driver"))
                .with_hint("modprobe tun (CONFIG_TUN)")
        }
        _ => Error::prerequisite(format!("{shown}: {error}")),
    }
}

/// Converts a TAP error: adds its cause and the option that would help. The error's own text names the device node,
/// mode and owner.
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
            Error::prerequisite(text).with_hint("use --vnet auto, which falls back to plain frames")
        }
        TapError::NoReclaim { .. } => Error::prerequisite(text)
            .with_hint("use --tx-page-recycling auto, which does not require it"),
        TapError::Descriptor { .. } => Error::option(format!("--tap-fd: {text}")),
        TapError::NoMultiQueue => Error::prerequisite(text).with_hint("use --queues 1"),
        TapError::NodeAbsent { .. }
        | TapError::NodeWithoutDriver { .. }
        | TapError::NodeDenied { .. }
        | TapError::NotPermitted { .. } => Error::prerequisite(text),
        TapError::Busy { .. } => Error::operation(text).with_hint(
            "a further node needs its own TAP and address: --tap flue1 --addr 10.77.0.3/24; rping, serve and perf \
             can use kernel sockets: --transport kernel",
        ),
        _ => Error::operation(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Cause;

    #[test]
    fn absent_node_is_named() {
        let failure = check_tun_at(Path::new("/dev/net/no-such-node")).unwrap_err();
        assert_eq!(failure.cause, Cause::Prerequisite);
        assert!(failure.message.contains("/dev/net/no-such-node: not found"), "{failure}");
        assert!(failure.hint.unwrap().contains("modprobe tun"));
    }

    #[test]
    fn another_device_is_refused() {
        for other in ["/dev/null", "/proc/self/status", "/"] {
            let failure = check_tun_at(Path::new(other)).unwrap_err();
            assert!(failure.message.contains("not the TUN device"), "{failure}");
        }
    }

    #[test]
    fn errors_name_mode_and_owner() {
        let metadata = fs::metadata("/dev/null").unwrap();
        let refused = io::Error::from(Errno::ACCESS);
        let failure = open_failure(Path::new("/dev/net/tun"), &metadata, &refused);
        assert!(failure.message.contains("mode 0666, owner 0:0"), "{failure}");
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
        let busy = tap_error(TapError::Busy { name: name() }).hint.unwrap();
        assert!(
            busy.contains("--tap flue1 --addr") && busy.contains("--transport kernel"),
            "{busy}"
        );
        let source = io::Error::from(io::ErrorKind::Unsupported);
        let failure = tap_error(TapError::NoVnetHeader { step: "TUNSETIFF", source });
        assert!(failure.message.contains("TUNSETIFF failed: unsupported"), "{failure}");
    }
}
