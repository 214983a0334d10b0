//! Offloaded connections through a routed network: narrow links, routers that send ICMP errors, routers that drop
//! silently, and routers that mark ECN.
//!
//! ```text
//! flue --TAP-- near --narrow veth-- far --veth-- host
//! ```
//!
//! The host's MSS is that of its own link. flue detects the narrow link by ICMP only (RFC 1191, RFC 8201), or by
//! black-hole detection (RFC 2923). Routers and ICMP are the kernel's. flue's counters show which mechanism applied.
//!
//! `nft` on a bridge marks CE on ECN-capable frames only (RFC 3168).

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use flue_test_support::flue::{command, exchange};
use flue_test_support::kernel_peer::{KernelPeer, Plan};
use flue_test_support::load::repeat_until_quiet;
use flue_test_support::needs::{Need, lacks};
use flue_test_support::netns::Namespace;
use flue_test_support::process::{Output, Process};
use flue_test_support::stream::Stream;
use flue_test_support::switch::Switch;

const FLUE: &str = env!("CARGO_BIN_EXE_flue");
const NEEDS: &[Need] =
    &[Need::Root, Need::Tun, Need::Tool("ip"), Need::Tool("nft"), Need::Tool("unshare")];

const MIB: u64 = 1 << 20;
const FLUE_SEED: u64 = 1;
const KERNEL_SEED: u64 = 2;
const PORT: u16 = 5000;
const START: Duration = Duration::from_secs(120);
const LIMIT: Duration = Duration::from_secs(300);

/// Counters that flue reports when its offloaded connection ends.
#[derive(Clone, Copy, Debug)]
struct Counted {
    segments: u64,
    retransmitted: u64,
    recoveries: u64,
    timeouts: u64,
    path_mtu_reductions: u64,
    /// ECN marks received and echoes answered; `None` if ECN was not negotiated.
    marks: Option<(u64, u64)>,
}

impl Counted {
    fn of(flue: &mut Process) -> Self {
        let line = flue.expect_line("ended: ", START);
        // Number after or before the given words.
        let words: Vec<&str> = line.split([' ', ',', '(', ')', ':']).collect();
        let near = |what: &str, by: isize| {
            let at = words.iter().position(|word| *word == what)?;
            words.get(at.checked_add_signed(by)?)?.parse().ok()
        };
        let told = |what| near(what, -1).unwrap_or_else(|| panic!("no {what}: {line}"));
        Self {
            segments: told("segments"),
            retransmitted: told("retransmitted"),
            recoveries: told("recoveries"),
            timeouts: told("timeouts"),
            path_mtu_reductions: near("reduced", 2).unwrap_or(0),
            marks: near("received", -1).zip(near("reductions", -1)),
        }
    }
}

/// Routed network.
struct Routed {
    near: Namespace,
    /// Dropped when the test ends.
    _far: Namespace,
    host: Namespace,
    v6: bool,
}

/// Address of `host` in network `net`.
fn address(v6: bool, net: u8, host: u8) -> IpAddr {
    if v6 {
        Ipv6Addr::new(0xfd00, 0, 0, net.into(), 0, 0, 0, host.into()).into()
    } else {
        Ipv4Addr::new(10, 0, net, host).into()
    }
}

fn prefix(v6: bool, net: u8, host: u8) -> String {
    format!("{}/{}", address(v6, net, host), if v6 { 64 } else { 24 })
}

impl Routed {
    /// Creates the network; the link between the routers has an MTU of `mtu` bytes, every other link 1500.
    fn new(v6: bool, mtu: u32) -> Self {
        let [near, far, host] = [Namespace::new(), Namespace::new(), Namespace::new()];
        for router in [&near, &far] {
            router.sysctl("net/ipv4/ip_forward", "1");
            router.sysctl("net/ipv6/conf/all/forwarding", "1");
        }
        let path = |namespace: &Namespace| namespace.path().display().to_string();
        near.ip(&format!(
            "link add narrow mtu {mtu} type veth peer name narrow mtu {mtu} netns {}",
            path(&far)
        ));
        far.ip(&format!("link add wide type veth peer name eth0 netns {}", path(&host)));
        let link = |at: &Namespace, name: &str, net, number| {
            at.ip(&format!("addr add {} dev {name}", prefix(v6, net, number)));
            at.ip(&format!("link set {name} up"));
        };
        link(&near, "narrow", 1, 1);
        link(&far, "narrow", 1, 2);
        link(&far, "wide", 2, 1);
        link(&host, "eth0", 2, 2);
        let route = |at: &Namespace, to: &str, via| at.ip(&format!("route add {to} via {via}"));
        let net =
            |net| if v6 { format!("fd00:0:0:{net}::/64") } else { format!("10.0.{net}.0/24") };
        route(&near, &net(2), address(v6, 1, 2));
        route(&far, &net(0), address(v6, 1, 1));
        route(&host, "default", address(v6, 2, 1));
        let network = Self { near, _far: far, host, v6 };
        network.await_routes();
        network
    }

