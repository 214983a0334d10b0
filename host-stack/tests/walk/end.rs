//! One end of one connection: its posts, migrations and close.

use std::collections::VecDeque;

use bytes::Bytes;
use flue_test_support::{check, stream::Stream};
use host_stack::{
    node::Core,
    socket::HostError,
    socket::SocketState,
    stream::{OffloadState, StreamStatus},
};
use offload_engine::{
    chimney::client::OffloadHandle,
    nbl::{NblChain, NetBuffer, NetBufferList},
    status::NdisStatus,
    time::{Duration, Instant},
};
use oorandom::Rand64;

use crate::{
    client::Walker,
    incidents::{CoverageEvent, Ending},
    plan::Plan,
};

/// Maximum posted and unacknowledged bytes of an end.
const POSTED_BYTES_MAX: usize = 200_000;
/// Maximum time between an end's last bytes and its FIN, in microseconds: up to several round trips.
const SHUTDOWN_PAUSE_MAX: u64 = 10_000;
/// Maximum migrations of one connection at one end, so that a walk ends.
const MOVES_MAX: u64 = 60;
/// Maximum number of requests at once in hasty runs.
const REQUESTS_MAX: u64 = 4;
/// Length of a writer's pause, in seconds: longer than the validity of a neighbor.
const PAUSE_SECONDS: core::ops::Range<u64> = 35..90;

/// Time after which an end is reset if the peer's reset, or the link, was lost.
pub(crate) const ABORT_TIMEOUT: Duration = Duration::from_secs(1_800);

/// One end of one connection.
pub(crate) struct End {
    pub(crate) node: usize,
    /// Queue of the node that the connection belongs to.
    pub(crate) queue: usize,
    /// Index of the connection.
    index: usize,
    pub(crate) handle: Option<OffloadHandle>,
    pub(crate) data: Vec<u8>,
    pub(crate) sent: usize,
    /// Time of its FIN; known once everything is posted.
    shuts_at: Option<Instant>,
    shut: bool,
    rng: Rand64,
    /// Sizes of the incomplete lists, in bytes.
    pub(crate) ledger: VecDeque<usize>,
    last_context: u64,
    pub(crate) moves: u64,
    pub(crate) is_over: bool,
    /// End of the pause in posting; `None` before the pause.
    paused_until: Option<Instant>,
    /// True if it may end before all data is transferred.
    pub(crate) may_end_early: bool,
    /// Remaining turns before it resets the connection.
    abort_in: Option<u64>,
    /// Alternative time of the reset.
    pub(crate) abort_at: Option<Instant>,
    pub(crate) has_aborted: bool,
    /// True if a list has completed unsent: no later one completes as sent.
    has_failed: bool,
    /// Time of its last offload request after its last migration.
    requested_at: Instant,
    /// State at a migration request made one turn before the reset.
    state_at_request: Option<&'static str>,
}

impl End {
    pub(crate) fn new(node: usize, index: usize, plan: &Plan, rng: &mut Rand64) -> Self {
        let mut rng = Rand64::new(u128::from(rng.rand_u64()));
        let mut data = vec![0; plan.bytes[index][node]];
        Stream::new(rng.rand_u64()).fill(&mut data);
        let may_end_early = plan.incidents.may_end_early(index);
        let abort_in = match plan.incidents.ending {
            Ending::Abort { by, turns } if may_end_early && by[node] => Some(turns[node]),
            _ => None,
        };
        Self {
            node,
            queue: if node == 0 { plan.queues.of_opened(index) } else { 0 },
            index,
            handle: None,
            data,
            sent: 0,
            shuts_at: None,
            shut: false,
            rng,
            ledger: VecDeque::new(),
            last_context: 0,
            moves: 0,
            is_over: false,
            paused_until: None,
            may_end_early,
            abort_in,
            abort_at: None,
            has_aborted: false,
            has_failed: false,
            requested_at: Instant::ZERO,
            state_at_request: None,
        }
    }

