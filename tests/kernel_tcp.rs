//! `flue nc` against kernel TCP: every byte in both directions, on every link type, with and without loss.
//!
//! The kernel does not depend on the chimney. An exact stream in both directions proves the migration (CH-FWD-2),
//! send (CH-SND-1), receive (CH-IND-1) and disconnect (CH-DIS-6) rules. flue's counters show segments, pushes,
//! retransmissions and their reasons.
//!
//! Limits: [`LONG`] for one GiB per direction and for loss, [`SHORT`] otherwise.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use flue_test_support::flue::{command, exchange};
use flue_test_support::kernel_peer::{End, KernelPeer, Pace, Plan};
use flue_test_support::load::repeat_until_quiet;
use flue_test_support::needs::{Need, lacks};
use flue_test_support::netns::Namespace;
use flue_test_support::process::{Output, Process};
use flue_test_support::stream::Stream;
use flue_test_support::switch::{Direction, Switch};

const FLUE: &str = env!("CARGO_BIN_EXE_flue");
const NEEDS: &[Need] =
    &[Need::Root, Need::Tun, Need::Tool("ip"), Need::Tool("nft"), Need::Tool("unshare")];

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const FLUE_SEED: u64 = 1;
const KERNEL_SEED: u64 = 2;
const PORT: u16 = 5000;
const START: Duration = Duration::from_secs(120);
const SHORT: Duration = Duration::from_secs(300);
const LONG: Duration = Duration::from_secs(900);

/// Maximum octets of a net buffer list: `flue nc` posts one per read of its input.
const LIST_BYTES_MAX: u64 = 64 * 1024;

/// Maximum octets that `flue nc` has posted and the peer has not acknowledged.
const IN_FLIGHT_BYTES_MAX: u64 = MIB + LIST_BYTES_MAX;

/// Side that opens the connection.
#[derive(Clone, Copy, Debug)]
enum Opener {
    Kernel,
    Flue,
}

#[derive(Clone, Copy, Debug)]
enum Family {
    V4,
    V6,
}

impl Family {
    /// Address of the kernel (`host` 1) or of flue (`host` 2).
    fn address(self, host: u8) -> IpAddr {
        match self {
            Self::V4 => Ipv4Addr::new(10, 0, 0, host).into(),
            Self::V6 => Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, host.into()).into(),
        }
    }

    fn prefix(self, host: u8) -> String {
        let length = match self {
            Self::V4 => 24,
            Self::V6 => 64,
        };
        format!("{}/{length}", self.address(host))
    }
}

/// Counters that flue reports when its offloaded connection ends.
#[derive(Clone, Copy, Debug)]
struct Counted {
    segments: u64,
    pushes: u64,
    retransmitted: u64,
    recoveries: u64,
    timeouts: u64,
}

impl Counted {
    /// Reads the counters; `None` if the connection was never offloaded.
    fn of(flue: &mut Process) -> Option<Self> {
        let line = flue.expect_line("ended: ", START);
        let (_, counts) = line.split_once("; ").expect("counters after a semicolon");
        if counts == "never offloaded" {
            return None;
        }
        let numbers = counts.split([' ', '(']).filter_map(|word| word.parse().ok());
        match numbers.collect::<Vec<u64>>()[..] {
            [segments, pushes, retransmitted, recoveries, timeouts] => {
                Some(Self { segments, pushes, retransmitted, recoveries, timeouts })
            }
            _ => panic!("expected five counters: {line}"),
        }
    }
}

/// One transfer between flue and the kernel.
#[derive(Debug)]
struct TcpRun<'a> {
    opener: Opener,
    family: Family,
    /// Additional options of flue.
    options: &'a str,
    /// Actions of the kernel's side.
    plan: Plan,
    /// Bytes that flue sends.
    flue_bytes: u64,
    limit: Duration,
}

