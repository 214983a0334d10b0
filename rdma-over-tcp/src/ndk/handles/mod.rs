//! Handles of consumers: names of objects and the way to their adapter.
//!
//! Handles are cheap to clone, and dropping one closes nothing: objects live until they are closed, as in
//! NDKPI. Every call enters the core once and returns without waiting; callbacks run afterwards, when the
//! node holds no lock. Functions that say PENDING call back exactly once, with any other status never
//! (NDK-ASY-1).

mod connection;
mod creation;
mod extension_interface;
mod extensions;
mod memory;
mod shared_endpoint;

use alloc::{boxed::Box, sync::Arc, vec::Vec};
use core::time::Duration;

pub use self::{
    connection::{Connector, Listener},
    extension_interface::{ExtensionInterface, Guid, RFC7306_INTERFACE, RFC7306_VERSION},
    memory::LogicalAddressMapping,
    shared_endpoint::SharedEndpoint,
};
use super::{
    flags::{CqNotify, MrFlags, OpFlags, OperationType},
    info::AdapterInfo,
    management::{NdkConnections, NdkLocalEndpoints},
    result::{NdkResult, NdkResultEx},
    status::NtStatus,
};
use crate::{
    adapter::Adapter,
    ddp::Stag,
    rnic::{
        Bind, Close, Completion, CompletionQueue, ConnectionEntry, Counters, CqFailure, CqId,
        CqModeration, Data, FastRegisterLimits, Key, LatePosts, Operation, PdId, QpConfig, QpId,
        QpLimits, QpState, QpStats, RegionId, RegisteredBuffer, Remote, Revocable, Rnic, Sge,
        SrqConfig, SrqEvent, SrqId, Urgency, VerbError, WindowId, WindowType,
    },
};

/// Objects are used together if one adapter has made them.
fn check_same(one: &Adapter, other: &Adapter) -> Result<(), NtStatus> {
    if one.is_same(other) { Ok(()) } else { Err(NtStatus::INVALID_PARAMETER) }
}

impl From<Close> for NtStatus {
    fn from(close: Close) -> Self {
        match close {
            Close::Done => Self::SUCCESS,
            Close::Pending => Self::PENDING,
        }
    }
}

macro_rules! closable {
    ($($name:ident as $key:ident,)*) => {$(
        impl $name {
            /// Closes the object: SUCCESS, or PENDING and `completion` follows, as the last callback for it
            /// (NDK-LIFE-1, -4, -7). Antecedents may be closed before their successors (NDK-LIFE-5).
            pub fn close(&self, completion: impl FnOnce() + Send + 'static) -> NtStatus {
                let key = Key::$key(self.id);
                self.adapter.with(|core, now| core.close_at(now, key, Box::new(completion))).into()
            }
        }
    )*};
}

closable! {
    Pd as Pd,
    Cq as Cq,
    Mr as Region,
    Mw as Window,
    Qp as Qp,
    Srq as Srq,
    Connector as Connector,
    Listener as Listener,
    SharedEndpoint as SharedEndpoint,
}

/// An NDK_ADAPTER.
impl Adapter {
    /// NdkQueryAdapterInfo.
    #[must_use]
    pub fn info(&self) -> AdapterInfo {
        self.with(|core, _| AdapterInfo::from(core.config()))
    }

