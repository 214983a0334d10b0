//! Scripts and frames from captures in the classic pcap format.
//!
//! Each connection of a capture yields two scripts, one for each end. Received segments become forged segments
//! at the same offsets, and sent segments become posted data.

use std::{fs, io, net::SocketAddr, path::Path};

use offload_engine::{
    frame::{SACK_BLOCKS_MAX, classify},
    tcp::{Flags, SackBlock, SeqNum},
};

use crate::script::{AckFrom, Forged, OPS_MAX, Op, SeqFrom, Setup, Stamp};

/// Bytes of a pcap file's header, and of each record's header.
const FILE_HEADER: usize = 24;
const RECORD_HEADER: usize = 16;

/// Captured frame.
#[derive(Clone, Debug)]
pub struct Frame {
    /// Capture time, microseconds.
    pub micros: u64,
    /// Bytes from the Ethernet header on.
    pub bytes: Vec<u8>,
}

/// Reads the frames of a capture.
///
/// # Errors
/// If the file cannot be read or is not a little-endian pcap with microseconds.
pub fn read(path: &Path) -> io::Result<Vec<Frame>> {
    let bytes = fs::read(path)?;
    if !bytes.starts_with(&0xa1b2_c3d4_u32.to_le_bytes()) {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "not a little-endian pcap"));
    }
    let mut frames = Vec::new();
    let mut rest = bytes.get(FILE_HEADER..).unwrap_or_default();
    while let Some((header, body)) = rest.split_at_checked(RECORD_HEADER) {
        let word = |at: usize| {
            u64::from(u32::from_le_bytes([
                header[at],
                header[at + 1],
                header[at + 2],
                header[at + 3],
            ]))
        };
        let Some((frame, next)) = body.split_at_checked(word(8) as usize) else { break };
        frames.push(Frame { micros: word(0) * 1_000_000 + word(4), bytes: frame.to_vec() });
        rest = next;
    }
    Ok(frames)
}

/// Scripts of every connection that starts in `frames`.
pub fn scripts(frames: &[Frame]) -> Vec<(Setup, Vec<Op>)> {
    let mut ends = Vec::new();
    for frame in frames {
        let Some(seen) = Seen::of(frame) else { continue };
        if seen.flags.contains(Flags::SYN) {
            for end in [(seen.to, seen.from), (seen.from, seen.to)] {
                if !ends.contains(&end) {
                    ends.push(end);
                }
            }
        }
    }
    ends.into_iter().filter_map(|(local, remote)| script(frames, local, remote)).collect()
}

/// TCP payload of a frame; `None` if there is none.
#[must_use]
pub fn tcp_payload(frame: &[u8]) -> Option<Vec<u8>> {
    let tcp = classify(frame)?;
    let mut blocks = [SackBlock { start: SeqNum(0), end: SeqNum(0) }; SACK_BLOCKS_MAX];
    let payload = tcp.segment(0, &mut blocks).payload;
    (!payload.is_empty()).then(|| payload.to_vec())
}

/// Relevant fields of a TCP frame.
struct Seen {
    micros: u64,
    from: SocketAddr,
    to: SocketAddr,
    seq: SeqNum,
    ack: SeqNum,
    flags: Flags,
    window: u16,
    len: u16,
    timestamps: bool,
    sack: Vec<SackBlock>,
}

impl Seen {
    fn of(frame: &Frame) -> Option<Self> {
        let tcp = classify(&frame.bytes)?;
        let mut blocks = [SackBlock { start: SeqNum(0), end: SeqNum(0) }; SACK_BLOCKS_MAX];
        let segment = tcp.segment(0, &mut blocks);
        Some(Self {
            micros: frame.micros,
            from: tcp.flow.remote(),
            to: tcp.flow.local(),
            seq: segment.seq,
            ack: segment.ack,
            flags: segment.flags,
            window: segment.window,
            len: segment.payload.len() as u16,
            timestamps: segment.timestamps.is_some(),
            sack: segment.sack.to_vec(),
        })
    }
}

