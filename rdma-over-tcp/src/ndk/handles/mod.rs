//! Handles of consumers: names of objects and the way to their adapter.
//!
//! Handles are cheap to clone, and dropping one closes nothing: objects live until they are closed, as in
//! NDKPI. Every call enters the core once and returns without waiting; callbacks run afterwards, when the
//! node holds no lock. Functions that say PENDING call back exactly once, with any other status never
//! (NDK-ASY-1).

mod connection;
mod extensions;

use alloc::{boxed::Box, sync::Arc, vec::Vec};
use core::{fmt, net::SocketAddr};

use offload_engine::time::Instant;

pub use self::connection::{Connector, Listener};
use super::{
    flags::{CqNotify, MrFlags, OpFlags, OperationType},
    info::AdapterInfo,
    result::{NdkResult, NdkResultEx},
    status::NtStatus,
};
use crate::{
    ddp::{Stag, TaggedOffset},
    rnic::{
        Completion, ConnectionEntry, Counters, CqOverrun, Data, QpLimits, QpStats,
        RegisteredBuffer, Remote, Rnic, Sge, Urgency, VerbError,
        cq::CompletionQueue,
        id::{CqId, Key, PdId, QpId, RegionId},
        lifetime::Close,
        post::FastRegister,
        qp::QpState,
        region::FastRegisterLimits,
        wr::Kind,
    },
};

/// A way to an adapter. The node implements it: it takes its lock, calls `work`, has the engine
/// poll and flush, and runs the callbacks that became due after it has let go of the lock.
pub trait CoreAccess: Send + Sync {
    /// Calls `work` with the adapter, once.
    fn enter(&self, work: &mut dyn FnMut(&mut Rnic, Instant));

    /// As [`CoreAccess::enter`], but `work` returns when its effects must be flushed: the way of posts.
    fn enter_to_post(&self, work: &mut dyn FnMut(&mut Rnic) -> Urgency) {
        self.enter(&mut |core, _| {
            work(core);
        });
    }

    /// In manual mode, runs the engine once: a consumer that polls makes its own progress. In automatic
    /// mode, nothing.
    fn progress(&self) {}
}

#[derive(Clone)]
struct Access(Arc<dyn CoreAccess>);

impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Access")
    }
}

impl Access {
    fn with<R>(&self, work: impl FnOnce(&mut Rnic, Instant) -> R) -> R {
        let mut work = Some(work);
        let mut result = None;
        self.0.enter(&mut |core, now| {
            if let Some(work) = work.take() {
                result = Some(work(core, now));
                core.objects.deliver_completions();
            }
        });
        let Some(result) = result else { unreachable!("CoreAccess::enter calls its argument") };
        result
    }

    /// A post: its effects may be flushed later, together with those of others.
    #[inline]
    fn post<R>(&self, work: impl Fn(&mut Rnic) -> (R, Urgency)) -> R {
        let mut result = None;
        self.0.enter_to_post(&mut |core| {
            let (outcome, urgency) = work(core);
            result = Some(outcome);
            urgency
        });
        let Some(result) = result else {
            unreachable!("CoreAccess::enter_to_post calls its argument")
        };
        result
    }

    /// Objects are used together if one adapter has made them: names of one mean something else to another.
    fn check_same(&self, other: &Self) -> Result<(), NtStatus> {
        // Compared without the vtables, of which there may be several.
        let same = core::ptr::addr_eq(Arc::as_ptr(&self.0), Arc::as_ptr(&other.0));
        if same { Ok(()) } else { Err(NtStatus::INVALID_PARAMETER) }
    }
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
                self.access.with(|core, _| core.close(key, Box::new(completion))).into()
            }
        }
    )*};
}

closable! {
    Pd as Pd,
    Cq as Cq,
    Mr as Region,
    Qp as Qp,
    Connector as Connector,
    Listener as Listener,
}

/// An NDK_ADAPTER.
#[derive(Clone, Debug)]
pub struct Adapter {
    access: Access,
}

impl Adapter {
    /// Opens the adapter behind `access`.
    #[must_use]
    pub fn new(access: Arc<dyn CoreAccess>) -> Self {
        Self { access: Access(access) }
    }

