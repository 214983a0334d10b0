//! Frames of pcap and pcapng files, and their TCP segments.
//!
//! This reader is part of the test bench, and `etherparse` parses the segments. Two programs without common
//! code check flue's captures: this one and tshark. Supported are the captures of flue and
//! tcpdump: Ethernet; both byte orders; section header, interface description and enhanced packet blocks.
//! Anything else is rejected with a reason.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use etherparse::{NetSlice, SlicedPacket, TransportSlice};

/// Captured frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Time since 1970, nanoseconds.
    pub time_ns: u64,
    /// Index of the interface description in its section; 0 in a pcap.
    pub interface: u32,
    /// Length on the wire, bytes; greater than the length of `data` if the capture truncated it.
    pub wire_bytes: u32,
    /// Bytes from the Ethernet header on.
    pub data: Vec<u8>,
    /// Comments of the packet (pcapng only).
    pub comments: Vec<String>,
}

/// Reads the frames of a pcap or pcapng file.
///
/// # Errors
///
/// The unsupported or malformed part of the file, as text.
pub fn read(path: &Path) -> Result<Vec<Frame>, String> {
    let file = std::fs::read(path).map_err(|error| format!("{}: {error}", path.display()))?;
    parse(&file).map_err(|why| format!("{}: {why}", path.display()))
}

/// Parses the frames in the bytes of a pcap or pcapng file.
///
/// # Errors
///
/// The unsupported or malformed part, as text.
pub fn parse(file: &[u8]) -> Result<Vec<Frame>, String> {
    let magic = *file.first_chunk().ok_or("shorter than a magic number")?;
    match magic {
        [0x0a, 0x0d, 0x0d, 0x0a] => parse_pcapng(file),
        [0xd4, 0xc3, 0xb2, 0xa1] => parse_pcap(file, Order::Little, 1000),
        [0xa1, 0xb2, 0xc3, 0xd4] => parse_pcap(file, Order::Big, 1000),
        [0x4d, 0x3c, 0xb2, 0xa1] => parse_pcap(file, Order::Little, 1),
        [0xa1, 0xb2, 0x3c, 0x4d] => parse_pcap(file, Order::Big, 1),
        other => Err(format!("{other:02x?} begins neither a pcap nor a pcapng")),
    }
}

#[derive(Clone, Copy, Debug)]
enum Order {
    Little,
    Big,
}

/// Reader of numbers in one byte order.
struct Cursor<'a> {
    rest: &'a [u8],
    order: Order,
}

impl<'a> Cursor<'a> {
    fn take(&mut self, bytes: usize) -> Result<&'a [u8], String> {
        let (first, rest) = self.rest.split_at_checked(bytes).ok_or("a record is cut short")?;
        self.rest = rest;
        Ok(first)
    }

    fn u32(&mut self) -> Result<u32, String> {
        let bytes = self.take(4)?.try_into().expect("the slice has four bytes");
        Ok(match self.order {
            Order::Little => u32::from_le_bytes(bytes),
            Order::Big => u32::from_be_bytes(bytes),
        })
    }

    fn u16(&mut self) -> Result<u16, String> {
        let bytes = self.take(2)?.try_into().expect("the slice has two bytes");
        Ok(match self.order {
            Order::Little => u16::from_le_bytes(bytes),
            Order::Big => u16::from_be_bytes(bytes),
        })
    }

    /// Takes `bytes` bytes and the padding to a multiple of four.
    fn padded(&mut self, bytes: usize) -> Result<&'a [u8], String> {
        let taken = self.take(bytes)?;
        self.take(bytes.next_multiple_of(4) - bytes)?;
        Ok(taken)
    }
}

const ETHERNET: u32 = 1;

fn parse_pcap(file: &[u8], order: Order, ns_per_tick: u64) -> Result<Vec<Frame>, String> {
    let mut cursor = Cursor { rest: file, order };
    cursor.take(20)?;
    let link_type = cursor.u32()?;
    if link_type != ETHERNET {
        return Err(format!("link type {link_type} is not Ethernet"));
    }
    let mut frames = Vec::new();
    while !cursor.rest.is_empty() {
        let (seconds, ticks) = (cursor.u32()?, cursor.u32()?);
        let (captured, wire_bytes) = (cursor.u32()?, cursor.u32()?);
        let time_ns = u64::from(seconds) * 1_000_000_000 + u64::from(ticks) * ns_per_tick;
        let data = cursor.take(captured as usize)?.to_vec();
        frames.push(Frame { time_ns, interface: 0, wire_bytes, data, comments: Vec::new() });
    }
    Ok(frames)
}

