//! Tests with the kernel: real TAPs, each in its own network namespace.
//!
//! A namespace belongs to a new thread and is removed with it, including its TAPs. Without root or the TUN node a test
//! prints that it is skipped, and the reason.

use std::{
    boxed::Box,
    format,
    fs::Permissions,
    io::Write,
    net::{TcpListener, UdpSocket},
    os::{fd::AsRawFd, unix::fs::PermissionsExt},
    process::Command,
    string::String,
    thread, vec,
    vec::Vec,
};

use etherparse::{PacketBuilder, SlicedPacket, TransportSlice};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
    net::{RecvFlags, SendFlags},
    thread::{CapabilitySet, UnshareFlags},
};

use super::{
    attach::Queueing,
    testing::{MACS, PORTS, parse, partial_frame, pattern, segment_offload, transmit},
    *,
};

const NOW: Instant = Instant::ZERO;
/// Addresses of the kernel and of the test.
const KERNEL: [u8; 4] = [10, 0, 0, 2];
const OURS: [u8; 4] = [10, 0, 0, 1];
const ARP_BYTES: usize = 42;
const PATIENCE: Timespec = Timespec { tv_sec: 60, tv_nsec: 0 };

/// Runs `test` in its own network namespace.
fn in_namespace(test: impl FnOnce() + Send + 'static) {
    let body = move || {
        // SAFETY: a network namespace changes the network of this new thread only, and no state that memory safety
        // depends on.
        if let Err(error) = unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNET) } {
            std::println!("skipped: network namespace not created: {error}");
        } else if let Err(error) = tun::open_node(attach::NODE.as_ref()) {
            std::println!("skipped: {}: {error}", attach::NODE);
        } else {
            test();
        }
    };
    if let Err(panic) = thread::spawn(body).join() {
        std::panic::resume_unwind(panic);
    }
}

fn options(vnet: VnetMode) -> TapOptions {
    TapOptions { reclaim: ReclaimMode::Off, ..TapOptions::new("flue%d", 1500, vnet) }
}

fn request(name: &str) -> libc::ifreq {
    // SAFETY: all bytes zero is a valid `ifreq`.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (target, byte) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *target = byte as libc::c_char;
    }
    request
}

fn interface_ioctl(code: libc::Ioctl, request: &mut libc::ifreq) {
    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
    // SAFETY: the socket is open, and all requests used here read and write one `ifreq`.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), code, std::ptr::from_mut(request)) };
    assert_eq!(result, 0, "{}", io::Error::last_os_error());
}

/// Sets the addresses of the interface and brings it up.
fn bring_up(name: &str) {
    let mut hardware = request(name);
    // SAFETY: the request is all zero, so this field of the union is initialized.
    let address = unsafe { &mut hardware.ifr_ifru.ifru_hwaddr };
    address.sa_family = libc::ARPHRD_ETHER;
    for (target, byte) in address.sa_data.iter_mut().zip(MACS.1) {
        *target = byte as libc::c_char;
    }
    interface_ioctl(libc::SIOCSIFHWADDR, &mut hardware);

    let mut protocol = request(name);
    // SAFETY: as above.
    let address = unsafe { &mut protocol.ifr_ifru.ifru_addr };
    address.sa_family = libc::AF_INET as libc::sa_family_t;
    for (target, byte) in address.sa_data[2..].iter_mut().zip(KERNEL) {
        *target = byte as libc::c_char;
    }
    interface_ioctl(libc::SIOCSIFADDR, &mut protocol);
    set_up(name);
}

fn set_up(name: &str) {
    let mut flags = request(name);
    flags.ifr_ifru.ifru_flags = libc::IFF_UP as libc::c_short;
    interface_ioctl(libc::SIOCSIFFLAGS, &mut flags);
}

