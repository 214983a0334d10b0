//! A message, cut into segments.

/// One segment's part of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// Octets of the message before this part (MO, or what is added to the first TO).
    pub offset: u32,
    /// Octets of this part.
    pub octets: u32,
    /// L: the message ends here.
    pub last: bool,
}

/// Cuts a message as it is sent. MULPDU may change between any two segments; what was cut before
/// stays (DDP-3-2).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segmenter {
    message_octets: u32,
    offset: u32,
    finished: bool,
}

impl Segmenter {
    /// A message of so many octets.
    pub const fn new(message_octets: u32) -> Self {
        Self { message_octets, offset: 0, finished: false }
    }

    /// The last segment has been cut.
    pub const fn is_finished(&self) -> bool {
        self.finished
    }

    /// Octets not yet cut.
    pub const fn remaining(&self) -> u32 {
        self.message_octets - self.offset
    }

    /// The next segment, as large as `mulpdu` octets of ULPDU allow with `header_octets` of DDP
    /// header (MPA-4.5-4). A message of no octets is one segment (DDP-5.2-6).
    ///
    /// # Panics
    /// When octets remain and `mulpdu` has no room for one behind the header, or it has none for the
    /// header itself.
    pub fn next(&mut self, mulpdu: u16, header_octets: usize) -> Option<Cut> {
        if self.finished {
            return None;
        }
        // Behind other FPDUs of a segment there may be room for just the header of an empty message.
        let room = usize::from(mulpdu).checked_sub(header_octets);
        let octets = self.remaining().min(room.unwrap_or(0) as u32);
        let fits = room.is_some() && (octets > 0 || self.remaining() == 0);
        assert!(fits, "MULPDU of {mulpdu} octets for a header of {header_octets}");
        let offset = self.offset;
        self.offset += octets;
        self.finished = self.remaining() == 0;
        Some(Cut { offset, octets, last: self.finished })
    }
}
