//! C interface of queue pairs: pointers, attributes, lists of work requests, errno.

mod ex;

use std::{
    cell::Cell,
    ffi::c_int,
    ptr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering},
    },
};

use flue_verbs_abi::{
    attributes::{ibv_ece, ibv_qp_attr, ibv_qp_cap},
    enums::{
        IBV_MIG_MIGRATED, IBV_QP_AV, IBV_QP_DEST_QPN, IBV_QP_INIT_ATTR_CREATE_FLAGS,
        IBV_QP_INIT_ATTR_PD, IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, IBV_QP_STATE, IBV_QPT_RC, IBV_QPT_UC,
        IBV_QPT_UD, IBV_SEND_FENCE, IBV_SEND_INLINE, IBV_SEND_SIGNALED, IBV_SEND_SOLICITED,
        IBV_WR_ATOMIC_CMP_AND_SWP, IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WR_BIND_MW, IBV_WR_LOCAL_INV,
        IBV_WR_RDMA_READ, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_SEND,
        IBV_WR_SEND_WITH_IMM, IBV_WR_SEND_WITH_INV, ibv_mig_state, ibv_mtu, ibv_qp_state,
        ibv_wr_opcode,
    },
    objects::{
        ibv_context, ibv_mw, ibv_mw_bind, ibv_pd, ibv_qp, ibv_qp_ex, ibv_qp_init_attr,
        ibv_qp_init_attr_ex, ibv_recv_wr, ibv_send_wr, ibv_send_wr_ud, ibv_sge,
    },
};
use flue_verbs_core::{
    async_event::{AsyncEvent, AsyncEvents, end_events},
    attributes::{IbvQpAttributes, IbvQpChange, IbvQpState, QpKind, mask},
    event_queue::Acknowledgments,
    qp::{Qp, QpAttributes, QpOwner, SendPoster, immediate},
};
use rdma_over_tcp::{
    ddp::Stag,
    rdmap::AtomicOperation,
    rnic::{Data, Operation, QpLimits, Remote, WindowType, WrFlags},
};

use crate::{
    ah, context, cq,
    guard::{self, Errno, copied},
    mw,
    object::Object,
    pd::PdObject,
    request::{SGES_MAX, SgeList, answer},
    srq,
};

use self::ex::Building;

/// Private part of a queue pair.
pub(crate) struct QpFields {
    pub(crate) qp: Arc<Qp>,
    /// True if every request generates a completion (`sq_sig_all`).
    pub(crate) is_all_signaled: bool,
    /// Requests under construction, for a queue pair that was created for them.
    pub(crate) building: Option<Mutex<Building>>,
    init: Mutex<ibv_qp_init_attr_send>,
    events: Arc<AsyncEvents>,
    acknowledgments: Arc<Acknowledgments>,
    /// `RDMA_OPTION_ID_ACK_TIMEOUT`, for `ibv_query_qp`. The timeouts of TCP are those of the kernel.
    pub(crate) ack_timeout: AtomicU8,
}

/// Creation attributes with pointers of the program, for `ibv_query_qp`.
#[derive(Clone, Copy)]
#[expect(non_camel_case_types, reason = "the C structure that it holds")]
struct ibv_qp_init_attr_send(ibv_qp_init_attr);

// SAFETY: the pointers are the program's, and are only returned.
unsafe impl Send for ibv_qp_init_attr_send {}

pub(crate) type QpObject = Object<ibv_qp_ex, QpFields>;

pub(crate) unsafe extern "C" fn ibv_create_qp(
    pd: *mut ibv_pd,
    attr: *mut ibv_qp_init_attr,
) -> *mut ibv_qp {
    // SAFETY: guaranteed by the program.
    guard::pointer(|| unsafe { create(pd, attr, None, QpOwner::Program) })
}

