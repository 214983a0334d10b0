//! Queue pair: states, events, posting, lifetime.
//!
//! | verbs | the core | |
//! |---|---|---|
//! | RESET, INIT, RTR | idle, or being connected | receives may be posted from INIT on |
//! | RTS | connected | the core says it: connection management moves it |
//! | SQD, ERR | in error | posts succeed, and complete as flushed |
//!
//! A queue pair of an iWARP adapter begins in INIT, and gets to RTS by a connection only. What a program moves between
//! RESET and RTR is noted here.

use std::{
    fmt, mem,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
};

use rdma_over_tcp::{
    error::{EndReason, ErrorNumber},
    rdmap::IMMEDIATE_OCTETS,
    rnic::{
        Access, Bind, Data, LatePosts, Operation, QpConfig, QpId, QpLimits, QpState, Revocable,
        Rnic, Sge, Unpolled, Urgency, VerbError, WrFlags,
    },
};

use crate::{
    async_event::AsyncEventKind, cq::Cq, device::Device, errno::Errno, mr::Mr, mw::Mw, pd::Pd,
    process::Registry, srq::Srq, sync::lock, usage,
};

/// All queue pairs.
static QPS: Registry<Qp> = Registry::new();

/// Resets the connections of this process.
pub(crate) fn fail_all() {
    QPS.members().iter().for_each(|qp| _ = qp.modify(IbvQpState::Error));
}

/// `IBV_QPS_*`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum IbvQpState {
    /// Takes nothing.
    Reset = 0,
    /// Takes receives.
    Init = 1,
    /// Takes receives.
    ReadyToReceive = 2,
    /// Takes everything.
    ReadyToSend = 3,
    /// Being disconnected.
    Drained = 4,
    /// Flushes everything.
    Error = 6,
}

impl IbvQpState {
    /// The state of a number; `None`: none that a program may ask for.
    pub const fn from_number(number: u32) -> Option<Self> {
        Some(match number {
            0 => Self::Reset,
            1 => Self::Init,
            2 => Self::ReadyToReceive,
            3 => Self::ReadyToSend,
            4 => Self::Drained,
            6 => Self::Error,
            _ => return None,
        })
    }
}

/// What a change of state asks of the core.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Transition {
    Note,
    Reset,
    Fail,
}

/// The rule of `ibv_modify_qp`: `noted` is what the program has moved it to, `core` where the core has it.
fn change(noted: IbvQpState, core: QpState, to: IbvQpState) -> Result<Transition, Errno> {
    let from = merge(noted, core);
    match (from, to) {
        (_, IbvQpState::Error) => Ok(Transition::Fail),
        (_, IbvQpState::Reset) => Ok(Transition::Reset),
        // Programs that take these steps themselves do so when the connection is there.
        (_, IbvQpState::Init | IbvQpState::ReadyToReceive | IbvQpState::ReadyToSend)
            if core == QpState::Connected =>
        {
            Ok(Transition::Note)
        }
        (IbvQpState::Reset, IbvQpState::Init) => Ok(Transition::Note),
        (IbvQpState::Init, IbvQpState::Init | IbvQpState::ReadyToReceive) => Ok(Transition::Note),
        // With a queue pair of its own a program makes these steps beside its connection's.
        (IbvQpState::ReadyToReceive, IbvQpState::ReadyToReceive | IbvQpState::ReadyToSend) => {
            Ok(Transition::Note)
        }
        (IbvQpState::ReadyToSend, IbvQpState::ReadyToReceive | IbvQpState::ReadyToSend) => {
            Ok(Transition::Note)
        }
        // The connection drains it when it ends.
        (IbvQpState::ReadyToSend, IbvQpState::Drained) => Ok(Transition::Fail),
        _ => Err(Errno::INVAL),
    }
}

/// The state that a program sees.
const fn merge(noted: IbvQpState, core: QpState) -> IbvQpState {
    match core {
        QpState::Idle | QpState::Connecting => noted,
        QpState::Connected => IbvQpState::ReadyToSend,
        QpState::Error => IbvQpState::Error,
    }
}

/// The event of a connection's end; an end in order has none.
pub(crate) const fn event_of(reason: EndReason) -> AsyncEventKind {
    match reason {
        // RDMAP's remote protection errors, and DDP's of tagged buffers.
        EndReason::Found(ErrorNumber { layer: 0 | 1, etype: 1, .. }) => {
            AsyncEventKind::QpAccessError
        }
        // Catastrophic errors of this side's RDMAP and DDP: the peer's request was valid.
        EndReason::Found(ErrorNumber { layer: 0 | 1, etype: 0, .. }) => AsyncEventKind::QpFatal,
        EndReason::Found(_) | EndReason::Truncated(_) => AsyncEventKind::QpRequestError,
        EndReason::Terminated(_)
        | EndReason::TerminatedUnnumbered
        | EndReason::Lost(_)
        | EndReason::CqOverrun => AsyncEventKind::QpFatal,
    }
}

