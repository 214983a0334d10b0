//! Frame capture in pcapng format, with packet comments, nanosecond timestamps and directions.
//!
//! [`CaptureLink`] wraps any link. GSO packets are recorded unsegmented, as tcpdump does on a device that segments. A
//! checksum left to a device is completed in the recorded copy, so that a reader does not report a false error. A wrong
//! pseudo-header sum is still visible.
//!
//! A capture starts and stops while the link is used ([`CaptureLink::start`]). Recording never affects traffic: the
//! first write error ends it, is logged once and is returned by [`CaptureLink::status`].
#![forbid(unsafe_code)]

use std::{
    boxed::Box,
    io::{self, BufWriter, Write},
    string::{String, ToString},
    time::SystemTime,
    vec::Vec,
};

use super::{Link, RxBatch, RxChecksum, TxFrame, TxOutcome, checksum, layout::TcpLayout, wrapper};
use crate::time::Instant;

const SECTION_HEADER_BLOCK: u32 = 0x0a0d_0d0a;
const INTERFACE_DESCRIPTION_BLOCK: u32 = 1;
const ENHANCED_PACKET_BLOCK: u32 = 6;
const BYTE_ORDER_MAGIC: u32 = 0x1a2b_3c4d;
const VERSION: [u16; 2] = [1, 0];
const SECTION_LENGTH_UNKNOWN: u64 = u64::MAX;
const LINKTYPE_ETHERNET: u16 = 1;

const OPT_END: u16 = 0;
const OPT_COMMENT: u16 = 1;
const SHB_USERAPPL: u16 = 4;
const IF_NAME: u16 = 2;
const IF_TSRESOL: u16 = 9;
const EPB_FLAGS: u16 = 2;

/// Timestamp unit of 10^-9 s.
const TIMESTAMP_RESOLUTION_NANOSECONDS: u8 = 9;
/// Maximum number of bytes recorded per frame, larger than any frame.
const SNAPLEN: u32 = 262_144;
/// Longest comment or name in bytes. The rest is truncated at a character boundary.
const OPTION_BYTES_MAX: usize = 4096;
/// Bytes buffered before they are written: about three GSO packets.
const BUFFER_BYTES: usize = 256 * 1024;

/// Direction of a recorded frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    /// Received.
    Inbound,
    /// Transmitted.
    Outbound,
}

/// Writer of a pcapng file with one section and one Ethernet interface.
#[derive(Debug)]
pub struct PcapngWriter<W: Write> {
    output: BufWriter<W>,
    block: Vec<u8>,
}

impl<W: Write> PcapngWriter<W> {
    /// Starts a file: section header and description of one interface.
    ///
    /// # Errors
    /// Errors of the output.
    pub fn new(output: W, interface: &str) -> io::Result<Self> {
        let output = BufWriter::with_capacity(BUFFER_BYTES, output);
        let mut writer = Self { output, block: Vec::new() };

        writer.begin(SECTION_HEADER_BLOCK);
        writer.u32(BYTE_ORDER_MAGIC);
        writer.u16(VERSION[0]);
        writer.u16(VERSION[1]);
        writer.block.extend_from_slice(&SECTION_LENGTH_UNKNOWN.to_le_bytes());
        writer.option(SHB_USERAPPL, b"flue");
        writer.u32(u32::from(OPT_END));
        writer.end()?;

        writer.begin(INTERFACE_DESCRIPTION_BLOCK);
        writer.u16(LINKTYPE_ETHERNET);
        writer.u16(0); // reserved
        writer.u32(SNAPLEN);
        writer.option(IF_NAME, truncate(interface).as_bytes());
        writer.option(IF_TSRESOL, &[TIMESTAMP_RESOLUTION_NANOSECONDS]);
        writer.u32(u32::from(OPT_END));
        writer.end()?;
        Ok(writer)
    }

    /// Appends a frame, received or sent `unix_nanos` nanoseconds after 1970 (or after the start of a simulation).
    ///
    /// # Errors
    /// Errors of the output. The file then ends in an incomplete block.
    pub fn frame(
        &mut self,
        unix_nanos: u64,
        direction: Direction,
        comment: Option<&str>,
        frame: &[u8],
    ) -> io::Result<()> {
        let captured = &frame[..frame.len().min(SNAPLEN as usize)];
        self.begin(ENHANCED_PACKET_BLOCK);
        self.u32(0); // the only interface
        self.u32((unix_nanos >> 32) as u32);
        self.u32(unix_nanos as u32);
        self.u32(captured.len() as u32);
        self.u32(u32::try_from(frame.len()).unwrap_or(u32::MAX));
        self.padded(captured);
        if let Some(comment) = comment {
            self.option(OPT_COMMENT, truncate(comment).as_bytes());
        }
        let flags: u32 = match direction {
            Direction::Inbound => 1,
            Direction::Outbound => 2,
        };
        self.option(EPB_FLAGS, &flags.to_le_bytes());
        self.u32(u32::from(OPT_END));
        self.end()
    }

