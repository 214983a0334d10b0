//! Guest: Linux with siw under qemu, and the commands run in it (`guest/init.c` documents the protocol).

use std::collections::HashMap;
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use flue_test_support::flue::command;
use flue_test_support::netns::Namespace;
use flue_test_support::process::{Output, Process};

use crate::LIMIT;

/// Address of the guest, and its prefix length.
pub(crate) const ADDRESS: &str = "10.77.0.2";
/// Console messages after which the kernel is no longer reliable.
const FATAL_MESSAGES: &[&str] = &[
    "BUG:",
    "kernel BUG",
    "Oops",
    "general protection",
    "Kernel panic",
    "WARNING:",
    "rcu: INFO",
    "hung task",
];

/// Interval at which the console of a silent kernel is checked.
const POLL_INTERVAL: Duration = Duration::from_secs(5);

/// Variant of siw in the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Siw {
    /// Unmodified kernel source.
    Stock,
    /// Kernel source with the accept race fixed (`build`).
    Patched,
}

impl Siw {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Stock => "stock",
            Self::Patched => "patched",
        }
    }
}

/// Command that was started in the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Job(u64);

#[derive(Debug, Default)]
struct Progress {
    lines: Vec<String>,
    /// Number of lines already waited for.
    seen: usize,
    status: Option<i32>,
}

/// Running guest, stopped when dropped.
#[derive(Debug)]
pub(crate) struct Guest {
    /// Keeps qemu running.
    _qemu: Process,
    input: ChildStdin,
    output: Receiver<String>,
    jobs: HashMap<u64, Progress>,
    started: u64,
    console: PathBuf,
}

impl Guest {
    /// Boots the guest with its network card on the TAP `tap`, and waits until it accepts commands. `files` is the
    /// output of `build`.
    ///
    /// # Panics
    ///
    /// If the guest does not boot, with the end of its console.
    pub(crate) fn boot(
        host: &Namespace,
        files: &Path,
        tap: &str,
        siw: Siw,
        console: PathBuf,
    ) -> Self {
        let mut qemu = Process::start(host, qemu(files, tap, siw, &console), Output::Bytes);
        let (input, output) = (qemu.take_input(), qemu.take_output());
        let (sender, lines) = channel();
        thread::spawn(move || {
            for line in BufReader::new(output).split(b'\n').map_while(Result::ok) {
                if sender.send(String::from_utf8_lossy(&line).into_owned()).is_err() {
                    return;
                }
            }
        });
        let jobs = HashMap::from([(0, Progress::default())]);
        let mut guest = Self { _qemu: qemu, input, output: lines, jobs, started: 0, console };
        guest.expect_exit(Job(0), 0, LIMIT);
        guest
    }

    /// Starts a shell command.
    pub(crate) fn start(&mut self, command: &str) -> Job {
        self.started += 1;
        self.jobs.insert(self.started, Progress::default());
        self.write_line(&format!("run {} {command}", self.started));
        Job(self.started)
    }

    /// Runs a command to its end, which must be 0; returns its output.
    pub(crate) fn run(&mut self, command: &str) -> String {
        let job = self.start(command);
        self.expect_exit(job, 0, LIMIT)
    }

    /// Waits until the command prints a line that contains `text`.
    ///
    /// # Panics
    ///
    /// If it does not within `limit`, or ends before.
    pub(crate) fn expect_line(&mut self, job: Job, text: &str, limit: Duration) -> String {
        let deadline = Instant::now() + limit;
        loop {
            let progress = self.jobs.get_mut(&job.0).expect("a command of this guest");
            while let Some(line) = progress.lines.get(progress.seen) {
                progress.seen += 1;
                if line.contains(text) {
                    return line.clone();
                }
            }
            assert!(
                progress.status.is_none(),
                "command in the guest exited with {:?} without the output {text:?}:\n{}",
                progress.status,
                progress.lines.join("\n")
            );
            self.take_line(job, deadline);
        }
    }

