//! `flue doctor`: checks the prerequisites of the lab and of the nodes.
//!
//! Each feature is exercised, not guessed, in a network namespace that is removed with the process. A check is skipped
//! if one of its own prerequisites is missing.

use std::{
    env,
    ffi::OsStr,
    fmt, io,
    net::{Ipv4Addr, TcpListener, TcpStream},
    process::{Output, Stdio},
    time::Duration,
};

use clap::Args;
use flue_adapter::{MTU_DEFAULT_BYTES, QUEUES_MAX, TAP_DEFAULT};
use offload_engine::link::{OpenTap, TapError, TapOptions, VnetMode, open_tap, open_tap_queues};
use rdma_over_tcp::ndk::{self, AdapterConfig, SocketsConfig};
use serde::Serialize;

use crate::{
    cmd::run,
    environment::{self, tap_error},
    failure::Failure,
    namespace::{self, EntryMethod},
    net::{Netlink, VethEnd, plumb},
    options::OutputArgs,
    report::Console,
    sandbox,
};

/// Check prerequisites and suggest fixes
///
/// Tests them in a network namespace of its own: the TUN device node, namespaces, a bridge, a veth pair, a TAP with and
/// without virtio-net header, and forwarding. Then it prints which commands this user can run. Exits with status 3 if a
/// prerequisite of "flue lab" is missing.
#[derive(Args, Clone, Debug)]
pub struct DoctorArgs {
    /// Output format.
    #[command(flatten)]
    pub output: OutputArgs,
}

/// Name of the kernel socket check.
const SOCKETS: &str = "kernel sockets";

/// Result of one check.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Check {
    /// Name of the check.
    pub name: &'static str,
    /// True if the check passed.
    pub ok: bool,
    /// True if no node can run without it.
    pub required: bool,
    /// Details found, or the reason for the failure.
    pub detail: String,
    /// Suggested fix.
    pub hint: Option<String>,
}

impl Check {
    fn new(name: &'static str, required: bool, found: Result<String, Failure>) -> Self {
        match found {
            Ok(detail) => Self { name, ok: true, required, detail, hint: None },
            Err(Failure { kind: _, message, hint, signal: _ }) => {
                Self { name, ok: false, required, detail: message, hint }
            }
        }
    }
}

impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, ok, required, detail, hint } = self;
        let verdict = match (ok, required) {
            (true, _) => "ok",
            (false, true) => "MISSING",
            (false, false) => "missing",
        };
        write!(f, "{verdict:<8} {name}: {detail}")?;
        match hint {
            Some(hint) => write!(f, "\n         hint: {hint}"),
            None => Ok(()),
        }
    }
}

/// Runs the checks. Call it before the process has a second thread.
///
/// # Errors
/// [`Failure::lacking`] with the missing prerequisites, if a required check fails.
pub fn run(_args: &DoctorArgs, console: &mut Console<'_>) -> Result<(), Failure> {
    // Before the process enters a namespace of its own.
    let own_tap = try_own_tap();
    let checks = examine();
    for check in &checks {
        console.print(check);
    }
    let verdicts = verdicts(&checks, own_tap);
    console.print("");
    for verdict in &verdicts {
        console.print(verdict);
    }
    console.result(&serde_json::json!({ "checks": checks, "commands": verdicts }));
    let missing: Vec<_> =
        checks.iter().filter(|check| check.required && !check.ok).map(|check| check.name).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let lacking = Failure::lacking(format!("missing prerequisites: {}", missing.join(", ")));
    let has_sockets = checks.iter().any(|check| check.ok && check.name == SOCKETS);
    Err(match has_sockets {
        true => lacking.with_hint("kernel sockets require no TAP: flue lab --transport kernel"),
        false => lacking,
    })
}

/// Usability of commands for this user.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Verdict {
    /// The commands.
    pub commands: &'static str,
    /// True if they are usable.
    pub ok: bool,
    /// Missing prerequisites; empty if there are none.
    pub detail: String,
    /// Suggested fix.
    pub hint: Option<String>,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { commands, ok, detail, hint } = self;
        let verdict = if *ok { "usable" } else { "unusable" };
        write!(f, "{verdict:<8} {commands}")?;
        if !detail.is_empty() {
            write!(f, "\n         {detail}")?;
        }
        match hint {
            Some(hint) => write!(f, "\n         hint: {hint}"),
            None => Ok(()),
        }
    }
}

