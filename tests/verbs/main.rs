//! Unmodified programs of libibverbs and librdmacm under `flue run`. A table lists the programs, each with the
//! command lines of both ends and the expected output. Other tests cover the launcher, symbol binding by the loader,
//! and another release of Debian.
//!
//! `tests/verbs/run` installs the programs and writes docs/measurements/verbs-programs.md. If a program is missing,
//! its test reports that and passes; in CI it fails.

mod addresses;
mod connect;
mod crates;
mod differences;
mod faults;
mod group;
mod launch;
mod loader;
mod memcheck;
mod migration;
mod options;
mod paths;
mod programs;
mod rdma_io;
mod releases;
mod results;
mod servers;
mod soak;
mod stops;
mod storage;
mod streams;
mod suites;
mod table;
mod tap;
mod test_bed;
mod ucx;

use std::path::PathBuf;

use flue_test_support::needs::Need;
use flue_test_support::netns::Namespace;

const FLUE: &str = env!("CARGO_BIN_EXE_flue");
const NEEDS: &[Need] = &[Need::Root, Need::Tool("ip"), Need::Tool("unshare")];

/// Path of the verbs library, which cargo builds in the same directory as this test.
fn library() -> PathBuf {
    let test = std::env::current_exe().expect("the path of this test");
    let library = test.with_file_name("libflue_verbs.so");
    assert!(library.is_file(), "{} not found", library.display());
    library
}

/// Namespace with an interface other than loopback; unless one has an IPv6 address, getaddrinfo(3) refuses `::1`.
fn machine() -> Namespace {
    let host = Namespace::new();
    host.ip("link add eth0 type veth peer name eth1");
    host.ip("address add 10.77.0.1/24 dev eth0");
    host.ip("address add fd77::1/64 dev eth0 nodad");
    for end in ["eth0", "eth1"] {
        host.ip(&format!("link set {end} up"));
    }
    host
}
