//! Exact asynchronous forms of NDKPI's creates and requests. Each takes a completion, and its result shows whether the
//! completion is called.
//!
//! Without [`AdapterConfig::deferral`](crate::ndk::AdapterConfig) only the creation of a shared endpoint pends. The
//! plain forms (`create_cq`, `register`, ...) need no completion, and never pend, with or without deferral.

use alloc::{boxed::Box, sync::Arc};

use super::{
    Adapter, Connector, Cq, Listener, LogicalAddressMapping, Mr, Mw, NtStatus, Pd, Qp,
    SharedEndpoint, Srq,
};
use crate::{
    ndk::{Created, flags::MrFlags},
    rnic::{
        self, Callback, CompletionQueue, ConnectorId, CqId, Key, ListenerId, LogicalMemory, PdId,
        QpId, QpLimits, RegionId, RegisteredBuffer, Rnic, SharedEndpointId, SrqId, VerbError,
        WindowId,
    },
};

/// Consumer handle that can be split into its adapter and its object.
pub(super) trait Object: Clone + Send + 'static {
    /// The handle without its adapter.
    type Name: Send;

    fn split(self) -> (Adapter, Key, Self::Name);

    fn join(adapter: Adapter, name: Self::Name) -> Self;
}

macro_rules! objects {
    ($($name:ident as $key:ident { $id:ident: $type:ty $(, $field:ident: $kind:ty)? })*) => {$(
        impl Object for $name {
            type Name = ($type, $($kind)?);

            fn split(self) -> (Adapter, Key, Self::Name) {
                let Self { adapter, $id, $($field)? } = self;
                (adapter, Key::$key($id), ($id, $($field)?))
            }

            fn join(adapter: Adapter, name: Self::Name) -> Self {
                let ($id, $($field)?) = name;
                Self { adapter, $id, $($field)? }
            }
        }
    )*};
}

objects! {
    Pd as Pd { id: PdId }
    Cq as Cq { id: CqId, queue: Arc<CompletionQueue> }
    Mr as Region { id: RegionId }
    Mw as Window { id: WindowId }
    Qp as Qp { id: QpId }
    Srq as Srq { id: SrqId }
    Connector as Connector { id: ConnectorId }
    Listener as Listener { id: ListenerId }
    SharedEndpoint as SharedEndpoint { id: SharedEndpointId }
}

impl Object for LogicalAddressMapping {
    type Name = LogicalMemory;

    fn split(self) -> (Adapter, Key, Self::Name) {
        (self.adapter, Key::Lam(self.memory.id), self.memory)
    }

    fn join(adapter: Adapter, memory: Self::Name) -> Self {
        Self { adapter, memory }
    }
}

/// True if a completion may also report this status.
fn may_pend(status: NtStatus) -> bool {
    matches!(status, NtStatus::SUCCESS | NtStatus::INSUFFICIENT_RESOURCES)
}

/// Completes a create, now or later (NDK-ASY-1): `completion` is called if it pends.
fn complete_create<T: Object>(
    parent: (&Adapter, Key),
    object: Result<T, NtStatus>,
    completion: impl FnOnce(Result<T, NtStatus>) + Send + 'static,
) -> Result<Created<T>, NtStatus> {
    let (adapter, parent) = parent;
    let pend = |key, completion| adapter.with(|core, now| core.pend(now, key, completion)).is_ok();
    match object {
        Ok(object) => {
            let (_, key, name) = object.clone().split();
            // A strong handle in the core would be a reference cycle, and the node would never exit.
            let weak = adapter.downgrade();
            let complete = move || {
                // Otherwise no consumer is left that could use the object.
                if let Some(adapter) = weak.upgrade() {
                    completion(Ok(T::join(adapter, name)));
                }
            };
            Ok(if pend(key, Box::new(complete)) { Created::Pending } else { Created::Done(object) })
        }
        Err(status) => {
            let pends = may_pend(status) && pend(parent, Box::new(move || completion(Err(status))));
            if pends { Ok(Created::Pending) } else { Err(status) }
        }
    }
}

/// Completes a request of an object, now or later.
fn complete_request(
    adapter: &Adapter,
    key: Key,
    outcome: Result<(), NtStatus>,
    completion: impl FnOnce(NtStatus) + Send + 'static,
) -> NtStatus {
    let status = NtStatus::from(outcome);
    if !may_pend(status) {
        return status;
    }
    let completion = Box::new(move || completion(status));
    match adapter.with(|core, now| core.pend(now, key, completion)) {
        Ok(()) => NtStatus::PENDING,
        Err(_) => status,
    }
}

