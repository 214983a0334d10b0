//! Connection of an rsocket: bind, listen, accept, connect.

use std::{collections::VecDeque, net::SocketAddr, sync::Arc};

use super::{
    connection::Connection,
    options::SocketOptions,
    resources::Resources,
    socket::{Socket, SocketPhase, SocketState, wake_up},
    wire::ConnectionData,
};
use crate::{
    cm::{ConnectParameters, Event, Id, PortSpace},
    errno::Errno,
};

impl Socket {
    fn new_id(&self, options: &SocketOptions) -> Result<Arc<Id>, Errno> {
        let id = Id::new(self.device(), PortSpace::Tcp, self.channel.clone())?;
        id.set_reuse(options.is_reuse)?;
        id.set_family_only(options.is_family_only)?;
        Ok(id)
    }

    /// Binds to a local address.
    ///
    /// # Errors
    /// `EINVAL`: bound or connected. `EAFNOSUPPORT`. As [`Id::bind`].
    pub fn bind(&self, address: SocketAddr) -> Result<(), Errno> {
        self.device().check()?;
        self.family.check(address)?;
        let mut state = self.lock();
        if !matches!(state.phase, SocketPhase::Idle) || state.id.is_some() {
            return Err(Errno::INVAL);
        }
        let id = self.new_id(&state.options)?;
        id.bind(address)?;
        state.bound = id.addresses().0;
        state.id = Some(id);
        Ok(())
    }

    /// Listens.
    ///
    /// # Errors
    /// `EINVAL`: connected. As [`Id::listen`].
    pub fn listen(&self, backlog: i32) -> Result<(), Errno> {
        self.device().check()?;
        let id = {
            let state = self.lock();
            match state.phase {
                SocketPhase::Listening(_) => return Ok(()),
                SocketPhase::Idle => state.id.clone(),
                _ => return Err(Errno::INVAL),
            }
        };
        let id = match id {
            Some(id) => id,
            None => {
                self.bind(SocketAddr::new(self.family.unspecified(), 0))?;
                self.lock().id.clone().ok_or(Errno::INVAL)?
            }
        };
        // The call blocks on the adapter, so no lock is held.
        id.listen(backlog)?;
        let mut state = self.lock();
        if matches!(state.phase, SocketPhase::Idle) {
            state.phase = SocketPhase::Listening(VecDeque::new());
        }
        Ok(())
    }

    /// Accepts the next connection.
    ///
    /// # Errors
    /// `EINVAL`: not listening. `ENODEV`: the device failed. `EAGAIN`, `EINTR`. No memory or descriptor available.
    pub fn accept(&self) -> Result<Arc<Self>, Errno> {
        loop {
            let (request, options) = self.wait(self.is_nonblocking(), |state| {
                let options = state.options.clone();
                let SocketPhase::Listening(requests) = &mut state.phase else {
                    return Some(Err(state.error.unwrap_or(Errno::INVAL)));
                };
                requests.pop_front().map(|request| Ok((request, options)))
            })?;
            let id = request.id.clone();
            match self.accept_request(&request, options) {
                Ok(Some(accepted)) => return Ok(accepted),
                // The peer uses another protocol, or has aborted the connection.
                Ok(None) => _ = id.destroy(),
                Err(error) => {
                    let _ = id.reject(&[]);
                    let _ = id.destroy();
                    return Err(error);
                }
            }
        }
    }

