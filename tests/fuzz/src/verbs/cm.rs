//! Identifiers: calls and events.

use core::{mem, ptr, slice};

use flue_verbs_abi::cm::{
    RDMA_CM_EVENT_ADDR_RESOLVED, RDMA_CM_EVENT_CONNECT_ERROR, RDMA_CM_EVENT_CONNECT_REQUEST,
    RDMA_CM_EVENT_DISCONNECTED, RDMA_CM_EVENT_ESTABLISHED, RDMA_CM_EVENT_REJECTED,
    RDMA_CM_EVENT_ROUTE_RESOLVED, RDMA_CM_EVENT_UNREACHABLE, RDMA_PS_TCP, RDMA_PS_UDP,
    rdma_cm_event, rdma_conn_param, rdma_port_space,
};
use libc::{
    EADDRINUSE, EADDRNOTAVAIL, EAGAIN, ECONNRESET, EHOSTUNREACH, EINVAL, EISCONN, ENETUNREACH,
    ENODEV, sockaddr, sockaddr_in,
};

use super::{
    ffi,
    ledger::Connection,
    watch::set_nonblocking,
    world::{Id, Stage, World, done, errno},
};

/// Event channels of a script.
const CHANNELS: usize = 2;

/// Address of this machine, normally 127.0.0.1.
fn address(port: u16, how: u8) -> sockaddr_in {
    let ip: u32 = match how & 31 {
        // The unspecified address; an address that this machine does not have.
        30 => 0,
        31 => 0xc000_0201,
        _ => 0x7f00_0001,
    };
    sockaddr_in {
        sin_family: libc::AF_INET as libc::sa_family_t,
        sin_port: port.to_be(),
        sin_addr: libc::in_addr { s_addr: ip.to_be() },
        sin_zero: [0; 8],
    }
}

/// Private data: the connecting identifier, and octets derived from it.
fn private_data(id: usize, attempt: u32, length: u8) -> Vec<u8> {
    if length < 8 {
        return Vec::new();
    }
    let filler = (8..length).map(|at| at.wrapping_mul(7) ^ attempt as u8);
    (id as u32).to_le_bytes().into_iter().chain(attempt.to_le_bytes()).chain(filler).collect()
}

/// Calls.
impl World {
    pub(super) fn make_cm_channels(&mut self) {
        for _ in 0..CHANNELS {
            // SAFETY: the call has no arguments; the channel was just created.
            unsafe {
                let raw = ffi::rdma_create_event_channel();
                assert!(!raw.is_null(), "rdma_create_event_channel");
                set_nonblocking((*raw).fd);
                self.cm_channels.push(raw);
            }
        }
    }

    pub(super) fn create_id(&mut self, channel: u8, space: u8) -> Option<usize> {
        if !self.ids.has_room() {
            return None;
        }
        let channel = usize::from(channel) % CHANNELS;
        let spaces = [RDMA_PS_TCP, RDMA_PS_UDP, rdma_port_space(u32::from(space))];
        let space = spaces[usize::from(space >> 5 == 7) * (1 + usize::from(space & 1))];
        let mut raw = ptr::null_mut();
        let on = self.cm_channels[channel];
        // SAFETY: the channel is live, and the output pointer is valid.
        let returned = unsafe { ffi::rdma_create_id(on, &raw mut raw, ptr::null_mut(), space) };
        assert!(done("rdma_create_id", returned, &[]));
        Some(self.insert_id(raw, channel, Stage::Idle))
    }

    fn insert_id(
        &mut self,
        raw: *mut flue_verbs_abi::cm::rdma_cm_id,
        channel: usize,
        stage: Stage,
    ) -> usize {
        self.ids.insert(Id {
            raw,
            channel,
            stage,
            qp: None,
            connects: None,
            attempt: 0,
            client: None,
            connection: None,
            has_reads: true,
            held: Vec::new(),
            is_listener: false,
        })
    }