    /// NdkQueryAdapterInfo.
    #[must_use]
    pub fn info(&self) -> AdapterInfo {
        self.access.with(|core, _| AdapterInfo::from(&core.config.limits))
    }

    /// NDK performance counters.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.access.with(|core, _| core.objects.counters)
    }

    /// The connections there are (OID_NDK_CONNECTIONS), with the statistics of their queue pairs.
    #[must_use]
    pub fn connections(&self) -> Vec<ConnectionEntry> {
        self.access.with(|core, _| core.connections())
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

    /// NdkCreateCq: a queue of `depth` entries. `notification` is called once per arm that is satisfied,
    /// never twice at a time (NDK-CQ-2, -3).
    ///
    /// # Errors
    /// [`NtStatus::INVALID_PARAMETER`]: deeper than the adapter's limit, or the adapter is being closed;
    /// [`NtStatus::INSUFFICIENT_RESOURCES`].
    pub fn create_cq(
        &self,
        depth: u32,
        notification: impl Fn(NtStatus) + Send + Sync + 'static,
    ) -> Result<Cq, NtStatus> {
        let notification =
            Arc::new(move |outcome: Result<(), CqOverrun>| notification(outcome.into()));
        let (id, queue) = self.access.with(|core, _| core.create_cq(depth, notification))?;
        Ok(Cq { access: self.access.clone(), id, queue })
    }

    /// NdkCreatePd.
    ///
    /// # Errors
    /// [`NtStatus::INSUFFICIENT_RESOURCES`]; [`NtStatus::INVALID_PARAMETER`]: the adapter is being closed.
    pub fn create_pd(&self) -> Result<Pd, NtStatus> {
        let id = self.access.with(|core, _| core.create_pd())?;
        Ok(Pd { access: self.access.clone(), id })
    }

    /// NdkCreateConnector.
    ///
    /// # Errors
    /// As [`Adapter::create_pd`].
    pub fn create_connector(&self) -> Result<Connector, NtStatus> {
        let id = self.access.with(|core, _| core.create_connector())?;
        Ok(Connector { access: self.access.clone(), id })
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
        let access = Arc::downgrade(&self.access.0);
        let event = Arc::new(move |id| {
            // Nobody who could use the connector is left otherwise.
            if let Some(access) = access.upgrade() {
                event(Connector { access: Access(access), id });
            }
        });
        let id = self.access.with(|core, _| core.create_listener(event))?;
        Ok(Listener { access: self.access.clone(), id })
    }

    /// NdkBuildLam, NdkCreateSharedEndpoint, and whatever else is not offered.
    ///
    /// # Errors
    /// Always [`NtStatus::NOT_SUPPORTED`].
    pub const fn create_shared_endpoint(&self, _local: SocketAddr) -> Result<(), NtStatus> {
        Err(NtStatus::NOT_SUPPORTED)
    }

    /// CLOSE_NDK_ADAPTER_HANDLER: SUCCESS, or PENDING and `completion` follows when every object of the
    /// adapter is closed and all callbacks have returned (NDK-LIFE-9). A node that offers the blocking
    /// form waits for it.
    pub fn close(&self, completion: impl FnOnce() + Send + 'static) -> NtStatus {
        self.access.with(|core, _| core.close_adapter(Box::new(completion))).into()
    }
}

/// A protection domain.
#[derive(Clone, Debug)]
pub struct Pd {
    access: Access,
    id: PdId,
}

impl Pd {
    /// NdkCreateMr: a region for [`Mr::register`], or with `fast_register` for [`Qp::fast_register`]
    /// (NDK-MEM-5).
    ///
    /// # Errors
    /// [`NtStatus::INSUFFICIENT_RESOURCES`]; [`NtStatus::INVALID_PARAMETER`]: the domain is being closed.
    pub fn create_mr(&self, fast_register: bool) -> Result<Mr, NtStatus> {
        let id = self.access.with(|core, _| core.create_region(self.id, fast_register))?;
        Ok(Mr { access: self.access.clone(), id })
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
        self.access.check_same(&receive_cq.access)?;
        self.access.check_same(&initiator_cq.access)?;
        let id = self.access.with(|core, _| {
            core.create_qp(self.id, receive_cq.id, initiator_cq.id, context, limits)
        })?;
        Ok(Qp { access: self.access.clone(), id })
    }

