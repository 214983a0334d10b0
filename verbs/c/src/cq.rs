//! C interface of completion queues: pointers, `ibv_wc`, errno.

use std::{
    ffi::{c_int, c_uint, c_void},
    mem::MaybeUninit,
    os::fd::AsRawFd,
    ptr, slice,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use flue_verbs_abi::{
    attributes::ibv_poll_cq_attr,
    enums::{
        IBV_CQ_INIT_ATTR_MASK_FLAGS, IBV_WC_EX_WITH_BYTE_LEN, IBV_WC_EX_WITH_DLID_PATH_BITS,
        IBV_WC_EX_WITH_IMM, IBV_WC_EX_WITH_QP_NUM, IBV_WC_EX_WITH_SL, IBV_WC_EX_WITH_SLID,
        IBV_WC_EX_WITH_SRC_QP, ibv_wc_opcode, ibv_wc_status,
    },
    objects::{ibv_comp_channel, ibv_context, ibv_cq, ibv_cq_ex, ibv_cq_init_attr_ex, ibv_wc},
};
use flue_verbs_core::{
    async_event::{AsyncEvent, AsyncEventKind, AsyncEvents, end_events},
    completion,
    cq::{CompletionChannel, Cq},
    event_queue::Acknowledgments,
};
use rdma_over_tcp::rnic::Completion;

use crate::{
    config, context, event_queue,
    guard::{self, Errno},
    inherit,
    object::Object,
};

type CompChannelObject = Object<ibv_comp_channel, Arc<CompletionChannel>>;

/// Private part of a queue.
pub(crate) struct CqFields {
    pub(crate) cq: Arc<Cq>,
    /// Entry polled last, for a queue that is read entry by entry.
    current: Mutex<Option<Completion>>,
    events: Arc<AsyncEvents>,
    acknowledgments: Arc<Acknowledgments>,
}

pub(crate) type CqObject = Object<ibv_cq_ex, CqFields>;

/// Creates a channel.
pub(crate) fn make_channel(context: *mut ibv_context) -> Result<*mut ibv_comp_channel, Errno> {
    let channel = CompletionChannel::new()?;
    let fd = channel.events().descriptor().as_raw_fd();
    Ok(CompChannelObject::make(ibv_comp_channel { context, fd, refcnt: 0 }, channel).cast())
}

/// Destroys a channel, unless queues use it.
///
/// # Safety
/// The pointer is null or refers to a channel that is no longer used.
pub(crate) unsafe fn remove_channel(channel: *mut ibv_comp_channel) -> Result<(), Errno> {
    // SAFETY: guaranteed by the caller.
    unsafe {
        if CompChannelObject::of(channel)?.is_used() {
            return Err(Errno(libc::EBUSY));
        }
        CompChannelObject::remove(channel);
    }
    Ok(())
}

pub(crate) extern "C" fn ibv_create_comp_channel(
    context: *mut ibv_context,
) -> *mut ibv_comp_channel {
    guard::pointer(|| make_channel(context))
}

pub(crate) unsafe extern "C" fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int {
    // SAFETY: the program passes a pointer to a channel, which it no longer uses.
    guard::status(|| unsafe { remove_channel(channel) })
}

/// Creates a queue. `context` and `channel` are pointers of the program.
pub(crate) unsafe fn create(
    context: *mut ibv_context,
    entries: u32,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
) -> Result<*mut ibv_cq_ex, Errno> {
    // SAFETY: the program passes pointers to an open device, and to a channel or null.
    let (events, on) = unsafe {
        let on = match channel.is_null() {
            true => None,
            false => Some(CompChannelObject::of(channel)?.clone()),
        };
        (context::events_of_new(context)?, on)
    };
    let device = config::device()?;
    on.as_ref().map_or(Ok(()), |on| inherit::take_queue(on.events()))?;
    let acknowledgments = Arc::<Acknowledgments>::default();
    let (async_events, of) = (events.clone(), acknowledgments.clone());
    let overrun = Box::new(move |name, is_destroyed: &AtomicBool| {
        let event = AsyncEvent { kind: AsyncEventKind::CqError, name, acknowledgments: of.clone() };
        async_events.push_unless(event, || is_destroyed.load(Ordering::Relaxed));
    });
    let (cq, depth) = Cq::new(device, entries, on, overrun)?;
    let mut seen = ibv_cq_ex::zeroed();
    seen.context = context;
    seen.channel = channel;
    seen.cq_context = cq_context;
    seen.cqe = c_int::try_from(depth).unwrap_or(c_int::MAX);
    let state = CqFields { cq: Arc::new(cq), current: Mutex::default(), events, acknowledgments };
    let object = CqObject::make(seen, state);
    // SAFETY: it was created above.
    unsafe { (*object).own.cq.set_name(object as usize) };
    Ok(object.cast())
}

/// Converts a signed count of the program.
fn entries(cqe: c_int) -> Result<u32, Errno> {
    u32::try_from(cqe).map_err(|_| Errno(libc::EINVAL))
}

pub(crate) unsafe extern "C" fn ibv_create_cq(
    context: *mut ibv_context,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    comp_vector: c_int,
) -> *mut ibv_cq {
    guard::pointer(|| {
        check_vector(context, comp_vector.into())?;
        // SAFETY: guaranteed by the program.
        Ok(unsafe { create(context, entries(cqe)?, cq_context, channel) }?.cast())
    })
}

fn check_vector(context: *mut ibv_context, vector: i64) -> Result<(), Errno> {
    if context.is_null() {
        return Err(Errno(libc::EINVAL));
    }
    // SAFETY: the program passes a pointer to an open device.
    let vectors = unsafe { (*context).num_comp_vectors };
    if (0..i64::from(vectors)).contains(&vector) { Ok(()) } else { Err(Errno(libc::EINVAL)) }
}

pub(crate) unsafe extern "C" fn ibv_resize_cq(cq: *mut ibv_cq, cqe: c_int) -> c_int {
    guard::status(|| {
        // SAFETY: the program passes a pointer to a queue.
        unsafe {
            let depth = CqObject::of(cq)?.cq.resize(entries(cqe)?)?;
            (*cq).cqe = c_int::try_from(depth).unwrap_or(c_int::MAX);
        }
        Ok(())
    })
}

/// Destroys a queue, unless queue pairs use it.
///
/// # Safety
/// The pointer is null or refers to a queue that is no longer used.
pub(crate) unsafe fn remove(cq: *mut ibv_cq) -> Result<(), Errno> {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let state = CqObject::of(cq)?;
        state.cq.destroy()?;
        end_events(&state.events, &state.acknowledgments);
        CqObject::remove(cq);
    }
    Ok(())
}

