//! Consumer calls for shared endpoints, and the transport's answers.

use core::net::SocketAddr;

use offload_engine::address::canonical;

use crate::rnic::{
    Rnic,
    connection::{connector::ConnectorState, shared_endpoint::SharedEndpoint},
    objects::{
        id::{Key, SharedEndpointId},
        lifetime::{Life, RequestCompletion, Return, ReturnGuard},
    },
    status::ConnectError,
    transport::{Command, Reservation},
};

impl Rnic {
    /// Creates a shared endpoint at `local`; with port 0 the transport chooses. `completion` is called when the
    /// transport has reserved the address, or cannot reserve it. After a failure the object does not exist.
    ///
    /// # Errors
    /// Nothing was started: [`ConnectError::AddressInUse`], [`ConnectError::InvalidHandle`] (the adapter is being
    /// closed), [`ConnectError::NoResources`], [`ConnectError::DeviceLost`].
    pub fn create_shared_endpoint(
        &mut self,
        local: SocketAddr,
        completion: impl FnOnce(SharedEndpointId) -> RequestCompletion,
    ) -> Result<(), ConnectError> {
        self.check_device()?;
        let local = canonical(local);
        self.check_open(Key::Rnic).map_err(|_| ConnectError::InvalidHandle)?;
        if local.port() != 0 && (self.is_taken(local) || self.is_shared(local)) {
            return Err(ConnectError::AddressInUse); // NDK-EP-2
        }
        let made = SharedEndpoint { life: Life::default(), local, endpoint: None, request: None };
        let objects = &mut self.objects;
        let id = objects.shared_endpoints.insert(made).map_err(|_| ConnectError::NoResources)?;
        if let Some(made) = objects.shared_endpoints.get_mut(id) {
            made.request = Some(completion(id));
        }
        objects.pin(Key::Rnic);
        objects.pin(Key::SharedEndpoint(id)); // pinned by the request
        self.commands.push_back(Command::Bind { endpoint: id, local });
        Ok(())
    }

    /// Returns true if another shared endpoint has this address.
    fn is_shared(&self, local: SocketAddr) -> bool {
        let endpoints = &self.objects.shared_endpoints;
        let mut found = endpoints.names().filter_map(|id| endpoints.get(id));
        found.any(|endpoint| endpoint.local == local)
    }

    /// Success of a bind: the address is reserved.
    pub(crate) fn handle_bound(&mut self, id: SharedEndpointId, local: SocketAddr) {
        let Some(endpoint) = self.objects.shared_endpoints.get_mut(id) else { return };
        let Some(completion) = endpoint.request.take() else { return };
        endpoint.local = local;
        let reservation = Reservation::Shared(id);
        endpoint.endpoint = Some(self.objects.endpoints.reserve(local, reservation));
        self.objects.end_request(Key::SharedEndpoint(id), completion, Ok(()));
    }

    /// Failure of a bind: the object is removed.
    pub(crate) fn handle_bind_failed(&mut self, id: SharedEndpointId, error: ConnectError) {
        let objects = &mut self.objects;
        let request = objects.shared_endpoints.get_mut(id).and_then(|it| it.request.take());
        let Some(completion) = request else { return };
        objects.shared_endpoints.remove(id);
        let guard = ReturnGuard::new(&objects.returns, Return::Unpin(Key::Rnic));
        objects.outbox.push(guard, move || completion(Err(error)));
    }

    /// Local address of a shared endpoint.
    #[must_use]
    pub fn shared_endpoint_address(&self, id: SharedEndpointId) -> Option<SocketAddr> {
        self.objects.shared_endpoints.get(id).map(|endpoint| endpoint.local)
    }

    /// Checks a shared endpoint for a connect to `remote`. Returns its local address.
    ///
    /// # Errors
    /// [`ConnectError::InvalidHandle`]; [`ConnectError::ConnectionExists`] (NDK-EP-3).
    pub(crate) fn check_shared_endpoint(
        &mut self,
        id: SharedEndpointId,
        remote: SocketAddr,
    ) -> Result<SocketAddr, ConnectError> {
        self.check_open(Key::SharedEndpoint(id)).map_err(|_| ConnectError::InvalidHandle)?;
        let connectors = &self.objects.connectors;
        let mut of_endpoint = connectors.names().filter_map(|id| connectors.get(id)).filter(|it| {
            it.shared == Some(id) && it.remote == Some(remote) && it.state != ConnectorState::Closed
        });
        if of_endpoint.next().is_some() {
            return Err(ConnectError::ConnectionExists);
        }
        self.shared_endpoint_address(id).ok_or(ConnectError::InvalidHandle)
    }
}
