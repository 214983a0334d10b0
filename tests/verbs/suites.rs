//! Suites of many programs: the tests of pyverbs, libfabric, and MPI.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fmt::Write as _;
use std::fs;
use std::iter;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use flue_test_support::flue::Scratch;
use flue_test_support::needs::{Need, find_tool, lacks};
use serde_json::Value;

use crate::group::{Group, ending};
use crate::releases;
use crate::results::{self, Programs};
use crate::test_bed::{Device, End, Transport, ends, under_flue};
use crate::ucx;
use crate::{NEEDS, machine};

const LIMIT: Duration = Duration::from_secs(120);

/// Directory of the tests in Debian's package python3-pyverbs. Images without documentation lack it.
const PACKAGED: &str = "/usr/share/doc/rdma-core/tests";

/// Provides the device's interface where the tests look it up: in sysfs, and in later releases by `rdma link`. The
/// script writes a replacement of `rdma` to the directory $1.
const WITH_INTERFACE: &str = "mount -t tmpfs none /sys/class && mkdir -p /sys/class/infiniband/flue0/device/net/eth0 \
     && printf '#!/bin/sh\necho %s\n' \"'$LINK'\" >\"$1/rdma\" && chmod +x \"$1/rdma\" \
     && PATH=$1:$PATH && shift && exec \"$@\"";

/// Output of `rdma link show -j`.
const LINK: &str = r#"[{"ifindex":0,"ifname":"flue0","port":1,"state":"ACTIVE","netdev":"eth0"}]"#;

/// Outcome and reason by name, parsed from lines with tabs.
fn outcomes(lines: &str) -> BTreeMap<&str, (&str, &str)> {
    let row = |line| {
        let mut cells = str::split(line, '\t');
        let (outcome, name) = (cells.next()?, cells.next()?);
        let name = name.strip_prefix("tests.").unwrap_or(name);
        let is_outcome = ["ok", "skip", "error"].contains(&outcome);
        is_outcome.then(|| (name, (outcome, cells.next().unwrap_or_default())))
    };
    lines.lines().filter_map(row).collect()
}

// Those of mlx5 and EFA are linked to the providers, which bind the private interface. Neither a module nor the
// loader prints anything.
#[test]
fn modules_of_pyverbs() {
    const IMPORT: &str = "import pyverbs.cmid, pyverbs.device, pyverbs.providers.efa.efadv, \
                          pyverbs.providers.mlx5.mlx5dv, pyverbs.qp; \
                          print(*[it.name.decode() for it in pyverbs.device.get_device_list()])";
    if lacks(NEEDS) || lacks(&[Need::Tool("python3")]) {
        return;
    }
    let (host, mut program) = (machine(), under_flue("", "/usr/bin/python3 -c"));
    program.arg(IMPORT);
    let mut ran = Group::start(&host, program);
    let ended = ran.wait(LIMIT).map(|status| status.code());
    ran.kill();
    assert_eq!((ended, ran.said().as_str()), (Ok(Some(0)), "flue0\n"), "{}", ran.report());
}

/// Test that fails at times: the peer reads the memory of a Write when the requester has its completion. A completion
/// on a connection of librdmacm means that the data is passed to TCP, not that the peer has it.
const UNCERTAIN: &str = "test_rdmacm.CMTestCase.test_rdmacm_async_write";