/// Creates a queue pair, and writes back its actual capabilities.
///
/// # Safety
/// Pointers are null or those of the program.
pub(crate) unsafe fn create(
    pd: *mut ibv_pd,
    attr: *mut ibv_qp_init_attr,
    send_ops: Option<u64>,
    owner: QpOwner,
) -> Result<*mut ibv_qp, Errno> {
    // SAFETY: guaranteed by the caller.
    let (domain, mut given) =
        unsafe { (PdObject::of(pd)?, copied(attr).ok_or(Errno(libc::EINVAL))?) };
    let kind = match given.qp_type {
        IBV_QPT_RC => QpKind::Rc,
        IBV_QPT_UC => QpKind::Uc,
        IBV_QPT_UD => QpKind::Ud,
        _ => return Err(Errno(libc::EOPNOTSUPP)),
    };
    let building = send_ops
        .map(|operations| Building::new(operations, domain.device(), owner, kind))
        .transpose()?;
    let ibv_qp_cap { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data } =
        given.cap;
    let srq = match given.srq.is_null() {
        true => None,
        // SAFETY: guaranteed by the caller.
        false => Some(unsafe { srq::of(given.srq) }?),
    };
    let limits = QpLimits {
        receive_queue_depth: if srq.is_some() { 0 } else { max_recv_wr },
        initiator_queue_depth: max_send_wr,
        max_receive_request_sge: max_recv_sge,
        max_initiator_request_sge: max_send_sge,
        inline_data_size: max_inline_data,
    };
    // SAFETY: guaranteed by the caller.
    let (send_cq, receive_cq) = unsafe { (cq::of(given.send_cq)?, cq::of(given.recv_cq)?) };
    // SAFETY: guaranteed by the caller, and the domain is not null.
    let context = unsafe { (*pd).context };
    // SAFETY: the context is that of the domain.
    let events = unsafe { context::events_of_new(context) }?;
    let acknowledgments = Arc::<Acknowledgments>::default();
    let name = Arc::new(AtomicUsize::new(0));
    let (async_events, of, named) = (events.clone(), acknowledgments.clone(), name.clone());
    let handler = Box::new(move |kind, is_destroyed: &AtomicBool| {
        let name = named.load(Ordering::Relaxed);
        let event = AsyncEvent { kind, name, acknowledgments: of.clone() };
        async_events.push_unless(event, || is_destroyed.load(Ordering::Relaxed));
    });
    let attributes = QpAttributes { send_cq, receive_cq, srq, limits, owner, kind };
    let qp = Qp::new(domain, attributes, handler)?;
    given.cap.max_inline_data = qp.attributes().limits.inline_data_size;
    // SAFETY: guaranteed by the caller, and it is not null.
    unsafe { attr.write_unaligned(given) };
    let mut seen = ibv_qp_ex::zeroed();
    let base = &mut seen.qp_base;
    base.context = context;
    base.qp_context = given.qp_context;
    base.pd = pd;
    base.send_cq = given.send_cq;
    base.recv_cq = given.recv_cq;
    base.srq = given.srq;
    base.qp_num = qp.number();
    base.handle = qp.number();
    base.state = ibv_qp_state(IbvQpState::Reset as u32);
    base.qp_type = given.qp_type;
    if building.is_some() {
        ex::fill(&mut seen);
    }
    let state = QpFields {
        qp,
        is_all_signaled: given.sq_sig_all != 0,
        building: building.map(Mutex::new),
        init: Mutex::new(ibv_qp_init_attr_send(given)),
        events,
        acknowledgments,
        ack_timeout: AtomicU8::new(0),
    };
    let object = QpObject::make(seen, state);
    name.store(object as usize, Ordering::Relaxed);
    Ok(object.cast())
}

/// Returns the queue pair of the program's pointer.
///
/// # Safety
/// The pointer is null or refers to a queue pair.
pub(crate) unsafe fn of<'a>(qp: *mut ibv_qp) -> Result<&'a Arc<Qp>, Errno> {
    // SAFETY: guaranteed by the caller.
    Ok(&unsafe { QpObject::of(qp) }?.qp)
}

