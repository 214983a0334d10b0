//! Capture that is checked while it is written, and is not stored.

use std::io::{self, Write};
use std::sync::{Arc, Mutex, PoisonError};

use super::{Monitor, Way};

/// Block type of draft-ietf-opsawg-pcapng §4.3, and its direction option.
const ENHANCED_PACKET: u32 = 6;
const EPB_FLAGS: u16 = 2;
/// Octets of an enhanced packet block before the frame, and of the trailer of any block.
const PACKET_HEADER_BYTES: usize = 28;
const TRAILER_BYTES: usize = 4;

/// Parser of a little-endian pcapng with nanosecond times (the captures of flue's links). It passes each frame
/// to a [`Monitor`] when it is complete.
#[derive(Clone, Debug)]
pub struct Feed {
    monitor: Arc<Mutex<Monitor>>,
    /// Start of an incomplete block.
    pending: Vec<u8>,
}

impl Feed {
    /// Creates a capture for `monitor`.
    pub fn new(monitor: Arc<Mutex<Monitor>>) -> Self {
        Self { monitor, pending: Vec::new() }
    }

    /// Parses and removes the whole blocks at the front.
    fn drain(&mut self) {
        let mut monitor = self.monitor.lock().unwrap_or_else(PoisonError::into_inner);
        let mut at = 0;
        while let Some(header) = self.pending[at..].first_chunk::<8>() {
            let [kind, length] = [number(&header[..4]), number(&header[4..])];
            let end = at + length as usize;
            assert!(length >= 12, "invalid block length {length}: at least 12");
            let Some(block) = self.pending.get(at..end) else { break };
            if kind == ENHANCED_PACKET {
                packet(block, &mut monitor);
            }
            at = end;
        }
        self.pending.drain(..at);
    }
}

impl Write for Feed {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        self.pending.extend_from_slice(data);
        self.drain();
        Ok(data.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn number(bytes: &[u8]) -> u32 {
    u32::from_le_bytes(bytes.try_into().expect("four octets"))
}

fn packet(block: &[u8], monitor: &mut Monitor) {
    let field = |at: usize| number(&block[at..at + 4]);
    let time_ns = u64::from(field(12)) << 32 | u64::from(field(16));
    let length = field(20) as usize;
    let frame = &block[PACKET_HEADER_BYTES..PACKET_HEADER_BYTES + length];
    let options = PACKET_HEADER_BYTES + length.next_multiple_of(4);
    let way = match direction(&block[options..block.len() - TRAILER_BYTES]) {
        Some(1) => Way::Received,
        Some(2) => Way::Sent,
        other => panic!("a frame of direction {other:?}"),
    };
    monitor.frame(time_ns, way, frame);
}

/// The two lowest bits of the flags option.
fn direction(mut options: &[u8]) -> Option<u32> {
    while let Some((header, rest)) = options.split_first_chunk::<4>() {
        let code = u16::from_le_bytes([header[0], header[1]]);
        let length = usize::from(u16::from_le_bytes([header[2], header[3]]));
        if code == EPB_FLAGS {
            return rest.get(..4).map(|flags| number(flags) & 3);
        }
        options = rest.get(length.next_multiple_of(4)..)?;
    }
    None
}
