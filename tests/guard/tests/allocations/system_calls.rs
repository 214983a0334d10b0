//! System calls of a message: this program runs itself under strace, over TAPs, and parses the log.
//!
//! Counting is limited by two marks, calls that look up files with particular names. Only reads and writes of
//! the TAPs are allowed in between. If a message may allocate, the allocator may occasionally request memory.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use flue_guard::rdma::Operation;
use flue_test_support::needs::{Need, lacks};

use crate::{NEEDS, Transport, budget::Work, taps::TapPair};

/// System calls of an allocator, and their limit per message.
const MEMORY: [&str; 5] = ["brk", "mmap", "munmap", "mprotect", "madvise"];
const MEMORY_MAX: f64 = 0.05;
const MARK: &str = "/flue-guard/";
/// Under strace a call takes fifty times as long.
const MESSAGES: u64 = 300;

fn works() -> [Work; 5] {
    let rdma = |operation, bytes| Work::Rdma { operation, bytes };
    [
        Work::Stream { bytes: 64 * 1024 },
        rdma(Operation::Write, 64),
        rdma(Operation::Write, 64 * 1024),
        rdma(Operation::Send, 64),
        rdma(Operation::Read, 64 * 1024),
    ]
}

/// Writes a mark to the log: the number of a work, or `end`.
fn mark(what: &str) {
    // The file does not exist; the lookup in the log is the mark.
    let _ = Path::new(MARK).join(what).exists();
}

/// System calls of one work.
#[derive(Debug, Default, PartialEq, Eq)]
struct SystemCalls {
    /// Reads of a TAP that returned a frame.
    reads: u64,
    /// Reads of a TAP that returned none.
    empty_reads: u64,
    /// Writes to a TAP.
    writes: u64,
    /// Calls that allocate or free memory.
    memory: u64,
    /// Other calls, by name and descriptor.
    others: BTreeMap<String, u64>,
}

impl SystemCalls {
    fn add(&mut self, call: &str) {
        let (name, arguments) = call.split_once('(').unwrap_or((call, ""));
        let is_tap = arguments.split(',').next().is_some_and(|first| first.contains("/net/tun"));
        match name {
            "read" | "readv" if is_tap && call.contains("EAGAIN") => self.empty_reads += 1,
            "read" | "readv" if is_tap => self.reads += 1,
            "write" | "writev" if is_tap => self.writes += 1,
            _ if MEMORY.contains(&name) => self.memory += 1,
            _ => {
                let descriptor = arguments.split([',', ')']).next().unwrap_or_default();
                *self.others.entry(format!("{name}({descriptor})")).or_default() += 1;
            }
        }
    }
}

/// System calls between the marks of a log of `strace -f -y`, by the text of the first mark.
fn traced(log: &str) -> BTreeMap<String, SystemCalls> {
    let mut found = BTreeMap::<String, SystemCalls>::new();
    // Thread that has written a mark, and the mark's text.
    let mut open: Option<(String, String)> = None;
    for line in log.lines() {
        let Some((thread, call)) = line.split_once(' ') else { continue };
        let call = call.trim_start();
        if let Some((_, after)) = call.split_once(MARK) {
            let what = after.split('"').next().unwrap_or_default();
            open = (what != "end").then(|| (thread.to_owned(), what.to_owned()));
            continue;
        }
        let is_call = call.starts_with(|first: char| first.is_ascii_lowercase());
        if let Some((_, what)) = open.as_ref().filter(|(of, _)| of == thread && is_call) {
            found.entry(what.clone()).or_default().add(call);
        }
    }
    found
}

/// Run by the test below; has no result by itself.
#[test]
#[ignore = "for strace, which system_calls_are_reads_and_writes starts"]
fn moves_messages_between_marks() {
    for (number, work) in works().into_iter().enumerate() {
        let pair = TapPair::new();
        let run = |transport: &mut dyn Transport| {
            transport.run(4 * MESSAGES);
            mark(&number.to_string());
            transport.run(MESSAGES);
            mark("end");
        };
        match work {
            Work::Stream { bytes } => run(&mut pair.stream(bytes)),
            Work::Rdma { operation, bytes } => run(&mut pair.rdma(operation, bytes)),
        }
    }
}

#[test]
fn system_calls_are_reads_and_writes() {
    if lacks(NEEDS) || lacks(&[Need::Tool("strace")]) {
        return;
    }
    let log =
        PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("strace.{}", std::process::id()));
    let output = Command::new("strace")
        .args(["-f", "-y", "-qq", "-s", "64", "-o"])
        .arg(&log)
        .arg(std::env::current_exe().expect("this program has a path"))
        .args(["--ignored", "--exact", "system_calls::moves_messages_between_marks"])
        .output()
        .expect("strace starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    let text = fs::read_to_string(&log).expect("strace has written its log");
    fs::remove_file(&log).expect("the test owns the log");
    let seen = traced(&text);
    let mut table = String::from(
        "system calls per message                           writes     reads     empty    memory    others\n",
    );
    let mut others = Vec::new();
    for (number, work) in works().into_iter().enumerate() {
        let SystemCalls { reads, empty_reads, writes, memory, others: beside } =
            &seen[&number.to_string()];
        let each = |count: u64| count as f64 / MESSAGES as f64;
        let more: u64 = beside.values().sum();
        writeln!(
            table,
            "{work:46} {:9.3} {:9.3} {:9.3} {:9.3} {:9.3}",
            each(*writes),
            each(*reads),
            each(*empty_reads),
            each(*memory),
            each(more)
        )
        .expect("write to a String");
        assert!(*reads > 0 && *writes > 0, "{work}: no frame on the TAPs");
        if each(*memory) > MEMORY_MAX {
            others.push(format!("{work}: {memory} calls for memory"));
        }
        others.extend(beside.iter().map(|(call, count)| format!("{work}: {call} {count} times")));
    }
    println!("{table}");
    assert!(others.is_empty(), "\n{table}{}", others.join("\n"));
}

#[test]
fn strace_log_is_parsed() {
    let log = "7 statx(AT_FDCWD, \"/flue-guard/3\", 0) = -1 ENOENT\n\
               7 readv(5</dev/net/tun>, [], 2) = 1000\n\
               8 futex(0x1, FUTEX_WAIT) = 0\n\
               7 read(5</dev/net/tun>, 0x7, 1) = -1 EAGAIN (Resource temporarily unavailable)\n\
               7 writev(6</dev/net/tun>, [], 2) = 70\n\
               7 write(9<anon_inode:[eventfd]>, \"1\", 8) = 8\n\
               7 sched_yield() = 0\n\
               7 brk(0x1000) = 0x1000\n\
               7 statx(AT_FDCWD, \"/flue-guard/end\", 0) = -1 ENOENT\n\
               7 sched_yield() = 0\n";
    let others = [("sched_yield()", 1), ("write(9<anon_inode:[eventfd]>)", 1)];
    let others = others.map(|(call, count)| (call.to_owned(), count)).into();
    let expected = SystemCalls { reads: 1, empty_reads: 1, writes: 1, memory: 1, others };
    assert_eq!(traced(log), BTreeMap::from([("3".to_owned(), expected)]));
}
