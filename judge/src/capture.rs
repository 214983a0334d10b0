//! Capture of all connections: frames synthesized around the octets, so that Wireshark decodes MPA, DDP and RDMAP. Only
//! the octets, their order and their times are real.

use std::{
    fs::File,
    io,
    net::{IpAddr, SocketAddr},
    time::SystemTime,
};

use etherparse::{PacketBuilder, TcpHeader};
use offload_engine::link::{Direction, PcapngWriter};

use crate::finding::End;

/// Octets of one segment.
const SEGMENT_OCTETS_MAX: usize = 60_000;
const WINDOW: u16 = u16::MAX;
const HOPS: u8 = 64;
/// Ethernet addresses of judge and peer: sockets have none.
const JUDGE: [u8; 6] = [2, 0, 0, 0, 0, 1];
const PEER: [u8; 6] = [2, 0, 0, 0, 0, 2];

/// Event of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Way {
    Sent,
    Received,
    Ended(End),
}

/// Sequence numbers of a connection.
#[derive(Debug)]
pub(crate) struct Flow {
    local: SocketAddr,
    remote: SocketAddr,
    /// Next sequence numbers of judge and peer; `None` before the handshake is written.
    next: Option<(u32, u32)>,
}

impl Flow {
    pub(crate) const fn new(local: SocketAddr, remote: SocketAddr) -> Self {
        Self { local, remote, next: None }
    }
}

/// Capture file.
#[derive(Debug)]
pub(crate) struct Capture {
    writer: PcapngWriter<File>,
    error: Option<io::Error>,
}

impl Capture {
    pub(crate) fn new(file: File) -> io::Result<Self> {
        let writer = PcapngWriter::new(file, "judge")?;
        Ok(Self { writer, error: None })
    }

    /// Writes buffered frames.
    ///
    /// # Errors
    /// The first write error of the capture.
    pub(crate) fn finish(&mut self) -> io::Result<()> {
        self.error.take().map_or(Ok(()), Err)?;
        self.writer.flush()
    }

    pub(crate) fn record(&mut self, flow: &mut Flow, way: Way, octets: &[u8]) {
        if self.error.is_none() {
            self.error = self.write(flow, way, octets).err();
        }
    }

    fn write(&mut self, flow: &mut Flow, way: Way, octets: &[u8]) -> io::Result<()> {
        if flow.next.is_none() {
            // The judge opens the connection in the capture, also if the peer has opened it.
            flow.next = Some((0, 0));
            self.segment(flow, true, &[], |header| header.syn = true)?;
            self.segment(flow, false, &[], |header| (header.syn, header.ack) = (true, true))?;
        }
        let push = |header: &mut TcpHeader| {
            header.ack = true;
            header.psh = true;
        };
        match way {
            Way::Sent | Way::Received => {
                for part in octets.chunks(SEGMENT_OCTETS_MAX) {
                    self.segment(flow, way == Way::Sent, part, push)?;
                }
                Ok(())
            }
            Way::Ended(end) => self.segment(flow, false, &[], |header| {
                header.ack = true;
                match end {
                    End::Fin => header.fin = true,
                    End::Reset => header.rst = true,
                }
            }),
        }
    }

    fn segment(
        &mut self,
        flow: &mut Flow,
        is_sent: bool,
        octets: &[u8],
        change: impl FnOnce(&mut TcpHeader),
    ) -> io::Result<()> {
        let (judge, peer) = flow.next.get_or_insert_default();
        let (from, to, macs, next, acknowledged) = match is_sent {
            true => (flow.local, flow.remote, (JUDGE, PEER), judge, *peer),
            false => (flow.remote, flow.local, (PEER, JUDGE), peer, *judge),
        };
        let mut header = TcpHeader::new(from.port(), to.port(), *next, WINDOW);
        change(&mut header);
        if header.ack {
            header.acknowledgment_number = acknowledged;
        }
        let length = octets.len() as u32 + u32::from(header.syn) + u32::from(header.fin);
        *next = next.wrapping_add(length);
        let ethernet = PacketBuilder::ethernet2(macs.0, macs.1);
        let mut frame = Vec::new();
        let written = match (from.ip(), to.ip()) {
            (IpAddr::V4(from), IpAddr::V4(to)) => ethernet
                .ipv4(from.octets(), to.octets(), HOPS)
                .tcp_header(header)
                .write(&mut frame, octets),
            (from, to) => {
                let octets_of = |address: IpAddr| match address {
                    IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
                    IpAddr::V6(address) => address.octets(),
                };
                ethernet
                    .ipv6(octets_of(from), octets_of(to), HOPS)
                    .tcp_header(header)
                    .write(&mut frame, octets)
            }
        };
        written.map_err(io::Error::other)?;
        let unix = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let nanos = u64::try_from(unix.as_nanos()).unwrap_or(u64::MAX);
        let direction = if is_sent { Direction::Outbound } else { Direction::Inbound };
        self.writer.frame(nanos, direction, None, &frame)
    }
}