/// Returns the acknowledgments for which the destruction of a queue pair waits.
///
/// # Safety
/// The pointer is null or refers to a queue pair.
pub(crate) unsafe fn async_acknowledgments<'a>(
    qp: *mut ibv_qp,
) -> Option<&'a Arc<Acknowledgments>> {
    // SAFETY: guaranteed by the caller.
    unsafe { QpObject::of(qp) }.ok().map(|state| &state.acknowledgments)
}

pub(crate) unsafe extern "C" fn create_qp_ex(
    _context: *mut ibv_context,
    attr: *mut ibv_qp_init_attr_ex,
) -> *mut ibv_qp {
    // SAFETY: guaranteed by the program.
    guard::pointer(|| unsafe { create_extended(attr, QpOwner::Program) })
}

/// # Safety
/// Pointers are null or those of the program.
pub(crate) unsafe fn create_extended(
    attr: *mut ibv_qp_init_attr_ex,
    owner: QpOwner,
) -> Result<*mut ibv_qp, Errno> {
    // SAFETY: guaranteed by the caller.
    let attr = unsafe { attr.as_mut() }.ok_or(Errno(libc::EINVAL))?;
    let known =
        IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS | IBV_QP_INIT_ATTR_CREATE_FLAGS;
    let has = |bit| attr.comp_mask & bit != 0;
    if attr.comp_mask & !known != 0 || has(IBV_QP_INIT_ATTR_CREATE_FLAGS) && attr.create_flags != 0
    {
        return Err(Errno(libc::EOPNOTSUPP));
    }
    if !has(IBV_QP_INIT_ATTR_PD) {
        return Err(Errno(libc::EINVAL));
    }
    let send_ops = has(IBV_QP_INIT_ATTR_SEND_OPS_FLAGS).then_some(attr.send_ops_flags);
    let mut plain = ibv_qp_init_attr {
        qp_context: attr.qp_context,
        send_cq: attr.send_cq,
        recv_cq: attr.recv_cq,
        srq: attr.srq,
        cap: attr.cap,
        qp_type: attr.qp_type,
        sq_sig_all: attr.sq_sig_all,
    };
    // SAFETY: guaranteed by the caller.
    let qp = unsafe { create(attr.pd, &raw mut plain, send_ops, owner) }?;
    attr.cap = plain.cap;
    Ok(qp)
}

pub(crate) unsafe extern "C" fn ibv_qp_to_qp_ex(qp: *mut ibv_qp) -> *mut ibv_qp_ex {
    // SAFETY: the program passes a pointer to a queue pair.
    match unsafe { QpObject::of(qp) } {
        Ok(state) if state.building.is_some() => qp.cast(),
        _ => ptr::null_mut(),
    }
}

/// Returns the queue pair of the program's pointer, if its handle is intact.
///
/// # Safety
/// The pointer is null or refers to a queue pair.
unsafe fn checked<'a>(qp: *mut ibv_qp) -> Result<&'a QpFields, Errno> {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let state = QpObject::of(qp)?;
        if (*qp).handle == state.qp.number() { Ok(state) } else { Err(Errno(libc::EINVAL)) }
    }
}

