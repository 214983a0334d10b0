//! Posts to send and receive queues.

use core::ptr;

use flue_verbs_abi::{
    enums::{
        IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_REMOTE_READ, IBV_ACCESS_REMOTE_WRITE,
        IBV_ACCESS_ZERO_BASED, IBV_MW_TYPE_1, IBV_SEND_FENCE, IBV_SEND_INLINE, IBV_SEND_SIGNALED,
        IBV_SEND_SOLICITED, IBV_WR_ATOMIC_CMP_AND_SWP, IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WR_BIND_MW,
        IBV_WR_LOCAL_INV, IBV_WR_RDMA_READ, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM,
        IBV_WR_SEND, IBV_WR_SEND_WITH_INV, ibv_wr_opcode,
    },
    objects::{
        ibv_data_buf, ibv_mw_bind, ibv_mw_bind_info, ibv_qp_ex, ibv_recv_wr, ibv_send_wr,
        ibv_send_wr_atomic, ibv_send_wr_rdma, ibv_sge,
    },
};
use libc::{EINVAL, ENOMEM};

use super::{
    calls::Call,
    ffi,
    ledger::{Check, Payload, Queue, Request, Sent},
    memory::{AREA, CHECKED, PLACE, RECEIVES, SINKS, SOURCES, TARGETS},
    world::{World, status},
};

/// Maximum entries of a request; requests with more are rejected, regardless of their addresses.
const ENTRIES_MAX: usize = 16;
/// Maximum requests of one list.
const LIST_MAX: u8 = 12;

/// Local memory of a request.
#[derive(Clone, Default)]
struct Local {
    sges: Vec<ibv_sge>,
    /// A count that differs from the length of the list.
    count: Option<i32>,
    payload: Payload,
    /// True if every entry is within memory that permits the access.
    is_valid: bool,
}

/// Send request before its post.
struct Planned {
    wr: ibv_send_wr,
    local: Local,
    check: Check,
    /// Messages and Writes that the peer will observe, in order.
    sent: Vec<Sent>,
    opcode: u32,
    is_valid: bool,
}

/// Fields of [`Call::PostSend`].
#[derive(Clone, Copy)]
pub(super) struct SendPlan {
    pub(super) opcode: u8,
    pub(super) flags: u8,
    pub(super) shape: u8,
    pub(super) mr: u8,
    pub(super) length: u16,
    pub(super) remote: u8,
    pub(super) offset: u16,
    pub(super) wild: u16,
}

/// `ibv_wc_opcode` of a request.
fn completion_opcode(opcode: ibv_wr_opcode) -> u32 {
    match opcode {
        IBV_WR_RDMA_WRITE | IBV_WR_RDMA_WRITE_WITH_IMM => 1,
        IBV_WR_RDMA_READ => 2,
        IBV_WR_ATOMIC_CMP_AND_SWP => 3,
        IBV_WR_ATOMIC_FETCH_AND_ADD => 4,
        IBV_WR_BIND_MW => 5,
        IBV_WR_LOCAL_INV => 6,
        _ => 0,
    }
}

impl World {
    /// `count` entries in the constant areas, with `length` octets in total.
    fn checked_source(
        &mut self,
        pd: usize,
        offset: u16,
        length: usize,
        count: usize,
    ) -> Option<Local> {
        let mut local = Local { is_valid: true, ..Local::default() };
        let mut octets = Vec::new();
        let part = length / count;
        for entry in 0..count {
            let length = if entry + 1 == count { length - part * entry } else { part };
            let area = (usize::from(offset) + entry) % SOURCES;
            let at = (usize::from(offset) * 8 + entry * 40) % (AREA - length + 1);
            let mr = &self.mrs[self.region_of(pd, area)?];
            local.sges.push(ibv_sge {
                addr: mr.base() + at as u64,
                length: length as u32,
                lkey: mr.lkey(),
            });
            octets.extend(self.memory().copy(area, at, length)?);
        }
        local.payload = Payload { length: length as u32, octets: Some(octets), areas: Vec::new() };
        Some(local)
    }

