//! Wire format of rsockets: private data, entries written to the peer's memory, messages.
//!
//! | | size | form |
//! |---|---|---|
//! | private data | 40 | version 1, flags, credits, iomap size, then two entries; big-endian |
//! | entry | 16 | address (8), key (4), bytes (4), in the byte order of the peer whose memory it is |
//! | iomap entry | 24 | offset (8), then an entry |
//! | message | 4 | kind in bits 31..29, value below, a Send in the byte order of the receiver |
//!
//! It is the form of rdma-core's librdmacm for iWARP, which has no Write with immediate data there: a Write, and behind
//! it a Send of one message. Between hosts of unlike byte order librdmacm itself sends messages as they lie in its
//! memory.

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
/// The host is big-endian.
const FLAG_BIG_ENDIAN: u8 = 1;
/// The size of the iomap is told.
const FLAG_IOMAP: u8 = 1 << 1;

/// The peer has sent what no rsocket sends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Violation {
    /// No private data of rsockets, or with nothing in it that can be used.
    ConnectionData,
    /// A message of an unknown kind, or of another length.
    Message,
    /// More bytes than were granted.
    BytesNotGranted,
    /// More messages than there were credits.
    NoCredit,
    /// An entry that wraps around, or one too many.
    Entry,
    /// An iomap entry beyond the iomap.
    IomapIndex,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ConnectionData => "private data: not those of an rsocket of version 1",
            Self::Message => "message: unknown kind, wrong length, or sent after the end",
            Self::BytesNotGranted => "message: more bytes than granted",
            Self::NoCredit => "message: more messages than credits",
            Self::Entry => "memory entry: address overflow, or more entries than slots",
            Self::IomapIndex => "iomap entry: index out of range",
        })
    }
}

/// The order of a number's bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ByteOrder {
    /// The lowest first.
    Little,
    /// The highest first.
    Big,
}

impl ByteOrder {
    /// This machine's.
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

/// Memory of the peer: where Writes may go.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Entry {
    /// The first byte.
    pub(super) address: u64,
    /// The key.
    pub(super) key: u32,
    /// Bytes; of the list of grants, entries.
    pub(super) length: u32,
}

impl Entry {
    /// As it lies in memory.
    pub(super) fn to_octets(self, order: ByteOrder) -> [u8; ENTRY_BYTES] {
        let mut octets = [0; ENTRY_BYTES];
        octets[..8].copy_from_slice(&order.octets64(self.address));
        octets[8..12].copy_from_slice(&order.octets32(self.key));
        octets[12..].copy_from_slice(&order.octets32(self.length));
        octets
    }

    /// From memory.
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
    /// [`Violation::Entry`]: it wraps around.
    pub(super) fn check(self) -> Result<Self, Violation> {
        match self.address.checked_add(self.length.into()) {
            Some(_) => Ok(self),
            None => Err(Violation::Entry),
        }
    }
}

/// A mapped buffer of the peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct IomapEntry {
    /// The offset that stands for its first byte.
    pub(super) offset: u64,
    /// The buffer; of no bytes: it is not mapped any more.
    pub(super) memory: Entry,
}

impl IomapEntry {
    /// As it lies in memory.
    pub(super) fn to_octets(self, order: ByteOrder) -> [u8; IOMAP_ENTRY_BYTES] {
        let mut octets = [0; IOMAP_ENTRY_BYTES];
        octets[..8].copy_from_slice(&order.octets64(self.offset));
        octets[8..].copy_from_slice(&self.memory.to_octets(order));
        octets
    }

    /// From memory.
    pub(super) fn from_octets(octets: &[u8; IOMAP_ENTRY_BYTES], order: ByteOrder) -> Self {
        let (mut offset, mut memory) = ([0; 8], [0; ENTRY_BYTES]);
        offset.copy_from_slice(&octets[..8]);
        memory.copy_from_slice(&octets[8..]);
        Self { offset: order.u64(offset), memory: Entry::from_octets(&memory, order) }
    }

