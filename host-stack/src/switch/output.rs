//! Output of a switch to the two stacks.

use offload_engine::{
    chimney::client::{ConnectionIo, Disconnect, OffloadHandle},
    nbl::NetBufferList,
};

use super::{SendRequest, Switch};
use crate::socket::{Request, SocketPort};

impl Switch {
    /// Passes the requests of [`Switch::poll_host`] to the host stack. `begins_segment`: each list begins a segment.
    pub fn pass_to_host(&mut self, port: &SocketPort, handle: OffloadHandle, begins_segment: bool) {
        while let Some(item) = self.poll_host() {
            port.request(match item {
                SendRequest::List(list) => Request::Send { handle, list, begins_segment },
                SendRequest::Shutdown => Request::Shutdown { handle },
                SendRequest::Reset => Request::Abort { handle },
            });
        }
    }

    /// Posts the requests of [`Switch::poll_target`] to the target.
    pub fn post_to_target(&mut self, io: &mut ConnectionIo<'_>) {
        while let Some(item) = self.poll_target() {
            match item {
                SendRequest::List(list) => {
                    let mut chain = io.empty_chain();
                    chain.push_back(list);
                    io.send(chain);
                }
                SendRequest::Shutdown => io.disconnect(Disconnect::Graceful, NetBufferList::new(0)),
                SendRequest::Reset => io.disconnect(Disconnect::Abortive, NetBufferList::new(0)),
            }
        }
    }
}
