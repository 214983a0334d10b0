//! Passive part of a node: engine, clients and host stack, without clock, thread or sleep.

use std::{boxed::Box, io, sync::Arc, vec::Vec};

use offload_engine::{
    chimney::client::ClientTag,
    engine::{
        Callback, Clients, Engine, EngineConfig, NodeClient, TooManyClients, doorbell::Doorbell,
    },
    link::Link,
    runtime::Passive,
    time::Instant,
};

use crate::{
    host::{ConfigError, Host, HostConfig},
    socket::{ConsumerId, Request, RequestPort, SocketPort},
};

/// Engine, clients and host stack without clock or thread.
#[derive(Debug)]
pub struct Core {
    /// Offload target.
    pub engine: Engine,
    /// Upper layers.
    pub clients: Clients,
    /// Host stack, unless it runs on its own thread.
    pub host: Option<Host>,
    pub(super) requests: RequestPort,
}

impl Core {
    /// Creates a node on `link`; `client` creates its first client from the client's port to the host stack.
    ///
    /// # Errors
    /// No descriptor is available for the doorbells, or (InvalidInput) the host's configuration is invalid.
    pub fn new<C: NodeClient>(
        link: Box<dyn Link>,
        engine: EngineConfig,
        host: HostConfig,
        client: impl FnOnce(SocketPort) -> C,
    ) -> io::Result<Self> {
        let mut client = Some(client);
        let made = |port| (client.take().expect("one link has one client"))(port);
        let Cores { mut shards, host, .. } = Cores::new(Vec::from([link]), engine, host, made)?;
        let core = shards.pop().expect("one link has one shard");
        Ok(Self { host: Some(host), ..core })
    }

    /// Registers another client, created from its port to the host stack.
    ///
    /// # Errors
    /// The maximum number of clients is reached.
    pub fn register<C: NodeClient>(
        &mut self,
        client: impl FnOnce(SocketPort) -> C,
    ) -> Result<ClientTag, TooManyClients> {
        let consumer = ConsumerId(self.requests.allocate());
        self.register_of(consumer, client)
    }

    fn register_of<C: NodeClient>(
        &mut self,
        consumer: ConsumerId,
        client: impl FnOnce(SocketPort) -> C,
    ) -> Result<ClientTag, TooManyClients> {
        let Self { clients, requests, .. } = self;
        clients.insert(|tag| client(requests.register(tag, C::name(), consumer)))
    }

    /// Unregisters a client: the next polls of host stack and engine close its listeners and reset its connections.
    pub fn unregister(&self, client: ClientTag) {
        self.requests.request_of(client, Request::Unregister);
    }

    /// Sends a request without a client to the host stack, as [`Node::request`](super::Node::request) does.
    pub fn request(&self, request: Request) {
        self.requests.request(request);
    }

    /// Runs one iteration. Returns true if there was any work.
    ///
    /// # Errors
    /// The link is lost.
    pub fn poll(&mut self, now: Instant) -> io::Result<bool> {
        let busy = self.engine.poll(now, &mut self.clients)?;
        Ok(self.poll_host(now) | busy)
    }

    /// As [`Core::poll`], for a caller that polls again soon ([`Engine::poll_first_frame`]).
    ///
    /// # Errors
    /// The link is lost.
    pub fn poll_first_frame(&mut self, now: Instant) -> io::Result<bool> {
        let busy = self.engine.poll_first_frame(now, &mut self.clients)?;
        Ok(!self.engine.has_batch_left() && self.poll_host(now) || busy)
    }

    /// True if no frame is left to send: no FIN or RST is pending, here or on the link.
    pub(super) fn is_silent(&self) -> bool {
        self.engine.is_silent() && self.host.as_ref().is_none_or(Host::is_silent)
    }

    fn poll_host(&mut self, now: Instant) -> bool {
        self.host.as_mut().is_some_and(|host| host.poll(now))
    }

    /// Time of the next [`Core::poll`] without new input.
    pub fn poll_at(&self, now: Instant) -> Option<Instant> {
        let host = self.host.as_ref().and_then(|host| host.poll_at(now));
        [self.engine.poll_at(&self.clients), host].into_iter().flatten().min()
    }

    /// True if a queue has input. Check before sleeping.
    pub fn has_input(&self) -> bool {
        self.engine.has_input()
            || self.clients.has_input()
            || self.host.as_ref().is_some_and(Host::has_input)
    }
}

