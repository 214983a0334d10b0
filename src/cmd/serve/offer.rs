//! Regions: options, and their announcement to the peer.
//!
//! The private data of the Reply is text, one line per region:
//!
//! ```text
//! flue1 stag=0x00c0ffee addr=0x00007f0012345000 len=65536 rights=rwa
//! ```
//! STag, address and length are the values used by a Read, Write or atomic. Later versions may append fields; an
//! incompatible version has another first word.

use std::fmt;

use rdma_over_tcp::ndk::MrFlags;
use serde::Serialize;

use crate::{cmd::perf::kind::parse_size, failure::Failure};

/// First word of the announcement.
const VERSION: &str = "flue1";

/// Requested region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Region {
    /// Length, bytes.
    pub length: u64,
    /// Access rights of peers.
    pub rights: Rights,
}

impl Region {
    /// Default region.
    pub const DEFAULT: Self =
        Self { length: 64 << 10, rights: Rights { read: true, write: true, atomic: true } };
}

/// Access rights of peers to a region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rights {
    /// True if RDMA Read is permitted.
    pub read: bool,
    /// True if RDMA Write is permitted.
    pub write: bool,
    /// True if atomics are permitted.
    pub atomic: bool,
}

impl Rights {
    /// Returns the registration flags.
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

/// Parses a size, optionally followed by a colon and letters for the rights; the default is read and write.
///
/// # Errors
/// Invalid size or letters.
pub fn parse(text: &str) -> Result<Region, String> {
    let (size, letters) = text.split_once(':').unwrap_or((text, "rw"));
    let has = |letter| letters.contains(letter);
    let rights = Rights { read: has('r'), write: has('w'), atomic: has('a') };
    let mut sorted: Vec<char> = letters.chars().collect();
    sorted.sort_unstable();
    sorted.dedup();
    if letters.is_empty() || sorted.len() != rights.to_string().len() {
        return Err(format!("rights {letters:?}: expected letters of r, w and a"));
    }
    Ok(Region { length: parse_size(size)?, rights })
}

/// Registered region.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Offered {
    /// STag used by a peer.
    pub stag: u32,
    /// Tagged offset used by a peer.
    pub address: u64,
    /// Length, bytes.
    pub length: u64,
    /// Access rights, as letters.
    pub rights: String,
}

impl fmt::Display for Offered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { stag, address, length, rights } = self;
        write!(f, "{VERSION} stag={stag:#010x} addr={address:#018x} len={length} rights={rights}")
    }
}

/// Returns the private data that announces these regions, at most `most` bytes.
///
/// # Errors
/// Too many regions.
pub fn private_data(offered: &[Offered], most: usize) -> Result<String, Failure> {
    let lines: Vec<String> = offered.iter().map(Offered::to_string).collect();
    let text = lines.join("\n");
    match text.len() <= most {
        true => Ok(text),
        false => Err(Failure::usage(format!(
            "--region: {} regions take {} bytes of private data, expected at most {most}",
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
    fn private_data_has_one_line_per_region() {
        let one = Offered { stag: 0xc0ffee, address: 0x1000, length: 5, rights: "rw".into() };
        let line = "flue1 stag=0x00c0ffee addr=0x0000000000001000 len=5 rights=rw";
        assert_eq!(private_data(std::slice::from_ref(&one), 100).unwrap(), line);
        let two = private_data(&[one.clone(), one.clone()], 508).unwrap();
        assert_eq!(two, format!("{line}\n{line}"));
        let many = vec![one; 9];
        assert!(private_data(&many, 508).unwrap_err().message.contains("9 regions"));
    }
}