/// Block types of draft-ietf-opsawg-pcapng, section 4.
const SECTION_HEADER: u32 = 0x0a0d_0d0a;
const INTERFACE_DESCRIPTION: u32 = 1;
const ENHANCED_PACKET: u32 = 6;

fn parse_pcapng(file: &[u8]) -> Result<Vec<Frame>, String> {
    let mut cursor = Cursor { rest: file, order: Order::Little };
    let mut ticks_per_second: Vec<u64> = Vec::new();
    let mut frames = Vec::new();
    while !cursor.rest.is_empty() {
        // A section states its byte order after its type and length, so it is read in advance.
        if cursor.rest.starts_with(&SECTION_HEADER.to_be_bytes()) {
            cursor.order = match cursor.rest.get(8..12) {
                Some([0x4d, 0x3c, 0x2b, 0x1a]) => Order::Little,
                Some([0x1a, 0x2b, 0x3c, 0x4d]) => Order::Big,
                _ => return Err("a section without byte-order magic".into()),
            };
            ticks_per_second.clear();
        }
        let (kind, length) = (cursor.u32()?, cursor.u32()?);
        let body = length.checked_sub(12).ok_or_else(|| format!("a block of {length} bytes"))?;
        let mut block = Cursor { rest: cursor.take(body as usize)?, order: cursor.order };
        if cursor.u32()? != length {
            return Err(format!("a block of type {kind} ends with another length than {length}"));
        }
        match kind {
            INTERFACE_DESCRIPTION => ticks_per_second.push(interface(&mut block)?),
            ENHANCED_PACKET => frames.push(packet(&mut block, &ticks_per_second)?),
            _ => {}
        }
    }
    Ok(frames)
}

/// Clock of the interface in ticks per second.
fn interface(block: &mut Cursor<'_>) -> Result<u64, String> {
    let link_type = u32::from(block.u16()?);
    if link_type != ETHERNET {
        return Err(format!("link type {link_type} is not Ethernet"));
    }
    block.take(2 + 4)?;
    const IF_TSRESOL: u16 = 9;
    let resolution = options(block)?.into_iter().find(|(code, _)| *code == IF_TSRESOL);
    match resolution.map(|(_, value)| value) {
        None => Ok(1_000_000),
        Some(&[power @ 0..=9]) => Ok(10u64.pow(u32::from(power))),
        Some(other) => Err(format!("time resolution {other:02x?} is finer than a nanosecond")),
    }
}

fn packet(block: &mut Cursor<'_>, ticks_per_second: &[u64]) -> Result<Frame, String> {
    let interface = block.u32()?;
    let ticks = u64::from(block.u32()?) << 32 | u64::from(block.u32()?);
    let (captured, wire_bytes) = (block.u32()?, block.u32()?);
    let data = block.padded(captured as usize)?.to_vec();
    let rate = ticks_per_second.get(interface as usize).ok_or("a packet of no interface")?;
    let time_ns = u128::from(ticks) * 1_000_000_000 / u128::from(*rate);
    let time_ns = u64::try_from(time_ns).map_err(|_| "a time after the year 2554")?;
    const OPT_COMMENT: u16 = 1;
    let comments = options(block)?.into_iter().filter(|(code, _)| *code == OPT_COMMENT);
    let comments = comments.map(|(_, text)| String::from_utf8_lossy(text).into_owned()).collect();
    Ok(Frame { time_ns, interface, wire_bytes, data, comments })
}

fn options<'a>(block: &mut Cursor<'a>) -> Result<Vec<(u16, &'a [u8])>, String> {
    let mut options = Vec::new();
    while !block.rest.is_empty() {
        let (code, length) = (block.u16()?, block.u16()?);
        const END_OF_OPTIONS: u16 = 0;
        if code == END_OF_OPTIONS {
            break;
        }
        options.push((code, block.padded(usize::from(length))?));
    }
    Ok(options)
}

/// The six control bits of RFC 9293, as in the header's octet.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Flags(u8);

impl Flags {
    /// FIN: no more data from the sender.
    pub const FIN: Self = Self(0x01);
    /// SYN: synchronize sequence numbers.
    pub const SYN: Self = Self(0x02);
    /// RST: reset the connection.
    pub const RST: Self = Self(0x04);
    /// PSH: push.
    pub const PSH: Self = Self(0x08);
    /// ACK: the acknowledgment field is significant.
    pub const ACK: Self = Self(0x10);
    /// URG: the urgent pointer is significant.
    pub const URG: Self = Self(0x20);

    /// Flags of the header's octet, without the two ECN bits.
    pub const fn from_octet(octet: u8) -> Self {
        Self(octet & 0x3f)
    }