impl Adapter {
    /// NdkCreateCq with its completion, as [`Adapter::create_cq`]. [`Created::Pending`]: `completion` follows with the
    /// queue, or with its failure.
    ///
    /// # Errors
    /// As [`Adapter::create_cq`]; `completion` is not called.
    pub fn begin_create_cq(
        &self,
        depth: u32,
        notification: impl Fn(NtStatus) + Send + Sync + 'static,
        completion: impl FnOnce(Result<Cq, NtStatus>) + Send + 'static,
    ) -> Result<Created<Cq>, NtStatus> {
        complete_create((self, Key::Rnic), self.create_cq(depth, notification), completion)
    }

    /// NdkCreatePd with its completion, as [`Adapter::begin_create_cq`].
    ///
    /// # Errors
    /// As [`Adapter::create_pd`]; `completion` is not called.
    pub fn begin_create_pd(
        &self,
        completion: impl FnOnce(Result<Pd, NtStatus>) + Send + 'static,
    ) -> Result<Created<Pd>, NtStatus> {
        complete_create((self, Key::Rnic), self.create_pd(), completion)
    }

    /// NdkCreateConnector with its completion, as [`Adapter::begin_create_cq`].
    ///
    /// # Errors
    /// As [`Adapter::create_connector`]; `completion` is not called.
    pub fn begin_create_connector(
        &self,
        completion: impl FnOnce(Result<Connector, NtStatus>) + Send + 'static,
    ) -> Result<Created<Connector>, NtStatus> {
        complete_create((self, Key::Rnic), self.create_connector(), completion)
    }

    /// NdkCreateListener with its completion, as [`Adapter::begin_create_cq`].
    ///
    /// # Errors
    /// As [`Adapter::create_listener`]; `completion` is not called.
    pub fn begin_create_listener(
        &self,
        event: impl Fn(Connector) + Send + Sync + 'static,
        completion: impl FnOnce(Result<Listener, NtStatus>) + Send + 'static,
    ) -> Result<Created<Listener>, NtStatus> {
        complete_create((self, Key::Rnic), self.create_listener(event), completion)
    }

    /// NdkBuildLam with its completion, as [`Adapter::begin_create_cq`].
    ///
    /// # Errors
    /// As [`Adapter::build_lam`]; `completion` is not called.
    pub fn begin_build_lam(
        &self,
        chain: &[RegisteredBuffer],
        length: usize,
        completion: impl FnOnce(Result<LogicalAddressMapping, NtStatus>) + Send + 'static,
    ) -> Result<Created<LogicalAddressMapping>, NtStatus> {
        complete_create((self, Key::Rnic), self.build_lam(chain, length), completion)
    }
}

impl Pd {
    fn parent(&self) -> (&Adapter, Key) {
        (&self.adapter, Key::Pd(self.id))
    }

    /// NdkCreateMr with its completion, as [`Adapter::begin_create_cq`].
    ///
    /// # Errors
    /// As [`Pd::create_mr`]; `completion` is not called.
    pub fn begin_create_mr(
        &self,
        fast_register: bool,
        completion: impl FnOnce(Result<Mr, NtStatus>) + Send + 'static,
    ) -> Result<Created<Mr>, NtStatus> {
        complete_create(self.parent(), self.create_mr(fast_register), completion)
    }

    /// NdkCreateMw with its completion, as [`Adapter::begin_create_cq`].
    ///
    /// # Errors
    /// As [`Pd::create_mw`]; `completion` is not called.
    pub fn begin_create_mw(
        &self,
        completion: impl FnOnce(Result<Mw, NtStatus>) + Send + 'static,
    ) -> Result<Created<Mw>, NtStatus> {
        complete_create(self.parent(), self.create_mw(), completion)
    }

    /// NdkCreateSrq with its completion, as [`Adapter::begin_create_cq`].
    ///
    /// # Errors
    /// As [`Pd::create_srq`]; `completion` is not called.
    pub fn begin_create_srq(
        &self,
        depth: u32,
        sges_max: u32,
        notify_threshold: u32,
        notification: impl Fn(NtStatus) + Send + Sync + 'static,
        completion: impl FnOnce(Result<Srq, NtStatus>) + Send + 'static,
    ) -> Result<Created<Srq>, NtStatus> {
        let srq = self.create_srq(depth, sges_max, notify_threshold, notification);
        complete_create(self.parent(), srq, completion)
    }

    /// NdkCreateQp with its completion, as [`Adapter::begin_create_cq`].
    ///
    /// # Errors
    /// As [`Pd::create_qp`]; `completion` is not called.
    pub fn begin_create_qp(
        &self,
        receive_cq: &Cq,
        initiator_cq: &Cq,
        context: u64,
        limits: QpLimits,
        completion: impl FnOnce(Result<Qp, NtStatus>) + Send + 'static,
    ) -> Result<Created<Qp>, NtStatus> {
        let qp = self.create_qp(receive_cq, initiator_cq, context, limits);
        complete_create(self.parent(), qp, completion)
    }

