//! Table of offloaded connections: lookup by flow and by handle, ready queue, timer heap.

use std::{
    boxed::Box,
    cmp::Reverse,
    collections::{BinaryHeap, VecDeque},
    net::IpAddr,
    vec::Vec,
};

use hashbrown::HashMap;

use super::{
    EngineConfig,
    loans::Loans,
    turns::{Share, Turns},
};
use crate::{
    chimney::{
        client::{ClientTag, ConnectionIo, OffloadHandle, UploadReason},
        objects::{Layer, objects},
        provider::OffloadCapabilities,
        tree::{TargetContext, TcpObject},
    },
    frame::{FlowKey, HEADER_BYTES_MAX, HeaderTemplate, Vlan},
    link::LinkCapabilities,
    state::{MacAddress, NeighborState, PathState, TcpState},
    status::NdisStatus,
    table::Table,
    tcp::{self, Connection, Info, TcpPhase, Transmit, TxLimits},
    time::Instant,
};

/// Frames kept per stopped connection until the host takes the connection back (CH §9.3). Further ones are dropped and
/// counted, and the peer retransmits them.
pub const HELD_FRAMES_MAX: usize = 64;
/// Bytes of these frames.
pub const HELD_BYTES_MAX: usize = 256 * 1024;

/// Frames kept per newly offloaded connection until the host has forwarded older ones. A peer may send as much as its
/// window allows, and would treat dropped frames as lost.
pub const EARLY_FRAMES_MAX: usize = 4096;
/// Bytes of these frames, with headers. Exceeds the largest window of a default configuration.
pub const EARLY_BYTES_MAX: usize = 8 * 1024 * 1024;

/// Payload bytes of a GSO packet that the engine segments because the link does not. The limit is small enough that
/// acknowledgments of the peer are read in time.
pub const BURST_BYTES_MAX: usize = 16 * 1024;

/// Frames kept for later: those of a stopped connection, or those newer than frames the host has yet to forward.
#[derive(Debug)]
pub(super) struct HeldFrames {
    frames: Vec<Vec<u8>>,
    bytes: usize,
    frames_max: usize,
    bytes_max: usize,
}

impl HeldFrames {
    const fn new(frames_max: usize, bytes_max: usize) -> Self {
        Self { frames: Vec::new(), bytes: 0, frames_max, bytes_max }
    }

    /// Keeps a copy. Returns true if there was room.
    pub(super) fn push(&mut self, frame: &[u8]) -> bool {
        let room = self.frames.len() < self.frames_max;
        let room = room && self.bytes + frame.len() <= self.bytes_max;
        if room {
            self.bytes += frame.len();
            self.frames.push(frame.to_vec());
        }
        room
    }

    pub(super) fn into_frames(self) -> Vec<Vec<u8>> {
        self.frames
    }
}

/// Bytes of data that connections were offloaded with (CH §2.1: XMIT_BUFFER, RCV_BUFFER).
#[derive(Clone, Copy, Default, Debug)]
struct OffloadedBytes {
    send: usize,
    receive: usize,
}

impl OffloadedBytes {
    fn of(object: &TcpObject) -> Self {
        let buffered = object.buffered_data.iter().map(|data| data.len());
        let out_of_order = object.out_of_order.iter().map(|(_, data)| data.len());
        Self {
            send: object.send_data.iter().map(|list| list.data_length()).sum(),
            receive: buffered.chain(out_of_order).sum(),
        }
    }
}

/// Objects that a connection depends on.
#[derive(Clone, Copy, Debug)]
pub(super) struct ParentObjects {
    pub(super) path: TargetContext,
    pub(super) neighbor_state: NeighborState,
    pub(super) path_state: PathState,
}

/// Payload bytes of the largest GSO packets, in whole segments of `mss`. Cached, because a division is slow.
#[derive(Clone, Copy, Default, Debug)]
struct GsoSizes {
    mss: usize,
    /// Largest GSO packet that the link segments.
    gso_payload: usize,
    /// Largest GSO packet that TCP builds.
    burst: usize,
}

