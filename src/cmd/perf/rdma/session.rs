//! Session: the control queue pair, the data lanes, and one completion queue per queue of the TAP.

use std::{
    collections::VecDeque,
    net::SocketAddr,
    time::{Duration, Instant},
};

use rdma_over_tcp::ndk::{
    Connector, Cq, Data, Disconnection, NdkResultEx, NtStatus, OpFlags, OperationType, Pd,
    PendingCall, Qp, QpLimits,
};

use super::{
    lane::{Depths, Lane},
    memory::{MESSAGE_SLOTS, Mailbox, Region, Slots},
    node::{AcceptedConnection, PerfNode, checked, not_accepted, peer_disconnected},
};
use crate::{
    cmd::perf::{
        Waiting,
        kind::Kind,
        message::{MESSAGE_BYTES_MAX, Memory, Message, Opening, Parameters, Role},
        phase::{ANSWER_LIMIT, Budget},
    },
    failure::Failure,
};

/// Completions read per poll.
const RESULTS_MAX: usize = 64;
/// Control messages that may be outstanding.
const MESSAGE_REQUESTS: u32 = 16;
/// QP context of the control queue pair.
const MESSAGES: u64 = u64::MAX;
/// Request contexts of a lane.
const DATA: u64 = 1;
const AUXILIARY: u64 = 2;
/// Longest wait between reads of clock and signals.
const WAIT_MAX: Duration = Duration::from_millis(200);

/// Control queue pair.
pub(super) struct Dialogue<'n> {
    pub(super) host: &'n PerfNode,
    queue: usize,
    pd: Pd,
    cq: Cq,
    qp: Qp,
    connector: Option<Connector>,
    mailbox: Mailbox,
    inbox: VecDeque<Message>,
    results: Box<[NdkResultEx; RESULTS_MAX]>,
    /// Reason of the peer's disconnect, if the peer ended a connection.
    pub(super) ended: Disconnection,
}

impl<'n> Dialogue<'n> {
    /// Creates an unconnected control queue pair on a queue, with posted receives.
    pub(super) fn new(host: &'n PerfNode, queue: usize) -> Result<Self, Failure> {
        let adapter = &host.adapters[queue];
        let pd = checked("create a PD", adapter.create_pd())?;
        let depth = MESSAGE_SLOTS as u32 + MESSAGE_REQUESTS;
        let cq = checked("create a CQ", adapter.create_cq(depth, |_| {}))?;
        let limits = QpLimits {
            receive_queue_depth: MESSAGE_SLOTS as u32,
            initiator_queue_depth: MESSAGE_REQUESTS,
            inline_data_size: MESSAGE_BYTES_MAX as u32,
            ..QpLimits::default()
        };
        let qp = checked("create a QP", pd.create_qp(&cq, &cq, MESSAGES, limits))?;
        let mailbox = Mailbox::new(adapter, &pd)?;
        for slot in 0..MESSAGE_SLOTS {
            checked("post a receive", qp.receive(slot as u64, &[mailbox.sge(slot)]))?;
        }
        Ok(Self {
            host,
            queue,
            pd,
            cq,
            qp,
            connector: None,
            mailbox,
            inbox: VecDeque::new(),
            results: Box::new([NdkResultEx::default(); RESULTS_MAX]),
            ended: Disconnection::default(),
        })
    }

    /// Connects as the client.
    pub(super) fn connect(&mut self, remote: SocketAddr, session: u64) -> Result<(), Failure> {
        let opening = Opening { role: Role::Control, index: 0, session };
        let connected = self.host.connect(self.queue, &self.qp, remote, opening, &self.ended);
        self.connector = Some(connected?.0);
        Ok(())
    }

    /// Accepts as the server.
    pub(super) fn accept(&mut self, accepted: AcceptedConnection) -> Result<(), Failure> {
        let begun = self.host.accept(&accepted, &self.qp, &self.ended);
        self.connector = Some(accepted.connector);
        let status = self.host.wait(Some(ANSWER_LIMIT), || begun.status())?;
        match status {
            Some(NtStatus::SUCCESS) => Ok(()),
            Some(status) => Err(not_accepted("accept", status, self.connector.as_ref())),
            None => Err(Failure::work("accept: the client did not complete the connection")),
        }
    }