/// Tells the program of an event, unless the queue pair is destroyed: then the flag is set, before events that wait are
/// withdrawn.
pub type QpEventHandler = Box<dyn Fn(AsyncEventKind, &AtomicBool) + Send + Sync>;

struct EventNotifier {
    tell: QpEventHandler,
    /// The queue pair is destroyed.
    is_destroyed: AtomicBool,
}

impl fmt::Debug for EventNotifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EventNotifier {{ is_destroyed: {:?} }}", self.is_destroyed)
    }
}

impl EventNotifier {
    fn tell(&self, event: AsyncEventKind) {
        (self.tell)(event, &self.is_destroyed);
    }
}

/// What a queue pair is to be.
#[derive(Clone, Debug)]
pub struct QpAttributes {
    /// Where completions of its send queue go.
    pub send_cq: Arc<Cq>,
    /// Where completions of its receives go.
    pub receive_cq: Arc<Cq>,
    /// Where its receives come from, if not from a queue of its own.
    pub srq: Option<Arc<Srq>>,
    /// Limits.
    pub limits: QpLimits,
}

/// A queue pair.
#[derive(Debug)]
pub struct Qp {
    device: &'static Device,
    id: QpId,
    pd: Arc<Pd>,
    attributes: QpAttributes,
    noted: Mutex<IbvQpState>,
    notifier: Arc<EventNotifier>,
    on_detach: Mutex<DetachCallback>,
}

/// Told when a queue pair leaves its connection behind: it is destroyed, or reset.
#[derive(Default)]
struct DetachCallback(Option<Box<dyn FnOnce() + Send>>);

impl fmt::Debug for DetachCallback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Departure")
    }
}

impl Qp {
    /// A queue pair. Its limits are those asked for, and for inline data what there is.
    ///
    /// # Errors
    /// `EINVAL`: a limit over the adapter's, or queues that have failed. `ENOMEM`. As [`Device::check`].
    pub fn new(
        pd: &Arc<Pd>,
        mut attributes: QpAttributes,
        tell: QpEventHandler,
    ) -> Result<Arc<Self>, Errno> {
        let device = pd.device();
        device.check()?;
        let most = device.limits().inline_bytes_max;
        if attributes.limits.inline_data_size <= most {
            attributes.limits.inline_data_size = most;
        }
        let id = device.with(|core, _| {
            let config = QpConfig {
                receive_cq: attributes.receive_cq.id(),
                send_cq: attributes.send_cq.id(),
                context: 0,
                limits: attributes.limits,
                srq: attributes.srq.as_ref().map(|srq| srq.id()),
                late_posts: LatePosts::Flush,
            };
            core.create_qp(pd.id(), config)
        })?;
        let noted = Mutex::new(IbvQpState::Init);
        let notifier = Arc::new(EventNotifier { tell, is_destroyed: AtomicBool::new(false) });
        if attributes.srq.is_some() {
            let last = notifier.clone();
            let notification = Arc::new(move |_| last.tell(AsyncEventKind::LastWqeReached));
            device.with(|core, _| core.notify_of_qp(id, notification))?;
        }
        let on_detach = Mutex::default();
        let pd = pd.clone();
        let qp = Arc::new(Self { device, id, pd, attributes, noted, notifier, on_detach });
        qp.count(1);
        QPS.enter(&qp);
        usage::count_queue_pair();
        Ok(qp)
    }

    /// The queue pair with this number: connection management may name one so.
    pub fn numbered(device: &'static Device, number: u32) -> Option<Arc<Self>> {
        let is_it = |qp: &Arc<Self>| {
            let is_there = !qp.notifier.is_destroyed.load(Ordering::Relaxed);
            std::ptr::eq(qp.device, device) && qp.number() == number && is_there
        };
        QPS.members().into_iter().find(is_it)
    }

    fn count(&self, by: isize) {
        let QpAttributes { send_cq, receive_cq, srq, limits: _ } = &self.attributes;
        let shared = srq.as_ref().map(|srq| &srq.users);
        let users = [&self.pd.users, &send_cq.users, &receive_cq.users].into_iter().chain(shared);
        for users in users {
            users.fetch_add(by as usize, Ordering::Relaxed);
        }
    }