    /// Entry in a region without a purpose.
    fn free_source(&mut self, pd: usize, choice: u8, offset: u16, length: usize) -> Option<Local> {
        let mr = self.free_region(choice)?;
        let mr = &self.mrs[mr];
        let length = length.min(mr.length);
        let from = usize::from(offset) % (mr.length - length + 1);
        let (area, at) = (mr.area, mr.at + from);
        let sges =
            vec![ibv_sge { addr: mr.base() + from as u64, length: length as u32, lkey: mr.lkey() }];
        let is_valid = mr.pd == pd;
        let areas: Option<Vec<_>> = self.memory().known(area).map(|taints| vec![(area, taints)]);
        let octets = areas.is_some().then(|| self.memory().copy(area, at, length)).flatten();
        let payload = Payload { length: length as u32, octets, areas: areas.unwrap_or_default() };
        Some(Local { sges, count: None, payload, is_valid })
    }

    /// Entries that are invalid in some way. The memory of a rejected entry is not accessed.
    fn wild_source(&mut self, pd: usize, plan: SendPlan) -> Option<Local> {
        let mut local = self.free_source(pd, plan.mr, plan.offset, plan.length.into())?;
        local.is_valid = false;
        local.payload.octets = None;
        let entry = local.sges.first_mut()?;
        match plan.wild % 6 {
            0 => entry.addr = entry.addr.wrapping_add(u64::from(plan.wild) << (plan.offset % 48)),
            1 => entry.length = u32::from(plan.wild) << (plan.offset % 16),
            2 => entry.lkey ^= 1 + u32::from(plan.wild >> 3) % 255,
            3 => local.count = Some(-1 - i32::from(plan.wild >> 3)),
            4 => local.sges = vec![*entry; 17],
            _ => local.sges = vec![*entry; 1 + usize::from(plan.wild >> 3) % 16],
        }
        let total: u64 = local.sges.iter().map(|entry| u64::from(entry.length)).sum();
        local.payload.length = u32::try_from(total).unwrap_or(u32::MAX);
        Some(local)
    }

    /// Remote memory of an unchecked request.
    fn wild_target(&self, plan: SendPlan) -> (u64, u32) {
        let SendPlan { remote, wild, offset, .. } = plan;
        let window = self.mws.pick(remote).filter(|_| remote & 0x40 != 0);
        if let Some(window) = window {
            // SAFETY: the window is live.
            let rkey = unsafe { (*self.mws[window].raw).rkey };
            let base = self.mws[window].regions.last().map_or(0, |mr| self.mrs[*mr].base());
            return (base + u64::from(offset), rkey);
        }
        let Some(mr) = self.free_region(remote) else { return (wild.into(), wild.into()) };
        let mr = &self.mrs[mr];
        let at = u64::from(offset) % (mr.length as u64 + 1) / 8 * 8;
        match remote >> 6 {
            3 => (mr.base().wrapping_add(u64::from(wild) << (offset % 40)), mr.rkey()),
            2 => (mr.base() + at, mr.rkey() ^ (1 + u32::from(wild) % 255)),
            _ => (mr.base() + at, mr.rkey()),
        }
    }

    /// Domain of the queue pair at the other end, if it exists.
    fn peer_pd(&self, qp: usize) -> Option<usize> {
        let (connection, end) = self.qps[qp].connection?;
        let peer = self.qps.find(|it| it.connection == Some((connection, 1 - end)))?;
        Some(self.qps[peer].pd)
    }