/// Reads the attributes that the mask names. The others may be outside of a structure of an older release.
///
/// # Safety
/// The attributes that the mask names can be read.
unsafe fn change(attr: *const ibv_qp_attr, given: u32) -> IbvQpChange {
    let mut values = IbvQpAttributes::default();
    let (mut state, mut current_state) = (0, 0);
    macro_rules! read {
        ($($bit:ident $field:ident => $place:expr, $convert:expr;)*) => {$(
            if given & mask::$bit != 0 {
                // SAFETY: guaranteed by the caller.
                let value = unsafe { (&raw const (*attr).$field).read_unaligned() };
                $place = $convert(value);
            }
        )*};
    }
    let octet = |number: u32| u8::try_from(number).unwrap_or(u8::MAX);
    let same = |value: u8| value;
    let word = |value: u32| value;
    read! {
        STATE qp_state => state, |it: ibv_qp_state| it.0;
        CUR_STATE cur_qp_state => current_state, |it: ibv_qp_state| it.0;
        EN_SQD_ASYNC_NOTIFY en_sqd_async_notify => values.en_sqd_async_notify, |it: u8| it != 0;
        ACCESS_FLAGS qp_access_flags => values.access_flags, word;
        PKEY_INDEX pkey_index => values.pkey_index, |it: u16| it;
        PORT port_num => values.port, same;
        AV ah_attr => values.address, |it| ah::address_vector(&it);
        PATH_MTU path_mtu => values.path_mtu, |it: ibv_mtu| octet(it.0);
        TIMEOUT timeout => values.timeout, same;
        RETRY_CNT retry_cnt => values.retry_cnt, same;
        RNR_RETRY rnr_retry => values.rnr_retry, same;
        RQ_PSN rq_psn => values.rq_psn, word;
        MAX_QP_RD_ATOMIC max_rd_atomic => values.max_rd_atomic, same;
        MIN_RNR_TIMER min_rnr_timer => values.min_rnr_timer, same;
        SQ_PSN sq_psn => values.sq_psn, word;
        MAX_DEST_RD_ATOMIC max_dest_rd_atomic => values.max_dest_rd_atomic, same;
        PATH_MIG_STATE path_mig_state => values.path_mig_state, |it: ibv_mig_state| it.0;
        DEST_QPN dest_qp_num => values.dest_qp_num, word;
        QKEY qkey => values.qkey, word;
    }
    IbvQpChange { mask: given, state, current_state, values }
}

/// Writes the attributes that the program has set.
fn write_attributes(into: &mut ibv_qp_attr, attributes: &IbvQpAttributes) {
    let IbvQpAttributes {
        path_mtu,
        path_mig_state,
        rq_psn,
        sq_psn,
        dest_qp_num,
        access_flags,
        ref address,
        pkey_index,
        en_sqd_async_notify,
        max_rd_atomic,
        max_dest_rd_atomic,
        min_rnr_timer,
        port,
        timeout,
        retry_cnt,
        rnr_retry,
        qkey,
    } = *attributes;
    into.path_mtu = ibv_mtu(path_mtu.into());
    into.path_mig_state = ibv_mig_state(path_mig_state);
    (into.rq_psn, into.sq_psn, into.dest_qp_num) = (rq_psn, sq_psn, dest_qp_num);
    into.qkey = qkey;
    into.qp_access_flags = access_flags;
    into.ah_attr = ah::shown_vector(address);
    into.pkey_index = pkey_index;
    into.en_sqd_async_notify = en_sqd_async_notify.into();
    (into.max_rd_atomic, into.max_dest_rd_atomic) = (max_rd_atomic, max_dest_rd_atomic);
    (into.min_rnr_timer, into.port_num) = (min_rnr_timer, port);
    (into.timeout, into.retry_cnt, into.rnr_retry) = (timeout, retry_cnt, rnr_retry);
}

pub(crate) unsafe extern "C" fn ibv_query_qp(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    _mask: c_int,
    init: *mut ibv_qp_init_attr,
) -> c_int {
    guard::status(|| {
        // SAFETY: the program passes pointers to a queue pair, and places for the answers.
        unsafe {
            let state = checked(qp)?;
            let now = ibv_qp_state(state.qp.state()? as u32);
            let made = state.init.lock().map_err(|_| Errno(libc::EIO))?.0;
            let mut found = ibv_qp_attr::zeroed();
            found.qp_state = now;
            found.cur_qp_state = now;
            found.path_mig_state = IBV_MIG_MIGRATED;
            found.cap = made.cap;
            found.port_num = 1;
            found.timeout = state.ack_timeout.load(Ordering::Relaxed);
            if let Some(attributes) = state.qp.ibv_attributes() {
                write_attributes(&mut found, &attributes);
            }
            attr.write_unaligned(found);
            init.write_unaligned(made);
            (*qp).state = now;
        }
        Ok(())
    })
}