    /// Disconnects gracefully.
    pub(super) fn disconnect(&self, limit: Duration) -> Result<(), Failure> {
        if let Some(connector) = &self.connector {
            let begun = PendingCall::begin(|done| connector.disconnect(done));
            self.host.wait(Some(limit), || begun.status())?;
        }
        Ok(())
    }

    /// Returns the local and remote address of the connection.
    pub(super) fn addresses(&self) -> (Option<SocketAddr>, Option<SocketAddr>) {
        let connector = self.connector.as_ref();
        (connector.and_then(Connector::local_address), connector.and_then(Connector::peer_address))
    }

    /// Sends a message.
    pub(super) fn send_message(&self, message: &Message) -> Result<(), Failure> {
        let octets = message.encode();
        checked(
            "send a message",
            self.qp.send(AUXILIARY, Data::Inline(&[&octets]), OpFlags::empty()),
        )
    }

    /// Handles a completion of the control queue pair.
    fn take(&mut self, result: &NdkResultEx) -> Result<(), Failure> {
        if result.operation != OperationType::Receive {
            return Ok(());
        }
        let slot = result.request_context as usize;
        let octets = self.mailbox.octets(slot, result.bytes_transferred as usize);
        let posted = self.qp.receive(slot as u64, &[self.mailbox.sge(slot % MESSAGE_SLOTS)]);
        checked("post a receive", posted)?;
        self.inbox.push_back(Message::decode(&octets)?);
        Ok(())
    }

    /// Returns the next received message.
    pub(super) fn next(&mut self) -> Option<Message> {
        self.inbox.pop_front()
    }

    /// Returns true if a message was received.
    pub(super) fn has_message(&self) -> bool {
        !self.inbox.is_empty()
    }

    /// Waits for the next message while no lanes exist.
    pub(super) fn await_message(&mut self) -> Result<Message, Failure> {
        loop {
            if let Some(message) = self.next() {
                return Ok(message);
            }
            let count = self.poll(Some(ANSWER_LIMIT), || false)?;
            if count == 0 {
                return Err(self.no_reply());
            }
            for index in 0..count {
                let result = self.results[index];
                self.check(&result)?;
                self.take(&result)?;
            }
        }
    }

    pub(super) fn no_reply(&self) -> Failure {
        match self.ended.reason() {
            Some(reason) => peer_disconnected(reason),
            None => Failure::work(format!("peer: no message for {} s", ANSWER_LIMIT.as_secs())),
        }
    }

    fn check(&self, result: &NdkResultEx) -> Result<(), Failure> {
        match result.status {
            NtStatus::SUCCESS => Ok(()),
            _ => Err(self.host.failed(result, &self.ended)),
        }
    }

    /// Waits for completions, until `also` returns true, the peer ends a connection, or the limit passes.
    fn poll(&mut self, limit: Option<Duration>, also: impl Fn() -> bool) -> Result<usize, Failure> {
        let Self { host, cq, results, ended, .. } = self;
        let waited = host.wait(limit, || match cq.poll_ex(&mut results[..]) {
            0 if also() || ended.reason().is_some() => Some(0),
            0 => None,
            count => Some(count),
        })?;
        Ok(waited.unwrap_or(0))
    }
}

/// QP context of a lane's completions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Context {
    /// Generation of the lanes, one per prepared size.
    generation: u32,
    queue: usize,
    index: usize,
}

impl Context {
    /// Encodes the context; queue and index are below 2^16.
    const fn encode(self) -> u64 {
        (self.generation as u64) << 32 | (self.queue as u64) << 16 | self.index as u64
    }

    const fn decode(context: u64) -> Self {
        let (queue, index) = (context >> 16 & 0xffff, context & 0xffff);
        let generation = (context >> 32) as u32;
        Self { generation, queue: queue as usize, index: index as usize }
    }
}

/// PD and CQ of the lanes on one queue. On the control queue pair's queue, these belong to the dialogue.
struct Station {
    pd: Pd,
    cq: Cq,
}

