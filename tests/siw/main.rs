//! flue with Linux siw: a table of rows, each run against a guest that `tests/siw/run` has built. Without a guest the
//! test reports that and passes, in CI too.
//!
//! A failed row prints the reason and the end of the guest's console, and the next row uses a new guest. The guest is
//! also replaced after an error message of its kernel. Words on the command line select the rows that contain all of
//! them.

mod bench;
mod connects;
mod errors;
mod guest;
mod judge;
mod operations;
mod rping;
mod storage;

use std::fmt::Write as _;
use std::panic::{self, AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Mutex;
use std::time::{Duration, Instant};
use std::{env, fs};

use flue_test_support::needs::find_tool;

use crate::bench::{Bench, Carrier, Setup};
use crate::guest::Siw;

const FLUE: &str = env!("CARGO_BIN_EXE_flue");
/// Time limit of every wait. Loss and a busy emulator are slow.
const LIMIT: Duration = Duration::from_secs(180);

/// Function of a row; its return value is printed.
type Run = Box<dyn Fn(&mut Bench) -> String>;

struct Row {
    siw: Siw,
    setup: Setup,
    what: String,
    run: Run,
}

const TAP: Setup = Setup {
    name: "TAP, offloaded",
    carrier: Carrier::Tap,
    options: "",
    mtu: 1500,
    is_lossy: false,
};
const HOST_STACK: Setup =
    Setup { name: "TAP, in the host stack", options: "--offload never", ..TAP };
const KERNEL: Setup = Setup { name: "kernel sockets", carrier: Carrier::Kernel, ..TAP };

fn rows() -> Vec<Row> {
    let mut rows = Vec::new();
    for siw in [Siw::Patched, Siw::Stock] {
        rping::rows(siw, &mut rows);
        operations::rows(siw, &mut rows);
        connects::rows(siw, &mut rows);
        errors::rows(siw, &mut rows);
        storage::rows(siw, &mut rows);
        judge::rows(siw, &mut rows);
    }
    rows
}

impl Row {
    fn title(&self) -> String {
        format!("{} | {} | {}", self.siw.name(), self.setup.name, self.what)
    }
}

/// Message and location of the last panic.
static PANIC: Mutex<String> = Mutex::new(String::new());

fn note_panics() {
    panic::set_hook(Box::new(|panic| {
        if let Ok(mut last) = PANIC.lock() {
            *last = panic.to_string();
        }
    }));
}

/// Runs the rows one by one; a guest serves several rows.
struct Runner {
    files: PathBuf,
    console: PathBuf,
    bench: Option<Bench>,
    failed: Vec<String>,
    table: String,
}

impl Runner {
    fn run(&mut self, row: &Row) {
        let start = Instant::now();
        let bench = self.bench.take().filter(|bench| bench.siw == row.siw);
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            let mut bench =
                bench.unwrap_or_else(|| Bench::new(&self.files, row.siw, self.console.clone()));
            let seen = (row.run)(&mut bench);
            (bench, seen)
        }));
        let seconds = start.elapsed().as_secs_f64();
        match outcome {
            Ok((bench, mut seen)) => {
                match bench.guest.fatal_message() {
                    Some(line) => write!(seen, "; then from the kernel of the guest: {line}")
                        .expect("write to a String"),
                    None => self.bench = Some(bench),
                }
                println!("passed {seconds:6.1} s | {} | {seen}", row.title());
                writeln!(self.table, "| {} | {seen} |", row.title()).expect("write to a String");
            }
            Err(_) => {
                let why = PANIC.lock().map(|why| why.clone()).unwrap_or_default();
                println!("FAILED {seconds:6.1} s | {} | {why}", row.title());
                println!("--- end of flue's log\n{}", guest::tail(&self.files.join("log")));
                println!("--- end of the guest's console\n{}\n---", guest::tail(&self.console));
                writeln!(self.table, "| {} | failed |", row.title()).expect("write to a String");
                self.failed.push(row.title());
            }
        }
    }
}

/// Missing prerequisite, if any.
fn missing_prerequisite(files: &Path) -> Option<String> {
    let has_guest = files.join("initramfs.cpio").is_file() && files.join("vmlinuz").is_file();
    let tools = ["qemu-system-x86_64", "ip", "nft", "unshare"];
    if !has_guest {
        return Some("guest not built: run tests/siw/run".into());
    }
    if !rustix::process::geteuid().is_root() || lacks_tun() {
        return Some("requires root and /dev/net/tun".into());
    }
    tools
        .iter()
        .find(|tool| find_tool(tool).is_none())
        .map(|tool| format!("`{tool}` is not installed"))
}

fn lacks_tun() -> bool {
    fs::OpenOptions::new().read(true).write(true).open("/dev/net/tun").is_err()
}

fn main() -> ExitCode {
    let words: Vec<String> = env::args().skip(1).collect();
    let files = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/siw");
    // Arguments for libtest's list or the filter of another test.
    if words.iter().any(|word| word == "--list") {
        return ExitCode::SUCCESS;
    }
    if env::var_os("FLUE_SIW").is_none() {
        println!("skipped: siw: guests are booted by tests/siw/run only");
        return ExitCode::SUCCESS;
    }
    if let Some(lack) = missing_prerequisite(&files) {
        println!("skipped: siw: {lack}");
        return ExitCode::SUCCESS;
    }
    note_panics();
    let wanted: Vec<&String> = words.iter().filter(|word| !word.starts_with('-')).collect();
    let console = files.join("console");
    let mut runner =
        Runner { files, console, bench: None, failed: Vec::new(), table: String::new() };
    let table = env::var_os("FLUE_SIW_TABLE");
    let mut count = 0;
    for row in rows() {
        if wanted.iter().all(|word| row.title().contains(word.as_str())) {
            count += 1;
            runner.run(&row);
            if let Some(file) = &table {
                fs::write(file, &runner.table).expect("a writable table");
            }
        }
    }
    runner.bench = None;
    println!("{count} rows, {} failed", runner.failed.len());
    for title in &runner.failed {
        println!("failed: {title}");
    }
    if runner.failed.is_empty() && count > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
