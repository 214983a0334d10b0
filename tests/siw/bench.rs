//! Network of the tests: a bridge with the guest, a host with kernel sockets, and TAPs that flue nodes create.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use flue_test_support::flue::{Scratch, command};
use flue_test_support::netns::Namespace;
use flue_test_support::process::{Output, Process};
use flue_test_support::switch::{Direction, Switch};

use crate::guest::{Guest, Siw};
use crate::{FLUE, LIMIT};

/// Address of the host that owns the kernel sockets.
const HOST: &str = "10.77.0.1";
/// MTU of the bridge and its ports; the guest and flue's nodes have their own MTU.
const MTU_MAX: u32 = 9000;
/// Loss, in hundredths of a percent.
const LOSS: u32 = 100;

/// Transport of flue's connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Carrier {
    /// Node on a TAP.
    Tap,
    /// Kernel sockets.
    Kernel,
}

/// Connection setup of flue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setup {
    pub(crate) name: &'static str,
    pub(crate) carrier: Carrier,
    /// Options of flue.
    pub(crate) options: &'static str,
    pub(crate) mtu: u32,
    pub(crate) is_lossy: bool,
}

/// Endpoint of flue: its namespace, address and options.
#[derive(Debug)]
pub(crate) struct End {
    pub(crate) address: String,
    options: String,
    carrier: Carrier,
    /// Capture of the traffic, if a row requests one.
    pub(crate) capture: PathBuf,
    /// Log of the library.
    pub(crate) log: PathBuf,
}

/// Bench of several rows.
#[derive(Debug)]
pub(crate) struct Bench {
    pub(crate) guest: Guest,
    pub(crate) siw: Siw,
    switch: Switch,
    host: Namespace,
    scratch: Scratch,
    files: PathBuf,
    ends: u8,
}

impl Bench {
    /// Boots a guest on its own network.
    pub(crate) fn new(files: &Path, siw: Siw, console: PathBuf) -> Self {
        let switch = Switch::new(MTU_MAX);
        let host = switch.host(&format!("{HOST}/24"));
        let namespace = switch.namespace();
        // If no interface has an IPv4 address, getaddrinfo(3) maps IPv4 addresses to IPv6.
        namespace.ip(&format!("addr add 10.78.0.1/24 dev {}", Switch::BRIDGE));
        namespace.ip("tuntap add dev guest mode tap");
        namespace.ip(&format!("link set guest mtu {MTU_MAX} master {} up", Switch::BRIDGE));
        let guest = Guest::boot(namespace, files, "guest", siw, console);
        Self { guest, siw, switch, host, scratch: Scratch::new(), files: files.to_owned(), ends: 0 }
    }

    /// Configures the network for the setup, and returns an endpoint for flue.
    pub(crate) fn set_up(&mut self, setup: &Setup) -> End {
        self.switch.namespace().nft("flush chain bridge bench crossing");
        if setup.is_lossy {
            self.switch.lose(LOSS, Direction::Both);
        }
        self.guest.run(&format!("ip link set eth0 mtu {}", setup.mtu));
        // A new address each time: the guest would use the previous node's Ethernet address.
        self.ends += 1;
        assert!(self.ends < 240, "no free node address");
        let number = 10 + self.ends;
        let address = match setup.carrier {
            Carrier::Tap => format!("10.77.0.{number}"),
            Carrier::Kernel => HOST.to_owned(),
        };
        let options = match setup.carrier {
            Carrier::Tap => format!(
                "--tap t{number} --addr {address}/24 --bridge {} --mtu {} --control none {}",
                Switch::BRIDGE,
                setup.mtu,
                setup.options
            ),
            Carrier::Kernel => format!("--control none {}", setup.options),
        };
        let log = self.files.join("log");
        fs::write(&log, "").expect("a directory of this test");
        let capture = self.scratch.file(&format!("{number}.pcapng"));
        End { address, options, carrier: setup.carrier, capture, log }
    }

    /// Path of the program for both ends, as built for this machine.
    pub(crate) fn peer_program(&self) -> String {
        self.files.join("verbs_peer").display().to_string()
    }

    /// Number of frames dropped by the impairments so far.
    pub(crate) fn lost_frames(&self) -> u64 {
        self.switch.lost_frames()
    }

    /// Starts `flue rping` at the endpoint.
    pub(crate) fn flue_rping(&self, end: &End, line: &str) -> Process {
        let transport = if end.carrier == Carrier::Kernel { "--transport kernel" } else { "" };
        let line = format!("rping {transport} {} {line}", end.options);
        Process::start(self.place(end), command(FLUE, &line), Output::Lines)
    }

    /// Starts a command of flue at the endpoint.
    pub(crate) fn flue(&self, end: &End, line: &str) -> Process {
        Process::start(self.place(end), command(FLUE, line), Output::Lines)
    }

    /// Directory of the guest's files.
    pub(crate) fn files(&self) -> &Path {
        &self.files
    }

    /// Starts a program on flue's verbs at the endpoint.
    pub(crate) fn flue_run(&self, end: &End, options: &str, line: &str) -> Process {
        let mut run: Command = command(FLUE, &format!("run {} {options}", end.options));
        run.arg("--library").arg(library()).arg("--log").arg(&end.log).arg("--");
        run.args(line.split_whitespace());
        Process::start(self.place(end), run, Output::Lines)
    }

    /// Waits until the guest listens on a port.
    pub(crate) fn wait_for_guest(&mut self, port: u16) {
        let look = format!(
            "until grep -q ' [0-9A-F]*:{port:04X} .* 0A ' /proc/net/tcp; do sleep 0.02; done"
        );
        let job = self.guest.start(&look);
        self.guest.expect_exit(job, 0, LIMIT);
    }

    fn place(&self, end: &End) -> &Namespace {
        match end.carrier {
            Carrier::Tap => self.switch.namespace(),
            Carrier::Kernel => &self.host,
        }
    }
}

/// Path of the verbs library, which cargo builds in the same directory as this test.
fn library() -> PathBuf {
    let test = std::env::current_exe().expect("the path of this test");
    test.with_file_name("libflue_verbs.so")
}