    pub(super) fn bind(&mut self, id: usize, how: u8) -> bool {
        let mut at = address(0, how);
        let raw = self.ids[id].raw;
        // SAFETY: the identifier is live.
        let returned = unsafe { ffi::rdma_bind_addr(raw, (&raw mut at).cast::<sockaddr>()) };
        let is_done =
            done("rdma_bind_addr", returned, &[EINVAL, EADDRNOTAVAIL, EADDRINUSE, ENODEV]);
        if is_done {
            assert_eq!(self.ids[id].stage, Stage::Idle, "rdma_bind_addr");
            self.ids[id].stage = Stage::Bound;
        }
        is_done
    }

    pub(super) fn listen(&mut self, id: usize, backlog: u8) -> bool {
        let raw = self.ids[id].raw;
        // SAFETY: the identifier is live.
        let returned = unsafe { ffi::rdma_listen(raw, i32::from(backlog.cast_signed())) };
        let is_done = done("rdma_listen", returned, &[EINVAL, EADDRINUSE, ENODEV]);
        let stage = self.ids[id].stage;
        let is_expected = matches!(stage, Stage::Idle | Stage::Bound);
        assert!(!is_done || is_expected, "rdma_listen in {stage:?}");
        if is_done {
            self.ids[id].stage = Stage::Listening;
            self.ids[id].is_listener = true;
        }
        is_done
    }

    pub(super) fn resolve_address(&mut self, id: usize, to: Option<usize>, how: u8) -> bool {
        let port = to.map_or(9, |to| {
            // SAFETY: the identifier is live.
            u16::from_be(unsafe { ffi::rdma_get_src_port(self.ids[to].raw) })
        });
        // The target is always this machine.
        let (mut source, mut target) = (address(0, how >> 2), address(port, how & 30));
        let source =
            if how & 0x80 != 0 { (&raw mut source).cast::<sockaddr>() } else { ptr::null_mut() };
        let target = (&raw mut target).cast::<sockaddr>();
        // SAFETY: the identifier is live, and the addresses are valid.
        let returned = unsafe { ffi::rdma_resolve_addr(self.ids[id].raw, source, target, 1000) };
        let errors = [EINVAL, EADDRNOTAVAIL, EADDRINUSE, ENODEV, ENETUNREACH, EHOSTUNREACH];
        let is_done = done("rdma_resolve_addr", returned, &errors);
        if is_done {
            let stage = mem::replace(&mut self.ids[id].stage, Stage::AddressRequested);
            assert!(matches!(stage, Stage::Idle | Stage::Bound), "rdma_resolve_addr in {stage:?}");
        } else if self.ids[id].stage == Stage::Idle && !source.is_null() {
            // The source may have been bound before the target was found to be unreachable.
            self.ids[id].stage = self.stage_seen(id);
        }
        is_done
    }

    /// Stage of an identifier after a failed call, which may have bound it.
    fn stage_seen(&mut self, id: usize) -> Stage {
        let mut at = address(0, 0);
        // SAFETY: the identifier is live.
        let bound =
            unsafe { ffi::rdma_bind_addr(self.ids[id].raw, (&raw mut at).cast::<sockaddr>()) };
        done("rdma_bind_addr", bound, &[EINVAL, ENODEV]);
        if bound == 0 || errno() == EINVAL { Stage::Bound } else { Stage::Idle }
    }

    pub(super) fn resolve_route(&mut self, id: usize) -> bool {
        // SAFETY: the identifier is live.
        let returned = unsafe { ffi::rdma_resolve_route(self.ids[id].raw, 1000) };
        let is_done = done("rdma_resolve_route", returned, &[EINVAL, ENODEV]);
        let stage = self.ids[id].stage;
        let is_expected = matches!(stage, Stage::AddressRequested | Stage::AddressResolved);
        assert_eq!(is_done, is_expected, "rdma_resolve_route in {stage:?}");
        if is_done {
            // An address event that is still queued does not change this stage.
            self.ids[id].stage = Stage::RouteRequested;
        }
        is_done
    }

    /// Queue pair that an identifier connects: its own, or one selected by the script.
    fn qp_for(&self, id: usize, qp: u8) -> Option<usize> {
        self.ids[id].qp.or_else(|| self.qps.pick(qp))
    }

    pub(super) fn connect(&mut self, id: usize, qp: u8, data: u8, reads: u8) -> bool {
        let qp = self.qp_for(id, qp);
        qp.is_some_and(|qp| self.connect_with(id, qp, data, reads))
    }