pub(crate) unsafe extern "C" fn ibv_destroy_cq(cq: *mut ibv_cq) -> c_int {
    // SAFETY: the program passes a pointer to a queue, which it no longer uses.
    guard::status(|| unsafe { remove(cq) })
}

/// Returns the acknowledgments for which the destruction of a queue waits.
///
/// # Safety
/// The pointer is null or refers to a queue.
pub(crate) unsafe fn async_acknowledgments<'a>(
    cq: *mut ibv_cq,
) -> Option<&'a Arc<Acknowledgments>> {
    // SAFETY: guaranteed by the caller.
    unsafe { CqObject::of(cq) }.ok().map(|state| &state.acknowledgments)
}

/// `pthread_cancel` may end it while it blocks: no value with `Drop` is live across its read.
pub(crate) unsafe extern "C-unwind" fn ibv_get_cq_event(
    channel: *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
    cq_context: *mut *mut c_void,
) -> c_int {
    if channel.is_null() {
        guard::set_errno(Errno(libc::EINVAL));
        return -1;
    }
    // SAFETY: the program passes a pointer to a channel.
    let own = guard::event(|| unsafe {
        let events = CompChannelObject::of(channel)?.events();
        events.check()?;
        events.check_descriptor().map(|()| 0)
    });
    if own != 0 {
        return -1;
    }
    // SAFETY: as above.
    let descriptor = unsafe { (*channel).fd };
    loop {
        if !event_queue::unit(descriptor) {
            let is_blocking = || {
                // SAFETY: as above.
                let object = unsafe { CompChannelObject::of(channel) };
                object.is_ok_and(|channel| channel.events().is_blocking())
            };
            if !event_queue::was_withdrawn(is_blocking) {
                return -1;
            }
            continue;
        }
        let taken = guard::event(|| {
            // SAFETY: as above; the program passes writable memory for the results, and the queue stays until it has
            // acknowledged the event.
            unsafe {
                let Some(name) = CompChannelObject::of(channel)?.take()? else { return Ok(0) };
                let found = name as *mut ibv_cq;
                cq.write_unaligned(found);
                cq_context.write_unaligned((*found).cq_context);
            }
            Ok(1)
        });
        match taken {
            0 => {}
            1 => return 0,
            _ => return -1,
        }
    }
}

