//! Client requests.

use alloc::vec::Vec;
use core::net::SocketAddr;

use offload_engine::{
    address::LocalAddress,
    chimney::client::{ClientTag, OffloadHandle},
    engine::port::FromHost,
    frame::FlowKey,
    nbl::{NblChain, NetBufferList},
    status::NdisStatus,
    time::{Duration, Instant},
};
use smoltcp::socket::tcp;

use super::{
    BACKLOG_MAX, Host,
    connection::{Connection, Hold, Listener, Owner, ReceiveHalf, SendHalf, Stage, specified},
    history::History,
    neighbors::SOLICIT_DELAY,
    ports::{Claim, Holder, Name},
    shards::{Client, ClientId},
};
use crate::{
    observer::Flow,
    socket::{ConsumerId, EndpointId, HostError, ListenerId, Notice, Request, SEND_CREDIT_BYTES},
};

/// Members of [`Request::Connect`] other than the addresses.
struct Connect {
    client: ClientId,
    handle: OffloadHandle,
    endpoint: Option<EndpointId>,
    timeout: Duration,
    at_once: bool,
}

/// Members of [`Request::Listen`].
struct Listen {
    client: ClientId,
    listener: ListenerId,
    local: LocalAddress,
    endpoint: Option<EndpointId>,
    backlog: usize,
    at_once: bool,
}

impl Host {
    /// Handles a request, with or without a client.
    pub(super) fn request(&mut self, now: Instant, client: ClientId, request: Request) {
        if !self.may_request(client, &request) {
            tracing::warn!(?client, "request of an unregistered client ignored");
            return;
        }
        match request {
            Request::Bind { endpoint, local } => {
                let notice = match self.bind(endpoint, client, local) {
                    Ok(local) => Notice::Bound { endpoint, local },
                    Err(error) => Notice::BindFailed { endpoint, error },
                };
                self.notify(client, notice);
            }
            Request::Unbind { endpoint } => self.ports.unbind(endpoint, client),
            Request::Connect { handle, local, endpoint, remote, timeout, at_once } => {
                let connect = Connect { client, handle, endpoint, timeout, at_once };
                if let Err(error) = self.connect(now, connect, local, remote) {
                    let is_own = matches!(error, HostError::OwnAddress { .. });
                    self.stats.attempt_fails += u64::from(!is_own);
                    self.notify(client, Notice::ConnectFailed { handle, error });
                }
            }
            Request::Listen { listener, local, endpoint, backlog, at_once } => {
                let listen = Listen { client, listener, local, endpoint, backlog, at_once };
                let notice = match self.listen(listen) {
                    Ok(local) => Notice::Listening { listener, local },
                    Err(error) => Notice::ListenFailed { listener, error },
                };
                self.notify(client, notice);
            }
            Request::Unlisten { listener } => self.unlisten(listener),
            Request::Send { handle, list, begins_segment } => {
                self.send(client, handle, list, begins_segment)
            }
            Request::Consumed { handle, count } => self.consumed(handle, count),
            Request::Shutdown { handle } => self.shutdown(client, handle),
            Request::Abort { handle } => self.abort(handle),
            Request::Offload { handle } => self.request_offload(handle),
            Request::Upload { handle } => self.upload(handle),
            Request::Register { name, consumer, notices } => {
                self.shards[client.shard].register(client.tag, name, consumer, notices);
            }
            Request::KeepAlive { keep_alive } => {
                self.shards[client.shard].keep_alive(client.tag, keep_alive);
                self.configure_all(|of| of == client);
            }
            Request::OpenDatagrams { port } => {
                let notice = match self.open_datagrams(client, port) {
                    Ok(()) => Notice::DatagramsOpen { port },
                    Err(error) => Notice::DatagramsFailed { port, error },
                };
                self.notify(client, notice);
            }
            Request::CloseDatagrams { port } => self.close_datagrams(client, port),
            Request::SendDatagram { from, to, data } => {
                self.send_datagram(now, client, (from, to), data);
            }
            Request::DatagramConsumed { port, data } => self.consumed_datagram(client, port, data),
            Request::Unregister => self.unregister(client),
            // The requester may have exited; then the reply is dropped.
            Request::List { only, reply } => drop(reply.try_send(self.list(only))),
        }
    }