/// Returns the first value that `want` returns for a received frame. Panics after a timeout.
fn expect<T>(link: &mut Box<dyn Link>, mut want: impl FnMut(RxFrame<'_>) -> Option<T>) -> T {
    let mut batch = RxBatch::new(1);
    loop {
        batch.clear();
        if link.receive(NOW, &mut batch).unwrap() == 0 {
            let descriptor = link.descriptor().unwrap();
            let ready = poll(&mut [PollFd::new(&descriptor, PollFlags::IN)], Some(&PATIENCE));
            assert_ne!(ready, Ok(0), "the kernel sent nothing more");
        }
        if let Some(found) = batch.frames().find_map(&mut want) {
            return found;
        }
    }
}

fn arp(operation: u8, sender: ([u8; 6], [u8; 4]), target: ([u8; 6], [u8; 4])) -> Vec<u8> {
    let mut frame = vec![0xff; 6];
    frame.extend_from_slice(&sender.0);
    frame.extend_from_slice(&[8, 6, 0, 1, 8, 0, 6, 4, 0, operation]);
    frame.extend_from_slice(&sender.0);
    frame.extend_from_slice(&sender.1);
    frame.extend_from_slice(&target.0);
    frame.extend_from_slice(&target.1);
    frame
}

fn is_arp(frame: &[u8], operation: u8) -> bool {
    frame.len() >= ARP_BYTES && frame[12..14] == [8, 6] && frame[21] == operation
}

/// Answers the kernel's ARP request, which it sends when it has a packet for the test's address.
fn answer_arp(link: &mut Box<dyn Link>) {
    expect(link, |frame| is_arp(frame.data, 1).then_some(()));
    let reply = arp(2, (MACS.0, OURS), (MACS.1, KERNEL));
    assert_eq!(transmit(link, NOW, &reply, TxOffload::default()), TxOutcome::Sent);
}

/// TCP flags, sequence and acknowledgment number of a frame from the kernel to the test's port.
struct Answer {
    syn: bool,
    rst: bool,
    seq: u32,
    ack: u32,
}

fn answer(frame: RxFrame<'_>) -> Option<Answer> {
    let packet = SlicedPacket::from_ethernet(frame.data).ok()?;
    let Some(TransportSlice::Tcp(tcp)) = packet.transport else { return None };
    (tcp.destination_port() == PORTS.0).then(|| Answer {
        syn: tcp.syn(),
        rst: tcp.rst(),
        seq: tcp.sequence_number(),
        ack: tcp.acknowledgment_number(),
    })
}

/// Builds a TCP frame of the test to the kernel's `port`. A SYN has an MSS of 1460.
fn ours(port: u16, seq: u32, ack: Option<u32>) -> Vec<u8> {
    let ip = PacketBuilder::ethernet2(MACS.0, MACS.1).ipv4(OURS, KERNEL, 64);
    let tcp = ip.tcp(PORTS.0, port, seq, 65_535);
    let tcp = match ack {
        Some(ack) => tcp.ack(ack),
        None => tcp.syn().options_raw(&[2, 4, 5, 180]).unwrap(),
    };
    let mut frame = Vec::new();
    tcp.write(&mut frame, &[]).unwrap();
    frame
}

/// Receives a burst of the kernel's TCP, which sends 50 000 bytes, up to its first missing acknowledgment. Returns the
/// bytes, segment size and checksum status of each frame, and true if it parses.
fn receive_burst(link: &mut Box<dyn Link>) -> Vec<(usize, usize, RxChecksum, bool)> {
    let listener = TcpListener::bind("0.0.0.0:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    transmit(link, NOW, &ours(port, 100, None), TxOffload::default());
    answer_arp(link);
    let syn_ack = expect(link, answer);
    assert!(syn_ack.syn);
    transmit(link, NOW, &ours(port, 101, Some(syn_ack.seq.wrapping_add(1))), TxOffload::default());
    let (mut stream, _) = listener.accept().unwrap();
    stream.set_nonblocking(true).unwrap();
    assert!(stream.write(&pattern(50_000)).unwrap() > 10_000);

    let (mut frames, mut bytes) = (Vec::new(), 0);
    while bytes < 10 * 1460 {
        frames.push(expect(link, |frame| {
            let RxFrame { data, checksum, gso_size, .. } = frame;
            let payload = answer(frame).map(|_| data.len() - 54)?;
            bytes += payload;
            (payload > 0).then(|| (data.len(), gso_size, checksum, parse(data).is_some()))
        }));
    }
    frames
}

#[test]
fn plain_tap_carries_complete_frames() {
    in_namespace(|| {
        let OpenTap { mut link, name, vnet_header, .. } =
            open_tap(&options(VnetMode::Off)).unwrap();
        assert_eq!((name.as_str(), vnet_header), ("flue0", false));
        let LinkCapabilities { mtu, tx_checksum, tso4_max, tso6_max } = link.capabilities();
        assert_eq!((mtu, tx_checksum, tso4_max, tso6_max), (1500, false, 0, 0));
        bring_up(&name);
        let frames = receive_burst(&mut link);
        assert!(frames.iter().all(|&(len, gso_size, checksum, complete)| {
            len <= 1514 && gso_size == 0 && checksum == RxChecksum::Unverified && complete
        }));
        let stats = link.stats();
        assert_eq!((stats.tx_frames, stats.tx_errors, stats.rx_gso_frames), (3, 0, 0));
        assert!(stats.rx_frames >= frames.len() as u64);
    });
}

#[test]
fn vnet_tap_receives_gso_packets() {
    in_namespace(|| {
        let OpenTap { mut link, name, vnet_header, .. } =
            open_tap(&options(VnetMode::Auto)).unwrap();
        assert!(vnet_header);
        let LinkCapabilities { mtu, tx_checksum, tso4_max, tso6_max } = link.capabilities();
        assert_eq!((mtu, tx_checksum, tso4_max, tso6_max), (1500, true, 65_535, 65_535));
        bring_up(&name);
        let frames = receive_burst(&mut link);
        assert!(frames.iter().all(|frame| frame.2 == RxChecksum::Valid));
        let coalesced = frames.iter().filter(|&&(len, size, ..)| len > 1514 && size == 1460);
        assert!(coalesced.count() > 0, "{frames:?}");
        let stats = link.stats();
        assert!(stats.rx_gso_frames > 0);
        assert_eq!((stats.vnet_fallbacks, stats.rx_vnet_errors, stats.rx_length_errors), (0, 0, 0));
    });
}

/// RFC 9293 §3.10.7.1: a segment without ACK to a closed port is answered by RST with ACK = SEG.SEQ + SEG.LEN. So the
/// answer reports how much arrived with a correct checksum.
#[test]
fn vnet_tap_transmits_gso_packets() {
    in_namespace(|| {
        let OpenTap { mut link, name, .. } = open_tap(&options(VnetMode::On)).unwrap();
        bring_up(&name);
        for (seq, len) in [(1000, 100), (100_000, 30_000)] {
            let (mut frame, place) = partial_frame(false, seq, &pattern(len));
            frame[34 + 13] = 0; // neither ACK nor FIN
            let mut offload = TxOffload { checksum: Some(place), segment: None };
            if len > 1448 {
                offload = segment_offload(&frame, place, 1448);
            }
            assert_eq!(transmit(&mut link, NOW, &frame, offload), TxOutcome::Sent);
            if seq == 1000 {
                answer_arp(&mut link);
            }
            // The kernel may segment before processing. Then the answer to the last segment has the end.
            let end = seq + len as u32;
            expect(&mut link, |frame| answer(frame).filter(|a| a.rst && a.ack == end).map(|_| ()));
        }
        let stats = link.stats();
        assert_eq!((stats.tx_frames, stats.tx_gso_frames, stats.tx_errors), (3, 1, 0));
    });
}

/// Number of bound packet sockets in this thread's namespace.
fn bound_packet_sockets() -> usize {
    let table = std::fs::read_to_string("/proc/thread-self/net/packet").unwrap();
    // Columns of the table after its header: sk, RefCnt, Type, Proto, Iface, R.
    table.lines().skip(1).filter(|line| line.split_whitespace().nth(5) == Some("1")).count()
}

/// All but the newest GSO packets are reclaimed, other frames are not. Before the first GSO packet no socket is bound.
#[test]
fn pages_of_transmitted_gso_packets_are_reclaimed() {
    const WHOLE: usize = 20_000;
    in_namespace(|| {
        let reclaiming = TapOptions { reclaim: ReclaimMode::On, ..options(VnetMode::On) };
        let OpenTap { mut link, name, reclaims, .. } = open_tap(&reclaiming).unwrap();
        assert!(reclaims);
        let send = |link: &mut Box<dyn Link>, len: usize| {
            let (frame, place) = partial_frame(false, 1000, &pattern(len));
            // Unsegmented, on a link with a large MTU, it has as many pages.
            let whole = TxOffload { checksum: Some(place), segment: None };
            let cut = segment_offload(&frame, place, 1448);
            transmit(link, NOW, &frame, if len == WHOLE { whole } else { cut });
            link.stats().tx_reclaimed
        };
        // The interface is down: EIO.
        assert_eq!(send(&mut link, 60_000), 0);
        assert_eq!(link.stats().tx_errors, 1);

        bring_up(&name);
        send(&mut link, 15_000);
        assert_eq!(bound_packet_sockets(), 0);
        send(&mut link, 60_000);
        assert_eq!(bound_packet_sockets(), 1);
        let mut sent = 0;
        let mut reclaimed = 0;
        while reclaimed == 0 {
            assert!(sent < 100, "no frame was reclaimed");
            reclaimed = send(&mut link, 60_000);
            sent += 1;
        }
        for _ in 0..10 {
            send(&mut link, 15_000);
        }
        assert_eq!(link.stats().tx_reclaimed, 1, "short frames are not reclaimed");
        for more in 1..=50 {
            let len = if more % 2 == 0 { WHOLE } else { 60_000 };
            assert_eq!(send(&mut link, len), 1 + more, "one per frame");
        }
    });
}

/// A sandboxed node may bind the socket again, so the socket has no other use.
#[test]
fn packet_socket_neither_sends_nor_receives_on_other_interfaces() {
    const LONG_BYTES: usize = 30_000;
    in_namespace(|| {
        let OpenTap { link: _link, name, .. } = open_tap(&options(VnetMode::On)).unwrap();
        bring_up(&name);
        set_up("lo");
        // Both receive long frames, `own` of the TAP only.
        let [own, of_loopback] = [&*name, "lo"]
            .map(|name| packet::observer(name, reclaim::FRAME_BYTES_MIN as u32).unwrap());
        own.bind_to(of_loopback.index).unwrap();
        of_loopback.begin().unwrap();

        let detach = (libc::SOL_SOCKET, libc::SO_DETACH_FILTER);
        let detached = packet::set_option(&own.socket, detach.0, detach.1, &0);
        assert_eq!(detached.unwrap_err().raw_os_error(), Some(libc::EPERM), "the filter is locked");
        let frame = [0; LONG_BYTES];
        let sent = [
            rustix::net::send(&own.socket, &frame, SendFlags::empty()),
            rustix::io::write(&own.socket, &frame),
        ];
        assert_eq!(sent, [Ok(0); 2], "the empty ring is sent");
        let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
        sender.send_to(&frame, "127.0.0.1:9").unwrap();
        let receive = |observer: &packet::Observer| {
            rustix::net::recv(&observer.socket, &mut [0; 2 * LONG_BYTES], RecvFlags::DONTWAIT)
                .map(|it| it.0)
        };
        // Frames on loopback are received before their sender returns.
        let datagram = 14 + 20 + 8 + LONG_BYTES;
        assert_eq!(
            [receive(&of_loopback), receive(&of_loopback)],
            [Ok(datagram), Err(Errno::AGAIN)]
        );
        assert_eq!(receive(&own), Err(Errno::AGAIN));
    });
}

#[test]
fn reclaiming_requires_gso_and_one_queue() {
    in_namespace(|| {
        for vnet in [VnetMode::Off, VnetMode::Checksum] {
            let small = TapOptions { reclaim: ReclaimMode::On, ..options(vnet) };
            assert!(matches!(open_tap(&small), Err(TapError::NoReclaim { .. })), "{vnet:?}");
        }
        let several = TapOptions { reclaim: ReclaimMode::On, ..options(VnetMode::On) };
        assert!(matches!(open_tap_queues(&several, 2), Err(TapError::NoReclaim { .. })));
        let auto = TapOptions { reclaim: ReclaimMode::Auto, ..several };
        assert!(open_tap_queues(&auto, 2).unwrap().iter().all(|queue| !queue.reclaims));
    });
}

/// The kernel completes checksums of transmitted frames, and segments and checksums those it sends.
#[test]
fn checksum_header_disables_gso() {
    in_namespace(|| {
        let OpenTap { mut link, name, .. } = open_tap(&options(VnetMode::Checksum)).unwrap();
        let LinkCapabilities { mtu, tx_checksum, tso4_max, tso6_max } = link.capabilities();
        assert_eq!((mtu, tx_checksum, tso4_max, tso6_max), (1500, true, 0, 0));
        bring_up(&name);
        let frames = receive_burst(&mut link);
        assert!(frames.iter().all(|&(len, gso_size, checksum, complete)| {
            len <= 1514 && gso_size == 0 && checksum == RxChecksum::Unverified && complete
        }));
        let (mut frame, place) = partial_frame(false, 1000, &pattern(100));
        frame[34 + 13] = 0; // neither ACK nor FIN
        let offload = TxOffload { checksum: Some(place), segment: None };
        assert_eq!(transmit(&mut link, NOW, &frame, offload), TxOutcome::Sent);
        expect(&mut link, |frame| answer(frame).filter(|a| a.rst && a.ack == 1100).map(|_| ()));
        assert_eq!(link.stats().rx_gso_frames, 0);
    });
}

/// Verifies that a complete frame with a correct checksum is answered by a RST.
fn is_answered(link: &mut Box<dyn Link>) {
    transmit(link, NOW, &ours(9, 60, None), TxOffload::default());
    answer_arp(link);
    let reset = expect(link, answer);
    assert!(reset.rst);
    assert_eq!(reset.ack, 61);
}

/// With any header mode the kernel thread exists and processes written frames.
#[test]
fn threaded_napi_processes_written_frames() {
    for vnet in [VnetMode::Off, VnetMode::Checksum, VnetMode::On] {
        in_namespace(move || {
            let threaded = TapOptions { napi: NapiMode::Threaded, ..options(vnet) };
            let OpenTap { mut link, name, threaded_napi, .. } = open_tap(&threaded).unwrap();
            assert!(threaded_napi && napi::is_threaded(&name), "{vnet:?}");
            bring_up(&name);
            is_answered(&mut link);
        });
    }
}

/// Threaded NAPI is disabled unless requested.
#[test]
fn threaded_napi_is_off_by_default() {
    in_namespace(|| {
        let OpenTap { name, threaded_napi, link, .. } = open_tap(&options(VnetMode::Off)).unwrap();
        assert!(!threaded_napi && !napi::is_threaded(&name));
        drop(link);
    });
}

/// The kernel verifies the checksum of a complete frame without offload: a wrong one is not answered.
#[test]
fn vnet_tap_does_not_validate_complete_frames() {
    in_namespace(|| {
        let OpenTap { mut link, name, .. } = open_tap(&options(VnetMode::On)).unwrap();
        bring_up(&name);
        let mut bad = ours(9, 50, None);
        *bad.last_mut().unwrap() ^= 1;
        transmit(&mut link, NOW, &bad, TxOffload::default());
        is_answered(&mut link);
    });
}

/// RFC 768: a checksum that the kernel omitted in a datagram is completed on reception.
#[test]
fn datagrams_from_the_kernel_are_complete() {
    in_namespace(|| {
        let OpenTap { mut link, name, .. } = open_tap(&options(VnetMode::On)).unwrap();
        bring_up(&name);
        let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
        socket.set_broadcast(true).unwrap();
        socket.send_to(b"anyone?", "10.255.255.255:9999").unwrap();
        expect(&mut link, |frame| {
            let packet = SlicedPacket::from_ethernet(frame.data).ok()?;
            let etherparse::NetSlice::Ipv4(ip) = packet.net? else { return None };
            let Some(TransportSlice::Udp(udp)) = packet.transport else { return None };
            let ip = ip.header().to_header();
            let expected = udp.to_header().calc_checksum_ipv4(&ip, udp.payload()).unwrap();
            assert_eq!((udp.payload(), udp.checksum()), (&b"anyone?"[..], expected));
            Some(())
        });
    });
}

/// RFC 4861 and RFC 3810: a new interface sends frames without a request.
#[test]
fn ipv6_frames_arrive_after_interface_is_up() {
    in_namespace(|| {
        let ipv6 = std::path::Path::new("/proc/thread-self/net/if_inet6").exists();
        if !ipv6 {
            std::println!("skipped: this kernel has no IPv6");
            return;
        }
        for vnet in [VnetMode::Off, VnetMode::On] {
            let OpenTap { mut link, name, .. } = open_tap(&options(vnet)).unwrap();
            bring_up(&name);
            expect(&mut link, |frame| (frame.data[12..14] == [0x86, 0xdd]).then_some(()));
        }
    });
}

#[test]
fn frames_are_dropped_and_counted_while_interface_is_down() {
    in_namespace(|| {
        for vnet in [VnetMode::Off, VnetMode::On] {
            let mut link = open_tap(&options(vnet)).unwrap().link;
            let frame = ours(9, 1, None);
            assert_eq!(
                transmit(&mut link, NOW, &frame, TxOffload::default()),
                TxOutcome::Dropped,
                "EIO"
            );
            assert_eq!(link.receive(NOW, &mut RxBatch::new(1)).unwrap(), 0, "empty, not removed");
            assert_eq!((link.stats().tx_errors, link.stats().tx_frames), (1, 0));
        }
    });
}

#[test]
fn deleted_interface_is_an_error() {
    in_namespace(|| {
        for vnet in [VnetMode::Off, VnetMode::On] {
            let OpenTap { mut link, name, .. } = open_tap(&options(vnet)).unwrap();
            match Command::new("ip").args(["link", "delete", &name]).status() {
                Ok(status) => assert!(status.success()),
                Err(error) => return std::println!("skipped: no ip command: {error}"),
            }
            link.receive(NOW, &mut RxBatch::new(1)).unwrap_err();
            let frame = ours(9, 1, None);
            let outcome = transmit(&mut link, NOW, &frame, TxOffload::default());
            assert_eq!(outcome, TxOutcome::Dropped);
        }
    });
}

/// A persistent TAP keeps the offloads of its last user. A plain attach must not inherit them.
#[test]
fn plain_attach_clears_persistent_offloads() {
    in_namespace(|| {
        let OpenTap { link, name, .. } = open_tap(&options(VnetMode::On)).unwrap();
        let fd = link.descriptor().unwrap().as_raw_fd();
        // SAFETY: the link keeps the descriptor open; the argument is a number.
        let result = unsafe { libc::ioctl(fd, libc::TUNSETPERSIST, 1 as libc::c_ulong) };
        assert_eq!(result, 0);
        drop(link);
        let again = TapOptions { name: name.clone(), ..options(VnetMode::Off) };
        let mut plain = open_tap(&again).unwrap().link;
        bring_up(&name);
        let frames = receive_burst(&mut plain);
        assert!(frames.iter().all(|&(len, .., complete)| len <= 1514 && complete), "{frames:?}");
        drop(plain);
        let on = open_tap(&TapOptions { vnet: VnetMode::On, ..again }).unwrap();
        assert_eq!((on.name, on.vnet_header), (name, true), "the header is enabled again");
    });
}

/// The null device replaces a TUN driver without support for the header.
#[test]
fn auto_mode_falls_back_without_header() {
    in_namespace(|| {
        let node = "/dev/null".as_ref();
        let OpenTap { link, vnet_header, .. } =
            open::open_tap_at(node, &options(VnetMode::Auto), Queueing::Single).unwrap();
        assert!(!vnet_header);
        assert_eq!((link.stats().vnet_fallbacks, link.capabilities().tso4_max), (1, 0));
        let error = open::open_tap_at(node, &options(VnetMode::On), Queueing::Single).unwrap_err();
        assert!(matches!(error, TapError::NoVnetHeader { step: "TUNGETFEATURES", .. }), "{error}");
    });
}

/// [`TX_PAYLOAD_SLICES_MAX`] slices are sent in one system call; more are refused. Small frames are sent as one
/// piece.
#[test]
fn frame_of_many_slices_is_sent_in_one_call() {
    in_namespace(|| {
        for vnet in [VnetMode::Off, VnetMode::On] {
            let OpenTap { mut link, name, .. } = open_tap(&options(vnet)).unwrap();
            bring_up(&name);
            let datagram = ours(9, 1, None);
            transmit(&mut link, NOW, &datagram, TxOffload::default());
            answer_arp(&mut link);
            expect(&mut link, answer);
            for (slices, bytes, outcome) in [
                (3, 1, TxOutcome::Sent),
                (100, 1, TxOutcome::Sent),
                (3, 400, TxOutcome::Sent),
                (100, 10, TxOutcome::Sent),
                (TX_PAYLOAD_SLICES_MAX, 1, TxOutcome::Sent),
                (TX_PAYLOAD_SLICES_MAX + 1, 1, TxOutcome::Dropped),
            ] {
                // Without ACK, so the answer acknowledges all of it.
                let mut frame = testing::tcp_frame(false, 7, &pattern(slices * bytes));
                let layout = layout::TcpLayout::of(&frame).unwrap();
                frame[layout.tcp + 13] = 0;
                checksum::fill_tcp(&mut frame, &layout);
                let (head, payload) = frame.split_at(layout.payload);
                let payload: Vec<_> = payload.chunks(bytes).map(Piece::from).collect();
                let offload = TxOffload::default();
                let frame =
                    TxFrame { offload, head, payload: &payload, lender: None, comment: None };
                assert_eq!(link.transmit(NOW, &frame), outcome, "{slices}");
                if outcome == TxOutcome::Sent {
                    let end = 7 + (slices * bytes) as u32;
                    expect(&mut link, |frame| answer(frame).filter(|a| a.ack == end).map(|_| ()));
                }
            }
            assert_eq!((link.stats().tx_frames, link.stats().tx_errors), (7, 1));
        }
    });
}

#[test]
fn second_attach_is_busy() {
    in_namespace(|| {
        let first = open_tap(&options(VnetMode::Auto)).unwrap();
        for vnet in [VnetMode::Auto, VnetMode::On, VnetMode::Off] {
            let error = open_tap(&TapOptions { name: first.name.clone(), ..options(vnet) });
            assert!(matches!(error, Err(TapError::Busy { .. })), "{error:?}");
        }
    });
}

#[test]
fn interface_of_another_kind_is_refused() {
    in_namespace(|| {
        let lo = TapOptions { name: "lo".into(), ..options(VnetMode::Auto) };
        let error = open_tap(&lo).unwrap_err();
        assert!(matches!(error, TapError::NotATap { .. }), "{error}");
    });
}

#[test]
fn missing_permissions_are_named() {
    in_namespace(|| {
        let mut sets = rustix::thread::capabilities(None).unwrap();
        sets.effective -= CapabilitySet::NET_ADMIN | CapabilitySet::DAC_OVERRIDE;
        rustix::thread::set_capabilities(None, sets).unwrap();

        for vnet in [VnetMode::Auto, VnetMode::Off] {
            let error = open_tap(&options(vnet)).unwrap_err();
            assert!(matches!(error, TapError::NotPermitted { .. }), "{error}");
            assert!(format!("{error}").contains("CAP_NET_ADMIN"));
        }

        let node = std::env::temp_dir().join(format!("flue-node-{}", std::process::id()));
        std::fs::write(&node, []).unwrap();
        std::fs::set_permissions(&node, Permissions::from_mode(0o040)).unwrap();
        let error = attach::open_node(&node).unwrap_err();
        std::fs::remove_file(&node).unwrap();
        assert!(matches!(error, TapError::NodeDenied { mode: 0o040, .. }), "{error}");
        let text: String = format!("{error}");
        assert!(text.contains("mode 0040, owner 0,"), "{text}");
    });
}