    /// NDK performance counters.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.with(|core, _| core.counters())
    }

    /// The connections there are (OID_NDK_CONNECTIONS), with the statistics of their queue pairs.
    #[must_use]
    pub fn connections(&self) -> Vec<ConnectionEntry> {
        self.with(|core, _| core.connections())
    }

    /// Memory to be registered: page-aligned and zeroed.
    ///
    /// # Errors
    /// [`NtStatus::INVALID_PARAMETER`]: no bytes; [`NtStatus::INSUFFICIENT_RESOURCES`]: no memory.
    pub fn allocate(&self, len: usize) -> Result<RegisteredBuffer, NtStatus> {
        if len == 0 {
            return Err(NtStatus::INVALID_PARAMETER);
        }
        RegisteredBuffer::allocate(len).ok_or(NtStatus::INSUFFICIENT_RESOURCES)
    }

    /// OID_NDK_CONNECTIONS of this adapter alone ([`Miniport::connections`](crate::ndk::Miniport::connections)).
    #[must_use]
    pub fn connection_entries(&self) -> NdkConnections {
        let mut all = NdkConnections::new();
        self.with(|core, _| all.add(core));
        all
    }

    /// OID_NDK_LOCAL_ENDPOINTS of this adapter alone.
    #[must_use]
    pub fn local_endpoints(&self) -> NdkLocalEndpoints {
        let mut all = NdkLocalEndpoints::new();
        self.with(|core, _| all.add(core));
        all
    }

    /// NdkCreateCq: a queue of `depth` entries. `notification` is called once per arm that is satisfied,
    /// never twice at a time (NDK-CQ-2, -3).
    ///
    /// # Errors
    /// [`NtStatus::INVALID_PARAMETER`]: no entries, more than the adapter's limit, or the adapter is being closed;
    /// [`NtStatus::INSUFFICIENT_RESOURCES`].
    pub fn create_cq(
        &self,
        depth: u32,
        notification: impl Fn(NtStatus) + Send + Sync + 'static,
    ) -> Result<Cq, NtStatus> {
        let notification =
            Arc::new(move |outcome: Result<(), CqFailure>| notification(outcome.into()));
        let (id, queue) = self.with(|core, _| core.create_cq(depth, notification))?;
        Ok(Cq { adapter: self.clone(), id, queue })
    }

    /// NdkCreatePd.
    ///
    /// # Errors
    /// [`NtStatus::INSUFFICIENT_RESOURCES`]; [`NtStatus::INVALID_PARAMETER`]: the adapter is being closed.
    pub fn create_pd(&self) -> Result<Pd, NtStatus> {
        let id = self.with(|core, _| core.create_pd())?;
        Ok(Pd { adapter: self.clone(), id })
    }

    /// NdkCreateConnector.
    ///
    /// # Errors
    /// As [`Adapter::create_pd`].
    pub fn create_connector(&self) -> Result<Connector, NtStatus> {
        let id = self.with(|core, _| core.create_connector())?;
        Ok(Connector { adapter: self.clone(), id })
    }

    /// NdkCreateListener. `event` is given a connector for each incoming request, to be accepted,
    /// rejected or closed.
    ///
    /// # Errors
    /// As [`Adapter::create_pd`].
    pub fn create_listener(
        &self,
        event: impl Fn(Connector) + Send + Sync + 'static,
    ) -> Result<Listener, NtStatus> {
        // The core must not hold the way to itself: a node would never end.
        let adapter = self.downgrade();
        let event = Arc::new(move |id| {
            // Nobody who could use the connector is left otherwise.
            if let Some(adapter) = adapter.upgrade() {
                event(Connector { adapter, id });
            }
        });
        let id = self.with(|core, _| core.create_listener(event))?;
        Ok(Listener { adapter: self.clone(), id })
    }

    /// CLOSE_NDK_ADAPTER_HANDLER: SUCCESS, or PENDING and `completion` follows when every object of the
    /// adapter is closed and all callbacks have returned (NDK-LIFE-9). A node that offers the blocking
    /// form waits for it.
    pub fn close(&self, completion: impl FnOnce() + Send + 'static) -> NtStatus {
        self.with(|core, now| core.close_at(now, Key::Rnic, Box::new(completion))).into()
    }
}

/// A protection domain.
#[derive(Clone, Debug)]
pub struct Pd {
    pub(in crate::ndk) adapter: Adapter,
    id: PdId,
}

impl Pd {
    /// NdkCreateMr: a region for [`Mr::register`], or with `fast_register` for [`Qp::fast_register`]
    /// (NDK-MEM-5).
    ///
    /// # Errors
    /// [`NtStatus::INSUFFICIENT_RESOURCES`]; [`NtStatus::INVALID_PARAMETER`]: the domain is being closed.
    pub fn create_mr(&self, fast_register: bool) -> Result<Mr, NtStatus> {
        let id = self.adapter.with(|core, _| core.create_region(self.id, fast_register))?;
        Ok(Mr { adapter: self.adapter.clone(), id })
    }