    fn plan_send(&mut self, qp: usize, plan: SendPlan) -> Option<Planned> {
        let opcode = [
            IBV_WR_SEND,
            IBV_WR_RDMA_WRITE,
            IBV_WR_RDMA_READ,
            IBV_WR_SEND_WITH_INV,
            IBV_WR_RDMA_WRITE_WITH_IMM,
            IBV_WR_ATOMIC_CMP_AND_SWP,
            IBV_WR_ATOMIC_FETCH_AND_ADD,
            ibv_wr_opcode(u32::from(plan.wild)),
        ][usize::from(plan.opcode % 8)];
        let pd = self.qps[qp].pd;
        let sges_max = self.qps[qp].send_sges_max as usize;
        let length = usize::from(plan.length);
        let mut wr = ibv_send_wr::zeroed();
        wr.opcode = opcode;
        let flags = IBV_SEND_FENCE | IBV_SEND_SIGNALED | IBV_SEND_SOLICITED | IBV_SEND_INLINE;
        wr.send_flags = u32::from(plan.flags) & flags;
        let is_inline = wr.send_flags & IBV_SEND_INLINE != 0;
        let is_write = opcode == IBV_WR_RDMA_WRITE || opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
        let is_read = opcode == IBV_WR_RDMA_READ;
        let is_known =
            is_write || is_read || opcode == IBV_WR_SEND || opcode == IBV_WR_SEND_WITH_INV;
        let shape = plan.shape % 8;
        let mut check = Check::Nothing;
        let mut sent = Vec::new();
        let mut target = None;
        let is_checked = shape < 4 && is_known;
        let local = if is_checked && is_read {
            let length = length % (PLACE + 1);
            let peer_pd = self.peer_pd(qp)?;
            let sink = self.region_of(pd, SINKS)?;
            let area = usize::from(plan.offset) % SOURCES;
            let at = usize::from(plan.offset) * 8 % (AREA - length + 1);
            let source =
                &self.mrs[self.region_of(peer_pd, area).filter(|it| self.mrs[*it].access != 0)?];
            target = Some((source.base() + at as u64, source.rkey()));
            let place = self.memory().take_place(SINKS)?;
            let expected = self.memory().copy(area, at, length)?;
            check = Check::Read { place, expected };
            let (addr, lkey) = (self.mrs[sink].base() + place as u64, self.mrs[sink].lkey());
            let sges = vec![ibv_sge { addr, length: length as u32, lkey }];
            Local { sges, is_valid: !is_inline, ..Local::default() }
        } else if is_checked {
            let most = if is_write {
                PLACE
            } else if shape == 3 {
                AREA
            } else {
                512
            };
            let length = length % (most + 1);
            let count = if shape == 0 { 1 } else { 1 + usize::from(plan.wild) % sges_max };
            let local = self.checked_source(pd, plan.offset, length, count)?;
            if is_write {
                let peer_pd = self.peer_pd(qp)?;
                let region = self.region_of(peer_pd, TARGETS)?;
                let place = self.memory().take_place(TARGETS)?;
                target = Some((self.mrs[region].base() + place as u64, self.mrs[region].rkey()));
                let octets = local.payload.octets.clone()?;
                sent.push(Sent::Write { place, octets });
            }
            local
        } else {
            match shape {
                4 => Local {
                    is_valid: true,
                    payload: Payload { octets: Some(Vec::new()), ..Payload::default() },
                    ..Local::default()
                },
                5 | 0..=3 => self.free_source(pd, plan.mr, plan.offset, length)?,
                _ => self.wild_source(pd, plan)?,
            }
        };
        let (remote_addr, rkey) = target.unwrap_or_else(|| self.wild_target(plan));
        wr.wr.rdma = ibv_send_wr_rdma { remote_addr, rkey };
        match opcode {
            IBV_WR_SEND => {
                sent.push(Sent::Send { payload: local.payload.clone(), invalidated: None })
            }
            IBV_WR_SEND_WITH_INV => {
                wr.imm_data = rkey;
                sent.push(Sent::Send { payload: local.payload.clone(), invalidated: Some(rkey) });
            }
            IBV_WR_RDMA_WRITE_WITH_IMM => {
                wr.imm_data = u32::from(plan.wild) << 8 | u32::from(plan.remote);
                sent.push(Sent::Immediate { data: wr.imm_data });
            }
            IBV_WR_ATOMIC_CMP_AND_SWP | IBV_WR_ATOMIC_FETCH_AND_ADD => {
                let (compare_add, swap) = (plan.wild.into(), plan.length.into());
                wr.wr.atomic = ibv_send_wr_atomic { remote_addr, compare_add, swap, rkey };
            }
            // Requests on other objects have separate calls.
            IBV_WR_LOCAL_INV | IBV_WR_BIND_MW => return None,
            _ => {}
        }
        let inline_max = self.qps[qp].inline_max;
        let fits = !is_inline || local.payload.length <= inline_max;
        let is_valid = is_known
            && fits
            && local.is_valid
            && local.sges.len() <= sges_max
            && (!is_read || self.qps[qp].has_reads && !is_inline);
        // Copied data must be accessible.
        let mut local = local;
        if is_inline && !self.resolve_inline(&mut local) {
            self.free(&check);
            return None;
        }
        Some(Planned { wr, local, check, sent, opcode: completion_opcode(opcode), is_valid })
    }

