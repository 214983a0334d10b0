//! Calls that create, modify and destroy objects.

use core::{ffi::c_void, ptr};

use flue_verbs_abi::{
    attributes::{ibv_qp_attr, ibv_qp_cap, ibv_srq_attr},
    enums::{
        IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_MW_BIND, IBV_ACCESS_ON_DEMAND, IBV_ACCESS_REMOTE_ATOMIC,
        IBV_ACCESS_REMOTE_READ, IBV_ACCESS_REMOTE_WRITE, IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP,
        IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD, IBV_QP_EX_WITH_RDMA_READ, IBV_QP_EX_WITH_RDMA_WRITE,
        IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM, IBV_QP_EX_WITH_SEND, IBV_QP_EX_WITH_SEND_WITH_INV,
        IBV_QP_INIT_ATTR_PD, IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, IBV_QP_STATE, IBV_QPT_RC, IBV_QPT_UD,
        IBV_REREG_MR_CHANGE_ACCESS, IBV_REREG_MR_CHANGE_PD, IBV_REREG_MR_CHANGE_TRANSLATION,
        IBV_REREG_MR_ERR_INPUT, IBV_SRQ_LIMIT, IBV_SRQ_MAX_WR, ibv_mw_type, ibv_qp_state,
    },
    objects::{ibv_qp, ibv_qp_init_attr, ibv_qp_init_attr_ex, ibv_srq_init_attr},
};
use libc::{EBUSY, EFAULT, EINVAL, ENOMEM, EOPNOTSUPP};

use super::{
    ffi,
    ledger::{Check, Queue, Request},
    memory::{AREA, AREAS, After, CHECKED, RECEIVES, SINKS, SOURCES, TARGETS},
    watch::{set_nonblocking, wait_until},
    world::{Channel, Cq, Mr, Mw, Pd, Qp, Srq, World, done, errno, made, status},
};

/// Access rights that an area may be registered with: see [`Memory`](super::memory::Memory).
fn allowed(area: usize) -> u32 {
    match area {
        0..SOURCES => IBV_ACCESS_REMOTE_READ,
        RECEIVES | SINKS => IBV_ACCESS_LOCAL_WRITE,
        TARGETS => IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE,
        _ => u32::MAX,
    }
}

const KNOWN_ACCESS: u32 = 0x3ff0_00ff;
const FOREIGN_WRITE: u32 = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;

/// Registration requested by a script.
#[derive(Clone, Copy)]
struct RequestedRegistration {
    area: usize,
    access: u32,
    at: usize,
    length: usize,
}

impl RequestedRegistration {
    fn new(area: u8, access: u16, offset: u16, length: u16) -> Self {
        let area = usize::from(area) % AREAS;
        // The bits above the low 8 select flags from bit 20 and from bit 30.
        let access = u32::from(access & 0xff)
            | u32::from(access >> 8 & 3) << 20
            | u32::from(access >> 10 & 1) << 30;
        if area < CHECKED {
            let access = if area < SOURCES { access } else { allowed(area) } & allowed(area);
            return Self { area, access, at: 0, length: AREA };
        }
        let at = usize::from(offset) % AREA;
        Self { area, access, at, length: usize::from(length) % (AREA - at + 1) }
    }

    /// Expected errno, or 0 if the registration must succeed.
    fn error(self, is_inaccessible: bool) -> i32 {
        let Self { access, length, .. } = self;
        match () {
            () if access & IBV_ACCESS_ON_DEMAND != 0 => EOPNOTSUPP,
            () if access & !KNOWN_ACCESS != 0 => EINVAL,
            () if access & FOREIGN_WRITE != 0 && access & IBV_ACCESS_LOCAL_WRITE == 0 => EINVAL,
            () if length == 0 => EINVAL,
            () if is_inaccessible => EFAULT,
            () => 0,
        }
    }

    const fn is_written(self) -> bool {
        self.access & IBV_ACCESS_LOCAL_WRITE != 0
    }
}

/// Domains and memory.
impl World {
    pub(super) fn alloc_pd(&mut self) -> Option<usize> {
        if !self.pds.has_room() {
            return None;
        }
        // SAFETY: the device is open.
        let raw = unsafe { ffi::ibv_alloc_pd(self.process_state.context) };
        Some(self.pds.insert(Pd { raw: made("ibv_alloc_pd", raw, &[])? }))
    }

