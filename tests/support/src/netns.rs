//! Host of the bench: one network namespace.
//!
//! The namespace has no name. A short-lived process creates it, and this process opens it by
//! `/proc/<pid>/ns/net`. From then on it exists as long as the descriptor. It is removed with its links at the
//! end of the test, even if the test panics or is killed. Commands and closures enter it on a thread of their
//! own, so the caller's thread never changes its namespace.
//!
//! Defaults: loopback is up. Congestion control is `reno`, because the machine's default may be `bbr`, whose
//! pacing limits a veth. Duplicate address detection is disabled, because it delays IPv6 by a second.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, BufRead as _, BufReader};
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::thread::{self, JoinHandle};

use crate::needs::find_tool;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// Network namespace that is removed on drop.
#[derive(Debug)]
pub struct Namespace {
    file: File,
}

impl Namespace {
    /// Creates a namespace with the defaults listed in the module header.
    ///
    /// # Panics
    ///
    /// If the caller is not root, or the kernel does not support network namespaces.
    pub fn new() -> Self {
        let ns = Self { file: make().expect("root can create a network namespace") };
        ns.ip("link set lo up");
        ns.sysctl("net/ipv4/tcp_congestion_control", "reno");
        ns.sysctl("net/ipv6/conf/all/accept_dad", "0");
        ns.sysctl("net/ipv6/conf/default/accept_dad", "0");
        ns
    }

    /// Path of this namespace for other processes, for `ip link set DEV netns PATH` and `nsenter --net=PATH`.
    pub fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/{}/fd/{}", std::process::id(), self.file.as_raw_fd()))
    }

    /// Runs `work` inside, on a dedicated thread, and waits for it. Propagates a panic of `work`.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        thread::scope(|scope| {
            let inside = scope.spawn(|| {
                enter(&self.file);
                work()
            });
            inside.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// Starts `work` on a thread inside.
    pub fn spawn_thread<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> JoinHandle<T> {
        let file = self.file.try_clone().expect("a descriptor is available");
        let name = thread::current().name().unwrap_or("a test").to_owned();
        thread::Builder::new()
            .name(name)
            .spawn(move || {
                enter(&file);
                work()
            })
            .expect("a thread starts")
    }

    /// Starts a process inside.
    ///
    /// # Errors
    ///
    /// Those of [`Command::spawn`].
    pub fn spawn(&self, command: &mut Command) -> io::Result<Child> {
        self.run(|| command.spawn())
    }

    /// Runs a program inside until it exits and returns its standard output.
    ///
    /// # Panics
    ///
    /// If it cannot start or fails; the message contains its standard error.
    pub fn output<S: AsRef<OsStr>>(&self, program: &str, args: &[S]) -> String {
        // A user's `PATH` may omit the directory of `nft`.
        let mut command = match find_tool(program) {
            Some(path) => Command::new(path),
            None => Command::new(program),
        };
        command.args(args).stdin(Stdio::null());
        let Output { status, stdout, stderr } = self
            .run(|| command.output())
            .unwrap_or_else(|error| panic!("{command:?} not started: {error}"));
        let stderr = String::from_utf8_lossy(&stderr);
        assert!(status.success(), "{command:?} exited with {status}: {stderr}");
        String::from_utf8(stdout).expect("the program prints text")
    }

    /// Runs `ip` inside with space-separated arguments, and returns its output.
    ///
    /// # Panics
    ///
    /// As [`output`](Self::output).
    pub fn ip(&self, args: &str) -> String {
        self.output("ip", &args.split_whitespace().collect::<Vec<_>>())
    }

    /// Runs one `nft` command inside and returns its output.
    ///
    /// # Panics
    ///
    /// As [`output`](Self::output).
    pub fn nft(&self, command: &str) -> String {
        self.output("nft", &["-j", command])
    }

    /// Sets a kernel parameter of this namespace, given by its path below `/proc/sys`.
    ///
    /// # Panics
    ///
    /// If the kernel rejects it; the message names the parameter.
    pub fn sysctl(&self, key: &str, value: &str) {
        self.run(|| std::fs::write(format!("/proc/sys/{key}"), value))
            .unwrap_or_else(|error| panic!("/proc/sys/{key}: value {value} rejected: {error}"));
    }

    /// Kernel counter of this namespace, by its `nstat` name: `TcpRetransSegs`, `TcpExtTCPOFOQueue`.
    ///
    /// # Panics
    ///
    /// If the kernel has no counter of that name.
    pub fn counter(&self, name: &str) -> u64 {
        let read = |file: &str| std::fs::read_to_string(format!("/proc/thread-self/net/{file}"));
        let text = self.run(|| Ok::<_, io::Error>(read("snmp")? + &read("netstat")?));
        let text = text.expect("the kernel's counters are readable");
        let lines: Vec<&str> = text.lines().collect();
        // A line of names, then a line of values, both after the name of the group.
        let found = lines.chunks_exact(2).find_map(|pair| {
            let (group, names) = pair[0].split_once(": ")?;
            let wanted = name.strip_prefix(group)?;
            let at = names.split(' ').position(|it| it == wanted)?;
            pair[1].split(' ').nth(at + 1)?.parse().ok()
        });
        found.unwrap_or_else(|| panic!("the kernel has no counter {name}"))
    }

    /// Names of the links inside, without loopback.
    pub fn links(&self) -> Vec<String> {
        let links: serde_json::Value =
            serde_json::from_str(&self.ip("-json link show")).expect("ip prints JSON");
        let links = links.as_array().expect("a list of links");
        let name = |link: &serde_json::Value| link["ifname"].as_str().map(str::to_owned);
        links.iter().filter_map(name).filter(|name| name != "lo").collect()
    }
}

impl Default for Namespace {
    fn default() -> Self {
        Self::new()
    }
}

/// Creates a namespace in a child process and opens it here; the child then exits. A child is used because
/// unsharing in a thread of this process requires `unsafe`.
fn make() -> io::Result<File> {
    let mut child = Command::new("unshare")
        .args(["--net", "--", "sh", "-c", "echo made && read -r end"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut line = String::new();
    let stdout = child.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?;
    BufReader::new(stdout).read_line(&mut line)?;
    let file = File::open(format!("/proc/{}/ns/net", child.id()));
    drop(child.stdin.take());
    child.wait()?;
    if line == "made\n" { file } else { Err(io::ErrorKind::PermissionDenied.into()) }
}

fn enter(namespace: &File) {
    move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))
        .expect("root can enter its namespace");
}
