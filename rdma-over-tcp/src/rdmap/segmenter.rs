//! Segmentation of a message.

/// Part of a message carried by one segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// Octets of the message before this part (MO, or the increment of the first TO).
    pub offset: u32,
    /// Octets of this part.
    pub octets: u32,
    /// L: true in the last part of the message.
    pub last: bool,
}

/// Segmentation of a message while it is sent. MULPDU may change between any two segments; earlier segments keep their
/// size (DDP-3-2).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segmenter {
    message_octets: u32,
    offset: u32,
    finished: bool,
}

impl Segmenter {
    /// Creates the segmentation of a message of this length.
    pub const fn new(message_octets: u32) -> Self {
        Self { message_octets, offset: 0, finished: false }
    }

    /// True if the last segment was returned.
    pub const fn is_finished(&self) -> bool {
        self.finished
    }

    /// Returns the octets not yet segmented.
    pub const fn remaining(&self) -> u32 {
        self.message_octets - self.offset
    }

    /// Returns the next segment, as large as `mulpdu` octets of ULPDU allow with `header_octets` of DDP header
    /// (MPA-4.5-4). A message of zero octets is one segment (DDP-5.2-6).
    ///
    /// # Panics
    /// If octets remain and `mulpdu` has no room for one after the header, or no room for the header itself.
    pub fn next(&mut self, mulpdu: u16, header_octets: usize) -> Option<Cut> {
        if self.finished {
            return None;
        }
        // After other FPDUs of a segment there may be room for just the header of an empty message.
        let room = usize::from(mulpdu).checked_sub(header_octets);
        let octets = self.remaining().min(room.unwrap_or(0) as u32);
        let fits = room.is_some() && (octets > 0 || self.remaining() == 0);
        assert!(
            fits,
            "MULPDU of {mulpdu} octets: too small for a header of {header_octets} octets"
        );
        let offset = self.offset;
        self.offset += octets;
        self.finished = self.remaining() == 0;
        Some(Cut { offset, octets, last: self.finished })
    }
}