    /// Waits until the routes work: a link is up only some time after its configuration. The near router refuses a
    /// connection once both directions are open.
    fn await_routes(&self) {
        let discard = SocketAddr::new(address(self.v6, 1, 1), 9);
        let deadline = Instant::now() + START;
        let refused = || {
            let tried = TcpStream::connect_timeout(&discard, Duration::from_secs(1));
            tried.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
        };
        while !self.host.run(refused) {
            assert!(Instant::now() < deadline, "no route to {discard} within {START:?}");
        }
    }

    /// Stops the near router from sending ICMP errors for packets that exceed the MTU.
    fn drop_icmp_errors(&self) {
        self.near.nft("add table inet bench");
        self.near.nft("add chain inet bench said { type filter hook output priority 0; }");
        self.near.nft("add rule inet bench said icmp type destination-unreachable drop");
        self.near.nft("add rule inet bench said icmpv6 type packet-too-big drop");
    }

    /// Transfers `flue_bytes` and `kernel_bytes` between flue and a kernel; checks that both streams are exact.
    fn transfer(&self, options: &str, flue_bytes: u64, kernel_bytes: u64) -> Counted {
        let (own, gateway) = (prefix(self.v6, 0, 2), address(self.v6, 0, 1));
        let line = format!(
            "nc -l {} {PORT} --tap tap0 --addr {own} --gateway {gateway} --host-addr {} --seed 7 {options}",
            address(self.v6, 0, 2),
            prefix(self.v6, 0, 1)
        );
        let mut flue = Process::start(&self.near, command(FLUE, &line), Output::Bytes);
        flue.expect_line("listening", START);
        let there = SocketAddr::new(address(self.v6, 0, 2), PORT);
        let peer = KernelPeer::connect(&self.host, there, Plan::send(KERNEL_SEED, kernel_bytes));
        finish(flue, peer, flue_bytes, kernel_bytes)
    }
}

fn finish(mut flue: Process, peer: KernelPeer, flue_bytes: u64, kernel_bytes: u64) -> Counted {
    let (received, input_error) = exchange(&mut flue, FLUE_SEED, flue_bytes, LIMIT);
    flue.expect_exit(0, LIMIT);
    assert!(input_error.is_none(), "flue stopped reading its input: {input_error:?}");
    assert_eq!(received, Stream::new(KERNEL_SEED).digest(kernel_bytes));
    peer.finish().assert_received(Stream::new(FLUE_SEED).digest(flue_bytes));
    Counted::of(&mut flue)
}

/// RFC 1191 §6, RFC 8201 §5: the router's message suffices. Expects one MSS reduction, one flight retransmitted, no
/// timeout, and no recovery beyond that of frame loss.
fn notifying_router(v6: bool, mtu: u32, options: &str) {
    if lacks(NEEDS) {
        return;
    }
    let run = || {
        let counted = Routed::new(v6, mtu).transfer(options, 8 * MIB, 8 * MIB);
        assert!(counted.path_mtu_reductions >= 1 && counted.retransmitted >= 1, "{counted:?}");
        assert!(counted.segments >= 7 * MIB / u64::from(mtu), "{counted:?}");
        counted
    };
    repeat_until_quiet(run, |counted| {
        counted.path_mtu_reductions == 1
            && counted.timeouts + counted.recoveries <= counted.segments / 2_000 + 1
            && counted.retransmitted < counted.segments / 20
    });
}

/// RFC 2923 §2.1: three timeouts detect a black hole; a link below 1064 bytes takes three more.
fn silent_router(v6: bool, mtu: u32, options: &str, reductions: u64) {
    if lacks(NEEDS) {
        return;
    }
    let run = || {
        let network = Routed::new(v6, mtu);
        network.drop_icmp_errors();
        let counted = network.transfer(options, 4 * MIB, 0);
        assert!(counted.path_mtu_reductions >= reductions, "{counted:?}");
        assert!(counted.timeouts >= 3 * reductions, "{counted:?}");
        counted
    };
    repeat_until_quiet(run, |counted| {
        counted.path_mtu_reductions == reductions && counted.timeouts <= 3 * reductions + 2
    });
}

#[test]
fn too_big_over_ipv4_gso_packets() {
    notifying_router(false, 1280, "--vnet on");
}

