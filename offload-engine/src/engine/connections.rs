//! The table of offloaded connections: by flow for frames, by handle for the layers above; which of
//! them want to be drained, and when each wants its timers run.

use std::{
    boxed::Box,
    cmp::Reverse,
    collections::{BinaryHeap, VecDeque},
    net::IpAddr,
    vec::Vec,
};

use hashbrown::HashMap;

use super::EngineConfig;
use crate::{
    chimney::{
        client::{ClientTag, ConnectionIo, InitiateOffload, OffloadHandle},
        state::{ConnectionState, MacAddress},
    },
    frame::{FlowKey, HEADER_BYTES_MAX, HeaderTemplate, Vlan},
    link::LinkCapabilities,
    status::NdisStatus,
    tcp::{self, Connection, Info},
    time::Instant,
};

/// One offloaded connection with what surrounds its TCP object.
#[derive(Debug)]
pub(super) struct Offloaded {
    pub(super) handle: OffloadHandle,
    pub(super) client: ClientTag,
    pub(super) flow: FlowKey,
    pub(super) tcp: Connection,
    pub(super) headers: HeaderTemplate,
    /// Payload bytes that the link takes in one frame for segmentation; 0: it does not segment.
    segmentable_max: usize,
    /// The last row of a trace.
    pub(super) traced: Option<Box<tcp::TraceSample>>,
    /// The neighbor's; 0: any.
    vlan_id: u16,
    /// In the ready queue.
    ready: bool,
    /// When the timer heap wakes this connection; never later than its own time.
    scheduled: Option<Instant>,
    /// Distinguishes this connection from a former one in the same slot.
    generation: u64,
}

impl Offloaded {
    /// The connection as an upcall sees it.
    pub(super) fn io(&mut self, now: Instant) -> ConnectionIo<'_> {
        let super_segment_max = self.super_segment_max();
        ConnectionIo { handle: self.handle, now, connection: &mut self.tcp, super_segment_max }
    }

    /// Payload of the largest super-segment: whole segments of the present size; one without segmentation
    /// by the link. The path MTU may change at any time.
    pub(super) fn super_segment_max(&self) -> usize {
        let mss = self.tcp.effective_mss();
        (self.segmentable_max / mss * mss).max(mss)
    }
}

/// The offloaded connections of an engine.
#[derive(Debug)]
pub struct Connections {
    slots: Vec<Option<Box<Offloaded>>>,
    free: Vec<usize>,
    by_flow: HashMap<FlowKey, usize>,
    by_handle: HashMap<OffloadHandle, usize>,
    ready: VecDeque<usize>,
    timers: BinaryHeap<Reverse<(Instant, usize, u64)>>,
    generation: u64,
    mac: MacAddress,
    connections_max: usize,
    super_segment_max: usize,
    capabilities: LinkCapabilities,
    tcp: tcp::Config,
}

impl Connections {
    pub(super) fn new(config: &EngineConfig, capabilities: LinkCapabilities) -> Self {
        Self {
            slots: Vec::new(),
            free: Vec::new(),
            by_flow: HashMap::new(),
            by_handle: HashMap::new(),
            ready: VecDeque::new(),
            timers: BinaryHeap::new(),
            generation: 0,
            mac: config.mac,
            connections_max: config.connections_max,
            super_segment_max: config.super_segment_max,
            capabilities,
            tcp: config.tcp,
        }
    }

