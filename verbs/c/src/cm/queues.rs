//! C interface of queue pairs, completion queues and shared receive queues of identifiers.

use std::{ffi::c_int, ptr, sync::atomic::Ordering};

use flue_verbs_abi::{
    cm::rdma_cm_id,
    enums::{IBV_QP_INIT_ATTR_PD, IBV_SRQ_INIT_ATTR_PD},
    objects::{
        ibv_comp_channel, ibv_cq, ibv_pd, ibv_qp_init_attr, ibv_qp_init_attr_ex, ibv_srq_init_attr,
        ibv_srq_init_attr_ex,
    },
};

use flue_verbs_core::qp::QpOwner;

use super::id::of;
use crate::{
    cq,
    guard::{self, Errno, copied},
    qp, srq,
};

/// Creates a completion queue and its channel for an identifier whose program gives none.
unsafe fn make_cq(
    id: *mut rdma_cm_id,
    entries: u32,
) -> Result<(*mut ibv_comp_channel, *mut ibv_cq), Errno> {
    // SAFETY: guaranteed by the caller; the channel was created above.
    unsafe {
        let channel = cq::make_channel((*id).verbs)?;
        match cq::create((*id).verbs, entries.max(1), id.cast(), channel) {
            Ok(made) => Ok((channel, made.cast())),
            Err(error) => {
                let _ = cq::remove_channel(channel);
                Err(error)
            }
        }
    }
}

/// Destroys the completion queues that [`make_cq`] has created.
unsafe fn destroy_cqs(id: *mut rdma_cm_id) {
    // SAFETY: the program passes a pointer to an identifier.
    unsafe {
        let queues = [&raw mut (*id).send_cq, &raw mut (*id).recv_cq];
        for queue in queues.map(|place| ptr::replace(place, ptr::null_mut())) {
            if !queue.is_null() {
                let _ = cq::remove(queue);
            }
        }
        let channels = [&raw mut (*id).send_cq_channel, &raw mut (*id).recv_cq_channel];
        for channel in channels.map(|place| ptr::replace(place, ptr::null_mut())) {
            if !channel.is_null() {
                let _ = cq::remove_channel(channel);
            }
        }
    }
}

/// Creates the queue pair of an identifier.
unsafe fn create_qp(id: *mut rdma_cm_id, attr: &mut ibv_qp_init_attr_ex) -> Result<(), Errno> {
    // SAFETY: the program passes pointers to an identifier and to the objects in the attributes.
    unsafe {
        let state = of(id)?;
        if (*id).verbs.is_null() || !(*id).qp.is_null() {
            return Err(Errno(libc::EINVAL));
        }
        if attr.comp_mask & IBV_QP_INIT_ATTR_PD == 0 || attr.pd.is_null() {
            attr.comp_mask |= IBV_QP_INIT_ATTR_PD;
            attr.pd = (*id).pd;
        }
        if attr.srq.is_null() {
            attr.srq = (*id).srq;
        }
        if attr.recv_cq.is_null() {
            ((*id).recv_cq_channel, (*id).recv_cq) = make_cq(id, attr.cap.max_recv_wr)?;
            attr.recv_cq = (*id).recv_cq;
        }
        let made = (|| {
            if attr.send_cq.is_null() {
                ((*id).send_cq_channel, (*id).send_cq) = make_cq(id, attr.cap.max_send_wr)?;
                attr.send_cq = (*id).send_cq;
            }
            qp::create_extended(attr, QpOwner::Identifier)
        })();
        match made {
            Ok(made) => {
                (*id).qp = made;
                (*id).pd = attr.pd;
                let timeout = state.ack_timeout.load(Ordering::Relaxed);
                qp::QpObject::of(made)?.ack_timeout.store(timeout, Ordering::Relaxed);
                Ok(())
            }
            Err(error) => {
                destroy_cqs(id);
                Err(error)
            }
        }
    }
}