pub(crate) extern "C" fn ibv_query_qp_data_in_order(
    _qp: *mut ibv_qp,
    _opcode: ibv_wr_opcode,
    _flags: u32,
) -> c_int {
    0
}

pub(crate) unsafe extern "C" fn ibv_modify_qp(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    mask: c_int,
) -> c_int {
    guard::status(|| {
        // SAFETY: the program passes pointers to a queue pair, and attributes.
        let state = unsafe { checked(qp) }?;
        if attr.is_null() {
            return Err(Errno(libc::EINVAL));
        }
        let mask = mask as u32;
        if state.qp.has_ibv_states() {
            // SAFETY: as above.
            unsafe {
                let now = state.qp.modify_ibv(&change(attr, mask))?;
                if mask & IBV_QP_STATE != 0 {
                    (*qp).state = ibv_qp_state(now as u32);
                }
            }
            return Ok(());
        }
        // On iWARP, the connection identifies the peer: an address or number cannot lead to RTR.
        if mask & (IBV_QP_AV | IBV_QP_DEST_QPN) != 0 {
            tracing::error!(
                qpn = state.qp.number(),
                "ibv_modify_qp to RTR: address and QP number not supported on iWARP: use flue run --device roce on \
                 both sides, or connect with librdmacm (perftest and qperf: option -R on both sides)"
            );
            return Err(Errno(libc::EINVAL));
        }
        if mask & IBV_QP_STATE != 0 {
            // SAFETY: as above. Programs of older releases pass a shorter structure.
            let to = unsafe { (&raw const (*attr).qp_state).read_unaligned() };
            let to = IbvQpState::from_number(to.0).ok_or(Errno(libc::EINVAL))?;
            let now = state.qp.modify(to)?;
            // SAFETY: as above.
            unsafe { (*qp).state = ibv_qp_state(now as u32) };
        }
        Ok(())
    })
}

/// Destroys a queue pair.
///
/// # Safety
/// The pointer is null or refers to a queue pair that is no longer used.
pub(crate) unsafe fn remove(qp: *mut ibv_qp) -> Result<(), Errno> {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let state = checked(qp)?;
        state.qp.destroy()?;
        end_events(&state.events, &state.acknowledgments);
        QpObject::remove(qp);
    }
    Ok(())
}

pub(crate) unsafe extern "C" fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int {
    // SAFETY: the program passes a pointer to a queue pair, which it no longer uses.
    guard::status(|| unsafe { remove(qp) })
}

pub(crate) extern "C" fn ibv_query_ece(_qp: *mut ibv_qp, _ece: *mut ibv_ece) -> c_int {
    guard::status(|| Err(Errno(libc::EOPNOTSUPP)))
}

pub(crate) extern "C" fn ibv_set_ece(_qp: *mut ibv_qp, _ece: *mut ibv_ece) -> c_int {
    guard::status(|| Err(Errno(libc::EOPNOTSUPP)))
}

/// Converts `IBV_SEND_*` flags.
pub(crate) fn options(flags: u32, is_all_signaled: bool, is_send: bool) -> WrFlags {
    let mut options = WrFlags::NONE;
    if flags & IBV_SEND_SIGNALED == 0 && !is_all_signaled {
        options = options | WrFlags::SILENT;
    }
    if flags & IBV_SEND_FENCE != 0 {
        options = options | WrFlags::READ_FENCE;
    }
    if flags & IBV_SEND_SOLICITED != 0 && is_send {
        options = options | WrFlags::SOLICITED;
    }
    options
}

/// Returns true if the peer completes a receive for the operation, whose event may be solicited.
#[inline]
fn takes_receive(operation: &Operation) -> bool {
    matches!(
        operation,
        Operation::Send { .. } | Operation::SendImmediate { .. } | Operation::WriteImmediate { .. }
    )
}

