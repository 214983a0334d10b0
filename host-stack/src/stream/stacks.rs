//! Lower side of a stream: notices and upcalls of the two stacks, and data for them.

use std::{net::SocketAddr, vec::Vec};

use offload_engine::{
    chimney::client::{
        ConnectionEvent, ConnectionIo, Disconnect, OffloadClient, OffloadHandle, UploadReason,
    },
    engine::{Callback, Connections, NodeClient},
    nbl::{NblChain, NetBufferList, ReceiveChain},
    status::NdisStatus,
    time::Instant,
};

use super::{KEEP_BYTES_MIN, RECEIVE_QUEUE_BYTES_MAX, Stream, Streams};
use crate::socket::{HostError, ListenerId, Notice, Request};

impl Streams {
    fn notice(&mut self, now: Instant, connections: &mut Connections, notice: Notice) {
        let handle = match notice {
            Notice::Bound { endpoint, local } => {
                if let Some(endpoint) = self.endpoints.get_mut(&endpoint) {
                    *endpoint = Some(Ok(local));
                }
                return;
            }
            Notice::BindFailed { endpoint, error } => {
                if let Some(endpoint) = self.endpoints.get_mut(&endpoint) {
                    *endpoint = Some(Err(error));
                }
                return;
            }
            Notice::Listening { listener, local } => {
                if let Some(listener) = self.listeners.get_mut(&listener) {
                    listener.state = Some(Ok(local));
                }
                return;
            }
            Notice::ListenFailed { listener, error } => {
                if let Some(listener) = self.listeners.get_mut(&listener) {
                    listener.state = Some(Err(error));
                }
                return;
            }
            Notice::Established { handle, listener, local, remote, offloading, .. } => {
                self.established(handle, listener, local, remote, offloading);
                handle
            }
            Notice::ConnectFailed { handle, error }
            | Notice::Closed { handle, error: Some(error) } => {
                if let Some(stream) = self.streams.get_mut(&handle) {
                    stream.end(Some(error));
                }
                return;
            }
            Notice::Closed { handle, error: None } => {
                if let Some(stream) = self.streams.get_mut(&handle) {
                    stream.status.shut_down = true;
                    stream.end(None);
                }
                return;
            }
            Notice::Offloading { handle, unanswered, shutdown } => {
                if let Some(stream) = self.streams.get_mut(&handle) {
                    stream.switch.begin_offload(unanswered, shutdown);
                }
                handle
            }
            Notice::Returned { handle, chain, shutdown } => {
                if let Some(stream) = self.streams.get_mut(&handle) {
                    stream.switch.take_returned(chain, shutdown);
                    stream.return_unsent();
                }
                handle
            }
            Notice::Uploaded { handle, lists, bytes, .. } => {
                if let Some(stream) = self.streams.get_mut(&handle) {
                    stream.switch.complete_upload(lists, bytes);
                }
                handle
            }
            Notice::Data { handle, data } => {
                if let Some(stream) = self.streams.get_mut(&handle) {
                    stream.host_unconsumed += data.len();
                    stream.push_received(data);
                }
                return;
            }
            Notice::Sent { handle, chain } => {
                if let Some(stream) = self.streams.get_mut(&handle) {
                    chain.into_iter().for_each(|list| stream.complete(list));
                }
                handle
            }
            Notice::PeerClosed { handle } => {
                if let Some(stream) = self.streams.get_mut(&handle) {
                    stream.status.peer_closed = true;
                }
                return;
            }
            Notice::ShutDown { handle } => {
                if let Some(stream) = self.streams.get_mut(&handle) {
                    stream.status.shut_down = true;
                }
                return;
            }
            // Streams have no datagrams.
            Notice::DatagramsOpen { .. }
            | Notice::DatagramsFailed { .. }
            | Notice::Datagram { .. }
            | Notice::DatagramSent { .. } => return,
        };
        self.push(now, connections, handle);
    }

    fn established(
        &mut self,
        handle: OffloadHandle,
        listener: Option<ListenerId>,
        local: SocketAddr,
        remote: SocketAddr,
        offloading: bool,
    ) {
        if let Some(listener) = listener
            && self.streams.get(&handle).is_none_or(|stream| !stream.status.connected)
        {
            let Some(listener) = self.listeners.get_mut(&listener) else {
                // The listener was removed, so no client can accept the connection.
                self.port.request(Request::Abort { handle });
                return;
            };
            listener.accepted.push_back(handle);
        }
        let stream = self.streams.entry(handle).or_insert_with(Stream::new);
        if offloading {
            stream.switch.begin_offload(0, false);
        } else {
            // First notice of a connection that stays in the host, or second of one that the target refused.
            stream.switch.begin_in_host();
        }
        stream.status.connected = true;
        stream.status.local = Some(local);
        stream.status.remote = Some(remote);
    }
}