    /// The memory for `offset`, to the end of the buffer; `None`: it is not in it.
    pub(super) fn at(&self, offset: u64) -> Option<Entry> {
        let Entry { address, key, length } = self.memory;
        let skipped = u32::try_from(offset.checked_sub(self.offset)?).ok()?;
        let left = length.checked_sub(skipped).filter(|left| *left > 0)?;
        Some(Entry { address: address.checked_add(skipped.into())?, key, length: left })
    }
}

/// What each end tells of itself when they connect.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct ConnectionData {
    /// Of what is written into its memory.
    pub(super) order: ByteOrder,
    /// Messages that it takes.
    pub(super) credits: u16,
    /// Entries of its iomap.
    pub(super) iomap_entries: u16,
    /// Its list of grants: `length` entries, and the iomap behind them.
    pub(super) grants: Entry,
    /// Its first grant: where data go.
    pub(super) data: Entry,
}

impl ConnectionData {
    /// As private data.
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

    /// From private data. What follows is ignored, as librdmacm does.
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

    /// Where the entry `slot` of the list of grants is.
    pub(super) fn grant_address(&self, slot: u32) -> u64 {
        // It was checked when it was parsed.
        self.grants.address.wrapping_add(u64::from(slot) * ENTRY_BYTES as u64)
    }

    /// Where the entry `index` of the iomap is.
    pub(super) fn iomap_address(&self, index: u16) -> u64 {
        let iomap = self.grant_address(self.grants.length);
        iomap.wrapping_add(u64::from(index) * IOMAP_ENTRY_BYTES as u64)
    }
}

const SCALE_BIT: u8 = 1 << 7;

/// The number of entries in an octet: as it is up to 128, and in units of 256 above.
fn scale(entries: u16) -> u8 {
    match u8::try_from(entries) {
        Ok(entries @ ..=SCALE_BIT) => entries,
        _ => SCALE_BIT | (entries >> 8).min(127) as u8,
    }
}

fn unscale(octet: u8) -> u16 {
    if octet <= SCALE_BIT { octet.into() } else { u16::from(octet & !SCALE_BIT) << 8 }
}

/// The number of entries that can be told: `entries`, or the next one below.
pub(super) fn encodable_iomap_entries(entries: u16) -> u16 {
    unscale(scale(entries))
}

/// A message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Message {
    /// So many bytes were written behind the last ones.
    Data(u32),
    /// The sequence number up to which messages may be sent; an entry of the list of grants may be new, too.
    Credits(u16),
    /// This entry of the iomap is new.
    Iomap(u16),
    /// Nothing is sent any more, and nothing received.
    Disconnect,
    /// Nothing, to see whether the peer is there.
    KeepAlive,
    /// Nothing is sent any more.
    Shutdown,
}

const KIND_SHIFT: u32 = 29;
const VALUE_MASK: u32 = (1 << KIND_SHIFT) - 1;

/// Bytes that one message can tell of.
pub(super) const DATA_BYTES_MAX: u32 = VALUE_MASK;

impl Message {
    /// The number.
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

    /// As it is sent.
    pub(super) fn to_octets(self, order: ByteOrder) -> [u8; MESSAGE_BYTES] {
        order.octets32(self.number())
    }

    /// As it was received.
    ///
    /// # Errors
    /// [`Violation::Message`].
    pub(super) fn parse(octets: [u8; MESSAGE_BYTES], order: ByteOrder) -> Result<Self, Violation> {
        let number = order.u32(octets);
        // Numbers wrap around at 16 bits; librdmacm sends what it has computed in more.
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

    // The octets of librdmacm on a little-endian host.
    #[test]
    fn connection_data() {
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
    fn connection_data_that_cannot_be_used() {
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
    fn messages() {
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
    fn sizes_of_iomaps() {
        for (entries, octet) in [(0, 0), (1, 1), (128, 128), (255, 128), (256, 129), (700, 130)] {
            assert_eq!(scale(entries), octet, "{entries}");
        }
        assert_eq!(encodable_iomap_entries(128), 128);
        assert_eq!(encodable_iomap_entries(700), 512);
        assert_eq!(encodable_iomap_entries(u16::MAX), 127 << 8);
        assert_eq!(encodable_iomap_entries(200), 128);
    }

    #[test]
    fn iomap_entries() {
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
