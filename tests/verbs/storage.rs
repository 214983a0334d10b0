//! Disks over iSER: tgtd, and the libiscsi initiators iscsi-perf, iscsi-test-cu and QEMU's block driver.
//!
//! iscsi-perf and iscsi-test-cu run in `tests/verbs/run` only; every test run writes and reads 64 MiB on kernel
//! sockets.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::process::Command;
use std::time::{Duration, Instant};

use flue_test_support::flue::Scratch;
use flue_test_support::needs::{Need, lacks};
use flue_test_support::tgtadm::{SOCKET, tgtadm};

use crate::NEEDS;
use crate::group::Group;
use crate::programs::check;
use crate::releases;
use crate::results::{self, Programs};
use crate::test_bed::{End, LIMIT, Transport, under_flue};

const SERVER: &str = "tgtd -f";
/// Maps the RDMA port on kernel sockets, where tgtd's iSCSI uses port 3260. Nodes have their own ports.
const PORT_MAP: &str = "--port-map 3260=3261";
/// Environment of libiscsi 1.19. Its iSER reads uninitialized fields of a connection; the first variable makes glibc
/// clear memory. It returns small buffers to a cache of larger ones and writes beyond their ends; the second variable
/// disables the cache.
const ENVIRONMENT: &str = "env MALLOC_PERTURB_=255 LIBISCSI_CACHE_ALLOCATIONS=0";

/// Initiator names: of the tools, the second one of iscsi-test-cu, and QEMU's. tgtd's iSER accepts names only.
const INITIATOR: &str = "iqn.2026-01.org.flue:initiator";
const SECOND: &str = "iqn.2026-01.org.flue:second";
const QEMU: &str = "iqn.2008-11.org.linux-kvm";
/// Targets with the same disk: by iSER and by TCP.
const DISK: &str = "iqn.2026-01.org.flue:disk";
const DISK_BY_TCP: &str = "iqn.2026-01.org.flue:tcp";
const DISK_BYTES: u64 = 128 << 20;
/// Error of libiscsi's iSER when a request is not answered within a second, as on a busy machine.
const TIMEOUT: &str = "revents is not POLLIN";
/// Maximum attempts of a run that fails with [`TIMEOUT`].
const ATTEMPTS_MAX: usize = 3;
/// Limit for a run of iscsi-test-cu.
const TEST_LIMIT: Duration = Duration::from_secs(60);

/// tgtd with a disk.
struct Storage {
    server: Group,
    transport: Transport,
    scratch: Scratch,
}

impl Storage {
    fn start(transport: Transport) -> Self {
        let scratch = Scratch::new();
        let mut tgtd = under_flue(&options(&transport, End::Server), SERVER);
        tgtd.env(SOCKET, scratch.file("tgtd"));
        let server = transport.start_command(End::Server, tgtd);
        let storage = Self { server, transport, scratch };
        let ready = storage.server.wait_until("accepts commands", LIMIT, || {
            tgtadm(&storage.scratch.file("tgtd"), "--op show --mode sys").is_ok()
        });
        assert_eq!(ready, Ok(()), "{}", storage.server.report());
        let path = storage.scratch.file("disk");
        let disk = File::create(&path).expect("a file of this test");
        disk.set_len(DISK_BYTES).expect("a sparse file");
        for (id, driver, name) in [(1, "iser", DISK), (2, "iscsi", DISK_BY_TCP)] {
            let of = |mode: &str| format!("--lld {driver} --mode {mode} --tid {id}");
            storage.configure(&format!("{} --op new -T {name}", of("target")));
            storage.configure(&format!("{} --op bind -I ALL", of("target")));
            if driver == "iser" {
                for initiator in [INITIATOR, SECOND, QEMU] {
                    storage.configure(&format!("{} --op bind -Q {initiator}", of("target")));
                }
            }
            let unit = format!("{} --op new --lun 1 -b {}", of("logicalunit"), path.display());
            storage.configure(&unit);
        }
        storage
    }

    fn configure(&self, words: &str) {
        let done = tgtadm(&self.scratch.file("tgtd"), words);
        done.unwrap_or_else(|wrong| panic!("{wrong}\n{}", self.server.report()));
    }

    fn initiator(&self, line: &str) -> Group {
        let line = format!("{ENVIRONMENT} {line}");
        self.transport
            .start_command(End::Client, under_flue(&options(&self.transport, End::Client), &line))
    }

