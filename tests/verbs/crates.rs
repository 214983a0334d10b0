//! Rust crates of libibverbs, from the registry: examples and tests that connect their own queue pairs on the RoCE
//! device. `tests/verbs/crate` builds them.

use std::fs;
use std::path::PathBuf;
use std::time::Instant;

use flue_test_support::needs::lacks;

use crate::NEEDS;
use crate::programs::check;
use crate::results::{self, Programs};
use crate::test_bed::{Device, End, LIMIT, Transport};

/// Environment variables with directories of crates; `tests/verbs/run` sets them.
const SIDEWAY: &str = "FLUE_VERBS_SIDEWAY";
const IBVERBS: &str = "FLUE_VERBS_IBVERBS";

/// Returns the directory of the crate, or `None` if it is not built.
fn directory(variable: &str) -> Option<PathBuf> {
    let directory = std::env::var_os(variable).map(PathBuf::from);
    if directory.is_none() {
        println!("skipped: crate not built: run tests/verbs/run");
    }
    directory.filter(|_| !lacks(NEEDS))
}

/// Crate and version, from the name of its directory.
fn package(directory: &std::path::Path) -> String {
    let name = directory.file_name().unwrap_or_default().to_string_lossy();
    format!("crate {}", name.replacen('-', " ", 1))
}

/// Runs an example without a peer, which exits with 0 and prints these texts.
fn run_alone(variable: &str, order: usize, line: &str, says: &[&str]) {
    let Some(directory) = directory(variable) else { return };
    let (transport, begun) = (Transport::sockets(), Instant::now());
    let program = directory.join("target/debug/examples").join(line);
    let options = Device::Roce.options();
    let mut ran = transport.start(End::Server, options, &program.display().to_string());
    let ended = check(&mut ran, says);
    ran.kill();
    assert_eq!(ended, Ok(()), "{}", ran.report());
    let programs = Programs {
        order: results::CRATES + order,
        name: "example",
        package: &package(&directory),
        options: "",
        server: None,
        client: line,
    };
    let seen = says.join(", ");
    results::note_on(Device::Roce, &programs, &transport, &seen, begun.elapsed());
}

/// Runs an example at both ends, whose server listens on port 18515.
fn run_pair(variable: &str, order: usize, line: &str) {
    let Some(directory) = directory(variable) else { return };
    let (transport, begun) = (Transport::sockets(), Instant::now());
    let program = directory.join("target/debug/examples").join(line).display().to_string();
    let options = Device::Roce.options();
    let mut server = transport.start(End::Server, options, &program);
    let listens = server.wait_for_listener(transport.host(), 18515, LIMIT);
    assert_eq!(listens, Ok(()), "{}", server.report());
    let mut client = transport.start(End::Client, options, &format!("{program} 127.0.0.1"));
    let says = ["/iter"];
    let ended = check(&mut client, &says).and_then(|()| check(&mut server, &says));
    client.kill();
    server.kill();
    assert_eq!(ended, Ok(()), "{}\n{}", server.report(), client.report());
    let said = client.said();
    let programs = Programs {
        order: results::CRATES + order,
        name: "example",
        package: &package(&directory),
        options: "",
        server: Some(line),
        client: &format!("{line} 127.0.0.1"),
    };
    let seen = said.lines().find(|line| line.contains("/iter")).unwrap_or_default();
    results::note_on(Device::Roce, &programs, &transport, seen, begun.elapsed());
}

/// Runs the crate's test programs of these names.
fn run_tests(variable: &str, order: usize, names: &[&str]) {
    let Some(directory) = directory(variable) else { return };
    let (transport, begun) = (Transport::sockets(), Instant::now());
    for name in names {
        let built = fs::read_dir(directory.join("target/debug/deps")).expect("built tests");
        let is_test = |path: &PathBuf| {
            let file = path.file_name().unwrap_or_default().to_string_lossy();
            file.starts_with(&format!("{name}-")) && path.extension().is_none()
        };
        let program = built.filter_map(|entry| Some(entry.ok()?.path())).find(is_test);
        let program = program.unwrap_or_else(|| panic!("test {name} not built"));
        let line = program.display().to_string();
        let mut ran = transport.start(End::Server, Device::Roce.options(), &line);
        let ended = check(&mut ran, &["test result: ok."]);
        ran.kill();
        assert_eq!(ended, Ok(()), "{name}: {}", ran.report());
    }
    let programs = Programs {
        order: results::CRATES + order,
        name: "tests",
        package: &package(&directory),
        options: "",
        server: None,
        client: &names.join(", "),
    };
    let seen = format!("all tests of {} programs pass", names.len());
    results::note_on(Device::Roce, &programs, &transport, &seen, begun.elapsed());
}

#[test]
fn sideway_tests() {
    let names = ["test_atomic", "test_cq", "test_mr_and_cq", "test_post_send", "test_qp"];
    run_tests(SIDEWAY, 3, &names);
}

#[test]
fn sideway_pingpong() {
    run_pair(SIDEWAY, 0, "rc_pingpong");
}

#[test]
fn sideway_pingpong_split() {
    run_pair(SIDEWAY, 1, "rc_pingpong_split");
}

#[test]
fn sideway_lists_gids() {
    run_alone(SIDEWAY, 2, "show_gids", &["flue0", "10.77.0.1", "RoCEv2"]);
}

#[test]
fn ibverbs_loopback() {
    run_alone(IBVERBS, 10, "loopback", &["sent", "received"]);
}