    /// Writes buffered data to the output, and flushes it.
    ///
    /// # Errors
    /// Errors of the output.
    pub fn flush(&mut self) -> io::Result<()> {
        self.output.flush()
    }

    /// Starts a block: its type, and space for the total length.
    fn begin(&mut self, block_type: u32) {
        self.block.clear();
        self.u32(block_type);
        self.u32(0);
    }

    /// Ends a block: writes the total length before and after its body.
    fn end(&mut self) -> io::Result<()> {
        let total = self.block.len() as u32 + 4;
        self.block[4..8].copy_from_slice(&total.to_le_bytes());
        self.u32(total);
        self.output.write_all(&self.block)
    }

    fn u16(&mut self, value: u16) {
        self.block.extend_from_slice(&value.to_le_bytes());
    }

    fn u32(&mut self, value: u32) {
        self.block.extend_from_slice(&value.to_le_bytes());
    }

    fn padded(&mut self, bytes: &[u8]) {
        self.block.extend_from_slice(bytes);
        self.block.resize(self.block.len().next_multiple_of(4), 0);
    }

    fn option(&mut self, code: u16, value: &[u8]) {
        self.u16(code);
        self.u16(value.len() as u16);
        self.padded(value);
    }
}

/// Returns at most [`OPTION_BYTES_MAX`] bytes of `text`.
fn truncate(text: &str) -> &str {
    &text[..text.floor_char_boundary(OPTION_BYTES_MAX)]
}

/// Destination of a capture whose type is not known.
pub type CaptureOutput = Box<dyn Write + Send>;

/// Returns the wall clock at [`Instant::ZERO`], in nanoseconds since 1970, if the time is `now`.
pub fn unix_nanos_at_zero(now: Instant) -> u64 {
    let unix = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(unix.as_nanos()).unwrap_or(u64::MAX).saturating_sub(now.as_nanos())
}

/// State of a capture.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct CaptureStatus {
    /// Frames recorded.
    pub frames: u64,
    /// Error that ended the recording.
    pub error: Option<String>,
}

/// Link that records every frame it receives, and every frame accepted by the wrapped link, while a capture runs.
#[derive(Debug)]
pub struct CaptureLink<L, W: Write> {
    link: L,
    recorder: Option<Recorder<W>>,
    scratch: Vec<u8>,
}

/// Capture file that ends at the first write error, which is logged once.
#[derive(Debug)]
pub struct Recorder<W: Write> {
    /// Writer. `None` after a write error.
    writer: Option<PcapngWriter<W>>,
    error: Option<io::Error>,
    unix_nanos_at_zero: u64,
    frames: u64,
}

impl<L: Link, W: Write + Send> CaptureLink<L, W> {
    /// Records the frames of `link`, named `interface` in the file. `unix_nanos_at_zero` is the wall clock at
    /// [`Instant::ZERO`], in nanoseconds since 1970, or 0 in a simulation.
    ///
    /// # Errors
    /// Errors of the output.
    pub fn new(link: L, output: W, interface: &str, unix_nanos_at_zero: u64) -> io::Result<Self> {
        let mut capture = Self::idle(link);
        capture.start(Recorder::new(output, interface, unix_nanos_at_zero)?);
        Ok(capture)
    }

    /// Wraps `link` without a capture.
    pub const fn idle(link: L) -> Self {
        Self { link, recorder: None, scratch: Vec::new() }
    }

    /// Starts a capture. Stops one that runs.
    pub fn start(&mut self, recorder: Recorder<W>) {
        self.recorder = Some(recorder);
    }

    /// Stops the capture and returns its final state; `None`: none runs. Buffered data is written.
    pub fn stop(&mut self) -> Option<CaptureStatus> {
        self.recorder.take().map(Recorder::finish)
    }

    /// Returns the state of the capture; `None`: none runs.
    pub fn status(&self) -> Option<CaptureStatus> {
        self.recorder.as_ref().map(Recorder::status)
    }

