//! Objects of a script, with the expected state.

use core::ops::{Index, IndexMut};
use std::{io, sync::MutexGuard};

use flue_verbs_abi::{
    cm::{rdma_cm_event, rdma_cm_id, rdma_event_channel},
    enums::IBV_ACCESS_ZERO_BASED,
    objects::{ibv_async_event, ibv_comp_channel, ibv_cq, ibv_mr, ibv_mw, ibv_pd, ibv_qp, ibv_srq},
};

use super::{
    Summary,
    ledger::{Connection, Ledger},
    memory::Memory,
    watch::ProcessState,
};

/// Objects of one kind, by a number that is never reused.
#[derive(Debug)]
pub(super) struct Table<T> {
    all: Vec<Option<T>>,
    live_max: usize,
}

impl<T> Table<T> {
    const fn new(live_max: usize) -> Self {
        Self { all: Vec::new(), live_max }
    }

    pub(super) fn live(&self) -> impl Iterator<Item = (usize, &T)> {
        self.all.iter().enumerate().filter_map(|(at, it)| Some((at, it.as_ref()?)))
    }

    pub(super) fn numbers(&self) -> Vec<usize> {
        self.live().map(|(at, _)| at).collect()
    }

    /// True if a script may create another object.
    pub(super) fn has_room(&self) -> bool {
        self.live().count() < self.live_max
    }

    pub(super) fn insert(&mut self, made: T) -> usize {
        self.all.push(Some(made));
        self.all.len() - 1
    }

    pub(super) fn get(&self, at: usize) -> Option<&T> {
        self.all.get(at)?.as_ref()
    }

    pub(super) fn remove(&mut self, at: usize) -> Option<T> {
        self.all.get_mut(at)?.take()
    }

    /// Number of a live object: `choice` modulo the number of live objects.
    pub(super) fn pick(&self, choice: u8) -> Option<usize> {
        let count = self.live().count();
        let chosen = usize::from(choice).checked_rem(count)?;
        self.live().nth(chosen).map(|(at, _)| at)
    }

    pub(super) fn find(&self, is_it: impl Fn(&T) -> bool) -> Option<usize> {
        self.live().find(|(_, it)| is_it(it)).map(|(at, _)| at)
    }
}

impl<T> Index<usize> for Table<T> {
    type Output = T;

    fn index(&self, at: usize) -> &T {
        self.all[at].as_ref().expect("a live object")
    }
}

impl<T> IndexMut<usize> for Table<T> {
    fn index_mut(&mut self, at: usize) -> &mut T {
        self.all[at].as_mut().expect("a live object")
    }
}

#[derive(Debug)]
pub(super) struct Pd {
    pub(super) raw: *mut ibv_pd,
}

#[derive(Debug)]
pub(super) struct Mr {
    pub(super) raw: *mut ibv_mr,
    pub(super) pd: usize,
    pub(super) area: usize,
    pub(super) access: u32,
    /// Offset in the area, and length.
    pub(super) at: usize,
    pub(super) length: usize,
    /// Address of the first byte of the request.
    pub(super) iova: u64,
}

impl Mr {
    /// Base address for requests.
    pub(super) const fn base(&self) -> u64 {
        if self.access & IBV_ACCESS_ZERO_BASED != 0 { 0 } else { self.iova }
    }

    pub(super) fn lkey(&self) -> u32 {
        // SAFETY: the region is live.
        unsafe { (*self.raw).lkey }
    }

    pub(super) fn rkey(&self) -> u32 {
        // SAFETY: the region is live.
        unsafe { (*self.raw).rkey }
    }
}

#[derive(Debug)]
pub(super) struct Mw {
    pub(super) raw: *mut ibv_mw,
    pub(super) pd: usize,
    /// Regions of the posted binds.
    pub(super) regions: Vec<usize>,
}

#[derive(Debug)]
pub(super) struct Channel {
    pub(super) raw: *mut ibv_comp_channel,
}

pub(super) struct Cq {
    pub(super) raw: *mut ibv_cq,
    pub(super) channel: Option<usize>,
    /// Requested notifications minus received events.
    pub(super) arms: u32,
    /// True if one of them is for any completion.
    pub(super) is_armed_any: bool,
    /// True if the queue was empty afterwards.
    pub(super) is_armed_empty: bool,
    /// True if a completion has arrived since: an event must follow.
    pub(super) is_event_due: bool,
    /// Events to be acknowledged.
    pub(super) held: u32,
    pub(super) held_async: Vec<ibv_async_event>,
    /// True if its failure was reported.
    pub(super) has_failed: bool,
    /// True if an event has arrived that was not requested: the failure must be reported.
    pub(super) needs_failure: bool,
    pub(super) is_failure_reported: bool,
}

pub(super) struct Srq {
    pub(super) raw: *mut ibv_srq,
    pub(super) pd: usize,
    pub(super) depth: u32,
    pub(super) sges: u32,
    /// Limits set minus received limit events.
    pub(super) limits: u32,
    pub(super) held_async: Vec<ibv_async_event>,
}