/// Runs the tests of pyverbs on the device, and compares each outcome with the list of this release. At least
/// `passes_min` of the list pass.
fn run_packaged_tests(device: Device, list: &str, order: usize, passes_min: usize) {
    if lacks(NEEDS) {
        return;
    }
    if !Path::new(PACKAGED).is_dir() || !Path::new("/usr/bin/python3").is_file() {
        println!("skipped: {PACKAGED} not found (Debian package python3-pyverbs)");
        return;
    }
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/verbs/");
    let Ok(expected) = fs::read_to_string(format!("{path}{list}")) else {
        println!("skipped: {list} not found: no expected results for this release");
        return;
    };
    let (host, scratch, begun) = (machine(), Scratch::new(), Instant::now());
    let copies = scratch.file("copies");
    fs::create_dir(&copies).expect("a directory");
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/verbs/packaged_tests.py");
    let line = format!("/usr/bin/python3 {script} {PACKAGED} {}", copies.display());
    let inner = under_flue(device.options(), &line);
    let mut program = Command::new("unshare");
    program
        .args(["--mount", "sh", "-c", WITH_INTERFACE, "sh"])
        .arg(scratch.file(""))
        .env("LINK", LINK);
    program.arg(inner.get_program()).args(inner.get_args());
    let mut ran = Group::start(&host, program);
    let status = ran.wait(LIMIT).unwrap_or_else(|wrong| panic!("{wrong}\n{}", ran.report()));
    assert!(status.success(), "{}\n{}", ending(status), ran.report());
    let said = ran.said();
    let (seen, expected) = (outcomes(&said), outcomes(&expected));
    let passes = expected.values().filter(|(outcome, _)| *outcome == "ok").count();
    assert!(passes >= passes_min, "{passes} tests of {list} pass, expected {passes_min}");
    for (name, (outcome, why)) in &expected {
        let (now, reason) = seen.get(name).copied().unwrap_or(("not run", ""));
        // A machine may have resources that another lacks, such as huge pages.
        let is_fine = now == *outcome
            || (*outcome, now) == ("skip", "ok")
            || (*name, now) == (UNCERTAIN, "error");
        assert!(is_fine, "{name}: {now} ({reason}), expected {outcome} ({why})\n{}", ran.report());
    }
    let passed = seen.values().filter(|(outcome, _)| *outcome == "ok").count();
    let programs = Programs {
        order,
        name: "pyverbs",
        package: "python3-pyverbs",
        options: "",
        server: None,
        client: "run_tests.py --dev flue0 --port 1 --gid 0",
    };
    let seen_in_short = format!("{passed} of {} pass, each as `{list}` expects", seen.len());
    results::note_on(device, &programs, &Transport::Sockets(host), &seen_in_short, begun.elapsed());
    let unknown: Vec<_> = seen.keys().filter(|name| !expected.contains_key(*name)).collect();
    assert!(unknown.is_empty(), "not in {list}: {unknown:?}");
}

// Each test that iWARP can pass passes. The tests skip themselves for features that the device does not have. Each
// release packages different tests.
#[test]
fn tests_of_pyverbs() {
    let list = format!("packaged_tests.{}.txt", releases::codename());
    run_packaged_tests(Device::Iwarp, &list, results::SUITES, 30);
}

// Each test that needs only RC, UC and UD queue pairs passes on the RoCE device.
#[test]
fn tests_of_pyverbs_on_roce() {
    let list = format!("packaged_tests.{}.roce.txt", releases::codename());
    run_packaged_tests(Device::Roce, &list, results::SUITES, 70);
}

