//! Memory that scripts register: areas of one mapping, each with a purpose.
//!
//! | area | registered | content |
//! |---|---|---|
//! | 0, 1 | never for writing | a constant pattern; the source of checked Sends, Writes and Reads |
//! | 2 | for local writing | places of checked receives |
//! | 3 | for remote writing | places of checked Writes |
//! | 4 | for local writing | places of checked Reads |
//! | 5 to 7 | with any rights | overwritten or made inaccessible after their last deregistration |
//!
//! An area that was overwritten after its last deregistration must not change. An access to an inaccessible
//! area crashes the process.

use core::{ffi::c_void, ptr, slice};

/// Octets of an area.
pub(super) const AREA: usize = 16 * 1024;
/// Areas with checked content.
pub(super) const CHECKED: usize = 5;
/// Number of areas.
pub(super) const AREAS: usize = 8;
/// Source areas of checked requests.
pub(super) const SOURCES: usize = 2;
/// Area of checked receives.
pub(super) const RECEIVES: usize = 2;
/// Area of checked Writes.
pub(super) const TARGETS: usize = 3;
/// Area of checked Reads.
pub(super) const SINKS: usize = 4;
/// Octets of a place in areas 2 to 4.
pub(super) const PLACE: usize = 256;
/// Places of an area.
const PLACES: usize = AREA / PLACE;
/// Distance of two areas in octets; the memory between them is unmapped.
const STRIDE: usize = AREA + 64 * 1024;
/// Octet that overwrites areas after their last deregistration.
const POISON: u8 = 0xdb;

/// State of an area.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Content {
    /// The pattern, or data that was written legally.
    Used,
    /// Overwritten: neither readable nor writable for requests.
    Poisoned,
    /// No access.
    Inaccessible,
}

/// Treatment of an area after its last deregistration.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum After {
    Keep,
    Poison,
    Unmap,
}

/// All areas and their state.
#[derive(Debug)]
pub(super) struct Memory {
    base: *mut u8,
    content: [Content; AREAS],
    /// Registrations for writing so far.
    taints: [u32; AREAS],
    /// True if there was none since the area was filled with its pattern.
    is_known: [bool; AREAS],
    /// Live registrations.
    registered: [u32; AREAS],
    taken: [[bool; PLACES]; CHECKED],
}

/// Pattern of an area: no two places are equal.
fn pattern(area: usize, at: usize) -> u8 {
    let word = (at / 8 * 131 + area * 7919) as u32;
    (word.wrapping_mul(0x9e37_79b9) >> (at % 4 * 8)) as u8 ^ (at % 8) as u8
}

