//! What a test needs of the machine, and what happens when it is not there.
//!
//! On a developer's machine the test says `skipped: <test>: <why>` and passes. In CI (environment
//! `CI=true`) a lack is a failure, because there `tests/run` has installed everything: a bench
//! that silently runs nothing is worse than none.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::PathBuf;
use std::{env, fmt};

/// One thing that a machine may lack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// Effective user 0, or user 0 of a user namespace: to make network namespaces.
    Root,
    /// User 0 of the machine itself, who can become any other user and make device nodes.
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

/// In a user namespace made by an ordinary user, only that user is.
fn all_users_are_mapped() -> bool {
    let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    map.split_whitespace().eq(["0", "0", "4294967295"])
}

/// Where `name` is, on the `PATH` or in the `sbin` directories that a user's `PATH` leaves out.
pub fn find_tool(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let sbin = ["/usr/sbin", "/sbin"].map(PathBuf::from);
    env::split_paths(&path).chain(sbin).map(|dir| dir.join(name)).find(|file| file.is_file())
}

/// Tests that all need the same: `tests! { NEEDS; name => expression; … }`.
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

/// True when the calling test must return because the machine lacks one of `needs`.
///
/// The line about it goes to the real standard error, past the test runner's capture, so that it
/// is seen although the test passes.
///
/// # Panics
///
/// In CI, on the first need that is not met.
#[must_use = "a test that lacks something returns"]
pub fn lacks(needs: &[Need]) -> bool {
    let Some(lack) = needs.iter().find(|need| !need.is_met()) else { return false };
    assert!(
        env::var("CI").as_deref() != Ok("true"),
        "in CI nothing is skipped, but here {lack}; tests/run should have seen to it"
    );
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("a test");
    // In one piece, for other tests write there too.
    let line = format!("skipped: {test}: {lack}\n");
    std::io::stderr().write_all(line.as_bytes()).expect("standard error is open");
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tool_that_everybody_has_is_found_and_a_nonsense_one_is_not() {
        assert!(find_tool("sh").is_some());
        assert!(Need::Tool("sh").is_met());
        assert!(!Need::Tool("no-such-tool-anywhere").is_met());
    }
}
