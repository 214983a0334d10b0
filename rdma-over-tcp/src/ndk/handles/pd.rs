//! Protection domains, and creation of their objects.

use alloc::sync::Arc;

use super::{Cq, Mr, Mw, Qp, Srq, check_same};
use crate::{
    adapter::Adapter,
    ndk::status::NtStatus,
    rnic::{
        ErrorStatePosts, PdId, QpConfig, QpLimits, QpService, SrqConfig, SrqEvent, SrqId,
        WindowType,
    },
};

/// Protection domain.
#[derive(Clone, Debug)]
pub struct Pd {
    pub(in crate::ndk) adapter: Adapter,
    pub(super) id: PdId,
}

impl Pd {
    /// NdkCreateMr: a region for [`Mr::register`], or with `fast_register` for [`Qp::fast_register`] (NDK-MEM-5).
    ///
    /// # Errors
    /// [`NtStatus::INSUFFICIENT_RESOURCES`]; [`NtStatus::INVALID_PARAMETER`]: the domain is being closed.
    pub fn create_mr(&self, fast_register: bool) -> Result<Mr, NtStatus> {
        let id = self.adapter.with(|core, _| core.create_region(self.id, fast_register))?;
        Ok(Mr { adapter: self.adapter.clone(), id })
    }

    /// NdkCreateQp. Completions of receives are added to `receive_cq`, those of initiator requests to `initiator_cq`;
    /// both may be the same. Each completion contains `context`.
    ///
    /// # Errors
    /// [`NtStatus::INVALID_PARAMETER`]: a limit over the adapter's, or a queue of another adapter, a failed one, or one
    /// being closed; [`NtStatus::INSUFFICIENT_RESOURCES`].
    pub fn create_qp(
        &self,
        receive_cq: &Cq,
        initiator_cq: &Cq,
        context: u64,
        limits: QpLimits,
    ) -> Result<Qp, NtStatus> {
        let service = QpService::Iwarp;
        self.create_any_qp([receive_cq, initiator_cq], None, service, context, limits)
    }

    /// As [`Pd::create_qp`], of [`QpService::Rc`]: an extension, for connections between two such queue pairs.
    ///
    /// # Errors
    /// As [`Pd::create_qp`].
    pub fn create_rc_qp(
        &self,
        receive_cq: &Cq,
        initiator_cq: &Cq,
        context: u64,
        limits: QpLimits,
    ) -> Result<Qp, NtStatus> {
        let cqs = [receive_cq, initiator_cq];
        self.create_any_qp(cqs, None, QpService::Rc, context, limits)
    }

    fn create_any_qp(
        &self,
        [receive_cq, initiator_cq]: [&Cq; 2],
        srq: Option<SrqId>,
        service: QpService,
        context: u64,
        limits: QpLimits,
    ) -> Result<Qp, NtStatus> {
        check_same(&self.adapter, &receive_cq.adapter)?;
        check_same(&self.adapter, &initiator_cq.adapter)?;
        let (receive_cq, send_cq, error_state_posts) =
            (receive_cq.id, initiator_cq.id, ErrorStatePosts::Refuse);
        let config =
            QpConfig { receive_cq, send_cq, context, limits, srq, error_state_posts, service };
        let id = self.adapter.with(|core, _| core.create_qp(self.id, config))?;
        Ok(Qp { adapter: self.adapter.clone(), id })
    }

    /// NdkCreateQpWithSrq: as [`Pd::create_qp`], with receives from `srq`. `context` identifies the queue pair in a
    /// completion (NDK-RES-4).
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
        let cqs = [receive_cq, initiator_cq];
        self.create_any_qp(cqs, Some(srq.id), QpService::Iwarp, context, limits)
    }

    /// NdkCreateSrq: `depth` receives of up to `sges_max` entries.
    ///
    /// `notification` is called once with SUCCESS when fewer receives are queued than `notify_threshold`. The threshold
    /// takes effect once the queue has held as many (NDK-SRQ-3). 0: no threshold. A send that arrives at an empty queue
    /// terminates its connection, as with a queue pair's own receives.
    ///
    /// # Errors
    /// [`NtStatus::INVALID_PARAMETER`]: depth or entries over the adapter's limits, a threshold over the depth, or the
    /// domain is being closed; [`NtStatus::INSUFFICIENT_RESOURCES`].
    pub fn create_srq(
        &self,
        depth: u32,
        sges_max: u32,
        notify_threshold: u32,
        notification: impl Fn(NtStatus) + Send + Sync + 'static,
    ) -> Result<Srq, NtStatus> {
        let config =
            SrqConfig { depth, max_receive_request_sge: sges_max, limit: notify_threshold };
        let notify = Arc::new(move |event| match event {
            SrqEvent::LimitReached => notification(NtStatus::SUCCESS),
            SrqEvent::DeviceLost => notification(NtStatus::INTERNAL_ERROR),
        });
        let id = self.adapter.with(|core, _| core.create_srq(self.id, config, notify))?;
        Ok(Srq { adapter: self.adapter.clone(), id })
    }

    /// NdkCreateMw: an unbound window, for [`Qp::bind`].
    ///
    /// # Errors
    /// [`NtStatus::INSUFFICIENT_RESOURCES`]; [`NtStatus::INVALID_PARAMETER`]: the domain is being closed.
    pub fn create_mw(&self) -> Result<Mw, NtStatus> {
        // NDK-MEM-16
        let id = self.adapter.with(|core, _| core.create_window(self.id, WindowType::Two))?;
        Ok(Mw { adapter: self.adapter.clone(), id })
    }
}