    /// True if the caller may make the request: those of connections and listeners require a client.
    fn may_request(&self, client: ClientId, request: &Request) -> bool {
        match request {
            Request::Register { .. } => client.tag != ClientTag::NONE,
            Request::Offload { .. } | Request::Upload { .. } | Request::List { .. } => true,
            Request::Bind { .. }
            | Request::Unbind { .. }
            | Request::Connect { .. }
            | Request::Listen { .. }
            | Request::Unlisten { .. }
            | Request::Send { .. }
            | Request::Consumed { .. }
            | Request::Shutdown { .. }
            | Request::Abort { .. }
            | Request::KeepAlive { .. }
            | Request::OpenDatagrams { .. }
            | Request::CloseDatagrams { .. }
            | Request::SendDatagram { .. }
            | Request::DatagramConsumed { .. }
            | Request::Unregister => self.shards[client.shard].client(client.tag).is_some(),
        }
    }

    /// Unregisters a client and ends its connections in the host. The target ends those that it has; connections being
    /// uploaded end when the upload completes.
    fn unregister(&mut self, client: ClientId) {
        let Some(Client { name, .. }) = self.shards[client.shard].remove(client.tag) else {
            return;
        };
        tracing::debug!(name, "client unregistered");
        self.listeners.retain(|_, listener| listener.client_id() != client);
        self.reset_orphans();
        self.ports.release_client(client);
        self.close_datagrams_of(client);
        let own = self.connections.iter().filter(|(_, found)| found.client_id() == client);
        let own = own.filter(|(_, found)| found.stage != Stage::Lingering);
        for handle in own.map(|(handle, _)| *handle).collect::<Vec<_>>() {
            self.abort_sends(handle);
            match self.connections.get(&handle).map(|found| self.state_of(found)) {
                // Both sides have closed: smoltcp sends the remaining segments itself (RFC 9293 §3.10.5).
                Some(tcp::State::TimeWait | tcp::State::LastAck | tcp::State::Closing) => {
                    self.enter(handle, Stage::Lingering);
                }
                _ => self.reset(handle),
            }
        }
        let own = self.offloaded.values_mut().filter(|found| found.client_id() == client);
        own.for_each(|found| found.aborted = true);
        self.shards[client.shard].send_to_engine(FromHost::RemoveClient(client.tag));
    }

    fn connect(
        &mut self,
        now: Instant,
        connect: Connect,
        local: Option<SocketAddr>,
        remote: SocketAddr,
    ) -> Result<(), HostError> {
        let Connect { client: id, handle, endpoint, timeout, at_once } = connect;
        let ClientId { shard, tag: client } = id;
        let consumer = self.consumer(id);
        if !self.config.is_reachable(remote) || !self.config.has_route(remote.ip()) {
            return Err(HostError::NetworkUnreachable);
        }
        let bound = endpoint.map_or(Ok(None), |endpoint| self.ports.endpoint(endpoint, id))?;
        let local = bound.map(|bound| bound.address).or(local);
        let wanted = local.and_then(specified);
        let address = match wanted {
            Some(address) if address.is_ipv4() != remote.is_ipv4() => {
                return Err(HostError::NetworkUnreachable);
            }
            Some(address) if !self.config.is_ours(address) => {
                return Err(HostError::AddressNotAvailable);
            }
            Some(address) => address,
            None => self.source_for(remote).ok_or(HostError::NetworkUnreachable)?,
        };
        let name = Name::Connection(handle);
        let claim = |port| {
            let local = SocketAddr::new(address, port).into();
            Claim { name, local, holder: Holder { client: id, consumer }, endpoint }
        };
        let port = match local.map_or(0, |local| local.port()) {
            0 => self.ports.ephemeral(|ports, port| {
                let claim = claim(port);
                let tuple = FlowKey::new(claim.local.address, remote);
                // A named endpoint is exclusive to the connection.
                let unshared = endpoint.is_none() || ports.is_unused(claim.local);
                let is_free =
                    !self.owners.contains_key(&tuple) && !self.time_waits.blocks_reuse(now, &tuple);
                unshared && ports.permits(&claim) && is_free
            })?,
            port => port,
        };
        let claim = claim(port);
        let local = claim.local.address;
        let tuple = FlowKey::new(local, remote);
        let is_taken =
            self.owners.contains_key(&tuple) || self.time_waits.blocks_reuse(now, &tuple);
        if !self.ports.permits(&claim) || is_taken || self.is_known(handle) {
            return Err(HostError::AddressInUse);
        }
        if self.config.is_ours(remote.ip()) {
            return Err(HostError::OwnAddress { local, remote });
        }
        let mut socket = self.make_socket(ClientId { shard, tag: client });
        socket
            .connect(self.interface.context(), remote, local)
            .map_err(|_| HostError::AddressNotAvailable)?;
        self.ports.reserve(&claim);
        let socket = self.sockets.add(socket);
        self.owners.insert(tuple, Owner::Host(handle));
        self.stats.active_opens += 1;
        self.shards[shard].connections += 1;
        self.connections.insert(
            handle,
            Connection {
                shard,
                client,
                listener: None,
                tuple,
                socket,
                flow: Flow::new(now),
                scale_raise: self.config.scale_raise(),
                hold: Hold::No,
                offload_requested: self.config.offloads_immediately(at_once, &tuple),
                history: History::new(now),
                stage: Stage::Handshake(now + timeout),
                is_limit_extended: false,
                solicit_at: now + SOLICIT_DELAY,
                forced_retransmit: None,
                send: SendHalf::default(),
                receive: ReceiveHalf::default(),
            },
        );
        Ok(())
    }