/// Returns the operation of a work request.
#[inline]
unsafe fn operation(wr: &ibv_send_wr) -> Result<Operation, Errno> {
    // SAFETY: the opcode selects the member of the union.
    let rdma = || unsafe { Remote::new(wr.wr.rdma.remote_addr, wr.wr.rdma.rkey) };
    Ok(match wr.opcode {
        IBV_WR_SEND => Operation::Send { invalidate: None },
        IBV_WR_RDMA_WRITE => Operation::Write { to: rdma() },
        IBV_WR_RDMA_READ => Operation::Read { from: rdma(), invalidate_sink: false },
        IBV_WR_SEND_WITH_INV => Operation::Send { invalidate: Some(Stag(wr.imm_data)) },
        IBV_WR_RDMA_WRITE_WITH_IMM => {
            Operation::WriteImmediate { to: rdma(), data: immediate(wr.imm_data) }
        }
        IBV_WR_ATOMIC_CMP_AND_SWP | IBV_WR_ATOMIC_FETCH_AND_ADD => {
            // SAFETY: as above.
            let atomic = unsafe { wr.wr.atomic };
            let operation = match wr.opcode {
                IBV_WR_ATOMIC_FETCH_AND_ADD => {
                    AtomicOperation::FetchAdd { add: atomic.compare_add, mask: 0 }
                }
                _ => AtomicOperation::CompareSwap {
                    compare: atomic.compare_add,
                    compare_mask: u64::MAX,
                    swap: atomic.swap,
                    swap_mask: u64::MAX,
                },
            };
            Operation::Atomic { target: Remote::new(atomic.remote_addr, atomic.rkey), operation }
        }
        // Between queue pairs of a RoCE device only: with RFC 7306 it would consume two receives of the peer.
        IBV_WR_SEND_WITH_IMM => Operation::SendImmediate { data: wr.imm_data.to_ne_bytes() },
        _ => return Err(Errno(libc::EINVAL)),
    })
}

/// # Safety
/// The request and its list are those of the program.
#[inline]
unsafe fn post_one(
    poster: &mut SendPoster<'_>,
    wr: &ibv_send_wr,
    is_all_signaled: bool,
) -> Result<(), Errno> {
    match wr.opcode {
        IBV_WR_LOCAL_INV => {
            let flags = options(wr.send_flags, is_all_signaled, false);
            return poster.invalidate(wr.wr_id, wr.imm_data, flags);
        }
        IBV_WR_BIND_MW => {
            let flags = options(wr.send_flags, is_all_signaled, false);
            let (mw, rkey) = (wr.bind_mw.mw, Some(wr.bind_mw.rkey));
            // SAFETY: guaranteed by the caller.
            return unsafe {
                mw::post_bind(poster, wr.wr_id, mw, rkey, &wr.bind_mw.bind_info, flags)
            };
        }
        _ => {}
    }
    // SAFETY: guaranteed by the caller.
    let operation = unsafe { operation(wr) }?;
    let flags = options(wr.send_flags, is_all_signaled, takes_receive(&operation));
    // SAFETY: guaranteed by the caller.
    unsafe { with_data(wr, |data| poster.post(wr.wr_id, operation, data, flags)) }
}

/// Posts a datagram.
///
/// # Safety
/// The request, its list and its handle are those of the program.
#[inline]
unsafe fn post_datagram(
    poster: &mut SendPoster<'_>,
    wr: &ibv_send_wr,
    is_all_signaled: bool,
) -> Result<(), Errno> {
    let immediate = match wr.opcode {
        IBV_WR_SEND => None,
        IBV_WR_SEND_WITH_IMM => Some(wr.imm_data.to_ne_bytes()),
        _ => return Err(Errno(libc::EINVAL)),
    };
    // SAFETY: guaranteed by the caller; requests of such a queue pair have this member of the union.
    let message = unsafe {
        let ibv_send_wr_ud { ah, remote_qpn, remote_qkey } = wr.wr.ud;
        (ah::destination(ah, remote_qpn, remote_qkey)?, immediate)
    };
    let flags = options(wr.send_flags, is_all_signaled, true);
    // SAFETY: guaranteed by the caller.
    unsafe { with_data(wr, |data| poster.post_datagram(wr.wr_id, message, data, flags)) }
}

