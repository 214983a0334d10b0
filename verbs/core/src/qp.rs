//! Queue pair: states, events, posting, lifetime.
//!
//! | verbs | the core | |
//! |---|---|---|
//! | RESET, INIT, RTR | idle, or being connected | receives may be posted from INIT on |
//! | RTS | connected | set by the core; connection management connects it |
//! | SQD, ERR | in error | posts succeed, and complete as flushed |
//!
//! A queue pair of an iWARP adapter is created in INIT, and only a connection changes it to RTS. Transitions of the
//! program between RESET and RTR are recorded in this file, without an effect on the core.
//!
//! A queue pair that a program creates on a RoCE device is created in RESET, and follows the transitions of InfiniBand
//! ([`crate::attributes`]). The program connects it itself ([`crate::rendezvous`]), or an identifier does. One of type
//! UD has no connection: each request names its destination.

use std::{
    fmt, mem,
    sync::{Arc, Mutex, Weak, atomic::Ordering},
};

use rdma_over_tcp::{
    error::EndReason,
    rdmap::IMMEDIATE_OCTETS,
    rnic::{
        Access, Bind, CompletionRetention, Data, Destination, ErrorStatePosts, Operation, QpConfig,
        QpEvent, QpId, QpLimits, QpNotification, QpService, QpState, Revocable, Rnic, Sge, Urgency,
        VerbError, WrFlags,
    },
};

use crate::{
    async_event::{AsyncEventKind, EventNotifier, QpEventHandler, event_of},
    attributes::{IbvQpAttributes, IbvQpChange, IbvQpState, QpKind},
    cq::Cq,
    device::Device,
    errno::Errno,
    mr::Mr,
    mw::Mw,
    pd::Pd,
    process::Registry,
    rendezvous::{self, Endpoint},
    srq::Srq,
    sync::lock,
    usage,
};

/// Queue pairs of the process.
static QPS: Registry<Qp> = Registry::new();

/// Resets the connections of all queue pairs of this process.
pub(crate) fn fail_all() {
    QPS.members().iter().for_each(|qp| _ = qp.fail());
}

/// Effect of `ibv_modify_qp`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Transition {
    /// Records the state only.
    Record,
    /// Resets the queue pair of the core.
    Reset,
    /// Moves the queue pair of the core to the error state.
    Fail,
}

/// Returns the effect of `ibv_modify_qp`, from the state that the program has set and that of the core.
fn change(recorded: IbvQpState, core: QpState, to: IbvQpState) -> Result<Transition, Errno> {
    let from = merge(recorded, core);
    match (from, to) {
        (_, IbvQpState::Error) => Ok(Transition::Fail),
        (_, IbvQpState::Reset) => Ok(Transition::Reset),
        // Programs that make these transitions themselves make them once the connection is established.
        (_, IbvQpState::Init | IbvQpState::ReadyToReceive | IbvQpState::ReadyToSend)
            if core == QpState::Connected =>
        {
            Ok(Transition::Record)
        }
        (IbvQpState::Reset, IbvQpState::Init) => Ok(Transition::Record),
        (IbvQpState::Init, IbvQpState::Init | IbvQpState::ReadyToReceive) => Ok(Transition::Record),
        // Programs that create the queue pair without its identifier make these transitions as well.
        (IbvQpState::ReadyToReceive, IbvQpState::ReadyToReceive | IbvQpState::ReadyToSend) => {
            Ok(Transition::Record)
        }
        (IbvQpState::ReadyToSend, IbvQpState::ReadyToReceive | IbvQpState::ReadyToSend) => {
            Ok(Transition::Record)
        }
        // The end of the connection drains it.
        (IbvQpState::ReadyToSend, IbvQpState::Drained) => Ok(Transition::Fail),
        _ => Err(Errno::INVAL),
    }
}

/// Returns the state that is reported to the program.
const fn merge(recorded: IbvQpState, core: QpState) -> IbvQpState {
    match core {
        QpState::Idle | QpState::Connecting | QpState::Lost => recorded,
        QpState::Connected => IbvQpState::ReadyToSend,
        QpState::Error => IbvQpState::Error,
    }
}

