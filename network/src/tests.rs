//! Tests against the kernel, each in a new network namespace. Each namespace has a thread: unshare(2) moves only the
//! calling thread.

use std::{sync::mpsc, thread};

use netlink_packet_core::DefaultNla;
use rustix::thread::gettid;
use tun_tap::{Iface, Mode as TapMode};

use super::{plumb::KernelSide, *};

const LIMIT: Duration = Duration::from_secs(60);

/// Returns true if this machine and user can run these tests; otherwise prints the reason.
fn runnable(needs_tun: bool) -> bool {
    let failure = if !namespace::has_net_admin() {
        Some("no CAP_NET_ADMIN".to_owned())
    } else if needs_tun {
        environment::check_tun().err().map(|failure| failure.to_string())
    } else {
        None
    };
    match failure {
        Some(why) => println!("skipped: {why}"),
        None => return true,
    }
    false
}

/// Runs `test` on a thread in a new network namespace, if this machine and user can.
fn in_namespace(needs_tun: bool, test: impl FnOnce(Netlink) + Send) {
    if !runnable(needs_tun) {
        return;
    }
    thread::scope(|scope| {
        let thread = scope.spawn(|| {
            namespace::enter_below().unwrap();
            test(Netlink::open().unwrap());
        });
        if let Err(panic) = thread.join() {
            std::panic::resume_unwind(panic);
        }
    });
}

fn ready(netlink: &mut Netlink, tap: &str, txqueuelen: Option<u32>) {
    let side = KernelSide { txqueuelen, ..KernelSide::default() };
    plumb::make_ready(netlink, tap, 1500, &side).unwrap();
}

fn errno(result: Result<(), NetError>) -> Option<Errno> {
    result.err()?.source.raw_os_error().map(Errno::from_raw_os_error)
}

fn open_tap(name: &str) -> Iface {
    let tap = Iface::without_packet_info(name, TapMode::Tap).unwrap();
    tap.set_non_blocking().unwrap();
    tap
}

#[test]
fn links_are_created_and_changed() {
    in_namespace(false, |mut netlink| {
        assert_eq!(errno(netlink.link("br0").map(drop)), Some(Errno::NODEV));
        netlink.create_bridge("br0", 9000).unwrap();
        let bridge = netlink.link("br0").unwrap();
        assert_eq!(bridge.mtu_bytes, Some(9000));
        assert!(!bridge.up);
        assert_eq!(errno(netlink.create_bridge("br0", 9000)), Some(Errno::EXIST));

        let end = |name| VethEnd { name, namespace: None };
        netlink.create_veth(end("one"), end("two"), 1500).unwrap();
        netlink.set_mtu("one", 1400).unwrap();
        netlink.set_bridge("one", Some("br0")).unwrap();
        let one = netlink.link("one").unwrap();
        assert!(one.mac.is_some());
        assert_eq!(one.mtu_bytes, Some(1400));
        assert_eq!(one.master_index, Some(bridge.index));
        assert_eq!(one.port_forwarding, Some(false));
        assert!(!one.forwards());

        netlink.set_up("br0").unwrap();
        netlink.set_up("one").unwrap();
        assert!(!netlink.link("one").unwrap().carrier, "no carrier while the other end is down");
        netlink.set_up("two").unwrap();
        netlink.wait_forwarding("one", LIMIT).unwrap();

        netlink.set_bridge("one", None).unwrap();
        assert_eq!(netlink.link("one").unwrap().master_index, None);
    });
}

#[test]
fn errors_name_operation_and_object() {
    in_namespace(false, |mut netlink| {
        let error = netlink.set_up("absent0").unwrap_err().to_string();
        assert!(error.contains("absent0") && error.contains("No such device"), "{error}");
        netlink.create_bridge("br0", 1500).unwrap();
        let failure = Error::from(netlink.set_bridge("br0", Some("lo")).unwrap_err());
        assert_eq!(
            failure.to_string(),
            "bridge lo: not a bridge: name a bridge or drop the option"
        );
        let failure = Error::from(netlink.set_bridge("br0", Some("br1")).unwrap_err());
        assert_eq!(failure.to_string(), "bridge br1: not found: create it or drop the option");
        let error = netlink.wait_forwarding("br0", Duration::from_millis(1)).unwrap_err();
        assert_eq!(error.source.raw_os_error(), Some(Errno::TIMEDOUT.raw_os_error()));
        let prefix: IpNet = "fd77::1/64".parse().unwrap();
        sysctl::disable_ipv6("br0").unwrap();
        let failure = Error::from(netlink.add_address("br0", prefix).unwrap_err());
        assert!(failure.message.contains("fd77::1/64 to br0"), "{failure}");
    });
}