    /// Resolves inline data, which are addressed without registration. True if they are accessible.
    fn resolve_inline(&mut self, local: &mut Local) -> bool {
        if local.count.is_some() || local.sges.len() > ENTRIES_MAX {
            return true;
        }
        for entry in &mut local.sges {
            let mr = self.mrs.find(|it| it.lkey() == entry.lkey);
            let Some(mr) = mr.map(|mr| &self.mrs[mr]) else { return false };
            let from = entry.addr.wrapping_sub(mr.base());
            if from > mr.length as u64 || u64::from(entry.length) > mr.length as u64 - from {
                return false;
            }
            let (area, at) = (mr.area, mr.at + from as usize);
            entry.addr = self.memory().address(area, at) as u64;
        }
        true
    }

    pub(super) fn post_send(&mut self, qp: usize, plan: SendPlan, count: u8) {
        let count = 1 + if plan.shape & 8 != 0 { count % LIST_MAX } else { 0 };
        let mut list = Vec::new();
        for ahead in 0..count {
            let plan = SendPlan { offset: plan.offset.wrapping_add(u16::from(ahead)), ..plan };
            list.extend(self.plan_send(qp, plan));
        }
        let first = self.ledger.next(0);
        for (ahead, planned) in list.iter_mut().enumerate() {
            planned.wr.wr_id = self.ledger.next(ahead as u64);
            planned.wr.sg_list = planned.local.sges.as_mut_ptr();
            let count = planned.local.sges.len() as i32;
            planned.wr.num_sge = planned.local.count.unwrap_or(count);
        }
        let Some(last) = list.len().checked_sub(1) else { return };
        for at in 0..last {
            list[at].wr.next = &raw mut list[at + 1].wr;
        }
        let mut bad = ptr::null_mut();
        let raw = self.qps[qp].raw;
        // SAFETY: the queue pair is live, and the list is complete; invalid memory of the list is rejected.
        let returned = unsafe { ffi::post_send(raw, &raw mut list[0].wr, &raw mut bad) };
        assert_eq!(first, list[0].wr.wr_id);
        let has_posted = status("ibv_post_send", returned, &[EINVAL, ENOMEM]);
        let posted = match has_posted {
            true => list.len(),
            false => list
                .iter()
                .position(|it| ptr::eq(&raw const it.wr, bad))
                .expect("bad_wr is one of the list"),
        };
        for (at, planned) in list.into_iter().enumerate() {
            if at < posted {
                self.sent(qp, planned);
                continue;
            }
            if at == posted {
                self.validate_refusal(qp, &planned, returned);
            }
            self.forget(planned);
        }
    }

    /// Records a posted request.
    fn sent(&mut self, qp: usize, planned: Planned) {
        let Planned { wr, check, sent, opcode, .. } = planned;
        let is_signaled = wr.send_flags & IBV_SEND_SIGNALED != 0 || self.qps[qp].is_all_signaled;
        self.ledger.post(Request { queue: Queue::Send(qp), is_signaled, opcode, check });
        self.summary.sends += 1;
        if let Some((connection, end)) = self.qps[qp].connection {
            self.connections[connection].sent[end].extend(sent);
        }
    }

    /// Frees the places of a request that was not posted.
    fn forget(&mut self, planned: Planned) {
        self.free(&planned.check);
        for sent in planned.sent {
            if let Sent::Write { place, .. } = sent {
                self.memory().free_place(TARGETS, place);
            }
        }
    }

    /// Asserts that a valid request is rejected only with ENOMEM, and only if the queue is full.
    fn validate_refusal(&self, qp: usize, planned: &Planned, returned: i32) {
        let outstanding = self.ledger.of(Queue::Send(qp)).count();
        let QpRoom { sends_max, takes_sends } = self.room(qp);
        match returned {
            ENOMEM => assert!(
                outstanding >= sends_max,
                "ENOMEM with {outstanding} of {sends_max} outstanding"
            ),
            _ => assert!(
                !(planned.is_valid && takes_sends),
                "a valid request was rejected: {returned}, opcode {}, {} entries, flags {}, {} octets",
                planned.wr.opcode.0,
                planned.local.sges.len(),
                planned.wr.send_flags,
                planned.local.payload.length
            ),
        }
    }

    fn room(&self, qp: usize) -> QpRoom {
        let qp = &self.qps[qp];
        QpRoom { sends_max: qp.sends_max as usize, takes_sends: qp.takes_sends }
    }

