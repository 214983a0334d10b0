//! Connection management: identifiers and their events.
//!
//! A synchronous identifier, one that was made without a channel, has a channel of its own, and its calls wait for their
//! event there. They, and the reader of events, can be cancelled while they wait.

use std::{
    ffi::{c_int, c_void},
    os::fd::AsRawFd,
    ptr,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use flue_verbs_abi::{
    attributes::{ibv_ece, ibv_qp_attr},
    cm::{
        RAI_PASSIVE, RDMA_CM_EVENT_CONNECT_REQUEST, RDMA_CM_EVENT_REJECTED, RDMA_MAX_INIT_DEPTH,
        RDMA_MAX_RESP_RES, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, RDMA_OPTION_ID_AFONLY,
        RDMA_OPTION_ID_REUSEADDR, RDMA_OPTION_ID_TOS, RDMA_PS_TCP, ibv_sa_path_rec, rdma_addr,
        rdma_addrinfo, rdma_cm_event, rdma_cm_event_type, rdma_cm_id, rdma_cm_join_mc_attr_ex,
        rdma_conn_param, rdma_event_channel, rdma_port_space,
    },
    enums::{
        IBV_QP_ACCESS_FLAGS, IBV_QP_INIT_ATTR_PD, IBV_QP_STATE, IBV_QPT_RC, IBV_SRQ_INIT_ATTR_PD,
        ibv_event_type, ibv_qp_type,
    },
    objects::{
        ibv_context, ibv_pd, ibv_qp_init_attr, ibv_qp_init_attr_ex, ibv_srq_init_attr,
        ibv_srq_init_attr_ex,
    },
};
use flue_verbs_core::{
    cm::{ConnectParameters, Event, EventChannel, EventKind, Id, PortSpace},
    engine::Engine,
    qp::{Qp, State},
};
use libc::{sockaddr, sockaddr_storage};

use crate::{
    address, config, context, cq,
    guard::{self, Errno},
    memory,
    object::Object,
    qp, read, srq,
};

pub(crate) type ChannelObject = Object<rdma_event_channel, Arc<EventChannel>>;
type EventObject = Object<rdma_cm_event, Event>;

/// What `rdma_create_ep` keeps for the connections of a listener.
#[derive(Clone, Copy)]
struct Endpoint {
    pd: *mut ibv_pd,
    attr: ibv_qp_init_attr,
}

// SAFETY: the pointers are the program's and only handed on.
unsafe impl Send for Endpoint {}

/// Our part of an identifier.
struct IdState {
    id: Arc<Id>,
    /// Calls wait for their event; the channel is the identifier's own.
    is_synchronous: AtomicBool,
    endpoint: Mutex<Option<Endpoint>>,
}

type IdObject = Object<rdma_cm_id, IdState>;

/// Milliseconds in which an address is to be resolved, as `rdma_create_ep` has it.
const RESOLVE_MS: c_int = 2000;

fn make_channel() -> Result<*mut rdma_event_channel, Errno> {
    let channel = EventChannel::new()?;
    let fd = channel.events().descriptor().as_raw_fd();
    Ok(ChannelObject::make(rdma_event_channel { fd }, channel).cast())
}

#[unsafe(no_mangle)]
extern "C" fn rdma_create_event_channel() -> *mut rdma_event_channel {
    guard::pointer(make_channel)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_destroy_event_channel(channel: *mut rdma_event_channel) {
    guard::nothing(|| {
        if !channel.is_null() {
            // SAFETY: the program's pointer is one of a channel, which it does not use any more.
            unsafe { ChannelObject::remove(channel) };
        }
    });
}

/// Makes the object of an identifier.
fn make_id(
    id: Arc<Id>,
    channel: *mut rdma_event_channel,
    context: *mut c_void,
    ps: rdma_port_space,
    qp_type: ibv_qp_type,
    is_synchronous: bool,
) -> *mut rdma_cm_id {
    let mut seen = rdma_cm_id::zeroed();
    seen.channel = channel;
    seen.context = context;
    seen.ps = ps;
    seen.qp_type = qp_type;
    let named = id.clone();
    let is_synchronous = AtomicBool::new(is_synchronous);
    let object = IdObject::make(seen, IdState { id, is_synchronous, endpoint: Mutex::new(None) });
    named.set_name(object as usize);
    object.cast()
}

unsafe fn create(
    channel: *mut rdma_event_channel,
    context: *mut c_void,
    ps: rdma_port_space,
) -> Result<*mut rdma_cm_id, Errno> {
    let engine = config::engine()?;
    let space = if ps == RDMA_PS_TCP { PortSpace::Tcp } else { PortSpace::Other };
    let is_synchronous = channel.is_null();
    let channel = if is_synchronous { make_channel()? } else { channel };
    // SAFETY: the program's pointer is one of a channel; or it was made just now.
    let events = unsafe { ChannelObject::of(channel) }?.clone();
    let id = Id::new(engine, space, events)?;
    Ok(make_id(id, channel, context, ps, IBV_QPT_RC, is_synchronous))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_create_id(
    channel: *mut rdma_event_channel,
    id: *mut *mut rdma_cm_id,
    context: *mut c_void,
    ps: rdma_port_space,
) -> c_int {
    // SAFETY: as the program says.
    guard::done(|| unsafe {
        id.write(create(channel, context, ps)?);
        Ok(())
    })
}

/// The identifier behind the program's pointer.
unsafe fn of<'a>(id: *mut rdma_cm_id) -> Result<&'a IdState, Errno> {
    // SAFETY: the program's pointer is one of an identifier.
    unsafe { IdObject::of(id) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_destroy_id(id: *mut rdma_cm_id) -> c_int {
    guard::done(|| {
        // SAFETY: the program's pointer is one of an identifier, which it does not use any more.
        unsafe {
            let state = of(id)?;
            acknowledge_own(id)?;
            state.id.destroy()?;
            if state.is_synchronous.load(Ordering::Relaxed) {
                ChannelObject::remove((*id).channel);
            }
            IdObject::remove(id);
        }
        Ok(())
    })
}

/// Acknowledges the event that the last call of a synchronous identifier has left.
unsafe fn acknowledge_own(id: *mut rdma_cm_id) -> Result<(), Errno> {
    // SAFETY: the program's pointer is one of an identifier.
    unsafe {
        let event = ptr::replace(&raw mut (*id).event, ptr::null_mut());
        if !event.is_null() {
            acknowledge(event)?;
        }
    }
    Ok(())
}

/// Domains that identifiers have when the program names none: one for each adapter of this process.
static DOMAINS: Mutex<Vec<(usize, usize)>> = Mutex::new(Vec::new());

fn default_pd(engine: &'static Engine) -> Result<*mut ibv_pd, Errno> {
    let mut domains = DOMAINS.lock().unwrap_or_else(PoisonError::into_inner);
    let key = ptr::from_ref(engine) as usize;
    if let Some((_, pd)) = domains.iter().find(|(of, _)| *of == key) {
        return Ok(*pd as *mut ibv_pd);
    }
    let pd = memory::make_pd(context::of_identifiers()?, engine)?;
    domains.push((key, pd as usize));
    Ok(pd)
}

/// Tells the program the addresses of an identifier, and the device if there is one.
unsafe fn show(id: *mut rdma_cm_id) -> Result<(), Errno> {
    // SAFETY: the program's pointer is one of an identifier, whose addresses it does not read meanwhile.
    unsafe {
        let state = of(id)?;
        let (local, remote) = state.id.addresses();
        let rdma_addr { src_storage, dst_storage, .. } = &mut (*id).route.addr;
        for (found, place) in [(local, src_storage), (remote, dst_storage)] {
            if let Some(found) = found {
                *place = address::storage(found);
            }
        }
        if (*id).verbs.is_null() && state.id.has_device() {
            (*id).verbs = context::of_identifiers()?;
            (*id).port_num = 1;
            if (*id).pd.is_null() {
                (*id).pd = default_pd(state.id.engine())?;
            }
        }
    }
    Ok(())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_bind_addr(id: *mut rdma_cm_id, addr: *mut sockaddr) -> c_int {
    // SAFETY: as the program says.
    guard::done(|| unsafe {
        of(id)?.id.bind(address::read(addr)?)?;
        show(id)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn rdma_resolve_addr(
    id: *mut rdma_cm_id,
    src: *mut sockaddr,
    dst: *mut sockaddr,
    _timeout_ms: c_int,
) -> c_int {
    // SAFETY: as the program says.
    let begun = guard::done(|| unsafe {
        let source = if src.is_null() { None } else { Some(address::read(src)?) };
        of(id)?.id.resolve_address(source, address::read(dst)?)?;
        show(id)
    });
    // SAFETY: as the program says.
    unsafe { complete(id, begun) }
}

/// A path record, which means nothing here.
static PATH: ibv_sa_path_rec = ibv_sa_path_rec::zeroed();

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn rdma_resolve_route(id: *mut rdma_cm_id, _timeout_ms: c_int) -> c_int {
    // SAFETY: as the program says.
    let begun = guard::done(|| unsafe {
        of(id)?.id.resolve_route()?;
        (*id).route.num_paths = 1;
        (*id).route.path_rec = (&raw const PATH).cast_mut();
        Ok(())
    });
    // SAFETY: as the program says.
    unsafe { complete(id, begun) }
}

/// A completion queue and its channel for an identifier whose program has named none.
unsafe fn make_cq(
    id: *mut rdma_cm_id,
    entries: u32,
) -> Result<
    (*mut flue_verbs_abi::objects::ibv_comp_channel, *mut flue_verbs_abi::objects::ibv_cq),
    Errno,
> {
    // SAFETY: as the caller says; the channel was made just now.
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

/// Ends the completion queues that [`make_cq`] has made.
unsafe fn destroy_cqs(id: *mut rdma_cm_id) {
    // SAFETY: the program's pointer is one of an identifier.
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

/// Makes the queue pair of an identifier.
unsafe fn create_qp(id: *mut rdma_cm_id, attr: &mut ibv_qp_init_attr_ex) -> Result<(), Errno> {
    // SAFETY: the program's pointers are one of an identifier, and of what the attributes name.
    unsafe {
        of(id)?;
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
            qp::create_extended(attr)
        })();
        match made {
            Ok(made) => {
                (*id).qp = made;
                (*id).pd = attr.pd;
                Ok(())
            }
            Err(error) => {
                destroy_cqs(id);
                Err(error)
            }
        }
    }
}

/// As [`create_qp`], with the attributes of the plain call, which get the capabilities and queues that there are.
unsafe fn create_plain_qp(
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
    // SAFETY: as the caller says.
    unsafe { create_qp(id, &mut extended) }?;
    attr.send_cq = extended.send_cq;
    attr.recv_cq = extended.recv_cq;
    attr.cap = extended.cap;
    Ok(())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_create_qp(
    id: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    attr: *mut ibv_qp_init_attr,
) -> c_int {
    // SAFETY: as the program says.
    guard::done(|| unsafe { create_plain_qp(id, pd, attr.as_mut().ok_or(Errno(libc::EINVAL))?) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_create_qp_ex(
    id: *mut rdma_cm_id,
    attr: *mut ibv_qp_init_attr_ex,
) -> c_int {
    // SAFETY: as the program says.
    guard::done(|| unsafe { create_qp(id, attr.as_mut().ok_or(Errno(libc::EINVAL))?) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_destroy_qp(id: *mut rdma_cm_id) {
    guard::nothing(|| {
        // SAFETY: the program's pointer is one of an identifier.
        unsafe {
            let made = ptr::replace(&raw mut (*id).qp, ptr::null_mut());
            if !made.is_null() {
                let _ = qp::remove(made);
            }
            destroy_cqs(id);
        }
    });
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_create_srq(
    id: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    attr: *mut ibv_srq_init_attr,
) -> c_int {
    // SAFETY: as the program says.
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

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_create_srq_ex(
    id: *mut rdma_cm_id,
    attr: *mut ibv_srq_init_attr_ex,
) -> c_int {
    // SAFETY: as the program says.
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

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_destroy_srq(id: *mut rdma_cm_id) {
    guard::nothing(|| {
        // SAFETY: the program's pointer is one of an identifier.
        unsafe {
            let made = ptr::replace(&raw mut (*id).srq, ptr::null_mut());
            if !made.is_null() {
                let _ = srq::remove(made);
            }
        }
    });
}

/// What the program asks of a connection.
unsafe fn parameters(param: *const rdma_conn_param) -> ConnectParameters {
    // SAFETY: the program gives null or parameters, whose data are as long as they say.
    unsafe {
        let Some(param) = param.as_ref() else { return ConnectParameters::default() };
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
        }
    }
}

/// The queue pair of a connection: the identifier's, or one of the program's own that the parameters number.
unsafe fn qp_of(
    id: *mut rdma_cm_id,
    engine: &'static Engine,
    param: *const rdma_conn_param,
) -> Result<Arc<Qp>, Errno> {
    // SAFETY: the program's pointers are one of an identifier, and null or parameters.
    unsafe {
        if !(*id).qp.is_null() {
            return Ok(qp::of((*id).qp)?.clone());
        }
        let number = param.as_ref().map(|param| param.qp_num);
        number.and_then(|number| engine.qp(number)).ok_or(Errno(libc::EINVAL))
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn rdma_connect(
    id: *mut rdma_cm_id,
    param: *mut rdma_conn_param,
) -> c_int {
    // SAFETY: as the program says.
    let begun = guard::done(|| unsafe {
        let state = of(id)?;
        let qp = qp_of(id, state.id.engine(), param)?;
        Ok(state.id.connect(&qp, &parameters(param))?)
    });
    // SAFETY: as the program says.
    unsafe { complete(id, begun) }
}

/// Of iWARP a connection needs no second step; it is one of a program whose queue pair is its own.
#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_establish(id: *mut rdma_cm_id) -> c_int {
    // SAFETY: the program's pointer is one of an identifier.
    guard::done(|| unsafe {
        of(id)?;
        if (*id).qp.is_null() { Ok(()) } else { Err(Errno(libc::EINVAL)) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_listen(id: *mut rdma_cm_id, backlog: c_int) -> c_int {
    // SAFETY: the program's pointer is one of an identifier.
    guard::done(|| unsafe {
        of(id)?.id.listen(backlog)?;
        show(id)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn rdma_get_request(
    listen: *mut rdma_cm_id,
    id: *mut *mut rdma_cm_id,
) -> c_int {
    // SAFETY: as the program says.
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
    // SAFETY: as the program says.
    if unsafe { rdma_get_cm_event((*listen).channel, &raw mut event) } != 0 {
        return -1;
    }
    // SAFETY: the event was made just now.
    guard::done(|| unsafe {
        let child = (*event).id;
        let taken = (|| {
            if (*event).status != 0 {
                return Err(Errno(-(*event).status));
            }
            if (*event).event != RDMA_CM_EVENT_CONNECT_REQUEST {
                return Err(Errno(libc::EINVAL));
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
        id.write(child);
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn rdma_accept(id: *mut rdma_cm_id, param: *mut rdma_conn_param) -> c_int {
    // SAFETY: as the program says.
    let begun = guard::done(|| unsafe {
        let state = of(id)?;
        let qp = qp_of(id, state.id.engine(), param)?;
        Ok(state.id.accept(&qp, &parameters(param))?)
    });
    // SAFETY: as the program says.
    unsafe { complete(id, begun) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_reject(id: *mut rdma_cm_id, data: *const c_void, length: u8) -> c_int {
    // SAFETY: as the program says.
    guard::done(|| unsafe {
        let data = match data.is_null() {
            true => &[][..],
            false => std::slice::from_raw_parts(data.cast(), length.into()),
        };
        Ok(of(id)?.id.reject(data)?)
    })
}

#[unsafe(no_mangle)]
extern "C" fn rdma_reject_ece(_id: *mut rdma_cm_id, _data: *const c_void, _length: u8) -> c_int {
    guard::done(|| Err(Errno(libc::EOPNOTSUPP)))
}

/// What a program may tell of its queue pair is known.
#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_notify(id: *mut rdma_cm_id, _event: ibv_event_type) -> c_int {
    // SAFETY: the program's pointer is one of an identifier.
    guard::done(|| unsafe { of(id) }.map(|_| ()))
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn rdma_disconnect(id: *mut rdma_cm_id) -> c_int {
    // SAFETY: the program's pointer is one of an identifier.
    let begun = guard::done(|| unsafe { Ok(of(id)?.id.disconnect()?) });
    // SAFETY: as the program says.
    unsafe { complete(id, begun) }
}

/// Waits for the event of a call, if the identifier is synchronous. Nothing with `Drop` lives across it.
unsafe fn complete(id: *mut rdma_cm_id, begun: c_int) -> c_int {
    if begun != 0 {
        return begun;
    }
    let mut is_synchronous = false;
    // SAFETY: the program's pointer is one of an identifier.
    let prepared = guard::done(|| unsafe {
        is_synchronous = of(id)?.is_synchronous.load(Ordering::Relaxed);
        if is_synchronous { acknowledge_own(id) } else { Ok(()) }
    });
    if prepared != 0 || !is_synchronous {
        return prepared;
    }
    // SAFETY: as above.
    unsafe {
        if rdma_get_cm_event((*id).channel, &raw mut (*id).event) != 0 {
            return -1;
        }
        let (kind, status) = ((*(*id).event).event, (*(*id).event).status);
        match status {
            0 => 0,
            _ if kind == RDMA_CM_EVENT_REJECTED => {
                guard::set_errno(Errno(libc::ECONNREFUSED));
                -1
            }
            status => {
                guard::set_errno(Errno(status.abs()));
                -1
            }
        }
    }
}

/// The program's form of an event. A connection request gets the object of its identifier now.
unsafe fn deliver(event: Event) -> Result<*mut rdma_cm_event, Errno> {
    let id = event.id.clone();
    if id.name() == 0
        && let Some(listener) = &event.listener
    {
        let parent = listener.name() as *mut rdma_cm_id;
        // SAFETY: the listener stays until the event is acknowledged.
        unsafe {
            let is_synchronous = of(parent)?.is_synchronous.load(Ordering::Relaxed);
            let channel = if is_synchronous { make_channel()? } else { (*parent).channel };
            let events = ChannelObject::of(channel)?;
            let (ps, kind) = ((*parent).ps, (*parent).qp_type);
            id.migrate(events)?;
            let child = make_id(id.clone(), channel, (*parent).context, ps, kind, is_synchronous);
            show(child)?;
        }
    }
    let name = id.name() as *mut rdma_cm_id;
    if event.kind == EventKind::Established {
        // SAFETY: the identifier stays until the event is acknowledged.
        unsafe { show(name) }?;
    }
    let mut seen = rdma_cm_event::zeroed();
    seen.id = name;
    seen.listen_id = event.listener.as_ref().map_or(0, |id| id.name()) as *mut rdma_cm_id;
    seen.event = rdma_cm_event_type(event.kind as u32);
    seen.status = event.status;
    let mut conn = rdma_conn_param::zeroed();
    conn.private_data_len = u8::try_from(event.private_data.len()).unwrap_or(u8::MAX);
    conn.responder_resources = event.responder_resources;
    conn.initiator_depth = event.initiator_depth;
    if !event.private_data.is_empty() {
        // The vector's memory stays where it is when it moves.
        conn.private_data = event.private_data.as_ptr().cast();
    }
    seen.param.conn = conn;
    Ok(EventObject::make(seen, event).cast())
}

/// Cancelled by `pthread_cancel` while it blocks: no value with `Drop` lives across its read.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn rdma_get_cm_event(
    channel: *mut rdma_event_channel,
    event: *mut *mut rdma_cm_event,
) -> c_int {
    if channel.is_null() || event.is_null() {
        guard::set_errno(Errno(libc::EINVAL));
        return -1;
    }
    // SAFETY: the program's pointer is one of a channel.
    let descriptor = unsafe { (*channel).fd };
    loop {
        if !read::unit(descriptor) {
            // SAFETY: as above.
            let is_ours = read::would_block()
                && unsafe { ChannelObject::of(channel) }
                    .is_ok_and(|channel| channel.events().is_blocking());
            if !is_ours {
                return -1;
            }
            continue;
        }
        // SAFETY: as above; the program gives a place for the event.
        let taken = guard::number(|| unsafe {
            let Some(taken) = ChannelObject::of(channel)?.take() else { return Ok(0) };
            event.write(deliver(taken)?);
            Ok(1)
        });
        match taken {
            0 => {}
            1 => return 0,
            _ => return -1,
        }
    }
}

unsafe fn acknowledge(event: *mut rdma_cm_event) -> Result<(), Errno> {
    // SAFETY: the program's pointer is one of an event that it has taken.
    unsafe {
        let owner = EventObject::of(event)?.owner().clone();
        EventObject::remove(event);
        owner.acknowledge();
    }
    Ok(())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_ack_cm_event(event: *mut rdma_cm_event) -> c_int {
    // SAFETY: as the program says.
    guard::done(|| unsafe { acknowledge(event) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_get_devices(num_devices: *mut c_int) -> *mut *mut ibv_context {
    guard::pointer(|| {
        let list = Box::new([context::of_identifiers()?, ptr::null_mut()]);
        if !num_devices.is_null() {
            // SAFETY: the caller passes a valid place or null.
            unsafe { num_devices.write(1) };
        }
        Ok(Box::into_raw(list).cast())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_free_devices(list: *mut *mut ibv_context) {
    guard::nothing(|| {
        if !list.is_null() {
            // SAFETY: the list is one of `rdma_get_devices`.
            drop(unsafe { Box::from_raw(list.cast::<[*mut ibv_context; 2]>()) });
        }
    });
}

/// Options of identifiers. Type of service and time limits are the kernel's business here.
#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_set_option(
    id: *mut rdma_cm_id,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    length: usize,
) -> c_int {
    guard::done(|| {
        // SAFETY: the program's pointer is one of an identifier.
        let state = unsafe { of(id) }?;
        if level != RDMA_OPTION_ID {
            return Err(Errno(libc::ENOSYS));
        }
        let switch = || {
            if value.is_null() || length < size_of::<c_int>() {
                return Err(Errno(libc::EINVAL));
            }
            // SAFETY: the program's value has as many bytes.
            Ok(unsafe { value.cast::<c_int>().read_unaligned() } != 0)
        };
        match name {
            RDMA_OPTION_ID_REUSEADDR => Ok(state.id.set_reuse(switch()?)?),
            RDMA_OPTION_ID_AFONLY => Ok(state.id.set_family_only(switch()?)?),
            RDMA_OPTION_ID_TOS | RDMA_OPTION_ID_ACK_TIMEOUT if length >= 1 => Ok(()),
            _ => Err(Errno(libc::EINVAL)),
        }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_migrate_id(
    id: *mut rdma_cm_id,
    channel: *mut rdma_event_channel,
) -> c_int {
    guard::done(|| {
        // SAFETY: as the program says.
        unsafe {
            let state = of(id)?;
            let is_synchronous = channel.is_null();
            let channel = if is_synchronous { make_channel()? } else { channel };
            state.id.migrate(ChannelObject::of(channel)?)?;
            if state.is_synchronous.swap(is_synchronous, Ordering::Relaxed) {
                acknowledge_own(id)?;
                ChannelObject::remove((*id).channel);
            }
            (*id).channel = channel;
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn rdma_create_ep(
    id: *mut *mut rdma_cm_id,
    res: *mut rdma_addrinfo,
    pd: *mut ibv_pd,
    attr: *mut ibv_qp_init_attr,
) -> c_int {
    let mut made = ptr::null_mut();
    let mut is_passive = false;
    let begun = guard::done(|| {
        // SAFETY: as the program says.
        unsafe {
            let res = res.as_ref().ok_or(Errno(libc::EINVAL))?;
            let ps = rdma_port_space(res.ai_port_space as u32);
            made = create(ptr::null_mut(), ptr::null_mut(), ps)?;
            let kind = ibv_qp_type(res.ai_qp_type as u32);
            (*made).qp_type = kind;
            if let Some(attr) = attr.as_mut() {
                attr.qp_type = kind;
            }
            is_passive = res.ai_flags as u32 & RAI_PASSIVE != 0;
            if !is_passive {
                return Ok(());
            }
            let state = of(made)?;
            state.id.bind(address::read(res.ai_src_addr)?)?;
            if let Some(attr) = attr.as_ref() {
                let kept = Endpoint { pd, attr: *attr };
                *state.endpoint.lock().unwrap_or_else(PoisonError::into_inner) = Some(kept);
            }
            show(made)
        }
    });
    // SAFETY: as the program says; the identifier was made above.
    unsafe {
        let mut result = begun;
        if result == 0 && !is_passive {
            let (src, dst) = ((*res).ai_src_addr, (*res).ai_dst_addr);
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
            id.write(made);
        } else if !made.is_null() {
            let error = *libc::__errno_location();
            rdma_destroy_ep(made);
            guard::set_errno(Errno(error));
        }
        result
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_destroy_ep(id: *mut rdma_cm_id) {
    // SAFETY: as the program says.
    unsafe {
        rdma_destroy_qp(id);
        rdma_destroy_srq(id);
        rdma_destroy_id(id);
    }
}

/// What a program that has a queue pair of its own is to set when.
#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_init_qp_attr(
    id: *mut rdma_cm_id,
    attr: *mut ibv_qp_attr,
    mask: *mut c_int,
) -> c_int {
    guard::done(|| {
        // SAFETY: as the program says.
        unsafe {
            of(id)?;
            let attr = attr.as_mut().ok_or(Errno(libc::EINVAL))?;
            let mut wanted = IBV_QP_STATE;
            if attr.qp_state.0 == State::Init as u32 {
                wanted |= IBV_QP_ACCESS_FLAGS;
                attr.qp_access_flags = flue_verbs_core::memory::access::LOCAL_WRITE
                    | flue_verbs_core::memory::access::REMOTE_WRITE
                    | flue_verbs_core::memory::access::REMOTE_READ;
            }
            mask.write(wanted as c_int);
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn rdma_join_multicast(
    _id: *mut rdma_cm_id,
    _addr: *mut sockaddr,
    _context: *mut c_void,
) -> c_int {
    guard::done(|| Err(Errno(libc::EOPNOTSUPP)))
}

#[unsafe(no_mangle)]
extern "C" fn rdma_join_multicast_ex(
    _id: *mut rdma_cm_id,
    _attr: *mut rdma_cm_join_mc_attr_ex,
    _context: *mut c_void,
) -> c_int {
    guard::done(|| Err(Errno(libc::EOPNOTSUPP)))
}

#[unsafe(no_mangle)]
extern "C" fn rdma_leave_multicast(_id: *mut rdma_cm_id, _addr: *mut sockaddr) -> c_int {
    guard::done(|| Err(Errno(libc::EOPNOTSUPP)))
}

#[unsafe(no_mangle)]
extern "C" fn rdma_set_local_ece(_id: *mut rdma_cm_id, _ece: *mut ibv_ece) -> c_int {
    guard::done(|| Err(Errno(libc::EOPNOTSUPP)))
}

#[unsafe(no_mangle)]
extern "C" fn rdma_get_remote_ece(_id: *mut rdma_cm_id, _ece: *mut ibv_ece) -> c_int {
    guard::done(|| Err(Errno(libc::EOPNOTSUPP)))
}

/// Addresses of an id, as the inline functions of today read them.
fn route(id: *mut rdma_cm_id) -> *mut rdma_addr {
    // SAFETY: the caller of each of these functions passes an id that it has not destroyed.
    unsafe { &raw mut (*id).route.addr }
}

/// The port stands at the same place in both families; a port of 0 is that of an address not set yet.
fn port(address: *const sockaddr_storage) -> u16 {
    // SAFETY: an id's addresses are complete `sockaddr_storage`s, which are as large and aligned as either family's.
    unsafe {
        match c_int::from((*address).ss_family) {
            libc::AF_INET => (*address.cast::<libc::sockaddr_in>()).sin_port,
            libc::AF_INET6 => (*address.cast::<libc::sockaddr_in6>()).sin6_port,
            _ => 0,
        }
    }
}

#[unsafe(no_mangle)]
extern "C" fn rdma_get_src_port(id: *mut rdma_cm_id) -> u16 {
    // SAFETY: see `route`.
    port(unsafe { &raw const (*route(id)).src_storage })
}

#[unsafe(no_mangle)]
extern "C" fn rdma_get_dst_port(id: *mut rdma_cm_id) -> u16 {
    // SAFETY: see `route`.
    port(unsafe { &raw const (*route(id)).dst_storage })
}

#[unsafe(no_mangle)]
extern "C" fn rdma_get_local_addr(id: *mut rdma_cm_id) -> *mut sockaddr {
    // SAFETY: see `route`.
    unsafe { &raw mut (*route(id)).src_storage }.cast()
}

#[unsafe(no_mangle)]
extern "C" fn rdma_get_peer_addr(id: *mut rdma_cm_id) -> *mut sockaddr {
    // SAFETY: see `route`.
    unsafe { &raw mut (*route(id)).dst_storage }.cast()
}