    /// NdkCreateQp: completions of receives go to `receive_cq`, of initiator requests to `initiator_cq`,
    /// which may be the same; each carries `context`.
    ///
    /// # Errors
    /// [`NtStatus::INVALID_PARAMETER`]: a limit over the adapter's, or a queue of another adapter, that
    /// failed or is being closed; [`NtStatus::INSUFFICIENT_RESOURCES`].
    pub fn create_qp(
        &self,
        receive_cq: &Cq,
        initiator_cq: &Cq,
        context: u64,
        limits: QpLimits,
    ) -> Result<Qp, NtStatus> {
        self.create_any_qp(receive_cq, initiator_cq, None, context, limits)
    }

    fn create_any_qp(
        &self,
        receive_cq: &Cq,
        initiator_cq: &Cq,
        srq: Option<SrqId>,
        context: u64,
        limits: QpLimits,
    ) -> Result<Qp, NtStatus> {
        check_same(&self.adapter, &receive_cq.adapter)?;
        check_same(&self.adapter, &initiator_cq.adapter)?;
        let (receive_cq, send_cq, late_posts) = (receive_cq.id, initiator_cq.id, LatePosts::Refuse);
        let config = QpConfig { receive_cq, send_cq, context, limits, srq, late_posts };
        let id = self.adapter.with(|core, _| core.create_qp(self.id, config))?;
        Ok(Qp { adapter: self.adapter.clone(), id })
    }

    /// NdkCreateQpWithSrq: as [`Pd::create_qp`], and receives come from `srq`. `context` is how a completion tells its
    /// queue pair (NDK-RES-4).
    ///
    /// # Errors
    /// As [`Pd::create_qp`]; [`NtStatus::INVALID_PARAMETER`] also for a queue of another domain.
    pub fn create_qp_with_srq(
        &self,
        receive_cq: &Cq,
        initiator_cq: &Cq,
        srq: &Srq,
        context: u64,
        limits: QpLimits,
    ) -> Result<Qp, NtStatus> {
        check_same(&self.adapter, &srq.adapter)?;
        self.create_any_qp(receive_cq, initiator_cq, Some(srq.id), context, limits)
    }

    /// NdkCreateSrq: `depth` receives of up to `sges_max` entries. `notification` is called with SUCCESS when fewer
    /// receives are queued than `notify_threshold`, once; the threshold counts once the queue has had as many
    /// (NDK-SRQ-3). 0: no threshold. A send that finds the queue empty ends its connection, as with a queue pair's own
    /// receives.
    ///
    /// # Errors
    /// [`NtStatus::INVALID_PARAMETER`]: depth or entries over the adapter's, a threshold over the depth, or the domain
    /// is being closed; [`NtStatus::INSUFFICIENT_RESOURCES`].
    pub fn create_srq(
        &self,
        depth: u32,
        sges_max: u32,
        notify_threshold: u32,
        notification: impl Fn(NtStatus) + Send + Sync + 'static,
    ) -> Result<Srq, NtStatus> {
        let config =
            SrqConfig { depth, max_receive_request_sge: sges_max, limit: notify_threshold };
        let tell = Arc::new(move |event| match event {
            SrqEvent::LimitReached => notification(NtStatus::SUCCESS),
            SrqEvent::DeviceLost => notification(NtStatus::INTERNAL_ERROR),
        });
        let id = self.adapter.with(|core, _| core.create_srq(self.id, config, tell))?;
        Ok(Srq { adapter: self.adapter.clone(), id })
    }

    /// NdkCreateMw: a window that is not bound, for [`Qp::bind`].
    ///
    /// # Errors
    /// [`NtStatus::INSUFFICIENT_RESOURCES`]; [`NtStatus::INVALID_PARAMETER`]: the domain is being closed.
    pub fn create_mw(&self) -> Result<Mw, NtStatus> {
        // NDK-MEM-16
        let id = self.adapter.with(|core, _| core.create_window(self.id, WindowType::Two))?;
        Ok(Mw { adapter: self.adapter.clone(), id })
    }
}