    /// NdkCreateQpWithSrq with its completion, as [`Adapter::begin_create_cq`].
    ///
    /// # Errors
    /// As [`Pd::create_qp_with_srq`]; `completion` is not called.
    pub fn begin_create_qp_with_srq(
        &self,
        (receive_cq, initiator_cq): (&Cq, &Cq),
        srq: &Srq,
        context: u64,
        limits: QpLimits,
        completion: impl FnOnce(Result<Qp, NtStatus>) + Send + 'static,
    ) -> Result<Created<Qp>, NtStatus> {
        let qp = self.create_qp_with_srq(receive_cq, initiator_cq, srq, context, limits);
        complete_create(self.parent(), qp, completion)
    }
}

impl Cq {
    /// NdkResizeCq with its completion: SUCCESS, or PENDING and `completion` follows. The new depth applies
    /// immediately.
    ///
    /// # Errors
    /// As [`Cq::resize`]; `completion` is not called, except that it may report INSUFFICIENT_RESOURCES.
    pub fn begin_resize(
        &self,
        depth: u32,
        completion: impl FnOnce(NtStatus) + Send + 'static,
    ) -> NtStatus {
        complete_request(&self.adapter, Key::Cq(self.id), self.resize(depth), completion)
    }
}

impl Srq {
    /// NdkModifySrq with its completion: SUCCESS, or PENDING and `completion` follows. Depth and threshold apply at
    /// once.
    ///
    /// # Errors
    /// As [`Srq::modify`]; `completion` is not called, except that it may report INSUFFICIENT_RESOURCES.
    pub fn begin_modify(
        &self,
        depth: u32,
        notify_threshold: u32,
        completion: impl FnOnce(NtStatus) + Send + 'static,
    ) -> NtStatus {
        let outcome = self.modify(depth, notify_threshold);
        complete_request(&self.adapter, Key::Srq(self.id), outcome, completion)
    }
}

impl Mr {
    /// Registers, and completes the request now or later, in one step: the token of a pending request is not visible.
    fn begin_any_register(
        &self,
        flags: MrFlags,
        register: impl FnOnce(&mut Rnic, rnic::Access) -> Result<(), VerbError>,
        completion: impl FnOnce(NtStatus) + Send + 'static,
    ) -> NtStatus {
        if let Err(status) = flags.check() {
            return status;
        }
        // A completion that is not called is dropped after the adapter's lock is released.
        let (status, pends) = self.adapter.with(|core, now| {
            let outcome = register(core, flags.rights()).map_err(NtStatus::from);
            let status = NtStatus::from(outcome);
            let completion: Callback = Box::new(move || completion(status));
            match may_pend(status) {
                true => (status, core.pend_registration(now, self.id, completion)),
                false => (status, Err(completion)),
            }
        });
        if pends.is_ok() { NtStatus::PENDING } else { status }
    }

    /// NdkRegisterMr with its completion: SUCCESS, or PENDING and `completion` follows. The tokens are 0 while it
    /// pends, and valid once it has completed.
    ///
    /// # Errors
    /// As [`Mr::register`]; `completion` is not called, except that it may report INSUFFICIENT_RESOURCES.
    pub fn begin_register(
        &self,
        buffer: &RegisteredBuffer,
        offset: usize,
        length: usize,
        flags: MrFlags,
        completion: impl FnOnce(NtStatus) + Send + 'static,
    ) -> NtStatus {
        let register =
            |core: &mut Rnic, rights| core.register(self.id, buffer, offset, length, rights);
        self.begin_any_register(flags, register, completion)
    }

    /// NdkRegisterMr of an MDL chain with its completion, as [`Mr::begin_register`].
    ///
    /// # Errors
    /// As [`Mr::register_chain`]; `completion` is not called, except that it may report INSUFFICIENT_RESOURCES.
    pub fn begin_register_chain(
        &self,
        chain: &[RegisteredBuffer],
        length: usize,
        flags: MrFlags,
        completion: impl FnOnce(NtStatus) + Send + 'static,
    ) -> NtStatus {
        let register =
            |core: &mut Rnic, rights| core.register_chain(self.id, chain, length, rights);
        self.begin_any_register(flags, register, completion)
    }

    /// NdkInitializeFastRegisterMr with its completion: SUCCESS, or PENDING and `completion` follows.
    ///
    /// # Errors
    /// As [`Mr::initialize_fast_register`]; `completion` is not called, except that it may report
    /// INSUFFICIENT_RESOURCES.
    pub fn begin_initialize_fast_register(
        &self,
        pages: u32,
        remote_access: bool,
        completion: impl FnOnce(NtStatus) + Send + 'static,
    ) -> NtStatus {
        let outcome = self.initialize_fast_register(pages, remote_access);
        complete_request(&self.adapter, Key::Region(self.id), outcome, completion)
    }
}
