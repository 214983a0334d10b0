//! The host against the kernel's TCP, over a TAP. Needs a network namespace of its own:
//!
//! ```text
//! unshare -n cargo test -p host-stack --test kernel -- --ignored
//! ```
//!
//! The test plays the engine: it passes frames between the TAP and the host, and refuses every
//! initiate, so each connection leaves smoltcp in mid-transfer and enters it again.
#![cfg(feature = "std")]

use std::{
    collections::VecDeque,
    io::{Read, Write},
    net::{IpAddr, SocketAddr, TcpStream},
    process::Command,
    sync::Arc,
    thread,
    time::{Duration, Instant as Clock},
};

use host_stack::{
    host::{Host, HostConfig},
    socket::{ListenerId, Notice, OffloadPolicy, Request, SocketPort},
};
use offload_engine::{
    chimney::client::{ClientTag, OffloadHandle},
    engine::{
        doorbell::Doorbell,
        port::{FromHost, HostPort, ToHost},
    },
    link::LinkCapabilities,
    nbl::{NblChain, NetBufferList},
    status::NdisStatus,
    time::Instant,
};

/// Bytes each connection echoes: enough to be handed over in the middle.
const ECHO_BYTES: usize = 600_000;
const CONNECTIONS: usize = 12;

fn ip(arguments: &str) {
    let status = Command::new("ip").args(arguments.split(' ')).status().unwrap();
    assert!(status.success(), "ip {arguments}");
}

/// A kernel counter of this namespace.
fn counter(name: &str) -> u64 {
    let text = std::fs::read_to_string("/proc/net/netstat").unwrap();
    let lines = text.lines().collect::<Vec<_>>();
    let pair = lines.chunks(2).find(|pair| pair[0].starts_with("TcpExt:")).unwrap();
    let position = pair[0].split(' ').position(|field| field == name).unwrap();
    pair[1].split(' ').nth(position).unwrap().parse().unwrap()
}

fn talk(to: SocketAddr, salt: usize) {
    let data = (0..ECHO_BYTES).map(|at| ((at * 31 + salt) >> 5) as u8).collect::<Vec<_>>();
    let mut stream = TcpStream::connect(to).unwrap();
    let mut writer = stream.try_clone().unwrap();
    let sent = data.clone();
    let writing = thread::spawn(move || {
        writer.write_all(&sent).unwrap();
        writer.shutdown(std::net::Shutdown::Write).unwrap();
    });
    let mut echo = Vec::new();
    stream.read_to_end(&mut echo).unwrap();
    writing.join().unwrap();
    assert!(echo == data, "{} of {} bytes came back", echo.len(), data.len());
}

/// Frames, and the answer to initiates: no.
struct Engine {
    tap: tun_tap::Iface,
    from_host: crossbeam_channel::Receiver<FromHost>,
    to_host: crossbeam_channel::Sender<ToHost>,
    refused: usize,
    /// An initiate that waits for its answer, so that frames come in between.
    pending: VecDeque<(Clock, ToHost)>,
}

impl Engine {
    fn pump(&mut self) -> bool {
        let mut work = false;
        let mut frame = [0; 2048];
        for _ in 0..64 {
            let Ok(length) = self.tap.recv(&mut frame) else { break };
            let data = frame[..length].to_vec();
            self.to_host.send(ToHost::Frame { data, checksum_valid: false }).unwrap();
            work = true;
        }
        for message in self.from_host.try_iter() {
            work = true;
            match message {
                FromHost::Frame(frame) => drop(self.tap.send(&frame)),
                FromHost::Initiate(mut tree) => {
                    // CH-TREE-6: no neighbor, hence nothing behind it.
                    for neighbor in &mut tree {
                        neighbor.status = NdisStatus::OFFLOAD_NEIGHBOR_ENTRIES;
                        for path in &mut neighbor.dependents {
                            path.status = NdisStatus::FAILURE;
                            for tcp in &mut path.dependents {
                                tcp.status = NdisStatus::FAILURE;
                                self.refused += 1;
                            }
                        }
                    }
                    let answer = ToHost::InitiateComplete(tree);
                    self.pending.push_back((Clock::now() + Duration::from_millis(2), answer));
                }
                other => panic!("not asked for: {other:?}"),
            }
        }
        while self.pending.front().is_some_and(|(due, _)| *due <= Clock::now()) {
            let (_, answer) = self.pending.pop_front().unwrap();
            self.to_host.send(answer).unwrap();
            work = true;
        }
        work
    }
}