/// A completion queue.
#[derive(Clone, Debug)]
pub struct Cq {
    adapter: Adapter,
    id: CqId,
    queue: Arc<CompletionQueue>,
}

impl Cq {
    /// NdkGetCqResults: moves completions out, returns how many; 0 when there are none. Not to be called
    /// concurrently for one queue (NDK-CQ-1).
    pub fn poll(&self, results: &mut [NdkResult]) -> usize {
        self.poll_as(results)
    }

    /// NdkGetCqResultsEx.
    pub fn poll_ex(&self, results: &mut [NdkResultEx]) -> usize {
        self.poll_as(results)
    }

    fn poll_as<R: From<Completion>>(&self, results: &mut [R]) -> usize {
        match self.queue.poll(results) {
            0 => {
                self.adapter.progress();
                self.queue.poll(results)
            }
            count => count,
        }
    }

    /// NdkArmCq (NDK-CQ-4 to -10). Takes no lock but the queue's, unless there is something to tell.
    pub fn arm(&self, notify: CqNotify) {
        let armed = self.queue.arm(notify.into());
        if armed.due || armed.is_hold_new {
            self.adapter.with(|core, _| core.handle_arm(self.id, armed));
        } else {
            self.adapter.expect_sleep();
        }
    }

    /// NdkResizeCq; never pends.
    ///
    /// # Errors
    /// [`NtStatus::INVALID_PARAMETER`]: no entries, or more than the adapter's limit; [`NtStatus::BUFFER_OVERFLOW`]:
    /// more entries are present, nothing has changed (NDK-RSZ-2); [`NtStatus::INVALID_DEVICE_STATE`]: it has failed;
    /// [`NtStatus::DEVICE_REMOVED`].
    pub fn resize(&self, depth: u32) -> Result<(), NtStatus> {
        Ok(self.adapter.with(|core, _| core.resize_cq(self.id, depth))?)
    }

    /// NdkControlCqInterruptModeration: a satisfied arm is told when `count` completions have come, or `interval_us`
    /// microseconds later, whichever is first; they can be polled at once (NDK-MOD-5). An interval of 0, or a count of
    /// 0 or 1: no moderation, the default (NDK-MOD-2). An interval of [`u32::MAX`]: only the count matters; a count of
    /// [`u32::MAX`], or over the queue's depth: only the interval does (NDK-MOD-3). In force when it returns; never
    /// pends.
    ///
    /// # Errors
    /// [`NtStatus::INVALID_PARAMETER_MIX`]: neither matters; [`NtStatus::INVALID_PARAMETER`]: the queue is closed;
    /// [`NtStatus::DEVICE_REMOVED`].
    pub fn control_interrupt_moderation(&self, interval_us: u32, count: u32) -> NtStatus {
        let moderation = match (interval_us, count) {
            (0, _) | (_, 0 | 1) => None,
            _ => Some(CqModeration {
                interval: (interval_us != u32::MAX)
                    .then(|| Duration::from_micros(interval_us.into())),
                count: (count <= self.queue.depth()).then_some(count),
            }),
        };
        self.adapter.with(|core, _| core.moderate_cq(self.id, moderation)).into()
    }
}

/// A shared receive queue. Closing one that has queue pairs is pending until they are closed.
#[derive(Clone, Debug)]
pub struct Srq {
    pub(in crate::ndk) adapter: Adapter,
    pub(in crate::ndk) id: SrqId,
}

impl Srq {
    /// NdkSrqReceive: taken by the next send that arrives on any of the queue's queue pairs.
    ///
    /// # Errors
    /// [`NtStatus::NO_MORE_ENTRIES`]: the queue is at its depth; [`NtStatus::DATA_OVERRUN`]: too many entries;
    /// [`NtStatus::BUFFER_OVERFLOW`]: too many bytes; [`NtStatus::INVALID_PARAMETER`]: it is gone or being closed.
    pub fn receive(&self, context: u64, sges: &[Sge]) -> Result<(), NtStatus> {
        Ok(self.adapter.post(|core| core.post_srq_receive(self.id, context, sges))?)
    }