pub(crate) unsafe extern "C" fn ibv_ack_cq_events(cq: *mut ibv_cq, events: c_uint) {
    guard::nothing(|| {
        // SAFETY: the program passes a pointer to a queue.
        unsafe {
            let Ok(state) = CqObject::of(cq) else { return };
            (*cq).comp_events_completed = (*cq).comp_events_completed.wrapping_add(events);
            state.cq.acknowledge(events);
        }
    });
}

/// Slot for a completion in the program's array, at any address and possibly uninitialized.
#[repr(C, packed)]
struct WcSlot(MaybeUninit<ibv_wc>);

impl From<Completion> for WcSlot {
    #[inline]
    fn from(completion: Completion) -> Self {
        let (imm_data, wc_flags) = completion::arrival(&completion);
        Self(MaybeUninit::new(ibv_wc {
            wr_id: completion.context,
            status: ibv_wc_status(completion::status(&completion)),
            opcode: ibv_wc_opcode(completion::opcode(&completion)),
            vendor_err: completion.error_code(),
            byte_len: completion.bytes,
            imm_data,
            qp_num: completion::qp_number(&completion),
            src_qp: completion::source(&completion),
            wc_flags,
            pkey_index: 0,
            slid: 0,
            sl: completion::service_level(&completion),
            dlid_path_bits: 0,
        }))
    }
}

pub(crate) unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, count: c_int, wc: *mut ibv_wc) -> c_int {
    let polled = guard::fast(|| {
        let count = usize::try_from(count).map_err(|_| Errno(libc::EINVAL))?;
        if count == 0 {
            return Ok(0);
        }
        // SAFETY: the program passes pointers to a queue, and an array of this many entries.
        let (state, slots) =
            unsafe { (CqObject::of(cq)?, slice::from_raw_parts_mut(wc.cast::<WcSlot>(), count)) };
        Ok(state.cq.poll(slots)? as c_int)
    });
    polled.unwrap_or_else(|error| -error.0)
}

pub(crate) unsafe extern "C" fn req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    guard::status(|| {
        // SAFETY: the program passes a pointer to a queue.
        let state = unsafe { CqObject::of(cq) }?;
        state.cq.request_notification(solicited_only != 0)
    })
}

/// Members of an entry that a queue can be read for. Those without a value read as 0.
const READABLE: u64 = (IBV_WC_EX_WITH_BYTE_LEN
    | IBV_WC_EX_WITH_IMM
    | IBV_WC_EX_WITH_QP_NUM
    | IBV_WC_EX_WITH_SRC_QP
    | IBV_WC_EX_WITH_SLID
    | IBV_WC_EX_WITH_SL
    | IBV_WC_EX_WITH_DLID_PATH_BITS) as u64;

pub(crate) unsafe extern "C" fn create_cq_ex(
    context: *mut ibv_context,
    attr: *mut ibv_cq_init_attr_ex,
) -> *mut ibv_cq_ex {
    guard::pointer(|| {
        // SAFETY: the program passes attributes.
        let attr = unsafe { attr.as_ref() }.ok_or(Errno(libc::EINVAL))?;
        if attr.wc_flags & !READABLE != 0 || attr.comp_mask & !IBV_CQ_INIT_ATTR_MASK_FLAGS != 0 {
            return Err(Errno(libc::EOPNOTSUPP));
        }
        check_vector(context, attr.comp_vector.into())?;
        // SAFETY: guaranteed by the program; the queue was created above.
        unsafe {
            let cq = create(context, attr.cqe, attr.cq_context, attr.channel)?;
            (*cq).start_poll = Some(start_poll);
            (*cq).next_poll = Some(next_poll);
            (*cq).end_poll = Some(end_poll);
            (*cq).read_opcode = Some(read_opcode);
            (*cq).read_vendor_err = Some(read_vendor_err);
            (*cq).read_byte_len = Some(read_byte_len);
            (*cq).read_imm_data = Some(read_imm_data);
            (*cq).read_qp_num = Some(read_qp_num);
            (*cq).read_src_qp = Some(read_src_qp);
            (*cq).read_wc_flags = Some(read_wc_flags);
            (*cq).read_slid = Some(read_zero);
            (*cq).read_sl = Some(read_sl);
            (*cq).read_dlid_path_bits = Some(read_zero_octet);
            Ok(cq)
        }
    })
}