/// Attributes of a queue pair.
#[derive(Clone, Debug)]
pub struct QpAttributes {
    /// Completion queue of the send queue.
    pub send_cq: Arc<Cq>,
    /// Completion queue of receives.
    pub receive_cq: Arc<Cq>,
    /// Shared receive queue. `None`: the queue pair has its own receive queue.
    pub srq: Option<Arc<Srq>>,
    /// Limits.
    pub limits: QpLimits,
    /// Owner.
    pub owner: QpOwner,
    /// Type. Only programs of a RoCE device have queue pairs of another type than RC.
    pub kind: QpKind,
}

/// Owner of a queue pair, which connects it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum QpOwner {
    /// This library: a queue pair of an rsocket.
    Library,
    /// An identifier of connection management.
    Identifier,
    /// The program. It may connect the queue pair itself, or by an identifier.
    Program,
}

/// Returns true if queue pairs of this owner have a number of the rendezvous.
fn is_numbered(device: &Device, owner: QpOwner) -> bool {
    device.identity().is_roce() && owner != QpOwner::Library
}

/// Queue pair.
#[derive(Debug)]
pub struct Qp {
    device: &'static Device,
    id: QpId,
    /// Number; that of the rendezvous on a RoCE device.
    number: u32,
    /// State of a queue pair that the program of a RoCE device has created.
    endpoint: Option<Arc<Endpoint>>,
    pd: Arc<Pd>,
    attributes: QpAttributes,
    /// State that the program has set.
    recorded: Mutex<IbvQpState>,
    notifier: Arc<EventNotifier>,
    on_detach: Mutex<DetachCallback>,
}

/// Callback for the destruction or reset of a queue pair, which detach it from its connection.
#[derive(Default)]
struct DetachCallback(Option<Box<dyn FnOnce() + Send>>);

impl fmt::Debug for DetachCallback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DetachCallback")
    }
}

impl Qp {
    /// Creates a queue pair with the requested limits; that of inline data is raised to the adapter's.
    ///
    /// # Errors
    /// `EINVAL`: a limit above the adapter's, or a failed completion queue. `ENOMEM`. As [`Device::check`].
    pub fn new(
        pd: &Arc<Pd>,
        mut attributes: QpAttributes,
        handler: QpEventHandler,
    ) -> Result<Arc<Self>, Errno> {
        let device = pd.device();
        device.check()?;
        let QpAttributes { owner, kind, .. } = attributes;
        let is_of_program = is_numbered(device, owner) && owner == QpOwner::Program;
        if kind != QpKind::Rc && !is_of_program {
            return Err(Errno::OPNOTSUPP);
        }
        let most = device.limits().inline_bytes_max;
        if attributes.limits.inline_data_size <= most {
            attributes.limits.inline_data_size = most;
        }
        let number = match is_numbered(device, owner) {
            true => Some(rendezvous::allocate_number(device, kind == QpKind::Ud)?),
            false => None,
        };
        let service = if is_of_program { kind.service() } else { QpService::Iwarp };
        let created = device.with(|core, _| {
            let config = QpConfig {
                receive_cq: attributes.receive_cq.id(),
                send_cq: attributes.send_cq.id(),
                context: number.unwrap_or(0).into(),
                limits: attributes.limits,
                srq: attributes.srq.as_ref().map(|srq| srq.id()),
                error_state_posts: ErrorStatePosts::Flush,
                service,
            };
            let id = core.create_qp(pd.id(), config)?;
            if let Some(number) = number {
                core.set_qp_numbers(id, number, None);
            }
            Ok::<_, VerbError>(id)
        });
        let id = created.inspect_err(|_| {
            if let Some(number) = number {
                let has_datagrams = kind == QpKind::Ud;
                device.with(|core, _| {
                    rendezvous::release_number(device, number, has_datagrams, core);
                });
            }
        })?;
        let recorded = Mutex::new(IbvQpState::Init);
        let notifier = Arc::new(EventNotifier::new(handler));
        let endpoint = number
            .filter(|_| is_of_program)
            .map(|number| rendezvous::add(device, id, (number, kind), notifier.clone()));
        let notification = notification(&notifier, endpoint.as_ref());
        if attributes.srq.is_some() || endpoint.is_some() {
            device.with(|core, _| core.notify_of_qp(id, notification))?;
        }
        let on_detach = Mutex::default();
        let pd = pd.clone();
        let number = number.unwrap_or_else(|| id.number());
        let qp = Arc::new(Self {
            device,
            id,
            number,
            endpoint,
            pd,
            attributes,
            recorded,
            notifier,
            on_detach,
        });
        qp.count(1);
        QPS.enter(&qp);
        usage::count_queue_pair();
        Ok(qp)
    }

