//! Marker grid (RFC 5044 §4.3).
//!
//! The grid starts with Full Operation: position 0 holds a marker, and so does every 512th position after it, markers
//! counted. Positions are kept modulo 512 and distances from the start of the current FPDU, so no sequence number wraps
//! (MPA-4.3-4). FPDUs and grid are both multiples of 4: a marker is never inside a length or CRC field.

/// Octets of a marker.
pub(super) const MARKER_OCTETS: usize = 4;

/// Octets of TCP stream from one marker to the next, markers included (MPA-4.3-2).
pub(super) const INTERVAL: u16 = 512;

/// Position of one direction of a stream on the grid.
#[derive(Clone, Debug, Default)]
pub(super) struct Grid {
    /// Octets since the last grid point, 0..512.
    phase: u16,
    /// Octets since the ULPDU_Length of the current FPDU, markers included; 0 between FPDUs.
    distance: u32,
}

impl Grid {
    /// True if a marker is due at this position.
    pub(super) const fn is_marker_due(&self) -> bool {
        self.phase == 0
    }

    /// FPDUPTR of a marker at this position: 0 between FPDUs (MPA-4.3-5), otherwise the distance back to ULPDU_Length
    /// (MPA-4.3-3). Legal ULPDUs keep it within 16 bits; larger distances are truncated to their low 16 bits.
    pub(super) const fn fpduptr(&self) -> u16 {
        (self.distance & 0xffff) as u16
    }

    /// Returns the octets that fit before the next marker.
    pub(super) fn room(&self) -> usize {
        usize::from(INTERVAL - self.phase)
    }

    /// Advances by `octets` of the current FPDU.
    pub(super) fn pass(&mut self, octets: usize) {
        self.advance_phase(octets);
        self.distance += octets as u32;
    }

    /// Advances by a marker: between FPDUs it does not count as part of the following FPDU.
    pub(super) fn pass_marker(&mut self) {
        self.advance_phase(MARKER_OCTETS);
        if self.distance > 0 {
            self.distance += MARKER_OCTETS as u32;
        }
    }

    /// Ends the current FPDU.
    pub(super) fn end_fpdu(&mut self) {
        self.distance = 0;
    }

    fn advance_phase(&mut self, octets: usize) {
        self.phase = ((usize::from(self.phase) + octets) % usize::from(INTERVAL)) as u16;
    }
}
