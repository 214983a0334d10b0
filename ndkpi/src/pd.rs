//! Functions of NDK_PD_DISPATCH.

use std::ffi::c_void;

use rdma_over_tcp::ndk::{NtStatus, Pd, Qp, QpLimits, Srq};

use crate::{
    abi::{
        dispatch::NDK_PD_DISPATCH,
        functions::{NDK_FN_CREATE_COMPLETION, NDK_FN_SRQ_NOTIFICATION_CALLBACK},
        types::{
            BOOLEAN, GROUP_AFFINITY, NDK_CQ, NDK_MR, NDK_MW, NDK_OBJECT_TYPE, NDK_PD, NDK_QP,
            NDK_SRQ, NTSTATUS, PVOID, ULONG,
        },
        values::NdkObjectTypePd,
    },
    callbacks, close,
    cq::get as get_cq,
    create::Creation,
    guard,
    objects::{self, Kind},
    qp::QpObject,
};

impl Kind for Pd {
    type Public = NDK_PD;
    const TYPE: NDK_OBJECT_TYPE = NdkObjectTypePd;

    fn dispatch() -> *const c_void {
        (&raw const DISPATCH).cast()
    }
}

static DISPATCH: NDK_PD_DISPATCH = NDK_PD_DISPATCH {
    NdkClosePd: close::close::<Pd>,
    NdkQueryExtension: close::query_extension,
    NdkCreateMr: create_mr,
    NdkCreateMw: create_mw,
    NdkCreateSrq: create_srq,
    NdkCreateQp: create_qp,
    NdkCreateQpWithSrq: create_qp_with_srq,
    NdkGetPrivilegedMemoryRegionToken: get_privileged_memory_region_token,
};

unsafe extern "C" fn create_mr(
    pd: *mut NDK_PD,
    fast_register: BOOLEAN,
    completion: NDK_FN_CREATE_COMPLETION,
    context: PVOID,
    mr: *mut *mut NDK_MR,
) -> NTSTATUS {
    guard::status(|| {
        let pd = objects::get::<Pd>(pd)?;
        // SAFETY: the consumer passes a pointer that receives the object.
        unsafe {
            Creation::new(completion, context, mr)
                .begin(|mr| mr, |done| pd.begin_create_mr(fast_register != 0, done))
        }
    })
}

unsafe extern "C" fn create_mw(
    pd: *mut NDK_PD,
    completion: NDK_FN_CREATE_COMPLETION,
    context: PVOID,
    mw: *mut *mut NDK_MW,
) -> NTSTATUS {
    guard::status(|| {
        let pd = objects::get::<Pd>(pd)?;
        // SAFETY: the consumer passes a pointer that receives the object.
        unsafe {
            Creation::new(completion, context, mw).begin(|mw| mw, |done| pd.begin_create_mw(done))
        }
    })
}

/// Affinity is only a preference, and there is one thread.
unsafe extern "C" fn create_srq(
    pd: *mut NDK_PD,
    depth: ULONG,
    sges_max: ULONG,
    notify_threshold: ULONG,
    notification: NDK_FN_SRQ_NOTIFICATION_CALLBACK,
    notification_context: PVOID,
    _affinity: *const GROUP_AFFINITY,
    completion: NDK_FN_CREATE_COMPLETION,
    context: PVOID,
    srq: *mut *mut NDK_SRQ,
) -> NTSTATUS {
    guard::status(|| {
        let pd = objects::get::<Pd>(pd)?;
        let notification = callbacks::notification(notification, notification_context);
        // SAFETY: the consumer passes a pointer that receives the object.
        unsafe {
            Creation::new(completion, context, srq).begin(
                |srq| srq,
                |done| pd.begin_create_srq(depth, sges_max, notify_threshold, notification, done),
            )
        }
    })
}

unsafe extern "C" fn create_qp(
    pd: *mut NDK_PD,
    receive_cq: *mut NDK_CQ,
    initiator_cq: *mut NDK_CQ,
    qp_context: PVOID,
    receive_queue_depth: ULONG,
    initiator_queue_depth: ULONG,
    max_receive_request_sge: ULONG,
    max_initiator_request_sge: ULONG,
    inline_data_size: ULONG,
    completion: NDK_FN_CREATE_COMPLETION,
    context: PVOID,
    qp: *mut *mut NDK_QP,
) -> NTSTATUS {
    guard::status(|| {
        let pd = objects::get::<Pd>(pd)?;
        let (receive_cq, initiator_cq) = (get_cq(receive_cq)?, get_cq(initiator_cq)?);
        let limits = QpLimits {
            receive_queue_depth,
            initiator_queue_depth,
            max_receive_request_sge,
            max_initiator_request_sge,
            inline_data_size,
        };
        let qp_context = qp_context.expose_provenance() as u64;
        // SAFETY: the consumer passes a pointer that receives the object.
        unsafe {
            Creation::new(completion, context, qp).begin(
                move |qp: Qp| QpObject { qp, inline_bytes_max: inline_data_size },
                |done| pd.begin_create_qp(&receive_cq, &initiator_cq, qp_context, limits, done),
            )
        }
    })
}

unsafe extern "C" fn create_qp_with_srq(
    pd: *mut NDK_PD,
    receive_cq: *mut NDK_CQ,
    initiator_cq: *mut NDK_CQ,
    srq: *mut NDK_SRQ,
    qp_context: PVOID,
    initiator_queue_depth: ULONG,
    max_initiator_request_sge: ULONG,
    inline_data_size: ULONG,
    completion: NDK_FN_CREATE_COMPLETION,
    context: PVOID,
    qp: *mut *mut NDK_QP,
) -> NTSTATUS {
    guard::status(|| {
        let pd = objects::get::<Pd>(pd)?;
        let (receive_cq, initiator_cq) = (get_cq(receive_cq)?, get_cq(initiator_cq)?);
        let srq = objects::get::<Srq>(srq)?;
        let limits = QpLimits {
            receive_queue_depth: 0,
            initiator_queue_depth,
            max_receive_request_sge: 0,
            max_initiator_request_sge,
            inline_data_size,
        };
        let qp_context = qp_context.expose_provenance() as u64;
        let cqs = (&*receive_cq, &*initiator_cq);
        // SAFETY: the consumer passes a pointer that receives the object.
        unsafe {
            Creation::new(completion, context, qp).begin(
                move |qp: Qp| QpObject { qp, inline_bytes_max: inline_data_size },
                |done| pd.begin_create_qp_with_srq(cqs, &srq, qp_context, limits, done),
            )
        }
    })
}

unsafe extern "C" fn get_privileged_memory_region_token(pd: *mut NDK_PD, token: *mut u32) {
    guard::value(|| {
        let pd = objects::get::<Pd>(pd)?;
        if token.is_null() {
            return Err(NtStatus::INVALID_PARAMETER);
        }
        // SAFETY: the consumer passes a pointer that receives the token.
        unsafe { token.write(pd.privileged_token()) };
        Ok(())
    });
}
