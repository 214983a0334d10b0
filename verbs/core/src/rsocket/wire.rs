//! Wire format of rsockets: private data, entries written to the peer's memory, messages.
//!
//! | | size | form |
//! |---|---|---|
//! | private data | 40 | version 1, flags, credits, iomap size, then two entries; big-endian |
//! | entry | 16 | address (8), key (4), bytes (4), in the byte order of the peer whose memory it is |
//! | iomap entry | 24 | offset (8), then an entry |
//! | message | 4 | kind in bits 31..29, value below, a Send in the byte order of the receiver |
//!
//! The format is that of rdma-core's librdmacm for iWARP, which has no Write with immediate data: a Write, followed by
//! a Send of one message. Between hosts of different byte order, librdmacm sends messages in its own byte order.

use std::fmt;

/// Bytes of the private data.
pub(super) const CONNECTION_DATA_BYTES: usize = 40;
/// Bytes of an entry.
pub(super) const ENTRY_BYTES: usize = 16;
/// Bytes of an iomap entry.
pub(super) const IOMAP_ENTRY_BYTES: usize = 24;
/// Bytes of a message.
pub(super) const MESSAGE_BYTES: usize = 4;

const VERSION: u8 = 1;
/// Flag: the host is big-endian.
const FLAG_BIG_ENDIAN: u8 = 1;
/// Flag: the private data has the size of the iomap.
const FLAG_IOMAP: u8 = 1 << 1;

/// Protocol violation of the peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Violation {
    /// Private data: not those of an rsocket, or unusable.
    ConnectionData,
    /// Message of an unknown kind or wrong length, or after the end.
    Message,
    /// More bytes than granted.
    BytesNotGranted,
    /// More messages than credits.
    NoCredit,
    /// Entry with an address overflow, or more entries than slots.
    Entry,
    /// Iomap entry out of range.
    IomapIndex,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ConnectionData => "private data: expected rsocket version 1",
            Self::Message => {
                "message: unknown kind, wrong length, or sent after the end of the stream"
            }
            Self::BytesNotGranted => "message: more bytes than granted",
            Self::NoCredit => "message: more messages than credits",
            Self::Entry => "memory entry: address overflow, or more entries than slots",
            Self::IomapIndex => "iomap entry: index out of range",
        })
    }
}

/// Byte order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ByteOrder {
    /// Least significant byte first.
    Little,
    /// Most significant byte first.
    Big,
}

impl ByteOrder {
    /// Byte order of this machine.
    pub(super) const NATIVE: Self =
        if cfg!(target_endian = "big") { Self::Big } else { Self::Little };

    const fn u32(self, octets: [u8; 4]) -> u32 {
        match self {
            Self::Little => u32::from_le_bytes(octets),
            Self::Big => u32::from_be_bytes(octets),
        }
    }

    const fn u64(self, octets: [u8; 8]) -> u64 {
        match self {
            Self::Little => u64::from_le_bytes(octets),
            Self::Big => u64::from_be_bytes(octets),
        }
    }

    const fn octets32(self, value: u32) -> [u8; 4] {
        match self {
            Self::Little => value.to_le_bytes(),
            Self::Big => value.to_be_bytes(),
        }
    }

    const fn octets64(self, value: u64) -> [u8; 8] {
        match self {
            Self::Little => value.to_le_bytes(),
            Self::Big => value.to_be_bytes(),
        }
    }
}

/// Memory of the peer, as a target of Writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Entry {
    /// Address of the first byte.
    pub(super) address: u64,
    /// Key.
    pub(super) key: u32,
    /// Length in bytes; for the list of grants, in entries.
    pub(super) length: u32,
}

impl Entry {
    /// Encodes the entry.
    pub(super) fn to_octets(self, order: ByteOrder) -> [u8; ENTRY_BYTES] {
        let mut octets = [0; ENTRY_BYTES];
        octets[..8].copy_from_slice(&order.octets64(self.address));
        octets[8..12].copy_from_slice(&order.octets32(self.key));
        octets[12..].copy_from_slice(&order.octets32(self.length));
        octets
    }

    /// Decodes an entry.
    pub(super) fn from_octets(octets: &[u8; ENTRY_BYTES], order: ByteOrder) -> Self {
        let [a, b, c, d, e, f, g, h, rest @ ..] = *octets;
        let [i, j, k, l, m, n, o, p] = rest;
        Self {
            address: order.u64([a, b, c, d, e, f, g, h]),
            key: order.u32([i, j, k, l]),
            length: order.u32([m, n, o, p]),
        }
    }

