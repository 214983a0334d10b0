//! `flue up`, `enter` and `down`: nodes as root and as an ordinary user, and their end with a killed keeper.

use std::{
    fs,
    os::{
        fd::OwnedFd,
        unix::{fs::PermissionsExt as _, process::ExitStatusExt as _},
    },
    path::{Path, PathBuf},
    process::{Command, Output as Ended, Stdio},
    time::{Duration, Instant},
};

use flue_test_support::{
    flue::{ORDINARY_USER_ID, Scratch, as_ordinary_user},
    needs::{Need, lacks},
    netns::Namespace,
    process::{Output, Process},
};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal},
};
use serde_json::Value;

const FLUE: &str = env!("CARGO_BIN_EXE_flue");
const NEEDS: &[Need] = &[Need::Root, Need::Tun, Need::Tool("ip"), Need::Tool("unshare")];
const LIMIT: Duration = Duration::from_secs(60);

/// Machine of a user: a namespace, and a directory for the state of playgrounds.
struct Machine {
    host: Namespace,
    scratch: Scratch,
}

impl Machine {
    fn new() -> Self {
        let machine = Self { host: Namespace::new(), scratch: Scratch::new() };
        fs::create_dir(machine.runtime()).unwrap();
        fs::set_permissions(machine.runtime(), fs::Permissions::from_mode(0o700)).unwrap();
        machine
    }

    fn runtime(&self) -> PathBuf {
        self.scratch.file("run")
    }

    fn state(&self) -> PathBuf {
        self.runtime().join("flue/playground-default.json")
    }

    /// Command of a shell, without the variables of a node.
    fn command(&self, line: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", line]).env("XDG_RUNTIME_DIR", self.runtime());
        command.env_remove("FLUE_PLAYGROUND").stdin(Stdio::null());
        command
    }

    fn start(&self, line: &str) -> Process {
        Process::start(&self.host, self.command(&format!("exec {line}")), Output::Lines)
    }

    fn flue(&self, arguments: &str) -> (i32, String) {
        let mut command = self.command(&format!("exec {FLUE} {arguments}"));
        let Ended { status, stdout, stderr } = self.host.run(|| command.output()).unwrap();
        let text = [stdout, stderr].map(|it| String::from_utf8(it).unwrap()).concat();
        (status.code().unwrap_or(-1), text)
    }

    /// Runs a command that succeeds, and returns its output.
    fn succeed(&self, arguments: &str) -> String {
        let (status, text) = self.flue(arguments);
        assert_eq!(status, 0, "flue {arguments}: {text}");
        text
    }

    /// Keeper of the only playground.
    fn keeper(&self) -> Pid {
        let state = fs::read_dir(self.runtime().join("flue")).unwrap().next().unwrap().unwrap();
        let state: Value = serde_json::from_slice(&fs::read(state.path()).unwrap()).unwrap();
        Pid::from_raw(state["keeper"].as_i64().unwrap().try_into().unwrap()).unwrap()
    }
}

/// A process that may be that of another parent.
struct Watched(OwnedFd);

impl Watched {
    fn new(process: Pid) -> Self {
        Self(pidfd_open(process, PidfdFlags::empty()).unwrap())
    }

    fn expect_end(&self) {
        let limit = Timespec::try_from(LIMIT).unwrap();
        assert_eq!(poll(&mut [PollFd::new(&self.0, PollFlags::IN)], Some(&limit)), Ok(1));
    }

    fn kill(self) {
        pidfd_send_signal(&self.0, Signal::KILL).unwrap();
        self.expect_end();
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // The keeper of a failed test.
        let _ = self.flue("down");
    }
}