/// Calls `post` with the data of a request.
///
/// # Safety
/// The list of the request is that of the program.
#[inline]
unsafe fn with_data(
    wr: &ibv_send_wr,
    post: impl FnOnce(Data<'_>) -> Result<(), Errno>,
) -> Result<(), Errno> {
    if wr.send_flags & IBV_SEND_INLINE != 0 {
        let count = usize::try_from(wr.num_sge).ok().filter(|count| *count <= SGES_MAX);
        let count = count.ok_or(Errno(libc::EINVAL))?;
        let mut parts = [&[][..]; SGES_MAX];
        for (at, part) in parts[..count].iter_mut().enumerate() {
            // SAFETY: guaranteed by the caller; the program does not change its data before the post returns.
            unsafe {
                let ibv_sge { addr, length, .. } = wr.sg_list.add(at).read_unaligned();
                if length > 0 {
                    *part = std::slice::from_raw_parts(addr as *const u8, length as usize);
                }
            }
        }
        return post(Data::Inline(&parts[..count]));
    }
    // SAFETY: guaranteed by the caller.
    let entries = unsafe { SgeList::of(wr.sg_list, wr.num_sge) }?;
    post(Data::Registered(entries.as_slice()))
}

pub(crate) unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    let next = Cell::new(wr);
    let posted = guard::fast(|| {
        // SAFETY: the program passes pointers to a queue pair, and a list of requests.
        unsafe {
            let state = QpObject::of(qp)?;
            state.qp.post_send(|poster| -> Result<(), Errno> {
                while let Some(wr) = copied(next.get()) {
                    match state.qp.has_datagrams() {
                        true => post_datagram(poster, &wr, state.is_all_signaled)?,
                        false => post_one(poster, &wr, state.is_all_signaled)?,
                    }
                    next.set(wr.next);
                }
                Ok(())
            })?;
        }
        Ok(0)
    });
    answer(posted, next.get(), bad)
}

pub(crate) unsafe extern "C" fn post_recv(
    qp: *mut ibv_qp,
    wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    let next = Cell::new(wr);
    let posted = guard::fast(|| {
        // SAFETY: the program passes pointers to a queue pair, and a list of requests.
        unsafe {
            let state = QpObject::of(qp)?;
            state.qp.post_receives(|poster| -> Result<(), Errno> {
                while let Some(wr) = copied(next.get()) {
                    let entries = SgeList::of(wr.sg_list, wr.num_sge)?;
                    poster.post(wr.wr_id, entries.as_slice())?;
                    next.set(wr.next);
                }
                Ok(())
            })?;
        }
        Ok(0)
    });
    answer(posted, next.get(), bad)
}

/// Binds a window of type 1.
pub(crate) unsafe extern "C" fn bind_mw(
    qp: *mut ibv_qp,
    mw: *mut ibv_mw,
    bind: *mut ibv_mw_bind,
) -> c_int {
    // SAFETY: the program passes pointers to a queue pair, a window and a bind.
    guard::status(|| unsafe {
        let (state, bind) = (QpObject::of(qp)?, copied(bind).ok_or(Errno(libc::EINVAL))?);
        if mw::MwObject::of(mw)?.kind() != WindowType::One {
            return Err(Errno(libc::EINVAL));
        }
        if bind.bind_info.mr.is_null() {
            return Err(Errno(libc::EINVAL));
        }
        let flags = options(bind.send_flags, state.is_all_signaled, false);
        state
            .qp
            .post_send(|poster| mw::post_bind(poster, bind.wr_id, mw, None, &bind.bind_info, flags))
    })
}
