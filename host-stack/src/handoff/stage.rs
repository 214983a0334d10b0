//! Private interface on which a socket is exported or imported.
//!
//! The stage acts as the peer: [`Stage::inject`] injects one segment and returns the socket's direct answers,
//! [`Stage::poll`] returns segments that the socket sends when polled. Medium IP needs no neighbor discovery; with an
//! MTU of 65 535 only the connection's own MSS limits segments.

use alloc::{vec, vec::Vec};
use core::net::SocketAddr;

use offload_engine::{frame::FlowKey, tcp::SeqNum};
use smoltcp::{
    iface::{Config, Interface, SocketHandle, SocketSet},
    phy::{Checksum, ChecksumCapabilities, Medium},
    socket::tcp::Socket,
    time::Instant,
    wire::{
        HardwareAddress, IpAddress, IpCidr, IpProtocol, IpRepr, Ipv4Packet, Ipv6Packet, TcpControl,
        TcpPacket, TcpRepr, TcpSeqNumber,
    },
};

use crate::device::QueueDevice;

/// Largest IP packet on the stage, in bytes.
const STAGE_MTU: usize = 65_535;

/// Segment sent by the socket.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Sent {
    pub(super) control: TcpControl,
    pub(super) seq: SeqNum,
    pub(super) ack: Option<SeqNum>,
    pub(super) window_scale: Option<u8>,
    pub(super) sack: Option<(SeqNum, SeqNum)>,
    pub(super) payload: Vec<u8>,
}

pub(super) struct Stage {
    interface: Interface,
    device: QueueDevice,
    sockets: SocketSet<'static>,
    tuple: FlowKey,
}

impl Stage {
    /// Creates an empty stage; `seed` seeds its interface's random numbers.
    pub(super) fn new(now: Instant, tuple: FlowKey, seed: u64) -> Self {
        let mut device = QueueDevice::new(Medium::Ip, STAGE_MTU);
        let mut config = Config::new(HardwareAddress::Ip);
        config.random_seed = seed;
        let mut interface = Interface::new(config, &mut device, now);
        let local = IpAddress::from(tuple.local().ip());
        // A prefix of 0 makes every peer on-link. The first address always fits.
        interface.update_ip_addrs(|addresses| {
            let _ = addresses.push(IpCidr::new(local, 0));
        });
        Self { interface, device, sockets: SocketSet::new(vec![]), tuple }
    }

    pub(super) fn add_socket(&mut self, socket: Socket<'static>) -> SocketHandle {
        self.sockets.add(socket)
    }

    pub(super) fn into_socket(mut self, handle: SocketHandle) -> Socket<'static> {
        take(&mut self.sockets, handle)
    }

    pub(super) fn socket(&mut self, handle: SocketHandle) -> &mut Socket<'static> {
        self.sockets.get_mut(handle)
    }

    /// Opens the connection on the socket; the ISN depends on this stage's seed.
    pub(super) fn connect(&mut self, handle: SocketHandle) -> bool {
        let socket = self.sockets.get_mut::<Socket<'_>>(handle);
        socket.connect(self.interface.context(), self.tuple.remote(), self.tuple.local()).is_ok()
    }

    /// Peer segment without payload or options, for [`Stage::inject`].
    pub(super) fn bare(&self, seq: SeqNum, ack: SeqNum, window: u16) -> TcpRepr<'static> {
        TcpRepr {
            src_port: self.tuple.remote().port(),
            dst_port: self.tuple.local().port(),
            control: TcpControl::None,
            seq_number: TcpSeqNumber(seq.0.cast_signed()),
            ack_number: Some(TcpSeqNumber(ack.0.cast_signed())),
            window_len: window,
            window_scale: None,
            max_seg_size: None,
            sack_permitted: false,
            sack_ranges: [None; 3],
            timestamp: None,
            payload: &[],
        }
    }

    /// Injects one segment of the peer. Returns the direct answers; [`Stage::poll`] returns segments that require a
    /// poll.
    pub(super) fn inject(&mut self, now: Instant, segment: &TcpRepr<'_>) -> Vec<Sent> {
        let (source, destination) = (address(self.tuple.remote()), address(self.tuple.local()));
        let ip = IpRepr::new(source, destination, IpProtocol::Tcp, segment.buffer_len(), 64);
        let mut packet = vec![0; ip.buffer_len()];
        ip.emit(&mut packet, &ChecksumCapabilities::default());
        let mut tcp = TcpPacket::new_unchecked(&mut packet[ip.header_len()..]);
        segment.emit(&mut tcp, &source, &destination, &ChecksumCapabilities::ignored());
        self.inject_packet(now, packet)
    }

    /// As [`Stage::inject`], for a whole IP packet.
    pub(super) fn inject_packet(&mut self, now: Instant, packet: Vec<u8>) -> Vec<Sent> {
        self.device.received.push_back(packet);
        let _ = self.interface.poll_ingress_single(now, &mut self.device, &mut self.sockets);
        self.answers()
    }

    /// Segments that the socket sends when polled at `now`.
    pub(super) fn poll(&mut self, now: Instant) -> Vec<Sent> {
        let _ = self.interface.poll(now, &mut self.device, &mut self.sockets);
        self.answers()
    }

    fn answers(&mut self) -> Vec<Sent> {
        let (source, destination) = (address(self.tuple.local()), address(self.tuple.remote()));
        self.device.sent.drain(..).filter_map(|p| parse(&p, &source, &destination)).collect()
    }
}

/// Removes a TCP socket from its set without sending anything to its peer.
pub(crate) fn take(sockets: &mut SocketSet<'static>, handle: SocketHandle) -> Socket<'static> {
    // Other socket types exist only if another crate enables more of smoltcp's features.
    #[allow(irrefutable_let_patterns)]
    let smoltcp::socket::Socket::Tcp(socket) = sockets.remove(handle) else {
        unreachable!("a set holds TCP sockets only")
    };
    socket
}

fn address(socket: SocketAddr) -> IpAddress {
    socket.ip().into()
}

fn parse(packet: &[u8], source: &IpAddress, destination: &IpAddress) -> Option<Sent> {
    let segment = match source {
        IpAddress::Ipv4(_) => Ipv4Packet::new_checked(packet).ok()?.payload(),
        IpAddress::Ipv6(_) => Ipv6Packet::new_checked(packet).ok()?.payload(),
    };
    let tcp = TcpPacket::new_checked(segment).ok()?;
    let mut checksums = ChecksumCapabilities::default();
    checksums.tcp = Checksum::None;
    let segment = TcpRepr::parse(&tcp, source, destination, &checksums).ok()?;
    Some(Sent {
        control: segment.control,
        seq: sequence(segment.seq_number),
        ack: segment.ack_number.map(sequence),
        window_scale: segment.window_scale,
        sack: segment.sack_ranges[0].map(|(left, right)| (SeqNum(left), SeqNum(right))),
        payload: segment.payload.to_vec(),
    })
}

const fn sequence(number: TcpSeqNumber) -> SeqNum {
    SeqNum(number.0.cast_unsigned())
}