#[test]
fn addresses_of_both_families() {
    in_namespace(false, |mut netlink| {
        netlink.create_bridge("br0", 1500).unwrap();
        sysctl::enable_ipv6_without_dad("br0").unwrap();
        netlink.set_up("br0").unwrap();
        let v4: IpNet = "10.77.0.1/24".parse().unwrap();
        netlink.add_address("br0", v4).unwrap();
        assert_eq!(errno(netlink.add_address("br0", v4)), Some(Errno::EXIST));
        netlink.add_address("br0", "fd77::1/64".parse().unwrap()).unwrap();
        // Without duplicate address detection an address can be bound to immediately.
        netlink.set_up("lo").unwrap();
        std::net::TcpListener::bind("10.77.0.1:0").unwrap();
        std::net::TcpListener::bind("[fd77::1]:0").unwrap();
        netlink.create_bridge("br1", 1500).unwrap();
        netlink.add_address("br1", "10.78.0.1/24".parse().unwrap()).unwrap();
        let found = netlink.addresses().unwrap().into_iter();
        let found: Vec<_> =
            found.map(|it| format!("{}%{} {}", it.ip, it.name, it.is_loopback)).collect();
        for expected in ["127.0.0.1%lo true", "10.77.0.1%br0 false", "fd77::1%br0 false"] {
            assert!(found.iter().any(|it| it == expected), "{expected}: {found:?}");
        }
        assert!(!found.iter().any(|it| it.contains("br1")), "interface that is down: {found:?}");
    });
}

#[test]
fn tap_is_set_up_for_the_kernel() {
    in_namespace(true, |mut netlink| {
        let addresses = vec!["10.77.0.1/24".parse().unwrap()];
        let side = KernelSide { addresses, ..KernelSide::default() };
        let _tap = open_tap("tap7");
        plumb::make_ready(&mut netlink, "tap7", 1400, &side).unwrap();
        plumb::make_ready(&mut netlink, "tap7", 1400, &side).expect("make_ready is idempotent");
        let view = netlink.link("tap7").unwrap();
        assert!(view.forwards());
        assert_eq!(view.mtu_bytes, Some(1400));
        assert_eq!(view.txqueuelen, Some(plumb::TXQUEUELEN_DEFAULT));
        std::net::TcpListener::bind("10.77.0.1:0").unwrap();
    });
}

// The queue has the requested length. By default a temporary TAP gets TXQUEUELEN_DEFAULT; other links keep their
// length.
#[test]
fn tap_queue_has_the_requested_length() {
    in_namespace(true, |mut netlink| {
        let _own = open_tap("own");
        assert_eq!(netlink.link("own").unwrap().txqueuelen, Some(1000), "the kernel's default");
        ready(&mut netlink, "own", None);
        assert_eq!(netlink.link("own").unwrap().txqueuelen, Some(plumb::TXQUEUELEN_DEFAULT));
        ready(&mut netlink, "own", Some(37));
        assert_eq!(netlink.link("own").unwrap().txqueuelen, Some(37));

        let end = |name| VethEnd { name, namespace: None };
        netlink.create_veth(end("other"), end("peer"), 1500).unwrap();
        netlink.set_up("peer").unwrap();
        ready(&mut netlink, "other", None);
        assert_eq!(
            netlink.link("other").unwrap().txqueuelen,
            Some(1000),
            "the default leaves a link that is no temporary TAP unchanged"
        );
        ready(&mut netlink, "other", Some(37));
        assert_eq!(netlink.link("other").unwrap().txqueuelen, Some(37));
    });
}