    pub(super) fn dealloc_pd(&mut self, pd: usize) {
        let expected = if self.is_pd_used(pd) { EBUSY } else { 0 };
        // SAFETY: the domain is live, and no longer used on success.
        let returned = unsafe { ffi::ibv_dealloc_pd(self.pds[pd].raw) };
        assert_eq!(returned, expected, "ibv_dealloc_pd");
        self.summary.busy += u64::from(returned != 0);
        if returned == 0 {
            self.pds.remove(pd);
        }
    }

    pub(super) fn reg_mr(
        &mut self,
        pd: usize,
        area: u8,
        access: u16,
        (offset, length): (u16, u16),
        how: u8,
    ) -> Option<usize> {
        if !self.mrs.has_room() {
            return None;
        }
        let wanted = RequestedRegistration::new(area, access, offset, length);
        let is_wanted = how & 7 != 7;
        self.memory().before_registration(wanted.area, is_wanted);
        let address = self.memory().address(wanted.area, wanted.at);
        let expected = wanted.error(self.memory().is_inaccessible(wanted.area));
        let iova = if how & 8 != 0 && wanted.area >= CHECKED {
            u64::from(length) << 33 | 0x123
        } else {
            address as u64
        };
        let raw = self.pds[pd].raw;
        let (start, bits) = (address.cast::<c_void>(), wanted.access);
        // SAFETY: the domain is live; inaccessible memory is rejected.
        let raw = unsafe {
            match how & 8 {
                0 => ffi::ibv_reg_mr(raw, start, wanted.length, bits.cast_signed()),
                _ => ffi::ibv_reg_mr_iova2(raw, start, wanted.length, iova, bits),
            }
        };
        let found = if raw.is_null() { errno() } else { 0 };
        assert_eq!(found, expected, "ibv_reg_mr");
        let raw = made("ibv_reg_mr", raw, &[expected])?;
        let RequestedRegistration { area, access, at, length } = wanted;
        self.memory().registered(area, wanted.is_written());
        Some(self.mrs.insert(Mr { raw, pd, area, access, at, length, iova }))
    }

    pub(super) fn rereg_mr(
        &mut self,
        mr: usize,
        flags: u8,
        pd: usize,
        area: u8,
        access: u16,
        range: (u16, u16),
    ) {
        let Mr { area: old_area, access: old_access, at, length, mut iova, pd: old_pd, raw } =
            self.mrs[mr];
        // Areas with a purpose are unchanged.
        if old_area < CHECKED {
            return;
        }
        let flags = u32::from(flags & 15);
        let has = |flag| flags & flag != 0;
        let mut wanted = RequestedRegistration { area: old_area, access: old_access, at, length };
        let asked = RequestedRegistration::new(area % 3 + CHECKED as u8, access, range.0, range.1);
        if has(IBV_REREG_MR_CHANGE_TRANSLATION) {
            wanted = RequestedRegistration { access: old_access, ..asked };
            self.memory().before_registration(wanted.area, true);
        }
        if has(IBV_REREG_MR_CHANGE_ACCESS) {
            wanted.access = asked.access;
        }
        let address = self.memory().address(asked.area, asked.at).cast();
        let pd_raw = self.pds[pd].raw;
        let (bits, how) = (asked.access.cast_signed(), flags.cast_signed());
        // SAFETY: region and domain are live, and the memory is valid.
        let returned = unsafe { ffi::ibv_rereg_mr(raw, how, pd_raw, address, asked.length, bits) };
        let is_bound = self.mws.live().any(|(_, it)| it.regions.contains(&mr));
        let is_valid = flags != 0 && flags < 8 && wanted.error(false) == 0;
        if returned != 0 {
            assert_eq!(returned, IBV_REREG_MR_ERR_INPUT.0, "ibv_rereg_mr");
            assert!(!is_valid || is_bound, "ibv_rereg_mr has rejected a valid request");
            return;
        }
        assert!(is_valid, "ibv_rereg_mr has accepted an invalid request");
        self.memory().registered(wanted.area, wanted.is_written());
        self.memory().deregistered(old_area, After::Keep);
        if has(IBV_REREG_MR_CHANGE_TRANSLATION) {
            iova = self.memory().address(wanted.area, wanted.at) as u64;
        }
        let pd = if has(IBV_REREG_MR_CHANGE_PD) { pd } else { old_pd };
        let RequestedRegistration { area, access, at, length } = wanted;
        self.mrs[mr] = Mr { raw, pd, area, access, at, length, iova };
        // A window can be bound at most to the new registration.
        self.summary.registrations += 1;
    }