/// Peers that `flue bench` measures, and the tool that decodes captures.
const BENCH_PROGRAMS: [&str; 6] =
    ["gcc", "iperf3", "strace", "ucx_perftest", "ib_write_bw", "rping"];
const DECODERS: [&str; 1] = ["tshark"];

/// Returns the usability of each group of commands.
fn verdicts(checks: &[Check], own_tap: Result<(), Failure>) -> Vec<Verdict> {
    let of = |commands, names: &[&str]| {
        // A check that did not run is missing as well.
        let has = |name: &&&str| checks.iter().any(|check| check.ok && check.name == **name);
        let missing: Vec<&str> = names.iter().filter(|name| !has(name)).copied().collect();
        let detail = match missing.is_empty() {
            true => String::new(),
            false => format!("missing: {}", missing.join(", ")),
        };
        Verdict { commands, ok: missing.is_empty(), detail, hint: None }
    };
    let optional = |commands, programs: &[&str]| {
        let absent: Vec<_> = programs.iter().filter(|name| !is_installed(name)).copied().collect();
        let detail = match absent.is_empty() {
            true => String::new(),
            false => format!("not installed: {}", absent.join(", ")),
        };
        Verdict { commands, ok: absent.len() < programs.len(), detail, hint: None }
    };
    let (ok, detail, hint) = match own_tap {
        Ok(()) => (true, String::new(), None),
        Err(Failure { message, .. }) => {
            let remedy =
                "\"flue up\" and \"flue enter\" need no privilege for it, or use kernel sockets";
            (false, message, Some(remedy.to_owned()))
        }
    };
    vec![
        of("flue run", &[SOCKETS, "verbs programs"]),
        of("flue rping, serve, lab --transport kernel; perf --stack kernel", &[SOCKETS]),
        of(
            "flue lab, up, enter",
            &["TUN device node", "network namespace", "bridge", "veth pair", "TAP"],
        ),
        Verdict { commands: "flue nc, rping, perf, serve, wire, run --tap", ok, detail, hint },
        optional("flue bench: peers", &BENCH_PROGRAMS),
        optional("flue wireshark-profile", &DECODERS),
    ]
}

fn is_installed(program: &str) -> bool {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path).any(|directory| directory.join(program).is_file())
}

/// Checks that this user can open the default TAP in the current network namespace.
fn try_own_tap() -> Result<(), Failure> {
    environment::check_tun()?;
    let options = TapOptions::new(TAP_DEFAULT, MTU_DEFAULT_BYTES.into(), VnetMode::Off);
    match open_tap(&options) {
        // A node of this user has it.
        Ok(_) | Err(TapError::Busy { .. }) => Ok(()),
        Err(error) => Err(tap_error(error).into()),
    }
}

/// Runs all checks in dependency order.
pub fn examine() -> Vec<Check> {
    let mut checks = vec![
        Check::new(SOCKETS, false, try_sockets()),
        Check::new("verbs programs", false, try_verbs()),
        Check::new("files of the device", false, try_files()),
    ];
    // Before the process has all of them in a user namespace.
    checks.push(Check::new("capabilities", false, try_capabilities()));
    let tun = environment::check_tun().map(|()| format!("{} opened", environment::TUN_NODE));
    let has_tun = tun.is_ok();
    checks.push(Check::new("TUN device node", true, tun.map_err(Failure::from)));
    let entered = namespace::enter().map(|entered| match entered {
        EntryMethod::Privileged => "created with the capabilities of this user".to_owned(),
        EntryMethod::UserNamespace => "created through a user namespace, without root".to_owned(),
    });
    let has_namespace = entered.is_ok();
    checks.push(Check::new("network namespace", true, entered.map_err(Failure::from)));
    if has_namespace {
        checks.extend(examine_links(has_tun));
    }
    // They start threads, with which no user namespace could be entered.
    let found = |name, found: Result<String, String>| {
        Check::new(name, false, found.map_err(Failure::lacking))
    };
    checks.push(found("seccomp", sandbox::seccomp_support()));
    checks.push(found("landlock", sandbox::landlock_support()));
    checks
}