    fn source_for(&self, remote: SocketAddr) -> Option<core::net::IpAddr> {
        let source = self.interface.get_source_address(&remote.ip().into())?.into();
        // Without an IPv6 address smoltcp selects its loopback address.
        self.config.is_ours(source).then_some(source)
    }

    fn bind(
        &mut self,
        endpoint: EndpointId,
        client: ClientId,
        local: SocketAddr,
    ) -> Result<SocketAddr, HostError> {
        self.reserve(Name::Endpoint(endpoint), client, local.into(), None)
    }

    /// Reserves the local endpoint of a listener or a bind.
    fn reserve(
        &mut self,
        name: Name,
        client: ClientId,
        local: LocalAddress,
        endpoint: Option<EndpointId>,
    ) -> Result<SocketAddr, HostError> {
        let LocalAddress { address, v6_only } = local;
        if specified(address).is_some_and(|address| !self.config.is_ours(address)) {
            return Err(HostError::AddressNotAvailable);
        }
        let holder = Holder { client, consumer: self.consumer(client) };
        let claim = |port| {
            let local = LocalAddress { address: SocketAddr::new(address.ip(), port), v6_only };
            Claim { name, local, holder, endpoint }
        };
        let port = match address.port() {
            0 => self.ports.ephemeral(|ports, port| {
                ports.is_unused(claim(port).local)
                    && !self.owners.keys().any(|tuple| tuple.local().port() == port)
            })?,
            port => port,
        };
        let claim = claim(port);
        if !self.ports.permits(&claim) {
            return Err(HostError::AddressInUse);
        }
        self.ports.reserve(&claim);
        Ok(claim.local.address)
    }

    fn listen(&mut self, listen: Listen) -> Result<SocketAddr, HostError> {
        let Listen { client: id, listener, local, endpoint, backlog, at_once } = listen;
        let bound = endpoint.map_or(Ok(None), |endpoint| self.ports.endpoint(endpoint, id))?;
        let local = bound.unwrap_or(local);
        let address = self.reserve(Name::Listener(listener), id, local, endpoint)?;
        let local = LocalAddress { address, ..local };
        let backlog = backlog.clamp(1, BACKLOG_MAX);
        let ClientId { shard, tag: client } = id;
        let made = Listener { shard, client, local, backlog, at_once, half_open: 0 };
        self.listeners.insert(listener.0, made);
        Ok(address)
    }

