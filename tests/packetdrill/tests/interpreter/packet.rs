//! IPv4 and TCP packets, as bytes and parsed.

use std::net::{Ipv4Addr, SocketAddrV4};

use super::language::Field;

/// Packet in live values.
#[derive(Clone, Debug)]
pub(super) struct Live {
    pub(super) source: SocketAddrV4,
    pub(super) destination: SocketAddrV4,
    pub(super) ecn: u8,
    pub(super) flags: u8,
    pub(super) seq: u32,
    pub(super) ack: u32,
    pub(super) window: u16,
    pub(super) options: Vec<Field>,
    pub(super) length: u32,
}

impl Live {
    /// Bytes of the packet; its payload is zeros.
    ///
    /// # Errors
    /// If the options do not fill words of 32 bits.
    pub(super) fn build(&self) -> Result<Vec<u8>, String> {
        let options = option_bytes(&self.options);
        if !options.len().is_multiple_of(4) {
            return Err(format!("{} bytes of options: pad with nop", options.len()));
        }
        let header = 20 + options.len();
        let total = 20 + header + self.length as usize;
        let mut packet = vec![0x45, self.ecn];
        packet.extend((total as u16).to_be_bytes());
        packet.extend([0, 0, 0x40, 0, 64, 6, 0, 0]);
        packet.extend(self.source.ip().octets());
        packet.extend(self.destination.ip().octets());
        packet.extend(self.source.port().to_be_bytes());
        packet.extend(self.destination.port().to_be_bytes());
        packet.extend(self.seq.to_be_bytes());
        packet.extend(self.ack.to_be_bytes());
        packet.extend([(header as u8) << 2, self.flags]);
        packet.extend(self.window.to_be_bytes());
        packet.extend([0; 4]);
        packet.extend(options);
        packet.resize(total, 0);
        let sum = checksum(&packet[..20], 0);
        packet[10..12].copy_from_slice(&sum.to_be_bytes());
        let sum = tcp_checksum(&packet);
        packet[36..38].copy_from_slice(&sum.to_be_bytes());
        Ok(packet)
    }

    /// Parses a packet.
    ///
    /// # Errors
    /// If it is not IPv4 with TCP, or a checksum, a length or an option is wrong.
    pub(super) fn read(packet: &[u8]) -> Result<Self, String> {
        let word = |at: usize| u16::from_be_bytes([packet[at], packet[at + 1]]);
        let long = |at: usize| {
            u32::from_be_bytes([packet[at], packet[at + 1], packet[at + 2], packet[at + 3]])
        };
        if packet.len() < 40 || packet[0] != 0x45 || packet[9] != 6 {
            return Err(format!("not TCP over IPv4: {packet:02x?}"));
        }
        let header = usize::from(packet[32] >> 4) * 4;
        if usize::from(word(2)) != packet.len() || packet.len() < 20 + header || header < 20 {
            return Err("lengths do not agree".into());
        }
        if checksum(&packet[..20], 0) != 0 || tcp_checksum(packet) != 0 {
            return Err("a checksum is wrong".into());
        }
        let address = |at: usize| Ipv4Addr::from(long(at));
        Ok(Self {
            source: SocketAddrV4::new(address(12), word(20)),
            destination: SocketAddrV4::new(address(16), word(22)),
            ecn: packet[1] & 3,
            flags: packet[33],
            seq: long(24),
            ack: long(28),
            window: word(34),
            options: read_options(&packet[40..20 + header])?,
            length: (packet.len() - 20 - header) as u32,
        })
    }
}

fn option_bytes(fields: &[Field]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for field in fields {
        match field {
            Field::Nop => bytes.push(1),
            Field::Mss(mss) => {
                bytes.extend([2, 4]);
                bytes.extend(mss.to_be_bytes());
            }
            Field::Scale(shift) => bytes.extend([3, 3, *shift]),
            Field::SackPermitted => bytes.extend([4, 2]),
            Field::Sack(blocks) => {
                bytes.extend([5, blocks.len() as u8 * 8 + 2]);
                for (start, end) in blocks {
                    bytes.extend(start.to_be_bytes());
                    bytes.extend(end.to_be_bytes());
                }
            }
            Field::Timestamps(value, echo) => {
                bytes.extend([8, 10]);
                bytes.extend(value.to_be_bytes());
                bytes.extend(echo.to_be_bytes());
            }
        }
    }
    bytes
}

fn read_options(mut bytes: &[u8]) -> Result<Vec<Field>, String> {
    let long = |bytes: &[u8]| bytes.iter().fold(0, |sum, byte| sum << 8 | u32::from(*byte));
    let mut fields = Vec::new();
    loop {
        let (field, length) = match bytes {
            [] | [0, ..] => return Ok(fields),
            [1, ..] => (Field::Nop, 1),
            [2, 4, a, b, ..] => (Field::Mss(u16::from_be_bytes([*a, *b])), 4),
            [3, 3, shift, ..] => (Field::Scale(*shift), 3),
            [4, 2, ..] => (Field::SackPermitted, 2),
            [5, length, rest @ ..] if rest.len() + 2 >= usize::from(*length) && *length > 2 => {
                let (blocks, _) = rest[..usize::from(*length) - 2].as_chunks::<8>();
                let block = |block: &[u8; 8]| (long(&block[..4]), long(&block[4..]));
                (Field::Sack(blocks.iter().map(block).collect()), usize::from(*length))
            }
            [8, 10, rest @ ..] if rest.len() >= 8 => {
                (Field::Timestamps(long(&rest[..4]), long(&rest[4..8])), 10)
            }
            _ => return Err(format!("options {bytes:02x?}")),
        };
        fields.push(field);
        bytes = &bytes[length..];
    }
}

fn tcp_checksum(packet: &[u8]) -> u16 {
    let sum = (packet.len() - 20) as u32 + 6;
    let addresses = packet[12..20].chunks(2);
    let addresses = addresses.map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])));
    checksum(&packet[20..], sum + addresses.sum::<u32>())
}

/// Internet checksum, RFC 1071.
fn checksum(data: &[u8], start: u32) -> u16 {
    let pairs = data
        .chunks(2)
        .map(|pair| u32::from(pair[0]) << 8 | u32::from(pair.get(1).copied().unwrap_or(0)));
    let mut sum = start + pairs.sum::<u32>();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}