    /// Returns the queue pair with this number, as parameters of connection management name it.
    pub fn numbered(device: &'static Device, number: u32) -> Option<Arc<Self>> {
        let matches = |qp: &Arc<Self>| {
            let is_live = !qp.notifier.is_destroyed();
            std::ptr::eq(qp.device, device) && qp.number() == number && is_live
        };
        QPS.members().into_iter().find(matches)
    }

    /// Adds `by` to the user counts of its objects.
    fn count(&self, by: isize) {
        let QpAttributes { send_cq, receive_cq, srq, limits: _, owner: _, kind: _ } =
            &self.attributes;
        let shared = srq.as_ref().map(|srq| &srq.users);
        let users = [&self.pd.users, &send_cq.users, &receive_cq.users].into_iter().chain(shared);
        for users in users {
            users.fetch_add(by as usize, Ordering::Relaxed);
        }
    }

    pub(crate) const fn id(&self) -> QpId {
        self.id
    }

    /// Returns the number of the queue pair.
    pub const fn number(&self) -> u32 {
        self.number
    }

    /// Returns the attributes.
    pub const fn attributes(&self) -> &QpAttributes {
        &self.attributes
    }

    /// Returns true if its requests are datagrams.
    #[inline]
    pub fn has_datagrams(&self) -> bool {
        self.attributes.kind == QpKind::Ud
    }

