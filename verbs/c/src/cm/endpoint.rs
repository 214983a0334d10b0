//! C interface of endpoints (`rdma_create_ep`): identifiers with queue pairs, made in one call.

use std::{
    ffi::c_int,
    ptr,
    sync::{PoisonError, atomic::Ordering},
};

use flue_verbs_abi::{
    cm::{
        RAI_PASSIVE, RDMA_CM_EVENT_CONNECT_REQUEST, RDMA_CM_EVENT_DEVICE_REMOVAL, rdma_addrinfo,
        rdma_cm_id, rdma_port_space,
    },
    enums::ibv_qp_type,
    objects::{ibv_pd, ibv_qp_init_attr},
};

use super::{
    id::{
        Endpoint, acknowledge, acknowledge_own, bind, channel::rdma_get_cm_event, create, of,
        rdma_destroy_id, rdma_resolve_addr, rdma_resolve_route, show,
    },
    queues::{create_plain_qp, rdma_create_qp, rdma_destroy_qp, rdma_destroy_srq},
};
use crate::guard::{self, Errno, copied};

/// Timeout of an address resolution, in milliseconds.
const RESOLVE_MS: c_int = 2000;

pub(crate) unsafe extern "C-unwind" fn rdma_get_request(
    listen: *mut rdma_cm_id,
    id: *mut *mut rdma_cm_id,
) -> c_int {
    // SAFETY: guaranteed by the program.
    let is_synchronous = guard::done(|| unsafe {
        let state = of(listen)?;
        if !state.is_synchronous.load(Ordering::Relaxed) {
            return Err(Errno(libc::EINVAL));
        }
        acknowledge_own(listen)
    });
    if is_synchronous != 0 {
        return -1;
    }
    let mut event = ptr::null_mut();
    // SAFETY: guaranteed by the program.
    if unsafe { rdma_get_cm_event((*listen).channel, &raw mut event) } != 0 {
        return -1;
    }
    // SAFETY: the event was created above.
    guard::done(|| unsafe {
        let child = (*event).id;
        let taken = (|| {
            if (*event).status != 0 {
                return Err(Errno(-(*event).status));
            }
            match (*event).event {
                RDMA_CM_EVENT_CONNECT_REQUEST => {}
                RDMA_CM_EVENT_DEVICE_REMOVAL => return Err(Errno(libc::ENODEV)),
                _ => return Err(Errno(libc::EINVAL)),
            }
            let endpoint = *of(listen)?.endpoint.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(Endpoint { pd, mut attr }) = endpoint {
                create_plain_qp(child, pd, &mut attr)?;
            }
            Ok(())
        })();
        if let Err(error) = taken {
            acknowledge(event)?;
            return Err(error);
        }
        (*child).event = event;
        id.write_unaligned(child);
        Ok(())
    })
}

pub(crate) unsafe extern "C-unwind" fn rdma_create_ep(
    id: *mut *mut rdma_cm_id,
    res: *mut rdma_addrinfo,
    pd: *mut ibv_pd,
    attr: *mut ibv_qp_init_attr,
) -> c_int {
    let mut made = ptr::null_mut();
    let mut is_passive = false;
    let begun = guard::done(|| {
        // SAFETY: guaranteed by the program.
        unsafe {
            let res = copied(res).ok_or(Errno(libc::EINVAL))?;
            let ps = rdma_port_space(res.ai_port_space as u32);
            made = create(ptr::null_mut(), ptr::null_mut(), ps)?;
            let kind = ibv_qp_type(res.ai_qp_type as u32);
            (*made).qp_type = kind;
            if !attr.is_null() {
                (&raw mut (*attr).qp_type).write_unaligned(kind);
            }
            is_passive = res.ai_flags as u32 & RAI_PASSIVE != 0;
            if !is_passive {
                return Ok(());
            }
            let state = of(made)?;
            bind(state, res.ai_src_addr)?;
            if let Some(attr) = copied(attr) {
                let kept = Endpoint { pd, attr };
                *state.endpoint.lock().unwrap_or_else(PoisonError::into_inner) = Some(kept);
            }
            show(made)
        }
    });
    // SAFETY: guaranteed by the program; the identifier was created above.
    unsafe {
        let mut result = begun;
        if result == 0 && !is_passive {
            let rdma_addrinfo { ai_src_addr: src, ai_dst_addr: dst, .. } = res.read_unaligned();
            result = rdma_resolve_addr(made, src, dst, RESOLVE_MS);
            if result == 0 {
                result = rdma_resolve_route(made, RESOLVE_MS);
            }
            if result == 0 && !attr.is_null() {
                result = rdma_create_qp(made, pd, attr);
            }
        }
        if result == 0 {
            (*made).pd = if pd.is_null() { (*made).pd } else { pd };
            id.write_unaligned(made);
        } else if !made.is_null() {
            let error = *libc::__errno_location();
            rdma_destroy_ep(made);
            guard::set_errno(Errno(error));
        }
        result
    }
}

pub(crate) unsafe extern "C" fn rdma_destroy_ep(id: *mut rdma_cm_id) {
    // SAFETY: guaranteed by the program.
    unsafe {
        rdma_destroy_qp(id);
        rdma_destroy_srq(id);
        rdma_destroy_id(id);
    }
}
