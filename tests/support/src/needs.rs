//! Prerequisites of a test, and the handling of missing ones.
//!
//! On a developer's machine the test prints `skipped: <test>: <why>` and passes. In CI (environment `CI=true`)
//! a missing prerequisite is a failure, because `tests/run` has installed everything. A bench that silently
//! skips its tests is worse than none.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::PathBuf;
use std::{env, fmt};

/// Prerequisite that a machine may lack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// Effective user 0, or user 0 of a user namespace: required to create network namespaces.
    Root,
    /// User 0 of the initial user namespace, which can become any other user and create device nodes.
    InitialRoot,
    /// `/dev/net/tun` can be opened.
    Tun,
    /// A program on the `PATH` or in an `sbin` directory.
    Tool(&'static str),
}

impl Need {
    fn is_met(self) -> bool {
        match self {
            Self::Root => rustix::process::geteuid().is_root(),
            Self::InitialRoot => Self::Root.is_met() && all_users_are_mapped(),
            Self::Tun => OpenOptions::new().read(true).write(true).open("/dev/net/tun").is_ok(),
            Self::Tool(name) => find_tool(name).is_some(),
        }
    }
}

impl fmt::Display for Need {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Root => f.write_str("needs root (or `unshare --user --map-root-user`)"),
            Self::InitialRoot => f.write_str("needs root of the machine"),
            Self::Tun => f.write_str("/dev/net/tun cannot be opened"),
            Self::Tool(name) => write!(f, "`{name}` is not installed"),
        }
    }
}

/// A user namespace created by an ordinary user maps only that user.
fn all_users_are_mapped() -> bool {
    let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    map.split_whitespace().eq(["0", "0", "4294967295"])
}

/// Path of `name`, on the `PATH` or in the `sbin` directories that a user's `PATH` omits.
pub fn find_tool(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let sbin = ["/usr/sbin", "/sbin"].map(PathBuf::from);
    env::split_paths(&path).chain(sbin).map(|dir| dir.join(name)).find(|file| file.is_file())
}

/// Tests with the same prerequisites: `tests! { NEEDS; name => expression; … }`.
#[macro_export]
macro_rules! tests {
    ($needs:expr; $($(#[$doc:meta])* $name:ident => $body:expr;)*) => {
        $($(#[$doc])* #[test] fn $name() {
            if !$crate::needs::lacks($needs) {
                $body
            }
        })*
    };
}

/// True if the calling test must return because one of `needs` is missing.
///
/// The message is written to the real standard error, past the test runner's capture, so that it is visible
/// although the test passes.
///
/// # Panics
///
/// In CI, on the first need that is not met.
#[must_use = "a test without its prerequisites must return"]
pub fn lacks(needs: &[Need]) -> bool {
    let Some(lack) = needs.iter().find(|need| !need.is_met()) else { return false };
    assert!(
        env::var("CI").as_deref() != Ok("true"),
        "no test is skipped in CI, but {lack}: add it to tests/run"
    );
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("a test");
    // One write, since other tests write to it too.
    let line = format!("skipped: {test}: {lack}\n");
    std::io::stderr().write_all(line.as_bytes()).expect("standard error is open");
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn existing_tool_is_found_and_unknown_tool_is_not() {
        assert!(find_tool("sh").is_some());
        assert!(Need::Tool("sh").is_met());
        assert!(!Need::Tool("no-such-tool-anywhere").is_met());
    }
}
