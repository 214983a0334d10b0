//! Migration of QEMU over RDMA between two processes: a running guest, a stopped guest, and failed migrations.
//!
//! For a running guest, only the memory that it does not write is compared. QEMU's TCG can miss a page that the guest
//! writes while QEMU collects the dirty pages. The destination then has an older copy of it, over plain TCP as well.
//! For a stopped guest, all memory is compared.

use std::collections::VecDeque;
use std::fs;
use std::io::{BufRead as _, BufReader, ErrorKind, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use flue_test_support::flue::Scratch;
use flue_test_support::needs::{Need, lacks};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::NEEDS;
use crate::group::Group;
use crate::results::{self, Programs};
use crate::test_bed::{End, Transport};

const PORT: u16 = 4444;
/// Time of each step, on a busy machine: QEMU exchanges two messages for each empty page.
const LIMIT: Duration = Duration::from_secs(180);
const MACHINE: &str =
    "qemu-system-x86_64 -nodefaults -no-user-config -display none -M q35 -accel tcg";
/// Address in the guest of the random pattern that only the source loads.
const PATTERN_AT: usize = 16 << 20;
/// Address in the guest of the memory that its firmware writes, and the length of that memory.
const COUNTER_AT: usize = 0x2_0000;
const COUNTER_BYTES: usize = 0x1_0000;

/// Firmware of the guest, mapped at F000:0000. Fills 64 KiB with a counter, over and over.
const FIRMWARE: &[u8] = &[
    0xfa, // cli
    0x31, 0xdb, // xor bx, bx
    0x43, // again: inc bx
    0xb8, 0x00, 0x20, // mov ax, 2000h
    0x8e, 0xc0, // mov es, ax
    0x31, 0xff, // xor di, di
    0xb9, 0x00, 0x80, // mov cx, 8000h
    0x89, 0xd8, // mov ax, bx
    0xf3, 0xab, // rep stosw
    0xeb, 0xef, // jmp again
];
/// Reset vector at F000:FFF0: a jump to F000:0000.
const RESET: &[u8] = &[0xe9, 0x0d, 0x00];

fn uri(port: u16) -> String {
    format!("rdma:127.0.0.1:{port}")
}

/// Writes the files of both ends, `firmware` and `pattern`, and returns the pattern.
fn make_files(scratch: &Scratch, pattern_bytes: usize) -> Vec<u8> {
    let mut firmware = vec![0_u8; 0x1_0000];
    firmware[..FIRMWARE.len()].copy_from_slice(FIRMWARE);
    firmware[0xfff0..][..RESET.len()].copy_from_slice(RESET);
    fs::write(scratch.file("firmware"), firmware).expect("a writable file");
    let mut state = 1_u64;
    let words = std::iter::repeat_with(|| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 32) as u32
    });
    let pattern: Vec<u8> = words.take(pattern_bytes / 4).flat_map(u32::to_le_bytes).collect();
    fs::write(scratch.file("pattern"), &pattern).expect("a writable file");
    pattern
}

/// Connection to a monitor of QEMU (QMP over a socket).
struct Monitor {
    stream: BufReader<UnixStream>,
    events: VecDeque<Value>,
}

impl Monitor {
    fn connect(of: &Group, path: &Path) -> Self {
        let mut connected = None;
        let listens = of.wait_until("its monitor listens", LIMIT, || {
            connected = UnixStream::connect(path).ok();
            connected.is_some()
        });
        assert_eq!(listens, Ok(()), "{}", of.report());
        let stream = connected.expect("connected above");
        stream.set_read_timeout(Some(LIMIT)).expect("a limit above 0");
        let mut monitor = Self { stream: BufReader::new(stream), events: VecDeque::new() };
        assert!(monitor.line()["QMP"].is_object());
        monitor.run("qmp_capabilities", json!({}));
        monitor
    }