    /// # Errors
    /// [`Violation::Entry`]: address overflow.
    pub(super) fn check(self) -> Result<Self, Violation> {
        match self.address.checked_add(self.length.into()) {
            Some(_) => Ok(self),
            None => Err(Violation::Entry),
        }
    }
}

/// Mapped buffer of the peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct IomapEntry {
    /// Offset of the first byte.
    pub(super) offset: u64,
    /// Buffer; empty if it is no longer mapped.
    pub(super) memory: Entry,
}

impl IomapEntry {
    /// Encodes the entry.
    pub(super) fn to_octets(self, order: ByteOrder) -> [u8; IOMAP_ENTRY_BYTES] {
        let mut octets = [0; IOMAP_ENTRY_BYTES];
        octets[..8].copy_from_slice(&order.octets64(self.offset));
        octets[8..].copy_from_slice(&self.memory.to_octets(order));
        octets
    }

    /// Decodes an entry.
    pub(super) fn from_octets(octets: &[u8; IOMAP_ENTRY_BYTES], order: ByteOrder) -> Self {
        let (mut offset, mut memory) = ([0; 8], [0; ENTRY_BYTES]);
        offset.copy_from_slice(&octets[..8]);
        memory.copy_from_slice(&octets[8..]);
        Self { offset: order.u64(offset), memory: Entry::from_octets(&memory, order) }
    }

    /// Returns the memory from `offset` to the end of the buffer. `None`: outside of the buffer.
    pub(super) fn at(&self, offset: u64) -> Option<Entry> {
        let Entry { address, key, length } = self.memory;
        let skipped = u32::try_from(offset.checked_sub(self.offset)?).ok()?;
        let left = length.checked_sub(skipped).filter(|left| *left > 0)?;
        Some(Entry { address: address.checked_add(skipped.into())?, key, length: left })
    }
}

/// Private data of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct ConnectionData {
    /// Byte order of its memory.
    pub(super) order: ByteOrder,
    /// Credits: messages that it accepts.
    pub(super) credits: u16,
    /// Entries of its iomap.
    pub(super) iomap_entries: u16,
    /// List of grants with `length` entries, followed by the iomap.
    pub(super) grants: Entry,
    /// First grant: target of data.
    pub(super) data: Entry,
}

impl ConnectionData {
    /// Encodes the private data.
    pub(super) fn to_octets(self) -> [u8; CONNECTION_DATA_BYTES] {
        let Self { order, credits, iomap_entries, grants, data } = self;
        let mut octets = [0; CONNECTION_DATA_BYTES];
        let is_big = order == ByteOrder::Big;
        octets[0] = VERSION;
        octets[1] = FLAG_IOMAP | if is_big { FLAG_BIG_ENDIAN } else { 0 };
        octets[2..4].copy_from_slice(&credits.to_be_bytes());
        octets[7] = scale(iomap_entries);
        octets[8..24].copy_from_slice(&grants.to_octets(ByteOrder::Big));
        octets[24..].copy_from_slice(&data.to_octets(ByteOrder::Big));
        octets
    }

    /// Decodes private data. Trailing bytes are ignored, as librdmacm does.
    ///
    /// # Errors
    /// [`Violation::ConnectionData`], [`Violation::Entry`].
    pub(super) fn parse(octets: &[u8]) -> Result<Self, Violation> {
        let octets = octets.first_chunk::<CONNECTION_DATA_BYTES>();
        let octets = octets.filter(|octets| octets[0] == VERSION);
        let octets = octets.ok_or(Violation::ConnectionData)?;
        let flags = octets[1];
        let entry = |at: usize| {
            let mut entry = [0; ENTRY_BYTES];
            entry.copy_from_slice(&octets[at..at + ENTRY_BYTES]);
            Entry::from_octets(&entry, ByteOrder::Big)
        };
        let (grants, data) = (entry(8), entry(24).check()?);
        let iomap_entries = if flags & FLAG_IOMAP == 0 { 0 } else { unscale(octets[7]) };
        if grants.length == 0 || data.length == 0 {
            return Err(Violation::ConnectionData);
        }
        let lists = u64::from(grants.length) * ENTRY_BYTES as u64
            + u64::from(iomap_entries) * IOMAP_ENTRY_BYTES as u64;
        grants.address.checked_add(lists).ok_or(Violation::Entry)?;
        let is_big = flags & FLAG_BIG_ENDIAN != 0;
        Ok(Self {
            order: if is_big { ByteOrder::Big } else { ByteOrder::Little },
            credits: u16::from_be_bytes([octets[2], octets[3]]),
            iomap_entries,
            grants,
            data,
        })
    }