    pub(super) fn dereg_mr(&mut self, mr: usize, after: u8) {
        let is_bound = self.mws.live().any(|(_, it)| it.regions.contains(&mr));
        // SAFETY: the region is live, and no longer used on success.
        let returned = unsafe { ffi::ibv_dereg_mr(self.mrs[mr].raw) };
        let errors: &[i32] = if is_bound { &[EBUSY] } else { &[] };
        self.summary.busy += u64::from(returned != 0);
        if !status("ibv_dereg_mr", returned, errors) {
            return;
        }
        let area = self.mrs[mr].area;
        let after = [After::Unmap, After::Poison, After::Keep][usize::from(after) % 3];
        self.memory().deregistered(area, after);
        self.summary.registrations += 1;
        self.mrs.remove(mr);
        self.mws.numbers().into_iter().for_each(|mw| self.mws[mw].regions.retain(|it| *it != mr));
    }

    pub(super) fn alloc_mw(&mut self, pd: usize, kind: u8) {
        if !self.mws.has_room() {
            return;
        }
        let kind = [1, 2, 1, 2, 1, 2, 0, 3][usize::from(kind % 8)];
        let errors: &[i32] = if kind == 1 || kind == 2 { &[] } else { &[EINVAL] };
        // SAFETY: the domain is live.
        let raw = unsafe { ffi::alloc_mw(self.pds[pd].raw, ibv_mw_type(kind)) };
        assert_eq!(raw.is_null(), !errors.is_empty(), "ibv_alloc_mw of type {kind}");
        if let Some(raw) = made("ibv_alloc_mw", raw, errors) {
            self.mws.insert(Mw { raw, pd, regions: Vec::new() });
        }
    }

    pub(super) fn dealloc_mw(&mut self, mw: usize) {
        // SAFETY: the window is live, and no longer used.
        assert_eq!(unsafe { ffi::dealloc_mw(self.mws[mw].raw) }, 0, "ibv_dealloc_mw");
        self.mws.remove(mw);
    }

    /// Region of an area with a purpose.
    pub(super) fn region_of(&self, pd: usize, area: usize) -> Option<usize> {
        self.mrs.find(|it| it.pd == pd && it.area == area)
    }

    /// Region of an area without a purpose.
    pub(super) fn free_region(&self, choice: u8) -> Option<usize> {
        let free: Vec<_> = self.mrs.live().filter(|(_, it)| it.area >= CHECKED).collect();
        let chosen = usize::from(choice).checked_rem(free.len())?;
        Some(free[chosen].0)
    }
}

/// Queues.
impl World {
    pub(super) fn create_channel(&mut self) {
        if self.channels.has_room() {
            // SAFETY: the device is open.
            let raw = unsafe { ffi::ibv_create_comp_channel(self.process_state.context) };
            if let Some(raw) = made("ibv_create_comp_channel", raw, &[]) {
                // SAFETY: the channel was just created.
                set_nonblocking(unsafe { (*raw).fd });
                self.channels.insert(Channel { raw });
            }
        }
    }

    pub(super) fn destroy_channel(&mut self, channel: usize) {
        let is_used = self.cqs.live().any(|(_, it)| it.channel == Some(channel));
        // SAFETY: the channel is live, and no longer used on success.
        let returned = unsafe { ffi::ibv_destroy_comp_channel(self.channels[channel].raw) };
        assert_eq!(returned, if is_used { EBUSY } else { 0 }, "ibv_destroy_comp_channel");
        self.summary.busy += u64::from(is_used);
        if !is_used {
            self.channels.remove(channel);
        }
    }

    pub(super) fn create_cq(&mut self, entries: i32, channel: Option<usize>) -> Option<usize> {
        if !self.cqs.has_room() {
            return None;
        }
        let on = channel.map_or(ptr::null_mut(), |channel| self.channels[channel].raw);
        let context = self.cqs.live().count() as *mut c_void;
        // SAFETY: the device is open, and the channel is live or null.
        let raw =
            unsafe { ffi::ibv_create_cq(self.process_state.context, entries, context, on, 0) };
        assert_eq!(raw.is_null(), entries <= 0, "ibv_create_cq of {entries}");
        let raw = made("ibv_create_cq", raw, &[EINVAL])?;
        // SAFETY: the queue was just created.
        assert!(unsafe { (*raw).cqe } >= entries, "fewer entries than requested");
        Some(self.cqs.insert(Cq {
            raw,
            channel,
            arms: 0,
            is_armed_any: false,
            is_armed_empty: false,
            is_event_due: false,
            held: 0,
            held_async: Vec::new(),
            has_failed: false,
            needs_failure: false,
            is_failure_reported: false,
        }))
    }