    /// Returns the device.
    pub const fn device(&self) -> &'static Device {
        self.device
    }

    /// Reports the failure of its connection.
    pub(crate) fn ended(&self, reason: EndReason) {
        self.notifier.notify(event_of(reason));
    }

    fn core_state(&self) -> QpState {
        self.device.with(|core, _| core.qp_state(self.id)).unwrap_or(QpState::Error)
    }

    /// Returns the state that is reported to the program.
    ///
    /// # Errors
    /// As [`Device::check`].
    pub fn state(&self) -> Result<IbvQpState, Errno> {
        self.device.check()?;
        if let Some(endpoint) = &self.endpoint {
            return Ok(endpoint.query().0);
        }
        Ok(merge(*lock(&self.recorded), self.core_state()))
    }

    /// Returns the attributes that the program has set; `None`: it is not a queue pair of the RoCE device that the
    /// program has created.
    pub fn ibv_attributes(&self) -> Option<IbvQpAttributes> {
        self.endpoint.as_ref().map(|endpoint| endpoint.query().1)
    }

    /// Returns true if transitions of the queue pair are those of InfiniBand ([`Qp::modify_ibv`]).
    pub const fn has_ibv_states(&self) -> bool {
        self.endpoint.is_some()
    }

    /// Changes state and attributes, and returns the resulting state.
    ///
    /// # Errors
    /// `EOPNOTSUPP`, `EINVAL`: as [`IbvQpChange::apply`]; or not a queue pair of the RoCE device that the program has
    /// created. `ENETUNREACH`, `EHOSTUNREACH`: no route to the peer. As [`Device::check`].
    pub fn modify_ibv(&self, change: &IbvQpChange) -> Result<IbvQpState, Errno> {
        self.device.check()?;
        let endpoint = self.endpoint.as_ref().ok_or(Errno::INVAL)?;
        let state = rendezvous::modify(endpoint, change)?;
        if state == IbvQpState::Reset {
            self.detach();
        }
        Ok(state)
    }

    /// Prepares the queue pair for a connection by an identifier, which is iWARP in all respects.
    pub(crate) fn connect_by_identifier(&self) -> Result<(), Errno> {
        if self.attributes.kind != QpKind::Rc {
            return Err(Errno::INVAL);
        }
        if self.endpoint.is_some() {
            self.device.with(|core, _| core.set_qp_service(self.id, QpService::Iwarp))?;
        }
        Ok(())
    }

    /// Moves the queue pair to ERR.
    ///
    /// # Errors
    /// As [`Device::check`].
    pub(crate) fn fail(&self) -> Result<(), Errno> {
        match &self.endpoint {
            Some(_) => {
                self.device.check()?;
                self.device.with(|core, _| core.break_qp(self.id));
                Ok(())
            }
            None => self.modify(IbvQpState::Error).map(drop),
        }
    }

    /// Changes the state, and returns the resulting one.
    ///
    /// # Errors
    /// `EINVAL`: invalid transition. As [`Device::check`].
    pub fn modify(&self, to: IbvQpState) -> Result<IbvQpState, Errno> {
        self.device.check()?;
        let core = self.core_state();
        let change = change(*lock(&self.recorded), core, to)?;
        match change {
            Transition::Record => {}
            Transition::Reset => {
                self.device.with(|core, _| core.reset_qp(self.id))?;
                self.detach();
            }
            Transition::Fail => self.device.with(|core, _| core.break_qp(self.id)),
        }
        *lock(&self.recorded) = to;
        Ok(merge(to, self.core_state()))
    }

    /// Destroys the queue pair, and discards its completions.
    ///
    /// # Errors
    /// As [`Device::check`].
    pub fn destroy(&self) -> Result<(), Errno> {
        self.device.check()?;
        self.notifier.destroy();
        // The close may be pending until the identifier of its connection is destroyed. Its completion has no receiver.
        self.device.with(|core, _| {
            let _ = core.close_qp(self.id, CompletionRetention::Discard, Box::new(|| {}));
            match &self.endpoint {
                Some(endpoint) => rendezvous::remove(endpoint, core),
                None if is_numbered(self.device, self.attributes.owner) => {
                    rendezvous::release_number(self.device, self.number, false, core);
                }
                None => {}
            }
        });
        self.count(-1);
        self.detach();
        Ok(())
    }

    /// Sets the callback for the destruction or reset, and replaces that of an earlier connection.
    pub(crate) fn call_on_detach(&self, callback: Box<dyn FnOnce() + Send>) {
        *lock(&self.on_detach) = DetachCallback(Some(callback));
    }

    fn detach(&self) {
        let on_detach = mem::take(&mut *lock(&self.on_detach));
        if let DetachCallback(Some(callback)) = on_detach {
            callback();
        }
    }

    /// Calls `work` to post requests to the send queue, and transmits them together.
    ///
    /// # Errors
    /// Errors of `work`; requests that were posted before are transmitted. As [`Device::check`].
    #[inline]
    pub fn post_send<E: From<Errno>>(
        &self,
        work: impl Fn(&mut SendPoster<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        self.device.check()?;
        if self.endpoint.as_ref().is_some_and(|endpoint| !endpoint.accepts_sends()) {
            return Err(Errno::INVAL.into());
        }
        self.device.post(|core| {
            let mut poster = SendPoster { core, qp: self };
            let result = work(&mut poster);
            let urgency = poster.core.schedule_qp(self.id);
            (result, urgency)
        })
    }

    /// Calls `work` to post receives.
    ///
    /// # Errors
    /// Errors of `work`. As [`Device::check`].
    #[inline]
    pub fn post_receives<E: From<Errno>>(
        &self,
        work: impl Fn(&mut ReceivePoster<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        self.device.check()?;
        if self.endpoint.as_ref().is_some_and(|endpoint| !endpoint.accepts_receives()) {
            return Err(Errno::INVAL.into());
        }
        self.device.post(|core| {
            let mut poster = ReceivePoster { core, qp: self, urgency: Urgency::None };
            let result = work(&mut poster);
            (result, poster.urgency)
        })
    }
}

/// Returns the callback for the events of a queue pair.
fn notification(notifier: &Arc<EventNotifier>, endpoint: Option<&Arc<Endpoint>>) -> QpNotification {
    let (notifier, endpoint) = (notifier.clone(), endpoint.map(Arc::downgrade));
    Arc::new(move |event| match event {
        QpEvent::LastReceive => notifier.notify(AsyncEventKind::LastWqeReached),
        QpEvent::RequestsWaiting => {
            if let Some(endpoint) = endpoint.as_ref().and_then(Weak::upgrade) {
                endpoint.requests_wait();
            }
        }
    })
}

/// Converts immediate data of `ibv_send_wr`, in network order, to those of the message.
pub const fn immediate(data: u32) -> [u8; IMMEDIATE_OCTETS] {
    let [a, b, c, d] = data.to_ne_bytes();
    [a, b, c, d, 0, 0, 0, 0]
}

/// Bind request of a window.
#[derive(Clone, Copy, Debug)]
pub struct MwBind<'a> {
    /// Window.
    pub window: &'a Mw,
    /// Region.
    pub region: &'a Mr,
    /// Low 8 bits of the key, for a window of type 2.
    pub key: Option<u8>,
    /// Address of the first byte, in the region's addresses.
    pub address: u64,
    /// Length in bytes; 0 unbinds the window.
    pub length: u64,
    /// True if addresses of peers are relative to the first byte.
    pub is_zero_based: bool,
    /// Rights.
    pub rights: Access,
}