impl OffloadClient for Streams {
    fn offloaded(&mut self, io: &mut ConnectionIo<'_>) {
        let Some(stream) = self.streams.get_mut(&io.handle) else {
            // The stream was removed.
            return io.disconnect(Disconnect::Abortive, NetBufferList::new(0));
        };
        stream.switch.complete_offload();
        // The stream accepts data received before the offload (CH-DEL-3).
        io.resume_receive();
        stream.post_receives(io, self.receive_bytes);
        stream.record_fin(io);
        stream.switch.post_to_target(io);
    }

    fn receive(&mut self, io: &mut ConnectionIo<'_>, data: &[u8], _push: bool) -> usize {
        // Data for a removed stream are discarded.
        let Some(stream) = self.streams.get_mut(&io.handle) else { return data.len() };
        let room = RECEIVE_QUEUE_BYTES_MAX.saturating_sub(stream.status.unread);
        let taken = room.min(data.len());
        if taken > 0 {
            let data = &data[..taken];
            let kept = if taken >= KEEP_BYTES_MIN { io.keep(data) } else { None };
            let received = kept.unwrap_or_else(|| stream.blocks.copy(data));
            stream.push_received(received);
        }
        stream.refused = taken < data.len();
        // Data is indicated because no request is posted.
        stream.post_receives(io, self.receive_bytes);
        taken
    }

    fn receive_complete(&mut self, io: &mut ConnectionIo<'_>, chain: ReceiveChain) {
        let Some(stream) = self.streams.get_mut(&io.handle) else { return };
        stream.receives_posted = stream.receives_posted.saturating_sub(chain.len());
        // The bytes of a request are valid whatever its status (CH-RCC-1).
        let is_over = chain.iter().any(|request| request.status != NdisStatus::SUCCESS);
        for request in chain {
            for data in request.slices() {
                let data = stream.blocks.copy(data);
                stream.push_received(data);
            }
            stream.request_memory.extend(request.mdls);
        }
        if !is_over {
            stream.post_receives(io, self.receive_bytes);
        }
    }

    fn send_complete(&mut self, io: &mut ConnectionIo<'_>, chain: NblChain) {
        let Some(stream) = self.streams.get_mut(&io.handle) else { return };
        for list in chain {
            stream.complete(list);
        }
    }

    fn send_room(&mut self, io: &mut ConnectionIo<'_>) {
        // Streams are given whole lists, so they do not generate data on demand. But this upcall follows every event of
        // the connection.
        if let Some(stream) = self.streams.get_mut(&io.handle) {
            stream.record_fin(io);
        }
    }

    fn disconnect_complete(&mut self, io: &mut ConnectionIo<'_>, nbl: NetBufferList) {
        if let Some(stream) = self.streams.get_mut(&io.handle) {
            // With UPLOAD_IN_PROGRESS the FIN is uploaded as part of the state.
            stream.status.shut_down |= nbl.status == NdisStatus::SUCCESS;
        }
    }

    fn uploaded(&mut self, handle: OffloadHandle) {
        if let Some(stream) = self.streams.get_mut(&handle) {
            stream.switch.begin_upload();
            stream.refused = false;
            debug_assert_eq!(
                stream.receives_posted, 0,
                "receive requests complete before the upload"
            );
            stream.receives_posted = 0;
        }
    }

    fn event(&mut self, io: &mut ConnectionIo<'_>, event: ConnectionEvent) {
        let Some(stream) = self.streams.get_mut(&io.handle) else { return };
        match event {
            ConnectionEvent::SendBacklogChange(_) => {}
            ConnectionEvent::Disconnect => stream.status.peer_closed = true,
            ConnectionEvent::Abort => stream.end(Some(HostError::Reset)),
            // The host is notified too, and decides. Only the target has the ICMP error of an unresponsive peer.
            ConnectionEvent::Retrieve(UploadReason::TimeoutExpiration) => {
                stream.soft_error = io.info().soft_error;
            }
            ConnectionEvent::Retrieve(_) => {}
            ConnectionEvent::Released => {
                stream.status.shut_down |= stream.status.error.is_none();
                stream.end(None);
            }
        }
    }
}

impl NodeClient for Streams {
    fn name() -> &'static str {
        "streams"
    }

    fn poll(&mut self, now: Instant, connections: &mut Connections) -> bool {
        let mut busy = false;
        while let Some(notice) = self.port.notice() {
            self.notice(now, connections, notice);
            busy = true;
        }
        busy
    }

    fn poll_at(&self) -> Option<Instant> {
        None
    }

    fn has_input(&self) -> bool {
        self.port.has_notice()
    }

    fn take_callbacks(&mut self, _callbacks: &mut Vec<Callback>) {}
}
