//! Paths of the device: the prefix test, and the place of each path.

use flue_verbs_abi::settings;

const CLASS: &[u8] = b"/sys/class/infiniband";
const CLASS_VERBS: &[u8] = b"/sys/class/infiniband_verbs";
const ABOVE_CLASS: &[u8] = b"/sys/class";
const ABOVE_NODES: &[u8] = b"/dev";
const NODES: &[u8] = b"/dev/infiniband";
/// File of the verbs class that belongs to no device.
const ABI_VERSION: &[u8] = b"abi_version";

/// Place of a redirected path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Place<'a> {
    /// The concatenation of both, below the directory of the files.
    Tree(&'static [u8], &'a [u8]),
    /// The concatenation of both: the directory above, which is not redirected.
    Above(&'static [u8], &'a [u8]),
    /// `/dev/null`. A link to it would be a link for lstat(2), where programs expect a character device.
    Null,
}

/// Returns true if the path may be one of the device. For any other path it is false after a few bytes.
///
/// # Safety
/// The path is null or ends with a null byte.
#[inline]
pub(crate) unsafe fn is_candidate(path: *const u8) -> bool {
    // SAFETY: guaranteed by the caller. Each byte is read only if those before it match, so none after the null byte.
    unsafe { !path.is_null() && (starts_with(path, CLASS) || starts_with(path, NODES)) }
}

/// # Safety
/// The path ends with a null byte.
#[inline]
unsafe fn starts_with(path: *const u8, prefix: &[u8]) -> bool {
    // SAFETY: `all` ends at the first difference, and the prefix contains no null byte.
    prefix.iter().enumerate().all(|(at, octet)| unsafe { *path.add(at) } == *octet)
}

/// Returns the place of a path. `None`: not a path of the device. `node` is the name of its character device.
pub(crate) fn place<'a>(path: &'a [u8], node: &[u8]) -> Option<Place<'a>> {
    let device = settings::DEVICE_NAME.as_bytes();
    // The longer prefix first.
    for (directory, above, names) in [
        (CLASS_VERBS, ABOVE_CLASS, [node, ABI_VERSION]),
        (CLASS, ABOVE_CLASS, [device, device]),
        (NODES, ABOVE_NODES, [node, node]),
    ] {
        let Some((name, rest)) = below(path, directory) else { continue };
        return match name {
            b"" | b"." => Some(Place::Tree(directory, rest)),
            b".." => {
                let end = rest.windows(name.len()).position(|it| it == name)? + name.len();
                Some(Place::Above(above, rest.get(end..)?))
            }
            _ if !names.contains(&name) => None,
            _ if directory != NODES => Some(Place::Tree(directory, rest)),
            // A path that continues is one of a file that is not a directory.
            _ => rest.ends_with(node).then_some(Place::Null),
        };
    }
    None
}

/// Returns the first name below a directory, which is empty for the directory itself, and the path below it.
fn below<'a>(path: &'a [u8], directory: &[u8]) -> Option<(&'a [u8], &'a [u8])> {
    let rest = path.strip_prefix(directory)?;
    if !matches!(rest.first(), None | Some(b'/')) {
        return None;
    }
    let start = rest.iter().position(|octet| *octet != b'/').unwrap_or(rest.len());
    let name = rest.get(start..)?.split(|octet| *octet == b'/').next()?;
    Some((name, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place_of(path: &str) -> Option<Place<'_>> {
        place(path.as_bytes(), b"uverbs7")
    }

    #[test]
    fn paths_of_the_device_are_redirected() {
        for (directory, rests) in [
            (
                "/sys/class/infiniband",
                ["", "/", "/.", "/flue0", "//flue0/ports/1/../1", "/./flue0"],
            ),
            (
                "/sys/class/infiniband_verbs",
                ["", "/", "//", "/uverbs7", "/uverbs7/ibdev", "/abi_version"],
            ),
            ("/dev/infiniband", ["", "/", "//", "///", "/.", "/./"]),
        ] {
            for rest in rests {
                let expected = Place::Tree(directory.as_bytes(), rest.as_bytes());
                let path = format!("{directory}{rest}");
                assert_eq!(place_of(&path), Some(expected), "{path}");
            }
        }
        for (path, above, rest) in [
            ("/sys/class/infiniband/..", "/sys/class", ""),
            ("/sys/class/infiniband//../net/eth0", "/sys/class", "/net/eth0"),
            ("/sys/class/infiniband_verbs/../infiniband/x", "/sys/class", "/infiniband/x"),
            ("/dev/infiniband/../null", "/dev", "/null"),
        ] {
            let expected = Place::Above(above.as_bytes(), rest.as_bytes());
            assert_eq!(place_of(path), Some(expected), "{path}");
        }
        assert_eq!(place_of("/dev/infiniband/uverbs7"), Some(Place::Null));
        assert_eq!(place_of("/dev/infiniband//uverbs7"), Some(Place::Null));
    }

    #[test]
    fn other_paths_are_not_redirected() {
        for path in [
            "",
            "/",
            "/sys/class/infinibandx",
            "/sys/class/infiniband_verbs2/uverbs7",
            "/sys/class/infiniband_mad",
            "/sys/class/infiniband/mlx5_0/node_type",
            "/sys/class/infiniband/flue00",
            "/sys/class/infiniband/flue",
            "/sys/class/infiniband/uverbs7",
            "/sys/class/infiniband_verbs/uverbs70/ibdev",
            "/sys/class/infiniband_verbs/flue0",
            "/dev/infiniband/uverbs",
            "/dev/infiniband/rdma_cm",
            "/dev/infiniband/uverbs7/x",
            "/dev/infinibandx",
            "/dev/null",
            "sys/class/infiniband/flue0",
        ] {
            assert_eq!(place_of(path), None, "{path}");
        }
    }

    #[test]
    fn candidates_are_those_with_a_prefix() {
        let holds = |path: &std::ffi::CStr| {
            // SAFETY: a C string.
            unsafe { is_candidate(path.as_ptr().cast()) }
        };
        for path in [c"/sys/class/infiniband", c"/sys/class/infiniband_x", c"/dev/infiniband/y"] {
            assert!(holds(path), "{path:?}");
        }
        for path in [c"", c"/", c"/sys/class/infinib", c"/dev/null", c"/usr/lib", c"x"] {
            assert!(!holds(path), "{path:?}");
        }
        // SAFETY: null is permitted.
        assert!(!unsafe { is_candidate(std::ptr::null()) });
    }
}