/// Access to a send queue during a post.
#[derive(Debug)]
pub struct SendPoster<'a> {
    core: &'a mut Rnic,
    qp: &'a Qp,
}

impl MwBind<'_> {
    /// Returns the request of the core.
    #[must_use]
    pub fn request(&self) -> Bind {
        let Self { window, region, key, address, length, is_zero_based, rights } = *self;
        let base = if is_zero_based { 0 } else { address };
        Bind { window: window.id(), key, region: region.id(), address, length, base, rights }
    }
}

impl SendPoster<'_> {
    /// Posts a request.
    ///
    /// # Errors
    /// `EINVAL`: not connected, or above a limit. `ENOMEM`: the queue is full. `EOPNOTSUPP`: RFC 7306 is off.
    #[inline]
    pub fn post(
        &mut self,
        wr_id: u64,
        operation: Operation,
        data: Data<'_>,
        flags: WrFlags,
    ) -> Result<(), Errno> {
        self.check_kind(&operation)?;
        // `post_send` transmits all of them.
        Ok(self.core.post(self.qp.id, wr_id, operation, data, flags | WrFlags::DEFER).0?)
    }

    /// Checks that the type of the queue pair has the operation.
    #[inline]
    fn check_kind(&self, operation: &Operation) -> Result<(), Errno> {
        let is_of_uc = matches!(
            operation,
            Operation::Send { invalidate: None }
                | Operation::SendImmediate { .. }
                | Operation::Write { .. }
                | Operation::WriteImmediate { .. }
        );
        let is_uc = self.qp.attributes.kind == QpKind::Uc;
        if is_uc && !is_of_uc { Err(Errno::INVAL) } else { Ok(()) }
    }

    /// Posts a datagram.
    ///
    /// # Errors
    /// `EINVAL`: above a limit. `ENOMEM`: the queue is full.
    #[inline]
    pub fn post_datagram(
        &mut self,
        wr_id: u64,
        message: (Destination, Option<[u8; 4]>),
        data: Data<'_>,
        flags: WrFlags,
    ) -> Result<(), Errno> {
        let flags = flags | WrFlags::DEFER;
        Ok(self.core.post_datagram(self.qp.id, wr_id, message, data, flags).0?)
    }

    /// Checks a datagram as [`SendPoster::check`] does.
    ///
    /// # Errors
    /// As [`SendPoster::post_datagram`].
    pub fn check_datagram(&mut self, data: Data<'_>) -> Result<(), Errno> {
        Ok(self.core.check_datagram(self.qp.id, data)?)
    }

    /// Returns the number of requests that can be posted.
    #[must_use]
    pub fn room(&self) -> usize {
        self.core.send_queue_room(self.qp.id)
    }

    /// Checks a request without posting it. A request that passes, with [`SendPoster::room`], is posted without an
    /// error.
    ///
    /// # Errors
    /// As [`SendPoster::post`].
    pub fn check(&mut self, operation: Operation, data: Data<'_>) -> Result<(), Errno> {
        self.check_kind(&operation)?;
        Ok(self.core.check_post(self.qp.id, operation, data)?)
    }

    /// Checks a bind as [`SendPoster::check`] does.
    ///
    /// # Errors
    /// As [`SendPoster::bind`].
    pub fn check_bind(&mut self, bind: Bind) -> Result<(), Errno> {
        Ok(self.core.check_bind(self.qp.id, bind)?)
    }

    /// Checks an invalidation as [`SendPoster::check`] does.
    ///
    /// # Errors
    /// As [`SendPoster::post`].
    pub fn check_invalidate(&mut self, key: u32) -> Result<(), Errno> {
        Ok(self.core.check_invalidate(self.qp.id, Revocable::Token(key))?)
    }

    /// Posts the bind of a window, and returns its key.
    ///
    /// # Errors
    /// `EINVAL`: bytes or rights outside those of the region. As [`SendPoster::post`].
    pub fn bind(&mut self, wr_id: u64, bind: Bind, flags: WrFlags) -> Result<u32, Errno> {
        Ok(self.core.post_bind(self.qp.id, wr_id, bind, flags | WrFlags::DEFER).0?)
    }

    /// Posts the invalidation of a window of this queue pair, by key.
    ///
    /// # Errors
    /// As [`SendPoster::post`].
    pub fn invalidate(&mut self, wr_id: u64, key: u32, flags: WrFlags) -> Result<(), Errno> {
        let target = Revocable::Token(key);
        Ok(self.core.post_invalidate(self.qp.id, wr_id, target, flags | WrFlags::DEFER).0?)
    }
}