    /// `ibv_wr_start` to `ibv_wr_complete` with one request.
    pub(super) fn build(&mut self, qp: usize, plan: SendPlan, finish: u8) {
        if !self.qps[qp].is_extended {
            return;
        }
        let Some(mut planned) = self.plan_send(qp, plan) else { return };
        // SAFETY: the queue pair is live, and was created with the extended interface.
        let ex = unsafe { ffi::ibv_qp_to_qp_ex(self.qps[qp].raw) };
        assert!(!ex.is_null(), "ibv_qp_to_qp_ex");
        if planned.local.count.is_some() || planned.local.sges.len() > ENTRIES_MAX {
            return self.forget(planned);
        }
        planned.wr.wr_id = self.ledger.next(0);
        // SAFETY: as above; the functions are those of the queue pair.
        let has_begun = unsafe { begin(ex, &planned) };
        if !has_begun || finish % 8 == 7 {
            // SAFETY: as above.
            unsafe { (*ex).wr_abort.expect("wr_abort")(ex) };
            self.ledger.skip();
            return self.forget(planned);
        }
        // SAFETY: as above.
        let returned = unsafe { (*ex).wr_complete.expect("wr_complete")(ex) };
        if status("ibv_wr_complete", returned, &[EINVAL, ENOMEM]) {
            self.sent(qp, planned);
        } else {
            self.validate_refusal(qp, &planned, returned);
            self.forget(planned);
        }
    }

    pub(super) fn bind_mw(&mut self, call: Call) {
        let Call::BindMw { qp, mw, mr, offset, length, access, flags, how } = call else { return };
        let (Some(qp), Some(mw)) = (self.qps.pick(qp), self.mws.pick(mw)) else { return };
        let Some(mr) = self.free_region(mr) else { return };
        let region = &self.mrs[mr];
        let (mut from, mut length) = (usize::from(offset), usize::from(length));
        let mut rights = u32::from(access);
        if how & 0xc0 != 0xc0 {
            from %= region.length;
            length %= region.length - from + 1;
            rights &= IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_ZERO_BASED;
        }
        let info = ibv_mw_bind_info {
            mr: region.raw,
            addr: region.base().wrapping_add(from as u64),
            length: length as u64,
            mw_access_flags: rights,
        };
        let may_bind = Self::may_bind(region);
        let (raw_qp, raw_mw) = (self.qps[qp].raw, self.mws[mw].raw);
        let send_flags = u32::from(flags) & (IBV_SEND_FENCE | IBV_SEND_SIGNALED);
        let wr_id = self.ledger.next(0);
        // SAFETY: window, region and queue pair are live.
        let (returned, is_one) = unsafe {
            let is_one = (*raw_mw).r#type == IBV_MW_TYPE_1;
            let returned = if is_one || how & 8 != 0 {
                let mut bind = ibv_mw_bind { wr_id, send_flags, bind_info: info };
                ffi::bind_mw(raw_qp, raw_mw, &raw mut bind)
            } else {
                let mut wr = ibv_send_wr::zeroed();
                (wr.wr_id, wr.opcode, wr.send_flags) = (wr_id, IBV_WR_BIND_MW, send_flags);
                wr.bind_mw.mw = raw_mw;
                wr.bind_mw.rkey = (*raw_mw).rkey ^ u32::from(how & 7);
                wr.bind_mw.bind_info = info;
                let mut bad = ptr::null_mut();
                ffi::post_send(raw_qp, &raw mut wr, &raw mut bad)
            };
            (returned, is_one)
        };
        if status("ibv_bind_mw", returned, &[EINVAL, ENOMEM]) {
            assert!(may_bind || is_one && length == 0, "a window was bound without the right");
            let is_signaled = send_flags & IBV_SEND_SIGNALED != 0 || self.qps[qp].is_all_signaled;
            let (queue, check) = (Queue::Send(qp), Check::Nothing);
            self.ledger.post(Request { queue, is_signaled, opcode: 5, check });
            self.mws[mw].regions.push(mr);
            self.summary.binds += 1;
        }
    }