    fn line(&mut self) -> Value {
        let mut line = String::new();
        let read = self.stream.read_line(&mut line);
        let timed_out = read.as_ref().is_err_and(|error| error.kind() == ErrorKind::WouldBlock);
        assert!(!timed_out, "no output of the monitor for {LIMIT:?}");
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line:?}, {read:?}"))
    }

    /// Runs a command that must succeed, and returns its result.
    fn run(&mut self, command: &str, arguments: Value) -> Value {
        let mut answer = self.answer(command, &arguments);
        assert!(answer.get("return").is_some(), "{command} {arguments}: {answer}");
        answer["return"].take()
    }

    /// Runs a command, and returns its response, which may be an error.
    fn answer(&mut self, command: &str, arguments: &Value) -> Value {
        let order = json!({ "execute": command, "arguments": arguments });
        // One write: QEMU executes "quit" before it has read the end of the line.
        self.stream
            .get_mut()
            .write_all(format!("{order}\n").as_bytes())
            .expect("a writable monitor socket");
        loop {
            let line = self.line();
            if line.get("event").is_some() {
                self.events.push_back(line);
                continue;
            }
            return line;
        }
    }

    /// Waits until the migration has one of these states, and returns it.
    fn expect_migration(&mut self, states: &[&str]) -> String {
        let deadline = Instant::now() + LIMIT;
        loop {
            let event = match self.events.pop_front() {
                Some(event) => event,
                None => self.line(),
            };
            let state = event["data"]["status"].as_str().filter(|_| event["event"] == "MIGRATION");
            if let Some(state) = state.filter(|state| states.contains(state)) {
                return state.into();
            }
            assert!(Instant::now() < deadline, "no migration event of {states:?}");
        }
    }

    fn status(&mut self) -> String {
        self.run("query-status", json!({}))["status"].as_str().unwrap_or_default().into()
    }

    /// Waits until the guest has this status, which may be reached after the end of a migration.
    fn expect_status(&mut self, status: &str) {
        let deadline = Instant::now() + LIMIT;
        loop {
            let now = self.status();
            if now == status {
                return;
            }
            assert!(Instant::now() < deadline, "the guest is {now:?}, expected {status:?}");
        }
    }

    /// Returns a part of the guest's memory.
    fn memory(&mut self, scratch: &Scratch, at: usize, length: usize) -> Vec<u8> {
        let file = scratch.file("memory");
        self.run("pmemsave", json!({ "val": at, "size": length, "filename": file }));
        fs::read(file).expect("QEMU wrote the file")
    }

    /// Waits until the guest's counter has changed.
    fn expect_count(&mut self, scratch: &Scratch, other_than: &[u8]) {
        let deadline = Instant::now() + LIMIT;
        while self.memory(scratch, COUNTER_AT, COUNTER_BYTES) == other_than {
            assert!(Instant::now() < deadline, "the guest's counter does not change");
        }
    }

    fn begin(&mut self, is_pinned: bool) {
        let switch = |name: &str, state: bool| json!({ "capability": name, "state": state });
        let switches = [switch("events", true), switch("rdma-pin-all", is_pinned)];
        self.run("migrate-set-capabilities", json!({ "capabilities": switches }));
        // The guest never stops writing, so the last phase of the migration must be permitted to take long.
        self.run("migrate-set-parameters", json!({ "downtime-limit": 5000 }));
    }

    fn migrate(&mut self) {
        self.run("migrate", json!({ "uri": uri(PORT) }));
    }
}

/// QEMU with its guest, at either end.
struct Guest {
    group: Group,
    monitor: Monitor,
}

/// Sizes of a guest, in MiB.
#[derive(Clone, Copy)]
struct Size {
    memory: usize,
    pattern: usize,
}

impl Guest {
    fn start(
        transport: &Transport,
        end: End,
        scratch: &Scratch,
        size: Size,
        options: &str,
    ) -> Self {
        let monitor = scratch.file(&format!("{end:?}"));
        let line = format!(
            "{MACHINE} -m {} -bios {} -qmp unix:{},server=on,wait=off {options}",
            size.memory,
            scratch.file("firmware").display(),
            monitor.display()
        );
        let group = transport.start(end, "", &line);
        let monitor = Monitor::connect(&group, &monitor);
        Self { group, monitor }
    }

    /// Starts the source, and waits until its guest counts.
    fn source(transport: &Transport, scratch: &Scratch, size: Size) -> Self {
        let pattern = scratch.file("pattern");
        let loader =
            format!("-device loader,file={},addr={PATTERN_AT},force-raw=on", pattern.display());
        let mut source = Self::start(transport, End::Client, scratch, size, &loader);
        source.monitor.expect_count(scratch, &[0; COUNTER_BYTES]);
        source
    }