/// Session in progress.
pub(super) struct Session<'n> {
    pub(super) dialogue: Dialogue<'n>,
    /// Stations, one per queue.
    stations: Vec<Station>,
    pub(super) parameters: Parameters,
    pub(super) region: Region,
    /// Validated memory of the peer.
    pub(super) peer: Memory,
    pub(super) lanes: Vec<Lane>,
    /// Number of prepared sizes, part of the QP context: identifies late completions of earlier lanes.
    generation: u32,
    /// Reason of the peer's disconnect, if the peer ended a lane.
    lanes_ended: Disconnection,
    /// Lanes that may have room to post.
    ready: Vec<usize>,
    pub(super) depths: Depths,
    pub(super) size_bytes: u64,
    pub(super) slots: Slots,
    /// Data requests posted in this phase.
    pub(super) posted: u64,
    /// Data requests completed.
    pub(super) completed: u64,
    /// Receives completed on lanes.
    pub(super) received: u64,
    /// Sum that the peer added to the local word since it was zero.
    pub(super) added: u64,
    /// Slots of the sink, from the first on, filled by the last phase.
    pub(super) to_verify: u64,
    /// Consecutive empty polls.
    idle: u32,
}

impl<'n> Session<'n> {
    /// Creates a session with the client's parameters, which are within their limits.
    pub(super) fn new(dialogue: Dialogue<'n>, parameters: Parameters) -> Result<Self, Failure> {
        let depths = Depths::new(&parameters);
        let own = MESSAGE_SLOTS as u32 + MESSAGE_REQUESTS;
        // Lanes of the previous size, and lanes that were moved to another queue, may still be flushed while the next
        // lanes are in use.
        let queues = dialogue.host.adapters.len();
        let flushed = if queues > 1 { 2 } else { 1 };
        let cq_depth = u64::from(own)
            + (1 + flushed) * u64::from(parameters.connections) * u64::from(depths.completions());
        let limit = dialogue.host.adapters[0].info().max_cq_depth;
        let cq_depth = u32::try_from(cq_depth).ok().filter(|depth| *depth <= limit);
        let Some(cq_depth) = cq_depth else {
            return Err(Failure::work(format!(
                "--connections {} --depth {}: more than the {limit} entries of a completion queue: reduce one",
                parameters.connections, parameters.depth
            )));
        };
        checked("resize the CQ", dialogue.cq.resize(cq_depth))?;
        let mut stations = Vec::new();
        for (queue, adapter) in dialogue.host.adapters.iter().enumerate() {
            stations.push(if queue == dialogue.queue {
                Station { pd: dialogue.pd.clone(), cq: dialogue.cq.clone() }
            } else {
                // All connections may arrive on one queue.
                let cq = checked("create a CQ", adapter.create_cq(cq_depth, |_| {}))?;
                Station { pd: checked("create a PD", adapter.create_pd())?, cq }
            });
        }
        let pds = stations.iter().map(|station| &station.pd);
        let region = Region::new(&dialogue.host.adapters[0], pds, &parameters)?;
        let size_bytes = parameters.size_max_bytes;
        let slots = region.layout.slots(size_bytes, parameters.depth);
        Ok(Self {
            dialogue,
            stations,
            region,
            peer: Memory::default(),
            lanes: Vec::new(),
            generation: 0,
            lanes_ended: Disconnection::default(),
            ready: Vec::new(),
            depths,
            size_bytes,
            slots,
            posted: 0,
            completed: 0,
            received: 0,
            added: 0,
            to_verify: 0,
            idle: 0,
            parameters,
        })
    }

    /// Creates unconnected lanes for messages of a size, fills the memory, and posts receives.
    pub(super) fn prepare(&mut self, size_bytes: u64) -> Result<(), Failure> {
        self.disconnect_lanes();
        self.close_lanes();
        self.generation += 1;
        self.lanes_ended = Disconnection::default();
        self.size_bytes = size_bytes;
        self.slots = self.region.layout.slots(size_bytes, self.parameters.depth);
        self.region.prepare(self.slots, self.parameters.connections as usize);
        self.added = 0;
        self.ready.clear();
        self.begin_phase();
        for index in 0..self.parameters.connections as usize {
            let lane = self.lane(index, index % self.stations.len())?;
            self.lanes.push(lane);
            self.post_receives(index)?;
            self.make_ready(index);
        }
        Ok(())
    }