/// Offloaded connection: TCP state, headers, and state of the engine.
#[derive(Debug)]
pub(super) struct Offloaded {
    pub(super) handle: OffloadHandle,
    pub(super) client: ClientTag,
    pub(super) flow: FlowKey,
    pub(super) tcp: Connection,
    pub(super) headers: HeaderTemplate,
    /// Name assigned by the target.
    pub(super) context: TargetContext,
    /// Path that the connection depends on.
    pub(super) path: TargetContext,
    share: Share,
    /// True if the connection itself was invalidated.
    pub(super) invalid: bool,
    /// Upload requests not yet reported to the host.
    pub(super) retrieves: Vec<UploadReason>,
    pub(super) held: HeldFrames,
    /// Frames received while older segments may still be forwarded.
    pub(super) early: Option<HeldFrames>,
    offloaded_bytes: OffloadedBytes,
    /// Payload that the link has borrowed.
    pub(super) loans: Loans,
    /// True if the connection's hardware has failed. The next operation on the connection detects it.
    pub(super) failed: bool,
    /// True if client and host were notified of the failure.
    pub(super) failure_reported: bool,
    /// True if a received segment confirmed that the neighbor is reachable (CH §9.7).
    pub(super) progress: bool,
    /// True if a segment was sent since data was last received, so that further data is a response.
    pub(super) sent_since_data: bool,
    /// Capture comment of the next frame: the migration that it follows.
    pub(super) hand_over: Option<&'static str>,
    /// Payload bytes of the largest GSO packet of the link. 0 if the link does not segment.
    segmentable_max: usize,
    /// Payload bytes of the largest GSO packet that TCP builds, segmented by the link or by the engine.
    burst_max: usize,
    gso_sizes: GsoSizes,
    /// Last row written to the trace.
    pub(super) last_sample: Option<Box<tcp::TraceSample>>,
    /// VLAN id of the neighbor. 0 accepts any.
    vlan_id: u16,
    /// True if the connection is in the ready queue.
    pub(super) ready: bool,
    /// Time of the connection's entry in the timer heap, never later than its own timer.
    scheduled: Option<Instant>,
}

impl Offloaded {
    /// True if a frame with this tag may belong to the connection (CH §9.4).
    pub(super) fn accepts(&self, vlan: Vlan) -> bool {
        vlan.is_accepted_by(self.vlan_id)
    }

    /// Returns the connection's access for an upcall.
    #[inline]
    pub(super) fn io(&mut self, now: Instant) -> ConnectionIo<'_> {
        let gso_payload_max = self.gso_payload_max();
        ConnectionIo {
            handle: self.handle,
            now,
            connection: &mut self.tcp,
            gso_payload_max,
            is_lent: self.loans.may_be_lent(),
            buffer: None,
        }
    }

    /// Returns the next event for the client.
    #[inline]
    pub(super) fn poll_event(&mut self) -> Option<tcp::Event> {
        match self.loans.may_be_lent() {
            true => self.poll_event_after_loans(),
            false => self.tcp.poll_event(),
        }
    }

    #[cold]
    fn poll_event_after_loans(&mut self) -> Option<tcp::Event> {
        if let Some(event) = self.loans.pop() {
            return Some(event);
        }
        loop {
            let event = self.tcp.poll_event()?;
            if let Some(event) = self.loans.pass(event) {
                return Some(event);
            }
        }
    }

    /// Returns the next segment, and true if it moves the connection from an established state to CLOSED (CH §11).
    /// `new_data` is the result of [`Connections::may_send`].
    pub(super) fn poll_transmit(
        &mut self,
        now: Instant,
        new_data: bool,
    ) -> Option<(Transmit, bool)> {
        let limits = TxLimits { gso_payload_max: self.gso_sizes().burst, new_data };
        let established = self.tcp.phase().is_established();
        let transmit = self.tcp.poll_transmit(now, limits)?;
        Some((transmit, established && self.tcp.is_closed()))
    }

    /// Payload bytes of the largest GSO packet, in whole segments of the present size. One segment if the link does not
    /// segment.
    pub(super) fn gso_payload_max(&mut self) -> usize {
        self.gso_sizes().gso_payload
    }

    /// Returns the cached sizes, recomputed if the segment size changed with the path MTU.
    #[inline]
    fn gso_sizes(&mut self) -> GsoSizes {
        let mss = self.tcp.effective_mss();
        if self.gso_sizes.mss != mss {
            let most = |bytes: usize| (bytes / mss * mss).max(mss);
            let (gso_payload, burst) = (most(self.segmentable_max), most(self.burst_max));
            self.gso_sizes = GsoSizes { mss, gso_payload, burst };
        }
        self.gso_sizes
    }
}

