//! C interface of identifiers: pointers, errno, synchronous calls.
//!
//! A synchronous identifier, created without a channel, has its own channel, and its calls wait for their event.
//! `pthread_cancel` may end these calls, and the reader of events, while they block.

pub(crate) mod channel;

use std::{
    ffi::{c_int, c_void},
    net::IpAddr,
    ptr,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU8, Ordering},
    },
};

use flue_verbs_abi::{
    attributes::{ibv_ah_attr, ibv_qp_attr},
    cm::{
        RDMA_CM_EVENT_DEVICE_REMOVAL, RDMA_CM_EVENT_REJECTED, RDMA_OPTION_ID,
        RDMA_OPTION_ID_ACK_TIMEOUT, RDMA_OPTION_ID_AFONLY, RDMA_OPTION_ID_REUSEADDR,
        RDMA_OPTION_ID_TOS, RDMA_PS_TCP, ibv_sa_path_rec, rdma_addr, rdma_cm_event,
        rdma_cm_event_type, rdma_cm_id, rdma_conn_param, rdma_event_channel, rdma_port_space,
    },
    enums::{
        IBV_QP_ACCESS_FLAGS, IBV_QP_STATE, IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS, IBV_QPT_RC,
        ibv_mtu, ibv_qp_state, ibv_qp_type,
    },
    objects::{ibv_context, ibv_pd, ibv_qp_init_attr},
};
use flue_verbs_core::{
    attributes::{IbvQpState, mask as given},
    cm::{Event, EventKind, Id, PortSpace},
    device::Device,
    gid::Gid,
    mr::access,
};
use libc::{sockaddr, sockaddr_storage};

use self::channel::rdma_get_cm_event;
use crate::{
    address, config,
    guard::{self, Errno},
    inherit,
    object::Object,
    open, pd,
    qp::QpObject,
};

type EventObject = Object<rdma_cm_event, Event>;

/// Attributes of `rdma_create_ep` for the connections of a listener.
#[derive(Clone, Copy)]
pub(super) struct Endpoint {
    pub(super) pd: *mut ibv_pd,
    pub(super) attr: ibv_qp_init_attr,
}

// SAFETY: the pointers are the program's, and are only passed on.
unsafe impl Send for Endpoint {}

/// Maximum of a timeout exponent, which has five bits.
const ACK_TIMEOUT_MAX: u8 = 31;

/// Private part of an identifier.
pub(super) struct IdFields {
    pub(super) id: Arc<Id>,
    /// True if calls wait for their event. The channel is then the identifier's own.
    pub(super) is_synchronous: AtomicBool,
    pub(super) endpoint: Mutex<Option<Endpoint>>,
    /// Timeout for a queue pair that is created later.
    pub(super) ack_timeout: AtomicU8,
}

type IdObject = Object<rdma_cm_id, IdFields>;

/// Allocates the object of an identifier.
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
    let object = IdObject::make(
        seen,
        IdFields { id, is_synchronous, endpoint: Mutex::new(None), ack_timeout: AtomicU8::new(0) },
    );
    named.set_name(object as usize);
    object.cast()
}

pub(super) unsafe fn create(
    channel: *mut rdma_event_channel,
    context: *mut c_void,
    ps: rdma_port_space,
) -> Result<*mut rdma_cm_id, Errno> {
    let device = config::device()?;
    let space = if ps == RDMA_PS_TCP { PortSpace::Tcp } else { PortSpace::Other };
    let is_synchronous = channel.is_null();
    let channel = if is_synchronous { channel::make()? } else { channel };
    // SAFETY: the program passes a pointer to a channel, or it was created above.
    let events = unsafe { channel::events(channel) }?;
    inherit::take_over(&events)?;
    let id = Id::new(device, space, events)?;
    Ok(make_id(id, channel, context, ps, IBV_QPT_RC, is_synchronous))
}