    fn lane(&self, index: usize, queue: usize) -> Result<Lane, Failure> {
        let Station { pd, cq } = &self.stations[queue];
        let context = Context { generation: self.generation, queue, index }.encode();
        Lane::new(queue, (pd, cq), index, context, self.depths, self.slots)
    }

    fn post_receives(&mut self, index: usize) -> Result<(), Failure> {
        (0..self.depths.receives).try_for_each(|_| self.post_receive(index))
    }

    /// Connects the lanes as the client.
    pub(super) fn connect_lanes(
        &mut self,
        remote: SocketAddr,
        session: u64,
    ) -> Result<(), Failure> {
        let Self { dialogue, lanes, lanes_ended, peer, .. } = self;
        for (index, lane) in lanes.iter_mut().enumerate() {
            let opening = Opening { role: Role::Data, index: index as u32, session };
            let connected =
                dialogue.host.connect(lane.queue, &lane.qp, remote, opening, lanes_ended);
            let connected = connected.and_then(|(connector, peer_queue)| {
                lane.connector = Some(connector);
                let token = peer.tokens.get(peer_queue).copied();
                token.ok_or_else(|| {
                    Failure::work(format!("peer: no memory of its queue {peer_queue}"))
                })
            });
            lane.peer_token = connected.map_err(|failure| {
                failure.at(&format!("connection {} of {}", index + 1, self.parameters.connections))
            })?;
        }
        Ok(())
    }

    /// Starts accepting a lane as the server, on the queue of its connection.
    pub(super) fn accept_lane(
        &mut self,
        index: usize,
        accepted: AcceptedConnection,
    ) -> Result<Option<PendingCall>, Failure> {
        let free = self.lanes.get(index).filter(|lane| lane.connector.is_none());
        let Some(lane) = free else { return Ok(None) };
        if lane.queue != accepted.queue {
            let other = self.lane(index, accepted.queue)?;
            let lane = std::mem::replace(&mut self.lanes[index], other);
            close(None, &lane.qp);
            self.lanes[index].is_ready = lane.is_ready;
            self.post_receives(index)?;
        }
        let lane = &mut self.lanes[index];
        let begun = self.dialogue.host.accept(&accepted, &lane.qp, &self.lanes_ended);
        lane.connector = Some(accepted.connector);
        lane.peer_token = self.peer.tokens[index % self.peer.tokens.len()];
        Ok(Some(begun))
    }

    /// Returns true if the peer's messages complete receives.
    pub(super) const fn counts_receives(&self) -> bool {
        self.parameters.kind.has_credits()
    }

    /// Resets the counts at the start of a phase.
    pub(super) const fn begin_phase(&mut self) {
        (self.posted, self.completed, self.received) = (0, 0, 0);
    }

    /// Returns the number of slots, from the first on, that local messages have certainly filled: all after one lane
    /// has cycled once, otherwise those of the first lane, which starts at the first slot.
    pub(super) fn filled(&self) -> u64 {
        let count = self.slots.count as u64;
        match self.lanes.iter().any(|lane| lane.posted >= count) {
            true => count,
            false => self.lanes.first().map_or(0, |lane| lane.posted),
        }
    }

    fn make_ready(&mut self, index: usize) {
        let lane = &mut self.lanes[index];
        if !lane.is_ready {
            lane.is_ready = true;
            self.ready.push(index);
        }
    }

    /// Posts the next receive of a lane.
    fn post_receive(&mut self, index: usize) -> Result<(), Failure> {
        let lane = &mut self.lanes[index];
        let sge = match self.parameters.kind {
            Kind::SendBw | Kind::SendLat => {
                let offset = self.region.layout.sink_at + self.slots.offset(lane.slot_in);
                lane.slot_in = self.slots.after(lane.slot_in);
                self.region.sge(lane.queue, offset, self.size_bytes)
            }
            _ => self.region.marker_sge(lane.queue),
        };
        checked("post a receive", lane.qp.receive(DATA, &[sge]))
    }