    /// Waits until the command has exited; returns its output.
    ///
    /// # Panics
    ///
    /// If it does not end within `limit`, or ends with another status.
    pub(crate) fn expect_exit(&mut self, job: Job, status: i32, limit: Duration) -> String {
        let deadline = Instant::now() + limit;
        while self.jobs[&job.0].status.is_none() {
            self.take_line(job, deadline);
        }
        let Progress { lines, status: ended, .. } =
            self.jobs.remove(&job.0).expect("a command of this guest");
        let said = lines.join("\n");
        assert_eq!(ended, Some(status), "exit status of a command in the guest; output:\n{said}");
        said
    }

    /// Terminates that siw has logged so far: layer, type and code in siw's order.
    pub(crate) fn terminates(&self) -> Vec<String> {
        let console = fs::read(&self.console).unwrap_or_default();
        let console = String::from_utf8_lossy(&console);
        let reports = console.lines().filter_map(|line| line.split_once("got TERMINATE. "));
        reports.map(|(_, report)| report.trim_end().to_owned()).collect()
    }

    /// First console line that requires a restart of the guest, if any.
    pub(crate) fn fatal_message(&self) -> Option<String> {
        let console = fs::read(&self.console).unwrap_or_default();
        let console = String::from_utf8_lossy(&console);
        let mut lines = console.lines();
        lines.find(|line| FATAL_MESSAGES.iter().any(|it| line.contains(it))).map(str::to_owned)
    }

    fn write_line(&mut self, line: &str) {
        writeln!(self.input, "{line}").expect("qemu reads");
    }

    fn take_line(&mut self, waited_for: Job, deadline: Instant) {
        let line = loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.output.recv_timeout(left.min(POLL_INTERVAL)) {
                Ok(line) => break line,
                Err(RecvTimeoutError::Disconnected) => panic!("the guest exited"),
                Err(RecvTimeoutError::Timeout) => {}
            }
            let said = || self.jobs[&waited_for.0].lines.join("\n");
            if let Some(complaint) = self.fatal_message() {
                panic!("kernel of the guest: {complaint}; output of the command:\n{}", said());
            }
            assert!(
                Instant::now() < deadline,
                "command in the guest makes no progress; output:\n{}",
                said()
            );
        };
        let mut words = line.splitn(3, ' ');
        let id = words.next().and_then(|id| id.parse::<u64>().ok());
        let kind = words.next().unwrap_or_default();
        let text = words.next().unwrap_or_default();
        let Some(progress) = id.and_then(|id| self.jobs.get_mut(&id)) else { return };
        match kind {
            "=" => progress.status = text.parse().ok(),
            _ => progress.lines.push(text.to_owned()),
        }
    }
}

/// Last lines of a console.
pub(crate) fn tail(console: &Path) -> String {
    let text = fs::read(console).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(30)..].join("\n")
}

// Frames on the bridge are complete: the card has no offloads, and the TAP no vnet header.
fn qemu(files: &Path, tap: &str, siw: Siw, console: &Path) -> Command {
    let machine = "-nodefaults -no-user-config -display none -no-reboot -M q35 -accel tcg,thread=multi \
                   -cpu max -smp 2 -m 768 -device virtio-rng-pci -device virtio-serial-pci \
                   -chardev stdio,id=commands,signal=off -device virtserialport,chardev=commands,name=commands";
    let mut qemu = command("qemu-system-x86_64", machine);
    qemu.arg("-kernel").arg(files.join("vmlinuz")).arg("-initrd").arg(files.join("initramfs.cpio"));
    // On a busy machine the emulated timer is late, and the kernel would consider it broken.
    let timer = "no_timer_check";
    qemu.arg("-append").arg(format!(
        "console=ttyS0 loglevel=5 panic=-1 {timer} mitigations=off random.trust_cpu=on siw={} address={ADDRESS}/24",
        siw.name()
    ));
    qemu.arg("-serial").arg(format!("file:{}", console.display()));
    qemu.arg("-netdev")
        .arg(format!("tap,id=net,ifname={tap},script=no,downscript=no,vnet_hdr=off"));
    qemu.args(["-device", "virtio-net-pci,netdev=net,romfile="]);
    qemu
}