    pub(super) fn invalidate_mw(&mut self, qp: usize, mw: usize, flags: u8, wild: u16) {
        let mut wr = ibv_send_wr::zeroed();
        (wr.wr_id, wr.opcode) = (self.ledger.next(0), IBV_WR_LOCAL_INV);
        wr.send_flags = u32::from(flags) & (IBV_SEND_FENCE | IBV_SEND_SIGNALED);
        // SAFETY: the window is live.
        wr.imm_data =
            unsafe { (*self.mws[mw].raw).rkey } ^ if wild & 7 == 7 { wild.into() } else { 0 };
        let mut bad = ptr::null_mut();
        // SAFETY: the queue pair is live.
        let returned = unsafe { ffi::post_send(self.qps[qp].raw, &raw mut wr, &raw mut bad) };
        if status("ibv_post_send", returned, &[EINVAL, ENOMEM]) {
            let is_signaled =
                wr.send_flags & IBV_SEND_SIGNALED != 0 || self.qps[qp].is_all_signaled;
            let (queue, check) = (Queue::Send(qp), Check::Nothing);
            self.ledger.post(Request { queue, is_signaled, opcode: 6, check });
        }
    }

    /// Receives of one of four kinds: with a place each, in a region without a purpose, without entries, or
    /// invalid.
    fn plan_receive(
        &mut self,
        pd: usize,
        shape: u8,
        choice: u8,
        length: u16,
    ) -> Option<(Local, Check)> {
        match shape % 8 {
            0..=3 => {
                let region = self.region_of(pd, RECEIVES)?;
                let place = self.memory().take_place(RECEIVES)?;
                let length = if shape & 3 == 0 { PLACE } else { usize::from(length) % (PLACE + 1) };
                let (addr, lkey) =
                    (self.mrs[region].base() + place as u64, self.mrs[region].lkey());
                let sges = vec![ibv_sge { addr, length: length as u32, lkey }];
                let local = Local { sges, is_valid: true, ..Local::default() };
                Some((local, Check::Receive { room: length as u64, place: Some(place) }))
            }
            4 => Some((
                Local { is_valid: true, ..Local::default() },
                Check::Receive { room: 0, place: None },
            )),
            _ => {
                let mr = self.free_region(choice)?;
                let mr = &self.mrs[mr];
                let length = usize::from(length).min(mr.length) as u32;
                let mut entry = ibv_sge { addr: mr.base(), length, lkey: mr.lkey() };
                let is_writable = mr.access & IBV_ACCESS_LOCAL_WRITE != 0 && mr.area >= CHECKED;
                let mut local = Local { is_valid: true, ..Local::default() };
                if shape % 8 == 6 {
                    entry.addr = entry.addr.wrapping_add(u64::from(length) << (choice % 40));
                    entry.lkey ^= u32::from(choice >> 6 == 3);
                } else if shape % 8 == 7 || !is_writable {
                    local.count = (choice & 1 != 0).then_some(-1 - i32::from(choice));
                    local.sges = vec![entry; usize::from(choice) % 17];
                    local.is_valid = false;
                }
                local.sges.push(entry);
                let room = local.sges.iter().map(|it| u64::from(it.length)).sum();
                Some((local, Check::Receive { room, place: None }))
            }
        }
    }

    pub(super) fn post_receives(
        &mut self,
        queue: Queue,
        count: u8,
        shape: u8,
        choice: u8,
        length: u16,
    ) {
        let (pd, most, sges_max) = match queue {
            Queue::Shared(srq) => (self.srqs[srq].pd, self.srqs[srq].depth, self.srqs[srq].sges),
            Queue::Send(qp) | Queue::Receive(qp) => {
                (self.qps[qp].pd, self.qps[qp].receives_max, self.qps[qp].receive_sges_max)
            }
        };
        let mut planned: Vec<_> = (0..1 + count % 64)
            .map_while(|_| self.plan_receive(pd, shape, choice, length))
            .collect();
        let mut list: Vec<_> = planned
            .iter_mut()
            .enumerate()
            .map(|(ahead, (local, _))| {
                let num_sge = local.count.unwrap_or(local.sges.len() as i32);
                let (wr_id, sg_list) = (self.ledger.next(ahead as u64), local.sges.as_mut_ptr());
                ibv_recv_wr { wr_id, next: ptr::null_mut(), sg_list, num_sge }
            })
            .collect();
        let Some(last) = list.len().checked_sub(1) else { return };
        for at in 0..last {
            list[at].next = &raw mut list[at + 1];
        }
        let mut bad = ptr::null_mut();
        // SAFETY: the queue is live, and the list is complete; its memory is not accessed by this call.
        let returned = unsafe {
            match queue {
                Queue::Shared(srq) => {
                    ffi::post_srq_recv(self.srqs[srq].raw, &raw mut list[0], &raw mut bad)
                }
                Queue::Send(qp) | Queue::Receive(qp) => {
                    ffi::post_recv(self.qps[qp].raw, &raw mut list[0], &raw mut bad)
                }
            }
        };
        let has_posted = status("ibv_post_recv", returned, &[EINVAL, ENOMEM]);
        let posted = match has_posted {
            true => list.len(),
            false => {
                list.iter().position(|it| ptr::eq(it, bad)).expect("bad_wr is one of the list")
            }
        };
        let outstanding = self.ledger.of(queue).count() + posted;
        for (at, (local, check)) in planned.into_iter().enumerate() {
            if at < posted {
                self.ledger.post(Request { queue, is_signaled: true, opcode: 128, check });
                self.summary.receives += 1;
                continue;
            }
            if at == posted && returned == ENOMEM {
                assert!(
                    outstanding >= most as usize,
                    "ENOMEM with {outstanding} of {most} outstanding"
                );
            } else if at == posted {
                let is_shared = matches!(queue, Queue::Receive(qp) if self.qps[qp].srq.is_some());
                let is_valid =
                    local.is_valid && local.sges.len() <= sges_max as usize && !is_shared;
                assert!(!is_valid, "a valid receive was rejected: {returned}");
            }
            self.free(&check);
        }
    }
}