    /// Waits until an initiator has exited with status 0, and returns its output.
    ///
    /// # Errors
    ///
    /// Any other end, with the output of both ends.
    fn finish(&self, mut initiator: Group) -> Result<String, String> {
        let ended = check(&mut initiator, &[]);
        initiator.kill();
        let report = || format!("{}\n{}", self.server.report(), initiator.report());
        ended.map(|()| initiator.said()).map_err(|wrong| format!("{wrong}\n{}", report()))
    }

    /// Reads for three seconds with 32 outstanding requests.
    fn perf(&self) {
        let begun = Instant::now();
        let client = format!("iscsi-perf -i {INITIATOR} -m 32 -b 8 -t 3 {}", url(DISK));
        let said = attempt(|| self.finish(self.initiator(&client)));
        let average = said.rsplit("iops average ").next().and_then(|it| it.split(' ').next());
        let average = average.and_then(|it| it.parse::<u64>().ok()).unwrap_or_default();
        assert!(average > 100, "{said}");
        let seen = format!("{average} reads of 4 KiB per second");
        note(0, "iscsi-perf", "libiscsi-bin", &client, &self.transport, &seen, begun);
    }

    /// Writes 64 MiB, reads them, and compares the data read by the initiator and stored by the target.
    fn write_and_read(&self) {
        // Limit of libiscsi's iSER: a larger request fails with ENOMEM.
        const PIECE: usize = 256 << 10;
        const PIECES: usize = (64 << 20) / PIECE;
        let begun = Instant::now();
        let pattern = |at: usize| u8::try_from(at * 7 % 251 + 1).expect("at most 251");
        let commands = ["write", "read"].into_iter().flat_map(|verb| {
            (0..PIECES).map(move |at| format!("{verb} -P {} {} {PIECE}\n", pattern(at), at * PIECE))
        });
        let script = self.scratch.file("commands");
        fs::write(&script, commands.collect::<String>()).expect("a file of this test");
        let client = format!("qemu-io -f raw {}", url(DISK));
        let shell = || {
            let mut shell = under_flue(&options(&self.transport, End::Client), "sh -c");
            shell.arg(format!("exec {ENVIRONMENT} {client} <{}", script.display()));
            self.transport.start_command(End::Client, shell)
        };
        let said = attempt(|| self.finish(shell()));
        for verb in ["wrote", "read"] {
            let whole = format!("{verb} {PIECE}/{PIECE} bytes");
            assert_eq!(said.matches(&whole).count(), PIECES, "{whole}: {said}");
        }
        assert!(!said.contains("Pattern verification failed"), "{said}");
        let disk = fs::read(self.scratch.file("disk")).expect("a file of this test");
        for (at, piece) in disk.chunks(PIECE).enumerate() {
            let expected = if at < PIECES { pattern(at) } else { 0 };
            assert!(piece.iter().all(|octet| *octet == expected), "piece {at} of the disk");
        }
        let seen = "64 MiB written, read and compared";
        note(2, "qemu-io", "qemu-block-extra", &client, &self.transport, seen, begun);
    }

    /// Runs tests of iscsi-test-cu by iSER. Returns the number of passed tests.
    ///
    /// # Errors
    ///
    /// A test failed, with the output.
    fn test(&self, tests: &str) -> Result<u32, String> {
        let line = format!(
            "iscsi-test-cu -d -f -n -t ALL.{tests} -i {INITIATOR} -I {SECOND} {}",
            url(DISK)
        );
        passed(self.initiator(&line))
    }

    /// Runs the tests as [`Self::test`] does, by TCP.
    fn test_by_tcp(&self, tests: &str) -> Result<u32, String> {
        let mut command = Command::new("iscsi-test-cu");
        command.args(["-d", "-f", "-n", "-i", INITIATOR, "-I", SECOND]);
        command.arg("-t").arg(format!("ALL.{tests}"));
        command.arg(format!("iscsi://127.0.0.1/{DISK_BY_TCP}/1"));
        passed(Group::start(self.transport.host(), command))
    }

    /// Runs tests that must pass, with a new tgtd after a failure. Returns their number.
    fn expect(&mut self, make: fn() -> Transport, tests: &str) -> u32 {
        attempt(|| self.test(tests).inspect_err(|_| *self = Self::start(make())))
    }
}

