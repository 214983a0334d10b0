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
    /// Receives available bytes into `pieces`, or all bytes with `is_wait_all`. 0: end of the stream. A peek leaves the
    /// bytes in the ring.
    ///
    /// # Errors
    /// `ENOTCONN`, `ECONNRESET`, `EPROTO`, `EAGAIN`, `EINTR`.
    pub fn receive(
        &self,
        pieces: &mut [&mut [u8]],
        is_nonblocking: bool,
        is_peek: bool,
        is_wait_all: bool,
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
            if is_peek && is_wait_all {
                // The peer may send no more than half of the ring until the application reads.
                let enough = room.min(connection.resources.sizes.half as usize);
                if connection.unread() < enough && !connection.is_read_over() && !is_nonblocking {
                    return None;
                }
            }
            match connection.receive(pieces, total, is_peek)? {
                Ok(0) => Some(Ok(())),
                Ok(count) => {
                    total += count;
                    (total == room || !is_wait_all || is_peek).then_some(Ok(()))
                }
                Err(error) => Some(Err(error)),
            }
        });
        match received {
            Err(error) if total == 0 => Err(error),
            _ => Ok(total),
        }
    }

    /// Sends all of `pieces`, or what can be sent without blocking.
    ///
    /// # Errors
    /// `ENOTCONN`; `EPIPE`: shut down. `ECONNRESET`, `EPROTO`, `EAGAIN`, `EINTR`: nothing was sent.
    pub fn send(&self, pieces: &[&[u8]], is_nonblocking: bool) -> Result<usize, Errno> {
        let all: usize = pieces.iter().map(|piece| piece.len()).sum();
        self.send_by(all, is_nonblocking, |connection, sent| connection.send(pieces, sent))
    }

    /// Writes `data` to memory that the peer has mapped, from `offset` on.
    ///
    /// # Errors
    /// `EINVAL`: no mapping at this offset. As [`Socket::send`].
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

    /// Shuts down one or both directions.
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

    /// Sends a keep-alive.
    pub fn probe(&self) {
        let mut state = self.lock();
        self.advance(&mut state);
        if let Ok(connection) = connected(&mut state) {
            connection.probe();
        }
    }

    /// Maps a buffer at `offset`, and announces it to the peer; or only registers it.
    ///
    /// # Errors
    /// `EINVAL`: not connected. `ENOMEM`: the peer's iomap is full. As [`Mr::new`].
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

    /// Removes a mapping. After the return the adapter does not access the buffer.
    ///
    /// # Errors
    /// `EINVAL`: no such mapping. As [`Device::check`](crate::device::Device::check).
    pub fn unmap(&self, address: usize, length: usize) -> Result<(), Errno> {
        self.device().check()?;
        let region = {
            let mut state = self.lock();
            let connection = connected(&mut state).map_err(|_| Errno::INVAL)?;
            connection.unmap((address, length))?
        };
        // The drop waits for Writes that are being placed.
        drop(region);
        Ok(())
    }
}
