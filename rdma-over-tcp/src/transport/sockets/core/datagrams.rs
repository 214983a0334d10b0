//! Datagrams of queue pairs without a connection: events and turns of their sockets.

use std::io;

use rustix::event::epoll::EventFlags;

use super::{SocketRnic, allocate};

impl SocketRnic {
    /// Opens the UDP socket of a port. A repeated call has no effect.
    ///
    /// # Errors
    /// Those of the socket: AddrInUse if another process has the port.
    pub(crate) fn open_datagrams(&mut self, port: u16) -> io::Result<()> {
        self.rnic.keep_datagrams(port);
        if self.datagrams.has(port) {
            return Ok(());
        }
        self.datagrams.open(port, allocate(&self.next_name))
    }

    /// Handles the events of a UDP socket. Returns false if there is no such socket.
    pub(super) fn handle_datagram_events(&mut self, name: u64, events: EventFlags) -> bool {
        if events.contains(EventFlags::OUT) && self.datagrams.handle_room(name) {
            self.rnic.handle_datagram_room();
        }
        self.receive_datagrams(name, false)
    }

    /// Gives a UDP socket a turn, which was scheduled or not. Returns false if there is no such socket.
    pub(super) fn receive_datagrams(&mut self, name: u64, is_scheduled: bool) -> bool {
        let Self { rnic, datagrams, received, ready, .. } = self;
        match datagrams.receive(name, is_scheduled, rnic, received) {
            None => false,
            Some(has_more) => {
                ready.extend(has_more.then_some(name));
                true
            }
        }
    }

    /// Sends the datagrams of scheduled queue pairs. Returns true if there were any.
    pub(super) fn transmit_datagrams(&mut self) -> bool {
        let has_datagrams = self.rnic.has_datagrams();
        if has_datagrams {
            self.rnic.transmit_datagrams(&mut self.datagrams);
        }
        has_datagrams
    }
}