/// Repeats a run of an initiator that fails with [`TIMEOUT`], and returns the last result.
fn attempt<T>(mut run: impl FnMut() -> Result<T, String>) -> T {
    let mut attempts = 1;
    loop {
        match run() {
            Ok(result) => return result,
            Err(report) => {
                assert!(attempts < ATTEMPTS_MAX && report.contains(TIMEOUT), "{report}");
            }
        }
        attempts += 1;
    }
}

fn url(target: &str) -> String {
    format!("iser://127.0.0.1/{target}/1")
}

fn options(transport: &Transport, end: End) -> String {
    match transport {
        Transport::Sockets(_) => PORT_MAP.into(),
        Transport::Nodes(_) => transport.options(end),
    }
}

fn note(
    order: usize,
    name: &str,
    package: &str,
    client: &str,
    transport: &Transport,
    seen: &str,
    begun: Instant,
) {
    let programs = Programs {
        order: results::STORAGE + order,
        name,
        package,
        options: &format!("{PORT_MAP} (kernel sockets)"),
        server: Some(SERVER),
        client: &format!("{ENVIRONMENT} {client}"),
    };
    results::note(&programs, transport, seen, begun.elapsed());
}

/// Waits until iscsi-test-cu has exited and returns the number of passed tests. The summary is used instead of the exit
/// status: libiscsi frees an iSER connection that its event thread still uses, so that one process in several hundred
/// crashes.
///
/// # Errors
///
/// A test failed, with the output.
fn passed(mut test: Group) -> Result<u32, String> {
    let ended = test.wait(TEST_LIMIT);
    test.kill();
    assert!(ended.is_ok(), "{ended:?}: {}", test.report());
    let said = test.said();
    // Columns: total, run, passed, failed.
    let line = said.lines().find_map(|line| line.trim_start().strip_prefix("tests "));
    let cells = line.map(|line| line.split_whitespace().filter_map(|it| it.parse().ok()));
    match cells.map(Iterator::collect::<Vec<u32>>).as_deref() {
        Some(&[_, run, passed, 0, ..]) if run > 0 && run == passed => Ok(run),
        _ => Err(test.report()),
    }
}

/// Tests of iscsi-test-cu in bookworm that do not pass by iSER.
struct Difference {
    tests: &'static [&'static str],
    reason: &'static str,
    /// True if the tests do not pass by TCP either.
    fails_by_tcp: bool,
}

const DIFFERENCES: &[Difference] = &[
    Difference {
        tests: &[
            "GetLBAStatus.BeyondEol",
            "PrinServiceactionRange.Range",
            "ProutReserve.OwnershipEA",
            "ProutReserve.OwnershipEARO",
            "ProutReserve.OwnershipWE",
            "ProutReserve.OwnershipWERO",
            "Reserve6.2Initiators",
            "iSCSIdatasn.iSCSIDataSnInvalid",
        ],
        reason: "tgtd does not pass them over TCP either",
        fails_by_tcp: true,
    },
    Difference {
        tests: &["Reserve6.ITNexusLoss", "Reserve6.Logout"],
        reason: "tgtd's iSER keeps a session until RDMA_CM_EVENT_TIMEWAIT_EXIT, which iWARP does not have",
        fails_by_tcp: false,
    },
    Difference {
        tests: &["Inquiry.AllocLength", "Inquiry.BlockLimits", "ModeSense6.Residuals"],
        reason: "libiscsi's iSER returns as many bytes as were requested, whatever the target has sent",
        fails_by_tcp: false,
    },
    Difference {
        tests: &[
            "ExtendedCopy.Simple",
            "iSCSIResiduals.Read10Invalid",
            "iSCSIResiduals.Read10Residuals",
            "iSCSIResiduals.Read12Residuals",
            "iSCSIResiduals.Read16Residuals",
            "iSCSIResiduals.Write10Residuals",
            "iSCSIResiduals.Write12Residuals",
            "iSCSIResiduals.Write16Residuals",
            "iSCSIResiduals.WriteVerify10Residuals",
            "iSCSIResiduals.WriteVerify12Residuals",
            "iSCSIResiduals.WriteVerify16Residuals",
        ],
        reason: "libiscsi's iSER counts a request of more than 256 KiB, or without data, and does not send it: the \
                 target waits for that CmdSN",
        fails_by_tcp: false,
    },
    Difference {
        tests: &["iSCSIcmdsn.iSCSICmdSnTooHigh", "iSCSIcmdsn.iSCSICmdSnTooLow"],
        reason: "tgtd's iSER closes a connection that sends a wrong CmdSN; over TCP it drops the request",
        fails_by_tcp: false,
    },
    Difference {
        tests: &["Read10.Async", "Write10.Async"],
        reason: "libiscsi's iSER dereferences a null pointer when more than 256 requests are outstanding",
        fails_by_tcp: false,
    },
    Difference {
        tests: &[
            "Reserve6.LUNReset",
            "Reserve6.TargetColdReset",
            "Reserve6.TargetWarmReset",
            "iSCSITMF.AbortTaskSimpleAsync",
            "iSCSITMF.LUNResetSimpleAsync",
        ],
        reason: "libiscsi's iSER dereferences a null pointer when it sends a task management request",
        fails_by_tcp: false,
    },
];