/// Progress of a connection, from one end's point of view.
struct Progress {
    micros: u64,
    rcv_nxt: SeqNum,
    snd_una: SeqNum,
    snd_max: SeqNum,
}

fn script(frames: &[Frame], local: SocketAddr, remote: SocketAddr) -> Option<(Setup, Vec<Op>)> {
    let mut syns = [None; 2];
    let mut ops = Vec::new();
    let mut progress: Option<Progress> = None;
    let mut timestamps = false;
    let mut first_window = 0;
    for seen in frames.iter().filter_map(Seen::of) {
        let ours = match (seen.from, seen.to) {
            ends if ends == (local, remote) => true,
            ends if ends == (remote, local) => false,
            _ => continue,
        };
        if seen.flags.contains(Flags::SYN) {
            syns[usize::from(ours)] = Some(seen.seq + 1);
            timestamps = seen.timestamps;
            continue;
        }
        let [Some(theirs_first), Some(ours_first)] = syns else { continue };
        let progress = progress.get_or_insert(Progress {
            micros: seen.micros,
            rcv_nxt: theirs_first,
            snd_una: ours_first,
            snd_max: ours_first,
        });
        if first_window == 0 {
            first_window = seen.window;
        }
        let micros = seen.micros.saturating_sub(progress.micros).min(10_000_000);
        progress.micros = seen.micros;
        ops.push(Op::Wait { micros: micros as u32 });
        if ours {
            progress.sent(&seen, &mut ops);
        } else {
            progress.received(&seen, &mut ops);
        }
    }
    let [Some(theirs_first), Some(ours_first)] = syns else { return None };
    ops.truncate(OPS_MAX);
    let setup = Setup {
        timestamps,
        sack: true,
        nagle: false,
        push_at_end: false,
        unlimited: false,
        newreno: false,
        ecn: false,
        pacing: false,
        scale: 7,
        mss: 0,
        receive_window: 1_024,
        send_window: first_window,
        local_isn: ours_first.0,
        remote_isn: theirs_first.0,
    };
    Some((setup, ops))
}

impl Progress {
    fn sent(&mut self, seen: &Seen, ops: &mut Vec<Op>) {
        let end = seen.seq + u32::from(seen.len);
        if end.is_after(self.snd_max) {
            self.snd_max = end;
            ops.push(Op::Post { lists: 1, len: seen.len });
        }
        if seen.flags.contains(Flags::FIN) {
            ops.push(Op::Disconnect { len: 0 });
            self.snd_max = end + 1;
        }
        ops.push(Op::Transmit { count: u8::MAX, gso_packets: seen.len > 1_460 });
    }

    fn received(&mut self, seen: &Seen, ops: &mut Vec<Op>) {
        let first = seen.sack.first();
        let narrow = |value: i32| value.clamp(-32_768, 32_767) as i16;
        let (block, len) = first.map_or((0, 0), |block| {
            (narrow(block.start.distance(self.snd_una)), narrow(block.end.distance(block.start)))
        });
        ops.push(Op::Segment(Forged {
            seq_from: SeqFrom::Next,
            seq: seen.seq.distance(self.rcv_nxt),
            ack_from: AckFrom::Max,
            ack: seen.ack.distance(self.snd_max),
            flags: seen.flags.0,
            window: seen.window,
            len: seen.len,
            stamp: Stamp::Current,
            blocks: seen.sack.len() as u8,
            ecn: 0,
            echo: 0,
            block: [block, len, len.saturating_mul(2)],
        }));
        let fin = u32::from(seen.flags.contains(Flags::FIN));
        let end = seen.seq + u32::from(seen.len) + fin;
        if seen.seq.is_at_or_before(self.rcv_nxt) {
            self.rcv_nxt = self.rcv_nxt.later(end);
        }
        self.snd_una = self.snd_una.later(seen.ack);
    }
}