    pub(super) fn resize_cq(&mut self, cq: usize, entries: i32) {
        // SAFETY: the queue is live.
        let returned = unsafe { ffi::ibv_resize_cq(self.cqs[cq].raw, entries) };
        status("ibv_resize_cq", returned, &[EINVAL]);
    }

    pub(super) fn destroy_cq(&mut self, cq: usize) {
        self.acknowledge_of_cq(cq);
        let is_used = self.qps.live().any(|(_, it)| it.send_cq == cq || it.receive_cq == cq);
        // SAFETY: the queue is live, and no longer used on success.
        let returned = unsafe { ffi::ibv_destroy_cq(self.cqs[cq].raw) };
        assert_eq!(returned, if is_used { EBUSY } else { 0 }, "ibv_destroy_cq");
        self.summary.busy += u64::from(is_used);
        if !is_used {
            self.cqs.remove(cq);
        }
    }

    pub(super) fn create_srq(&mut self, pd: usize, depth: u32, sges: u32) -> Option<usize> {
        if !self.srqs.has_room() {
            return None;
        }
        let attr = ibv_srq_attr { max_wr: depth, max_sge: sges, srq_limit: 0 };
        let mut attr = ibv_srq_init_attr { srq_context: ptr::null_mut(), attr };
        // SAFETY: the domain is live.
        let raw = unsafe { ffi::ibv_create_srq(self.pds[pd].raw, &raw mut attr) };
        assert_eq!(raw.is_null(), depth == 0 || sges > 16, "ibv_create_srq of {depth}, {sges}");
        let raw = made("ibv_create_srq", raw, &[EINVAL])?;
        Some(self.srqs.insert(Srq { raw, pd, depth, sges, limits: 0, held_async: Vec::new() }))
    }

    pub(super) fn modify_srq(&mut self, srq: usize, mask: u8, depth: u8, limit: u8) {
        let (mask, raw) = (u32::from(mask & 7), self.srqs[srq].raw);
        let (max_wr, srq_limit) = (depth.into(), limit.into());
        let mut attr = ibv_srq_attr { max_wr, max_sge: 0, srq_limit };
        // SAFETY: the queue is live.
        let returned = unsafe { ffi::ibv_modify_srq(raw, &raw mut attr, mask.cast_signed()) };
        if status("ibv_modify_srq", returned, &[EINVAL]) {
            assert!(mask < 4, "ibv_modify_srq has accepted mask {mask}");
            if mask & IBV_SRQ_MAX_WR != 0 {
                self.srqs[srq].depth = max_wr;
            }
            self.srqs[srq].limits += u32::from(mask & IBV_SRQ_LIMIT != 0 && srq_limit > 0);
        }
        // SAFETY: the queue is live.
        assert_eq!(unsafe { ffi::ibv_query_srq(raw, &raw mut attr) }, 0, "ibv_query_srq");
        assert_eq!((attr.max_wr, attr.max_sge), (self.srqs[srq].depth, self.srqs[srq].sges));
    }

    pub(super) fn destroy_srq(&mut self, srq: usize) {
        self.acknowledge_of_srq(srq);
        let is_used = self.qps.live().any(|(_, it)| it.srq == Some(srq));
        // SAFETY: the queue is live, and no longer used on success.
        let returned = unsafe { ffi::ibv_destroy_srq(self.srqs[srq].raw) };
        assert_eq!(returned, if is_used { EBUSY } else { 0 }, "ibv_destroy_srq");
        self.summary.busy += u64::from(is_used);
        if !is_used {
            self.srqs.remove(srq);
            self.withdraw(Queue::Shared(srq));
        }
    }

    /// Removes requests that will never complete, and frees their places.
    pub(super) fn withdraw(&mut self, queue: Queue) {
        for Request { check, .. } in self.ledger.withdraw(queue) {
            self.free(&check);
        }
    }

    pub(super) fn free(&mut self, check: &Check) {
        match *check {
            Check::Read { place, .. } => self.memory().free_place(SINKS, place),
            Check::Receive { place: Some(place), .. } => self.memory().free_place(RECEIVES, place),
            Check::Receive { .. } | Check::Nothing => {}
        }
    }
}