// Program with which `flue bench` measures libfabric, on the verbs provider: datagrams of ofi_rxm, whose last
// operation is compared byte by byte, and connections.
#[test]
fn program_of_libfabric() {
    if lacks(NEEDS) || lacks(&[Need::Tool("cc")]) {
        return;
    }
    // The package is too large for `tests/run`; `tests/verbs/run` installs it.
    if !Path::new("/usr/include/rdma/fabric.h").is_file() {
        println!("skipped: headers of libfabric are not installed (Debian package libfabric-dev)");
        return;
    }
    let scratch = Scratch::new();
    let program = scratch.file("libfabric-bench");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/bench/src/baseline/libfabric.c");
    let compiled = Command::new("cc").arg("-o").arg(&program).args([source, "-lfabric"]).status();
    assert!(compiled.expect("cc runs").success());
    let operations = [
        "--op write --size 65536",
        "--op read --size 65536",
        "--op send --size 65536",
        "--op write --size 8 --latency",
        "--op send --size 8 --latency",
        "--op connect --depth 100",
    ];
    for (order, operation) in operations.into_iter().enumerate() {
        let (transport, begun) = (Transport::sockets(), Instant::now());
        let line = |words: &str| format!("{} {words} --provider verbs", program.display());
        let server = transport.start(End::Server, "", &line("server"));
        assert_eq!(transport.wait_for_listener(&server, 18600), Ok(()), "{}", server.report());
        let client = format!("client 10.77.0.1 --seconds 0.5 {operation}");
        let said = ends(server, transport.start(End::Client, "", &line(&client)));
        let result: Value = serde_json::from_str(said.lines().last().unwrap_or_default())
            .unwrap_or_else(|error| panic!("{operation}: {error}: {said}"));
        let value = result["value"].as_f64().filter(|value| *value > 0.0);
        assert!(value.is_some(), "{operation}: {said}");
        let of_verbs = |name: &str| name.split(';').any(|it| it == "verbs");
        assert!(result["detail"]["provider"].as_str().is_some_and(of_verbs), "{said}");
        let programs = Programs {
            order: results::SUITES + 10 + order,
            name: "libfabric-bench",
            package: "libfabric-dev",
            options: "",
            server: Some("libfabric-bench server --provider verbs"),
            client: &format!("libfabric-bench {client} --provider verbs"),
        };
        let unit = result["unit"].as_str().unwrap_or_default();
        let seen = format!("{:.0} {unit}", value.unwrap_or_default());
        results::note(&programs, &transport, &seen, begun.elapsed());
    }
}

/// Path of the MPI program, compiled into the directory, or `None` if Open MPI is missing, which is reported.
fn compile_mpi(scratch: &Scratch, name: &str) -> Option<PathBuf> {
    if lacks(NEEDS) {
        return None;
    }
    // The packages are too large for `tests/run`; `tests/verbs/run` installs them.
    if ["mpicc", "mpirun"].into_iter().any(|tool| find_tool(tool).is_none()) {
        println!(
            "skipped: Open MPI is not installed (Debian packages openmpi-bin, libopenmpi-dev)"
        );
        return None;
    }
    let program = scratch.file(name);
    let source = format!("{}/tests/verbs/{name}.c", env!("CARGO_MANIFEST_DIR"));
    let compiled = Command::new("mpicc").arg("-o").arg(&program).arg(source).status();
    assert!(compiled.expect("mpicc runs").success());
    Some(program)
}

/// Runs a program with 2 and 4 ranks, whose captures contain its bytes.
fn run_mpi(device: Device, words: &str, name: &str, order: usize, says: &str) {
    let scratch = Scratch::new();
    let Some(program) = compile_mpi(&scratch, name) else { return };
    let host = machine();
    for ranks in [2, 4] {
        let begun = Instant::now();
        let captures = scratch.file(&format!("captures-{ranks}"));
        fs::create_dir(&captures).expect("a directory");
        let options = format!("{} --pcap {}/%p", device.options(), captures.display());
        let line = format!(
            "mpirun --allow-run-as-root --oversubscribe -n {ranks} {words} --mca btl ^openib {}",
            program.display()
        );
        let mut program = under_flue(&options, &line);
        // Read by UCX only.
        program.env("UCX_TLS", ucx::TRANSPORTS);
        // Open MPI 5 names its directory by process id, which is the same in several PID namespaces.
        program.env("TMPDIR", scratch.file(""));
        let mut ran = Group::start(&host, program);
        let status = ran.wait(LIMIT).unwrap_or_else(|wrong| panic!("{wrong}\n{}", ran.report()));
        let says = format!("{says} of {ranks} ranks: results correct");
        assert!(status.success() && ran.said().contains(&says), "{}", ran.report());
        let sizes = fs::read_dir(&captures).expect("a directory");
        let sizes: Vec<_> =
            sizes.map(|it| it.expect("an entry").metadata().expect("a file").len()).collect();
        assert_eq!(sizes.len(), ranks, "one capture per rank");
        assert!(sizes.iter().all(|size| *size > 2 << 20), "a MiB each way: {sizes:?}");
        let client = format!("mpirun -n {ranks} {words} ... {name}");
        let programs = Programs {
            order: order + ranks,
            name: "mpi",
            package: "openmpi-bin",
            options: "",
            server: None,
            client: &client,
        };
        let transport = Transport::Sockets(machine());
        results::note_on(device, &programs, &transport, &says, begun.elapsed());
    }
}