    /// Starts the destination, whose guest remains paused after the migration.
    fn destination(transport: &Transport, scratch: &Scratch, size: Size) -> Self {
        let incoming = format!("-S -incoming {}", uri(PORT));
        let destination = Self::start(transport, End::Server, scratch, size, &incoming);
        let listens = transport.wait_for_listener(&destination.group, PORT);
        assert_eq!(listens, Ok(()), "{}", destination.group.report());
        destination
    }

    /// Waits until the other end has exited after a cancellation.
    ///
    /// QEMU closes the connection after an RCU grace period, for which the virtual CPU must leave the guest's loop.
    /// No interrupt ends that loop here, but a stop does.
    fn wait_for_end(&mut self, other: &mut Group) -> ExitStatus {
        let deadline = Instant::now() + LIMIT;
        loop {
            self.monitor.run("stop", json!({}));
            self.monitor.run("cont", json!({}));
            if let Ok(status) = other.wait(Duration::from_millis(50)) {
                return status;
            }
            assert!(Instant::now() < deadline, "still running: {}", other.report());
        }
    }

    fn quit(mut self) {
        self.monitor.run("quit", json!({}));
        let ended = self.group.wait(LIMIT).map(|status| status.code());
        assert_eq!(ended, Ok(Some(0)), "{}", self.group.report());
    }
}

/// State of the guest during a migration.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Running,
    Stopped,
}

/// Addresses of the first and the last byte that differ.
fn difference(there: &[u8], here: &[u8]) -> Option<(usize, usize)> {
    let differs = |&at: &usize| there[at] != here[at];
    assert_eq!(there.len(), here.len());
    let first = (0..there.len()).find(differs)?;
    Some((first, (0..there.len()).rfind(differs)?))
}

fn migrates(transport: &Transport, state: State, is_pinned: bool) {
    let (scratch, begun) = (Scratch::new(), Instant::now());
    let pattern = make_files(&scratch, SIZE.pattern << 20);
    let mut source = Guest::source(transport, &scratch, SIZE);
    let mut destination = Guest::destination(transport, &scratch, SIZE);
    for guest in [&mut source, &mut destination] {
        guest.monitor.begin(is_pinned);
    }
    if state == State::Stopped {
        source.monitor.run("stop", json!({}));
    }
    source.monitor.migrate();
    for at in 0..2 {
        let guest = if at == 0 { &mut source } else { &mut destination };
        let ended = guest.monitor.expect_migration(&["completed", "failed"]);
        let report = || format!("{}\n{}", source.group.report(), destination.group.report());
        assert_eq!(ended, "completed", "{}", report());
    }
    source.monitor.expect_status("postmigrate");
    destination.monitor.expect_status("paused");
    // The times of the migration are final here.
    let migration = source.monitor.run("query-migrate", json!({}));
    let transferred = migration["ram"]["transferred"].as_u64().unwrap_or_default();
    assert_eq!(migration["status"], "completed", "{migration}");
    assert!(transferred >= pattern.len() as u64, "{migration}");

    let [mut there, mut here] = [&mut source, &mut destination]
        .map(|guest| guest.monitor.memory(&scratch, 0, SIZE.memory << 20));
    let counter = here[COUNTER_AT..][..COUNTER_BYTES].to_vec();
    assert_ne!(counter, [0; COUNTER_BYTES], "the guest's counter was not migrated");
    if state == State::Running {
        for memory in [&mut there, &mut here] {
            memory[COUNTER_AT..][..COUNTER_BYTES].fill(0);
        }
    }
    let difference = difference(&there, &here);
    assert!(difference.is_none(), "memory of source and destination differs: {difference:x?}");
    assert!(here[PATTERN_AT..][..pattern.len()] == pattern, "the pattern was not migrated");
    destination.monitor.run("cont", json!({}));
    destination.monitor.expect_status("running");
    destination.monitor.expect_count(&scratch, &counter);
    source.quit();
    destination.quit();

    let client = format!("migrate {}{}", uri(PORT), if is_pinned { ", rdma-pin-all" } else { "" });
    let programs = Programs {
        order: results::MIGRATION
            + 2 * usize::from(state == State::Stopped)
            + usize::from(is_pinned),
        name: "migration",
        package: "qemu-system-x86",
        options: "",
        server: Some("qemu-system-x86_64 ... -incoming rdma:127.0.0.1:4444"),
        client: &client,
    };
    let seen = match state {
        State::Running => "running guest, memory that it does not write compared",
        State::Stopped => "stopped guest, memory compared",
    };
    let seen = format!(
        "{seen} ({} MiB): total {} ms, downtime {} ms",
        SIZE.memory, migration["total-time"], migration["downtime"]
    );
    results::note(&programs, transport, &seen, begun.elapsed());
}