    fn accept_request(
        &self,
        request: &Event,
        options: SocketOptions,
    ) -> Result<Option<Arc<Self>>, Errno> {
        let id = &request.id;
        let remote = match ConnectionData::parse(&request.private_data) {
            Ok(remote) => remote,
            Err(violation) => {
                tracing::error!(
                    peer = id.peer(),
                    %violation,
                    "rsocket connection request rejected"
                );
                let _ = id.reject(&[]);
                return Ok(None);
            }
        };
        let accepted = Self::new(self.device(), self.family, options)?;
        let resources = accepted.resources(&accepted.options())?;
        id.migrate(&accepted.channel)?;
        let parameters = ConnectParameters {
            private_data: resources.connection_data().to_octets().to_vec(),
            ..ConnectParameters::default()
        };
        let mut state = accepted.lock();
        let begun = id.accept(&resources.qp, &parameters);
        state.phase = SocketPhase::Connected(Box::new(Connection::new(resources, remote, false)));
        state.is_connect_reported = true;
        match begun {
            Ok(()) => {
                state.id = Some(id.clone());
                drop(state);
                Ok(Some(accepted))
            }
            Err(error) => {
                tracing::debug!(
                    peer = id.peer(),
                    %error,
                    "rsocket connection request not accepted"
                );
                Ok(None)
            }
        }
    }

    fn resources(&self, options: &SocketOptions) -> Result<Resources, Errno> {
        Resources::new(self.device(), options.sizes(self.device()), wake_up(&self.wakers))
    }

    /// Connects.
    ///
    /// # Errors
    /// `EISCONN`, `EALREADY`. `EINPROGRESS`, `EINTR`: the connect continues. `ECONNREFUSED`, `ETIMEDOUT` and others.
    pub fn connect(&self, remote: SocketAddr) -> Result<(), Errno> {
        self.device().check()?;
        self.family.check(remote)?;
        let is_nonblocking = self.is_nonblocking();
        {
            let mut state = self.lock();
            self.advance(&mut state);
            match &state.phase {
                SocketPhase::Idle => self.begin_to_connect(&mut state, remote)?,
                SocketPhase::Connecting(_) if is_nonblocking => return Err(Errno::ALREADY),
                SocketPhase::Connecting(_) => {}
                SocketPhase::Connected(_) => {
                    let is_reported = std::mem::replace(&mut state.is_connect_reported, true);
                    return if is_reported { Err(Errno::ISCONN) } else { Ok(()) };
                }
                SocketPhase::Listening(_) => return Err(Errno::ISCONN),
                SocketPhase::Failed => {
                    if let Some(error) = state.error.take() {
                        return Err(error);
                    }
                    self.restore(&mut state)?;
                    self.begin_to_connect(&mut state, remote)?;
                }
                SocketPhase::Closed => return Err(Errno::BADF),
            }
        }
        let connected = self.wait(is_nonblocking, |state| match &state.phase {
            SocketPhase::Connecting(_) => None,
            SocketPhase::Connected(_) => {
                state.is_connect_reported = true;
                Some(Ok(()))
            }
            _ => Some(Err(state.error.take().unwrap_or(Errno::CONNREFUSED))),
        });
        match connected {
            Err(Errno::AGAIN) => Err(Errno::INPROGRESS),
            other => other,
        }
    }

    fn begin_to_connect(&self, state: &mut SocketState, remote: SocketAddr) -> Result<(), Errno> {
        let id = match &state.id {
            Some(id) => id.clone(),
            None => self.new_id(&state.options)?,
        };
        let begun = (|| {
            id.resolve_address(None, remote)?;
            id.resolve_route()?;
            let resources = self.resources(&state.options)?;
            let parameters = ConnectParameters {
                private_data: resources.connection_data().to_octets().to_vec(),
                ..ConnectParameters::default()
            };
            id.connect(&resources.qp, &parameters)?;
            Ok(resources)
        })();
        match begun {
            Ok(resources) => {
                state.phase = SocketPhase::Connecting(Box::new(resources));
                state.id = Some(id);
                Ok(())
            }
            Err(error) => {
                state.id = Some(id);
                self.restore(state)?;
                Err(error)
            }
        }
    }

    /// Restores the state before a failed connect.
    fn restore(&self, state: &mut SocketState) -> Result<(), Errno> {
        if let Some(id) = state.id.take() {
            let _ = id.destroy();
        }
        state.phase = SocketPhase::Idle;
        if let Some(bound) = state.bound {
            let id = self.new_id(&state.options)?;
            id.bind(bound)?;
            state.id = Some(id);
        }
        Ok(())
    }
}
