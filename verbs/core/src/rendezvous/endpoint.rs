//! Queue pair that its program connects: state, attributes, and the connection of its life.
//!
//! ```text
//! larger end:   Waiting -dial-> Dialing -Reply-> Completing -> Established -> Lost
//! smaller end:  Waiting -Request-> Accepting -first message-> Established -> Lost
//! ```
//!
//! A life begins with RTR and ends with RESET, ERR or the destruction. A dial that fails in any way before the
//! connection is established is repeated after a pause. A queue pair that is connected to itself dials its own
//! listener; the other end of that connection is a hidden twin of the core.

use std::{
    hash::{BuildHasher, RandomState},
    sync::{
        Arc, Mutex, Weak,
        atomic::{AtomicU8, Ordering},
    },
};

use offload_engine::time::Instant;
use rdma_over_tcp::{
    error::EndReason,
    mpa::startup::StartupError,
    rnic::{
        ConnectCause, ConnectError, ConnectorId, DisconnectEvent, Key, QpId, ReadLimit,
        RequestCompletion, Rnic, WcStatus,
    },
};

use super::{
    life::{Inner, Life, Path, Role, Stage, event, rights},
    private_data::{QpDescription, Refusal, extension},
    request::{Request, close},
    timing,
};
use crate::{
    async_event::{AsyncEventKind, EventNotifier},
    attributes::{IbvQpAttributes, IbvQpChange, IbvQpLimits, IbvQpState, QpKind, mask},
    device::Device,
    errno::Errno,
    identity::mtu_bytes,
    sync::lock,
    usage,
};

/// Queue pair that its program connects.
#[derive(Debug)]
pub(crate) struct Endpoint {
    device: &'static Device,
    qp: QpId,
    number: u32,
    kind: QpKind,
    notifier: Arc<EventNotifier>,
    inner: Mutex<Inner>,
    /// State that the program has set, for posts.
    state: AtomicU8,
}

/// Result of the offer of a request to its queue pair.
pub(super) enum Offer {
    /// The queue pair answers it.
    Taken,
    /// The queue pair is not in RTR.
    Early,
    /// Refused.
    Refused(Refusal),
}

impl Endpoint {
    /// Creates the state of a queue pair of the core.
    pub(super) fn new(
        device: &'static Device,
        qp: QpId,
        (number, kind): (u32, QpKind),
        notifier: Arc<EventNotifier>,
    ) -> Self {
        let state = AtomicU8::new(IbvQpState::Reset as u8);
        let inner = Mutex::new(Inner::new());
        Self { device, qp, number, kind, notifier, inner, state }
    }

