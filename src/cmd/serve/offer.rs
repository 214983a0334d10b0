//! Regions, as they are asked for, and as the peer is told of them.
//!
//! The private data of the Reply is text, a line for each region:
//!
//! ```text
//! flue1 stag=0x00c0ffee addr=0x00007f0012345000 len=65536 rights=rwa
//! ```
//! STag, address and length are those that a Read, Write or atomic names. Later versions of this text may have more
//! fields behind these, and another word in front if it means something else.

use std::fmt;

use rdma_over_tcp::ndk::MrFlags;
use serde::Serialize;

use crate::{cmd::perf::kind::parse_size, failure::Failure};

/// The word in front.
const VERSION: &str = "flue1";

/// A region that was asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Region {
    /// Bytes.
    pub length: u64,
    /// What peers may do.
    pub rights: Rights,
}

impl Region {
    /// Without a wish.
    pub const DEFAULT: Self =
        Self { length: 64 << 10, rights: Rights { read: true, write: true, atomic: true } };
}

/// What peers may do with a region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rights {
    /// RDMA Read.
    pub read: bool,
    /// RDMA Write.
    pub write: bool,
    /// Atomics.
    pub atomic: bool,
}

impl Rights {
    /// The flags of a registration.
    pub fn flags(self) -> MrFlags {
        let mut flags = MrFlags::ALLOW_LOCAL_WRITE;
        for (is_granted, flag) in [
            (self.read, MrFlags::ALLOW_REMOTE_READ),
            (self.write, MrFlags::ALLOW_REMOTE_WRITE),
            (self.atomic, MrFlags::ALLOW_REMOTE_ATOMIC),
        ] {
            if is_granted {
                flags |= flag;
            }
        }
        flags
    }
}

impl fmt::Display for Rights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (is_granted, letter) in [(self.read, "r"), (self.write, "w"), (self.atomic, "a")] {
            if is_granted {
                f.write_str(letter)?;
            }
        }
        Ok(())
    }
}

/// A size, and behind a colon letters for the rights; without them read and write.
///
/// # Errors
/// Not such a size, or other letters.
pub fn parse(text: &str) -> Result<Region, String> {
    let (size, letters) = text.split_once(':').unwrap_or((text, "rw"));
    let has = |letter| letters.contains(letter);
    let rights = Rights { read: has('r'), write: has('w'), atomic: has('a') };
    let mut sorted: Vec<char> = letters.chars().collect();
    sorted.sort_unstable();
    sorted.dedup();
    if letters.is_empty() || sorted.len() != rights.to_string().len() {
        return Err(format!("rights {letters:?}: letters of r, w and a"));
    }
    Ok(Region { length: parse_size(size)?, rights })
}

/// A region that is registered.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Offered {
    /// What a peer names as its STag.
    pub stag: u32,
    /// And as its tagged offset.
    pub address: u64,
    /// Bytes.
    pub length: u64,
    /// Letters.
    pub rights: String,
}

impl fmt::Display for Offered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { stag, address, length, rights } = self;
        write!(f, "{VERSION} stag={stag:#010x} addr={address:#018x} len={length} rights={rights}")
    }
}

/// The private data that names these regions, of at most so many bytes.
///
/// # Errors
/// They are too many.
pub fn private_data(offered: &[Offered], most: usize) -> Result<String, Failure> {
    let lines: Vec<String> = offered.iter().map(Offered::to_string).collect();
    let text = lines.join("\n");
    match text.len() <= most {
        true => Ok(text),
        false => Err(Failure::usage(format!(
            "{} regions: private data of {} bytes, at most {most} fit",
            offered.len(),
            text.len()
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rights_are_letters_in_any_order() {
        for (text, rights, flags) in [
            ("1", "rw", 0x7),
            ("1:r", "r", 0x3),
            ("1:w", "w", 0x5),
            ("1:a", "a", 0x8000_0001),
            ("1:awr", "rwa", 0x8000_0007),
        ] {
            let region = parse(text).unwrap();
            assert_eq!(region.rights.to_string(), rights);
            assert_eq!(region.rights.flags(), MrFlags::from_bits_retain(flags), "{text}");
            assert_eq!(region.rights.flags().check(), Ok(()));
        }
        for text in ["", ":r", "1:", "1:x", "1:rx", "65M"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn each_region_has_a_line() {
        let one = Offered { stag: 0xc0ffee, address: 0x1000, length: 5, rights: "rw".into() };
        let line = "flue1 stag=0x00c0ffee addr=0x0000000000001000 len=5 rights=rw";
        assert_eq!(private_data(std::slice::from_ref(&one), 100).unwrap(), line);
        let two = private_data(&[one.clone(), one.clone()], 508).unwrap();
        assert_eq!(two, format!("{line}\n{line}"));
        let many = vec![one; 9];
        assert!(private_data(&many, 508).unwrap_err().message.contains("9 regions"));
    }
}