/// Checks the capability that creates TAPs in the current network namespace.
fn try_capabilities() -> Result<String, Failure> {
    if namespace::has_net_admin() {
        return Ok("CAP_NET_ADMIN; a node drops it after its start".into());
    }
    let remedy =
        "setcap cap_net_admin=ep FILE for the file of flue, or use \"flue up\" without privileges";
    Err(Failure::lacking("no CAP_NET_ADMIN").with_hint(remedy))
}

/// Checks links in the namespace of the calling thread, which was created for this run.
fn examine_links(has_tun: bool) -> Vec<Check> {
    let mut netlink = match Netlink::open() {
        Ok(netlink) => netlink,
        Err(error) => return vec![Check::new("rtnetlink", true, Err(error.into()))],
    };
    let bridge = plumb::make_bridge(&mut netlink, "doctor0", MTU_DEFAULT_BYTES);
    let has_bridge = bridge.is_ok();
    let made = |result: Result<(), crate::net::NetError>| {
        result.map(|()| "created".to_owned()).map_err(Failure::from)
    };
    let end = |name| VethEnd { name, namespace: None };
    let veth = netlink.create_veth(end("doctor1"), end("doctor2"), MTU_DEFAULT_BYTES);
    let mut checks =
        vec![Check::new("bridge", true, made(bridge)), Check::new("veth pair", true, made(veth))];
    if has_tun {
        let plain = try_tap(&mut netlink, VnetMode::Off, has_bridge);
        checks.push(Check::new("TAP", true, plain));
        let vnet = try_tap(&mut netlink, VnetMode::On, false);
        checks.push(Check::new("TAP with virtio-net header", false, vnet));
        checks.push(Check::new("TAP with several queues", false, try_queues()));
    }
    checks
}

/// Checks the prerequisites of queue pairs on kernel sockets, without TAP and namespace.
fn try_sockets() -> Result<String, Failure> {
    let connected = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
        .and_then(|listener| TcpStream::connect(listener.local_addr()?));
    let opened = connected
        .and_then(|_| ndk::open_sockets(SocketsConfig::default(), AdapterConfig::default()));
    match opened {
        Ok(_) => Ok("usable for queue pairs: try flue lab --transport kernel".into()),
        Err(error) => Err(Failure::lacking(error.to_string())),
    }
}

/// Checks the prerequisites of `flue run`: its library, and a program that lists the device.
fn try_verbs() -> Result<String, Failure> {
    let library = run::find_library(None)?;
    let program = "ibv_devices";
    let ended = run::command(&library, OsStr::new(program))
        .map(|mut command| command.stdin(Stdio::null()).output());
    let library = library.display();
    match ended? {
        Ok(Output { status, stdout, .. }) => {
            let output = String::from_utf8_lossy(&stdout);
            // The output has two header lines, then one line per device with name and GUID.
            let devices = output.lines().skip(2).filter_map(|line| line.split_whitespace().next());
            match devices.collect::<Vec<_>>().join(", ") {
                devices if status.success() && !devices.is_empty() => {
                    Ok(format!("library {library}; {program} lists {devices}"))
                }
                _ => Err(Failure::lacking(format!(
                    "{program}: lists no device of {library}: {status}"
                ))),
            }
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Ok(format!("library {library}; not tested, because {program} is not installed"))
        }
        Err(error) => Err(Failure::lacking(format!("{program}: {error}"))),
    }
}