/// Parameters of a new queue pair.
#[derive(Clone, Copy, Debug)]
pub(super) struct QpPlan {
    pub(super) pd: usize,
    pub(super) id: Option<usize>,
    pub(super) send_cq: usize,
    pub(super) receive_cq: usize,
    pub(super) srq: Option<usize>,
    pub(super) caps: u8,
    pub(super) how: u8,
}

const SEND_OPS: u32 = IBV_QP_EX_WITH_RDMA_WRITE
    | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM
    | IBV_QP_EX_WITH_SEND
    | IBV_QP_EX_WITH_RDMA_READ
    | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP
    | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD
    | IBV_QP_EX_WITH_SEND_WITH_INV;

/// Queue pairs.
impl World {
    pub(super) fn create_qp(&mut self, plan: QpPlan) -> Option<usize> {
        let QpPlan { pd, id, send_cq, receive_cq, srq, caps, how } = plan;
        if !self.qps.has_room() {
            return None;
        }
        let depth = [1, 4, 16, 64][usize::from(caps & 3)];
        let sges = [1, 2, 4, 16][usize::from(caps >> 2 & 3)];
        let is_wild = how & 0x38 == 0x38;
        let cap = ibv_qp_cap {
            max_send_wr: if is_wild { u32::MAX } else { depth },
            max_recv_wr: depth,
            max_send_sge: sges,
            max_recv_sge: sges,
            max_inline_data: [0, 64, 256, 1025][usize::from(caps >> 4 & 3)],
        };
        let mut attr = ibv_qp_init_attr::zeroed();
        attr.send_cq = self.cqs[send_cq].raw;
        attr.recv_cq = self.cqs[receive_cq].raw;
        attr.srq = srq.map_or(ptr::null_mut(), |srq| self.srqs[srq].raw);
        attr.cap = cap;
        attr.qp_type = if how & 0x30 == 0x20 { IBV_QPT_UD } else { IBV_QPT_RC };
        attr.sq_sig_all = i32::from(how & 1);
        let is_extended = how & 2 != 0 && id.is_none();
        let raw = self.call_create_qp(pd, id, &mut attr, is_extended);
        let is_foreign_srq = srq.is_some_and(|srq| self.srqs[srq].pd != pd);
        let is_valid = attr.qp_type == IBV_QPT_RC
            && !is_wild
            && cap.max_inline_data <= 1024
            && !is_foreign_srq;
        let raw = made("create a queue pair", raw, &[EINVAL, EOPNOTSUPP, ENOMEM]);
        assert!(raw.is_none() || is_valid, "a queue pair was created with invalid attributes");
        if raw.is_none() && is_valid {
            wait_until(
                "the failure that caused the rejection of a valid queue pair is reported",
                || {
                    while self.async_event(false) {}
                    [send_cq, receive_cq].iter().any(|cq| self.cqs[*cq].has_failed)
                },
            );
        }
        let raw = raw?;
        // SAFETY: the queue pair was just created.
        let number = unsafe { (*raw).qp_num };
        assert!(
            self.qps.find(|it| it.number == number).is_none(),
            "two queue pairs have the same number"
        );
        let made = self.qps.insert(Qp {
            raw,
            number,
            pd,
            send_cq,
            receive_cq,
            srq,
            id,
            is_extended,
            is_all_signaled: attr.sq_sig_all != 0,
            sends_max: depth,
            receives_max: depth,
            send_sges_max: sges,
            receive_sges_max: sges,
            inline_max: attr.cap.max_inline_data,
            takes_sends: false,
            has_reads: false,
            connection: None,
            held_async: Vec::new(),
            failures: 0,
            last_receives: 0,
            attempts: 0,
            ends: 0,
        });
        if let Some(id) = id {
            self.ids[id].qp = Some(made);
        }
        Some(made)
    }

