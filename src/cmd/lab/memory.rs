//! Registered memory of a lab node: the file, and the receive buffers of control messages.

use std::{fs::File, io::Read, path::Path};

use rdma_over_tcp::ndk::{Adapter, Mr, MrFlags, NtStatus, Pd, RegisteredBuffer, Sge};
use sha2::{Digest as _, Sha256};

use super::script::{CONTROL_BYTES, Chunk, Digest, Remote};
use crate::{failure::Failure, station::Station};

/// Bytes hashed, cleared or read per step.
pub const PIECE_BYTES: usize = 1 << 20;

/// Converts an NDK status into a failure of `what`.
pub fn refused(what: &str, status: NtStatus) -> Failure {
    Station::default().status(what, status)
}

/// Registered memory region.
#[derive(Debug)]
pub struct Region {
    buffer: RegisteredBuffer,
    /// Registration, valid for the lifetime of the adapter.
    mr: Mr,
}

impl Region {
    /// Allocates and registers `length` zero bytes with the access `rights`.
    ///
    /// # Errors
    /// Out of memory.
    pub fn new(adapter: &Adapter, pd: &Pd, length: u64, rights: MrFlags) -> Result<Self, Failure> {
        let failed = |status| refused(&format!("register {length} bytes"), status);
        let length = usize::try_from(length).map_err(|_| {
            Failure::work(format!("register {length} bytes: more than the address space"))
        })?;
        let buffer = adapter.allocate(length).map_err(failed)?;
        let mr = pd.create_mr(false).map_err(failed)?;
        mr.register(&buffer, 0, length, rights).map_err(failed)?;
        Ok(Self { buffer, mr })
    }

    /// Returns the length in bytes.
    #[expect(clippy::len_without_is_empty, reason = "a region is never empty")]
    pub fn len(&self) -> u64 {
        self.buffer.len() as u64
    }

    /// Returns the address and token used by the peer.
    pub fn remote(&self) -> Remote {
        Remote { address: self.buffer.address(), token: self.mr.remote_token() }
    }

    /// Returns the scatter/gather entry of `chunk`.
    pub fn sge(&self, chunk: Chunk) -> Sge {
        let Chunk { offset, length } = chunk;
        Sge { address: self.buffer.address() + offset, length, token: self.mr.local_token() }
    }

    /// Registers the content of `path` for remote read.
    ///
    /// # Errors
    /// The file cannot be read, or is empty.
    pub fn of_file(adapter: &Adapter, pd: &Pd, path: &Path) -> Result<Self, Failure> {
        let failed = |error| Failure::work(format!("--file {}: {error}", path.display()));
        let mut file = File::open(path).map_err(failed)?;
        let length = file.metadata().map_err(failed)?.len();
        let region = Self::new(adapter, pd, length, MrFlags::ALLOW_REMOTE_READ)?;
        let mut piece = vec![0; PIECE_BYTES];
        for (offset, length) in region.pieces() {
            let piece = &mut piece[..length];
            file.read_exact(piece).map_err(failed)?;
            region.buffer.write_at(offset, piece);
        }
        Ok(region)
    }

    /// Clears the region; calls `run_engine` once per piece.
    pub fn clear(&self, run_engine: impl Fn()) {
        let zeros = vec![0; PIECE_BYTES.min(self.buffer.len())];
        for (offset, length) in self.pieces() {
            self.buffer.write_at(offset, &zeros[..length]);
            run_engine();
        }
    }

    /// Returns the SHA-256 of the region; calls `run_engine` once per piece.
    pub fn digest(&self, run_engine: impl Fn()) -> Digest {
        let mut hash = Sha256::new();
        let mut piece = vec![0; PIECE_BYTES.min(self.buffer.len())];
        for (offset, length) in self.pieces() {
            let piece = &mut piece[..length];
            self.buffer.read_at(offset, piece);
            hash.update(&*piece);
            run_engine();
        }
        hash.finalize().into()
    }

    fn pieces(&self) -> impl Iterator<Item = (usize, usize)> {
        let end = self.buffer.len();
        (0..end).step_by(PIECE_BYTES).map(move |offset| (offset, PIECE_BYTES.min(end - offset)))
    }
}

/// Receive buffers of control messages, one per slot.
#[derive(Debug)]
pub struct Slots {
    region: Region,
    free: Vec<u32>,
}

impl Slots {
    /// Allocates `count` slots.
    ///
    /// # Errors
    /// Out of memory.
    pub fn new(adapter: &Adapter, pd: &Pd, count: u32) -> Result<Self, Failure> {
        let length = u64::from(count) * CONTROL_BYTES as u64;
        let region = Region::new(adapter, pd, length, MrFlags::ALLOW_LOCAL_WRITE)?;
        Ok(Self { region, free: (0..count).collect() })
    }

    /// Returns a free slot and its memory for a receive.
    pub fn take(&mut self) -> Option<(u32, Sge)> {
        let slot = self.free.pop()?;
        let offset = u64::from(slot) * CONTROL_BYTES as u64;
        Some((slot, self.region.sge(Chunk { offset, length: CONTROL_BYTES as u32 })))
    }

    /// Frees `slot` and returns the `length` bytes received into it.
    pub fn release(&mut self, slot: u32, length: u32) -> Vec<u8> {
        let mut octets = vec![0; CONTROL_BYTES.min(length as usize)];
        self.region.buffer.read_at(slot as usize * CONTROL_BYTES, &mut octets);
        self.free.push(slot);
        octets
    }
}