    /// The connection `handle`, to be acted upon outside an upcall. What is queued is drained by the
    /// engine's next poll or flush. `None`: not offloaded (any more).
    pub fn get(&mut self, now: Instant, handle: OffloadHandle) -> Option<ConnectionIo<'_>> {
        let slot = *self.by_handle.get(&handle)?;
        self.mark_ready(slot);
        self.slots[slot].as_deref_mut().map(|offloaded| offloaded.io(now))
    }

    /// The connection `handle` as it stands, undisturbed.
    pub fn look(&self, handle: OffloadHandle) -> Option<&Connection> {
        let slot = *self.by_handle.get(&handle)?;
        self.slots[slot].as_deref().map(|offloaded| &offloaded.tcp)
    }

    /// Has the engine call `OffloadClient::send_room` for `handle` soon: the client has data to make.
    pub fn kick(&mut self, handle: OffloadHandle) {
        if let Some(&slot) = self.by_handle.get(&handle) {
            self.mark_ready(slot);
        }
    }

    /// How many connections are offloaded.
    pub fn len(&self) -> usize {
        self.by_handle.len()
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.by_handle.is_empty()
    }

    /// Every connection's name, flow and TCP_INFO.
    pub fn list(&self, now: Instant) -> impl Iterator<Item = (OffloadHandle, FlowKey, Info)> {
        self.slots
            .iter()
            .flatten()
            .map(move |offloaded| (offloaded.handle, offloaded.flow, offloaded.tcp.info(now)))
    }

    /// Changes policies of connections that are offloaded from now on.
    pub fn set_tcp_config(&mut self, config: tcp::Config) {
        self.tcp = config;
    }

    pub(super) fn find(&self, flow: &FlowKey) -> Option<usize> {
        self.by_flow.get(flow).copied()
    }

    pub(super) fn slot(&mut self, slot: usize) -> Option<&mut Offloaded> {
        self.slots.get_mut(slot)?.as_deref_mut()
    }

    /// Whether a frame with this tag may be the connection's (CH 9.4).
    pub(super) fn accepts(&self, slot: usize, vlan: Vlan) -> bool {
        let offloaded = self.slots.get(slot).and_then(Option::as_deref);
        offloaded.is_some_and(|offloaded| vlan.is_accepted_by(offloaded.vlan_id))
    }

    pub(super) fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    pub(super) fn mark_ready(&mut self, slot: usize) {
        if let Some(offloaded) = self.slots[slot].as_deref_mut()
            && !offloaded.ready
        {
            offloaded.ready = true;
            self.ready.push_back(slot);
        }
    }

    /// The next connection to be drained.
    pub(super) fn next_ready(&mut self) -> Option<usize> {
        while let Some(slot) = self.ready.pop_front() {
            if let Some(offloaded) = self.slots[slot].as_deref_mut() {
                offloaded.ready = false;
                return Some(slot);
            }
        }
        None
    }

    pub(super) fn ready_len(&self) -> usize {
        self.ready.len()
    }

    /// Takes a connection over (MiniportInitiateOffload). On failure the state comes back, untouched
    /// (CH-INI-4).
    pub(super) fn insert(
        &mut self,
        now: Instant,
        request: InitiateOffload,
    ) -> Result<usize, (NdisStatus, Box<ConnectionState>)> {
        let InitiateOffload { handle, client, state } = request;
        let ConnectionState {
            neighbor,
            path,
            tcp,
            send_data: _,
            buffered_data: _,
            out_of_order: _,
        } = &*state;
        let (path, vlan_id) = (*path, neighbor.constant.vlan_id & 0xfff);
        if self.by_handle.len() >= self.connections_max {
            return Err((NdisStatus::OFFLOAD_TCP_ENTRIES, state));
        }
        let flow = FlowKey::new(
            (path.constant.source_address, tcp.constant.local_port).into(),
            (path.constant.destination_address, tcp.constant.remote_port).into(),
        );
        if self.by_flow.contains_key(&flow) || self.by_handle.contains_key(&handle) {
            return Err((NdisStatus::FAILURE, state));
        }
        let headers = HeaderTemplate::new(neighbor, &path, tcp, self.mac);
        let ip_header = if headers.is_ipv6() { 40 } else { 20 };
        let path_mtu = (path.cached.path_mtu as usize).min(self.capabilities.mtu);
        let tcp = match Connection::from_state(
            now,
            state,
            path_mtu.saturating_sub(ip_header + 20),
            self.tcp,
        ) {
            Ok(tcp) => tcp,
            Err((error, state)) => {
                tracing::warn!(?flow, %error, "initiate refused");
                return Err((NdisStatus::FAILURE, state));
            }
        };
        let segmentable_max = self.segmentable_max_for(path.constant.source_address);
        self.generation += 1;
        let offloaded = Box::new(Offloaded {
            handle,
            client,
            flow,
            tcp,
            headers,
            segmentable_max,
            traced: None,
            vlan_id,
            ready: false,
            scheduled: None,
            generation: self.generation,
        });
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() - 1
        });
        self.slots[slot] = Some(offloaded);
        self.by_flow.insert(flow, slot);
        self.by_handle.insert(handle, slot);
        Ok(slot)
    }

    /// Payload that fits the link's largest frame for segmentation.
    fn segmentable_max_for(&self, source: IpAddr) -> usize {
        let frame_max = match source {
            IpAddr::V4(_) => self.capabilities.tso4_max,
            IpAddr::V6(_) => self.capabilities.tso6_max,
        };
        frame_max.saturating_sub(HEADER_BYTES_MAX).min(self.super_segment_max)
    }

    pub(super) fn remove(&mut self, slot: usize) -> Option<Box<Offloaded>> {
        let offloaded = self.slots[slot].take()?;
        self.by_flow.remove(&offloaded.flow);
        self.by_handle.remove(&offloaded.handle);
        self.free.push(slot);
        Some(offloaded)
    }

    /// Puts the connection's next time-out into the heap, unless an earlier entry is there already:
    /// an entry that fires too early is looked at again, so a moving timer costs no heap operation.
    pub(super) fn schedule(&mut self, slot: usize) {
        let Some(offloaded) = self.slots[slot].as_deref_mut() else { return };
        let Some(at) = offloaded.tcp.poll_timeout() else { return };
        if offloaded.scheduled.is_none_or(|scheduled| at < scheduled) {
            offloaded.scheduled = Some(at);
            self.timers.push(Reverse((at, slot, offloaded.generation)));
        }
    }

    /// The next connection whose timer may be due.
    pub(super) fn pop_timer(&mut self, now: Instant) -> Option<usize> {
        loop {
            let &Reverse((at, slot, generation)) = self.timers.peek()?;
            if at > now {
                return None;
            }
            self.timers.pop();
            let Some(offloaded) = self.slots[slot].as_deref_mut() else { continue };
            if offloaded.generation != generation || offloaded.scheduled != Some(at) {
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