    pub(crate) const fn id(&self) -> QpId {
        self.id
    }

    /// Its number.
    pub const fn number(&self) -> u32 {
        self.id.number()
    }

    /// What it is.
    pub const fn attributes(&self) -> &QpAttributes {
        &self.attributes
    }

    /// The adapter.
    pub const fn device(&self) -> &'static Device {
        self.device
    }

    /// Its connection has ended for this reason.
    pub(crate) fn ended(&self, reason: EndReason) {
        self.notifier.tell(event_of(reason));
    }

    fn core_state(&self) -> QpState {
        self.device.with(|core, _| core.qp_state(self.id)).unwrap_or(QpState::Error)
    }

    /// The state that a program sees.
    ///
    /// # Errors
    /// As [`Device::check`].
    pub fn state(&self) -> Result<IbvQpState, Errno> {
        self.device.check()?;
        Ok(merge(*lock(&self.noted), self.core_state()))
    }

    /// Moves it to another state; returns where it is then.
    ///
    /// # Errors
    /// `EINVAL`: no such step. As [`Device::check`].
    pub fn modify(&self, to: IbvQpState) -> Result<IbvQpState, Errno> {
        self.device.check()?;
        let core = self.core_state();
        let change = change(*lock(&self.noted), core, to)?;
        match change {
            Transition::Note => {}
            Transition::Reset => {
                self.device.with(|core, _| core.reset_qp(self.id))?;
                self.detach();
            }
            Transition::Fail => self.device.with(|core, _| core.break_qp(self.id)),
        }
        *lock(&self.noted) = to;
        Ok(merge(to, self.core_state()))
    }

    /// Ends it. None of its completions is polled any more.
    ///
    /// # Errors
    /// As [`Device::check`].
    pub fn destroy(&self) -> Result<(), Errno> {
        self.device.check()?;
        self.notifier.is_destroyed.store(true, Ordering::Relaxed);
        // It may pend on its connection's identifier. Nobody hears of it any more.
        let _ =
            self.device.with(|core, _| core.close_qp(self.id, Unpolled::Discard, Box::new(|| {})));
        self.count(-1);
        self.detach();
        Ok(())
    }

    /// Has `tell` called when it is destroyed or reset; instead of what was to be told of an earlier connection.
    pub(crate) fn call_on_detach(&self, tell: Box<dyn FnOnce() + Send>) {
        *lock(&self.on_detach) = DetachCallback(Some(tell));
    }

    fn detach(&self) {
        let on_detach = mem::take(&mut *lock(&self.on_detach));
        if let DetachCallback(Some(tell)) = on_detach {
            tell();
        }
    }

    /// Has `work` post requests to the send queue, which leave together.
    ///
    /// # Errors
    /// What `work` returns, and as [`Device::check`]. What was posted before an error leaves.
    #[inline]
    pub fn post_send<E: From<Errno>>(
        &self,
        work: impl Fn(&mut SendPoster<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        self.device.check()?;
        self.device.post(|core| {
            let mut poster = SendPoster { core, qp: self };
            let result = work(&mut poster);
            let urgency = poster.core.kick_qp(self.id);
            (result, urgency)
        })
    }

    /// Has `work` post receives.
    ///
    /// # Errors
    /// What `work` returns, and as [`Device::check`].
    #[inline]
    pub fn post_receives<E: From<Errno>>(
        &self,
        work: impl Fn(&mut ReceivePoster<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        self.device.check()?;
        self.device.post(|core| {
            let mut poster = ReceivePoster { core, qp: self, urgency: Urgency::None };
            let result = work(&mut poster);
            (result, poster.urgency)
        })
    }
}

/// Immediate data of the peer's message from those of `ibv_send_wr`, which are in network order.
pub const fn immediate(data: u32) -> [u8; IMMEDIATE_OCTETS] {
    let [a, b, c, d] = data.to_ne_bytes();
    [a, b, c, d, 0, 0, 0, 0]
}

/// A bind of a window.
#[derive(Clone, Copy, Debug)]
pub struct MwBind<'a> {
    /// The window.
    pub window: &'a Mw,
    /// The region, unless it is to be unbound.
    pub region: &'a Mr,
    /// The low 8 bits of its key, of a window of type 2.
    pub key: Option<u8>,
    /// The first byte, by the region's addresses.
    pub address: u64,
    /// Bytes.
    pub length: u64,
    /// Peers' addresses count from the first byte.
    pub is_zero_based: bool,
    /// Rights.
    pub rights: Access,
}

