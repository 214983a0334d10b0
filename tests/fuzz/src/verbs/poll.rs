//! Completions and events, and their checks.

use core::{ffi::c_void, ptr};

use flue_verbs_abi::{
    enums::{
        IBV_EVENT_CQ_ERR, IBV_EVENT_QP_ACCESS_ERR, IBV_EVENT_QP_FATAL,
        IBV_EVENT_QP_LAST_WQE_REACHED, IBV_EVENT_QP_REQ_ERR, IBV_EVENT_SRQ_LIMIT_REACHED,
        IBV_WC_WITH_IMM, IBV_WC_WITH_INV,
    },
    objects::{ibv_async_event, ibv_context, ibv_wc},
};
use libc::EAGAIN;

use super::{
    ffi,
    ledger::{Check, Queue, Sent},
    memory::{PLACE, RECEIVES, SINKS, TARGETS},
    world::{World, errno},
};

const SUCCESS: u32 = 0;
const FLUSHED: u32 = 5;
/// Values of `ibv_wc_status` for requests on iWARP.
const STATUSES: [u32; 9] = [SUCCESS, 1, 2, 4, FLUSHED, 9, 10, 11, 12];
/// Receive bit of `ibv_wc_opcode`.
const RECEIVE: u32 = 128;

fn text(wc: &ibv_wc) -> String {
    format!("status {}, opcode {}, queue pair {}", wc.status.0, wc.opcode.0, wc.qp_num)
}

/// Completions.
impl World {
    /// Polls a completion queue. Returns the number of completions.
    pub(super) fn poll_cq(&mut self, cq: usize, count: u8) -> usize {
        let mut places = [ibv_wc::zeroed(); 16];
        let asked = usize::from(count).min(places.len());
        // SAFETY: the queue is live, and the output array has `asked` entries.
        let polled = unsafe { ffi::poll_cq(self.cqs[cq].raw, asked as i32, places.as_mut_ptr()) };
        let polled = usize::try_from(polled).unwrap_or_else(|_| panic!("ibv_poll_cq: {polled}"));
        assert!(polled <= asked, "ibv_poll_cq: {polled} of {asked}");
        for wc in &places[..polled] {
            self.completed(cq, wc);
        }
        let state = &mut self.cqs[cq];
        if polled > 0 {
            state.is_event_due |= state.is_armed_empty;
            state.is_armed_empty = false;
        } else if asked > 0 && state.arms > 0 {
            state.is_armed_empty = state.is_armed_any;
        }
        polled
    }

    fn completed(&mut self, cq: usize, wc: &ibv_wc) {
        let text = text(wc);
        assert!(STATUSES.contains(&wc.status.0), "not a status of iWARP: {text}");
        let qp = self.qps.find(|it| it.number == wc.qp_num);
        let qp =
            qp.unwrap_or_else(|| panic!("a completion after the end of its queue pair: {text}"));
        let (request, silent) = self.ledger.complete(wc.wr_id, &text);
        for passed in silent {
            self.check_read(&passed.check, true);
            self.free(&passed.check);
        }
        let is_success = wc.status.0 == SUCCESS;
        self.summary.completions += 1;
        self.summary.successes += u64::from(is_success);
        self.summary.flushed += u64::from(wc.status.0 == FLUSHED);
        match request.queue {
            Queue::Send(of) => {
                assert_eq!((of, cq), (qp, self.qps[qp].send_cq), "wrong queue: {text}");
                assert!(
                    request.is_signaled || !is_success,
                    "a completion of an unsignaled success: {text}"
                );
                assert!(
                    !is_success || wc.opcode.0 == request.opcode,
                    "{text}, not {}",
                    request.opcode
                );
                self.check_read(&request.check, is_success);
            }
            Queue::Receive(of) => {
                assert_eq!((of, cq), (qp, self.qps[qp].receive_cq), "wrong queue: {text}");
            }
            Queue::Shared(of) => {
                assert_eq!(
                    (Some(of), cq),
                    (self.qps[qp].srq, self.qps[qp].receive_cq),
                    "wrong queue: {text}"
                );
            }
        }
        if let Check::Receive { room, place } = request.check {
            assert!(wc.opcode.0 & RECEIVE != 0, "a receive's completion: {text}");
            if is_success {
                self.received(qp, wc, room, place);
            }
        }
        self.free(&request.check);
    }