    /// NdkModifySrq; never pends. A depth of 0 keeps the depth. A threshold of 0 keeps threshold and arming; another is
    /// set and armed: the notification comes when fewer receives are queued, at once if there are (NDK-SRQ-2).
    ///
    /// # Errors
    /// Nothing has changed. [`NtStatus::INVALID_PARAMETER`]: a depth over the adapter's, or a threshold over the depth;
    /// [`NtStatus::BUFFER_OVERFLOW`]: more receives are queued than the new depth.
    pub fn modify(&self, depth: u32, notify_threshold: u32) -> Result<(), NtStatus> {
        let [depth, limit] = [depth, notify_threshold].map(|wish| (wish > 0).then_some(wish));
        Ok(self.adapter.with(|core, _| core.modify_srq(self.id, depth, limit))?)
    }
}

/// A memory region.
#[derive(Clone, Debug)]
pub struct Mr {
    adapter: Adapter,
    id: RegionId,
}

impl Mr {
    /// NdkRegisterMr: `length` bytes of `buffer` from `offset` on, under their own addresses (NDK-MEM-3).
    ///
    /// # Errors
    /// [`NtStatus::INVALID_PARAMETER`]: the span is empty or leaves the buffer, illegal flags, a region for
    /// fast registration, or one that is registered or whose deregistration is pending;
    /// [`NtStatus::ACCESS_VIOLATION`]: a right to write memory that may only be read;
    /// [`NtStatus::INSUFFICIENT_RESOURCES`].
    pub fn register(
        &self,
        buffer: &RegisteredBuffer,
        offset: usize,
        length: usize,
        flags: MrFlags,
    ) -> Result<(), NtStatus> {
        flags.check()?;
        let rights = flags.rights();
        let register = |core: &mut Rnic| core.register(self.id, buffer, offset, length, rights);
        Ok(self.adapter.with(|core, _| register(core))?)
    }

    /// NdkDeregisterMr: from now on the token opens nothing (RFC 5040 §8.1.1). SUCCESS, or PENDING and `completion`
    /// follows, when nothing reads or writes the memory any more: what was sent from it and is not acknowledged is
    /// copied, and a device that still reads it is waited for. A Send or Write that has begun and is not yet with TCP
    /// as a whole ends its connection, with ACCESS_VIOLATION.
    ///
    /// A close does the same, but waits for the windows, and its completion says the same.
    ///
    /// # Errors
    /// Nothing has changed. [`NtStatus::INVALID_PARAMETER`]: not registered, or a region for fast registration;
    /// [`NtStatus::DEVICE_BUSY`]: windows are bound.
    pub fn deregister(&self, completion: impl FnOnce() + Send + 'static) -> NtStatus {
        let completion = Box::new(completion);
        let result = self.adapter.with(|core, now| core.deregister_at(now, self.id, completion));
        result.map_or_else(NtStatus::from, NtStatus::from)
    }

    /// NdkInitializeFastRegisterMr: fast registrations may have up to `pages` pages, and remote rights only
    /// with `remote_access` (NDK-MEM-6).
    ///
    /// # Errors
    /// [`NtStatus::IMPLEMENTATION_LIMIT`]: too many pages; [`NtStatus::INVALID_PARAMETER`]: not a region
    /// for fast registration; [`NtStatus::INSUFFICIENT_RESOURCES`].
    pub fn initialize_fast_register(
        &self,
        pages: u32,
        remote_access: bool,
    ) -> Result<(), NtStatus> {
        let limits = FastRegisterLimits { pages, remote_access };
        Ok(self.adapter.with(|core, _| core.initialize_fast_register(self.id, limits))?)
    }

    /// NdkGetLocalTokenFromMr: for scatter/gather entries. 0 before the first registration, and while one pends
    /// ([`Mr::begin_register`]).
    #[must_use]
    pub fn local_token(&self) -> u32 {
        self.adapter.with(|core, _| core.token(self.id).unwrap_or(0))
    }

    /// NdkGetRemoteTokenFromMr: for the peer. The same number; what it allows are the region's rights.
    #[must_use]
    pub fn remote_token(&self) -> u32 {
        self.local_token()
    }
}

