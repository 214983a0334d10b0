//! Nodes of `flue nc` on a switch, a kernel as their peer, and `flue ss --json` to observe their connections.

use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::flue::{Scratch, command};
use crate::netns::Namespace;
use crate::process::{Output, Process};
use crate::switch::Switch;

/// Time limit for a node to start, to accept, and to reach a state; used up only by a failure.
pub const START: Duration = Duration::from_secs(120);
/// Listening port of the nodes.
pub const PORT: u16 = 5000;

/// Switch, a kernel on it at 10.0.0.1, and a directory for control sockets that no other test uses.
#[derive(Debug)]
pub struct Bench {
    program: PathBuf,
    /// Switch; nodes start in its namespace.
    pub switch: Switch,
    /// Host with the kernel's TCP.
    pub kernel: Namespace,
    /// `XDG_RUNTIME_DIR` of all commands.
    pub runtime: Scratch,
}

/// Result of a command.
#[derive(Debug)]
pub struct CommandOutput {
    /// Exit status.
    pub status: Option<i32>,
    /// Standard output.
    pub out: String,
    /// Standard error.
    pub err: String,
}

impl CommandOutput {
    /// Standard output as a JSON document.
    ///
    /// # Panics
    ///
    /// If it is not JSON.
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {}", self.out))
    }
}

impl Bench {
    /// Creates a bench for the command `program`.
    pub fn new(program: &str) -> Self {
        let switch = Switch::new(1500);
        let kernel = switch.host("10.0.0.1/24");
        Self { program: Path::new(program).to_owned(), switch, kernel, runtime: Scratch::new() }
    }

    /// Command with space-separated arguments.
    pub fn command(&self, line: &str) -> Command {
        let mut command = command(&self.program, line);
        command.env("XDG_RUNTIME_DIR", self.runtime.file(""));
        command
    }

    /// Starts the command in the switch's namespace.
    pub fn start(&self, line: &str, output: Output) -> Process {
        Process::start(self.switch.namespace(), self.command(line), output)
    }

    /// Options of an attached node: `tapHOST` at 10.0.0.HOST.
    pub fn attached(host: u8) -> String {
        format!("--tap tap{host} --addr 10.0.0.{host}/24 --bridge {}", Switch::BRIDGE)
    }

    /// Listening address of node `host`.
    pub fn address(host: u8) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, host], PORT))
    }

    /// Starts `flue nc -l` on node `host` with these options.
    pub fn listen_at(&self, host: u8, options: &str, output: Output) -> Process {
        let line = format!("nc -l {PORT} {} {options}", Self::attached(host));
        let mut flue = self.start(&line, output);
        flue.expect_line("listening", START);
        flue
    }

    /// Starts `flue nc -l` on node 2, with a seed.
    pub fn listen(&self, options: &str, output: Output) -> Process {
        self.listen_at(2, &format!("--seed 7 {options}"), output)
    }

    /// Runs a command until it exits. It needs no namespace: a control socket has a path.
    ///
    /// # Panics
    ///
    /// If it does not start, or its output is not UTF-8.
    pub fn run_once(&self, line: &str) -> CommandOutput {
        let output = self.command(line).output().expect("flue starts");
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("flue writes UTF-8");
        CommandOutput {
            status: output.status.code(),
            out: text(output.stdout),
            err: text(output.stderr),
        }
    }

    /// `flue ss --json` with these arguments: the connections of the only node.
    ///
    /// # Panics
    ///
    /// If the command fails, or there is not exactly one node.
    pub fn connections(&self, line: &str) -> Vec<Value> {
        let said = self.run_once(&format!("ss --json {line}"));
        assert_eq!(said.status, Some(0), "{}", said.out);
        let nodes = said.json()["result"]["nodes"].as_array().unwrap().clone();
        assert_eq!(nodes.len(), 1, "{}", said.out);
        nodes[0]["connections"].as_array().unwrap().clone()
    }

    /// Polls until the only connection exists and `is_so` holds.
    ///
    /// # Panics
    ///
    /// If that takes longer than [`START`].
    pub fn expect(&self, line: &str, is_so: impl Fn(&Value) -> bool) -> Value {
        let deadline = Instant::now() + START;
        loop {
            let connections = self.connections(line);
            match connections.as_slice() {
                [one] if is_so(one) => return one.clone(),
                _ => assert!(Instant::now() < deadline, "not in {START:?}: {connections:?}"),
            }
        }
    }

    /// Connects from the kernel to node `host`.
    ///
    /// # Panics
    ///
    /// If the node does not accept.
    pub fn connect_to(&self, host: u8) -> TcpStream {
        let there = Self::address(host);
        self.kernel.run(|| TcpStream::connect_timeout(&there, START)).expect("flue accepts")
    }

    /// Connects from the kernel to node 2.
    pub fn connect(&self) -> TcpStream {
        self.connect_to(2)
    }

    /// Control sockets in the default directory.
    ///
    /// # Panics
    ///
    /// If that directory does not exist.
    pub fn sockets(&self) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(self.runtime.file("flue")).expect("the directory exists");
        entries.map(|entry| entry.unwrap().path()).collect()
    }
}