    fn check_read(&mut self, check: &Check, is_success: bool) {
        if let Check::Read { place, expected } = check
            && is_success
        {
            let found = self.memory().copy(SINKS, *place, expected.len());
            assert!(
                found.as_deref() == Some(expected),
                "wrong data of a Read: {found:?}, not {expected:?}"
            );
            self.summary.checked += 1;
        }
    }

    /// Checks a received message: the next one that the peer has sent. Earlier Writes must be visible.
    fn received(&mut self, qp: usize, wc: &ibv_wc, room: u64, place: Option<usize>) {
        let text = text(wc);
        assert!(
            u64::from(wc.byte_len) <= room,
            "more octets than the receive has room for: {text}"
        );
        let Some((connection, end)) = self.qps[qp].connection else { return };
        loop {
            let sent = self.connections[connection].sent[1 - end].pop_front();
            match sent.unwrap_or_else(|| panic!("a message that was not sent: {text}")) {
                Sent::Write { place, octets } => {
                    let found = self.memory().copy(TARGETS, place, octets.len());
                    assert!(found.as_ref() == Some(&octets), "wrong data of a Write");
                    self.memory().free_place(TARGETS, place);
                    self.summary.checked += 1;
                }
                Sent::Immediate { data } => {
                    assert_eq!((wc.opcode.0, wc.byte_len), (RECEIVE + 1, 0), "{text}");
                    assert_eq!((wc.wc_flags, wc.imm_data), (IBV_WC_WITH_IMM, data), "{text}");
                    self.summary.messages += 1;
                    return;
                }
                Sent::Send { payload, invalidated } => {
                    assert_eq!((wc.opcode.0, wc.byte_len), (RECEIVE, payload.length), "{text}");
                    let flags = if invalidated.is_some() { IBV_WC_WITH_INV } else { 0 };
                    assert_eq!(wc.wc_flags, flags, "{text}");
                    assert!(invalidated.is_none_or(|key| wc.imm_data == key), "{text}");
                    self.summary.messages += 1;
                    let certain = payload.certain(&self.process_state.memory).map(<[u8]>::to_vec);
                    if let (Some(expected), Some(place)) = (certain, place) {
                        assert!(expected.len() <= PLACE);
                        let found = self.memory().copy(RECEIVES, place, expected.len());
                        assert!(found == Some(expected), "wrong data of a Send");
                        self.summary.checked += 1;
                    }
                    return;
                }
            }
        }
    }

    pub(super) fn notify(&mut self, cq: usize, is_solicited: bool) {
        // SAFETY: the queue is live.
        let returned = unsafe { ffi::req_notify_cq(self.cqs[cq].raw, is_solicited.into()) };
        assert_eq!(returned, 0, "ibv_req_notify_cq");
        let cq = &mut self.cqs[cq];
        cq.arms += 1;
        cq.is_armed_any |= !is_solicited;
    }

    /// Polls an event of a channel. True if there was one.
    pub(super) fn cq_event(&mut self, channel: usize, is_held: bool) -> bool {
        let (mut found, mut context) = (ptr::null_mut(), ptr::null_mut::<c_void>());
        let raw = self.channels[channel].raw;
        // SAFETY: the channel is live, and the output pointers are valid.
        if unsafe { ffi::ibv_get_cq_event(raw, &raw mut found, &raw mut context) } != 0 {
            assert_eq!(errno(), EAGAIN, "ibv_get_cq_event");
            return false;
        }
        let cq = self.cqs.find(|it| it.raw == found).expect("an event of a live completion queue");
        let state = &mut self.cqs[cq];
        assert_eq!(state.channel, Some(channel), "an event on another channel");
        // The failure of the queue is reported on the channel as well.
        let is_asked = state.arms > 0 || !state.is_failure_reported;
        assert!(is_asked, "an event that was not requested");
        if state.arms == 0 {
            state.is_failure_reported = true;
            state.needs_failure = true;
        }
        state.arms = state.arms.saturating_sub(1);
        (state.is_armed_any, state.is_armed_empty, state.is_event_due) = (false, false, false);
        state.held += 1;
        self.summary.events += 1;
        if !is_held {
            self.acknowledge_cq_events(cq);
        }
        true
    }