    /// Returns the address of entry `slot` of the list of grants.
    pub(super) fn grant_address(&self, slot: u32) -> u64 {
        // `parse` has checked for overflow.
        self.grants.address.wrapping_add(u64::from(slot) * ENTRY_BYTES as u64)
    }

    /// Returns the address of entry `index` of the iomap.
    pub(super) fn iomap_address(&self, index: u16) -> u64 {
        let iomap = self.grant_address(self.grants.length);
        iomap.wrapping_add(u64::from(index) * IOMAP_ENTRY_BYTES as u64)
    }
}

const SCALE_BIT: u8 = 1 << 7;

/// Encodes a number of entries in an octet: up to 128 as it is, above in units of 256.
fn scale(entries: u16) -> u8 {
    match u8::try_from(entries) {
        Ok(entries @ ..=SCALE_BIT) => entries,
        _ => SCALE_BIT | (entries >> 8).min(127) as u8,
    }
}

fn unscale(octet: u8) -> u16 {
    if octet <= SCALE_BIT { octet.into() } else { u16::from(octet & !SCALE_BIT) << 8 }
}

/// Returns the largest number of entries up to `entries` that can be encoded.
pub(super) fn encodable_iomap_entries(entries: u16) -> u16 {
    unscale(scale(entries))
}

/// Message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Message {
    /// Number of bytes written after the previous ones.
    Data(u32),
    /// Sequence number up to which messages may be sent. The list of grants may have a new entry.
    Credits(u16),
    /// Index of a changed entry of the iomap.
    Iomap(u16),
    /// End of both directions.
    Disconnect,
    /// Keep-alive.
    KeepAlive,
    /// End of the send direction.
    Shutdown,
}

const KIND_SHIFT: u32 = 29;
const VALUE_MASK: u32 = (1 << KIND_SHIFT) - 1;

/// Maximum number of bytes of one message.
pub(super) const DATA_BYTES_MAX: u32 = VALUE_MASK;

impl Message {
    /// Encodes the message as a number.
    fn number(self) -> u32 {
        let (kind, value) = match self {
            Self::Data(bytes) => (0, bytes & VALUE_MASK),
            Self::Credits(limit) => (4, limit.into()),
            Self::Iomap(index) => (6, index.into()),
            Self::Disconnect => (7, 0),
            Self::KeepAlive => (7, 1),
            Self::Shutdown => (7, 2),
        };
        kind << KIND_SHIFT | value
    }

    /// Encodes the message.
    pub(super) fn to_octets(self, order: ByteOrder) -> [u8; MESSAGE_BYTES] {
        order.octets32(self.number())
    }