#[test]
fn persistent_tap_is_not_temporary() {
    let is_temporary = |kind, value: &[u8]| {
        let attribute = InfoTun::Other(DefaultNla::new(kind, value.to_vec()));
        is_temporary_tun(&[
            LinkInfo::Kind(InfoKind::Tun),
            LinkInfo::Data(InfoData::Tun(vec![attribute])),
        ])
    };
    assert!(is_temporary(IFLA_TUN_PERSIST, &[0]));
    assert!(!is_temporary(IFLA_TUN_PERSIST, &[1]));
    assert!(!is_temporary(IFLA_TUN_PERSIST, &[0, 0]), "an attribute of two bytes is ignored");
    assert!(!is_temporary(IFLA_TUN_PERSIST + 1, &[0]));
    assert!(
        !is_temporary_tun(&[LinkInfo::Kind(InfoKind::Tun)]),
        "the kernel does not report the attribute"
    );
}

/// One side of the path: bridge, TAP and veth end. Returns the TAP once it forwards.
fn side(tap: &str, cable: &str) -> Iface {
    let mut netlink = Netlink::open().unwrap();
    plumb::make_bridge(&mut netlink, "br0", 1500).unwrap();
    let opened = open_tap(tap);
    plumb::make_port(&mut netlink, tap, "br0").unwrap();
    plumb::make_port(&mut netlink, cable, "br0").unwrap();
    netlink.wait_forwarding(tap, LIMIT).unwrap();
    netlink.wait_forwarding(cable, LIMIT).unwrap();
    opened
}

/// Returns the next frame with the given EtherType, within the limit.
fn receive(tap: &Iface, ether_type: [u8; 2]) -> Vec<u8> {
    let deadline = std::time::Instant::now() + LIMIT;
    let mut frame = vec![0; 2000];
    while std::time::Instant::now() < deadline {
        match tap.recv(&mut frame) {
            Ok(length) if frame[12..14] == ether_type => return frame[..length].to_vec(),
            Ok(_) => {}
            Err(error) => {
                assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
                thread::yield_now();
            }
        }
    }
    panic!("no frame within {LIMIT:?}");
}

#[test]
fn frames_pass_between_two_taps_in_two_namespaces() {
    if !runnable(true) {
        return;
    }
    // IEEE 802 local experimental EtherType 1.
    const ETHER_TYPE: [u8; 2] = [0x88, 0xb5];
    let frame = |from: u8, payload: &[u8]| {
        let mut frame = vec![0xff; 6];
        frame.extend([2, 0, 0, 0, 0, from]);
        frame.extend(ETHER_TYPE);
        frame.extend(payload);
        frame.resize(60, 0);
        frame
    };
    let (to_a, from_b) = mpsc::channel();
    let (to_b, from_a) = mpsc::channel();
    thread::scope(|scope| {
        let a = scope.spawn(move || {
            namespace::enter_below().unwrap();
            let b = NamespaceOf { pid: from_b.recv_timeout(LIMIT).unwrap() };
            let mut netlink = Netlink::open().unwrap();
            let here = VethEnd { name: "cable", namespace: None };
            let there = VethEnd { name: "cable", namespace: Some(b) };
            netlink.create_veth(here, there, 1500).unwrap();
            to_b.send(()).unwrap();
            let tap = side("tapa", "cable");
            // Carrier on this veth end does not imply that the other bridge forwards, and a dropped frame is not sent
            // again.
            from_b.recv_timeout(LIMIT).unwrap();
            tap.send(&frame(1, b"there")).unwrap();
            receive(&tap, ETHER_TYPE)
        });
        let b = scope.spawn(move || {
            namespace::enter_below().unwrap();
            to_a.send(gettid().as_raw_nonzero().get() as u32).unwrap();
            from_a.recv_timeout(LIMIT).unwrap();
            let tap = side("tapb", "cable");
            to_a.send(gettid().as_raw_nonzero().get() as u32).unwrap();
            let received = receive(&tap, ETHER_TYPE);
            tap.send(&frame(2, b"and back")).unwrap();
            received
        });
        assert_eq!(b.join().unwrap(), frame(1, b"there"));
        assert_eq!(a.join().unwrap(), frame(2, b"and back"));
    });
}
