//! Actions of an adversary, as values and as bytes.
//!
//! Positions are relative to the state of the connection when the operation is executed, so an operation keeps
//! its meaning when earlier ones change. The byte form is one record of [`RECORD`] bytes for the setup and one
//! for each operation. Every sequence of bytes is a script.

/// Bytes of a record.
pub const RECORD: usize = 28;
/// Maximum operations of one run; a longer script is truncated.
pub const OPS_MAX: usize = 2_000;

/// Configuration of the connection under test.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Setup {
    /// True if timestamps are enabled.
    pub timestamps: bool,
    /// True if SACK is enabled.
    pub sack: bool,
    /// True if the Nagle algorithm is enabled.
    pub nagle: bool,
    /// True if PSH is set on the last segment before the send queue is empty, instead of at the end of each
    /// list.
    pub push_at_end: bool,
    /// True if only the peer's window limits sending.
    pub unlimited: bool,
    /// True for NewReno, false for CUBIC.
    pub newreno: bool,
    /// True if ECN is enabled.
    pub ecn: bool,
    /// True if pacing is enabled.
    pub pacing: bool,
    /// Window scale of both directions, 0 to 14.
    pub scale: u8,
    /// MSS of both directions, as an index into a short list.
    pub mss: u8,
    /// Receive window in bytes, before the scale.
    pub receive_window: u16,
    /// The peer's window in bytes, before the scale.
    pub send_window: u16,
    /// Initial sequence number of this side.
    pub local_isn: u32,
    /// Initial sequence number of the peer.
    pub remote_isn: u32,
}

/// Origin of a sequence number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SeqFrom {
    /// RCV.NXT.
    Next,
    /// The right edge of the advertised window.
    Edge,
    /// One beyond the highest byte that the peer has sent within the window.
    Highest,
    /// Zero: anywhere.
    Anywhere,
}

/// Origin of an acknowledgment number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AckFrom {
    /// SND.UNA.
    Una,
    /// SND.MAX.
    Max,
    /// Fraction of the distance from SND.UNA to SND.MAX, in 65,536ths, given by the low 16 bits of the offset.
    Between,
    /// Zero: anywhere.
    Anywhere,
}

/// Timestamp of a segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stamp {
    /// The peer's clock, if timestamps are enabled.
    Current,
    /// None, even if timestamps are enabled.
    Absent,
    /// Old enough that PAWS must reject it (RFC 7323 §5.3).
    Ancient,
    /// Slightly older than the newest.
    Late,
    /// Far ahead, once per run: the peer's clock continues from there.
    Ahead,
}

/// Segment that arrives at the connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Forged {
    /// Origin of the sequence number.
    pub seq_from: SeqFrom,
    /// Offset from the origin.
    pub seq: i32,
    /// Origin of the acknowledgment number.
    pub ack_from: AckFrom,
    /// Offset from the origin.
    pub ack: i32,
    /// TCP flags.
    pub flags: u8,
    /// Window field.
    pub window: u16,
    /// Payload bytes.
    pub len: u16,
    /// Timestamp.
    pub stamp: Stamp,
    /// SACK blocks, at most 4.
    pub blocks: u8,
    /// The IP header's ECN bits.
    pub ecn: u8,
    /// Offset of the echo from the newest timestamp of this side.
    pub echo: i16,
    /// Start of the first block, relative to SND.UNA; length of each block; distance between blocks.
    pub block: [i16; 3],
}

