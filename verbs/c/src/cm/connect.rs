//! C interface of connections of identifiers: parameters, private data, errno.

use std::{
    ffi::{c_int, c_void},
    sync::Arc,
};

use flue_verbs_abi::{
    cm::{RDMA_MAX_INIT_DEPTH, RDMA_MAX_RESP_RES, rdma_cm_id, rdma_conn_param},
    enums::ibv_event_type,
};
use flue_verbs_core::{cm::ConnectParameters, device::Device, qp::Qp};

use super::id::{complete, of};
use crate::{
    config,
    guard::{self, Errno, copied},
    qp,
};

/// Converts the program's parameters of a connection.
unsafe fn parameters(param: *const rdma_conn_param, is_two_step: bool) -> ConnectParameters {
    // SAFETY: the program passes null or parameters, with data of the given length.
    unsafe {
        let Some(param) = copied(param) else {
            return ConnectParameters { is_two_step, ..ConnectParameters::default() };
        };
        let reads = |given: u8, all: u32| (u32::from(given) != all).then_some(given);
        let mut private_data = Vec::new();
        if !param.private_data.is_null() {
            let length = param.private_data_len.into();
            private_data
                .extend_from_slice(std::slice::from_raw_parts(param.private_data.cast(), length));
        }
        ConnectParameters {
            private_data,
            responder_resources: reads(param.responder_resources, RDMA_MAX_RESP_RES),
            initiator_depth: reads(param.initiator_depth, RDMA_MAX_INIT_DEPTH),
            is_two_step,
        }
    }
}

/// Returns the queue pair of a connection: that of the identifier, or the one that the parameters name by number.
unsafe fn qp_of(
    id: *mut rdma_cm_id,
    device: &'static Device,
    param: *const rdma_conn_param,
) -> Result<Arc<Qp>, Errno> {
    // SAFETY: the program passes pointers to an identifier, and null or parameters.
    unsafe {
        if !(*id).qp.is_null() {
            return Ok(qp::of((*id).qp)?.clone());
        }
        let number = copied(param).map(|param| param.qp_num);
        number.and_then(|number| Qp::numbered(device, number)).ok_or(Errno(libc::EINVAL))
    }
}

pub(crate) unsafe extern "C-unwind" fn rdma_connect(
    id: *mut rdma_cm_id,
    param: *mut rdma_conn_param,
) -> c_int {
    // SAFETY: guaranteed by the program.
    let begun = guard::done(|| unsafe {
        let state = of(id)?;
        let qp = qp_of(id, state.id.device(), param)?;
        // A queue pair of the program is ready once the program has moved it to RTS.
        let is_two_step = (*id).qp.is_null() && config::is_roce();
        state.id.connect(&qp, &parameters(param, is_two_step))
    });
    // SAFETY: guaranteed by the program.
    unsafe { complete(id, begun) }
}

/// Establishes the connection of an identifier without a queue pair of its own, after `RDMA_CM_EVENT_CONNECT_RESPONSE`.
/// Has no effect on an iWARP device, whose connections have no second step.
pub(crate) unsafe extern "C" fn rdma_establish(id: *mut rdma_cm_id) -> c_int {
    // SAFETY: the program passes a pointer to an identifier.
    guard::done(|| unsafe {
        let state = of(id)?;
        match (*id).qp.is_null() {
            true if config::is_roce() => state.id.establish(),
            true => Ok(()),
            false => Err(Errno(libc::EINVAL)),
        }
    })
}

pub(crate) unsafe extern "C-unwind" fn rdma_accept(
    id: *mut rdma_cm_id,
    param: *mut rdma_conn_param,
) -> c_int {
    // SAFETY: guaranteed by the program.
    let begun = guard::done(|| unsafe {
        let state = of(id)?;
        let qp = qp_of(id, state.id.device(), param)?;
        state.id.accept(&qp, &parameters(param, false))
    });
    // SAFETY: guaranteed by the program.
    unsafe { complete(id, begun) }
}

pub(crate) unsafe extern "C" fn rdma_reject(
    id: *mut rdma_cm_id,
    data: *const c_void,
    length: u8,
) -> c_int {
    // SAFETY: guaranteed by the program.
    guard::done(|| unsafe {
        let data = match data.is_null() {
            true => &[][..],
            false => std::slice::from_raw_parts(data.cast(), length.into()),
        };
        of(id)?.id.reject(data)
    })
}

pub(crate) extern "C" fn rdma_reject_ece(
    _id: *mut rdma_cm_id,
    _data: *const c_void,
    _length: u8,
) -> c_int {
    guard::done(|| Err(Errno(libc::EOPNOTSUPP)))
}

/// Has no effect, since the adapter detects the events that a program may report.
pub(crate) unsafe extern "C" fn rdma_notify(id: *mut rdma_cm_id, _event: ibv_event_type) -> c_int {
    // SAFETY: the program passes a pointer to an identifier.
    guard::done(|| unsafe { of(id) }.map(|_| ()))
}

pub(crate) unsafe extern "C-unwind" fn rdma_disconnect(id: *mut rdma_cm_id) -> c_int {
    // SAFETY: the program passes a pointer to an identifier.
    let begun = guard::done(|| unsafe { of(id)?.id.disconnect() });
    // SAFETY: guaranteed by the program.
    unsafe { complete(id, begun) }
}
