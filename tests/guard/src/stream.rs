//! Client of the target whose connections carry bytes at the maximum rate, both ways. Memory is reused, so the
//! counts are those of the engine.

use std::collections::VecDeque;

use bytes::Bytes;
use host_stack::socket::{ListenerId, Notice, Request, SocketPort};
use offload_engine::{
    chimney::client::{ConnectionEvent, ConnectionIo, OffloadClient, OffloadHandle},
    engine::{Connections, NodeClient},
    nbl::{NblChain, NetBufferList, ReceiveChain},
    status::NdisStatus,
    time::{Duration, Instant},
};

use std::net::SocketAddr;

/// Posted lists of a connection.
pub const LISTS: usize = 16;

/// Client with one connection.
#[derive(Debug)]
pub struct Pump {
    port: SocketPort,
    data: Bytes,
    handle: Option<OffloadHandle>,
    /// Lists available for posting.
    spare: VecDeque<NetBufferList>,
    /// Lists acknowledged by the peer.
    pub lists_sent: u64,
    /// Bytes received.
    pub bytes_received: u64,
    /// True if it sends.
    pub sends: bool,
    /// True if the peer has reset the connection.
    is_over: bool,
}

impl Pump {
    /// Creates a client that sends lists of `list_bytes`.
    pub fn new(port: SocketPort, list_bytes: usize) -> Self {
        let data = Bytes::from(vec![0x5a; list_bytes]);
        let spare = (0..LISTS).map(|_| NetBufferList::from_mdl(1, data.clone())).collect();
        Self {
            port,
            data,
            handle: None,
            spare,
            lists_sent: 0,
            bytes_received: 0,
            sends: false,
            is_over: false,
        }
    }

    /// Listens; the first accepted connection is used.
    pub fn listen(&self, local: SocketAddr) {
        let listener = ListenerId(self.port.allocate());
        let (local, at_once) = (local.into(), true);
        self.port.request(Request::Listen { listener, local, endpoint: None, backlog: 1, at_once });
    }

    /// Connects to `remote`.
    pub fn connect(&self, remote: SocketAddr) {
        let handle = OffloadHandle(self.port.allocate());
        self.port.request(Request::Connect {
            handle,
            endpoint: None,
            local: None,
            remote,
            timeout: Duration::from_secs(10),
            at_once: true,
        });
    }

    /// Handle of the connection, once it is offloaded.
    pub fn offloaded(&self) -> Option<OffloadHandle> {
        self.handle
    }

    fn post(&mut self, io: &mut ConnectionIo<'_>) {
        while self.sends && io.send_room() > 0 {
            let Some(mut list) = self.spare.pop_front() else { return };
            // Like a poster that keeps its lists: the same memory, from its start.
            let NetBufferList { net_buffers, status, bytes_transferred, context: _ } = &mut list;
            for net_buffer in net_buffers {
                net_buffer.clear();
                net_buffer.push_mdl(self.data.clone());
            }
            *status = NdisStatus::PENDING;
            *bytes_transferred = 0;
            let mut chain = io.empty_chain();
            chain.push_back(list);
            io.send(chain);
        }
    }
}

impl OffloadClient for Pump {
    fn offloaded(&mut self, io: &mut ConnectionIo<'_>) {
        self.handle = Some(io.handle);
        io.resume_receive();
    }

    fn receive(&mut self, _io: &mut ConnectionIo<'_>, data: &[u8], _push: bool) -> usize {
        self.bytes_received += data.len() as u64;
        data.len()
    }

    fn receive_complete(&mut self, _io: &mut ConnectionIo<'_>, _chain: ReceiveChain) {
        unreachable!("no receive is posted");
    }

    fn send_complete(&mut self, io: &mut ConnectionIo<'_>, mut chain: NblChain) {
        while let Some(list) = chain.pop_front() {
            if self.is_over {
                return;
            }
            assert_eq!(list.status, NdisStatus::SUCCESS);
            self.lists_sent += 1;
            self.spare.push_back(list);
        }
        io.recycle_chain(chain);
        self.post(io);
    }

    fn send_room(&mut self, io: &mut ConnectionIo<'_>) {
        self.post(io);
    }

    fn disconnect_complete(&mut self, _io: &mut ConnectionIo<'_>, _nbl: NetBufferList) {}

    fn event(&mut self, _io: &mut ConnectionIo<'_>, event: ConnectionEvent) {
        // The other node has exited.
        self.is_over |= event == ConnectionEvent::Abort;
        let is_expected = self.is_over || matches!(event, ConnectionEvent::SendBacklogChange(_));
        assert!(is_expected, "{event:?}");
    }

    fn uploaded(&mut self, _handle: OffloadHandle) {
        unreachable!("no upload is requested");
    }
}

impl NodeClient for Pump {
    fn poll(&mut self, _now: Instant, connections: &mut Connections) -> bool {
        let mut is_busy = false;
        while let Some(notice) = self.port.notice() {
            is_busy = true;
            let failed =
                matches!(notice, Notice::ConnectFailed { .. } | Notice::ListenFailed { .. });
            assert!(!failed, "{notice:?}");
        }
        if self.sends
            && self.spare.len() == LISTS
            && let Some(handle) = self.handle
        {
            connections.schedule_send_room(handle);
        }
        is_busy
    }

    fn has_input(&self) -> bool {
        self.port.has_notice()
    }
}
