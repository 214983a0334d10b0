//! Memory that scripts register: areas of one mapping, each with a purpose.
//!
//! | area | registered | content |
//! |---|---|---|
//! | 0, 1 | never for writing | a pattern, which has to stay; checked Sends, Writes and Reads take it from there |
//! | 2 | for local writing | places of checked receives |
//! | 3 | for the peer's writing | places of checked Writes |
//! | 4 | for local writing | places of checked Reads |
//! | 5 to 7 | anyhow | overwritten or made inaccessible when their last registration has ended |
//!
//! An area that was overwritten after its last registration has to stay as it is; one that is inaccessible ends the
//! process when it is touched.

use core::{ffi::c_void, ptr, slice};

/// Octets of an area.
pub(super) const AREA: usize = 16 * 1024;
/// Areas with content that is checked.
pub(super) const CHECKED: usize = 5;
/// Areas.
pub(super) const AREAS: usize = 8;
/// The areas that checked requests send from.
pub(super) const SOURCES: usize = 2;
/// The area of checked receives.
pub(super) const RECEIVES: usize = 2;
/// The area of checked Writes.
pub(super) const TARGETS: usize = 3;
/// The area of checked Reads.
pub(super) const SINKS: usize = 4;
/// Octets of a place in areas 2 to 4.
pub(super) const PLACE: usize = 256;
/// Places of an area.
const PLACES: usize = AREA / PLACE;
/// Areas lie so far apart; between them nothing is mapped.
const STRIDE: usize = AREA + 64 * 1024;
/// Octet that areas are overwritten with when their last registration has ended.
const POISON: u8 = 0xdb;

/// What there is at an area.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Content {
    /// The pattern, or what was written by right.
    Used,
    /// Overwritten: nobody may read or write it.
    Poisoned,
    /// No access.
    Gone,
}

/// What becomes of an area when its last registration has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum After {
    Keep,
    Poison,
    Unmap,
}

/// The areas.
#[derive(Debug)]
pub(super) struct Memory {
    base: *mut u8,
    content: [Content; AREAS],
    /// Registrations for writing so far.
    taints: [u32; AREAS],
    /// None of them since the area has got its pattern.
    is_known: [bool; AREAS],
    /// Live registrations.
    registered: [u32; AREAS],
    taken: [[bool; PLACES]; CHECKED],
}

/// The pattern of an area: no two places are alike.
fn pattern(area: usize, at: usize) -> u8 {
    let word = (at / 8 * 131 + area * 7919) as u32;
    (word.wrapping_mul(0x9e37_79b9) >> (at % 4 * 8)) as u8 ^ (at % 8) as u8
}

impl Memory {
    /// Maps the areas.
    pub(super) fn new() -> Self {
        let (rights, kind) = (libc::PROT_NONE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping touches no other.
        let base = unsafe { libc::mmap(ptr::null_mut(), STRIDE * AREAS, rights, kind, -1, 0) };
        assert_ne!(base, libc::MAP_FAILED, "memory for {AREAS} areas");
        let mut memory = Self {
            base: base.cast(),
            content: [Content::Gone; AREAS],
            taints: [0; AREAS],
            is_known: [true; AREAS],
            registered: [0; AREAS],
            taken: [[false; PLACES]; CHECKED],
        };
        (0..AREAS).for_each(|area| memory.fill(area));
        memory
    }

    /// The address of an octet, or of one behind the area.
    pub(super) fn address(&self, area: usize, at: usize) -> *mut u8 {
        self.base.wrapping_add(area * STRIDE + at)
    }

    fn protect(&self, area: usize, rights: i32) {
        let start = self.address(area, 0).cast::<c_void>();
        // SAFETY: the area is whole pages of the mapping; nothing of Rust's lies in it.
        assert_eq!(unsafe { libc::mprotect(start, AREA, rights) }, 0, "mprotect");
    }

    /// Gives an area its pattern.
    fn fill(&mut self, area: usize) {
        self.protect(area, libc::PROT_READ | libc::PROT_WRITE);
        for at in 0..AREA {
            // SAFETY: the area was made accessible; the library writes to it by raw pointers as well.
            unsafe { self.address(area, at).write(pattern(area, at)) };
        }
        self.content[area] = Content::Used;
        self.is_known[area] = true;
    }

    /// A copy of octets; `None`: not within the area, or not accessible.
    pub(super) fn copy(&self, area: usize, at: usize, length: usize) -> Option<Vec<u8>> {
        let end = at.checked_add(length)?;
        if end > AREA || self.content[area] == Content::Gone {
            return None;
        }
        // SAFETY: the octets are within an accessible area.
        Some(unsafe { slice::from_raw_parts(self.address(area, at), length) }.to_vec())
    }

    /// Registers an area: one that was overwritten has its pattern again. One that is not accessible stays so, unless
    /// it `is_wanted`.
    pub(super) fn before_registration(&mut self, area: usize, is_wanted: bool) {
        if self.content[area] == Content::Poisoned
            || self.content[area] == Content::Gone && is_wanted
        {
            self.check_poison(area);
            self.fill(area);
        }
    }

    pub(super) fn is_gone(&self, area: usize) -> bool {
        self.content[area] == Content::Gone
    }

    pub(super) fn registered(&mut self, area: usize, is_written: bool) {
        self.registered[area] += 1;
        self.taints[area] += u32::from(is_written);
        self.is_known[area] &= !is_written;
    }

    /// A registration has ended, and with it, if it was the last one, the program's promise to keep the memory.
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
                self.content[area] = Content::Gone;
            }
        }
    }

    /// How often an area was registered for writing, if what is in it is known: a request that is posted now sends
    /// that, unless the number has changed meanwhile.
    pub(super) fn known(&self, area: usize) -> Option<u32> {
        self.is_known[area].then_some(self.taints[area])
    }

    /// True if nobody has got the right to write to an area since [`Memory::known`] has said `taints`.
    pub(super) fn is_untouched(&self, area: usize, taints: u32) -> bool {
        self.taints[area] == taints
    }

    /// A free place of an area, which is taken.
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

    /// Nothing was written where nothing may be written. Then all is as at first.
    pub(super) fn finish(&mut self) {
        assert_eq!(self.registered, [0; AREAS], "registrations are left");
        for area in 0..AREAS {
            self.check_poison(area);
            if area < SOURCES {
                let found = self.copy(area, 0, AREA).unwrap_or_default();
                let changed = (0..AREA).find(|at| found[*at] != pattern(area, *at));
                assert_eq!(
                    changed, None,
                    "area {area} was written to, which is registered for reading"
                );
            }
            self.fill(area);
        }
        self.taints = [0; AREAS];
        self.taken = [[false; PLACES]; CHECKED];
    }
}