// Over libfabric's verbs provider.
#[test]
fn mpi() {
    let words = "--mca pml cm --mca mtl ofi --mca mtl_ofi_provider_include verbs;ofi_rxm";
    run_mpi(Device::of_environment(), words, "ring", results::SUITES, "ring and all-to-all");
}

// Over UCX's transport rc_verbs.
#[test]
fn mpi_over_ucx() {
    let words = "--mca pml ucx --mca pml_ucx_tls any --mca pml_ucx_devices any";
    run_mpi(Device::Roce, words, "ring", results::SUITES + 5, "ring and all-to-all");
}

// One rank on each node. The ranks start each other by the kernel's TCP.
#[test]
fn mpi_over_ucx_on_nodes() {
    if lacks(&[Need::Tun]) {
        return;
    }
    let scratch = Scratch::new();
    let Some(program) = compile_mpi(&scratch, "ring") else { return };
    let (transport, begun) = (Transport::nodes(), Instant::now());
    // Each rank selects its node, because mpirun of Open MPI 5.0.7 crashes if it gets two programs.
    let mut script = String::from("case $OMPI_COMM_WORLD_RANK in\n");
    for (rank, end) in [End::Server, End::Client].into_iter().enumerate() {
        let capture = scratch.file(&format!("capture-{rank}"));
        let options = format!(
            "{} {} --pcap {}",
            transport.options(end),
            Device::Roce.options(),
            capture.display()
        );
        let under = under_flue(&options, &program.display().to_string());
        let words = iter::once(under.get_program()).chain(under.get_args());
        let words: Vec<_> = words.map(OsStr::to_string_lossy).collect();
        writeln!(script, "{rank}) exec {};;", words.join(" ")).expect("memory");
    }
    script.push_str("esac\n");
    let file = scratch.file("rank.sh");
    fs::write(&file, script).expect("a directory of this test");
    let words = "--allow-run-as-root --oversubscribe -n 2 --mca pml ucx --mca pml_ucx_tls any \
                 --mca pml_ucx_devices any --mca btl ^openib sh";
    let mut command = Command::new("mpirun");
    command.args(words.split_whitespace()).arg(file);
    command.env("UCX_TLS", ucx::TRANSPORTS).env("TMPDIR", scratch.file(""));
    let mut ran = transport.start_command(End::Server, command);
    let status = ran.wait(LIMIT).unwrap_or_else(|wrong| panic!("{wrong}\n{}", ran.report()));
    let says = "ring and all-to-all of 2 ranks: results correct";
    assert!(status.success() && ran.said().contains(says), "{}", ran.report());
    for rank in 0..2 {
        let captured =
            fs::metadata(scratch.file(&format!("capture-{rank}"))).map_or(0, |it| it.len());
        assert!(captured > 2 << 20, "a MiB each way: {captured}");
    }
    let programs = Programs {
        order: results::SUITES + 11,
        name: "mpi",
        package: "openmpi-bin",
        options: "",
        server: None,
        client: "mpirun -n 2 sh rank.sh: a node for each rank",
    };
    results::note_on(Device::Roce, &programs, &transport, says, begun.elapsed());
}

// One-sided operations over UCX, which flushes them by a Write without data.
#[test]
fn mpi_one_sided_over_ucx() {
    let words = "--mca pml ucx --mca osc ucx --mca pml_ucx_tls any --mca pml_ucx_devices any";
    run_mpi(Device::Roce, words, "rma", results::SUITES + 6, "one-sided operations");
}