    /// One turn: posts, migrates, processes completions.
    pub(crate) fn act(
        &mut self,
        core: &mut Core,
        now: Instant,
        plan: &Plan,
        window_is_closed: impl Fn() -> bool,
    ) -> Option<StreamStatus> {
        let handle = self.handle?;
        core.clients.first_mut::<Walker>().add_reader(handle);
        let status = core.clients.first::<Walker>().streams.status(handle)?;
        if !status.closed {
            self.abort(core, now, handle, plan, status);
        }
        if status.connected && !status.closed {
            if !self.pauses(now, plan) {
                self.post(core, now, handle, plan.list_bytes_max, status);
            }
            if plan.walks(self.node) {
                self.step(core, now, handle, plan, window_is_closed);
            }
        } else if !status.closed && plan.incidents.early_requests && self.may_move(plan) {
            self.moves += 1;
            self.request_moves(core, handle, "handshake");
        }
        self.settle(core, handle);
        core.clients.first::<Walker>().streams.status(handle)
    }

    /// The other end may have ended: this one is notified, or is reset after a time limit.
    pub(crate) fn follow(&mut self, other: &Self, now: Instant) {
        if other.may_end_early && other.is_over {
            // The connection was never accepted.
            self.is_over |= self.handle.is_none();
            self.abort_at.get_or_insert(now + ABORT_TIMEOUT);
        }
    }

    /// True if it may still migrate.
    pub(crate) fn decides(&self) -> bool {
        self.moves < MOVES_MAX && !self.is_over || self.abort_in.is_some_and(|turns| turns > 0)
    }

    /// Resets the connection if that is due.
    fn abort(
        &mut self,
        core: &mut Core,
        now: Instant,
        handle: OffloadHandle,
        plan: &Plan,
        status: StreamStatus,
    ) {
        let is_late = self.abort_at.is_some_and(|at| at <= now);
        // A stack with unacknowledged data times out eventually.
        assert!(
            !is_late || status.unacknowledged == 0,
            "node {} at {now:?}, {status:?}, {:?}",
            self.node,
            core.engine.snapshot(now, handle).map(|snapshot| (snapshot.info, snapshot.tcp.cached))
        );
        if !is_late && self.abort_in != Some(0) {
            self.abort_in = self.abort_in.map(|turns| turns - 1);
            // The consequences are in progress at the next turn.
            match status.state {
                _ if self.abort_in != Some(0) || !plan.incidents.early_requests => {}
                OffloadState::InHost => core.clients.first_mut::<Walker>().streams.offload(handle),
                _ => core.clients.first_mut::<Walker>().streams.upload(handle),
            }
            self.state_at_request = plan.incidents.early_requests.then_some(name(status.state));
            return;
        }
        let situation = match self.state_at_request {
            _ if !status.connected => "handshake",
            Some("InHost") => "offload begun",
            Some("Offloaded") => "upload begun",
            _ => name(status.state),
        };
        core.clients.first_mut::<Walker>().seen.note(CoverageEvent::Aborted(situation));
        core.clients.first_mut::<Walker>().streams.abort(now, core.engine.connections(), handle);
        self.has_aborted = true;
    }

    /// Pauses once after half of the data.
    fn pauses(&mut self, now: Instant, plan: &Plan) -> bool {
        if !plan.incidents.pauses || self.sent < self.data.len() / 2 {
            return false;
        }
        let rng = &mut self.rng;
        let until = self
            .paused_until
            .get_or_insert_with(|| now + Duration::from_secs(rng.rand_range(PAUSE_SECONDS)));
        now < *until
    }