/// Access to a receive queue during a post.
#[derive(Debug)]
pub struct ReceivePoster<'a> {
    core: &'a mut Rnic,
    qp: &'a Qp,
    urgency: Urgency,
}

impl ReceivePoster<'_> {
    /// Posts a receive.
    ///
    /// # Errors
    /// `EINVAL`: too many scatter/gather entries. `ENOMEM`: the queue is full.
    #[inline]
    pub fn post(&mut self, wr_id: u64, sges: &[Sge]) -> Result<(), Errno> {
        let (posted, urgency) = self.core.post_receive(self.qp.id, wr_id, sges);
        if urgency != Urgency::None {
            self.urgency = urgency;
        }
        match posted {
            Err(VerbError::NotConnected) => Err(Errno::INVAL),
            other => Ok(other?),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // On an iWARP adapter, only a connection leads to RTS. ERR and RESET are always possible.
    #[test]
    fn transitions_follow_the_state_of_the_core() {
        use IbvQpState::{Drained, Error, Init, ReadyToReceive, ReadyToSend, Reset};
        let idle = [
            (Reset, Init, Ok(Transition::Record)),
            (Reset, ReadyToReceive, Err(Errno::INVAL)),
            (Reset, ReadyToSend, Err(Errno::INVAL)),
            (Init, Init, Ok(Transition::Record)),
            (Init, ReadyToReceive, Ok(Transition::Record)),
            (Init, ReadyToSend, Err(Errno::INVAL)),
            (Init, Drained, Err(Errno::INVAL)),
            (ReadyToReceive, ReadyToSend, Ok(Transition::Record)),
            (ReadyToReceive, Init, Err(Errno::INVAL)),
        ];
        for (from, to, expected) in idle {
            assert_eq!(change(from, QpState::Idle, to), expected, "{from:?} to {to:?}");
        }
        for core in [QpState::Idle, QpState::Connecting, QpState::Connected, QpState::Error] {
            assert_eq!(change(Init, core, Error), Ok(Transition::Fail));
            assert_eq!(change(Init, core, Reset), Ok(Transition::Reset));
        }
        for to in [Init, ReadyToReceive, ReadyToSend] {
            assert_eq!(change(Init, QpState::Connected, to), Ok(Transition::Record));
        }
        assert_eq!(change(Init, QpState::Connected, Drained), Ok(Transition::Fail));
        assert_eq!(change(Init, QpState::Error, Init), Err(Errno::INVAL));
        for number in 0..8 {
            if let Some(state) = IbvQpState::from_number(number) {
                assert_eq!(state as u32, number);
            }
        }
    }
}