/// Step of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Op {
    /// A segment arrives.
    Segment(Forged),
    /// A chain of lists is posted.
    Post {
        /// Number of lists, at most 8. The first has `len` bytes, each following one half as many.
        lists: u8,
        /// Bytes of the first list.
        len: u16,
    },
    /// Due segments are sent.
    Transmit {
        /// Maximum segments.
        count: u8,
        /// True with segmentation offload.
        gso_packets: bool,
    },
    /// Time advances to the next deadline, which is handled.
    Timer,
    /// Time advances; deadlines in between are handled late.
    Wait {
        /// Microseconds.
        micros: u32,
    },
    /// The consumer accepts a number of bytes, then refuses.
    Refuse {
        /// Bytes accepted.
        after: u16,
    },
    /// The consumer accepts all data again.
    Resume,
    /// The tail is copied if it is short, so that its memory is returned to the poster.
    Detach,
    /// A graceful disconnect with data.
    Disconnect {
        /// Bytes.
        len: u16,
    },
    /// An abortive disconnect, as the last operation.
    Abort,
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn half(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

impl Setup {
    /// Parses a record; every record is valid.
    pub fn read(record: &[u8; RECORD]) -> Self {
        let bit = |n: u8| record[0] >> n & 1 == 1;
        Self {
            timestamps: bit(0),
            sack: bit(1),
            nagle: bit(2),
            push_at_end: bit(3),
            unlimited: bit(4),
            newreno: bit(5),
            ecn: bit(6),
            pacing: bit(7),
            scale: record[1] % 15,
            mss: record[2],
            receive_window: half(record, 4),
            send_window: half(record, 6),
            local_isn: word(record, 8),
            remote_isn: word(record, 12),
        }
    }

    /// Encodes the record that [`Setup::read`] parses.
    pub fn write(&self) -> [u8; RECORD] {
        let Self {
            timestamps,
            sack,
            nagle,
            push_at_end,
            unlimited,
            newreno,
            ecn,
            pacing,
            scale,
            mss,
            receive_window,
            send_window,
            local_isn,
            remote_isn,
        } = *self;
        let mut record = [0; RECORD];
        let bits = [timestamps, sack, nagle, push_at_end, unlimited, newreno, ecn, pacing];
        record[0] = (0..).zip(bits).map(|(n, bit)| u8::from(bit) << n).sum();
        record[1] = scale;
        record[2] = mss;
        record[4..6].copy_from_slice(&receive_window.to_le_bytes());
        record[6..8].copy_from_slice(&send_window.to_le_bytes());
        record[8..12].copy_from_slice(&local_isn.to_le_bytes());
        record[12..16].copy_from_slice(&remote_isn.to_le_bytes());
        record
    }
}

const SEQ_FROM: [SeqFrom; 4] = [SeqFrom::Next, SeqFrom::Edge, SeqFrom::Highest, SeqFrom::Anywhere];
const ACK_FROM: [AckFrom; 4] = [AckFrom::Una, AckFrom::Max, AckFrom::Between, AckFrom::Anywhere];
const STAMPS: [Stamp; 5] =
    [Stamp::Current, Stamp::Absent, Stamp::Ancient, Stamp::Late, Stamp::Ahead];

fn pick<T: Copy>(from: &[T], byte: u8) -> T {
    from[usize::from(byte) % from.len()]
}

fn place<T: PartialEq>(of: T, from: &[T]) -> u8 {
    from.iter().position(|it| *it == of).map_or(0, |at| at as u8)
}

impl Forged {
    fn read(record: &[u8; RECORD]) -> Self {
        Self {
            seq_from: pick(&SEQ_FROM, record[1]),
            ack_from: pick(&ACK_FROM, record[2]),
            flags: record[3],
            seq: word(record, 4).cast_signed(),
            ack: word(record, 8).cast_signed(),
            window: half(record, 12),
            len: half(record, 14),
            stamp: pick(&STAMPS, record[16]),
            blocks: record[17] % 5,
            block: [18, 20, 22].map(|at| half(record, at).cast_signed()),
            echo: half(record, 24).cast_signed(),
            ecn: record[26] & 3,
        }
    }

    fn write(&self, record: &mut [u8; RECORD]) {
        let Self {
            seq_from,
            seq,
            ack_from,
            ack,
            flags,
            window,
            len,
            stamp,
            blocks,
            ecn,
            echo,
            block,
        } = *self;
        record[1] = place(seq_from, &SEQ_FROM);
        record[2] = place(ack_from, &ACK_FROM);
        record[3] = flags;
        record[4..8].copy_from_slice(&seq.to_le_bytes());
        record[8..12].copy_from_slice(&ack.to_le_bytes());
        record[12..14].copy_from_slice(&window.to_le_bytes());
        record[14..16].copy_from_slice(&len.to_le_bytes());
        record[16] = place(stamp, &STAMPS);
        record[17] = blocks;
        record[26] = ecn;
        let [first, second, third] = block;
        for (at, value) in [(18, first), (20, second), (22, third), (24, echo)] {
            record[at..at + 2].copy_from_slice(&value.to_le_bytes());
        }
    }
}

impl Op {
    /// Parses a record; every record is valid.
    pub fn read(record: &[u8; RECORD]) -> Self {
        let len = half(record, 4);
        // Half of the random records are segments.
        match record[0] % 20 {
            1 => Self::Post { lists: record[1] % 8 + 1, len },
            2 => Self::Transmit { count: record[1], gso_packets: record[2] & 1 == 1 },
            3 => Self::Timer,
            4 => Self::Wait { micros: word(record, 4) & 0xff_ffff },
            5 => Self::Refuse { after: len },
            6 => Self::Resume,
            7 => Self::Detach,
            8 => Self::Disconnect { len },
            9 => Self::Abort,
            _ => Self::Segment(Forged::read(record)),
        }
    }

    /// Encodes the record that [`Op::read`] parses.
    pub fn write(&self) -> [u8; RECORD] {
        let mut record = [0; RECORD];
        let mut put = |kind: u8, a: u8, b: u8, len: u16| {
            record[..3].copy_from_slice(&[kind, a, b]);
            record[4..6].copy_from_slice(&len.to_le_bytes());
        };
        match *self {
            Self::Segment(forged) => {
                put(0, 0, 0, 0);
                forged.write(&mut record);
            }
            Self::Post { lists, len } => put(1, lists - 1, 0, len),
            Self::Transmit { count, gso_packets } => {
                put(2, count, u8::from(gso_packets), 0);
            }
            Self::Timer => put(3, 0, 0, 0),
            Self::Wait { micros } => {
                put(4, 0, 0, 0);
                record[4..8].copy_from_slice(&micros.to_le_bytes());
            }
            Self::Refuse { after } => put(5, 0, 0, after),
            Self::Resume => put(6, 0, 0, 0),
            Self::Detach => put(7, 0, 0, 0),
            Self::Disconnect { len } => put(8, 0, 0, len),
            Self::Abort => put(9, 0, 0, 0),
        }
        record
    }
}

/// Parses a script. `None` if the setup is incomplete.
pub fn read(bytes: &[u8]) -> Option<(Setup, Vec<Op>)> {
    let (records, _) = bytes.as_chunks::<RECORD>();
    let (setup, ops) = records.split_first()?;
    Some((Setup::read(setup), ops.iter().take(OPS_MAX).map(Op::read).collect()))
}

/// Encodes the bytes that [`read`] parses.
pub fn write(setup: &Setup, ops: &[Op]) -> Vec<u8> {
    let records = core::iter::once(setup.write()).chain(ops.iter().map(Op::write));
    records.flatten().collect()
}