    fn call_create_qp(
        &mut self,
        pd: usize,
        id: Option<usize>,
        attr: &mut ibv_qp_init_attr,
        is_extended: bool,
    ) -> *mut ibv_qp {
        let pd = self.pds[pd].raw;
        if let Some(id) = id {
            let raw = self.ids[id].raw;
            // SAFETY: the identifier is live, and so are the objects of the attributes.
            return unsafe {
                match done(
                    "rdma_create_qp",
                    ffi::rdma_create_qp(raw, pd, attr),
                    &[EINVAL, EOPNOTSUPP, ENOMEM],
                ) {
                    true => (*raw).qp,
                    false => ptr::null_mut(),
                }
            };
        }
        if !is_extended {
            // SAFETY: the domain is live, and so are the objects of the attributes.
            return unsafe { ffi::ibv_create_qp(pd, attr) };
        }
        let mut extended = ibv_qp_init_attr_ex::zeroed();
        (extended.send_cq, extended.recv_cq, extended.srq) = (attr.send_cq, attr.recv_cq, attr.srq);
        (extended.cap, extended.qp_type) = (attr.cap, attr.qp_type);
        extended.sq_sig_all = attr.sq_sig_all;
        extended.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
        extended.pd = pd;
        extended.send_ops_flags = SEND_OPS.into();
        let context = self.process_state.context;
        // SAFETY: as above; the table is that of the open device.
        unsafe {
            let create = (*ffi::extended(context)).create_qp_ex.expect("the table is complete");
            let made = create(context, &raw mut extended);
            attr.cap = extended.cap;
            made
        }
    }

    pub(super) fn modify_qp(&mut self, qp: usize, state: u8, mask: u8) {
        let state = u32::from(state % 8);
        let mut attr = ibv_qp_attr::zeroed();
        attr.qp_state = ibv_qp_state(state);
        let mask = if mask & 7 == 7 { i32::from(mask) << 5 } else { IBV_QP_STATE.cast_signed() };
        // SAFETY: the queue pair is live.
        let returned = unsafe { ffi::ibv_modify_qp(self.qps[qp].raw, &raw mut attr, mask) };
        let has_moved = status("ibv_modify_qp", returned, &[EINVAL]);
        if mask & IBV_QP_STATE.cast_signed() == 0 {
            return;
        }
        assert!(has_moved || state != 0 && state != 6, "ibv_modify_qp has rejected state {state}");
        match state {
            0 => {
                self.qps[qp].takes_sends = false;
                self.qps[qp].connection = None;
                self.qps[qp].ends += 1;
                self.withdraw(Queue::Send(qp));
                self.withdraw(Queue::Receive(qp));
            }
            6 => self.fail_qp(qp),
            4 if has_moved => self.qps[qp].ends += 1,
            _ => {}
        }
    }

    /// Records that a queue pair has entered its error state.
    fn fail_qp(&mut self, qp: usize) {
        self.qps[qp].ends += 1;
        self.qps[qp].takes_sends = true;
        self.query_qp(qp, Some(6));
    }

    pub(super) fn query_qp(&self, qp: usize, expected: Option<u32>) {
        let (mut attr, mut init) = (ibv_qp_attr::zeroed(), ibv_qp_init_attr::zeroed());
        let raw = self.qps[qp].raw;
        let mask = IBV_QP_STATE.cast_signed();
        // SAFETY: the queue pair is live, and the output pointers are valid.
        let returned = unsafe { ffi::ibv_query_qp(raw, &raw mut attr, mask, &raw mut init) };
        assert_eq!(returned, 0, "ibv_query_qp");
        let state = attr.qp_state.0;
        assert!(
            expected.is_none_or(|expected| state == expected),
            "state {state}, not {expected:?}"
        );
        assert_eq!(init.send_cq, self.cqs[self.qps[qp].send_cq].raw, "ibv_query_qp");
    }

    pub(super) fn destroy_qp(&mut self, qp: usize) {
        self.acknowledge_of_qp(qp);
        match self.qps[qp].id {
            // SAFETY: the queue pair belongs to the identifier, and is no longer used.
            Some(id) => unsafe {
                ffi::rdma_destroy_qp(self.ids[id].raw);
                assert!((*self.ids[id].raw).qp.is_null(), "rdma_destroy_qp");
                self.ids[id].qp = None;
            },
            // SAFETY: the queue pair is live, and no longer used.
            None => unsafe {
                assert_eq!(ffi::ibv_destroy_qp(self.qps[qp].raw), 0, "ibv_destroy_qp");
            },
        }
        self.qps.remove(qp);
        self.withdraw(Queue::Send(qp));
        self.withdraw(Queue::Receive(qp));
        for id in self.ids.numbers() {
            if self.ids[id].connects == Some(qp) {
                self.ids[id].connects = None;
            }
        }
    }

    /// True if a region has the right that windows require.
    pub(super) const fn may_bind(mr: &Mr) -> bool {
        mr.access & IBV_ACCESS_MW_BIND != 0
    }
}