pub(crate) unsafe extern "C" fn rdma_create_id(
    channel: *mut rdma_event_channel,
    id: *mut *mut rdma_cm_id,
    context: *mut c_void,
    ps: rdma_port_space,
) -> c_int {
    // SAFETY: guaranteed by the program.
    guard::done(|| unsafe {
        id.write_unaligned(create(channel, context, ps)?);
        Ok(())
    })
}

/// Returns the identifier of the program's pointer.
pub(super) unsafe fn of<'a>(id: *mut rdma_cm_id) -> Result<&'a IdFields, Errno> {
    // SAFETY: the program passes a pointer to an identifier.
    let state = unsafe { IdObject::of(id) }?;
    if !state.id.is_own() {
        // An identifier with a connection remains the parent's: its calls return ENODEV, and it can be destroyed.
        let _ = state.id.inherited_channel().map(|channel| inherit::take_over(&channel));
    }
    Ok(state)
}

pub(crate) unsafe extern "C" fn rdma_destroy_id(id: *mut rdma_cm_id) -> c_int {
    guard::done(|| {
        // SAFETY: the program passes a pointer to an identifier, which it no longer uses.
        unsafe {
            let state = IdObject::of(id)?;
            acknowledge_own(id)?;
            state.id.destroy()?;
            if state.is_synchronous.load(Ordering::Relaxed) {
                channel::remove((*id).channel);
            }
            IdObject::remove(id);
        }
        Ok(())
    })
}

/// Acknowledges the event of the last call of a synchronous identifier.
pub(super) unsafe fn acknowledge_own(id: *mut rdma_cm_id) -> Result<(), Errno> {
    // SAFETY: the program passes a pointer to an identifier.
    unsafe {
        let event = ptr::replace(&raw mut (*id).event, ptr::null_mut());
        if !event.is_null() {
            acknowledge(event)?;
        }
    }
    Ok(())
}

/// Default protection domains of identifiers, one for each device of this process.
static DOMAINS: Mutex<Vec<(usize, usize)>> = Mutex::new(Vec::new());

fn default_pd(device: &'static Device) -> Result<*mut ibv_pd, Errno> {
    let mut domains = DOMAINS.lock().unwrap_or_else(PoisonError::into_inner);
    let key = ptr::from_ref(device) as usize;
    if let Some((_, pd)) = domains.iter().find(|(of, _)| *of == key) {
        return Ok(*pd as *mut ibv_pd);
    }
    let pd = pd::make(open::of_identifiers()?, device)?;
    domains.push((key, pd as usize));
    Ok(pd)
}

/// Writes the addresses of an identifier, and its device if it has one, to the program's structure.
pub(super) unsafe fn show(id: *mut rdma_cm_id) -> Result<(), Errno> {
    // SAFETY: the program passes a pointer to an identifier, whose addresses it does not read meanwhile.
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
            (*id).verbs = open::of_identifiers()?;
            (*id).port_num = 1;
            if (*id).pd.is_null() {
                (*id).pd = default_pd(state.id.device())?;
            }
        }
    }
    Ok(())
}

/// Binds an identifier to an address of the program.
///
/// # Safety
/// As [`address::read`].
pub(super) unsafe fn bind(state: &IdFields, address: *const sockaddr) -> Result<(), Errno> {
    // SAFETY: guaranteed by the caller.
    state.id.bind(unsafe { address::read(address) }?)
}

pub(crate) unsafe extern "C" fn rdma_bind_addr(id: *mut rdma_cm_id, addr: *mut sockaddr) -> c_int {
    // SAFETY: guaranteed by the program.
    guard::done(|| unsafe {
        bind(of(id)?, addr)?;
        show(id)
    })
}