const SIZE: Size = Size { memory: 128, pattern: 96 };

/// Runs a test on kernel sockets or on nodes, for tests/verbs/run only: CI does not install QEMU.
fn run(is_on_nodes: bool, test: impl Fn(&Transport)) {
    if !results::are_enabled() {
        println!("skipped: long test, run by tests/verbs/run");
    } else if !lacks(NEEDS) && !lacks(&[Need::Tool("qemu-system-x86_64")]) {
        match is_on_nodes {
            false => test(&Transport::sockets()),
            true if lacks(&[Need::Tun]) => {}
            true => test(&Transport::nodes()),
        }
    }
}

macro_rules! tests {
    ($($name:ident => $test:expr;)*) => {
        mod sockets {
            use super::*;
            $(#[test] fn $name() { run(false, $test); })*
        }
        mod nodes {
            use super::*;
            $(#[test] fn $name() { run(true, $test); })*
        }
    };
}

tests! {
    running_guest_migrates => |transport| migrates(transport, State::Running, false);
    running_guest_migrates_from_pinned_memory => |transport| migrates(transport, State::Running, true);
    stopped_guest_migrates => |transport| migrates(transport, State::Stopped, false);
    stopped_guest_migrates_from_pinned_memory => |transport| migrates(transport, State::Stopped, true);
    failed_migration_leaves_the_source_running => failures;
}

/// Bytes per second of a migration that is interrupted.
const SLOW: u32 = 4 << 20;

/// Runs three migrations that do not complete. The source guest continues after each.
fn failures(transport: &Transport) {
    let (scratch, begun) = (Scratch::new(), Instant::now());
    let size = Size { memory: 64, pattern: 32 };
    make_files(&scratch, size.pattern << 20);
    let mut source = Guest::source(transport, &scratch, size);
    source.monitor.begin(false);
    source.monitor.run("migrate-set-parameters", json!({ "max-bandwidth": SLOW }));
    let mut outcomes = Vec::new();

    let ends = &["completed", "failed", "cancelled"];
    let mut cancelled = Guest::destination(transport, &scratch, size);
    let refused = source.monitor.answer("migrate", &json!({ "uri": uri(PORT + 1) }));
    assert!(refused["error"]["desc"].is_string(), "{refused}");
    outcomes.push(("refused port", source.monitor.expect_migration(ends)));
    source.monitor.migrate();
    source.monitor.expect_migration(&["active"]);
    source.monitor.run("migrate_cancel", json!({}));
    outcomes.push(("cancel", source.monitor.expect_migration(ends)));
    // A destination whose source disconnects exits with an error.
    let ended = source.wait_for_end(&mut cancelled.group);
    assert!(!ended.success(), "{}", cancelled.group.report());
    let killed = Guest::destination(transport, &scratch, size);
    source.monitor.migrate();
    source.monitor.expect_migration(&["active"]);
    killed.group.signal("qemu-system-x86", Signal::KILL);
    outcomes.push(("killed destination", source.monitor.expect_migration(ends)));

    let outcomes: Vec<_> = outcomes.iter().map(|(of, state)| (*of, state.as_str())).collect();
    let expected =
        [("refused port", "failed"), ("cancel", "cancelled"), ("killed destination", "failed")];
    assert_eq!(outcomes, expected, "{}", source.group.report());
    assert_eq!(source.monitor.status(), "running");
    let counter = source.monitor.memory(&scratch, COUNTER_AT, COUNTER_BYTES);
    source.monitor.expect_count(&scratch, &counter);
    source.quit();
    let programs = Programs {
        order: results::MIGRATION + 4,
        name: "migration-failures",
        package: "qemu-system-x86",
        options: "",
        server: Some("refused port; cancel; killed destination"),
        client: "migrate rdma:127.0.0.1:4444",
    };
    results::note(&programs, transport, "the source continues", begun.elapsed());
}