/// Offloaded connections of an engine.
#[derive(Debug)]
pub struct Connections {
    slots: Table<TargetContext, Box<Offloaded>>,
    by_flow: HashMap<FlowKey, usize>,
    /// Slot of the last [`Connections::find`].
    last_found: usize,
    by_handle: HashMap<OffloadHandle, usize>,
    ready: VecDeque<usize>,
    timers: BinaryHeap<Reverse<(Instant, usize, u32)>>,
    turns: Turns,
    offloaded_bytes: OffloadedBytes,
    mac: MacAddress,
    gso_payload_max: usize,
    capabilities: LinkCapabilities,
    /// See [`EngineConfig::waits_for_forwards`].
    waits_for_forwards: bool,
    tcp: tcp::Config,
}

impl Connections {
    pub(super) fn new(config: &EngineConfig, capabilities: LinkCapabilities) -> Self {
        Self {
            slots: objects(Layer::Tcp),
            by_flow: HashMap::new(),
            last_found: 0,
            by_handle: HashMap::new(),
            ready: VecDeque::new(),
            timers: BinaryHeap::new(),
            turns: Turns::new(config.tcp.in_flight_min),
            offloaded_bytes: OffloadedBytes::default(),
            mac: config.mac,
            gso_payload_max: config.gso_payload_max,
            capabilities,
            waits_for_forwards: config.waits_for_forwards,
            tcp: config.tcp,
        }
    }