/// A memory window: a part of a region, opened to the peer of the queue pair that has bound it (NDK-MEM-16). Closing it
/// ends that.
#[derive(Clone, Debug)]
pub struct Mw {
    adapter: Adapter,
    id: WindowId,
}

impl Mw {
    /// NdkGetRemoteTokenFromMw: that of the last [`Qp::bind`], which has returned it.
    #[must_use]
    pub fn remote_token(&self) -> u32 {
        self.adapter.with(|core, _| core.window_token(self.id).unwrap_or(0))
    }
}

/// An object whose token [`Qp::invalidate`] takes back: a region or a window.
#[derive(Clone, Copy, Debug)]
pub enum Invalidate<'a> {
    /// A region that a fast registration has registered.
    Mr(&'a Mr),
    /// A window that the same queue pair has bound.
    Mw(&'a Mw),
}

impl<'a> From<&'a Mr> for Invalidate<'a> {
    fn from(mr: &'a Mr) -> Self {
        Self::Mr(mr)
    }
}

impl<'a> From<&'a Mw> for Invalidate<'a> {
    fn from(mw: &'a Mw) -> Self {
        Self::Mw(mw)
    }
}

/// A queue pair. Posts fail inline with [`NtStatus::CONNECTION_INVALID`] unless it is connected (NDK-CON-11), but for
/// receives, with [`NtStatus::NO_MORE_ENTRIES`] when the queue is at its depth, with
/// [`NtStatus::DATA_OVERRUN`] for too many entries, with [`NtStatus::BUFFER_OVERFLOW`] for too many bytes,
/// and with [`NtStatus::INVALID_PARAMETER`] for illegal flags or too much inline data; then no completion
/// follows (NDK-WR-4).
#[derive(Clone, Debug)]
pub struct Qp {
    pub(in crate::ndk) adapter: Adapter,
    pub(in crate::ndk) id: QpId,
}

impl Qp {
    /// NdkReceive: legal in every state (NDK-CON-10).
    ///
    /// # Errors
    /// As said at [`Qp`]; [`NtStatus::INVALID_PARAMETER`]: its receives come from a shared receive queue;
    /// [`NtStatus::INVALID_DEVICE_STATE`]: its completion queue has failed.
    pub fn receive(&self, context: u64, sges: &[Sge]) -> Result<(), NtStatus> {
        Ok(self.adapter.post(|core| core.post_receive(self.id, context, sges))?)
    }

    /// NdkSend.
    ///
    /// # Errors
    /// As said at [`Qp`].
    pub fn send(&self, context: u64, data: Data<'_>, flags: OpFlags) -> Result<(), NtStatus> {
        self.post(context, OperationType::Send, Operation::Send { invalidate: None }, data, flags)
    }

    /// NdkSendAndInvalidate: the peer's token `remote_token` is invalid before its receive completes
    /// (NDK-RI-1).
    ///
    /// # Errors
    /// As said at [`Qp`].
    pub fn send_and_invalidate(
        &self,
        context: u64,
        data: Data<'_>,
        remote_token: u32,
        flags: OpFlags,
    ) -> Result<(), NtStatus> {
        let invalidate = Some(Stag(remote_token));
        self.post(context, OperationType::Send, Operation::Send { invalidate }, data, flags)
    }

    /// NdkWrite.
    ///
    /// # Errors
    /// As said at [`Qp`].
    pub fn write(
        &self,
        context: u64,
        data: Data<'_>,
        remote_address: u64,
        remote_token: u32,
        flags: OpFlags,
    ) -> Result<(), NtStatus> {
        let to = Remote::new(remote_address, remote_token);
        self.post(context, OperationType::Write, Operation::Write { to }, data, flags)
    }

    /// NdkRead. Beyond the outbound read limit it waits its turn.
    ///
    /// # Errors
    /// As said at [`Qp`]; [`NtStatus::INVALID_DEVICE_REQUEST`]: the connection allows no reads.
    pub fn read(
        &self,
        context: u64,
        sges: &[Sge],
        remote_address: u64,
        remote_token: u32,
        flags: OpFlags,
    ) -> Result<(), NtStatus> {
        let invalidate_sink = flags.contains(OpFlags::RDMA_READ_LOCAL_INVALIDATE);
        let from = Remote::new(remote_address, remote_token);
        let read = Operation::Read { from, invalidate_sink };
        self.post(context, OperationType::Read, read, Data::Registered(sges), flags)
    }