impl TcpRun<'_> {
    /// Transfer in which both sides send `bytes` at the same time.
    fn both(opener: Opener, options: &str, bytes: u64) -> TcpRun<'_> {
        let plan = Plan::send(KERNEL_SEED, bytes);
        let limit = if bytes < GIB { SHORT } else { LONG };
        TcpRun { opener, family: Family::V4, options, plan, flue_bytes: bytes, limit }
    }

    /// Runs the transfer with flue in `adapter` and `place` as its TAP options. Checks that both streams are exact,
    /// flue exits with 0, and its TAP is removed.
    fn run(self, kernel: &Namespace, adapter: &Namespace, place: &str) -> Option<Counted> {
        let Self { opener, family, options, plan, flue_bytes, limit } = self;
        let kernel_sends = Stream::new(plan.seed).digest(plan.send_bytes);
        let start = |what: &str| {
            let own = family.prefix(2);
            let line = format!("nc {what} --tap tap0 --addr {own} --seed 7 {place} {options}");
            Process::start(adapter, command(FLUE, &line), Output::Bytes)
        };
        let (mut flue, peer) = match opener {
            Opener::Kernel => {
                let own = family.address(2);
                let mut flue = start(&format!("-l {own} {PORT}"));
                flue.expect_line("listening", START);
                (flue, KernelPeer::connect(kernel, SocketAddr::new(own, PORT), plan))
            }
            Opener::Flue => {
                let any: IpAddr = match family {
                    Family::V4 => Ipv4Addr::UNSPECIFIED.into(),
                    Family::V6 => Ipv6Addr::UNSPECIFIED.into(),
                };
                let peer = KernelPeer::listen(kernel, SocketAddr::new(any, 0), plan);
                let there = family.address(1);
                (start(&format!("{there} {}", peer.address().port())), peer)
            }
        };
        let (received, input_error) = exchange(&mut flue, FLUE_SEED, flue_bytes, limit);
        flue.expect_exit(0, limit);
        let counted = Counted::of(&mut flue);
        assert!(input_error.is_none(), "flue stopped reading its input: {input_error:?}");
        assert_eq!(
            received, kernel_sends,
            "data written by flue differs from data sent by the kernel"
        );
        peer.finish().assert_received(Stream::new(FLUE_SEED).digest(flue_bytes));
        let links = adapter.links();
        assert!(!links.contains(&"tap0".to_owned()), "the TAP was not removed at exit: {links:?}");
        counted
    }

    /// Runs the transfer with kernel and adapter on one TAP: no device between them drops frames.
    fn on_one_tap(self) -> Option<Counted> {
        let host = Namespace::new();
        let place = format!("--host-addr {}", self.family.prefix(1));
        self.run(&host, &host, &place)
    }

    /// Runs [`Self::on_one_tap`] with the connection offloaded from its first byte and almost no retransmission. A
    /// kernel that is not scheduled for 2 ms receives a tail loss probe (RFC 8985 §7). A reader that is not scheduled
    /// fills its socket's backlog, which drops a segment. Segments hold at most `mtu` bytes; each list ends in a push
    /// (CH-SND-5). The counters may miss the last data in flight, [`IN_FLIGHT_BYTES_MAX`].
    fn cleanly(self, mtu: u64) {
        let seen_bytes = self.flue_bytes.saturating_sub(IN_FLIGHT_BYTES_MAX);
        let run = || {
            let counted = self.again().on_one_tap().expect("the connection was offloaded");
            let Counted { segments, pushes, .. } = counted;
            assert!(segments >= seen_bytes / mtu, "{counted:?}");
            assert!((seen_bytes / LIST_BYTES_MAX..=segments).contains(&pushes), "{counted:?}");
            counted
        };
        repeat_until_quiet(run, |counted| {
            let Counted { segments, pushes: _, retransmitted, recoveries, timeouts } = *counted;
            recoveries + timeouts <= segments / 10_000 + 1 && retransmitted <= segments / 1000 + 1
        });
    }

    /// Copy of the transfer for another run.
    fn again(&self) -> Self {
        let Plan { seed, send_bytes, ref pace, end, receive_buffer_bytes } = self.plan;
        let pace = match *pace {
            Pace::Free => Pace::Free,
            Pace::Slow { bytes, pause } => Pace::Slow { bytes, pause },
            Pace::Held(_) => panic!("a held transfer is released once"),
        };
        let plan = Plan { seed, send_bytes, pace, end, receive_buffer_bytes };
        Self { plan, ..*self }
    }
}

/// Transfers 64 MiB per direction through a switch that drops `hundredths` hundredths of a percent in each direction.
fn through_loss(hundredths: u32, mtu: u32, opener: Opener, options: &str) {
    let switch = Switch::new(mtu);
    let kernel = switch.host(&Family::V4.prefix(1));
    switch.lose(hundredths, Direction::Both);
    let transfer = TcpRun { limit: LONG, ..TcpRun::both(opener, options, 64 * MIB) };
    let place = format!("--bridge {} --mtu {mtu}", Switch::BRIDGE);
    let counted =
        transfer.run(&kernel, switch.namespace(), &place).expect("the connection was offloaded");
    assert!(switch.lost_frames() > 0, "the switch dropped no frame");
    let Counted { segments, pushes: _, retransmitted, recoveries, timeouts } = counted;
    assert!(recoveries + timeouts > 0, "no recovery or timeout despite loss: {counted:?}");
    // SACK and RACK retransmit little more than the lost segments.
    assert!(retransmitted < segments / 5, "{counted:?}");
}