#[test]
fn too_big_over_ipv4_plain_frames() {
    notifying_router(false, 1000, "--vnet off");
}

#[test]
fn too_big_over_ipv6_gso_packets() {
    notifying_router(true, 1280, "--vnet on");
}

#[test]
fn too_big_over_ipv6_plain_frames() {
    notifying_router(true, 1400, "--vnet off");
}

#[test]
fn black_hole_over_ipv4_gso_packets() {
    silent_router(false, 1280, "--vnet on", 1);
}

#[test]
fn narrow_black_hole_over_ipv4_plain_frames() {
    silent_router(false, 1000, "--vnet off", 2);
}

#[test]
fn black_hole_over_ipv6() {
    silent_router(true, 1280, "--vnet on", 1);
}

/// Counter of the kernel's TCP or IP in a namespace, by its `nstat` name.
fn kernel_counter(host: &Namespace, name: &str) -> u64 {
    let netstat = host.run(|| std::fs::read_to_string("/proc/thread-self/net/netstat"));
    let netstat = netstat.expect("kernel counters");
    let lines: Vec<&str> = netstat.lines().collect();
    let found = lines.chunks(2).find_map(|pair| {
        let at = pair[0].split(' ').position(|word| word == name)?;
        pair.get(1)?.split(' ').nth(at)?.parse().ok()
    });
    found.unwrap_or_else(|| panic!("kernel counter {name} not found"))
}

/// Sends 16 MiB per direction through a switch that marks one ECN-capable frame in twenty; GSO packets make frames
/// few.
fn marks(kernel_opens: bool, kernel_ecn: &str, options: &str) -> (Counted, Namespace, u64) {
    let switch = Switch::new(1500);
    let kernel = switch.host(&prefix(false, 0, 1));
    kernel.sysctl("net/ipv4/tcp_ecn", kernel_ecn);
    switch.mark(500);
    let own = prefix(false, 0, 2);
    let start = |what: &str| {
        let line = format!(
            "nc {what} --tap tap0 --addr {own} --bridge {} --seed 7 {options}",
            Switch::BRIDGE
        );
        Process::start(switch.namespace(), command(FLUE, &line), Output::Bytes)
    };
    let plan = Plan::send(KERNEL_SEED, 16 * MIB);
    let (flue, peer) = if kernel_opens {
        let mut flue = start(&format!("-l {PORT}"));
        flue.expect_line("listening", START);
        let there = SocketAddr::new(address(false, 0, 2), PORT);
        (flue, KernelPeer::connect(&kernel, there, plan))
    } else {
        let any = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0);
        let peer = KernelPeer::listen(&kernel, any, plan);
        (start(&format!("{} {}", address(false, 0, 1), peer.address().port())), peer)
    };
    let counted = finish(flue, peer, 16 * MIB, 16 * MIB);
    let marked = switch.marked_frames();
    (counted, kernel, marked)
}

/// RFC 3168 §6.1: each side echoes the other's marks until CWR; no data is lost.
fn marks_are_answered(kernel_opens: bool, kernel_ecn: &str, options: &str) {
    if lacks(NEEDS) {
        return;
    }
    let run = || {
        let (counted, kernel, marked) = marks(kernel_opens, kernel_ecn, options);
        let (received, answered) = counted.marks.expect("ECN was negotiated");
        assert!(received > 0 && answered > 0, "{counted:?}, {marked} marked");
        // Without CWR, every acknowledgment would carry an echo.
        assert!(answered <= marked, "{counted:?}, {marked} marked");
        assert!(kernel_counter(&kernel, "InCEPkts") > 0, "the kernel received no mark");
        let echoed = kernel_counter(&kernel, "TCPDeliveredCE");
        assert!(echoed > 0, "the kernel received no echo");
        assert!(kernel_counter(&kernel, "InECT0Pkts") > 0);
        counted
    };
    repeat_until_quiet(run, |counted| {
        counted.recoveries + counted.timeouts <= counted.segments / 2_000 + 1
    });
}

#[test]
fn marks_are_answered_by_both_the_kernel_opens() {
    marks_are_answered(true, "1", "--ecn --vnet on");
}

#[test]
fn marks_are_answered_by_both_flue_opens() {
    marks_are_answered(false, "2", "--ecn --vnet off");
}

#[test]
fn without_agreement_nothing_is_marked() {
    if lacks(NEEDS) {
        return;
    }
    for (kernel_opens, kernel_ecn, options) in [(true, "1", ""), (false, "0", "--ecn")] {
        let (counted, _, marked) = marks(kernel_opens, kernel_ecn, options);
        assert_eq!((counted.marks, marked), (None, 0), "{counted:?}");
    }
}
