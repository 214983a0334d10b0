//! Functions of NDK_MR_DISPATCH and NDK_MW_DISPATCH.

use std::ffi::c_void;

use rdma_over_tcp::ndk::{Mr, MrFlags, Mw, NtStatus};

use crate::{
    abi::{
        dispatch::{NDK_MR_DISPATCH, NDK_MW_DISPATCH},
        functions::NDK_FN_REQUEST_COMPLETION,
        types::{BOOLEAN, MDL, NDK_MR, NDK_MW, NDK_OBJECT_TYPE, NTSTATUS, PVOID, SIZE_T, ULONG},
        values::{NdkObjectTypeMr, NdkObjectTypeMw},
    },
    callbacks, close, guard, mdl,
    objects::{self, Kind},
};

impl Kind for Mr {
    type Public = NDK_MR;
    const TYPE: NDK_OBJECT_TYPE = NdkObjectTypeMr;

    fn dispatch() -> *const c_void {
        (&raw const MR_DISPATCH).cast()
    }
}

static MR_DISPATCH: NDK_MR_DISPATCH = NDK_MR_DISPATCH {
    NdkCloseMr: close::close::<Mr>,
    NdkQueryExtension: close::query_extension,
    NdkRegisterMr: register_mr,
    NdkDeregisterMr: deregister_mr,
    NdkInitializeFastRegisterMr: initialize_fast_register_mr,
    NdkGetRemoteTokenFromMr: get_remote_token_from_mr,
    NdkGetLocalTokenFromMr: get_local_token_from_mr,
};

impl Kind for Mw {
    type Public = NDK_MW;
    const TYPE: NDK_OBJECT_TYPE = NdkObjectTypeMw;

    fn dispatch() -> *const c_void {
        (&raw const MW_DISPATCH).cast()
    }
}

static MW_DISPATCH: NDK_MW_DISPATCH = NDK_MW_DISPATCH {
    NdkCloseMw: close::close::<Mw>,
    NdkQueryExtension: close::query_extension,
    NdkGetRemoteTokenFromMw: get_remote_token_from_mw,
};

unsafe extern "C" fn register_mr(
    mr: *mut NDK_MR,
    mdl: *mut MDL,
    length: SIZE_T,
    flags: ULONG,
    completion: NDK_FN_REQUEST_COMPLETION,
    context: PVOID,
) -> NTSTATUS {
    guard::status(|| {
        let mr = objects::get::<Mr>(mr)?;
        let flags = MrFlags::from_bits_retain(flags);
        flags.check()?;
        // SAFETY: the consumer passes an MDL chain, and keeps its memory until the region is deregistered or closed.
        let memory =
            unsafe { mdl::memory(mdl, length, flags.contains(MrFlags::ALLOW_LOCAL_WRITE)) }?;
        let completion = callbacks::request(completion, context);
        Ok(mr.begin_register(&memory, 0, length, flags, completion))
    })
}

unsafe extern "C" fn deregister_mr(
    mr: *mut NDK_MR,
    completion: NDK_FN_REQUEST_COMPLETION,
    context: PVOID,
) -> NTSTATUS {
    guard::clean_up(|| {
        let completion = callbacks::request(completion, context);
        Ok(objects::get::<Mr>(mr)?.deregister(|| completion(NtStatus::SUCCESS)))
    })
}

unsafe extern "C" fn initialize_fast_register_mr(
    mr: *mut NDK_MR,
    pages: ULONG,
    remote_access: BOOLEAN,
    completion: NDK_FN_REQUEST_COMPLETION,
    context: PVOID,
) -> NTSTATUS {
    guard::status(|| {
        let (mr, completion) = (objects::get::<Mr>(mr)?, callbacks::request(completion, context));
        Ok(mr.begin_initialize_fast_register(pages, remote_access != 0, completion))
    })
}

unsafe extern "C" fn get_remote_token_from_mr(mr: *mut NDK_MR) -> u32 {
    guard::value(|| Ok(objects::get::<Mr>(mr)?.remote_token()))
}

unsafe extern "C" fn get_local_token_from_mr(mr: *mut NDK_MR) -> u32 {
    guard::value(|| Ok(objects::get::<Mr>(mr)?.local_token()))
}

unsafe extern "C" fn get_remote_token_from_mw(mw: *mut NDK_MW) -> u32 {
    guard::value(|| Ok(objects::get::<Mw>(mw)?.remote_token()))
}
