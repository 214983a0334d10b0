//! C interface of shared receive queues: pointers, errno.

use std::{
    cell::Cell,
    ffi::c_int,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use flue_verbs_abi::{
    attributes::ibv_srq_attr,
    enums::{
        IBV_SRQ_INIT_ATTR_PD, IBV_SRQ_INIT_ATTR_TYPE, IBV_SRQ_LIMIT, IBV_SRQ_MAX_WR, IBV_SRQT_BASIC,
    },
    objects::{ibv_context, ibv_pd, ibv_recv_wr, ibv_srq, ibv_srq_init_attr, ibv_srq_init_attr_ex},
};
use flue_verbs_core::{
    async_event::{AsyncEvent, AsyncEventKind, AsyncEvents, end_events},
    event_queue::Acknowledgments,
    srq::Srq,
};

use crate::{
    context,
    guard::{self, Errno, copied},
    object::Object,
    pd::PdObject,
    request::{self, SgeList},
};

/// Private part of a queue.
struct SrqFields {
    srq: Arc<Srq>,
    events: Arc<AsyncEvents>,
    acknowledgments: Arc<Acknowledgments>,
}

type SrqObject = Object<ibv_srq, SrqFields>;

/// Creates a queue, and writes back its actual attributes.
///
/// # Safety
/// Pointers are null or those of the program.
pub(crate) unsafe fn create(
    pd: *mut ibv_pd,
    attr: *mut ibv_srq_init_attr,
) -> Result<*mut ibv_srq, Errno> {
    // SAFETY: guaranteed by the caller.
    let (domain, attr, context, events) = unsafe {
        let (domain, attr) = (PdObject::of(pd)?, copied(attr).ok_or(Errno(libc::EINVAL))?);
        (domain, attr, (*pd).context, context::events_of_new((*pd).context)?)
    };
    let acknowledgments = Arc::<Acknowledgments>::default();
    let name = Arc::new(AtomicUsize::new(0));
    let (async_events, of, named) = (events.clone(), acknowledgments.clone(), name.clone());
    let reached = Box::new(move |is_destroyed: &AtomicBool| {
        let (kind, name) = (AsyncEventKind::SrqLimitReached, named.load(Ordering::Relaxed));
        let event = AsyncEvent { kind, name, acknowledgments: of.clone() };
        async_events.push_unless(event, || is_destroyed.load(Ordering::Relaxed));
    });
    let srq = Srq::new(domain, attr.attr.max_wr, attr.attr.max_sge, reached)?;
    let mut seen = ibv_srq::zeroed();
    seen.context = context;
    seen.srq_context = attr.srq_context;
    seen.pd = pd;
    seen.handle = srq.number();
    let object = SrqObject::make(seen, SrqFields { srq, events, acknowledgments });
    name.store(object as usize, Ordering::Relaxed);
    Ok(object.cast())
}

/// Returns the queue of the program's pointer.
///
/// # Safety
/// The pointer is null or refers to a queue.
pub(crate) unsafe fn of(srq: *mut ibv_srq) -> Result<Arc<Srq>, Errno> {
    // SAFETY: guaranteed by the caller.
    Ok(unsafe { SrqObject::of(srq) }?.srq.clone())
}

/// Returns the acknowledgments for which the destruction of a queue waits.
///
/// # Safety
/// The pointer is null or refers to a queue.
pub(crate) unsafe fn async_acknowledgments<'a>(
    srq: *mut ibv_srq,
) -> Option<&'a Arc<Acknowledgments>> {
    // SAFETY: guaranteed by the caller.
    unsafe { SrqObject::of(srq) }.ok().map(|state| &state.acknowledgments)
}

/// Destroys a queue, unless queue pairs use it.
///
/// # Safety
/// The pointer is null or refers to a queue that is no longer used.
pub(crate) unsafe fn remove(srq: *mut ibv_srq) -> Result<(), Errno> {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let state = SrqObject::of(srq)?;
        state.srq.destroy()?;
        end_events(&state.events, &state.acknowledgments);
        SrqObject::remove(srq);
    }
    Ok(())
}