flue_test_support::tests! { NEEDS;
    gibibyte_in_each_direction_kernel_opens =>
        TcpRun::both(Opener::Kernel, "--vnet on", GIB).cleanly(1500);
    gibibyte_in_each_direction_flue_opens =>
        TcpRun::both(Opener::Flue, "--vnet on", GIB).cleanly(1500);
    plain_frames_of_1500 => TcpRun::both(Opener::Kernel, "--vnet off", 64 * MIB).cleanly(1500);
    plain_frames_of_9000 =>
        TcpRun::both(Opener::Flue, "--vnet off --mtu 9000", 64 * MIB).cleanly(9000);
    smallest_mtu =>
        TcpRun::both(Opener::Kernel, "--vnet off --mtu 1280", 4 * MIB).cleanly(1280);
    gso_packets_over_ipv6 =>
        TcpRun { family: Family::V6, ..TcpRun::both(Opener::Kernel, "--vnet on", 64 * MIB) }.cleanly(1500);
    plain_frames_over_ipv6 =>
        TcpRun { family: Family::V6, ..TcpRun::both(Opener::Flue, "--vnet off", 64 * MIB) }.cleanly(1500);
    manual_progress =>
        TcpRun::both(Opener::Kernel, "--progress manual", 64 * MIB).cleanly(1500);
    never_offloaded => {
        let counted = TcpRun::both(Opener::Kernel, "--offload never", 16 * MIB).on_one_tap();
        assert!(counted.is_none(), "{counted:?}");
    };
    /// Bytes sent before the offload precede those sent after it, in both directions.
    offloaded_after_first_bytes => {
        let counted = TcpRun::both(Opener::Kernel, "--offload auto", 16 * MIB).on_one_tap();
        assert!(counted.is_some_and(|counted| counted.segments > 0), "{counted:?}");
    };
    /// The kernel's FIN arrives while flue's sends are outstanding (CH-IND-1).
    kernel_half_closes_first => {
        let plan = Plan::send(KERNEL_SEED, 1);
        TcpRun { plan, ..TcpRun::both(Opener::Kernel, "", 64 * MIB) }.cleanly(1500);
    };
    /// flue's FIN leaves the other direction open (CH-DIS-6 covers a second disconnect).
    flue_half_closes_first => {
        let plan = Plan { end: End::AnswerPeer, ..Plan::send(KERNEL_SEED, 64 * MIB) };
        TcpRun { plan, flue_bytes: 1, ..TcpRun::both(Opener::Kernel, "", 0) }.cleanly(1500);
    };
    close_without_data => assert!(TcpRun::both(Opener::Flue, "", 0).on_one_tap().is_some());
    /// The receive window closes and opens many times.
    slow_reader => {
        let pace = Pace::Slow { bytes: 64 * 1024, pause: Duration::from_millis(2) };
        let receive_buffer_bytes = Some(32 * 1024);
        let plan = Plan { pace, receive_buffer_bytes, ..Plan::send(KERNEL_SEED, 0) };
        let transfer = TcpRun { plan, ..TcpRun::both(Opener::Kernel, "", 8 * MIB) };
        assert!(transfer.on_one_tap().is_some());
    };
    one_percent_of_loss_mtu_1500_plain => through_loss(100, 1500, Opener::Kernel, "--vnet off");
    one_percent_of_loss_mtu_9000_plain => through_loss(100, 9000, Opener::Flue, "--vnet off");
    one_percent_of_loss_vnet => through_loss(100, 1500, Opener::Kernel, "--vnet on");
    five_percent_of_loss_mtu_1500_plain => through_loss(500, 1500, Opener::Flue, "--vnet off");
    five_percent_of_loss_mtu_9000_plain => through_loss(500, 9000, Opener::Kernel, "--vnet off");
    five_percent_of_loss_vnet => through_loss(500, 1500, Opener::Flue, "--vnet on");
    /// flue's own impairments, repeatable by seed.
    reordered_duplicated_and_corrupted_frames => {
        let options = "--vnet off --reorder 2 --dup 2 --corrupt 1 --drop 1";
        let counted = TcpRun::both(Opener::Kernel, options, 16 * MIB).on_one_tap();
        assert!(counted.is_some_and(|counted| counted.retransmitted > 0), "{counted:?}");
    };
}

#[test]
fn refused_connection_is_reported_with_status_1() {
    if lacks(NEEDS) {
        return;
    }
    let host = Namespace::new();
    let line = "nc 10.0.0.1 9 --tap tap0 --addr 10.0.0.2/24 --host-addr 10.0.0.1/24";
    let mut flue = Process::start(&host, command(FLUE, line), Output::Lines);
    flue.expect_line("connect to 10.0.0.1:9: connection refused", START);
    flue.expect_exit(1, START);
}

#[test]
fn missing_tun_is_reported_with_status_3() {
    if lacks(&[Need::InitialRoot, Need::Tool("unshare")]) || !Path::new("/dev/net/tun").exists() {
        return;
    }
    let host = Namespace::new();
    let mut hidden = command("unshare", "--mount -- sh -c");
    hidden.arg("mount -t tmpfs none /dev/net && exec \"$0\" nc -l 5000").arg(FLUE);
    let mut flue = Process::start(&host, hidden, Output::Lines);
    flue.expect_line("/dev/net/tun", START);
    flue.expect_exit(3, START);
}