/// Checks the prerequisites of the files of a RoCE device: a program finds the character device and reads a file.
fn try_files() -> Result<String, Failure> {
    const SCRIPT: &str = r#"node=${FLUE_VERBS_FILES##*/}; node=/dev/infiniband/${node%%-*}
test -c "$node" && read -r type </sys/class/infiniband/flue0/node_type && echo "$type" "$node""#;
    let library = run::find_library(None)?;
    let mut command = run::command_with_files(&library, OsStr::new("sh"))?;
    let ended = command.args(["-c", SCRIPT]).stdin(Stdio::null()).output();
    let Output { status, stdout, stderr } =
        ended.map_err(|error| Failure::lacking(format!("sh: {error}")))?;
    match String::from_utf8_lossy(&stdout).trim_end().strip_prefix("1: CA ") {
        Some(node) if status.success() => {
            Ok(format!("preloaded library redirects {node} and /sys/class/infiniband/flue0"))
        }
        _ => Err(Failure::lacking(format!(
            "sh does not find the files of the preloaded library: {status}: {}",
            String::from_utf8_lossy(&stderr).trim_end()
        ))),
    }
}

fn try_tap(netlink: &mut Netlink, vnet: VnetMode, bridged: bool) -> Result<String, Failure> {
    const NAME: &str = "doctor3";
    const LIMIT: Duration = plumb::FORWARDING_LIMIT;
    let options = TapOptions::new(NAME, MTU_DEFAULT_BYTES.into(), vnet);
    let OpenTap { link, vnet_header, reclaims, .. } = open_tap(&options).map_err(tap_error)?;
    if bridged {
        plumb::make_port(netlink, NAME, "doctor0")?;
        netlink.wait_forwarding(NAME, LIMIT)?;
        return Ok("created; forwards as a port of a bridge".into());
    }
    let tso_max = link.capabilities().tso4_max;
    Ok(if vnet_header {
        let pages = if reclaims { "recycled" } else { "not recycled" };
        format!("created; GSO packets of up to {tso_max} bytes, transmitted pages {pages}")
    } else {
        "created".into()
    })
}

/// Checks the prerequisites of `--queues`.
fn try_queues() -> Result<String, Failure> {
    const NAME: &str = "doctor4";
    let mtu = MTU_DEFAULT_BYTES.into();
    let options = TapOptions::new(NAME, mtu, VnetMode::Auto);
    let queues = open_tap_queues(&options, QUEUES_MAX.into()).map_err(tap_error)?;
    Ok(format!("created with {} queues", queues.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_prerequisite_is_printed_in_capitals() {
        let failure = Failure::lacking("no such thing").with_hint("get one");
        let missing = Check::new("thing", true, Err(failure.clone()));
        assert_eq!(missing.to_string(), "MISSING  thing: no such thing\n         hint: get one");
        let optional = Check::new("thing", false, Err(failure));
        assert!(optional.to_string().starts_with("missing "));
        assert_eq!(
            Check::new("thing", true, Ok("found".into())).to_string(),
            "ok       thing: found"
        );
    }

    #[test]
    fn each_group_of_commands_has_a_verdict() {
        let found = |name| Check::new(name, true, Ok(String::new()));
        let checks = [found(SOCKETS), found("TUN device node"), found("network namespace")];
        let denied = Failure::lacking("interface \"flue0\": permission denied");
        let verdicts = verdicts(&checks, Err(denied));
        let of = |command: &str| {
            let verdict = verdicts.iter().find(|it| it.commands.contains(command)).unwrap();
            (verdict.ok, verdict.to_string())
        };
        assert!(of("--transport kernel").0);
        assert_eq!(of("flue run").1, "unusable flue run\n         missing: verbs programs");
        assert!(of("flue lab, up").1.contains("missing: bridge, veth pair, TAP"));
        let (ok, text) = of("flue nc");
        assert!(!ok && text.contains("permission denied") && text.contains("flue up"), "{text}");
    }

    #[test]
    fn links_are_checked_in_a_namespace() {
        if !namespace::has_net_admin() {
            println!("skipped: no CAP_NET_ADMIN");
            return;
        }
        let has_tun = environment::check_tun().is_ok();
        let checks = std::thread::spawn(move || {
            namespace::enter_below().unwrap();
            examine_links(has_tun)
        });
        let checks = checks.join().unwrap();
        let expected = if has_tun { 5 } else { 2 };
        assert_eq!(checks.len(), expected);
        for check in checks {
            assert!(check.ok || !check.required, "{check}");
        }
    }
}