#[test]
fn printed_commands_work() {
    if lacks(NEEDS) {
        return;
    }
    let machine = Machine::new();
    let printed = machine.succeed("up 3");
    let commands: Vec<&str> =
        printed.lines().map(str::trim).filter(|line| line.contains(" -- ")).collect();
    let [server, client, tap_server, tap_client] = commands[..] else { panic!("{printed}") };
    for (server, client) in [(server, client), (tap_server, tap_client)] {
        let mut server = machine.start(server);
        server.expect_line("listening", LIMIT);
        let mut client = machine.start(client);
        client.expect_exit(0, LIMIT);
        let output = client.all_lines(LIMIT);
        assert_eq!(output.matches("rdma-ping-").count(), 3, "{output}");
        server.expect_exit(0, LIMIT);
    }

    let (status, text) = machine.flue("up");
    assert_eq!(status, 1, "{text}");
    assert!(text.contains("already up: 3 nodes") && text.contains("flue down"), "{text}");
    let (status, text) = machine.flue("enter 4 -- true");
    assert_eq!(status, 2, "{text}");
    assert!(text.contains("nodes 1..=3"), "{text}");
    let variables = machine.succeed("enter 2 -- env");
    for variable in ["FLUE_NODE=2", "FLUE_ADDR=10.77.1.2", "FLUE_PEERS=10.77.1.1 10.77.1.3"] {
        assert!(variables.lines().any(|it| it == variable), "{variable}: {variables}");
    }
    let links = machine.succeed(
        "enter 3 -- sh -c 'cd /sys/class/net; echo *; cat br0/addr_assign_type eth0/carrier'",
    );
    // The address of the bridge is set (NET_ADDR_SET), so a TAP with a lower one does not replace it.
    assert_eq!(links, "br0 eth0 lo\n3\n1\n");

    let mut program =
        machine.start(&format!("{FLUE} enter 1 -- sh -c 'echo inside; exec sleep 600'"));
    program.expect_line("inside", LIMIT);
    let keeper = machine.keeper();
    let removed = machine.succeed("down --json");
    let removed: Value = serde_json::from_str(&removed).unwrap();
    assert_eq!(removed["result"], serde_json::json!({ "nodes": 3, "programs": 1 }));
    assert!(!program.wait(LIMIT).success());
    // A process that has ended has no namespace, also before its parent waits for it.
    let namespace = format!("/proc/{}/ns/net", keeper.as_raw_nonzero());
    assert!(fs::metadata(namespace).is_err() && !machine.state().exists());
    assert!(machine.succeed("down").contains("not up"));
    assert!(machine.host.links().is_empty());
}

#[test]
fn killed_keeper_leaves_nothing() {
    if lacks(NEEDS) {
        return;
    }
    let machine = Machine::new();
    machine.succeed("up");
    let mut program =
        machine.start(&format!("{FLUE} enter 1 -- sh -c 'echo inside; exec sleep 600'"));
    program.expect_line("inside", LIMIT);
    let has_link = || {
        let interfaces = fs::read_to_string(format!("/proc/{}/net/dev", program.id())).unwrap();
        interfaces.contains("eth0:")
    };
    assert!(has_link());
    Watched::new(machine.keeper()).kill();
    // The kernel removes the namespaces in the background.
    let deadline = Instant::now() + LIMIT;
    while has_link() {
        assert!(Instant::now() < deadline, "the namespace of the switch remains");
        std::thread::yield_now();
    }
    let (status, text) = machine.flue("enter 1 -- true");
    assert_eq!(status, 1, "{text}");
    assert!(text.contains("not up"), "{text}");
    assert!(machine.succeed("down").contains("ended keeper") && !machine.state().exists());

    machine.succeed("up");
    Watched::new(machine.keeper()).kill();
    machine.succeed("up -q 2");
    machine.succeed("enter 2 -- true");
}

#[test]
fn signal_ends_the_nodes_of_a_command() {
    if lacks(NEEDS) {
        return;
    }
    let machine = Machine::new();
    let directory = machine.runtime().join("flue");
    let states = || fs::read_dir(&directory).unwrap().count();
    let line = format!("{FLUE} up -- sh -c 'echo inside $$; exec sleep 600'");
    let mut up = machine.start(&line);
    up.expect_line("inside", LIMIT);
    assert_eq!(states(), 1);
    up.signal(Signal::TERM);
    assert_eq!(up.wait(LIMIT).signal(), Some(Signal::TERM.as_raw()));
    assert_eq!(states(), 0);

    let mut up = machine.start(&line);
    let inside = up.expect_line("inside", LIMIT);
    let program = Pid::from_raw(inside.split(' ').nth(1).unwrap().parse().unwrap());
    let left = [program.unwrap(), machine.keeper()].map(Watched::new);
    up.signal(Signal::KILL);
    up.wait(LIMIT);
    // The kernel ends both.
    left.iter().for_each(Watched::expect_end);
    machine.succeed("up");
    assert_eq!(states(), 1, "only that of the last playground");
}

