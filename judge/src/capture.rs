//! Capture of all connections in pcapng, with synthesized frames ([`SyntheticFlow`]).

use std::{fs::File, io, mem, net::SocketAddr, time::SystemTime};

use offload_engine::link::{Direction, PcapngWriter, SyntheticEvent, SyntheticFlow};

/// Connection of the capture.
#[derive(Debug)]
pub(crate) struct Flow {
    frames: SyntheticFlow,
    /// True if the handshake is recorded.
    is_open: bool,
}

impl Flow {
    pub(crate) const fn new(local: SocketAddr, remote: SocketAddr) -> Self {
        Self { frames: SyntheticFlow::new(local, remote), is_open: false }
    }
}

/// Capture file.
#[derive(Debug)]
pub(crate) struct Capture {
    writer: PcapngWriter<File>,
    error: Option<io::Error>,
    frame: Vec<u8>,
}

impl Capture {
    pub(crate) fn new(file: File) -> io::Result<Self> {
        let writer = PcapngWriter::new(file, "judge")?;
        Ok(Self { writer, error: None, frame: Vec::new() })
    }

    /// Writes buffered frames.
    ///
    /// # Errors
    /// The first write error of the capture.
    pub(crate) fn finish(&mut self) -> io::Result<()> {
        self.error.take().map_or(Ok(()), Err)?;
        self.writer.flush()
    }

    /// Records an event. The judge opens the connection in the capture, also if the peer has opened it.
    pub(crate) fn record(&mut self, flow: &mut Flow, way: Direction, event: SyntheticEvent<'_>) {
        let Self { writer, error, frame } = self;
        let unix = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let nanos = u64::try_from(unix.as_nanos()).unwrap_or(u64::MAX);
        let mut write = |way, octets: &[u8]| {
            if error.is_none() {
                *error = writer.frame(nanos, way, None, octets).err();
            }
        };
        if !mem::replace(&mut flow.is_open, true) {
            let handshake = SyntheticEvent::Handshake;
            flow.frames.frames(Direction::Outbound, handshake, frame, &mut write);
        }
        flow.frames.frames(way, event, frame, write);
    }
}