    /// Returns the connection `handle` for access outside an upcall. The engine's next poll or flush processes what is
    /// queued. `None` if it is not offloaded.
    pub fn get(&mut self, now: Instant, handle: OffloadHandle) -> Option<ConnectionIo<'_>> {
        let slot = *self.by_handle.get(&handle)?;
        self.mark_ready(slot);
        self.slot(slot).map(|offloaded| offloaded.io(now))
    }

    /// Returns the connection `handle`, read-only.
    pub(super) fn peek(&self, handle: OffloadHandle) -> Option<&Offloaded> {
        self.at(*self.by_handle.get(&handle)?)
    }

    /// Schedules a call of `OffloadClient::send_room` for `handle`, because the client has data to produce.
    pub fn schedule_send_room(&mut self, handle: OffloadHandle) {
        if let Some(&slot) = self.by_handle.get(&handle) {
            self.mark_ready(slot);
        }
    }

    /// Number of offloaded connections.
    pub fn len(&self) -> usize {
        self.by_handle.len()
    }

    /// True if no connection is offloaded.
    pub fn is_empty(&self) -> bool {
        self.by_handle.is_empty()
    }

    /// Returns the name, flow and TCP_INFO of every connection.
    pub fn list(&self, now: Instant) -> impl Iterator<Item = (OffloadHandle, FlowKey, Info)> {
        self.slots
            .iter()
            .map(move |(_, offloaded)| (offloaded.handle, offloaded.flow, offloaded.tcp.info(now)))
    }

    #[cfg(test)]
    pub(super) fn by_handle(&mut self, handle: OffloadHandle) -> Option<&mut Offloaded> {
        self.slot(*self.by_handle.get(&handle)?)
    }

    /// Returns the connection with this flow. Frames of one flow are received in trains, so the connection of the last
    /// frame is checked first.
    #[inline]
    pub(super) fn find(&mut self, flow: &FlowKey) -> Option<usize> {
        let last = self.at(self.last_found);
        if last.is_some_and(|last| last.flow == *flow) {
            return Some(self.last_found);
        }
        self.find_other(flow)
    }

    #[inline(never)]
    fn find_other(&mut self, flow: &FlowKey) -> Option<usize> {
        self.last_found = *self.by_flow.get(flow)?;
        Some(self.last_found)
    }

    pub(super) fn slot(&mut self, slot: usize) -> Option<&mut Offloaded> {
        self.slots.at_mut(slot).map(|offloaded| &mut **offloaded)
    }

    pub(super) fn at(&self, slot: usize) -> Option<&Offloaded> {
        self.slots.at(slot).map(|offloaded| &**offloaded)
    }

    pub(super) fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Returns the connection in the ready queue, if there is exactly one.
    pub(super) fn only_ready(&self) -> Option<&Offloaded> {
        let slot = *self.ready.front().filter(|_| self.ready.len() == 1)?;
        self.at(slot)
    }

    pub(super) fn mark_ready(&mut self, slot: usize) {
        if let Some(offloaded) = self.slots.at_mut(slot)
            && !offloaded.ready
        {
            offloaded.ready = true;
            self.ready.push_back(slot);
        }
    }

    /// Removes the next connection from the ready queue.
    pub(super) fn next_ready(&mut self) -> Option<usize> {
        while let Some(slot) = self.ready.pop_front() {
            if let Some(offloaded) = self.slot(slot) {
                offloaded.ready = false;
                return Some(slot);
            }
        }
        None
    }

    /// Returns false if the connection has new data and has to wait for [`Connections::start_turn`].
    #[inline]
    pub(super) fn may_send(&mut self, slot: usize) -> bool {
        let Some(offloaded) = self.slots.at_mut(slot) else { return true };
        let Offloaded { tcp, share, path, context, .. } = &mut **offloaded;
        tcp.unsent() == 0 || self.turns.may_send(*path, *context, share, tcp)
    }

    /// Counts the bytes in flight of a connection after a transmission, an ACK or a timeout.
    #[inline]
    pub(super) fn count_in_flight(&mut self, slot: usize) {
        if let Some(offloaded) = self.slots.at_mut(slot) {
            let Offloaded { tcp, share, path, .. } = &mut **offloaded;
            self.turns.count(*path, share, tcp);
        }
    }

    /// Starts the turn of the next waiting connection of a path that has room, which becomes the first ready one.
    /// Returns false if there is none.
    #[inline]
    pub(super) fn start_turn(&mut self) -> bool {
        self.turns.is_contended() && self.start_turn_of_waiting()
    }

    #[cold]
    fn start_turn_of_waiting(&mut self) -> bool {
        let Self { slots, turns, ready, .. } = self;
        let next = turns.next(|connection| {
            let Some(offloaded) = slots.get_mut(connection) else { return false };
            offloaded.share.start_turn(&offloaded.tcp);
            true
        });
        let Some(next) = next else { return false };
        let slot = next.index as usize;
        if let Some(offloaded) = slots.at_mut(slot)
            && core::mem::replace(&mut offloaded.ready, true)
        {
            ready.retain(|other| *other != slot);
        }
        ready.push_front(slot);
        true
    }

    pub(super) fn repeat_last_acks(&mut self) {
        let repeats = |offloaded: &mut Box<Offloaded>| {
            let repeats = offloaded.tcp.repeat_last_ack() && !offloaded.ready;
            offloaded.ready |= repeats;
            repeats.then_some(offloaded.context.index as usize)
        };
        self.ready.extend(self.slots.values_mut().filter_map(repeats));
    }

    pub(super) fn ready_len(&self) -> usize {
        self.ready.len()
    }

    /// Returns the slot of the connection that the target named `context`.
    pub(super) fn find_context(&self, context: TargetContext) -> Option<usize> {
        self.slots.get(context).map(|_| context.index as usize)
    }

    /// Returns the slots in use. Visits all of them: for state operations, not per packet.
    pub(super) fn occupied(&self) -> impl Iterator<Item = (usize, &Offloaded)> {
        self.slots.iter().map(|(context, found)| (context.index as usize, &**found))
    }

    /// Checks if one more connection may be offloaded. The error is the reason.
    pub(super) fn admit(
        &self,
        capabilities: &OffloadCapabilities,
        object: &TcpObject,
    ) -> Result<(), NdisStatus> {
        let OffloadCapabilities {
            support_ipv4: _,
            support_ipv6: _,
            support_sack,
            connections_max,
            paths_max: _,
            neighbors_max: _,
            ip_addresses_max: _,
            hw_addresses_max: _,
            vlans_max: _,
            transmit_buffer_max,
            receive_buffer_max,
            receive_window_max,
            path_mtu_max: _,
        } = *capabilities;
        let TcpState { constant, cached, delegated } = &object.tcp;
        let offloaded_bytes = OffloadedBytes::of(object);
        if self.by_handle.len() >= connections_max {
            return Err(NdisStatus::OFFLOAD_TCP_ENTRIES);
        }
        // CH-ST-1.
        let transferable = !matches!(delegated.state, TcpPhase::Closed | TcpPhase::TimeWait);
        if !transferable || constant.sack_enabled && !support_sack {
            return Err(NdisStatus::FAILURE);
        }
        if cached.initial_rcv_wnd > receive_window_max {
            return Err(NdisStatus::OFFLOAD_TCP_RCV_WINDOW);
        }
        if offloaded_bytes.send > transmit_buffer_max.saturating_sub(self.offloaded_bytes.send) {
            return Err(NdisStatus::OFFLOAD_TCP_XMIT_BUFFER);
        }
        if offloaded_bytes.receive > receive_buffer_max.saturating_sub(self.offloaded_bytes.receive)
        {
            return Err(NdisStatus::OFFLOAD_TCP_RCV_BUFFER);
        }
        Ok(())
    }

    /// Offloads a connection. On failure the object is returned unchanged (CH-INI-4).
    pub(super) fn insert(
        &mut self,
        now: Instant,
        handle: OffloadHandle,
        parents: &ParentObjects,
        object: Box<TcpObject>,
    ) -> Result<TargetContext, (NdisStatus, Box<TcpObject>)> {
        let ParentObjects { path, neighbor_state, path_state } = *parents;
        let constant = &object.tcp.constant;
        let flow = FlowKey::new(
            (path_state.constant.source_address, constant.local_port).into(),
            (path_state.constant.destination_address, constant.remote_port).into(),
        );
        if self.by_flow.contains_key(&flow) || self.by_handle.contains_key(&handle) {
            return Err((NdisStatus::FAILURE, object));
        }
        let Some(context) = self.slots.next_name() else {
            return Err((NdisStatus::RESOURCES, object));
        };
        let headers = HeaderTemplate::new(&neighbor_state, &path_state, &object.tcp, self.mac);
        let payload = self.path_mtu_payload(&path_state);
        let offloaded_bytes = OffloadedBytes::of(&object);
        let (client, state) = object.join(neighbor_state, path_state);
        let tcp = match Connection::from_state(now, Box::new(state), payload, self.tcp) {
            Ok(tcp) => tcp,
            Err((error, state)) => {
                tracing::warn!(?flow, %error, "initiate rejected");
                let (_, _, object) = TcpObject::split(client, *state);
                return Err((NdisStatus::FAILURE, Box::new(object)));
            }
        };
        let segmentable_max = self.segmentable_max_for(path_state.constant.source_address);
        let offloaded = Offloaded {
            handle,
            client,
            flow,
            tcp,
            headers,
            context,
            path,
            share: Share::default(),
            invalid: false,
            retrieves: Vec::new(),
            held: HeldFrames::new(HELD_FRAMES_MAX, HELD_BYTES_MAX),
            early: self
                .waits_for_forwards
                .then(|| HeldFrames::new(EARLY_FRAMES_MAX, EARLY_BYTES_MAX)),
            offloaded_bytes,
            loans: Loans::default(),
            failed: false,
            failure_reported: false,
            progress: false,
            sent_since_data: false,
            hand_over: Some("initiate complete"),
            segmentable_max,
            burst_max: if segmentable_max == 0 {
                BURST_BYTES_MAX.min(self.gso_payload_max)
            } else {
                segmentable_max
            },
            gso_sizes: GsoSizes::default(),
            last_sample: None,
            vlan_id: neighbor_state.constant.vlan_id & 0xfff,
            ready: false,
            scheduled: None,
        };
        let slot = context.index as usize;
        self.turns.add_path(path);
        self.by_flow.insert(offloaded.flow, slot);
        self.by_handle.insert(offloaded.handle, slot);
        self.offloaded_bytes.send += offloaded.offloaded_bytes.send;
        self.offloaded_bytes.receive += offloaded.offloaded_bytes.receive;
        let inserted = self.slots.insert(Box::new(offloaded));
        debug_assert_eq!(inserted.ok(), Some(context), "the name that was announced");
        Ok(context)
    }

    /// Replaces the headers. IPv4 identifications continue.
    pub(super) fn relabel(
        &mut self,
        now: Instant,
        slot: usize,
        neighbor: &NeighborState,
        path: &PathState,
    ) {
        let mac = self.mac;
        if let Some(offloaded) = self.slot(slot) {
            offloaded.headers.renew(neighbor, path, &offloaded.tcp.tcp_state(now), mac);
            offloaded.vlan_id = neighbor.constant.vlan_id & 0xfff;
        }
    }

    /// Payload bytes of a packet on `path` after IP and TCP headers without options, from the smaller of the path's and
    /// the link's MTU.
    pub(super) fn path_mtu_payload(&self, path: &PathState) -> usize {
        let ip_header = if path.constant.source_address.is_ipv6() { 40 } else { 20 };
        let path_mtu = (path.cached.path_mtu as usize).min(self.capabilities.mtu);
        path_mtu.saturating_sub(ip_header + 20)
    }

    /// Payload bytes that fit into the largest GSO frame of the link.
    fn segmentable_max_for(&self, source: IpAddr) -> usize {
        let frame_max = match source {
            IpAddr::V4(_) => self.capabilities.tso4_max,
            IpAddr::V6(_) => self.capabilities.tso6_max,
        };
        frame_max.saturating_sub(HEADER_BYTES_MAX).min(self.gso_payload_max)
    }

    pub(super) fn remove(&mut self, slot: usize) -> Option<Box<Offloaded>> {
        let mut offloaded = self.slots.remove_at(slot)?;
        self.turns.remove(offloaded.path, &mut offloaded.share);
        self.by_flow.remove(&offloaded.flow);
        self.by_handle.remove(&offloaded.handle);
        self.offloaded_bytes.send -= offloaded.offloaded_bytes.send;
        self.offloaded_bytes.receive -= offloaded.offloaded_bytes.receive;
        Some(offloaded)
    }

    /// Adds the connection's next timer to the heap, unless an earlier entry is present. An entry that expires early is
    /// rescheduled, so a timer that moves later needs no heap operation.
    pub(super) fn schedule(&mut self, slot: usize) {
        let Some(offloaded) = self.slots.at_mut(slot) else { return };
        let Some(at) = offloaded.tcp.poll_timeout() else { return };
        if offloaded.scheduled.is_none_or(|scheduled| at < scheduled) {
            offloaded.scheduled = Some(at);
            self.timers.push(Reverse((at, slot, offloaded.context.generation)));
        }
    }

    /// Removes the next connection with a timer that may be due.
    pub(super) fn pop_timer(&mut self, now: Instant) -> Option<usize> {
        loop {
            let &Reverse((at, slot, generation)) = self.timers.peek()?;
            if at > now {
                return None;
            }
            self.timers.pop();
            let Some(offloaded) = self.slot(slot) else { continue };
            if offloaded.context.generation != generation || offloaded.scheduled != Some(at) {
                continue;
            }
            offloaded.scheduled = None;
            if offloaded.tcp.poll_timeout().is_some_and(|due| due <= now) {
                return Some(slot);
            }
            self.schedule(slot);
        }
    }

    pub(super) fn next_timer(&self) -> Option<Instant> {
        self.timers.peek().map(|Reverse((at, _, _))| *at)
    }
}