    /// NdkCreateMw, NdkCreateSrq.
    ///
    /// # Errors
    /// Always [`NtStatus::NOT_SUPPORTED`].
    pub const fn create_mw(&self) -> Result<(), NtStatus> {
        Err(NtStatus::NOT_SUPPORTED)
    }
}

/// A completion queue.
#[derive(Clone, Debug)]
pub struct Cq {
    access: Access,
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
                self.access.0.progress();
                self.queue.poll(results)
            }
            count => count,
        }
    }

    /// NdkArmCq (NDK-CQ-4 to -10).
    pub fn arm(&self, notify: CqNotify) {
        self.queue.arm(notify.into());
        self.access.with(|core, _| core.objects.notify(self.id));
    }

    /// NdkResizeCq; never pends.
    ///
    /// # Errors
    /// [`NtStatus::INVALID_PARAMETER`]: deeper than the adapter's limit; [`NtStatus::BUFFER_OVERFLOW`]:
    /// more entries are present, nothing has changed (NDK-RSZ-2).
    pub fn resize(&self, depth: u32) -> Result<(), NtStatus> {
        if depth > self.access.with(|core, _| core.config.limits.cq_depth_max) {
            return Err(NtStatus::INVALID_PARAMETER);
        }
        Ok(self.queue.resize(depth)?)
    }

    /// NdkControlCqInterruptModeration: the adapter does not advertise it (NDK-MOD-6).
    pub const fn control_interrupt_moderation(&self, _interval_us: u32, _count: u32) -> NtStatus {
        NtStatus::NOT_SUPPORTED
    }
}

/// A memory region.
#[derive(Clone, Debug)]
pub struct Mr {
    access: Access,
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
        self.access.with(|core, _| {
            if length as u64 > core.config.limits.registration_bytes_max {
                return Err(NtStatus::INVALID_PARAMETER);
            }
            let rights = flags.rights();
            Ok(core.objects.regions.register(self.id, buffer, offset, length, rights)?)
        })
    }

    /// NdkDeregisterMr: from now on the token opens nothing (RFC 5040 §8.1.1). SUCCESS, or PENDING and `completion`
    /// follows, when nothing reads or writes the memory any more: what was sent from it and is not acknowledged is
    /// copied, and a device that still reads it is waited for. A Send or Write that has begun and is not yet with TCP
    /// as a whole ends its connection, with ACCESS_VIOLATION. INVALID_PARAMETER: not registered.
    ///
    /// A close does the same, and its completion says the same.
    pub fn deregister(&self, completion: impl FnOnce() + Send + 'static) -> NtStatus {
        let completion = Box::new(completion);
        let result = self.access.with(|core, _| core.deregister(self.id, completion));
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
        Ok(self.access.with(|core, _| core.initialize_fast_register(self.id, limits))?)
    }

    /// NdkGetLocalTokenFromMr: for scatter/gather entries. 0 before the first registration.
    #[must_use]
    pub fn local_token(&self) -> u32 {
        self.access.with(|core, _| {
            core.objects.regions.table.get(self.id).and_then(|mr| mr.token).unwrap_or(0)
        })
    }

    /// NdkGetRemoteTokenFromMr: for the peer. The same number; what it allows are the region's rights.
    #[must_use]
    pub fn remote_token(&self) -> u32 {
        self.local_token()
    }
}

/// Memory of the peer.
const fn remote(address: u64, token: u32) -> Remote {
    Remote { stag: Stag(token), offset: TaggedOffset(address) }
}

/// A queue pair. Posts fail inline with [`NtStatus::CONNECTION_INVALID`] unless it is connected
/// (NDK-CON-11), with [`NtStatus::NO_MORE_ENTRIES`] when the queue is at its depth, with
/// [`NtStatus::DATA_OVERRUN`] for too many entries, with [`NtStatus::BUFFER_OVERFLOW`] for too many bytes,
/// and with [`NtStatus::INVALID_PARAMETER`] for illegal flags or too much inline data; then no completion
/// follows (NDK-WR-4).
#[derive(Clone, Debug)]
pub struct Qp {
    access: Access,
    id: QpId,
}