    fn post(
        &mut self,
        core: &mut Core,
        now: Instant,
        handle: OffloadHandle,
        list_bytes_max: u64,
        status: StreamStatus,
    ) {
        let mut unacknowledged = status.unacknowledged;
        while self.sent < self.data.len() && unacknowledged < POSTED_BYTES_MAX {
            let mut chain = NblChain::new();
            for _ in 0..1 + self.rng.rand_range(0..3) {
                if self.sent < self.data.len() {
                    let list = self.list(list_bytes_max);
                    unacknowledged += list.data_length();
                    self.ledger.push_back(list.data_length());
                    chain.push_back(list);
                }
            }
            core.clients.first_mut::<Walker>().streams.post(
                now,
                core.engine.connections(),
                handle,
                chain,
            );
            // Not all at once, so that later data is posted in another state.
            if self.rng.rand_range(0..4) == 0 {
                return;
            }
        }
        if self.sent == self.data.len() && !self.shut {
            let pause_probability =
                Duration::from_micros(self.rng.rand_range(0..SHUTDOWN_PAUSE_MAX));
            let at = *self.shuts_at.get_or_insert(now + pause_probability);
            if at > now {
                core.clients.first_mut::<Walker>().wake_at(at);
                return;
            }
            self.shut = true;
            core.clients.first_mut::<Walker>().streams.shutdown(
                now,
                core.engine.connections(),
                handle,
            );
        }
    }

    /// Returns the next bytes as one list of up to three net buffers with up to two MDLs each.
    fn list(&mut self, bytes_max: u64) -> NetBufferList {
        let mut list = NetBufferList::new(0);
        for _ in 0..1 + self.rng.rand_range(0..3) {
            let mut net_buffer = NetBuffer::new();
            for _ in 0..1 + self.rng.rand_range(0..2) {
                let most = (self.data.len() - self.sent) as u64;
                if most > 0 {
                    let length = 1 + self.rng.rand_range(0..most.min(bytes_max)) as usize;
                    let piece = &self.data[self.sent..self.sent + length];
                    net_buffer.push_mdl(Bytes::copy_from_slice(piece));
                    self.sent += length;
                }
            }
            list.net_buffers.push(net_buffer);
        }
        list
    }

    /// Verifies that each list completes once, in order, with all its bytes acknowledged (CH-SND-2, CH-SNC-1). If the
    /// connection has ended before, the unacknowledged ones complete last, with an error status (CH §6.2).
    fn settle(&mut self, core: &mut Core, handle: OffloadHandle) {
        let node = self.node;
        // Its lists complete aborted; the connection's error is reported instead.
        let has_error = |status: StreamStatus| status.error.is_some();
        if !self.may_end_early
            && core.clients.first::<Walker>().streams.status(handle).is_some_and(has_error)
        {
            return;
        }
        for list in core.clients.first_mut::<Walker>().streams.completed(handle) {
            let (left, expected) = (list.data_length(), self.ledger.pop_front());
            let NetBufferList { context, bytes_transferred, status, .. } = list;
            let is_aborted = self.may_end_early && status == NdisStatus::REQUEST_ABORTED;
            let is_whole = is_aborted || left == 0 && status == NdisStatus::SUCCESS;
            check!(
                WrongCompletion,
                // No sent list completes after an unsent one.
                is_whole
                    && expected == Some(bytes_transferred + left)
                    && context > self.last_context
                    && (is_aborted || !self.has_failed),
                "node {node}, not {expected:?} bytes: list {context} after {}, {status}, \
                 {bytes_transferred} bytes, {left} left",
                self.last_context
            );
            self.last_context = context;
            if is_aborted {
                core.clients.first_mut::<Walker>().seen.note(CoverageEvent::ListsAborted);
                self.has_failed = true;
            }
        }
    }

    fn may_move(&mut self, plan: &Plan) -> bool {
        plan.walks(self.node)
            && self.moves < MOVES_MAX
            && self.rng.rand_range(0..plan.turns_per_move) == 0
    }