/// As [`create_qp`], with the attributes of the plain call, which get the actual capabilities and queues.
pub(super) unsafe fn create_plain_qp(
    id: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    attr: &mut ibv_qp_init_attr,
) -> Result<(), Errno> {
    let mut extended = ibv_qp_init_attr_ex::zeroed();
    extended.qp_context = attr.qp_context;
    extended.send_cq = attr.send_cq;
    extended.recv_cq = attr.recv_cq;
    extended.srq = attr.srq;
    extended.cap = attr.cap;
    extended.qp_type = attr.qp_type;
    extended.sq_sig_all = attr.sq_sig_all;
    if !pd.is_null() {
        extended.comp_mask = IBV_QP_INIT_ATTR_PD;
        extended.pd = pd;
    }
    // SAFETY: guaranteed by the caller.
    unsafe { create_qp(id, &mut extended) }?;
    attr.send_cq = extended.send_cq;
    attr.recv_cq = extended.recv_cq;
    attr.cap = extended.cap;
    Ok(())
}

pub(crate) unsafe extern "C" fn rdma_create_qp(
    id: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    attr: *mut ibv_qp_init_attr,
) -> c_int {
    // SAFETY: guaranteed by the program.
    guard::done(|| unsafe {
        let mut given = copied(attr).ok_or(Errno(libc::EINVAL))?;
        create_plain_qp(id, pd, &mut given)?;
        attr.write_unaligned(given);
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn rdma_create_qp_ex(
    id: *mut rdma_cm_id,
    attr: *mut ibv_qp_init_attr_ex,
) -> c_int {
    // SAFETY: guaranteed by the program.
    guard::done(|| unsafe { create_qp(id, attr.as_mut().ok_or(Errno(libc::EINVAL))?) })
}

pub(crate) unsafe extern "C" fn rdma_destroy_qp(id: *mut rdma_cm_id) {
    guard::nothing(|| {
        // SAFETY: the program passes a pointer to an identifier.
        unsafe {
            let made = ptr::replace(&raw mut (*id).qp, ptr::null_mut());
            if !made.is_null() {
                let _ = qp::remove(made);
            }
            destroy_cqs(id);
        }
    });
}

pub(crate) unsafe extern "C" fn rdma_create_srq(
    id: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    attr: *mut ibv_srq_init_attr,
) -> c_int {
    // SAFETY: guaranteed by the program.
    guard::done(|| unsafe {
        of(id)?;
        if (*id).verbs.is_null() || !(*id).srq.is_null() {
            return Err(Errno(libc::EINVAL));
        }
        let pd = if pd.is_null() { (*id).pd } else { pd };
        (*id).srq = srq::create(pd, attr)?;
        (*id).pd = pd;
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn rdma_create_srq_ex(
    id: *mut rdma_cm_id,
    attr: *mut ibv_srq_init_attr_ex,
) -> c_int {
    // SAFETY: guaranteed by the program.
    guard::done(|| unsafe {
        of(id)?;
        let attr = attr.as_mut().ok_or(Errno(libc::EINVAL))?;
        if (*id).verbs.is_null() || !(*id).srq.is_null() {
            return Err(Errno(libc::EINVAL));
        }
        if attr.comp_mask & IBV_SRQ_INIT_ATTR_PD == 0 || attr.pd.is_null() {
            attr.comp_mask |= IBV_SRQ_INIT_ATTR_PD;
            attr.pd = (*id).pd;
        }
        (*id).srq = srq::create_extended(attr)?;
        (*id).pd = attr.pd;
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn rdma_destroy_srq(id: *mut rdma_cm_id) {
    guard::nothing(|| {
        // SAFETY: the program passes a pointer to an identifier.
        unsafe {
            let made = ptr::replace(&raw mut (*id).srq, ptr::null_mut());
            if !made.is_null() {
                let _ = srq::remove(made);
            }
        }
    });
}