    /// True if all of `flags` are set.
    pub const fn has(self, flags: Self) -> bool {
        self.0 & flags.0 == flags.0
    }
}

impl std::ops::BitOr for Flags {
    type Output = Self;
    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl fmt::Debug for Flags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, letter) in "FSRPAU".chars().enumerate() {
            if self.0 & 1 << index != 0 {
                write!(f, "{letter}")?;
            }
        }
        Ok(())
    }
}

/// TCP segment as on the wire.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Number of its frame in the file, from 1 as in Wireshark.
    pub frame: usize,
    /// Source.
    pub from: SocketAddr,
    /// Destination.
    pub to: SocketAddr,
    /// SEG.SEQ of the header.
    pub seq: u32,
    /// SEG.ACK of the header.
    pub ack: u32,
    /// Payload, bytes: SEG.LEN without SYN and FIN.
    pub payload_bytes: u32,
    /// Control bits.
    pub flags: Flags,
    /// SEG.WND of the header, unscaled.
    pub window: u16,
}

/// TCP segments among `frames`, in their order. Frames without a whole TCP header are ignored.
pub fn segments(frames: &[Frame]) -> Vec<Segment> {
    let numbered = frames.iter().enumerate().map(|(index, frame)| (index + 1, frame));
    numbered.filter_map(|(number, frame)| segment(number, &frame.data)).collect()
}

fn segment(frame: usize, data: &[u8]) -> Option<Segment> {
    let packet = SlicedPacket::from_ethernet(data).ok()?;
    let (source, destination): (IpAddr, IpAddr) = match packet.net? {
        NetSlice::Ipv4(ip) => {
            (ip.header().source_addr().into(), ip.header().destination_addr().into())
        }
        NetSlice::Ipv6(ip) => {
            (ip.header().source_addr().into(), ip.header().destination_addr().into())
        }
        NetSlice::Arp(_) => return None,
    };
    let TransportSlice::Tcp(tcp) = packet.transport? else { return None };
    let header = tcp.to_header();
    let flags = [
        (header.fin, Flags::FIN),
        (header.syn, Flags::SYN),
        (header.rst, Flags::RST),
        (header.psh, Flags::PSH),
        (header.ack, Flags::ACK),
        (header.urg, Flags::URG),
    ];
    let set = flags.into_iter().filter(|(set, _)| *set).map(|(_, flag)| flag);
    Some(Segment {
        frame,
        from: (source, header.source_port).into(),
        to: (destination, header.destination_port).into(),
        seq: header.sequence_number,
        ack: header.acknowledgment_number,
        payload_bytes: u32::try_from(tcp.payload().len()).ok()?,
        flags: set.fold(Flags(0), |all, flag| all | flag),
        window: header.window_size,
    })
}

/// One direction of one connection: segment boundaries and pushes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Direction {
    /// Segments with payload in the order of the capture: offset of the first byte, length in bytes, true if PSH
    /// is set. The byte after the SYN has offset 0.
    pub segments: Vec<(u64, u32, bool)>,
}

impl Direction {
    /// Direction of the connection between `from` and `to`; its SYN must be in the capture. Offsets are
    /// unwrapped, so streams of more than 4 GiB are supported.
    pub fn find(segments: &[Segment], from: SocketAddr, to: SocketAddr) -> Option<Self> {
        let mut ours = segments.iter().filter(|one| one.from == from && one.to == to);
        let first = ours.find(|one| one.flags.has(Flags::SYN))?.seq.wrapping_add(1);
        let (mut at, mut found) = (0u64, Vec::new());
        for one in ours.filter(|one| one.payload_bytes > 0) {
            let step = one.seq.wrapping_sub(first).wrapping_sub(at as u32) as i32;
            let offset = at.checked_add_signed(i64::from(step))?;
            at = at.max(offset + u64::from(one.payload_bytes));
            found.push((offset, one.payload_bytes, one.flags.has(Flags::PSH)));
        }
        Some(Self { segments: found })
    }

    /// Offsets after which the sender pushed: the ends of the segments with PSH, each once, in order.
    /// Retransmissions add nothing.
    pub fn pushes(&self) -> Vec<u64> {
        let pushed = self.segments.iter().filter(|(_, _, push)| *push);
        let mut ends: Vec<u64> =
            pushed.map(|(offset, bytes, _)| offset + u64::from(*bytes)).collect();
        ends.sort_unstable();
        ends.dedup();
        ends
    }

    /// Length of the captured stream, bytes.
    pub fn bytes(&self) -> u64 {
        let ends = self.segments.iter().map(|(offset, bytes, _)| offset + u64::from(*bytes));
        ends.max().unwrap_or(0)
    }
}