    pub(super) fn connect_with(&mut self, id: usize, qp: usize, data: u8, reads: u8) -> bool {
        let attempt = self.ids[id].attempt + 1;
        let data = private_data(id, attempt, data);
        let mut param = self.parameters(qp, &data, reads);
        // SAFETY: the identifier is live, and the private data of the parameters is valid.
        let returned = unsafe { ffi::rdma_connect(self.ids[id].raw, &raw mut param) };
        let errors = [EINVAL, EISCONN, EADDRINUSE, EADDRNOTAVAIL, ENODEV];
        let is_done = done("rdma_connect", returned, &errors);
        let Id { stage, .. } = self.ids[id];
        let may_connect = matches!(stage, Stage::RouteRequested | Stage::RouteResolved);
        assert!(!is_done || may_connect, "rdma_connect in {stage:?}");
        if is_done {
            let it = &mut self.ids[id];
            (it.stage, it.attempt, it.connects) = (Stage::Connecting, attempt, Some(qp));
            it.has_reads = reads & 0x80 == 0;
            self.qps[qp].attempts += 1;
        }
        is_done
    }

    fn parameters(&self, qp: usize, data: &[u8], reads: u8) -> rdma_conn_param {
        let mut param = rdma_conn_param::zeroed();
        param.private_data = data.as_ptr().cast();
        param.private_data_len = data.len() as u8;
        let reads = if reads & 0x80 != 0 { 0 } else { 1 + reads % 8 };
        (param.responder_resources, param.initiator_depth) = (reads, reads);
        param.qp_num = self.qps[qp].number;
        param
    }

    pub(super) fn accept(&mut self, id: usize, qp: u8, data: u8, reads: u8) -> bool {
        let qp = self.qp_for(id, qp);
        qp.is_some_and(|qp| self.accept_with(id, qp, data, reads))
    }

    pub(super) fn accept_with(&mut self, id: usize, qp: usize, data: u8, reads: u8) -> bool {
        let data = private_data(id, 0, data);
        let mut param = self.parameters(qp, &data, reads);
        // SAFETY: the identifier is live, and the private data of the parameters is valid.
        let returned = unsafe { ffi::rdma_accept(self.ids[id].raw, &raw mut param) };
        let errors = [EINVAL, EISCONN, ECONNRESET, ENODEV];
        let is_done = done("rdma_accept", returned, &errors);
        let stage = self.ids[id].stage;
        assert!(!is_done || stage == Stage::Requested, "rdma_accept in {stage:?}");
        if is_done {
            self.accepted(id, qp, data, reads & 0x80 == 0);
        } else if stage == Stage::Requested && errno() == ECONNRESET {
            self.ids[id].stage = Stage::Over;
        }
        is_done
    }

    fn accepted(&mut self, id: usize, qp: usize, reply: Vec<u8>, has_reads: bool) {
        let it = &mut self.ids[id];
        (it.stage, it.connects) = (Stage::Accepting, Some(qp));
        it.has_reads &= has_reads;
        self.qps[qp].attempts += 1;
        let client = it.client.filter(|(client, attempt)| {
            self.ids
                .get(*client)
                .is_some_and(|it| it.attempt == *attempt && it.stage == Stage::Connecting)
        });
        let connection = self.connections.len();
        self.connections.push(Connection { reply, ..Connection::default() });
        self.ids[id].connection = Some(connection);
        self.qps[qp].connection = None;
        if let Some((client, _)) = client
            && let Some(other) = self.ids[client].connects
        {
            self.ids[client].connection = Some(connection);
            self.qps[other].connection = Some((connection, 0));
            self.qps[qp].connection = Some((connection, 1));
        }
    }

    pub(super) fn reject(&mut self, id: usize, data: u8) {
        let data = private_data(id, 0, data);
        let raw = self.ids[id].raw;
        // SAFETY: the identifier is live, and the private data is valid.
        let returned = unsafe { ffi::rdma_reject(raw, data.as_ptr().cast(), data.len() as u8) };
        let is_done = done("rdma_reject", returned, &[EINVAL, ENODEV]);
        let stage = self.ids[id].stage;
        assert_eq!(is_done, stage == Stage::Requested, "rdma_reject in {stage:?}");
        if is_done {
            self.ids[id].stage = Stage::Over;
        }
    }