    fn unlisten(&mut self, id: ListenerId) {
        if self.listeners.remove(&id.0).is_none() {
            return;
        }
        self.ports.release(Name::Listener(id));
        let half_open = self.connections.iter().filter(|(_, connection)| {
            connection.listener == Some(id) && matches!(connection.stage, Stage::Handshake(_))
        });
        let half_open = half_open.map(|(handle, _)| *handle).collect::<Vec<_>>();
        for handle in half_open {
            self.reset(handle);
        }
        self.reset_orphans();
    }

    /// Consumer of a registered client.
    fn consumer(&self, client: ClientId) -> ConsumerId {
        let found = self.shards[client.shard].client(client.tag);
        found.map_or(ConsumerId::FIRST, |found| found.consumer)
    }

    fn is_known(&self, handle: OffloadHandle) -> bool {
        self.connections.contains_key(&handle) || self.offloaded.contains_key(&handle)
    }

    fn send(
        &mut self,
        client: ClientId,
        handle: OffloadHandle,
        list: NetBufferList,
        begins_segment: bool,
    ) {
        if self.offloaded.contains_key(&handle) {
            let chain = [list].into();
            self.notify(client, Notice::Returned { handle, chain, shutdown: false });
            return;
        }
        let connection = self.connections.get_mut(&handle);
        let Some(connection) =
            connection.filter(|found| found.stage != Stage::Lingering && !found.send.shutdown)
        else {
            self.refuse(client, handle, list);
            return;
        };
        let before = connection.send.outstanding();
        connection.send.post(list, begins_segment);
        // A client that exceeds its credit violates the contract; its connection is aborted.
        if before > 0 && connection.send.outstanding() > SEND_CREDIT_BYTES as u64 {
            self.abort(handle);
        }
    }

    /// Completes a list of a connection that is closed, or has sent its FIN.
    fn refuse(&mut self, client: ClientId, handle: OffloadHandle, mut list: NetBufferList) {
        list.complete(NdisStatus::REQUEST_ABORTED, 0);
        self.notify(client, Notice::Sent { handle, chain: [list].into() });
    }

    /// Handles the client's consumption of delivered bytes.
    fn consumed(&mut self, handle: OffloadHandle, count: usize) {
        let unconsumed = match self.connections.get_mut(&handle) {
            Some(connection) => &mut connection.receive.unconsumed,
            None => match self.offloaded.get_mut(&handle) {
                Some(offloaded) => &mut offloaded.unconsumed,
                None => return,
            },
        };
        *unconsumed = unconsumed.saturating_sub(count);
    }

    fn shutdown(&mut self, client: ClientId, handle: OffloadHandle) {
        if self.offloaded.contains_key(&handle) {
            let chain = NblChain::new();
            self.notify(client, Notice::Returned { handle, chain, shutdown: true });
        } else if let Some(connection) = self.connections.get_mut(&handle) {
            connection.send.shutdown = true;
        }
    }

    fn abort(&mut self, handle: OffloadHandle) {
        let error = HostError::Aborted;
        if let Some(offloaded) = self.offloaded.get_mut(&handle) {
            // Offloaded: the client aborts it through the chimney, unless it is uploaded first.
            offloaded.aborted = true;
            return;
        }
        let Some(connection) = self.connections.get(&handle) else { return };
        let notice = match connection.stage {
            Stage::Lingering => return,
            Stage::Handshake(_) => {
                self.ports.fail(handle);
                Notice::ConnectFailed { handle, error }
            }
            Stage::Open => Notice::Closed { handle, error: Some(error) },
        };
        let client = connection.client_id();
        self.abort_sends(handle);
        self.notify(client, notice);
        self.reset(handle);
    }

    /// Resets a connection; its client is aware of that, or is never notified.
    pub(super) fn reset(&mut self, handle: OffloadHandle) {
        let Some(connection) = self.connections.get_mut(&handle) else { return };
        let socket = self.sockets.get_mut::<tcp::Socket<'_>>(connection.socket);
        if socket.state() == tcp::State::SynSent {
            // The peer has not answered, so there is nothing to reset.
            self.forget(handle);
            return;
        }
        socket.abort();
        self.enter(handle, Stage::Lingering);
    }
}