/// Capacity of a send queue.
struct QpRoom {
    sends_max: usize,
    takes_sends: bool,
}

/// Builds a request. True if the interface has a function for it.
///
/// # Safety
/// The queue pair is live and was created with the extended interface; memory of inline data is accessible.
unsafe fn begin(ex: *mut ibv_qp_ex, planned: &Planned) -> bool {
    let Planned { wr, local, .. } = planned;
    // SAFETY: guaranteed by the caller; the opcode selects the member of the union.
    unsafe {
        let (rdma, atomic) = (wr.wr.rdma, wr.wr.atomic);
        (*ex).wr_start.expect("wr_start")(ex);
        (*ex).wr_id = wr.wr_id;
        (*ex).wr_flags = wr.send_flags;
        match wr.opcode {
            IBV_WR_SEND => (*ex).wr_send.expect("wr_send")(ex),
            IBV_WR_SEND_WITH_INV => (*ex).wr_send_inv.expect("wr_send_inv")(ex, wr.imm_data),
            IBV_WR_RDMA_WRITE => {
                (*ex).wr_rdma_write.expect("wr_rdma_write")(ex, rdma.rkey, rdma.remote_addr)
            }
            IBV_WR_RDMA_READ => {
                (*ex).wr_rdma_read.expect("wr_rdma_read")(ex, rdma.rkey, rdma.remote_addr)
            }
            IBV_WR_RDMA_WRITE_WITH_IMM => {
                let write = (*ex).wr_rdma_write_imm.expect("wr_rdma_write_imm");
                write(ex, rdma.rkey, rdma.remote_addr, wr.imm_data);
            }
            IBV_WR_ATOMIC_CMP_AND_SWP => {
                let swap = (*ex).wr_atomic_cmp_swp.expect("wr_atomic_cmp_swp");
                swap(ex, atomic.rkey, atomic.remote_addr, atomic.compare_add, atomic.swap);
            }
            IBV_WR_ATOMIC_FETCH_AND_ADD => {
                let add = (*ex).wr_atomic_fetch_add.expect("wr_atomic_fetch_add");
                add(ex, atomic.rkey, atomic.remote_addr, atomic.compare_add);
            }
            _ => return false,
        }
        if wr.send_flags & IBV_SEND_INLINE != 0 {
            let part =
                |it: &ibv_sge| ibv_data_buf { addr: it.addr as *mut _, length: it.length as usize };
            let parts: Vec<_> = local.sges.iter().map(part).collect();
            match parts[..] {
                [one] => (*ex).wr_set_inline_data.expect("inline")(ex, one.addr, one.length),
                _ => {
                    (*ex).wr_set_inline_data_list.expect("inline")(ex, parts.len(), parts.as_ptr())
                }
            }
        } else {
            match local.sges[..] {
                [one] => (*ex).wr_set_sge.expect("sge")(ex, one.lkey, one.addr, one.length),
                _ => {
                    (*ex).wr_set_sge_list.expect("sges")(ex, local.sges.len(), local.sges.as_ptr())
                }
            }
        }
    }
    true
}