pub(crate) unsafe extern "C-unwind" fn rdma_resolve_addr(
    id: *mut rdma_cm_id,
    src: *mut sockaddr,
    dst: *mut sockaddr,
    _timeout_ms: c_int,
) -> c_int {
    // SAFETY: guaranteed by the program.
    let begun = guard::done(|| unsafe {
        let state = of(id)?;
        let source = if src.is_null() { None } else { Some(address::read(src)?) };
        let destination = address::read(dst)?;
        (*id).route.addr.dst_storage = address::storage(destination);
        state.id.resolve_address(source, destination)
    });
    // SAFETY: guaranteed by the program.
    unsafe { complete(id, begun) }
}

/// Path record, without a meaning on iWARP.
static PATH: ibv_sa_path_rec = ibv_sa_path_rec::zeroed();

pub(crate) unsafe extern "C-unwind" fn rdma_resolve_route(
    id: *mut rdma_cm_id,
    _timeout_ms: c_int,
) -> c_int {
    // SAFETY: guaranteed by the program.
    let begun = guard::done(|| unsafe { of(id)?.id.resolve_route() });
    // SAFETY: guaranteed by the program.
    unsafe { complete(id, begun) }
}

pub(crate) unsafe extern "C" fn rdma_listen(id: *mut rdma_cm_id, backlog: c_int) -> c_int {
    // SAFETY: the program passes a pointer to an identifier.
    guard::done(|| unsafe {
        of(id)?.id.listen(backlog)?;
        show(id)
    })
}

/// Waits for the event of a call if the identifier is synchronous. No value with `Drop` is live across the wait.
pub(super) unsafe fn complete(id: *mut rdma_cm_id, begun: c_int) -> c_int {
    if begun != 0 {
        return begun;
    }
    let mut is_synchronous = false;
    // SAFETY: the program passes a pointer to an identifier.
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
            _ if kind == RDMA_CM_EVENT_DEVICE_REMOVAL => {
                guard::set_errno(Errno(libc::ENODEV));
                -1
            }
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

/// Returns an event in the program's form. The object of a requested connection is allocated here.
unsafe fn deliver(event: Event) -> Result<*mut rdma_cm_event, Errno> {
    let id = event.id.clone();
    if id.name() == 0
        && let Some(listener) = &event.listener
    {
        let parent = listener.name() as *mut rdma_cm_id;
        // SAFETY: the listener stays until the event is acknowledged.
        unsafe {
            let is_synchronous = of(parent)?.is_synchronous.load(Ordering::Relaxed);
            let channel = if is_synchronous { channel::make()? } else { (*parent).channel };
            let events = channel::events(channel)?;
            let (ps, kind) = ((*parent).ps, (*parent).qp_type);
            id.migrate(&events)?;
            let child = make_id(id.clone(), channel, (*parent).context, ps, kind, is_synchronous);
            show(child)?;
        }
    }
    let name = id.name() as *mut rdma_cm_id;
    // Members of the identifier change when the program takes the event, not in the call that caused it: another thread
    // may take the event before that call returns.
    // SAFETY: the identifier remains until the event is acknowledged.
    unsafe {
        match event.kind {
            EventKind::AddressResolved | EventKind::Established => show(name)?,
            EventKind::RouteResolved => {
                (*name).route.num_paths = 1;
                (*name).route.path_rec = (&raw const PATH).cast_mut();
            }
            _ => {}
        }
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
        // A move of the vector does not move its memory.
        conn.private_data = event.private_data.as_ptr().cast();
    }
    seen.param.conn = conn;
    Ok(EventObject::make(seen, event).cast())
}

pub(super) unsafe fn acknowledge(event: *mut rdma_cm_event) -> Result<(), Errno> {
    // SAFETY: the program passes a pointer to an event that it has taken.
    unsafe {
        let owner = EventObject::of(event)?.owner().clone();
        EventObject::remove(event);
        owner.acknowledge();
    }
    Ok(())
}

pub(crate) unsafe extern "C" fn rdma_ack_cm_event(event: *mut rdma_cm_event) -> c_int {
    // SAFETY: guaranteed by the program.
    guard::done(|| unsafe { acknowledge(event) })
}

pub(crate) unsafe extern "C" fn rdma_get_devices(num_devices: *mut c_int) -> *mut *mut ibv_context {
    guard::pointer(|| {
        let list = Box::new([open::of_identifiers()?, ptr::null_mut()]);
        if !num_devices.is_null() {
            // SAFETY: the caller passes a valid place or null.
            unsafe { num_devices.write_unaligned(1) };
        }
        Ok(Box::into_raw(list).cast())
    })
}

pub(crate) unsafe extern "C" fn rdma_free_devices(list: *mut *mut ibv_context) {
    guard::nothing(|| {
        if !list.is_null() {
            // SAFETY: the list is one of `rdma_get_devices`.
            drop(unsafe { Box::from_raw(list.cast::<[*mut ibv_context; 2]>()) });
        }
    });
}

/// Options of identifiers. The type of service is accepted without an effect. `ibv_query_qp` returns the
/// acknowledgment timeout; the timeouts of TCP are those of the kernel.
pub(crate) unsafe extern "C" fn rdma_set_option(
    id: *mut rdma_cm_id,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    length: usize,
) -> c_int {
    guard::done(|| {
        // SAFETY: the program passes a pointer to an identifier.
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
            RDMA_OPTION_ID_TOS if length >= 1 => Ok(()),
            RDMA_OPTION_ID_ACK_TIMEOUT if length >= 1 && !value.is_null() => {
                // SAFETY: the program's value has this many bytes, and its queue pair exists or is null.
                unsafe {
                    let timeout = value.cast::<u8>().read();
                    if timeout > ACK_TIMEOUT_MAX {
                        return Err(Errno(libc::EINVAL));
                    }
                    state.ack_timeout.store(timeout, Ordering::Relaxed);
                    if !(*id).qp.is_null() {
                        QpObject::of((*id).qp)?.ack_timeout.store(timeout, Ordering::Relaxed);
                    }
                }
                Ok(())
            }
            _ => Err(Errno(libc::EINVAL)),
        }
    })
}