fn difference(test: &str) -> Option<&'static Difference> {
    DIFFERENCES.iter().find(|it| it.tests.contains(&test))
}

/// Returns all tests of iscsi-test-cu as `SUITE.TEST`, by suite.
fn tests() -> BTreeMap<String, BTreeSet<String>> {
    let listed = Command::new("iscsi-test-cu").arg("-l").output().expect("iscsi-test-cu starts");
    let mut suites = BTreeMap::<_, BTreeSet<_>>::new();
    for test in String::from_utf8_lossy(&listed.stdout).lines() {
        let Some(test) = test.strip_prefix("ALL.") else { continue };
        if let Some((suite, _)) = test.split_once('.') {
            suites.entry(suite.to_owned()).or_default().insert(test.to_owned());
        }
    }
    suites
}

/// Runs iscsi-test-cu: whole suites, and those with differences test by test. A failed test leaves reservations, so
/// tgtd is restarted.
fn test_all(make: fn() -> Transport) {
    let begun = Instant::now();
    let mut storage = Storage::start(make());
    let (mut passed, mut differing) = (0, 0);
    for (suite, tests) in tests() {
        if tests.iter().all(|test| difference(test).is_none()) {
            passed += storage.expect(make, &suite);
            continue;
        }
        for test in &tests {
            let Some(Difference { reason, fails_by_tcp, .. }) = difference(test) else {
                passed += storage.expect(make, test);
                continue;
            };
            assert!(storage.test(test).is_err(), "{test} passes, expected a failure: {reason}");
            if *fails_by_tcp {
                assert!(storage.test_by_tcp(test).is_err(), "{test} passes by TCP: {reason}");
            }
            differing += 1;
            storage = Storage::start(make());
        }
    }
    let listed: usize = DIFFERENCES.iter().map(|it| it.tests.len()).sum();
    assert_eq!(differing, listed, "listed differences of unknown tests");
    let seen = format!("{passed} tests pass; {differing} fail, each with a reason in the list");
    let client = format!("iscsi-test-cu -d -f -n -t ALL.TESTS {}", url(DISK));
    note(1, "iscsi-test-cu", "libiscsi-bin", &client, &storage.transport, &seen, begun);
}

fn run(make: fn() -> Transport) {
    let storage = Storage::start(make());
    storage.write_and_read();
    if results::are_enabled() {
        storage.perf();
        drop(storage);
        if releases::codename() == "bookworm" {
            test_all(make);
        } else {
            println!("skipped: iscsi-test-cu: the list of differences applies to bookworm only");
        }
    }
}

fn is_lacking() -> bool {
    let tools = ["tgtd", "tgtadm", "iscsi-perf", "iscsi-test-cu", "qemu-io"];
    lacks(NEEDS) || tools.iter().any(|tool| lacks(&[Need::Tool(tool)]))
}

#[test]
fn tgtd_and_libiscsi_over_iser() {
    if !is_lacking() {
        run(Transport::sockets);
    }
}

#[test]
fn tgtd_and_libiscsi_over_iser_on_nodes() {
    if is_lacking() || lacks(&[Need::Tun]) {
        return;
    }
    if results::are_enabled() {
        run(Transport::nodes);
    } else {
        println!("skipped: long test, run by tests/verbs/run");
    }
}
