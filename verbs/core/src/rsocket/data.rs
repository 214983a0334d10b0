//! Data of an rsocket: send, receive, mapped buffers.

use rdma_over_tcp::rnic::RegisteredBuffer;

use super::{
    connection::Connection,
    options::Shutdown,
    resources::Owned,
    socket::{Socket, connected},
};
use crate::{
    errno::Errno,
    mr::{Mr, access, rights},
};

impl Socket {
    /// Receives into `pieces`: what there is, or all that there is room for; 0 is the end. Of a peek the bytes stay.
    ///
    /// # Errors
    /// `ENOTCONN`, `ECONNRESET`, `EPROTO`, `EAGAIN`, `EINTR`.
    pub fn receive(
        &self,
        pieces: &mut [&mut [u8]],
        is_nonblocking: bool,
        is_peek: bool,
        wants_all: bool,
    ) -> Result<usize, Errno> {
        let room: usize = pieces.iter().map(|piece| piece.len()).sum();
        if room == 0 {
            return Ok(0);
        }
        let is_nonblocking = is_nonblocking || self.is_nonblocking();
        let mut total = 0;
        let received = self.wait(is_nonblocking, |state| {
            let connection = match connected(state) {
                Ok(connection) => connection,
                Err(None) => return None,
                Err(Some(error)) => return Some(Err(error)),
            };
            if is_peek && wants_all {
                // More than half of the ring may not come before something was read.
                let enough = room.min(connection.resources.sizes.half as usize);
                if connection.unread() < enough && !connection.is_read_over() && !is_nonblocking {
                    return None;
                }
            }
            match connection.receive(pieces, total, is_peek)? {
                Ok(0) => Some(Ok(())),
                Ok(count) => {
                    total += count;
                    (total == room || !wants_all || is_peek).then_some(Ok(()))
                }
                Err(error) => Some(Err(error)),
            }
        });
        match received {
            Err(error) if total == 0 => Err(error),
            _ => Ok(total),
        }
    }

    /// Sends all of `pieces`, or what can be sent without waiting.
    ///
    /// # Errors
    /// `ENOTCONN`, `EPIPE`: it was shut down. `ECONNRESET`, `EPROTO`, `EAGAIN`, `EINTR`: nothing was sent.
    pub fn send(&self, pieces: &[&[u8]], is_nonblocking: bool) -> Result<usize, Errno> {
        let all: usize = pieces.iter().map(|piece| piece.len()).sum();
        self.send_by(all, is_nonblocking, |connection, sent| connection.send(pieces, sent))
    }

    /// Writes `data` into memory that the peer has mapped, from `offset` on.
    ///
    /// # Errors
    /// `EINVAL`: nothing is mapped there. As [`Socket::send`].
    pub fn write_mapped(
        &self,
        data: &[u8],
        offset: u64,
        is_nonblocking: bool,
    ) -> Result<usize, Errno> {
        self.send_by(data.len(), is_nonblocking, |connection, sent| {
            let at = offset.checked_add(sent as u64);
            let Some(at) = at else { return Some(Err(Errno::INVAL)) };
            connection.write_mapped(&data[sent..], at)
        })
    }

    fn send_by(
        &self,
        all: usize,
        is_nonblocking: bool,
        mut send: impl FnMut(&mut Connection, usize) -> Option<Result<usize, Errno>>,
    ) -> Result<usize, Errno> {
        let mut sent = 0;
        let done = self.wait(is_nonblocking || self.is_nonblocking(), |state| {
            let connection = match connected(state) {
                Ok(connection) => connection,
                Err(None) => return None,
                Err(Some(error)) => return Some(Err(error)),
            };
            if all == 0 {
                return Some(Ok(()));
            }
            match send(connection, sent)? {
                Ok(count) => {
                    sent += count;
                    (sent == all).then_some(Ok(()))
                }
                Err(error) => Some(Err(error)),
            }
        });
        match done {
            Err(error) if sent == 0 => Err(error),
            _ => Ok(sent),
        }
    }

    /// Ends directions.
    ///
    /// # Errors
    /// `ENOTCONN`. As [`Device::check`](crate::device::Device::check).
    pub fn shut_down(&self, how: Shutdown) -> Result<(), Errno> {
        self.device().check()?;
        let mut state = self.lock();
        self.advance(&mut state);
        let connection = connected(&mut state).map_err(|_| Errno::NOTCONN)?;
        let (read, write) = (how != Shutdown::Write, how != Shutdown::Read);
        connection.shut_down(read, write);
        drop(state);
        self.wakers.wake();
        Ok(())
    }

    /// Sees whether the peer is still there.
    pub fn probe(&self) {
        let mut state = self.lock();
        self.advance(&mut state);
        if let Ok(connection) = connected(&mut state) {
            connection.probe();
        }
    }

    /// Maps a buffer for the peer as `offset`; or only registers it.
    ///
    /// # Errors
    /// `EINVAL`: it is not connected. `ENOMEM`: the peer's iomap is full. Those of [`Mr::new`].
    pub fn map(
        &self,
        buffer: &RegisteredBuffer,
        offset: u64,
        is_announced: bool,
    ) -> Result<(), Errno> {
        self.device().check()?;
        let mut state = self.lock();
        self.advance(&mut state);
        let connection = connected(&mut state).map_err(|_| Errno::INVAL)?;
        let remote = if is_announced { access::REMOTE_WRITE } else { 0 };
        let rights = rights(access::LOCAL_WRITE | remote)?;
        let region = Mr::new(&connection.resources.pd, buffer, rights)?;
        let name = (buffer.address() as usize, buffer.len());
        connection.map(Owned::new(region, Mr::destroy), name, offset, is_announced)
    }

    /// Ends a mapping: nothing writes the buffer any more.
    ///
    /// # Errors
    /// `EINVAL`: there is none. As [`Device::check`](crate::device::Device::check).
    pub fn unmap(&self, address: usize, length: usize) -> Result<(), Errno> {
        self.device().check()?;
        let region = {
            let mut state = self.lock();
            let connection = connected(&mut state).map_err(|_| Errno::INVAL)?;
            connection.unmap((address, length))?
        };
        // It waits for Writes that are being placed.
        drop(region);
        Ok(())
    }
}
