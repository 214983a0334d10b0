//! Programs of Debian and the dynamic loader: every symbol is bound, and nothing is printed.

use std::process::Command;

use flue_test_support::needs::{Need, lacks};

use crate::{FLUE, library};

/// Programs of rdma-core, perftest and other packages; tests/verbs/run installs the Debian packages.
const PROGRAMS: [&str; 16] = [
    "rping",
    "ucmatose",
    "udaddy",
    "mckey",
    "cmtime",
    "rdma_server",
    "rdma_xclient",
    "rstream",
    "ibv_devinfo",
    "ibv_rc_pingpong",
    "ib_write_bw",
    "ib_atomic_lat",
    "qperf",
    "fio",
    "fi_pingpong",
    "ibv_asyncwatch",
];

#[test]
fn every_program_binds_every_symbol() {
    for program in PROGRAMS {
        if lacks(&[Need::Tool(program), Need::Tool("ldd")]) {
            continue;
        }
        let path = flue_test_support::needs::find_tool(program).expect("an installed program");
        let mut command = Command::new(FLUE);
        command.args(["run", "--library"]).arg(library()).args(["--", "ldd", "-r"]).arg(path);
        let ended = command.output().expect("flue starts");
        let said = String::from_utf8_lossy(&ended.stdout) + String::from_utf8_lossy(&ended.stderr);
        assert!(ended.status.success(), "{program}: {said}");
        for wrong in ["undefined", "no version information", "not found"] {
            assert!(!said.contains(wrong), "{program}: {said}");
        }
        // Some programs have only one of the libraries, or both only as indirect dependencies.
        let ours = said.lines().filter(|line| line.contains("/flue-verbs-")).count();
        let theirs = said
            .lines()
            .filter(|line| line.contains(".so.1 => /lib/"))
            .filter(|line| line.contains("libibverbs") || line.contains("librdmacm"));
        assert_eq!(theirs.count(), 0, "{program}: {said}");
        assert!(ours >= 1 || program == "fio", "{program}: {said}");
    }
}