unsafe extern "C" fn next_poll(cq: *mut ibv_cq_ex) -> c_int {
    guard::status(|| {
        // SAFETY: the program passes a pointer to a queue.
        let state = unsafe { CqObject::of(cq) }?;
        // One entry, so that the others remain queued when the program stops.
        let mut found = None::<Completion>;
        state.cq.poll(slice::from_mut(&mut found))?;
        let completion = found.ok_or(Errno(libc::ENOENT))?;
        *state.current.lock().unwrap_or_else(PoisonError::into_inner) = found;
        // SAFETY: as above; one thread polls such a queue at a time.
        unsafe {
            (*cq).status = ibv_wc_status(completion::status(&completion));
            (*cq).wr_id = completion.context;
        }
        Ok(())
    })
}

unsafe extern "C" fn start_poll(cq: *mut ibv_cq_ex, attr: *mut ibv_poll_cq_attr) -> c_int {
    // SAFETY: the program passes attributes or null.
    if unsafe { attr.as_ref() }.is_some_and(|attr| attr.comp_mask != 0) {
        return libc::EINVAL;
    }
    // SAFETY: guaranteed by the program.
    unsafe { next_poll(cq) }
}

unsafe extern "C" fn end_poll(_cq: *mut ibv_cq_ex) {}

fn current<R>(cq: *mut ibv_cq_ex, read: impl FnOnce(&Completion) -> R, none: R) -> R {
    // SAFETY: the program passes a pointer to a queue.
    let Ok(state) = (unsafe { CqObject::of(cq) }) else { return none };
    state.current.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map_or(none, read)
}

unsafe extern "C" fn read_opcode(cq: *mut ibv_cq_ex) -> ibv_wc_opcode {
    current(cq, |entry| ibv_wc_opcode(completion::opcode(entry)), ibv_wc_opcode(0))
}

unsafe extern "C" fn read_vendor_err(cq: *mut ibv_cq_ex) -> u32 {
    current(cq, Completion::error_code, 0)
}

unsafe extern "C" fn read_byte_len(cq: *mut ibv_cq_ex) -> u32 {
    current(cq, |entry| entry.bytes, 0)
}

unsafe extern "C" fn read_imm_data(cq: *mut ibv_cq_ex) -> u32 {
    current(cq, |entry| completion::arrival(entry).0, 0)
}

unsafe extern "C" fn read_qp_num(cq: *mut ibv_cq_ex) -> u32 {
    current(cq, completion::qp_number, 0)
}

unsafe extern "C" fn read_src_qp(cq: *mut ibv_cq_ex) -> u32 {
    current(cq, completion::source, 0)
}

unsafe extern "C" fn read_sl(cq: *mut ibv_cq_ex) -> u8 {
    current(cq, completion::service_level, 0)
}

unsafe extern "C" fn read_wc_flags(cq: *mut ibv_cq_ex) -> c_uint {
    current(cq, |entry| completion::arrival(entry).1, 0)
}

unsafe extern "C" fn read_zero(_cq: *mut ibv_cq_ex) -> u32 {
    0
}

unsafe extern "C" fn read_zero_octet(_cq: *mut ibv_cq_ex) -> u8 {
    0
}

/// Returns the queue of the program's pointer.
///
/// # Safety
/// The pointer is null or refers to a queue.
pub(crate) unsafe fn of(cq: *mut ibv_cq) -> Result<Arc<Cq>, Errno> {
    if ptr::eq(cq, ptr::null()) {
        return Err(Errno(libc::EINVAL));
    }
    // SAFETY: guaranteed by the caller.
    Ok(unsafe { CqObject::of(cq) }?.cq.clone())
}