impl Memory {
    /// Maps the areas.
    pub(super) fn new() -> Self {
        let (rights, kind) = (libc::PROT_NONE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping affects no other.
        let base = unsafe { libc::mmap(ptr::null_mut(), STRIDE * AREAS, rights, kind, -1, 0) };
        assert_ne!(base, libc::MAP_FAILED, "memory for {AREAS} areas");
        let mut memory = Self {
            base: base.cast(),
            content: [Content::Inaccessible; AREAS],
            taints: [0; AREAS],
            is_known: [true; AREAS],
            registered: [0; AREAS],
            taken: [[false; PLACES]; CHECKED],
        };
        (0..AREAS).for_each(|area| memory.fill(area));
        memory
    }

    /// Address of an octet, or of the one after the area.
    pub(super) fn address(&self, area: usize, at: usize) -> *mut u8 {
        self.base.wrapping_add(area * STRIDE + at)
    }

    fn protect(&self, area: usize, rights: i32) {
        let start = self.address(area, 0).cast::<c_void>();
        // SAFETY: the area is whole pages of the mapping, which contain no Rust object.
        assert_eq!(unsafe { libc::mprotect(start, AREA, rights) }, 0, "mprotect");
    }

    /// Fills an area with its pattern.
    fn fill(&mut self, area: usize) {
        self.protect(area, libc::PROT_READ | libc::PROT_WRITE);
        for at in 0..AREA {
            // SAFETY: the area is accessible; the library writes to it through raw pointers as well.
            unsafe { self.address(area, at).write(pattern(area, at)) };
        }
        self.content[area] = Content::Used;
        self.is_known[area] = true;
    }

    /// Copy of octets; `None` if they are not within the area, or not accessible.
    pub(super) fn copy(&self, area: usize, at: usize, length: usize) -> Option<Vec<u8>> {
        let end = at.checked_add(length)?;
        if end > AREA || self.content[area] == Content::Inaccessible {
            return None;
        }
        // SAFETY: the octets are within an accessible area.
        Some(unsafe { slice::from_raw_parts(self.address(area, at), length) }.to_vec())
    }

    /// Prepares an area for registration: an overwritten area is filled with its pattern again. An inaccessible
    /// area is restored only if `is_wanted`.
    pub(super) fn before_registration(&mut self, area: usize, is_wanted: bool) {
        if self.content[area] == Content::Poisoned
            || self.content[area] == Content::Inaccessible && is_wanted
        {
            self.check_poison(area);
            self.fill(area);
        }
    }

    pub(super) fn is_inaccessible(&self, area: usize) -> bool {
        self.content[area] == Content::Inaccessible
    }

    pub(super) fn registered(&mut self, area: usize, is_written: bool) {
        self.registered[area] += 1;
        self.taints[area] += u32::from(is_written);
        self.is_known[area] &= !is_written;
    }

    /// Records a deregistration. After the last one the program may reuse the memory.
    pub(super) fn deregistered(&mut self, area: usize, after: After) {
        self.registered[area] -= 1;
        if self.registered[area] > 0 || area < CHECKED {
            return;
        }
        match after {
            After::Keep => {}
            After::Poison => {
                // SAFETY: the area is accessible, since it was registered until now.
                unsafe { self.address(area, 0).write_bytes(POISON, AREA) };
                self.content[area] = Content::Poisoned;
            }
            After::Unmap => {
                self.protect(area, libc::PROT_NONE);
                self.content[area] = Content::Inaccessible;
            }
        }
    }

    /// Number of registrations for writing, if the area's content is known. A request posted now sends that
    /// content, unless the number changes before the transfer.
    pub(super) fn known(&self, area: usize) -> Option<u32> {
        self.is_known[area].then_some(self.taints[area])
    }

    /// True if no write access to an area was granted since [`Memory::known`] returned `taints`.
    pub(super) fn is_untouched(&self, area: usize, taints: u32) -> bool {
        self.taints[area] == taints
    }

    /// Allocates a free place of an area.
    pub(super) fn take_place(&mut self, area: usize) -> Option<usize> {
        let free = self.taken[area].iter().position(|taken| !taken)?;
        self.taken[area][free] = true;
        Some(free * PLACE)
    }

    pub(super) fn free_place(&mut self, area: usize, at: usize) {
        self.taken[area][at / PLACE] = false;
    }

    fn check_poison(&self, area: usize) {
        if self.content[area] == Content::Poisoned {
            let found = self.copy(area, 0, AREA).unwrap_or_default();
            let changed = found.iter().position(|octet| *octet != POISON);
            assert_eq!(changed, None, "area {area} was written to after its last registration");
        }
    }

    /// Asserts that only writable memory was written. Then restores the initial state.
    pub(super) fn finish(&mut self) {
        assert_eq!(self.registered, [0; AREAS], "registrations remain");
        for area in 0..AREAS {
            self.check_poison(area);
            if area < SOURCES {
                let found = self.copy(area, 0, AREA).unwrap_or_default();
                let changed = (0..AREA).find(|at| found[*at] != pattern(area, *at));
                assert_eq!(
                    changed, None,
                    "area {area} was written to, but is registered for reading only"
                );
            }
            self.fill(area);
        }
        self.taints = [0; AREAS];
        self.taken = [[false; PLACES]; CHECKED];
    }
}