pub(super) struct Qp {
    pub(super) raw: *mut ibv_qp,
    pub(super) number: u32,
    pub(super) pd: usize,
    pub(super) send_cq: usize,
    pub(super) receive_cq: usize,
    pub(super) srq: Option<usize>,
    /// Identifier that it was created with.
    pub(super) id: Option<usize>,
    pub(super) is_extended: bool,
    pub(super) is_all_signaled: bool,
    pub(super) sends_max: u32,
    pub(super) receives_max: u32,
    pub(super) send_sges_max: u32,
    pub(super) receive_sges_max: u32,
    pub(super) inline_max: u32,
    /// True if it has been connected, or is in error, and was not reset since.
    pub(super) takes_sends: bool,
    /// True if its connection supports Reads.
    pub(super) has_reads: bool,
    /// Connection, and the end of it.
    pub(super) connection: Option<(usize, usize)>,
    pub(super) held_async: Vec<ibv_async_event>,
    /// Failures reported.
    pub(super) failures: u32,
    pub(super) last_receives: u32,
    /// Connections and connection attempts of the queue pair.
    pub(super) attempts: u32,
    /// Transitions to its error state or to reset.
    pub(super) ends: u32,
}

/// Stage of an identifier.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stage {
    Idle,
    Bound,
    AddressRequested,
    AddressResolved,
    RouteRequested,
    RouteResolved,
    Connecting,
    Listening,
    Requested,
    Accepting,
    Established,
    /// `rdma_disconnect` was called; the event has not arrived.
    Disconnecting,
    Over,
}

#[derive(Debug)]
pub(super) struct Id {
    pub(super) raw: *mut rdma_cm_id,
    pub(super) channel: usize,
    pub(super) stage: Stage,
    /// Queue pair of `rdma_create_qp`.
    pub(super) qp: Option<usize>,
    /// Queue pair that it connects.
    pub(super) connects: Option<usize>,
    /// Number of connects.
    pub(super) attempt: u32,
    /// For a request: the client and its attempt, from the private data.
    pub(super) client: Option<(usize, u32)>,
    /// Connection, once it is accepted.
    pub(super) connection: Option<usize>,
    /// True if the peer or this side requests Reads.
    pub(super) has_reads: bool,
    pub(super) held: Vec<*mut rdma_cm_event>,
    /// True for a listener, which must acknowledge the events of its requests too.
    pub(super) is_listener: bool,
}

/// State of a script.
pub(super) struct World {
    pub(super) process_state: MutexGuard<'static, ProcessState>,
    pub(super) ledger: Ledger,
    pub(super) summary: Summary,
    pub(super) pds: Table<Pd>,
    pub(super) mrs: Table<Mr>,
    pub(super) mws: Table<Mw>,
    pub(super) channels: Table<Channel>,
    pub(super) cqs: Table<Cq>,
    pub(super) srqs: Table<Srq>,
    pub(super) qps: Table<Qp>,
    pub(super) ids: Table<Id>,
    pub(super) cm_channels: Vec<*mut rdma_event_channel>,
    pub(super) connections: Vec<Connection>,
}

impl World {
    pub(super) fn new(process_state: MutexGuard<'static, ProcessState>) -> Self {
        let mut world = Self {
            process_state,
            ledger: Ledger::default(),
            summary: Summary::default(),
            pds: Table::new(3),
            mrs: Table::new(14),
            mws: Table::new(5),
            channels: Table::new(2),
            cqs: Table::new(4),
            srqs: Table::new(2),
            qps: Table::new(8),
            ids: Table::new(9),
            cm_channels: Vec::new(),
            connections: Vec::new(),
        };
        world.make_cm_channels();
        world
    }

    pub(super) fn memory(&mut self) -> &mut Memory {
        &mut self.process_state.memory
    }

    /// True if a domain has objects.
    pub(super) fn is_pd_used(&self, pd: usize) -> bool {
        self.mrs.live().any(|(_, it)| it.pd == pd)
            || self.mws.live().any(|(_, it)| it.pd == pd)
            || self.srqs.live().any(|(_, it)| it.pd == pd)
            || self.qps.live().any(|(_, it)| it.pd == pd)
    }
}

/// errno of the last call.
pub(super) fn errno() -> i32 {
    io::Error::last_os_error().raw_os_error().unwrap_or_default()
}

/// Checks the result of a call that returns an error number. True on success.
///
/// # Panics
/// If the call does not have this error number.
pub(super) fn status(call: &str, returned: i32, errors: &[i32]) -> bool {
    assert!(returned == 0 || errors.contains(&returned), "{call} has returned {returned}");
    returned == 0
}

/// Checks the result of a call that returns 0, or -1 and sets errno. True on success.
///
/// # Panics
/// If it returns another value, or errno is not one of the call's.
pub(super) fn done(call: &str, returned: i32, errors: &[i32]) -> bool {
    if returned != 0 {
        let errno = errno();
        assert!(returned == -1 && errors.contains(&errno), "{call}: {returned}, errno {errno}");
    }
    returned == 0
}

/// Checks the result of a call that returns an object, or null and sets errno.
///
/// # Panics
/// If errno is not one of the call's.
pub(super) fn made<T>(call: &str, returned: *mut T, errors: &[i32]) -> Option<*mut T> {
    if returned.is_null() {
        let errno = errno();
        assert!(errors.contains(&errno), "{call}: errno {errno}");
        return None;
    }
    Some(returned)
}
