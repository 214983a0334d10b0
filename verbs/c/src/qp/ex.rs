//! C interface of work requests that a program builds call by call (`ibv_wr_start` to `ibv_wr_complete`).
//!
//! Requests are collected, and posted together by `ibv_wr_complete`. It reports an error of any request, or a queue
//! without room for all, and then posts none of them.

use std::{
    ffi::{c_int, c_void},
    sync::{MutexGuard, PoisonError},
};

use flue_verbs_abi::{
    enums::{
        IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP, IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD,
        IBV_QP_EX_WITH_BIND_MW, IBV_QP_EX_WITH_LOCAL_INV, IBV_QP_EX_WITH_RDMA_READ,
        IBV_QP_EX_WITH_RDMA_WRITE, IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM, IBV_QP_EX_WITH_SEND,
        IBV_QP_EX_WITH_SEND_WITH_IMM, IBV_QP_EX_WITH_SEND_WITH_INV,
    },
    objects::{ibv_ah, ibv_data_buf, ibv_mw, ibv_mw_bind_info, ibv_qp_ex, ibv_sge},
};
use flue_verbs_core::{
    attributes::QpKind,
    device::Device,
    qp::{QpOwner, SendPoster, immediate},
};
use rdma_over_tcp::{
    ddp::Stag,
    rdmap::AtomicOperation,
    rnic::{Bind, Data, Destination, Operation, Remote, Sge, WindowType},
};

use super::{QpObject, options, takes_receive};
use crate::{
    ah,
    guard::{self, Errno, copied},
    mw,
};

/// Data of a request under construction.
enum Payload {
    Registered(Vec<Sge>),
    /// Copy, since the program's memory may change before `ibv_wr_complete`.
    Inline(Vec<u8>),
}