/// Pings on kernel sockets and on TAP nodes, in a shell of node 1.
const PINGS: &str = r#"
set -eu
wait_for() { until grep -q "$1" "$2"; do kill -0 "$3"; sleep 0.01; done; }
program rping -s --transport kernel >kernel 2>&1 &
wait_for listening kernel $!
program enter 2 -- program rping -c -C 2 -v -a "$FLUE_ADDR" --transport kernel
program rping -s --tap t --addr "$FLUE_TAP_ADDR" --bridge "$FLUE_BRIDGE" >tap 2>&1 &
wait_for listening tap $!
export SERVER=${FLUE_TAP_ADDR%/*}
program enter 2 -- sh -c 'program rping -c -C 2 -v -a $SERVER --tap t --addr $FLUE_TAP_ADDR --bridge $FLUE_BRIDGE'
wait
echo "user $(id -u) of node $FLUE_NODE"
sleep 600 & exit 7
"#;

#[test]
fn ordinary_user_runs_a_command_on_nodes() {
    if lacks(NEEDS) || lacks(&[Need::InitialRoot, Need::Tool("setpriv")]) {
        return;
    }
    let (host, scratch) = (Namespace::new(), Scratch::new());
    fs::write(scratch.file("pings"), PINGS).unwrap();
    let runtime = scratch.file("run");
    fs::create_dir(&runtime).unwrap();
    fs::set_permissions(&runtime, fs::Permissions::from_mode(0o777)).unwrap();
    let mut command = as_ordinary_user(&scratch, Path::new(FLUE), "up -- sh pings");
    // The directory belongs to another user, so the state is in /tmp, which the command has for itself.
    command
        .env("XDG_RUNTIME_DIR", &runtime)
        .env("TMPDIR", &runtime)
        .env("PATH", "/usr/bin:/bin:/usr/sbin");
    let mut up = Process::start(&host, command, Output::Lines);
    up.expect_exit(7, LIMIT);
    let output = up.all_lines(LIMIT);
    assert_eq!(output.matches("rdma-ping-").count(), 4, "{output}");
    assert!(output.contains("user 0 of node 1"), "{output}");
    let state = format!("/tmp/flue-{ORDINARY_USER_ID}/playground-command-{}.json", up.id());
    assert!(!Path::new(&state).exists(), "{state}");
}

#[test]
fn forbidden_namespaces_are_a_missing_prerequisite() {
    if lacks(NEEDS) || lacks(&[Need::Tool("setpriv")]) {
        return;
    }
    let machine = Machine::new();
    // The limit applies to namespaces below the new user namespace.
    let script = "echo 0 >/proc/sys/user/max_user_namespaces && \
                  exec setpriv --bounding-set=-all --inh-caps=-all -- \"$0\" up";
    let mut command =
        machine.command("exec unshare --user --map-root-user --mount sh -c \"$0\" \"$1\"");
    command.args([script, FLUE]);
    let mut up = Process::start(&machine.host, command, Output::Lines);
    up.expect_exit(3, LIMIT);
    let text = up.all_lines(LIMIT);
    assert!(text.contains("/proc/sys/user/max_user_namespaces = 0"), "{text}");
    assert!(text.contains("sysctl user.max_user_namespaces="), "{text}");
    assert!(!machine.state().exists());
}

#[test]
fn prompt_of_bash_has_the_node() {
    if lacks(NEEDS) || lacks(&[Need::Tool("bash"), Need::Tool("script")]) {
        return;
    }
    let machine = Machine::new();
    machine.succeed("up");
    let home = machine.scratch.file("home");
    fs::create_dir(&home).unwrap();
    fs::write(home.join(".bashrc"), "PS1='mine> '\n").unwrap();
    // script(1) gives the shell a terminal.
    let line = format!("echo exit 5 | script -qec '{FLUE} enter 2' /dev/null");
    let mut command = machine.command(&line);
    command.env("SHELL", "/bin/bash").env("HOME", &home);
    let Ended { status, stdout, .. } = machine.host.run(|| command.output()).unwrap();
    let text = String::from_utf8(stdout).unwrap();
    assert!(text.contains("(node 2) mine> "), "{text}");
    assert_eq!(status.code(), Some(5), "{text}");
}