    /// NdkInvalidate of a region that was registered by [`Qp::fast_register`], or of a window that this queue pair has
    /// bound (NDK-MEM-9).
    ///
    /// # Errors
    /// As said at [`Qp`].
    pub fn invalidate<'a>(
        &self,
        context: u64,
        object: impl Into<Invalidate<'a>>,
        flags: OpFlags,
    ) -> Result<(), NtStatus> {
        let (adapter, target) = match object.into() {
            Invalidate::Mr(mr) => (&mr.adapter, Revocable::Region(mr.id)),
            Invalidate::Mw(mw) => (&mw.adapter, Revocable::Window(mw.id)),
        };
        check_same(&self.adapter, adapter)?;
        self.checked_post(flags.check(OperationType::Invalidate), |core| {
            core.post_invalidate(self.id, context, target, flags.options())
        })
    }

    /// NdkBind: opens `length` bytes of a registered region from `address` on to this queue pair's peer, until `mw` is
    /// invalidated, by either end, or closed. A window that is bound cannot be bound again (NDK-MEM-12). Returns the
    /// token, which counts once the bind has completed; peers name bytes by the region's addresses.
    ///
    /// # Errors
    /// As said at [`Qp`]; [`NtStatus::ACCESS_VIOLATION`]: remote write to a region without local write (NDK-MEM-11);
    /// [`NtStatus::INVALID_PARAMETER`] also for no bytes, or bytes outside the region.
    pub fn bind(
        &self,
        context: u64,
        mr: &Mr,
        mw: &Mw,
        address: u64,
        length: u64,
        flags: OpFlags,
    ) -> Result<u32, NtStatus> {
        check_same(&self.adapter, &mr.adapter)?;
        check_same(&self.adapter, &mw.adapter)?;
        let (window, region, rights) = (mw.id, mr.id, flags.window_rights());
        let bind = Bind { window, key: None, region, address, length, base: address, rights };
        self.checked_post(flags.check(OperationType::Bind), |core| {
            core.post_bind(self.id, context, bind, flags.options())
        })
    }

    fn post(
        &self,
        context: u64,
        kind: OperationType,
        operation: Operation,
        data: Data<'_>,
        flags: OpFlags,
    ) -> Result<(), NtStatus> {
        let is_inline = !matches!(data, Data::Registered(_)) || !flags.contains(OpFlags::INLINE);
        let checked = flags.check(kind).and(match is_inline {
            true => Ok(()),
            false => Err(NtStatus::INVALID_PARAMETER),
        });
        self.checked_post(checked, |core| {
            core.post(self.id, context, operation, data, flags.options())
        })
    }

    /// Posts if the arguments are right. A failure indicates what was deferred before it (NDK-DEF-3).
    #[inline]
    fn checked_post<R>(
        &self,
        checked: Result<(), NtStatus>,
        post: impl Fn(&mut Rnic) -> (Result<R, VerbError>, Urgency),
    ) -> Result<R, NtStatus> {
        self.adapter.post(|core| match checked {
            Ok(()) => {
                let (result, urgency) = post(core);
                (result.map_err(NtStatus::from), urgency)
            }
            Err(status) => (Err(status), core.kick_qp(self.id)),
        })
    }

    /// NdkFlush: everything posted completes CANCELLED. A connected queue pair cannot be used after it
    /// (NDK-FL-4).
    pub fn flush(&self) {
        self.adapter.with(|core, _| core.flush(self.id));
    }

    /// Statistics.
    #[must_use]
    pub fn stats(&self) -> QpStats {
        self.adapter.with(|core, _| core.qp_stats(self.id)).unwrap_or_default()
    }

    /// Returns whether initiator requests may be posted.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.adapter.with(|core, _| core.qp_state(self.id)) == Some(QpState::Connected)
    }
}
