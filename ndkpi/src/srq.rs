//! Functions of NDK_SRQ_DISPATCH.

use std::ffi::c_void;

use rdma_over_tcp::ndk::Srq;

use crate::{
    abi::{
        dispatch::NDK_SRQ_DISPATCH,
        functions::NDK_FN_REQUEST_COMPLETION,
        types::{NDK_OBJECT_TYPE, NDK_SGE, NDK_SRQ, NTSTATUS, PVOID, ULONG},
        values::NdkObjectTypeSrq,
    },
    callbacks, close, guard,
    objects::{self, Kind},
    sgl,
};

impl Kind for Srq {
    type Public = NDK_SRQ;
    const TYPE: NDK_OBJECT_TYPE = NdkObjectTypeSrq;

    fn dispatch() -> *const c_void {
        (&raw const DISPATCH).cast()
    }
}

static DISPATCH: NDK_SRQ_DISPATCH = NDK_SRQ_DISPATCH {
    NdkCloseSrq: close::close::<Srq>,
    NdkQueryExtension: close::query_extension,
    NdkModifySrq: modify_srq,
    NdkSrqReceive: srq_receive,
};

unsafe extern "C" fn modify_srq(
    srq: *mut NDK_SRQ,
    depth: ULONG,
    notify_threshold: ULONG,
    completion: NDK_FN_REQUEST_COMPLETION,
    context: PVOID,
) -> NTSTATUS {
    guard::status(|| {
        let completion = callbacks::request(completion, context);
        Ok(objects::get::<Srq>(srq)?.begin_modify(depth, notify_threshold, completion))
    })
}

unsafe extern "C" fn srq_receive(
    srq: *mut NDK_SRQ,
    context: PVOID,
    list: *const NDK_SGE,
    count: ULONG,
) -> NTSTATUS {
    guard::done(|| {
        let srq = objects::get::<Srq>(srq)?;
        let context = context.expose_provenance() as u64;
        // SAFETY: the consumer passes a list of `count` entries.
        unsafe { sgl::with_sges(list, count, |sges| srq.receive(context, sges)) }
    })
}