    pub(super) fn disconnect(&mut self, id: usize) {
        // SAFETY: the identifier is live.
        let returned = unsafe { ffi::rdma_disconnect(self.ids[id].raw) };
        let is_done = done("rdma_disconnect", returned, &[EINVAL, ENODEV]);
        match self.ids[id].stage {
            Stage::Established => {
                assert!(is_done, "rdma_disconnect of a connection");
                self.ids[id].stage = Stage::Disconnecting;
            }
            // It may be established already, with its event still queued.
            Stage::Connecting | Stage::Accepting => {}
            Stage::Disconnecting | Stage::Over => {}
            stage => assert!(!is_done, "rdma_disconnect in {stage:?}"),
        }
    }

    pub(super) fn migrate(&mut self, id: usize, channel: u8) {
        let channel = usize::from(channel) % CHANNELS;
        // SAFETY: identifier and channel are live.
        let returned = unsafe { ffi::rdma_migrate_id(self.ids[id].raw, self.cm_channels[channel]) };
        assert!(done("rdma_migrate_id", returned, &[]));
        self.ids[id].channel = channel;
    }

    /// Destroys an identifier; its queue pair must be destroyed first.
    pub(super) fn destroy_id(&mut self, id: usize) {
        if let Some(qp) = self.ids[id].qp {
            self.destroy_qp(qp);
        }
        self.acknowledge_of_id(id);
        // SAFETY: the identifier is live, its events are acknowledged, and it is no longer used.
        let returned = unsafe { ffi::rdma_destroy_id(self.ids[id].raw) };
        assert!(done("rdma_destroy_id", returned, &[]));
        self.ids.remove(id);
    }

    fn acknowledge_of_id(&mut self, id: usize) {
        for event in mem::take(&mut self.ids[id].held) {
            // SAFETY: the event was taken and not acknowledged.
            assert_eq!(unsafe { ffi::rdma_ack_cm_event(event) }, 0, "rdma_ack_cm_event");
        }
    }
}

/// Events.
impl World {
    /// Polls an event of a channel. True if there was one.
    pub(super) fn cm_event(&mut self, channel: usize, is_held: bool) -> bool {
        let mut event = ptr::null_mut();
        // SAFETY: the channel is live, and the output pointer is valid.
        if unsafe { ffi::rdma_get_cm_event(self.cm_channels[channel], &raw mut event) } != 0 {
            assert_eq!(errno(), EAGAIN, "rdma_get_cm_event");
            return false;
        }
        // SAFETY: the event was just returned.
        let seen = unsafe { *event };
        self.summary.events += 1;
        let owner = match seen.event {
            RDMA_CM_EVENT_CONNECT_REQUEST => self.requested(channel, &seen),
            _ => self.identifier_event(channel, &seen),
        };
        self.ids[owner].held.push(event);
        if !is_held {
            self.acknowledge_of_id(owner);
        }
        true
    }

    fn data_of(event: &rdma_cm_event) -> Vec<u8> {
        // SAFETY: connection events have this member of the union, whose data is valid until the event is
        // acknowledged.
        unsafe {
            let conn = event.param.conn;
            match conn.private_data.is_null() {
                true => Vec::new(),
                false => {
                    slice::from_raw_parts(conn.private_data.cast(), conn.private_data_len.into())
                        .to_vec()
                }
            }
        }
    }