    /// Returns the device.
    pub(super) const fn device(&self) -> &'static Device {
        self.device
    }

    /// Returns the QP number.
    pub(super) const fn number(&self) -> u32 {
        self.number
    }

    /// Returns true if its requests are datagrams.
    pub(super) fn has_datagrams(&self) -> bool {
        self.kind == QpKind::Ud
    }

    /// Returns true in states in which requests can be posted.
    #[inline]
    pub(crate) fn accepts_sends(&self) -> bool {
        self.state.load(Ordering::Relaxed) >= IbvQpState::ReadyToSend as u8
    }

    /// Returns true in states in which receives can be posted.
    #[inline]
    pub(crate) fn accepts_receives(&self) -> bool {
        self.state.load(Ordering::Relaxed) != IbvQpState::Reset as u8
    }

    /// Returns state and attributes.
    pub(crate) fn query(&self) -> (IbvQpState, IbvQpAttributes) {
        self.device.with(|core, _| {
            let inner = lock(&self.inner);
            (inner.reported(core, self.qp), inner.attributes)
        })
    }

    /// Changes state and attributes, and returns the state. `ready` is called if the queue pair is in RTR: a request
    /// may wait for it.
    ///
    /// # Errors
    /// As [`IbvQpChange::apply`], and `EINVAL`: the GID entry is empty; `ENETUNREACH`, `EHOSTUNREACH`: no route.
    pub(super) fn modify(
        self: &Arc<Self>,
        change: &IbvQpChange,
        ready: impl FnOnce(&mut Rnic, Instant),
    ) -> Result<IbvQpState, Errno> {
        let limits = self.device.limits();
        let limits = IbvQpLimits {
            kind: self.kind,
            identity: self.device.identity(),
            rd_atomic_max: limits.ord_max,
            dest_rd_atomic_max: limits.ird_max,
        };
        // System calls, made without the lock of the adapter.
        let is_path_given = change.mask & mask::AV != 0 && change.mask & mask::DEST_QPN != 0
            // Without a destination, an identifier connects the queue pair.
            && change.values.dest_qp_num != 0;
        let path = is_path_given.then(|| Path::of(self.device, &change.values));
        self.device.with(|core, now| {
            let state = {
                let mut inner = lock(&self.inner);
                let from = inner.reported(core, self.qp);
                let (to, after) = change.apply(from, &inner.attributes, &limits)?;
                let path = path.transpose()?;
                inner.attributes = after;
                self.enter(core, now, &mut inner, (from, to), change.mask, path)?;
                to
            };
            if state == IbvQpState::ReadyToReceive {
                ready(core, now);
            }
            Ok(state)
        })
    }

    /// Performs a transition whose attributes are set.
    fn enter(
        self: &Arc<Self>,
        core: &mut Rnic,
        now: Instant,
        inner: &mut Inner,
        (from, to): (IbvQpState, IbvQpState),
        given: u32,
        path: Option<Path>,
    ) -> Result<(), Errno> {
        inner.state = to;
        self.state.store(to as u8, Ordering::Relaxed);
        match (from, to) {
            (_, IbvQpState::Reset) => {
                core.reset_qp(self.qp)?;
                core.set_qp_service(self.qp, self.kind.service())?;
                core.set_qp_numbers(self.qp, self.number, None);
                inner.end(core);
            }
            (_, IbvQpState::Error) => {
                core.break_qp(self.qp);
                inner.end(core);
            }
            (IbvQpState::Init, IbvQpState::ReadyToReceive) if self.kind == QpKind::Ud => {
                let active_mtu = self.device.identity().active_mtu();
                core.start_datagrams(self.qp, mtu_bytes(active_mtu))?;
            }
            (IbvQpState::Init, IbvQpState::ReadyToReceive) => {
                if let Some(path) = path {
                    self.begin_life(core, now, inner, path);
                }
            }
            (IbvQpState::SendError, IbvQpState::ReadyToSend) => core.allow_sends(self.qp)?,
            (IbvQpState::ReadyToSend, IbvQpState::Drained) => {
                // A queue pair that an identifier connects has another service.
                let _ = core.hold_sends(self.qp, true);
                inner.drains += 1;
                if given & mask::EN_SQD_ASYNC_NOTIFY != 0 && inner.attributes.en_sqd_async_notify {
                    let number = inner.drains;
                    self.call_at(core, now, move |this, core, now, inner| {
                        this.report_drain(core, now, inner, number);
                    });
                }
            }
            (IbvQpState::Drained, IbvQpState::ReadyToSend) => {
                inner.drains += 1;
                let _ = core.hold_sends(self.qp, false);
            }
            (IbvQpState::ReadyToReceive, IbvQpState::ReadyToSend) => {
                // A queue pair that an identifier connects has another service.
                let _ = core.allow_sends(self.qp);
                let life = inner.life.as_ref();
                if life.is_some_and(|it| it.role != Role::Accepts && it.stage == Stage::Waiting) {
                    self.dial(core, now, inner);
                }
            }
            _ => {}
        }
        if given & mask::MIN_RNR_TIMER != 0 {
            inner.apply_rc_peer(core, self.qp);
        }
        if given & mask::QKEY != 0 {
            core.set_datagram_key(self.qp, inner.attributes.qkey)?;
        }
        if given & mask::ACCESS_FLAGS != 0 {
            core.set_qp_access(self.qp, rights(inner.attributes.access_flags))?;
        }
        Ok(())
    }

    /// Begins a life. A queue pair without a destination is connected by connection management.
    fn begin_life(self: &Arc<Self>, core: &mut Rnic, now: Instant, inner: &mut Inner, path: Path) {
        let IbvQpAttributes { dest_qp_num, address, .. } = inner.attributes;
        if dest_qp_num == 0 {
            return;
        }
        let role = match (path.source, self.number).cmp(&(address.dgid, dest_qp_num)) {
            std::cmp::Ordering::Greater => Role::Dials,
            std::cmp::Ordering::Less => Role::Accepts,
            std::cmp::Ordering::Equal => Role::Itself,
        };
        core.set_qp_numbers(self.qp, self.number, Some(dest_qp_num));
        inner.lives += 1;
        let number = inner.lives;
        inner.life = Some(Life {
            number,
            nonce: RandomState::new().hash_one(number),
            role,
            stage: Stage::Waiting,
            path,
            connector: None,
            peer_retries: None,
            twin: None,
            failed: 0,
            error: None,
            timer: 0,
        });
        if role != Role::Accepts {
            self.dial_at(core, now + timing::RTS_PAUSE, inner);
        }
    }

    /// Returns the description of the queue pair for its peer.
    fn description(&self, inner: &Inner, life: &Life) -> QpDescription {
        let IbvQpAttributes {
            path_mtu,
            rq_psn,
            sq_psn,
            dest_qp_num,
            max_rd_atomic,
            max_dest_rd_atomic,
            min_rnr_timer,
            rnr_retry,
            ..
        } = inner.attributes;
        let can_send = inner.can_send();
        QpDescription {
            extensions: match self.kind {
                QpKind::Uc => extension::UC,
                QpKind::Rc | QpKind::Ud => extension::RC,
            },
            destination: dest_qp_num,
            source: self.number,
            sq_psn: can_send.then_some(sq_psn),
            rq_psn,
            gid: life.path.source,
            nonce: life.nonce,
            min_rnr_timer,
            rnr_retry: can_send.then_some(rnr_retry),
            path_mtu,
            max_rd_atomic: can_send.then_some(max_rd_atomic.into()),
            max_dest_rd_atomic: max_dest_rd_atomic.into(),
            refusal: None,
        }
    }

    /// Returns the limits of Reads and atomics.
    fn read_limit(&self, inner: &Inner) -> ReadLimit {
        let IbvQpAttributes { max_rd_atomic, max_dest_rd_atomic, .. } = inner.attributes;
        // The peer's limit applies until RTS sets the own one.
        let outbound = match inner.can_send() {
            true => max_rd_atomic.into(),
            false => self.device.limits().ord_max,
        };
        ReadLimit { inbound: max_dest_rd_atomic.into(), outbound }
    }

    /// Returns the retries of this peer's messages that find no receive; `None`: unlimited.
    fn peer_retries(peer: &QpDescription) -> Option<u8> {
        peer.rnr_retry.filter(|retries| *retries < 7)
    }

    /// Offers a request to the queue pair.
    pub(super) fn offer(
        self: &Arc<Self>,
        core: &mut Rnic,
        now: Instant,
        request: &Request,
    ) -> Offer {
        let mut guard = lock(&self.inner);
        let inner = &mut *guard;
        let Some(life) = &inner.life else { return Offer::Early };
        let own = self.description(inner, life);
        match (life.role, life.stage) {
            (Role::Accepts, Stage::Waiting) => {}
            (Role::Itself, Stage::Dialing) if life.twin.is_none() => {}
            (_, Stage::Established | Stage::Lost) => return Offer::Refused(Refusal::Spent),
            (Role::Accepts | Role::Itself, _) => return Offer::Refused(Refusal::Busy),
            (Role::Dials, _) => return Offer::Refused(Refusal::Mismatch),
        }
        let peer = request.peer.map(|peer| peer.ip().to_canonical());
        let is_of_peer = peer == Some(life.path.remote.ip())
            && request.description.gid == inner.attributes.address.dgid;
        if !is_of_peer {
            return Offer::Refused(Refusal::Mismatch);
        }
        if let Err(refusal) = own.check(&request.description) {
            return Offer::Refused(refusal);
        }
        match self.accept(core, now, inner, request, &own) {
            Ok(()) => Offer::Taken,
            Err(ConnectError::Aborted) => {
                close(core, request.connector);
                Offer::Taken
            }
            Err(error) => {
                tracing::error!(qpn = self.number, %error, "connection of a queue pair not accepted");
                Offer::Refused(Refusal::Busy)
            }
        }
    }

    /// Accepts a request that was checked.
    fn accept(
        self: &Arc<Self>,
        core: &mut Rnic,
        now: Instant,
        inner: &mut Inner,
        request: &Request,
        own: &QpDescription,
    ) -> Result<(), ConnectError> {
        let limits = self.read_limit(inner);
        let Some(life) = &mut inner.life else { return Err(ConnectError::InvalidState) };
        let connector = request.connector;
        let (this, number) = (self.clone(), life.number);
        let (qp, disconnect, completion): (_, Option<DisconnectEvent>, RequestCompletion) =
            match life.role {
                Role::Itself => {
                    let twin = core.create_twin(self.qp).map_err(|_| ConnectError::NoResources)?;
                    life.twin = Some((twin, connector));
                    // The dialing end detects all failures.
                    (twin, None, Box::new(|_| {}))
                }
                Role::Dials | Role::Accepts => {
                    life.connector = Some(connector);
                    life.stage = Stage::Accepting;
                    let event = self.disconnect_event(number, connector);
                    let completion =
                        Box::new(move |outcome| this.established(number, connector, outcome));
                    (self.qp, Some(event), completion)
                }
            };
        life.peer_retries = Some(Self::peer_retries(&request.description));
        inner.apply_rc_peer(core, self.qp);
        let begun = core.accept(now, connector, qp, limits, &own.encode(), disconnect, completion);
        if begun.is_err()
            && let Some(life) = &mut inner.life
        {
            match life.role {
                Role::Itself => life.close_twin(core),
                Role::Dials | Role::Accepts => {
                    life.connector = None;
                    life.stage = Stage::Waiting;
                }
            }
        }
        begun
    }

    /// Dials the peer.
    fn dial(self: &Arc<Self>, core: &mut Rnic, now: Instant, inner: &mut Inner) {
        let Some(life) = &inner.life else { return };
        let private_data = self.description(inner, life).encode();
        let limits = self.read_limit(inner);
        let Some(life) = &mut inner.life else { return };
        let (number, Path { local, remote, .. }) = (life.number, life.path);
        // Any dial replaces a scheduled one.
        life.timer += 1;
        let begun =
            core.create_connector().map_err(|_| ConnectError::NoResources).and_then(|connector| {
                let this = self.clone();
                let completion: RequestCompletion =
                    Box::new(move |outcome| this.dialed(number, connector, outcome));
                let addresses = (Some(local), remote);
                core.connect(connector, self.qp, addresses, limits, &private_data, completion)
                    .inspect_err(|_| close(core, connector))
                    .map(|()| connector)
            });
        match begun {
            Ok(connector) => {
                life.connector = Some(connector);
                life.stage = Stage::Dialing;
            }
            Err(error @ (ConnectError::NoResources | ConnectError::NoDescriptors)) => {
                tracing::warn!(qpn = self.number, %remote, %error, "connect of a queue pair");
                self.dial_again(core, now, inner);
            }
            // The queue pair is in error: its program resets it.
            Err(ConnectError::QpUnusable) => {}
            // The queue pair cannot be connected until it is reset.
            Err(error) => {
                tracing::error!(qpn = self.number, %remote, %error, "connect of a queue pair");
            }
        }
    }

    /// Dials the peer again after a pause.
    fn dial_again(self: &Arc<Self>, core: &mut Rnic, now: Instant, inner: &mut Inner) {
        let Some(life) = &mut inner.life else { return };
        life.stage = Stage::Waiting;
        life.connector = None;
        life.close_twin(core);
        life.failed = life.failed.saturating_add(1);
        let at = now + timing::pause(life.failed);
        self.dial_at(core, at, inner);
    }

    /// Schedules the next dial.
    fn dial_at(self: &Arc<Self>, core: &mut Rnic, at: Instant, inner: &mut Inner) {
        let Some(life) = &mut inner.life else { return };
        life.timer += 1;
        let expected = (life.number, life.timer);
        self.call_at(core, at, move |this, core, now, inner| {
            let life = inner.life.as_ref().filter(|life| life.stage == Stage::Waiting);
            if life.map(|life| (life.number, life.timer)) == Some(expected) {
                this.dial(core, now, inner);
            }
        });
    }

    /// Calls `work` at a time, unless the queue pair is destroyed before.
    fn call_at(
        self: &Arc<Self>,
        core: &mut Rnic,
        at: Instant,
        work: impl FnOnce(&Arc<Self>, &mut Rnic, Instant, &mut Inner) + Send + 'static,
    ) {
        let this: Weak<Self> = Arc::downgrade(self);
        let callback = Box::new(move || {
            let Some(this) = this.upgrade() else { return };
            this.device.with(|core, now| work(&this, core, now, &mut lock(&this.inner)));
        });
        let _ = core.call_at(at, Key::Rnic, callback);
    }

    /// Handles the result of a dial.
    fn dialed(
        self: &Arc<Self>,
        number: u64,
        connector: ConnectorId,
        outcome: Result<(), ConnectError>,
    ) {
        self.device.with(|core, now| {
            let mut inner = lock(&self.inner);
            if inner.current(number, connector).is_none() {
                return;
            }
            let result = match outcome {
                Ok(()) => self.complete(core, &mut inner, connector),
                Err(error) => Err(error),
            };
            if let Err(error) = result {
                let cause = core.connect_cause(connector).cloned();
                self.log_failed_dial(&inner, error, cause.as_ref());
                if let Some(life) = &mut inner.life {
                    life.error = Some(error);
                }
                close(core, connector);
                // The peer may be in INIT for any time: its answer is awaited again without a pause.
                if let (Some(ConnectCause::NoReply(_)), Some(life)) = (cause, &mut inner.life) {
                    life.failed = 0;
                }
                self.dial_again(core, now, &mut inner);
            }
        });
    }

    fn log_failed_dial(&self, inner: &Inner, error: ConnectError, cause: Option<&ConnectCause>) {
        let Some(life) = inner.life.as_ref().filter(|life| life.failed == 0) else { return };
        let refusal = match cause {
            Some(ConnectCause::Startup(StartupError::Rejected { private_data, .. })) => {
                QpDescription::decode(private_data).ok().and_then(|it| it.refusal)
            }
            _ => None,
        };
        let (qpn, remote) = (self.number, life.path.remote);
        match refusal {
            Some(refusal) => {
                tracing::warn!(qpn, %remote, reason = %refusal, "queue pair refused by the peer: retried");
            }
            None => tracing::info!(qpn, %remote, %error, "queue pair not connected: retried"),
        }
    }

    /// Completes a dial that the peer has accepted.
    fn complete(
        self: &Arc<Self>,
        core: &mut Rnic,
        inner: &mut Inner,
        connector: ConnectorId,
    ) -> Result<(), ConnectError> {
        let Some(life) = &inner.life else { return Err(ConnectError::InvalidState) };
        let own = self.description(inner, life);
        let number = life.number;
        let data = core.connection_data(connector).map(|data| data.private_data.clone());
        let peer = QpDescription::decode(data.as_deref().unwrap_or_default());
        let peer = peer.ok().filter(|peer| own.check(peer).is_ok());
        let Some(peer) = peer else {
            tracing::warn!(qpn = self.number, "Reply of another queue pair refused");
            let _ = core.reject(connector, &[]);
            return Err(ConnectError::Refused);
        };
        if let Some(life) = &mut inner.life {
            life.peer_retries = Some(Self::peer_retries(&peer));
        }
        inner.apply_rc_peer(core, self.qp);
        let this = self.clone();
        let event = self.disconnect_event(number, connector);
        let completion = Box::new(move |outcome| this.established(number, connector, outcome));
        core.complete_connect(connector, Some(event), completion)?;
        if let Some(life) = &mut inner.life {
            life.stage = Stage::Completing;
        }
        Ok(())
    }

    /// Handles the result of a completed connect or of an accept.
    fn established(
        self: &Arc<Self>,
        number: u64,
        connector: ConnectorId,
        outcome: Result<(), ConnectError>,
    ) {
        let is_established = self.device.with(|core, now| {
            let mut guard = lock(&self.inner);
            let inner = &mut *guard;
            let Some(life) = inner.current(number, connector) else { return false };
            match (outcome, life.role) {
                // The connection may be lost already.
                (Ok(()), _) if life.stage == Stage::Lost => return false,
                (Ok(()), _) => {
                    life.stage = Stage::Established;
                    inner.budget = None;
                }
                // As if it had never been made: the next Request is accepted.
                (Err(_), Role::Accepts) => {
                    life.stage = Stage::Waiting;
                    life.connector = None;
                    close(core, connector);
                }
                (Err(_), Role::Dials | Role::Itself) => {
                    close(core, connector);
                    self.dial_again(core, now, inner);
                }
            }
            outcome.is_ok()
        });
        if is_established {
            usage::count_connection();
        }
    }

    /// Returns the callback for the end of the connection.
    fn disconnect_event(self: &Arc<Self>, life: u64, connector: ConnectorId) -> DisconnectEvent {
        let this = self.clone();
        Box::new(move |reason| this.disconnected(life, connector, reason))
    }

    /// Handles the end of the connection.
    fn disconnected(
        self: &Arc<Self>,
        number: u64,
        connector: ConnectorId,
        reason: Option<EndReason>,
    ) {
        let is_current = self.device.with(|core, now| {
            let mut inner = lock(&self.inner);
            let Some(life) = inner.current(number, connector) else { return false };
            life.stage = Stage::Lost;
            if core.outstanding_sends(self.qp) > 0 {
                self.start_budget(core, now, &mut inner);
            }
            true
        });
        let Some(reason) = reason.filter(|_| is_current) else { return };
        // A program that only receives gets no completion and no event.
        tracing::info!(qpn = self.number, %reason, "connection of a queue pair ended");
        if let Some(event) = event(reason) {
            self.notifier.notify(event);
        }
    }

    /// Reports that the send queue is drained, as soon as it is, unless the program has left SQD.
    fn report_drain(
        self: &Arc<Self>,
        core: &mut Rnic,
        now: Instant,
        inner: &mut Inner,
        number: u64,
    ) {
        if (inner.drains, inner.state) != (number, IbvQpState::Drained) {
            return;
        }
        if core.are_sends_drained(self.qp) {
            self.notifier.notify(AsyncEventKind::SendQueueDrained);
            return;
        }
        self.call_at(core, now + timing::DRAIN_PAUSE, move |this, core, now, inner| {
            this.report_drain(core, now, inner, number);
        });
    }

    /// Handles requests that wait for a connection.
    pub(crate) fn requests_wait(self: &Arc<Self>) {
        self.device.with(|core, now| self.start_budget(core, now, &mut lock(&self.inner)));
    }

    /// Starts the budget, after which waiting requests fail.
    fn start_budget(self: &Arc<Self>, core: &mut Rnic, now: Instant, inner: &mut Inner) {
        let is_established =
            inner.life.as_ref().is_some_and(|life| life.stage == Stage::Established);
        let Some(budget) = timing::budget(&inner.attributes) else { return };
        if is_established || inner.budget.is_some() {
            return;
        }
        inner.budgets += 1;
        let number = inner.budgets;
        inner.budget = Some(number);
        self.call_at(core, now + budget, move |this, core, _, inner| {
            if inner.budget == Some(number) {
                inner.budget = None;
                this.log_expired_budget(inner);
                let _ = core.fail_sends(this.qp, WcStatus::RetryExceeded);
            }
        });
    }

    fn log_expired_budget(&self, inner: &Inner) {
        let Some(life) = &inner.life else { return };
        let Life { role, stage, path, failed, error, .. } = life;
        tracing::warn!(
            qpn = self.number,
            remote = %path.remote,
            ?role,
            ?stage,
            failed_dials = failed,
            last_error = error.map(tracing::field::display),
            "queue pair not connected within the retry time: requests fail"
        );
    }

    /// Ends the connection, or its attempt: the queue pair is destroyed.
    pub(super) fn end(&self, core: &mut Rnic) {
        lock(&self.inner).end(core);
    }
}