/// Shards of a device with several queues, and their common host stack, without clock or thread: a [`Core`] with
/// several queues, for simulations.
#[derive(Debug)]
pub struct Cores {
    /// Engine and clients of each queue, in the order of the links, without a host stack of their own.
    pub shards: Vec<Core>,
    /// Common host stack.
    pub host: Host,
    pub(super) host_doorbell: Arc<Doorbell>,
    pub(super) requests: RequestPort,
}

impl Cores {
    /// Creates a node on the queues of one device. `client` is called once for each link, in order, and creates the
    /// first client of that shard from its port to the host stack.
    ///
    /// # Errors
    /// No descriptor is available for the doorbells, or (InvalidInput) there is no link or the host's configuration is
    /// invalid.
    pub fn new<C: NodeClient>(
        links: Vec<Box<dyn Link>>,
        engine: EngineConfig,
        host: HostConfig,
        mut client: impl FnMut(SocketPort) -> C,
    ) -> io::Result<Self> {
        let invalid = |error| io::Error::new(io::ErrorKind::InvalidInput, error);
        // This host sends `Forwarded` after it has forwarded all frames.
        let engine = EngineConfig { waits_for_forwards: true, ..engine };
        let (engines, ports): (Vec<_>, Vec<_>) = Engine::group(links, engine)?.into_iter().unzip();
        let Some(first) = ports.first() else { return Err(invalid(ConfigError::Shards)) };
        let host_doorbell = first.host_doorbell.clone();
        let (down, sockets): (Vec<_>, Vec<_>) =
            RequestPort::pairs(&host_doorbell, ports.len()).into_iter().unzip();
        let requests = down[0].clone();
        let host = Host::of_shards(host, ports.into_iter().zip(sockets).collect());
        let core = |(engine, requests)| {
            let mut core = Core { engine, clients: Clients::new(), host: None, requests };
            core.register_of(ConsumerId::FIRST, &mut client).expect("the first client always fits");
            core
        };
        Ok(Self {
            host: host.map_err(invalid)?,
            shards: engines.into_iter().zip(down).map(core).collect(),
            host_doorbell,
            requests,
        })
    }

    /// Runs one iteration of every shard and of the host stack. Returns true if there was any work.
    ///
    /// # Errors
    /// The link is lost.
    pub fn poll(&mut self, now: Instant) -> io::Result<bool> {
        let mut busy = false;
        for shard in &mut self.shards {
            busy |= shard.poll(now)?;
        }
        Ok(self.host.poll(now) | busy)
    }

    /// Time of the next [`Cores::poll`] without new input.
    pub fn poll_at(&self, now: Instant) -> Option<Instant> {
        let shards = self.shards.iter().filter_map(|shard| shard.poll_at(now));
        shards.chain(self.host.poll_at(now)).min()
    }

    /// True if a queue has input. Check before sleeping.
    pub fn has_input(&self) -> bool {
        self.host.has_input() || self.shards.iter().any(Core::has_input)
    }
}

impl Passive for Core {
    fn poll(&mut self, now: Instant) -> io::Result<bool> {
        self.poll_first_frame(now)
    }

    fn settle(&mut self, now: Instant) -> bool {
        let polled = self.clients.poll(now, self.engine.connections());
        if self.host.as_ref().is_some_and(Host::has_input) {
            // The loop executes requests, such as datagrams, and the caller may not run it again.
            self.engine.doorbell().ring();
        }
        self.engine.flush(now, &mut self.clients) || polled
    }

    fn poll_at(&self, now: Instant) -> Option<Instant> {
        Self::poll_at(self, now)
    }

    fn has_input(&self) -> bool {
        Self::has_input(self)
    }

    fn awaits_writable(&self) -> bool {
        self.engine.awaits_writable()
    }

    fn take_callbacks(&mut self, callbacks: &mut Vec<Callback>) {
        self.clients.take_callbacks(callbacks);
    }

    fn take_callbacks_of_calls(&mut self, callbacks: &mut Vec<Callback>) {
        self.clients.take_callbacks_of_calls(callbacks);
    }

    fn has_callbacks_of_loop(&self) -> bool {
        self.clients.has_callbacks_of_loop()
    }

    fn device_lost(&mut self) {
        self.clients.device_lost();
        // They are no longer polled, and hold consumers' memory.
        self.engine.device_lost();
        self.host = None;
    }

    fn repeat_last_acks(&mut self, now: Instant) {
        self.engine.repeat_last_acks();
        if let Some(host) = &mut self.host {
            host.repeat_last_acks(now);
        }
    }
}