/// Echoes what comes.
fn serve(port: &SocketPort, late: &mut Vec<(OffloadHandle, NblChain, bool)>) -> bool {
    let mut work = false;
    while let Some(notice) = port.notice() {
        work = true;
        match notice {
            // What is consumed is what has been echoed: so both credits hold.
            Notice::Data { handle, data } => {
                port.request(Request::Send { handle, list: NetBufferList::from_mdl(1, data) });
            }
            Notice::Sent { handle, chain } => {
                let count = chain.iter().map(|list| list.bytes_transferred).sum();
                port.request(Request::Consumed { handle, count });
            }
            Notice::PeerClosed { handle } => port.request(Request::Shutdown { handle }),
            Notice::Returned { handle, chain, shutdown } => late.push((handle, chain, shutdown)),
            Notice::Established { handle, .. } => {
                // Back in the host: what it had returned is sent again, in order.
                for (of, chain, shutdown) in std::mem::take(late) {
                    assert_eq!(of, handle, "one connection at a time");
                    for list in chain {
                        port.request(Request::Send { handle, list });
                    }
                    if shutdown {
                        port.request(Request::Shutdown { handle });
                    }
                }
            }
            Notice::Closed { error, .. } => assert_eq!(error, None),
            Notice::Listening { .. } | Notice::Offloading { .. } => {}
            other => panic!("{other:?}"),
        }
    }
    work
}

#[test]
#[ignore = "needs root and a network namespace of its own"]
fn connections_survive_leaving_and_entering_smoltcp() {
    let tap = tun_tap::Iface::without_packet_info("host0", tun_tap::Mode::Tap).unwrap();
    tap.set_non_blocking().unwrap();
    ip("addr add 10.99.0.1/24 dev host0");
    ip("-6 addr add fd99::1/64 dev host0 nodad");
    ip("link set host0 up");
    let (to_engine, from_host) = crossbeam_channel::unbounded();
    let (to_host, from_engine) = crossbeam_channel::unbounded();
    let host_doorbell = Arc::new(Doorbell::new().unwrap());
    let (port, clients) = SocketPort::pair(host_doorbell.clone());
    let engine = HostPort {
        to_engine,
        from_engine,
        engine_doorbell: Arc::new(Doorbell::new().unwrap()),
        host_doorbell,
        capabilities: LinkCapabilities { mtu: 1500, tx_checksum: false, tso4_max: 0, tso6_max: 0 },
    };
    let v4 = IpAddr::from([10, 99, 0, 2]);
    let v6 = "fd99::2".parse::<IpAddr>().unwrap();
    let config = HostConfig {
        addresses: vec![(v4, 24), (v6, 64)],
        policy: OffloadPolicy::Auto,
        seed: 1,
        ..HostConfig::default()
    };
    let mut host = Host::new(config, engine, clients).unwrap();
    port.request(Request::Listen {
        listener: ListenerId(port.allocate()),
        client: ClientTag(1),
        local: "0.0.0.0:5000".parse().unwrap(),
        backlog: 8,
        must_offload: false,
    });
    let mut engine = Engine { tap, from_host, to_host, refused: 0, pending: VecDeque::new() };
    let (paws, reneging) = (counter("PAWSEstab"), counter("TCPSACKReneging"));
    let talking = thread::spawn(move || {
        for number in 0..CONNECTIONS {
            talk(SocketAddr::new(if number % 2 == 0 { v4 } else { v6 }, 5000), number);
        }
    });
    let start = Clock::now();
    let mut late = Vec::new();
    while !talking.is_finished() {
        assert!(start.elapsed() < Duration::from_secs(60), "{:?}", host.stats());
        let now = Instant::from_nanos(start.elapsed().as_nanos() as u64);
        if !(engine.pump() | host.poll(now) | serve(&port, &mut late)) {
            thread::yield_now();
        }
    }
    talking.join().unwrap();
    let stats = host.stats();
    assert_eq!(engine.refused, CONNECTIONS);
    assert_eq!(stats.imports, CONNECTIONS as u64);
    assert_eq!((stats.handoffs_lost, stats.exports_refused), (0, 0));
    assert_eq!(counter("PAWSEstab"), paws, "timestamps never step back");
    assert_eq!(counter("TCPSACKReneging"), reneging, "RFC 2018 s8");
}