/// Posts to a send queue.
#[derive(Debug)]
pub struct SendPoster<'a> {
    core: &'a mut Rnic,
    qp: &'a Qp,
}

impl SendPoster<'_> {
    /// Posts a request.
    ///
    /// # Errors
    /// `EINVAL`: not connected, or over a limit. `ENOMEM`: the queue is full. `EOPNOTSUPP`: RFC 7306 is off.
    #[inline]
    pub fn post(
        &mut self,
        wr_id: u64,
        operation: Operation,
        data: Data<'_>,
        flags: WrFlags,
    ) -> Result<(), Errno> {
        // They leave when all are posted.
        Ok(self.core.post(self.qp.id, wr_id, operation, data, flags | WrFlags::DEFER).0?)
    }

    /// Requests that can be posted now.
    #[must_use]
    pub fn room(&self) -> usize {
        self.core.send_queue_room(self.qp.id)
    }

    /// Checks a request, and posts nothing. Requests for which this, and [`SendPoster::room`], have no objection are
    /// posted without an error.
    ///
    /// # Errors
    /// As [`SendPoster::post`].
    pub fn check(&mut self, operation: Operation, data: Data<'_>) -> Result<(), Errno> {
        Ok(self.core.check_post(self.qp.id, operation, data)?)
    }

    /// Posts the bind of a window; returns its key.
    ///
    /// # Errors
    /// `EINVAL`: bytes or rights that the region does not have. As [`SendPoster::post`].
    pub fn bind(&mut self, wr_id: u64, bind: MwBind<'_>, flags: WrFlags) -> Result<u32, Errno> {
        let MwBind { window, region, key, address, length, is_zero_based, rights } = bind;
        let bind = Bind {
            window: window.id(),
            key,
            region: region.id(),
            address,
            length,
            base: if is_zero_based { 0 } else { address },
            rights,
        };
        Ok(self.core.post_bind(self.qp.id, wr_id, bind, flags | WrFlags::DEFER).0?)
    }

    /// Posts the invalidation of a window that the queue pair has bound, by its key.
    ///
    /// # Errors
    /// As [`SendPoster::post`].
    pub fn invalidate(&mut self, wr_id: u64, key: u32, flags: WrFlags) -> Result<(), Errno> {
        let target = Revocable::Token(key);
        Ok(self.core.post_invalidate(self.qp.id, wr_id, target, flags | WrFlags::DEFER).0?)
    }
}

/// Posts to a receive queue.
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
    /// `EINVAL`: over a limit. `ENOMEM`: the queue is full.
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

    // Of an iWARP adapter only a connection leads to RTS; ERR and RESET are always possible.
    #[test]
    fn steps_between_states() {
        use IbvQpState::{Drained, Error, Init, ReadyToReceive, ReadyToSend, Reset};
        let idle = [
            (Reset, Init, Ok(Transition::Note)),
            (Reset, ReadyToReceive, Err(Errno::INVAL)),
            (Reset, ReadyToSend, Err(Errno::INVAL)),
            (Init, Init, Ok(Transition::Note)),
            (Init, ReadyToReceive, Ok(Transition::Note)),
            (Init, ReadyToSend, Err(Errno::INVAL)),
            (Init, Drained, Err(Errno::INVAL)),
            (ReadyToReceive, ReadyToSend, Ok(Transition::Note)),
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
            assert_eq!(change(Init, QpState::Connected, to), Ok(Transition::Note));
        }
        assert_eq!(change(Init, QpState::Connected, Drained), Ok(Transition::Fail));
        assert_eq!(change(Init, QpState::Error, Init), Err(Errno::INVAL));
        for (number, event) in [
            ((0, 1, 2), AsyncEventKind::QpAccessError),
            ((1, 1, 0), AsyncEventKind::QpAccessError),
            ((1, 2, 2), AsyncEventKind::QpRequestError),
            ((2, 0, 2), AsyncEventKind::QpRequestError),
            ((0, 0, 0), AsyncEventKind::QpFatal),
            ((1, 0, 0), AsyncEventKind::QpFatal),
        ] {
            let (layer, etype, code) = number;
            let number = ErrorNumber { layer, etype, code };
            assert_eq!(event_of(EndReason::Found(number)), event);
            assert_eq!(event_of(EndReason::Terminated(number)), AsyncEventKind::QpFatal);
        }
        for number in 0..8 {
            if let Some(state) = IbvQpState::from_number(number) {
                assert_eq!(state as u32, number);
            }
        }
    }
}