pub(crate) unsafe extern "C" fn rdma_migrate_id(
    id: *mut rdma_cm_id,
    channel: *mut rdma_event_channel,
) -> c_int {
    guard::done(|| {
        // SAFETY: guaranteed by the program.
        unsafe {
            let state = of(id)?;
            let is_synchronous = channel.is_null();
            let channel = if is_synchronous { channel::make()? } else { channel };
            state.id.migrate(&channel::events(channel)?)?;
            if state.is_synchronous.swap(is_synchronous, Ordering::Relaxed) {
                acknowledge_own(id)?;
                channel::remove((*id).channel);
            }
            (*id).channel = channel;
        }
        Ok(())
    })
}

/// Code of the timeout of a queue pair on which the program does not set one.
const TIMEOUT: u8 = 14;
/// Retries of a queue pair. 7 of RNR: unlimited.
const RETRIES: u8 = 7;
/// Hop limit of an address vector.
const HOP_LIMIT: u8 = 64;

/// Returns the attributes of a queue pair of the program on a RoCE device, and their mask. The destination has QP
/// number 0: the identifier connects the queue pair.
fn roce_attributes(id: &Id, to: ibv_qp_state) -> Result<(ibv_qp_attr, u32), Errno> {
    let mut attr = ibv_qp_attr::zeroed();
    attr.qp_state = to;
    let reads = u8::try_from(id.device().limits().ird_max).unwrap_or(u8::MAX);
    let given = match to {
        IBV_QPS_INIT => {
            let rights = [access::LOCAL_WRITE, access::REMOTE_WRITE, access::REMOTE_READ];
            attr.qp_access_flags =
                rights.into_iter().fold(access::REMOTE_ATOMIC, |all, it| all | it);
            attr.port_num = 1;
            given::PKEY_INDEX | given::PORT | given::ACCESS_FLAGS
        }
        IBV_QPS_RTR => {
            attr.ah_attr = address_vector(id)?;
            attr.path_mtu = ibv_mtu(config::identity().active_mtu().into());
            attr.max_dest_rd_atomic = reads;
            given::AV
                | given::PATH_MTU
                | given::DEST_QPN
                | given::RQ_PSN
                | given::MAX_DEST_RD_ATOMIC
                | given::MIN_RNR_TIMER
        }
        IBV_QPS_RTS => {
            attr.timeout = TIMEOUT;
            (attr.retry_cnt, attr.rnr_retry) = (RETRIES, RETRIES);
            attr.max_rd_atomic = reads;
            given::TIMEOUT
                | given::RETRY_CNT
                | given::RNR_RETRY
                | given::SQ_PSN
                | given::MAX_QP_RD_ATOMIC
        }
        _ => return Err(Errno(libc::EINVAL)),
    };
    Ok((attr, given::STATE | given))
}