    /// Writes buffered data. Drop does so too.
    ///
    /// # Errors
    /// Errors of the output. The first one ends the recording.
    pub fn flush_file(&mut self) -> io::Result<()> {
        self.recorder.as_mut().map_or(Ok(()), Recorder::flush)
    }

    /// Returns the recorder while it records.
    fn recording(&mut self) -> Option<(&mut Recorder<W>, &mut Vec<u8>)> {
        let recorder = self.recorder.as_mut().filter(|recorder| recorder.writer.is_some())?;
        Some((recorder, &mut self.scratch))
    }
}

/// Copies kind and text of an error, because `io::Error` cannot be cloned.
fn copy_of(error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), std::format!("{error}"))
}

impl<W: Write> Recorder<W> {
    /// Starts a file of one interface. `unix_nanos_at_zero` as in [`CaptureLink::new`].
    ///
    /// # Errors
    /// Errors of the output.
    pub fn new(output: W, interface: &str, unix_nanos_at_zero: u64) -> io::Result<Self> {
        let writer = Some(PcapngWriter::new(output, interface)?);
        Ok(Self { writer, error: None, unix_nanos_at_zero, frames: 0 })
    }

    fn fail(&mut self, error: io::Error) {
        // The output has its name, and reports the error.
        tracing::debug!(%error, frames = self.frames, "capture stopped: write error");
        self.error = Some(error);
        self.writer = None;
    }

    /// Writes buffered data. Drop does so too.
    ///
    /// # Errors
    /// Errors of the output. The first one ends the recording.
    pub fn flush(&mut self) -> io::Result<()> {
        let Some(writer) = &mut self.writer else { return Ok(()) };
        writer.flush().inspect_err(|error| self.fail(copy_of(error)))
    }

    /// Returns the number of frames recorded, and the error that ended the recording.
    pub fn status(&self) -> CaptureStatus {
        let error = self.error.as_ref().map(ToString::to_string);
        CaptureStatus { frames: self.frames, error }
    }

    /// Writes buffered data, and returns the final state.
    pub fn finish(mut self) -> CaptureStatus {
        // The state has the error.
        let _ = self.flush();
        self.status()
    }

    /// Records a frame.
    pub fn record(&mut self, now: Instant, way: Direction, comment: Option<&str>, frame: &[u8]) {
        let Some(writer) = &mut self.writer else { return };
        let unix_nanos = self.unix_nanos_at_zero.saturating_add(now.as_nanos());
        match writer.frame(unix_nanos, way, comment, frame) {
            Ok(()) => self.frames += 1,
            Err(error) => self.fail(error),
        }
    }
}

impl<W: Write> Drop for Recorder<W> {
    fn drop(&mut self) {
        if let Some(Err(error)) = self.writer.as_mut().map(PcapngWriter::flush) {
            self.fail(error);
        }
    }
}

impl<L: Link, W: Write + Send> wrapper::LinkWrapper for CaptureLink<L, W> {
    wrapper::wraps!(L, link);

    fn receive(&mut self, now: Instant, batch: &mut RxBatch) -> io::Result<usize> {
        let before = batch.len();
        let added = self.link.receive(now, batch)?;
        if let Some((recorder, scratch)) = self.recording() {
            for frame in batch.frames().skip(before) {
                scratch.clear();
                scratch.extend_from_slice(frame.data);
                // A valid checksum may be incomplete; computing it is correct in both cases.
                if frame.checksum == RxChecksum::Valid
                    && let Some(layout) = TcpLayout::of(scratch)
                {
                    checksum::fill_tcp(scratch, &layout);
                }
                recorder.record(now, Direction::Inbound, None, scratch);
            }
        }
        Ok(added)
    }

    fn transmit(&mut self, now: Instant, frame: &TxFrame<'_>) -> TxOutcome {
        let outcome = self.link.transmit(now, frame);
        if outcome == TxOutcome::Sent
            && let Some((recorder, scratch)) = self.recording()
        {
            scratch.clear();
            frame.gather_into(scratch);
            if let Some(place) = frame.offload.checksum {
                checksum::finish(scratch, place);
            }
            recorder.record(now, Direction::Outbound, frame.comment, scratch);
        }
        outcome
    }

    fn sync(&mut self) {
        // An error ends the recording and is already logged.
        let _ = self.flush_file();
        self.link.sync();
    }

    fn uses_comments(&self) -> bool {
        self.recorder.as_ref().is_some_and(|it| it.writer.is_some()) || self.link.uses_comments()
    }
}

#[cfg(test)]
mod tests;