    fn acknowledge_cq_events(&mut self, cq: usize) {
        let held = core::mem::take(&mut self.cqs[cq].held);
        if held > 0 {
            // SAFETY: the queue is live, and this number of its events was returned.
            unsafe { ffi::ibv_ack_cq_events(self.cqs[cq].raw, held) };
        }
    }
}

fn acknowledge(held: Vec<ibv_async_event>) {
    for mut event in held {
        // SAFETY: the event was returned, and its object is live.
        unsafe { ffi::ibv_ack_async_event(&raw mut event) };
    }
}

/// Asynchronous events.
impl World {
    pub(super) fn acknowledge_of_cq(&mut self, cq: usize) {
        self.acknowledge_cq_events(cq);
        acknowledge(core::mem::take(&mut self.cqs[cq].held_async));
    }

    pub(super) fn acknowledge_of_srq(&mut self, srq: usize) {
        acknowledge(core::mem::take(&mut self.srqs[srq].held_async));
    }

    pub(super) fn acknowledge_of_qp(&mut self, qp: usize) {
        acknowledge(core::mem::take(&mut self.qps[qp].held_async));
    }

    /// Polls an event of either open device. True if there was one.
    pub(super) fn async_event(&mut self, is_held: bool) -> bool {
        let (own, theirs) = (self.process_state.context, self.process_state.of_identifiers);
        self.async_event_of(own, is_held) || self.async_event_of(theirs, is_held)
    }

    fn async_event_of(&mut self, context: *mut ibv_context, is_held: bool) -> bool {
        let mut event = ibv_async_event::zeroed();
        // SAFETY: the device is open, and the output pointer is valid.
        if unsafe { ffi::ibv_get_async_event(context, &raw mut event) } != 0 {
            assert_eq!(errno(), EAGAIN, "ibv_get_async_event");
            return false;
        }
        self.summary.events += 1;
        let kind = event.event_type;
        let live = "an event of an object that is live";
        // SAFETY: the event type selects the member of the union.
        let (of_cq, of_qp, of_srq) =
            unsafe { (event.element.cq, event.element.qp, event.element.srq) };
        let held = match kind {
            IBV_EVENT_CQ_ERR => {
                let cq = self.cqs.find(|it| it.raw == of_cq).expect(live);
                self.cqs[cq].has_failed = true;
                self.summary.overruns += 1;
                &mut self.cqs[cq].held_async
            }
            IBV_EVENT_SRQ_LIMIT_REACHED => {
                let srq = self.srqs.find(|it| it.raw == of_srq).expect(live);
                let srq = &mut self.srqs[srq];
                assert!(srq.limits > 0, "a limit was reached that was not set");
                srq.limits -= 1;
                &mut srq.held_async
            }
            IBV_EVENT_QP_FATAL | IBV_EVENT_QP_REQ_ERR | IBV_EVENT_QP_ACCESS_ERR => {
                let qp = self.qps.find(|it| it.raw == of_qp).expect(live);
                let qp = &mut self.qps[qp];
                qp.failures += 1;
                assert!(qp.failures <= qp.attempts, "more failures than connections");
                &mut qp.held_async
            }
            IBV_EVENT_QP_LAST_WQE_REACHED => {
                let qp = self.qps.find(|it| it.raw == of_qp).expect(live);
                let qp = &mut self.qps[qp];
                qp.last_receives += 1;
                assert!(qp.srq.is_some(), "a last receive without a shared queue");
                // A failed queue ends its queue pairs, connected or not (NDK-CQ-13).
                let queues = [qp.send_cq, qp.receive_cq];
                let failed = queues.iter().filter(|cq| self.cqs[**cq].has_failed).count() as u32;
                let ends = qp.attempts + qp.ends + failed;
                assert!(qp.last_receives <= ends, "more last receives than ends");
                &mut qp.held_async
            }
            _ => panic!("asynchronous event {}", kind.0),
        };
        held.push(event);
        if !is_held {
            acknowledge(core::mem::take(held));
        }
        true
    }
}
