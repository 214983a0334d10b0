//! Functions of NDK_CQ_DISPATCH.

use std::{ffi::c_void, ptr, sync::Arc};

use rdma_over_tcp::ndk::{Cq, CqNotify, NdkResult, NdkResultEx, NtStatus};

use crate::{
    abi::{
        dispatch::NDK_CQ_DISPATCH,
        functions::NDK_FN_REQUEST_COMPLETION,
        types::{NDK_CQ, NDK_OBJECT_TYPE, NDK_RESULT, NDK_RESULT_EX, NTSTATUS, PVOID, ULONG},
        values::{
            NDK_CQ_NOTIFY_ANY, NDK_CQ_NOTIFY_ERRORS, NDK_CQ_NOTIFY_SOLICITED, NdkObjectTypeCq,
        },
    },
    callbacks, close, guard,
    objects::{self, Kind},
};

/// Maximum number of completions polled per call.
const BATCH: usize = 32;

impl Kind for Cq {
    type Public = NDK_CQ;
    const TYPE: NDK_OBJECT_TYPE = NdkObjectTypeCq;

    fn dispatch() -> *const c_void {
        (&raw const DISPATCH).cast()
    }
}

static DISPATCH: NDK_CQ_DISPATCH = NDK_CQ_DISPATCH {
    NdkCloseCq: close::close::<Cq>,
    NdkQueryExtension: close::query_extension,
    NdkResizeCq: resize_cq,
    NdkArmCq: arm_cq,
    NdkGetCqResults: get_cq_results,
    NdkControlCqInterruptModeration: control_cq_interrupt_moderation,
    NdkGetCqResultsEx: get_cq_results_ex,
};

/// Returns the queue of a consumer's pointer.
///
/// # Errors
/// INVALID_HANDLE.
#[inline]
pub(crate) fn get(cq: *mut NDK_CQ) -> Result<Arc<Cq>, NtStatus> {
    objects::get::<Cq>(cq)
}

unsafe extern "C" fn resize_cq(
    cq: *mut NDK_CQ,
    depth: ULONG,
    completion: NDK_FN_REQUEST_COMPLETION,
    context: PVOID,
) -> NTSTATUS {
    guard::status(|| Ok(get(cq)?.begin_resize(depth, callbacks::request(completion, context))))
}

/// An unknown trigger type does not arm the queue.
unsafe extern "C" fn arm_cq(cq: *mut NDK_CQ, trigger: ULONG) {
    guard::value(|| {
        let notify = match trigger {
            NDK_CQ_NOTIFY_ERRORS => CqNotify::Errors,
            NDK_CQ_NOTIFY_ANY => CqNotify::Any,
            NDK_CQ_NOTIFY_SOLICITED => CqNotify::Solicited,
            _ => return Err(NtStatus::INVALID_PARAMETER),
        };
        get(cq)?.arm(notify);
        Ok(())
    });
}

const fn pointer(context: u64) -> PVOID {
    ptr::with_exposed_provenance_mut(context as usize)
}

impl From<NdkResult> for NDK_RESULT {
    fn from(result: NdkResult) -> Self {
        let NdkResult { status, bytes_transferred, qp_context, request_context } = result;
        Self {
            Status: status.0.cast_signed(),
            BytesTransferred: bytes_transferred,
            QPContext: pointer(qp_context),
            RequestContext: pointer(request_context),
        }
    }
}

impl From<NdkResultEx> for NDK_RESULT_EX {
    fn from(result: NdkResultEx) -> Self {
        let NdkResultEx {
            status,
            bytes_transferred,
            qp_context,
            request_context,
            operation,
            provider_error_code,
            invalidated_token,
            // Not in NDKPI: queue pairs of this interface do not support immediate data.
            immediate: _,
        } = result;
        Self {
            Status: status.0.cast_signed(),
            BytesTransferred: bytes_transferred,
            QPContext: pointer(qp_context),
            RequestContext: pointer(request_context),
            Type: operation as u32,
            ProviderErrorCode: provider_error_code,
            TypeSpecificCompletionOutput: invalidated_token as usize,
        }
    }
}

/// Polls completions until the consumer's array is full or the queue is empty.
///
/// # Safety
/// `results` is null or has room for `count` results.
unsafe fn poll<R: Copy + Default, C: From<R>>(
    results: *mut C,
    count: ULONG,
    mut take: impl FnMut(&mut [R]) -> usize,
) -> Result<ULONG, NtStatus> {
    if results.is_null() {
        return Err(NtStatus::INVALID_PARAMETER);
    }
    let (mut taken, count) = (0, count as usize);
    let mut batch = [R::default(); BATCH];
    while taken < count {
        let wanted = BATCH.min(count - taken);
        let found = take(&mut batch[..wanted]);
        for result in &batch[..found] {
            // SAFETY: the caller guarantees room for `count` results.
            unsafe { results.add(taken).write((*result).into()) };
            taken += 1;
        }
        if found < wanted {
            break;
        }
    }
    Ok(taken as ULONG)
}

unsafe extern "C" fn get_cq_results(
    cq: *mut NDK_CQ,
    results: *mut NDK_RESULT,
    count: ULONG,
) -> ULONG {
    guard::value(|| {
        let cq = get(cq)?;
        // SAFETY: the consumer passes an array of `count` results.
        unsafe { poll(results, count, |batch: &mut [NdkResult]| cq.poll(batch)) }
    })
}

unsafe extern "C" fn get_cq_results_ex(
    cq: *mut NDK_CQ,
    results: *mut NDK_RESULT_EX,
    count: ULONG,
) -> ULONG {
    guard::value(|| {
        let cq = get(cq)?;
        // SAFETY: the consumer passes an array of `count` results.
        unsafe { poll(results, count, |batch: &mut [NdkResultEx]| cq.poll_ex(batch)) }
    })
}

unsafe extern "C" fn control_cq_interrupt_moderation(
    cq: *mut NDK_CQ,
    interval: ULONG,
    count: ULONG,
) -> NTSTATUS {
    guard::status(|| Ok(get(cq)?.control_interrupt_moderation(interval, count)))
}