    /// Handles a completion of a lane.
    fn take(&mut self, result: &NdkResultEx) -> Result<(), Failure> {
        if result.qp_context == MESSAGES {
            self.dialogue.check(result)?;
            return self.dialogue.take(result);
        }
        let Context { generation, queue, index } = Context::decode(result.qp_context);
        if generation != self.generation || self.lanes.get(index).is_none_or(|it| it.queue != queue)
        {
            // Completion of a destroyed lane.
            return Ok(());
        }
        if result.status != NtStatus::SUCCESS {
            return Err(self.dialogue.host.failed(result, &self.lanes_ended));
        }
        match (result.operation, result.request_context) {
            (
                OperationType::Receive
                | OperationType::ReceiveAndInvalidate
                | OperationType::ReceiveImmediate,
                _,
            ) => {
                self.check_immediate(index, result)?;
                self.received += 1;
                self.post_receive(index)?;
                self.grant(index)
            }
            (_, DATA) => {
                self.completed += 1;
                self.lanes[index].room += 1;
                self.make_ready(index);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Verifies immediate data, which counts the messages of a lane.
    fn check_immediate(&mut self, index: usize, result: &NdkResultEx) -> Result<(), Failure> {
        if self.parameters.kind != Kind::WriteImmBw {
            return Ok(());
        }
        let lane = &mut self.lanes[index];
        let (found, wanted) = (u64::from_be_bytes(result.immediate), lane.received);
        lane.received += 1;
        match result.operation {
            OperationType::ReceiveImmediate if found == wanted => Ok(()),
            operation => Err(Failure::work(format!(
                "immediate data: {operation}: received {found:#x}, expected {wanted:#x}"
            ))),
        }
    }

    /// Grants the peer credit for reposted receives.
    fn grant(&mut self, index: usize) -> Result<(), Failure> {
        if !self.parameters.kind.has_credits() {
            return Ok(());
        }
        let lane = &mut self.lanes[index];
        lane.ungranted += 1;
        if lane.ungranted < self.depths.grant {
            return Ok(());
        }
        lane.ungranted = 0;
        lane.grants_given = lane.grants_given.wrapping_add(1);
        let octets: &[u8] = &[lane.grants_given];
        let address = self.peer.address + self.region.layout.grant_at(index);
        let flags = OpFlags::SILENT_SUCCESS;
        let posted =
            lane.qp.write(AUXILIARY, Data::Inline(&[octets]), address, lane.peer_token, flags);
        checked("post a grant", posted)
    }

    /// Handles all available completions, and runs the engines; returns their number.
    pub(super) fn drain(&mut self) -> Result<usize, Failure> {
        let mut sum = 0;
        for queue in 0..self.stations.len() {
            let count = self.stations[queue].cq.poll_ex(&mut self.dialogue.results[..]);
            self.take_results(count)?;
            sum += count;
        }
        Ok(sum)
    }

    fn take_results(&mut self, count: usize) -> Result<(), Failure> {
        for index in 0..count {
            let result = self.dialogue.results[index];
            self.take(&result)?;
        }
        Ok(())
    }

    /// Handles available completions. If there are none, waits as configured for completions or for `also`.
    pub(super) fn process_events(
        &mut self,
        also: impl Fn(&Region, &[Lane]) -> bool,
    ) -> Result<(), Failure> {
        if self.drain()? > 0 {
            self.idle = 0;
            return Ok(());
        }
        match self.dialogue.host.waiting {
            Waiting::Spin => self.dialogue.host.idle(&mut self.idle),
            Waiting::Block => {
                self.poll(also)?;
            }
        }
        match self.dialogue.ended.reason().or_else(|| self.lanes_ended.reason()) {
            Some(reason) => Err(peer_disconnected(reason)),
            None => Ok(()),
        }
    }

    /// Waits for completions on any queue, until `also` returns true, the peer ends a connection, or the limit passes.
    /// Handles the completions and returns their number.
    fn poll(&mut self, also: impl Fn(&Region, &[Lane]) -> bool) -> Result<usize, Failure> {
        let Self { dialogue, stations, region, lanes, .. } = self;
        let Dialogue { host, results, ended, .. } = dialogue;
        let waited = host.wait(Some(WAIT_MAX), || {
            let counts = stations.iter().map(|station| station.cq.poll_ex(&mut results[..]));
            match counts.into_iter().find(|count| *count > 0) {
                None if also(region, lanes) || ended.reason().is_some() => Some(0),
                count => count,
            }
        })?;
        let count = waited.unwrap_or(0);
        self.take_results(count)?;
        Ok(count)
    }

    /// Waits for the next message.
    pub(super) fn await_message(&mut self) -> Result<Message, Failure> {
        let until = Instant::now() + ANSWER_LIMIT;
        loop {
            if let Some(message) = self.dialogue.next() {
                return Ok(message);
            }
            let count = self.poll(|_, _| false)?;
            if count == 0 && (self.dialogue.ended.reason().is_some() || Instant::now() > until) {
                return Err(self.dialogue.no_reply());
            }
        }
    }

    /// Returns a number that changes with any activity of the peer.
    pub(super) fn activity(&self) -> u64 {
        self.lanes.iter().map(|lane| lane.qp.stats().fpdu_in + lane.qp.stats().fpdu_out).sum()
    }

    /// Posts data on all lanes with room, within the budget.
    pub(super) fn refill(&mut self, budget: &mut Budget) -> Result<(), Failure> {
        let mut kept = 0;
        for position in 0..self.ready.len() {
            let index = self.ready[position];
            self.post_data(index, budget)?;
            let lane = &mut self.lanes[index];
            // Out of credit: the lane stays in the list.
            lane.is_ready = lane.room > 0;
            if lane.is_ready {
                self.ready[kept] = index;
                kept += 1;
            }
        }
        self.ready.truncate(kept);
        Ok(())
    }

    /// Returns true if the peer has granted credit to a lane that is blocked only by credit.
    pub(super) fn is_granted(region: &Region, lanes: &[Lane]) -> bool {
        let is_due = |(index, lane): (usize, &Lane)| {
            lane.is_ready && region.grants(index) != lane.grants_seen
        };
        lanes.iter().enumerate().any(is_due)
    }

    fn post_data(&mut self, index: usize, budget: &mut Budget) -> Result<(), Failure> {
        let has_credits = self.parameters.kind.has_credits();
        if has_credits {
            let grants = self.region.grants(index);
            self.lanes[index].take_grants(grants, self.depths);
        }
        loop {
            let lane = &self.lanes[index];
            let credit = if has_credits { lane.credit } else { u32::MAX };
            let free = lane.room.min(credit).min(self.parameters.post_list);
            let count = u64::from(free).min(budget.left);
            if count == 0 {
                return Ok(());
            }
            for left in (0..count).rev() {
                self.post_one(index, if left > 0 { OpFlags::DEFER } else { OpFlags::empty() })?;
            }
            budget.left -= count;
        }
    }

    /// Posts the next data request of a lane, which has room for it.
    pub(super) fn post_one(&mut self, index: usize, flags: OpFlags) -> Result<(), Failure> {
        let lane = &mut self.lanes[index];
        let layout = &self.region.layout;
        let offset = self.slots.offset(lane.slot_out);
        let (queue, token, peer) = (lane.queue, lane.peer_token, self.peer.address);
        let (source, sink) = (layout.source_at + offset, layout.sink_at + offset);
        let posted = match self.parameters.kind {
            Kind::WriteBw | Kind::WriteLat => {
                let sge = self.region.sge(queue, source, self.size_bytes);
                lane.qp.write(DATA, Data::Registered(&[sge]), peer + sink, token, flags)
            }
            Kind::ReadBw | Kind::ReadLat => {
                let sge = self.region.sge(queue, sink, self.size_bytes);
                lane.qp.read(DATA, &[sge], peer + source, token, flags)
            }
            Kind::AtomicBw | Kind::AtomicLat => {
                let sge = self.region.sge(queue, source, self.size_bytes);
                lane.qp.fetch_add(DATA, sge, peer + layout.sink_at, token, 1, flags)
            }
            Kind::WriteImmBw => {
                let sge = self.region.sge(queue, source, self.size_bytes);
                lane.credit = lane.credit.saturating_sub(1);
                let first = OpFlags::SILENT_SUCCESS | OpFlags::DEFER;
                let data = lane.posted.to_be_bytes();
                lane.qp
                    .write(AUXILIARY, Data::Registered(&[sge]), peer + sink, token, first)
                    .and_then(|()| lane.qp.immediate(DATA, data, flags))
            }
            _ => {
                let sge = self.region.sge(queue, source, self.size_bytes);
                lane.credit = lane.credit.saturating_sub(1);
                lane.qp.send(DATA, Data::Registered(&[sge]), flags)
            }
        };
        checked("post", posted)?;
        lane.slot_out = self.slots.after(lane.slot_out);
        lane.room = lane.room.saturating_sub(1);
        lane.posted += 1;
        self.posted += 1;
        Ok(())
    }

    /// Posts a Send after the Writes of each lane, whose arrival indicates that they have arrived. Returns their
    /// number.
    pub(super) fn post_markers(&mut self) -> Result<u64, Failure> {
        if self.parameters.kind != Kind::WriteBw {
            return Ok(0);
        }
        let flags = OpFlags::SILENT_SUCCESS;
        for lane in &self.lanes {
            checked("post a marker", lane.qp.send(AUXILIARY, Data::Inline(&[&[1]]), flags))?;
        }
        Ok(self.lanes.len() as u64)
    }

    /// Verifies the received data; `None` if the expected data is unknown.
    pub(super) fn verify(&self) -> Result<Option<bool>, Failure> {
        if self.parameters.kind.is_atomic() {
            return self.verify_atomics();
        }
        let filled = match self.parameters.kind {
            Kind::WriteBw | Kind::SendBw | Kind::WriteImmBw => self.to_verify,
            Kind::ReadBw => self.filled(),
            _ => 0,
        };
        if filled == 0 {
            return Ok(None);
        }
        self.region.verify(self.slots, filled, self.size_bytes).map(|()| Some(true))
    }

    /// Verifies the local word against the sum of the atomics, and the result of the last sequential atomic against the
    /// sum before it.
    fn verify_atomics(&self) -> Result<Option<bool>, Failure> {
        let layout = &self.region.layout;
        let last = self.lanes.first().map_or(0, |lane| lane.posted);
        let found = match self.parameters.kind {
            Kind::AtomicLat if last > 0 => Some((self.region.word(layout.source_at), last - 1)),
            _ => None,
        };
        let sum = (self.added > 0).then(|| (self.region.word(layout.sink_at), self.added));
        for (is, should) in found.iter().chain(&sum) {
            if is != should {
                return Err(Failure::work(format!("data: received {is}, expected {should}")));
            }
        }
        Ok(found.or(sum).map(|_| true))
    }

    /// Starts the graceful disconnect of the lanes.
    fn disconnect_lanes(&self) -> Vec<PendingCall> {
        let connectors = self.lanes.iter().filter_map(|lane| lane.connector.as_ref());
        connectors.map(|connector| PendingCall::begin(|done| connector.disconnect(done))).collect()
    }

    /// Closes the objects of the lanes. Lanes without a graceful disconnect are aborted.
    fn close_lanes(&mut self) {
        for lane in self.lanes.drain(..) {
            close(lane.connector.as_ref(), &lane.qp);
        }
    }

    /// Disconnects all connections gracefully, each within the limit.
    pub(super) fn disconnect(&self, limit: Duration) -> Result<(), Failure> {
        for begun in self.disconnect_lanes() {
            // The peer disconnects as well: the later side may find the connection already closed.
            self.dialogue.host.wait(Some(limit), || begun.status())?;
        }
        self.dialogue.disconnect(limit)
    }
}

fn close(connector: Option<&Connector>, qp: &Qp) {
    // An object is destroyed after the objects that depend on it; completion is not awaited.
    if let Some(connector) = connector {
        let _ = connector.close(|| {});
    }
    let _ = qp.close(|| {});
}

impl Drop for Session<'_> {
    fn drop(&mut self) {
        self.close_lanes();
        self.region.close();
        for (_, station) in
            self.stations.iter().enumerate().filter(|(queue, _)| *queue != self.dialogue.queue)
        {
            let _ = station.cq.close(|| {});
            let _ = station.pd.close(|| {});
        }
    }
}

impl Drop for Dialogue<'_> {
    fn drop(&mut self) {
        close(self.connector.as_ref(), &self.qp);
        let _ = self.mailbox.mr.close(|| {});
        let _ = self.cq.close(|| {});
        let _ = self.pd.close(|| {});
    }
}