    /// Decodes a message.
    ///
    /// # Errors
    /// [`Violation::Message`].
    pub(super) fn parse(octets: [u8; MESSAGE_BYTES], order: ByteOrder) -> Result<Self, Violation> {
        let number = order.u32(octets);
        // Numbers wrap at 16 bits; librdmacm sends the result of wider arithmetic.
        let (value, low) = (number & VALUE_MASK, number as u16);
        Ok(match (number >> KIND_SHIFT, value) {
            (0, bytes) => Self::Data(bytes),
            (4, _) => Self::Credits(low),
            (6, _) => Self::Iomap(low),
            (7, 0) => Self::Disconnect,
            (7, 1) => Self::KeepAlive,
            (7, 2) => Self::Shutdown,
            _ => return Err(Violation::Message),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DATA: ConnectionData = ConnectionData {
        order: ByteOrder::Little,
        credits: 0x0180,
        iomap_entries: 1,
        grants: Entry { address: 0x0102_0304_0506_0708, key: 0x1112_1314, length: 2 },
        data: Entry { address: 0x2122_2324_2526_2728, key: 0x3132_3334, length: 0x1_0000 },
    };

    // Octets of librdmacm on a little-endian host.
    #[test]
    fn connection_data_has_the_octets_of_librdmacm() {
        let octets = DATA.to_octets();
        let expected = [
            1, 2, 1, 0x80, 0, 0, 0, 1, // version, flags, credits, reserved, iomap
            1, 2, 3, 4, 5, 6, 7, 8, 0x11, 0x12, 0x13, 0x14, 0, 0, 0, 2, // list of grants
            0x21, 0x22, 0x23, 0x24, 0x25, 0x26, 0x27, 0x28, 0x31, 0x32, 0x33, 0x34, 0, 1, 0, 0,
        ];
        assert_eq!(octets, expected);
        assert_eq!(ConnectionData::parse(&octets), Ok(DATA));
        assert_eq!(DATA.grant_address(1), 0x0102_0304_0506_0718);
        assert_eq!(DATA.iomap_address(1), 0x0102_0304_0506_0740);
        let big = ConnectionData { order: ByteOrder::Big, ..DATA };
        assert_eq!(big.to_octets()[1], 3);
        assert_eq!(ConnectionData::parse(&big.to_octets()), Ok(big));
    }

    #[test]
    fn unusable_connection_data_is_rejected() {
        let octets = DATA.to_octets();
        let parse = |at: usize, value: u8| {
            let mut octets = octets;
            octets[at] = value;
            ConnectionData::parse(&octets)
        };
        for short in 0..CONNECTION_DATA_BYTES {
            assert_eq!(ConnectionData::parse(&octets[..short]), Err(Violation::ConnectionData));
        }
        assert_eq!(parse(0, 2), Err(Violation::ConnectionData), "another version");
        assert_eq!(parse(23, 0), Err(Violation::ConnectionData), "no list of grants");
        assert_eq!(parse(37, 0), Err(Violation::ConnectionData), "no bytes granted");
        let no_iomap = parse(1, 0).unwrap();
        assert_eq!(no_iomap.iomap_entries, 0, "without the flag it is reserved");
        let wraps = |data: ConnectionData| ConnectionData::parse(&data.to_octets());
        let last = u64::MAX;
        let data = Entry { address: last, ..DATA.data };
        assert_eq!(wraps(ConnectionData { data, ..DATA }), Err(Violation::Entry));
        let grants = Entry { address: last - 32, ..DATA.grants };
        assert_eq!(wraps(ConnectionData { grants, ..DATA }), Err(Violation::Entry));
    }

    #[test]
    fn messages_round_trip() {
        let table = [
            (Message::Data(5), 5),
            (Message::Data(DATA_BYTES_MAX), 0x1fff_ffff),
            (Message::Credits(384), 0x8000_0180),
            (Message::Iomap(7), 0xc000_0007),
            (Message::Disconnect, 0xe000_0000),
            (Message::KeepAlive, 0xe000_0001),
            (Message::Shutdown, 0xe000_0002_u32),
        ];
        for (message, number) in table {
            assert_eq!(message.to_octets(ByteOrder::Big), number.to_be_bytes());
            for order in [ByteOrder::Little, ByteOrder::Big] {
                assert_eq!(Message::parse(message.to_octets(order), order), Ok(message));
            }
        }
        let parse = |number: u32| Message::parse(number.to_le_bytes(), ByteOrder::Little);
        assert_eq!(parse(0x8001_0180), Ok(Message::Credits(0x180)), "as librdmacm wraps around");
        for number in [0x2000_0000, 0x4000_0001, 0x6000_0000, 0xa000_0000, 0xe000_0003] {
            assert_eq!(parse(number), Err(Violation::Message));
        }
    }

    #[test]
    fn iomap_size_is_rounded_down_to_an_octet() {
        for (entries, octet) in [(0, 0), (1, 1), (128, 128), (255, 128), (256, 129), (700, 130)] {
            assert_eq!(scale(entries), octet, "{entries}");
        }
        assert_eq!(encodable_iomap_entries(128), 128);
        assert_eq!(encodable_iomap_entries(700), 512);
        assert_eq!(encodable_iomap_entries(u16::MAX), 127 << 8);
        assert_eq!(encodable_iomap_entries(200), 128);
    }

    #[test]
    fn iomap_entry_maps_offsets_within_its_buffer() {
        let memory = Entry { address: 1000, key: 7, length: 100 };
        let entry = IomapEntry { offset: 5000, memory };
        let octets = entry.to_octets(ByteOrder::Big);
        assert_eq!(IomapEntry::from_octets(&octets, ByteOrder::Big), entry);
        assert_eq!(entry.at(5000), Some(memory));
        assert_eq!(entry.at(5099), Some(Entry { address: 1099, key: 7, length: 1 }));
        for outside in [0, 4999, 5100, u64::MAX] {
            assert_eq!(entry.at(outside), None);
        }
        let hostile =
            IomapEntry { offset: 0, memory: Entry { address: u64::MAX, key: 7, length: u32::MAX } };
        assert_eq!(hostile.at(2), None);
    }
}