pub(crate) unsafe extern "C" fn ibv_create_srq(
    pd: *mut ibv_pd,
    attr: *mut ibv_srq_init_attr,
) -> *mut ibv_srq {
    // SAFETY: guaranteed by the program.
    guard::pointer(|| unsafe { create(pd, attr) })
}

/// As [`create`], with the attributes of the extended call: basic queues only.
///
/// # Safety
/// As [`create`].
pub(crate) unsafe fn create_extended(
    attr: *mut ibv_srq_init_attr_ex,
) -> Result<*mut ibv_srq, Errno> {
    // SAFETY: guaranteed by the caller.
    let attr = unsafe { attr.as_mut() }.ok_or(Errno(libc::EINVAL))?;
    let is_basic = attr.comp_mask & IBV_SRQ_INIT_ATTR_TYPE == 0 || attr.srq_type == IBV_SRQT_BASIC;
    if !is_basic || attr.comp_mask & !(IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD) != 0 {
        return Err(Errno(libc::EOPNOTSUPP));
    }
    if attr.comp_mask & IBV_SRQ_INIT_ATTR_PD == 0 {
        return Err(Errno(libc::EINVAL));
    }
    let mut plain = ibv_srq_init_attr { srq_context: attr.srq_context, attr: attr.attr };
    // SAFETY: guaranteed by the caller.
    unsafe { create(attr.pd, &raw mut plain) }
}

pub(crate) unsafe extern "C" fn create_srq_ex(
    _context: *mut ibv_context,
    attr: *mut ibv_srq_init_attr_ex,
) -> *mut ibv_srq {
    // SAFETY: guaranteed by the program.
    guard::pointer(|| unsafe { create_extended(attr) })
}

pub(crate) unsafe extern "C" fn get_srq_num(srq: *mut ibv_srq, number: *mut u32) -> c_int {
    // SAFETY: the program passes pointers to a queue, and a place for the number.
    guard::status(|| unsafe {
        number.write_unaligned(SrqObject::of(srq)?.srq.number());
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn ibv_modify_srq(
    srq: *mut ibv_srq,
    attr: *mut ibv_srq_attr,
    mask: c_int,
) -> c_int {
    // SAFETY: the program passes pointers to a queue, and attributes.
    guard::status(|| unsafe {
        let (state, attr) = (SrqObject::of(srq)?, copied(attr).ok_or(Errno(libc::EINVAL))?);
        let mask = mask as u32;
        if mask & !(IBV_SRQ_MAX_WR | IBV_SRQ_LIMIT) != 0 {
            return Err(Errno(libc::EINVAL));
        }
        let depth = (mask & IBV_SRQ_MAX_WR != 0).then_some(attr.max_wr);
        let limit = (mask & IBV_SRQ_LIMIT != 0).then_some(attr.srq_limit);
        state.srq.modify(depth, limit)
    })
}

pub(crate) unsafe extern "C" fn ibv_query_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr) -> c_int {
    // SAFETY: the program passes pointers to a queue, and a place for the answer.
    guard::status(|| unsafe {
        let found = SrqObject::of(srq)?.srq.attributes()?;
        attr.write_unaligned(ibv_srq_attr {
            max_wr: found.depth,
            max_sge: found.max_receive_request_sge,
            srq_limit: found.limit,
        });
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn ibv_destroy_srq(srq: *mut ibv_srq) -> c_int {
    // SAFETY: the program passes a pointer to a queue, which it no longer uses.
    guard::status(|| unsafe { remove(srq) })
}

pub(crate) unsafe extern "C" fn post_srq_recv(
    srq: *mut ibv_srq,
    wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    let next = Cell::new(wr);
    // SAFETY: the program passes pointers to a queue, and a list of requests.
    let posted = guard::fast(|| unsafe {
        SrqObject::of(srq)?.srq.post_receives(|poster| -> Result<(), Errno> {
            while let Some(wr) = copied(next.get()) {
                let entries = SgeList::of(wr.sg_list, wr.num_sge)?;
                poster.post(wr.wr_id, entries.as_slice())?;
                next.set(wr.next);
            }
            Ok(())
        })?;
        Ok(0)
    });
    request::answer(posted, next.get(), bad)
}