    /// One decision of the seed per turn: a request for the other stack, or nothing.
    fn step(
        &mut self,
        core: &mut Core,
        now: Instant,
        handle: OffloadHandle,
        plan: &Plan,
        window_is_closed: impl Fn() -> bool,
    ) {
        let Some(status) = core.clients.first::<Walker>().streams.status(handle) else { return };
        if self.moves == MOVES_MAX {
            // smoltcp would retransmit packets that are too large for ever.
            let is_narrow = plan.incidents.narrow[self.node].is_some_and(|path| path.span.has(now));
            let is_stuck = is_narrow && self.requested_at < now;
            if is_stuck && status.state == OffloadState::InHost {
                self.requested_at = now;
                core.clients.first_mut::<Walker>().streams.offload(handle);
            }
            return;
        }
        if !self.may_move(plan) {
            return;
        }
        match status.state {
            OffloadState::InHost => core.clients.first_mut::<Walker>().streams.offload(handle),
            OffloadState::Offloaded => {
                if let Some(snapshot) = core.engine.snapshot(now, handle) {
                    let state = SocketState::from(snapshot.info.phase).name();
                    core.clients
                        .first_mut::<Walker>()
                        .seen
                        .note(CoverageEvent::UploadedFrom(state));
                }
                core.clients.first_mut::<Walker>().streams.upload(handle);
            }
            OffloadState::Offloading | OffloadState::Uploading
                if !plan.incidents.early_requests =>
            {
                return;
            }
            OffloadState::Offloading | OffloadState::Uploading => {}
            OffloadState::Kernel => unreachable!("state of kernel sockets only"),
        }
        self.moves += 1;
        if window_is_closed() {
            core.clients.first_mut::<Walker>().seen.note(CoverageEvent::MoveAtZeroWindow);
        }
        if plan.incidents.early_requests {
            self.request_moves(core, handle, name(status.state));
        }
    }

    /// Requests migrations regardless of outstanding ones.
    fn request_moves(&mut self, core: &mut Core, handle: OffloadHandle, situation: &'static str) {
        for _ in 0..self.rng.rand_range(0..REQUESTS_MAX) {
            core.clients.first_mut::<Walker>().seen.note(CoverageEvent::MoveRequested(situation));
            match self.rng.rand_range(0..2) {
                0 => core.clients.first_mut::<Walker>().streams.offload(handle),
                _ => core.clients.first_mut::<Walker>().streams.upload(handle),
            }
        }
    }

    /// Verifies that this end was permitted before all data was transferred.
    pub(crate) fn check_early_end(&self, status: StreamStatus, plan: &Plan) -> Result<(), String> {
        let is_right = match (status.error, plan.incidents.ending) {
            _ if !status.closed => false,
            // A clean link does not lose a reset.
            (Some(HostError::Aborted), Ending::Abort { .. }) => {
                self.has_aborted && (self.abort_in == Some(0) || !plan.is_clean())
            }
            (Some(HostError::Aborted), _) => self.has_aborted,
            (None, _) => true,
            (Some(HostError::Reset), Ending::Abort { .. }) => true,
            (Some(HostError::Refused | HostError::TimedOut), Ending::Abort { .. }) => {
                !status.connected
            }
            (Some(HostError::RetransmissionLimit), Ending::Abort { .. }) => !plan.is_clean(),
            (Some(HostError::TimedOut | HostError::HostUnreachable), Ending::LinkLost) => {
                !status.connected
            }
            (Some(HostError::RetransmissionLimit | HostError::Unanswered(_)), Ending::LinkLost) => {
                true
            }
            _ => false,
        };
        let all_done = self.ledger.is_empty() && (status.error.is_some() || !self.has_failed);
        if is_right && all_done {
            return Ok(());
        }
        Err(format!("node {}, connection {}: {status:?}", self.node, self.index))
    }
}

fn name(state: OffloadState) -> &'static str {
    match state {
        OffloadState::InHost => "InHost",
        OffloadState::Offloading => "Offloading",
        OffloadState::Offloaded => "Offloaded",
        OffloadState::Uploading => "Uploading",
        OffloadState::Kernel => "Kernel",
    }
}