/// Returns the address vector of the identifier's peer.
fn address_vector(id: &Id) -> Result<ibv_ah_attr, Errno> {
    let (local, remote) = id.adapter_addresses();
    let remote = remote.ok_or(Errno(libc::EINVAL))?.ip();
    let gids = config::identity().gids();
    let index = |matches: &dyn Fn(IpAddr) -> bool| {
        (0..gids.len()).find(|index| gids.get(*index).is_some_and(|it| matches(it.gid.ip())))
    };
    let own = local.and_then(|local| index(&|ip| ip == local.ip()));
    let own = own.or_else(|| index(&|ip| ip.is_ipv4() == remote.is_ipv4())).unwrap_or(0);
    let mut vector = ibv_ah_attr::zeroed();
    vector.grh.dgid.raw = Gid::of(remote).0;
    vector.grh.sgid_index = u8::try_from(own).unwrap_or(0);
    vector.grh.hop_limit = HOP_LIMIT;
    (vector.is_global, vector.port_num) = (1, 1);
    Ok(vector)
}

/// Returns the attributes that a program sets on a queue pair of its own, by state.
pub(crate) unsafe extern "C" fn rdma_init_qp_attr(
    id: *mut rdma_cm_id,
    attr: *mut ibv_qp_attr,
    mask: *mut c_int,
) -> c_int {
    guard::done(|| {
        // SAFETY: guaranteed by the program.
        unsafe {
            let state = of(id)?;
            if attr.is_null() {
                return Err(Errno(libc::EINVAL));
            }
            if config::is_roce() {
                let to = (&raw const (*attr).qp_state).read_unaligned();
                let (values, given) = roce_attributes(&state.id, to)?;
                attr.write_unaligned(values);
                mask.write_unaligned(given as c_int);
                return Ok(());
            }
            let mut wanted = IBV_QP_STATE;
            if (&raw const (*attr).qp_state).read_unaligned().0 == IbvQpState::Init as u32 {
                wanted |= IBV_QP_ACCESS_FLAGS;
                let rights = access::LOCAL_WRITE | access::REMOTE_WRITE | access::REMOTE_READ;
                (&raw mut (*attr).qp_access_flags).write_unaligned(rights);
            }
            mask.write_unaligned(wanted as c_int);
        }
        Ok(())
    })
}

/// Returns the addresses of an id, at the place that inline functions read.
fn route(id: *mut rdma_cm_id) -> *mut rdma_addr {
    // SAFETY: the caller of each of these functions passes an id that it has not destroyed.
    unsafe { &raw mut (*id).route.addr }
}

/// Returns the port, which has the same offset in both families. 0: the address is not set.
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

pub(crate) extern "C" fn rdma_get_src_port(id: *mut rdma_cm_id) -> u16 {
    // SAFETY: see `route`.
    port(unsafe { &raw const (*route(id)).src_storage })
}

pub(crate) extern "C" fn rdma_get_dst_port(id: *mut rdma_cm_id) -> u16 {
    // SAFETY: see `route`.
    port(unsafe { &raw const (*route(id)).dst_storage })
}