impl Payload {
    fn with<R>(&self, work: impl FnOnce(Data<'_>) -> R) -> R {
        match self {
            Self::Registered(sges) => work(Data::Registered(sges)),
            Self::Inline(data) => work(Data::Inline(&[data])),
        }
    }
}

/// Work of a request under construction.
enum Work {
    Operation(Operation, Payload),
    /// Send, to the destination that a later call sets.
    Datagram {
        destination: Option<Destination>,
        immediate: Option<[u8; 4]>,
        payload: Payload,
    },
    Bind(Bind),
    /// By key.
    Invalidate(u32),
}

impl Work {
    fn check(&self, poster: &mut SendPoster<'_>) -> Result<(), Errno> {
        match self {
            Self::Operation(operation, payload) => {
                payload.with(|data| poster.check(*operation, data))?;
            }
            Self::Datagram { destination, payload, .. } => {
                destination.ok_or(Errno(libc::EINVAL))?;
                payload.with(|data| poster.check_datagram(data))?;
            }
            Self::Bind(bind) => poster.check_bind(*bind)?,
            Self::Invalidate(key) => poster.check_invalidate(*key)?,
        }
        Ok(())
    }
}

struct Built {
    wr_id: u64,
    flags: u32,
    work: Work,
}

impl Built {
    fn post(&self, poster: &mut SendPoster<'_>, is_all_signaled: bool) -> Result<(), Errno> {
        let Self { wr_id, flags, work } = self;
        let options = |takes_receive| options(*flags, is_all_signaled, takes_receive);
        match work {
            Work::Operation(operation, payload) => {
                let flags = options(takes_receive(operation));
                payload.with(|data| poster.post(*wr_id, *operation, data, flags))?;
            }
            Work::Datagram { destination, immediate, payload } => {
                let message = (destination.ok_or(Errno(libc::EINVAL))?, *immediate);
                let flags = options(true);
                payload.with(|data| poster.post_datagram(*wr_id, message, data, flags))?;
            }
            Work::Bind(bind) => {
                poster.bind(*wr_id, *bind, options(false))?;
            }
            Work::Invalidate(key) => poster.invalidate(*wr_id, *key, options(false))?,
        }
        Ok(())
    }
}

/// Requests under construction.
#[derive(Default)]
pub(crate) struct Building {
    requests: Vec<Built>,
    error: Option<Errno>,
}

impl Building {
    /// Creates an empty list of requests for the operations `IBV_QP_EX_WITH_*`.
    pub(crate) fn new(
        operations: u64,
        device: &Device,
        owner: QpOwner,
        kind: QpKind,
    ) -> Result<Self, Errno> {
        let plain = IBV_QP_EX_WITH_RDMA_WRITE
            | IBV_QP_EX_WITH_SEND
            | IBV_QP_EX_WITH_RDMA_READ
            | IBV_QP_EX_WITH_SEND_WITH_INV
            | IBV_QP_EX_WITH_LOCAL_INV
            | IBV_QP_EX_WITH_BIND_MW;
        let extended = IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM
            | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP
            | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD;
        let is_rc = device.identity().is_roce() && owner == QpOwner::Program;
        let mut known = plain;
        if device.has_extensions() || is_rc {
            known |= extended;
        }
        if is_rc {
            known |= IBV_QP_EX_WITH_SEND_WITH_IMM;
        }
        let sends = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM;
        match kind {
            QpKind::Rc => {}
            QpKind::Uc => {
                known = sends
                    | IBV_QP_EX_WITH_RDMA_WRITE
                    | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM
                    | IBV_QP_EX_WITH_LOCAL_INV
                    | IBV_QP_EX_WITH_BIND_MW;
            }
            QpKind::Ud => known = sends,
        }
        match operations & !u64::from(known) {
            0 => Ok(Self::default()),
            _ => Err(Errno(libc::EOPNOTSUPP)),
        }
    }
}

/// Sets the functions of such a queue pair.
pub(crate) fn fill(qp: &mut ibv_qp_ex) {
    qp.wr_start = Some(wr_start);
    qp.wr_complete = Some(wr_complete);
    qp.wr_abort = Some(wr_abort);
    qp.wr_send = Some(wr_send);
    qp.wr_send_inv = Some(wr_send_inv);
    qp.wr_send_imm = Some(wr_send_imm);
    qp.wr_rdma_write = Some(wr_rdma_write);
    qp.wr_rdma_write_imm = Some(wr_rdma_write_imm);
    qp.wr_rdma_read = Some(wr_rdma_read);
    qp.wr_atomic_cmp_swp = Some(wr_atomic_cmp_swp);
    qp.wr_atomic_fetch_add = Some(wr_atomic_fetch_add);
    qp.wr_local_inv = Some(wr_local_inv);
    qp.wr_bind_mw = Some(wr_bind_mw);
    qp.wr_set_ud_addr = Some(wr_set_ud_addr);
    qp.wr_set_sge = Some(wr_set_sge);
    qp.wr_set_sge_list = Some(wr_set_sge_list);
    qp.wr_set_inline_data = Some(wr_set_inline_data);
    qp.wr_set_inline_data_list = Some(wr_set_inline_data_list);
}

/// # Safety
/// The pointer refers to a queue pair that was created for requests under construction.
unsafe fn building<'a>(qp: *mut ibv_qp_ex) -> Result<MutexGuard<'a, Building>, Errno> {
    // SAFETY: guaranteed by the caller.
    let building = unsafe { QpObject::of(qp) }?.building.as_ref().ok_or(Errno(libc::EINVAL))?;
    Ok(building.lock().unwrap_or_else(PoisonError::into_inner))
}

unsafe extern "C" fn wr_start(qp: *mut ibv_qp_ex) {
    guard::nothing(|| {
        // SAFETY: the program passes a pointer to such a queue pair.
        if let Ok(mut building) = unsafe { building(qp) } {
            *building = Building::default();
        }
    });
}

unsafe extern "C" fn wr_abort(qp: *mut ibv_qp_ex) {
    // SAFETY: guaranteed by the program.
    unsafe { wr_start(qp) }
}

/// Adds a request.
fn add_work(qp: *mut ibv_qp_ex, work: Result<Work, Errno>) {
    guard::nothing(|| {
        // SAFETY: the program passes a pointer to such a queue pair.
        let (building, wr_id, flags) = unsafe { (building(qp), (*qp).wr_id, (*qp).wr_flags) };
        if let Ok(mut building) = building {
            match work {
                Ok(work) => building.requests.push(Built { wr_id, flags, work }),
                Err(error) => building.error = building.error.or(Some(error)),
            }
        }
    });
}

/// Adds a request, whose data the next call sets.
fn add(qp: *mut ibv_qp_ex, operation: Operation) {
    let payload = Payload::Registered(Vec::new());
    // SAFETY: the program passes a pointer to such a queue pair.
    let has_datagrams = unsafe { QpObject::of(qp) }.is_ok_and(|state| state.qp.has_datagrams());
    let datagram = |immediate| {
        Ok(Work::Datagram {
            destination: None,
            immediate,
            payload: Payload::Registered(Vec::new()),
        })
    };
    let work = match operation {
        _ if !has_datagrams => Ok(Work::Operation(operation, payload)),
        Operation::Send { invalidate: None } => datagram(None),
        Operation::SendImmediate { data } => datagram(Some(data)),
        _ => Err(Errno(libc::EINVAL)),
    };
    add_work(qp, work);
}

/// Sets the data of the last request.
fn set(qp: *mut ibv_qp_ex, payload: Payload) {
    guard::nothing(|| {
        // SAFETY: the program passes a pointer to such a queue pair.
        if let Ok(mut building) = unsafe { building(qp) } {
            match building.requests.last_mut() {
                Some(Built { work: Work::Operation(_, last), .. })
                | Some(Built { work: Work::Datagram { payload: last, .. }, .. }) => *last = payload,
                _ => building.error = Some(Errno(libc::EINVAL)),
            }
        }
    });
}

unsafe extern "C" fn wr_complete(qp: *mut ibv_qp_ex) -> c_int {
    guard::status(|| {
        // SAFETY: the program passes a pointer to such a queue pair.
        let (state, built) = unsafe { (QpObject::of(qp)?, std::mem::take(&mut *building(qp)?)) };
        if let Some(error) = built.error {
            return Err(error);
        }
        state.qp.post_send(|poster| -> Result<(), Errno> {
            if built.requests.len() > poster.room() {
                return Err(Errno(libc::ENOMEM));
            }
            built.requests.iter().try_for_each(|request| request.work.check(poster))?;
            let is_all_signaled = state.is_all_signaled;
            built.requests.iter().try_for_each(|request| request.post(poster, is_all_signaled))
        })
    })
}

unsafe extern "C" fn wr_send(qp: *mut ibv_qp_ex) {
    add(qp, Operation::Send { invalidate: None });
}

unsafe extern "C" fn wr_send_inv(qp: *mut ibv_qp_ex, key: u32) {
    add(qp, Operation::Send { invalidate: Some(Stag(key)) });
}

unsafe extern "C" fn wr_send_imm(qp: *mut ibv_qp_ex, data: u32) {
    add(qp, Operation::SendImmediate { data: data.to_ne_bytes() });
}

unsafe extern "C" fn wr_rdma_write(qp: *mut ibv_qp_ex, key: u32, address: u64) {
    add(qp, Operation::Write { to: Remote::new(address, key) });
}

unsafe extern "C" fn wr_rdma_write_imm(qp: *mut ibv_qp_ex, key: u32, address: u64, data: u32) {
    add(qp, Operation::WriteImmediate { to: Remote::new(address, key), data: immediate(data) });
}

unsafe extern "C" fn wr_rdma_read(qp: *mut ibv_qp_ex, key: u32, address: u64) {
    add(qp, Operation::Read { from: Remote::new(address, key), invalidate_sink: false });
}

unsafe extern "C" fn wr_atomic_cmp_swp(
    qp: *mut ibv_qp_ex,
    key: u32,
    address: u64,
    compare: u64,
    swap: u64,
) {
    let (compare_mask, swap_mask) = (u64::MAX, u64::MAX);
    let operation = AtomicOperation::CompareSwap { compare, compare_mask, swap, swap_mask };
    add(qp, Operation::Atomic { target: Remote::new(address, key), operation });
}

unsafe extern "C" fn wr_atomic_fetch_add(qp: *mut ibv_qp_ex, key: u32, address: u64, add_: u64) {
    let operation = AtomicOperation::FetchAdd { add: add_, mask: 0 };
    add(qp, Operation::Atomic { target: Remote::new(address, key), operation });
}

unsafe extern "C" fn wr_local_inv(qp: *mut ibv_qp_ex, key: u32) {
    add_work(qp, Ok(Work::Invalidate(key)));
}

/// The program writes the key to its structure of the window, which must be of type 2.
unsafe extern "C" fn wr_bind_mw(
    qp: *mut ibv_qp_ex,
    mw: *mut ibv_mw,
    key: u32,
    info: *const ibv_mw_bind_info,
) {
    let mut bind = Err(Errno(libc::EINVAL));
    // SAFETY: the program passes pointers to a window and a bind.
    guard::nothing(|| unsafe {
        let is_two = mw::MwObject::of(mw).is_ok_and(|window| window.kind() == WindowType::Two);
        if let Some(info) = copied(info).filter(|_| is_two) {
            bind = mw::request(mw, Some(key), &info);
        }
    });
    add_work(qp, bind.map(Work::Bind));
}

unsafe extern "C" fn wr_set_ud_addr(qp: *mut ibv_qp_ex, ah: *mut ibv_ah, number: u32, key: u32) {
    guard::nothing(|| {
        // SAFETY: the program passes pointers to such a queue pair, and to a handle.
        let (building, to) = unsafe { (building(qp), ah::destination(ah, number, key)) };
        if let Ok(mut building) = building {
            match (building.requests.last_mut(), to) {
                (Some(Built { work: Work::Datagram { destination, .. }, .. }), Ok(to)) => {
                    *destination = Some(to);
                }
                _ => building.error = Some(Errno(libc::EINVAL)),
            }
        }
    });
}

unsafe extern "C" fn wr_set_sge(qp: *mut ibv_qp_ex, lkey: u32, address: u64, length: u32) {
    set(qp, Payload::Registered(vec![Sge { address, length, token: lkey }]));
}

unsafe extern "C" fn wr_set_sge_list(qp: *mut ibv_qp_ex, count: usize, list: *const ibv_sge) {
    // SAFETY: the program passes this many.
    let entries = (0..count).map(|at| unsafe { list.add(at).read_unaligned() });
    let sge = |ibv_sge { addr, length, lkey }| Sge { address: addr, length, token: lkey };
    set(qp, Payload::Registered(entries.map(sge).collect()));
}

/// # Safety
/// `length` bytes are readable.
unsafe fn append(into: &mut Vec<u8>, address: *const c_void, length: usize) {
    if length > 0 {
        // SAFETY: guaranteed by the caller.
        into.extend_from_slice(unsafe { std::slice::from_raw_parts(address.cast(), length) });
    }
}

unsafe extern "C" fn wr_set_inline_data(qp: *mut ibv_qp_ex, address: *mut c_void, length: usize) {
    let mut data = Vec::new();
    // SAFETY: guaranteed by the program.
    unsafe { append(&mut data, address, length) };
    set(qp, Payload::Inline(data));
}

unsafe extern "C" fn wr_set_inline_data_list(
    qp: *mut ibv_qp_ex,
    count: usize,
    list: *const ibv_data_buf,
) {
    let mut data = Vec::new();
    for at in 0..count {
        // SAFETY: guaranteed by the program.
        unsafe {
            let ibv_data_buf { addr, length } = list.add(at).read_unaligned();
            append(&mut data, addr, length);
        }
    }
    set(qp, Payload::Inline(data));
}
