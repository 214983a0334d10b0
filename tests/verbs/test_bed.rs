//! Placement of a test's programs: on kernel sockets of one network namespace, or on two nodes there; and their device.

use std::env;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use flue_test_support::flue::{Scratch, command};
use flue_test_support::netns::Namespace;
use flue_verbs_abi::settings;
use serde_json::Value;

use crate::group::{Group, listens};
use crate::{FLUE, library, machine};

/// Time limit for a program's end or a listener.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

/// Device of `flue run --device`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Device {
    Iwarp,
    /// For programs that connect their own queue pairs.
    Roce,
}

impl Device {
    /// Device of programs that a test starts without an option for it. `tests/verbs/run` sets it for a second run of
    /// these tests.
    pub(crate) fn of_environment() -> Self {
        match env::var(settings::DEVICE).as_deref() {
            Ok("iwarp") => Self::Iwarp,
            _ => Self::Roce,
        }
    }

    /// Options of `flue run`.
    pub(crate) const fn options(self) -> &'static str {
        match self {
            Self::Iwarp => "--device iwarp",
            Self::Roce => "--device roce",
        }
    }
}

/// Command that runs the program under flue.
pub(crate) fn under_flue(options: &str, line: &str) -> Command {
    let mut command = Command::new(FLUE);
    command
        .arg("run")
        .args(options.split_whitespace())
        .arg("--library")
        .arg(library())
        .arg("--")
        .args(line.split_whitespace());
    command
}

/// Two slots for nodes on a bridge, 10.9.0.1 and 10.9.0.2, in one namespace whose kernel does not take part in their
/// traffic. Each has a directory for its control socket, because processes of two PID namespaces may have the same
/// number.
pub(crate) struct NodePair {
    pub(crate) host: Namespace,
    pub(crate) runtime: [Scratch; 2],
}

impl NodePair {
    pub(crate) fn new() -> Self {
        let host = machine();
        host.ip("link add br0 type bridge");
        host.ip("link set br0 up");
        Self { host, runtime: [Scratch::new(), Scratch::new()] }
    }

    pub(crate) fn node(at: usize) -> String {
        format!("--tap tap{at} --addr 10.9.0.{}/24 --bridge br0", at + 1)
    }

    pub(crate) fn start_command(&self, at: usize, mut command: Command) -> Group {
        command.env("XDG_RUNTIME_DIR", self.runtime[at].file(""));
        Group::start(&self.host, command)
    }

    pub(crate) fn start(&self, at: usize, options: &str, line: &str) -> Group {
        self.start_command(at, under_flue(&format!("{} {options}", Self::node(at)), line))
    }

    /// Connections that `flue ss` lists for the only node in that slot; `None` if there is no node yet.
    pub(crate) fn connections(&self, at: usize, words: &str) -> Option<Vec<Value>> {
        let mut ss = command(FLUE, &format!("ss --json {words}"));
        ss.env("XDG_RUNTIME_DIR", self.runtime[at].file("")).stdin(Stdio::null());
        let said = ss.output().expect("flue starts");
        let document: Value = serde_json::from_slice(&said.stdout).ok()?;
        document["result"]["nodes"].as_array()?.first()?["connections"].as_array().cloned()
    }

    fn has_listener(&self) -> bool {
        self.connections(0, "-l").is_some_and(|found| !found.is_empty())
    }

    /// Queries until `is_so` returns true for the connections in that slot.
    pub(crate) fn expect(
        &self,
        at: usize,
        words: &str,
        of: &Group,
        is_so: impl Fn(&[Value]) -> bool,
    ) -> Vec<Value> {
        let deadline = Instant::now() + LIMIT;
        loop {
            let found = self.connections(at, words);
            if let Some(found) = found.as_ref().filter(|found| is_so(found)) {
                return found.clone();
            }
            assert!(Instant::now() < deadline, "{words}: {found:?}\n{}", of.report());
        }
    }

    pub(crate) fn listens(&self, server: &Group) {
        self.expect(0, "-l", server, |found| !found.is_empty());
    }

    /// Runs both ends, which exit with 0; END in the options is replaced by a different word for each. Returns the
    /// client's output.
    pub(crate) fn pair(&self, options: &str, server: &str, client: &str) -> String {
        let serving = self.start(0, &options.replace("END", "server"), server);
        self.listens(&serving);
        let client = self.start(1, &options.replace("END", "client"), client);
        ends(serving, client)
    }
}

/// Waits until both exit with 0. Returns the client's output.
pub(crate) fn ends(mut server: Group, mut client: Group) -> String {
    let ended = client.wait(LIMIT).map(|status| status.code());
    let ended = [ended, server.wait(LIMIT).map(|status| status.code())];
    client.kill();
    server.kill();
    assert_eq!(ended, [Ok(Some(0)), Ok(Some(0))], "{}\n{}", server.report(), client.report());
    client.said()
}

/// End of a connection at which a program runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum End {
    Server,
    Client,
}

/// Transport of a pair of programs. Their command lines are the same on either: addresses of the machine are mapped
/// to those of the nodes.
pub(crate) enum Transport {
    Sockets(Namespace),
    Nodes(NodePair),
}

/// Mapped addresses of the server: loopback, an interface (libfabric ignores loopback), and IPv6. The last address is
/// the client's, also for libfabric.
const MAPS: &str = "--map 127.0.0.1=10.9.0.1 --map 10.77.0.1=10.9.1.1 --map ::1=fd09::1 \
                    --map 10.77.0.2=10.9.1.2";

impl Transport {
    pub(crate) fn sockets() -> Self {
        Self::Sockets(machine())
    }

    pub(crate) fn nodes() -> Self {
        let node_pair = NodePair::new();
        node_pair.host.ip("address add 10.77.0.2/24 dev eth0");
        Self::Nodes(node_pair)
    }

    /// Network namespace of the programs.
    pub(crate) fn host(&self) -> &Namespace {
        match self {
            Self::Sockets(host) => host,
            Self::Nodes(node_pair) => &node_pair.host,
        }
    }

    /// Options of `flue run` at that end.
    pub(crate) fn options(&self, end: End) -> String {
        match (self, end as usize) {
            (Self::Sockets(_), _) => String::new(),
            (Self::Nodes(_), at) => {
                let node = NodePair::node(at);
                let number = at + 1;
                format!("{node} --addr 10.9.1.{number}/24 --addr fd09::{number}/64 {MAPS}")
            }
        }
    }

    pub(crate) fn start_command(&self, end: End, command: Command) -> Group {
        match self {
            Self::Sockets(host) => Group::start(host, command),
            Self::Nodes(node_pair) => node_pair.start_command(end as usize, command),
        }
    }

    /// Starts a program with additional options of `flue run`.
    pub(crate) fn start(&self, end: End, options: &str, line: &str) -> Group {
        let options = format!("{} {options}", self.options(end));
        self.start_command(end, under_flue(&options, line))
    }

    /// Waits until the server listens: the kernel on that port, or its node.
    ///
    /// # Errors
    ///
    /// No listener within the limit, with the reason.
    pub(crate) fn wait_for_listener(&self, server: &Group, port: u16) -> Result<(), String> {
        let what = format!("listens on port {port}");
        server.wait_until(&what, LIMIT, || self.has_listener(port))
    }

    /// True if the kernel listens on that port, or the node of the server listens.
    pub(crate) fn has_listener(&self, port: u16) -> bool {
        let has_listener = || match self {
            Self::Sockets(_) => false,
            Self::Nodes(node_pair) => node_pair.has_listener(),
        };
        self.host().run(|| listens(port)) || has_listener()
    }
}
