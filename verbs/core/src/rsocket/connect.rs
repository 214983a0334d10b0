//! How an rsocket gets its connection: bound, listening, accepting, connecting.

use std::{collections::VecDeque, net::SocketAddr, sync::Arc};

use super::{
    connection::Connection,
    options::Settings,
    resources::Endpoint,
    socket::{Phase, Socket, State, wake_up},
    wire::ConnectionData,
};
use crate::{
    cm::{ConnectParameters, Event, Id, PortSpace},
    errno::Errno,
};

impl Socket {
    fn new_id(&self, settings: &Settings) -> Result<Arc<Id>, Errno> {
        let id = Id::new(self.engine(), PortSpace::Tcp, self.channel.clone())?;
        id.set_reuse(settings.is_reuse)?;
        id.set_family_only(settings.is_family_only)?;
        Ok(id)
    }

    /// Binds it to a local address.
    ///
    /// # Errors
    /// `EINVAL`: it is bound, or connected. `EAFNOSUPPORT`, and those of [`Id::bind`].
    pub fn bind(&self, address: SocketAddr) -> Result<(), Errno> {
        self.engine().check()?;
        self.family.check(address)?;
        let mut state = self.lock();
        if !matches!(state.phase, Phase::Idle) || state.id.is_some() {
            return Err(Errno::INVAL);
        }
        let id = self.new_id(&state.settings)?;
        id.bind(address)?;
        state.bound = id.addresses().0;
        state.id = Some(id);
        Ok(())
    }

    /// Listens.
    ///
    /// # Errors
    /// `EINVAL`: it is connected. Those of [`Id::listen`].
    pub fn listen(&self, backlog: i32) -> Result<(), Errno> {
        self.engine().check()?;
        let id = {
            let state = self.lock();
            match state.phase {
                Phase::Listening(_) => return Ok(()),
                Phase::Idle => state.id.clone(),
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
        // It waits for the adapter.
        id.listen(backlog)?;
        let mut state = self.lock();
        if matches!(state.phase, Phase::Idle) {
            state.phase = Phase::Listening(VecDeque::new());
        }
        Ok(())
    }

    /// The next connection.
    ///
    /// # Errors
    /// `EINVAL`: it does not listen. `ENODEV`: the device is gone. `EAGAIN`, `EINTR`. No memory or descriptor is left.
    pub fn accept(&self) -> Result<Arc<Self>, Errno> {
        loop {
            let (request, settings) = self.wait(self.is_nonblocking(), |state| {
                let settings = state.settings.clone();
                let Phase::Listening(requests) = &mut state.phase else {
                    return Some(Err(state.error.unwrap_or(Errno::INVAL)));
                };
                requests.pop_front().map(|request| Ok((request, settings)))
            })?;
            let id = request.id.clone();
            match self.take_up(&request, settings) {
                Ok(Some(accepted)) => return Ok(accepted),
                // Its peer speaks another protocol, or has gone.
                Ok(None) => _ = id.destroy(),
                Err(error) => {
                    let _ = id.reject(&[]);
                    let _ = id.destroy();
                    return Err(error);
                }
            }
        }
    }

    fn take_up(&self, request: &Event, settings: Settings) -> Result<Option<Arc<Self>>, Errno> {
        let id = &request.id;
        let remote = match ConnectionData::parse(&request.private_data) {
            Ok(remote) => remote,
            Err(violation) => {
                tracing::error!(?violation, "a request that is none of an rsocket");
                let _ = id.reject(&[]);
                return Ok(None);
            }
        };
        let accepted = Self::new(self.engine(), self.family, settings)?;
        let endpoint = accepted.endpoint(&accepted.settings())?;
        id.migrate(&accepted.channel)?;
        let parameters = ConnectParameters {
            private_data: endpoint.connection_data().to_octets().to_vec(),
            ..ConnectParameters::default()
        };
        let mut state = accepted.lock();
        let begun = id.accept(&endpoint.qp, &parameters);
        state.phase = Phase::Connected(Box::new(Connection::new(endpoint, remote, false)));
        state.is_connect_told = true;
        match begun {
            Ok(()) => {
                state.id = Some(id.clone());
                drop(state);
                Ok(Some(accepted))
            }
            Err(error) => {
                tracing::debug!(?error, "a peer has gone before it was accepted");
                Ok(None)
            }
        }
    }

    fn endpoint(&self, settings: &Settings) -> Result<Endpoint, Errno> {
        Endpoint::new(self.engine(), settings.sizes(self.engine()), wake_up(&self.wakers))
    }

    /// Connects.
    ///
    /// # Errors
    /// `EISCONN`, `EALREADY`, `EINPROGRESS`, `EINTR`: it goes on meanwhile. `ECONNREFUSED`, `ETIMEDOUT` and others.
    pub fn connect(&self, remote: SocketAddr) -> Result<(), Errno> {
        self.engine().check()?;
        self.family.check(remote)?;
        let is_nonblocking = self.is_nonblocking();
        {
            let mut state = self.lock();
            self.advance(&mut state);
            match &state.phase {
                Phase::Idle => self.begin_to_connect(&mut state, remote)?,
                Phase::Connecting(_) if is_nonblocking => return Err(Errno::ALREADY),
                Phase::Connecting(_) => {}
                Phase::Connected(_) => {
                    let is_told = std::mem::replace(&mut state.is_connect_told, true);
                    return if is_told { Err(Errno::ISCONN) } else { Ok(()) };
                }
                Phase::Listening(_) => return Err(Errno::ISCONN),
                Phase::Failed => {
                    if let Some(error) = state.error.take() {
                        return Err(error);
                    }
                    self.renew(&mut state)?;
                    self.begin_to_connect(&mut state, remote)?;
                }
                Phase::Closed => return Err(Errno::BADF),
            }
        }
        let connected = self.wait(is_nonblocking, |state| match &state.phase {
            Phase::Connecting(_) => None,
            Phase::Connected(_) => {
                state.is_connect_told = true;
                Some(Ok(()))
            }
            _ => Some(Err(state.error.take().unwrap_or(Errno::CONNREFUSED))),
        });
        match connected {
            Err(Errno::AGAIN) => Err(Errno::INPROGRESS),
            other => other,
        }
    }

    fn begin_to_connect(&self, state: &mut State, remote: SocketAddr) -> Result<(), Errno> {
        let id = match &state.id {
            Some(id) => id.clone(),
            None => self.new_id(&state.settings)?,
        };
        let begun = (|| {
            id.resolve_address(None, remote)?;
            id.resolve_route()?;
            let endpoint = self.endpoint(&state.settings)?;
            let parameters = ConnectParameters {
                private_data: endpoint.connection_data().to_octets().to_vec(),
                ..ConnectParameters::default()
            };
            id.connect(&endpoint.qp, &parameters)?;
            Ok(endpoint)
        })();
        match begun {
            Ok(endpoint) => {
                state.phase = Phase::Connecting(Box::new(endpoint));
                state.id = Some(id);
                Ok(())
            }
            Err(error) => {
                state.id = Some(id);
                self.renew(state)?;
                Err(error)
            }
        }
    }

    /// Makes it as it was before a connect that has failed.
    fn renew(&self, state: &mut State) -> Result<(), Errno> {
        if let Some(id) = state.id.take() {
            let _ = id.destroy();
        }
        state.phase = Phase::Idle;
        if let Some(bound) = state.bound {
            let id = self.new_id(&state.settings)?;
            id.bind(bound)?;
            state.id = Some(id);
        }
        Ok(())
    }
}