impl Qp {
    /// NdkReceive: legal in every state (NDK-CON-10).
    ///
    /// # Errors
    /// As said at [`Qp`].
    pub fn receive(&self, context: u64, sges: &[Sge]) -> Result<(), NtStatus> {
        Ok(self.access.post(|core| core.post_receive(self.id, context, sges))?)
    }

    /// NdkSend.
    ///
    /// # Errors
    /// As said at [`Qp`].
    pub fn send(&self, context: u64, data: Data<'_>, flags: OpFlags) -> Result<(), NtStatus> {
        self.post(context, OperationType::Send, || Kind::Send { invalidate: None }, data, flags)
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
        self.post(context, OperationType::Send, || Kind::Send { invalidate }, data, flags)
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
        let to = remote(remote_address, remote_token);
        self.post(context, OperationType::Write, || Kind::Write { to }, data, flags)
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
        let from = remote(remote_address, remote_token);
        let kind = || Kind::Read { from, invalidate_sink };
        self.post(context, OperationType::Read, kind, Data::Registered(sges), flags)
    }

    /// NdkFastRegister: `length` bytes of `buffer` from `offset` on, known as `base_address`. Returns the
    /// token, valid for later requests of this queue pair (NDK-MEM-8).
    ///
    /// # Errors
    /// As said at [`Qp`]; [`NtStatus::ACCESS_VIOLATION`]: remote rights on a region initialized without
    /// (NDK-MEM-7), or a right to write memory that may only be read.
    #[expect(clippy::too_many_arguments, reason = "NdkFastRegister has them")]
    pub fn fast_register(
        &self,
        context: u64,
        mr: &Mr,
        buffer: &RegisteredBuffer,
        offset: usize,
        length: usize,
        base_address: u64,
        flags: OpFlags,
    ) -> Result<u32, NtStatus> {
        self.access.check_same(&mr.access)?;
        let (region, rights) = (mr.id, flags.rights());
        let request = FastRegister { region, buffer, offset, length, base: base_address, rights };
        self.checked_post(flags.check(OperationType::FastRegister), |core| {
            core.post_fast_register(self.id, context, request, flags.options())
        })
    }

    /// NdkInvalidate of a region that was registered by [`Qp::fast_register`] (NDK-MEM-9).
    ///
    /// # Errors
    /// As said at [`Qp`].
    pub fn invalidate(&self, context: u64, mr: &Mr, flags: OpFlags) -> Result<(), NtStatus> {
        self.access.check_same(&mr.access)?;
        self.checked_post(flags.check(OperationType::Invalidate), |core| {
            core.post_invalidate(self.id, context, mr.id, flags.options())
        })
    }

    fn post(
        &self,
        context: u64,
        operation: OperationType,
        kind: impl Fn() -> Kind,
        data: Data<'_>,
        flags: OpFlags,
    ) -> Result<(), NtStatus> {
        let is_inline = matches!(data, Data::Inline(_)) || !flags.contains(OpFlags::INLINE);
        let checked = flags.check(operation).and(match is_inline {
            true => Ok(()),
            false => Err(NtStatus::INVALID_PARAMETER),
        });
        self.checked_post(checked, |core| {
            core.post(self.id, context, kind(), data, flags.options())
        })
    }

    /// Posts if the arguments are right. A failure indicates what was deferred before it (NDK-DEF-3).
    #[inline]
    fn checked_post<R>(
        &self,
        checked: Result<(), NtStatus>,
        post: impl Fn(&mut Rnic) -> (Result<R, VerbError>, Urgency),
    ) -> Result<R, NtStatus> {
        self.access.post(|core| match checked {
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
        self.access.with(|core, _| core.flush(self.id));
    }

    /// Statistics.
    #[must_use]
    pub fn stats(&self) -> QpStats {
        self.access
            .with(|core, _| core.objects.qps.get(self.id).map(|qp| qp.stats).unwrap_or_default())
    }

    /// Returns whether initiator requests may be posted.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.access.with(|core, _| {
            core.objects.qps.get(self.id).is_some_and(|qp| qp.state == QpState::Connected)
        })
    }
}
