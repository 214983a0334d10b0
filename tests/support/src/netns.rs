//! A host of the bench: one network namespace.
//!
//! The namespace has no name. A short-lived process makes it, this process opens it by
//! `/proc/<pid>/ns/net`, and from then on it lives as long as the descriptor: it ends with the
//! test, also when the test panics or is killed, and takes its links along. Commands and closures
//! enter it on a thread of their own, so the caller's thread never changes its namespace.
//!
//! Defaults: loopback up; `reno` as congestion control (the machine's default may be `bbr`, whose
//! pacing caps a veth); no duplicate address detection, which would hold IPv6 back for a second.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, BufRead as _, BufReader};
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::thread::{self, JoinHandle};

use crate::needs::find_tool;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// A network namespace that ends with this value.
#[derive(Debug)]
pub struct Namespace {
    file: File,
}

impl Namespace {
    /// Makes a namespace with the defaults named in the module header.
    ///
    /// # Panics
    ///
    /// Without root, or where the kernel has no network namespaces.
    pub fn new() -> Self {
        let ns = Self { file: make().expect("a network namespace is made (as root)") };
        ns.ip("link set lo up");
        ns.sysctl("net/ipv4/tcp_congestion_control", "reno");
        ns.sysctl("net/ipv6/conf/all/accept_dad", "0");
        ns.sysctl("net/ipv6/conf/default/accept_dad", "0");
        ns
    }

    /// A path by which other processes can name this namespace while it lives, as `ip link set
    /// DEV netns PATH` and `nsenter --net=PATH` take it.
    pub fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/{}/fd/{}", std::process::id(), self.file.as_raw_fd()))
    }

    /// Runs `work` inside, on a thread of its own, and waits for it. A panic of `work` is passed on.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        thread::scope(|scope| {
            let inside = scope.spawn(|| {
                enter(&self.file);
                work()
            });
            inside.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// Starts `work` on a thread that lives inside.
    pub fn spawn_thread<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> JoinHandle<T> {
        let file = self.file.try_clone().expect("descriptors are left");
        let name = thread::current().name().unwrap_or("a test").to_owned();
        thread::Builder::new()
            .name(name)
            .spawn(move || {
                enter(&file);
                work()
            })
            .expect("a thread is made")
    }

    /// Starts a process inside.
    ///
    /// # Errors
    ///
    /// Those of [`Command::spawn`].
    pub fn spawn(&self, command: &mut Command) -> io::Result<Child> {
        self.run(|| command.spawn())
    }

    /// Runs a program inside to its end and returns what it wrote to standard output.
    ///
    /// # Panics
    ///
    /// When it cannot start or fails; the message has its standard error.
    pub fn output<S: AsRef<OsStr>>(&self, program: &str, args: &[S]) -> String {
        // A user's `PATH` may leave out the directory of `nft`.
        let mut command = match find_tool(program) {
            Some(path) => Command::new(path),
            None => Command::new(program),
        };
        command.args(args).stdin(Stdio::null());
        let Output { status, stdout, stderr } = self
            .run(|| command.output())
            .unwrap_or_else(|error| panic!("{command:?} does not start: {error}"));
        let stderr = String::from_utf8_lossy(&stderr);
        assert!(status.success(), "{command:?} ended with {status}: {stderr}");
        String::from_utf8(stdout).expect("the program prints text")
    }

    /// Runs `ip` inside with arguments divided by spaces, and returns what it printed.
    ///
    /// # Panics
    ///
    /// As [`output`](Self::output).
    pub fn ip(&self, args: &str) -> String {
        self.output("ip", &args.split_whitespace().collect::<Vec<_>>())
    }

    /// Feeds one `nft` command inside and returns what it printed.
    ///
    /// # Panics
    ///
    /// As [`output`](Self::output).
    pub fn nft(&self, command: &str) -> String {
        self.output("nft", &["-j", command])
    }

    /// Sets a kernel parameter of this namespace, by its path below `/proc/sys`.
    ///
    /// # Panics
    ///
    /// When the kernel refuses; the message names the parameter.
    pub fn sysctl(&self, key: &str, value: &str) {
        self.run(|| std::fs::write(format!("/proc/sys/{key}"), value))
            .unwrap_or_else(|error| panic!("/proc/sys/{key} does not take {value}: {error}"));
    }

    /// A counter of the kernel in here, by the name that `nstat` has for it: `TcpRetransSegs`,
    /// `TcpExtTCPOFOQueue`.
    ///
    /// # Panics
    ///
    /// When the kernel has none of that name.
    pub fn counter(&self, name: &str) -> u64 {
        let read = |file: &str| std::fs::read_to_string(format!("/proc/thread-self/net/{file}"));
        let text = self.run(|| Ok::<_, io::Error>(read("snmp")? + &read("netstat")?));
        let text = text.expect("the kernel tells its counters");
        let lines: Vec<&str> = text.lines().collect();
        // A line of names, then a line of values, both behind the name of the group.
        let found = lines.chunks_exact(2).find_map(|pair| {
            let (group, names) = pair[0].split_once(": ")?;
            let wanted = name.strip_prefix(group)?;
            let at = names.split(' ').position(|it| it == wanted)?;
            pair[1].split(' ').nth(at + 1)?.parse().ok()
        });
        found.unwrap_or_else(|| panic!("the kernel has no counter {name}"))
    }

    /// Names of the links inside, loopback left out.
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

/// A child makes the namespace and says so; once it is open here the child may go. Done by a child
/// because unsharing in a thread of ours takes `unsafe`.
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
        .expect("root may enter its namespace");
}
