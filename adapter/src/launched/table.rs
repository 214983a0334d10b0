//! Table of a node's connections, in a memory file that outlives the process that writes it.
//!
//! The table has a slot of [`SLOT_BYTES`] for each of at most [`CONNECTIONS_MAX`] connections. Further connections are
//! not reset when the process is killed. One process writes the table; it is read only after that process has ended.

use std::{
    fs::File,
    io,
    net::{IpAddr, Ipv6Addr, SocketAddr},
    os::unix::fs::FileExt as _,
};

use offload_engine::descriptor::Guarded;

use super::segment::Octets;

/// Number of slots of the table.
pub(super) const CONNECTIONS_MAX: usize = 4096;
const SLOT_BYTES: usize = 64;

/// Connection with the values that a reset needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Connection {
    /// Ethernet address of the next hop.
    pub(super) hop: Octets,
    pub(super) local: SocketAddr,
    pub(super) remote: SocketAddr,
    /// Initial send sequence number.
    pub(super) iss: u32,
}

impl Connection {
    fn slot(&self) -> [u8; SLOT_BYTES] {
        let Self { hop, local, remote, iss } = self;
        let mut slot = [0; SLOT_BYTES];
        slot[0] = if local.is_ipv4() { 4 } else { 6 };
        slot[2..8].copy_from_slice(hop);
        for (at, end) in [(8, local), (32, remote)] {
            let ip = match end.ip() {
                IpAddr::V4(ip) => ip.to_ipv6_mapped(),
                IpAddr::V6(ip) => ip,
            };
            slot[at..at + 16].copy_from_slice(&ip.octets());
            slot[at + 16..at + 18].copy_from_slice(&end.port().to_be_bytes());
        }
        slot[56..60].copy_from_slice(&iss.to_be_bytes());
        slot
    }

    fn of_slot(slot: &[u8; SLOT_BYTES]) -> Option<Self> {
        let end = |at: usize| {
            let octets: [u8; 16] = slot[at..at + 16].try_into().ok()?;
            let ip = Ipv6Addr::from(octets);
            let port = u16::from_be_bytes(slot[at + 16..at + 18].try_into().ok()?);
            match slot[0] {
                4 => Some(SocketAddr::new(ip.to_ipv4_mapped()?.into(), port)),
                6 => Some(SocketAddr::new(ip.into(), port)),
                _ => None,
            }
        };
        Some(Self {
            hop: slot[2..8].try_into().ok()?,
            local: end(8)?,
            remote: end(32)?,
            iss: u32::from_be_bytes(slot[56..60].try_into().ok()?),
        })
    }
}

/// Table of the process that writes it.
#[derive(Debug)]
pub(super) struct Table {
    file: Guarded<File>,
    free: Vec<usize>,
}

impl Table {
    /// Returns the connections that the previous writer has left.
    pub(super) fn read(file: &File) -> io::Result<Vec<Connection>> {
        let mut octets = vec![0; SLOT_BYTES * CONNECTIONS_MAX];
        let mut length = 0;
        loop {
            match file.read_at(&mut octets[length..], length as u64) {
                Ok(0) => break,
                Ok(count) => length += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        let (slots, _) = octets[..length].as_chunks::<SLOT_BYTES>();
        Ok(slots.iter().filter_map(Connection::of_slot).collect())
    }

    /// Creates an empty table in `file`, which this process writes.
    pub(super) fn new(file: File) -> io::Result<Self> {
        file.set_len(0)?;
        Ok(Self { file: file.into(), free: (0..CONNECTIONS_MAX).rev().collect() })
    }

    /// Adds a connection. Returns its slot, or `None` if the table is full.
    pub(super) fn enter(&mut self, connection: &Connection) -> Option<usize> {
        let slot = self.free.pop()?;
        self.write(slot, &connection.slot());
        Some(slot)
    }

    /// Frees the slot of a connection that has ended.
    pub(super) fn free(&mut self, slot: usize) {
        self.write(slot, &[0; SLOT_BYTES]);
        self.free.push(slot);
    }

    fn write(&self, slot: usize, octets: &[u8; SLOT_BYTES]) {
        if let Err(error) = self.file.write_all_at(octets, (slot * SLOT_BYTES) as u64) {
            tracing::warn!(%error, "table of connections: write failed: no reset if the program is killed");
        }
    }
}

#[cfg(test)]
mod tests {
    use rustix::fs::{MemfdFlags, memfd_create};

    use super::*;

    fn connection(remote: &str) -> Connection {
        let remote: SocketAddr = remote.parse().unwrap();
        let local = if remote.is_ipv4() { "10.0.0.1:7174" } else { "[fd00::1]:7174" };
        Connection { hop: [2, 0, 0, 0, 0, 7], local: local.parse().unwrap(), remote, iss: u32::MAX }
    }

    #[test]
    fn table_lists_connections_that_have_not_ended() {
        let file = File::from(memfd_create("flue-test", MemfdFlags::CLOEXEC).unwrap());
        assert_eq!(Table::read(&file).unwrap(), []);
        let mut table = Table::new(file.try_clone().unwrap()).unwrap();
        let all = ["10.0.0.2:1", "[fd00::2]:65535", "10.0.0.3:3"].map(connection);
        let slots = all.map(|it| table.enter(&it).unwrap());
        assert_eq!(Table::read(&file).unwrap(), all);
        table.free(slots[1]);
        assert_eq!(Table::read(&file).unwrap(), [all[0], all[2]]);
        assert_eq!(table.enter(&all[1]), Some(slots[1]), "the free slot is reused");
        drop(Table::new(file.try_clone().unwrap()).unwrap());
        assert_eq!(Table::read(&file).unwrap(), []);
    }

    #[test]
    fn full_table_refuses_a_connection() {
        let file = File::from(memfd_create("flue-test", MemfdFlags::CLOEXEC).unwrap());
        let mut table = Table::new(file.try_clone().unwrap()).unwrap();
        let one = connection("10.0.0.2:1");
        (0..CONNECTIONS_MAX).for_each(|_| assert!(table.enter(&one).is_some()));
        assert_eq!(table.enter(&one), None);
        assert_eq!(Table::read(&file).unwrap().len(), CONNECTIONS_MAX);
    }
}