    /// Processes a connection request with a new identifier. Returns the listener that the event belongs to.
    fn requested(&mut self, channel: usize, event: &rdma_cm_event) -> usize {
        let listener =
            self.ids.find(|it| it.raw == event.listen_id).expect("an event of a live listener");
        assert_eq!(self.ids[listener].stage, Stage::Listening, "a request");
        assert_eq!((self.ids[listener].channel, event.status), (channel, 0), "a request");
        let is_new = self.ids.find(|it| it.raw == event.id).is_none();
        assert!(is_new, "the identifier of a request exists already");
        let child = self.insert_id(event.id, channel, Stage::Requested);
        let data = Self::data_of(event);
        if let Some((head, _)) = data.split_first_chunk::<8>() {
            let [a, b, c, d, attempt @ ..] = *head;
            let (client, attempt) = (u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes(attempt));
            let length = data.len() as u8;
            assert_eq!(
                data,
                private_data(client as usize, attempt, length),
                "private data of a request"
            );
            self.ids[child].client = Some((client as usize, attempt));
        }
        // SAFETY: as in `data_of`.
        self.ids[child].has_reads = unsafe { event.param.conn.initiator_depth } > 0;
        self.summary.requests += 1;
        listener
    }

    /// Processes an event of an existing identifier.
    fn identifier_event(&mut self, channel: usize, event: &rdma_cm_event) -> usize {
        let id = self.ids.find(|it| it.raw == event.id).expect("an event of a live identifier");
        let (kind, status, stage) = (event.event, event.status, self.ids[id].stage);
        assert_eq!(self.ids[id].channel, channel, "an event on another channel");
        let text = format!("event {} with status {status} in {stage:?}", kind.0);
        match kind {
            RDMA_CM_EVENT_ADDR_RESOLVED => {
                assert_eq!(status, 0, "{text}");
                match stage {
                    Stage::AddressRequested => self.ids[id].stage = Stage::AddressResolved,
                    Stage::RouteRequested | Stage::RouteResolved | Stage::Connecting => {}
                    _ => panic!("{text}"),
                }
            }
            RDMA_CM_EVENT_ROUTE_RESOLVED => {
                assert_eq!(status, 0, "{text}");
                match stage {
                    Stage::RouteRequested => self.ids[id].stage = Stage::RouteResolved,
                    Stage::Connecting => {}
                    _ => panic!("{text}"),
                }
            }
            RDMA_CM_EVENT_ESTABLISHED => {
                let is_expected = matches!(stage, Stage::Connecting | Stage::Accepting);
                assert!(is_expected && status == 0, "{text}");
                self.established(id, event);
            }
            RDMA_CM_EVENT_CONNECT_ERROR | RDMA_CM_EVENT_UNREACHABLE | RDMA_CM_EVENT_REJECTED => {
                assert!(status < 0, "{text}");
                let is_rejected = kind == RDMA_CM_EVENT_REJECTED;
                let this = Some((id, self.ids[id].attempt));
                let is_waiting = |it: &Id| it.client == this && it.stage == Stage::Requested;
                let is_answered = self.ids.find(is_waiting).is_none();
                assert!(
                    !is_rejected || is_answered,
                    "{text}, but the peer has not accepted or rejected"
                );
                match stage {
                    Stage::Connecting => self.ids[id].stage = Stage::RouteResolved,
                    Stage::Accepting if !is_rejected => self.ids[id].stage = Stage::Over,
                    _ => panic!("{text}"),
                }
                self.summary.failed_connects += 1;
                self.summary.rejected += u64::from(is_rejected);
            }
            RDMA_CM_EVENT_DISCONNECTED => {
                let is_expected = matches!(stage, Stage::Established | Stage::Disconnecting);
                assert!(is_expected && status == 0, "{text}");
                self.ids[id].stage = Stage::Over;
            }
            _ => panic!("{text}"),
        }
        id
    }

    fn established(&mut self, id: usize, event: &rdma_cm_event) {
        let is_client = self.ids[id].stage == Stage::Connecting;
        self.ids[id].stage = Stage::Established;
        self.summary.established += 1;
        // SAFETY: as in `data_of`.
        let depth = unsafe { event.param.conn.initiator_depth };
        if let Some(qp) = self.ids[id].connects {
            // It may have been reset since.
            let is_connected = self.qps[qp].connection.is_some();
            self.qps[qp].takes_sends |= is_connected;
            self.qps[qp].has_reads = depth > 0 && self.ids[id].has_reads;
        }
        if let (true, Some(connection)) = (is_client, self.ids[id].connection) {
            assert_eq!(
                Self::data_of(event),
                self.connections[connection].reply,
                "private data of a Reply"
            );
        }
    }
}
