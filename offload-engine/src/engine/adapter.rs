//! Operations on the whole adapter: pause, resume, upload-all (CH §5.7), statistics (CH §11), reachability of neighbors
//! (CH §9.7).

use super::{Engine, port::ToHost};
use crate::{
    chimney::{
        objects::ReachabilityQuery,
        provider::{AdapterStatus, OffloadCapabilities},
        statistics::{IpOffloadStats, IpVersion, TcpOffloadStats},
        tree::TargetContext,
    },
    frame::{FlowKey, classify},
    link::{Link, TxOutcome},
    tcp::{Flags, Transmit},
    time::Instant,
};

/// Uploaded connections whose next frame in a capture gets a comment.
const UPLOADED_FLOWS_MAX: usize = 64;

/// Statistics of one IP version.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Statistics {
    tcp: TcpOffloadStats,
    ip: IpOffloadStats,
}

/// Contribution of a frame to the counters. A frame may hold several segments, coalesced by the link or to be cut by
/// it.
#[derive(Clone, Copy, Debug)]
pub(super) struct FrameCount {
    pub(super) segments: usize,
    /// Octets of the IP and TCP headers of each segment.
    pub(super) header_octets: usize,
    /// Payload octets of all segments together.
    pub(super) payload_octets: usize,
}

impl FrameCount {
    const fn octets(self) -> u64 {
        (self.segments * self.header_octets + self.payload_octets) as u64
    }
}

impl Statistics {
    pub(super) const fn received(&mut self, counted: FrameCount) {
        self.ip.in_receives = self.ip.in_receives.wrapping_add(counted.segments as u64);
        self.ip.in_octets = self.ip.in_octets.wrapping_add(counted.octets());
    }

    /// Counts segments delivered to TCP.
    pub(super) const fn delivered(&mut self, counted: FrameCount) {
        let segments = counted.segments as u64;
        self.ip.in_delivers = self.ip.in_delivers.wrapping_add(segments);
        self.tcp.in_segments = self.tcp.in_segments.wrapping_add(segments);
    }

    pub(super) const fn discarded(&mut self, counted: FrameCount) {
        self.ip.in_discards = self.ip.in_discards.wrapping_add(counted.segments as u32);
    }

    pub(super) const fn failed(&mut self, counted: FrameCount) {
        self.tcp.in_errors = self.tcp.in_errors.wrapping_add(counted.segments as u32);
    }

    pub(super) const fn reset_established(&mut self) {
        self.tcp.reset_established = self.tcp.reset_established.wrapping_add(1);
    }

    /// Counts a transmission. `outcome` is the result of the link, or `None` if the link was not called.
    pub(super) fn sent(
        &mut self,
        transmit: &Transmit,
        counted: FrameCount,
        outcome: Option<TxOutcome>,
    ) {
        let segments = counted.segments as u64;
        let Self { tcp, ip } = self;
        ip.out_requests = ip.out_requests.wrapping_add(segments);
        match outcome {
            Some(TxOutcome::Sent | TxOutcome::Full) => {}
            Some(TxOutcome::Dropped) | None => {
                ip.out_discards = ip.out_discards.wrapping_add(segments as u32);
            }
        }
        if outcome.is_none() {
            return;
        }
        ip.out_octets = ip.out_octets.wrapping_add(counted.octets());
        if transmit.retransmission {
            tcp.retransmitted_segments = tcp.retransmitted_segments.wrapping_add(segments as u32);
        } else {
            tcp.out_segments = tcp.out_segments.wrapping_add(segments);
        }
        if transmit.flags.contains(Flags::RST) {
            tcp.out_resets = tcp.out_resets.wrapping_add(1);
        }
    }
}

const fn index(version: IpVersion) -> usize {
    match version {
        IpVersion::V4 => 0,
        IpVersion::V6 => 1,
    }
}

impl Engine {
    /// Requests that the host offload nothing more (OFFLOAD_PAUSE). Offloaded connections continue. Outstanding
    /// initiates are delayed until [`Engine::resume`].
    pub fn pause(&mut self) {
        self.paused = true;
        self.notify_host(ToHost::Status(AdapterStatus::Pause));
    }

    /// Requests that the host terminate all offloaded objects and offload nothing more (UPLOAD_ALL).
    pub fn upload_all(&mut self) {
        self.paused = true;
        self.notify_host(ToHost::Status(AdapterStatus::UploadAll));
    }

    /// Allows offloads again (OFFLOAD_RESUME), within new limits: capabilities change only this way (CH-CFG-1). Objects
    /// that already exceed them remain offloaded.
    pub fn resume(&mut self, capabilities: OffloadCapabilities) {
        self.paused = false;
        self.objects.set_capabilities(capabilities);
        self.notify_host(ToHost::Status(AdapterStatus::Resume(capabilities)));
        // Processes the delayed trees.
        self.doorbell.ring();
    }

    /// True if offloading is paused.
    pub const fn is_paused(&self) -> bool {
        self.paused
    }

    /// Returns the value of OID_TCP4_OFFLOAD_STATS or OID_TCP6_OFFLOAD_STATS.
    pub fn tcp_stats(&self, version: IpVersion) -> TcpOffloadStats {
        let established = self.connections.occupied().filter(|(_, found)| {
            found.headers.is_ipv6() == (version == IpVersion::V6)
                && found.tcp.phase().is_established()
        });
        TcpOffloadStats {
            currently_established: u32::try_from(established.count()).unwrap_or(u32::MAX),
            ..self.statistics[index(version)].tcp
        }
    }

    /// Returns the value of OID_IP4_OFFLOAD_STATS or OID_IP6_OFFLOAD_STATS.
    pub const fn ip_stats(&self, version: IpVersion) -> IpOffloadStats {
        self.statistics[index(version)].ip
    }

    /// Set of OID_TCP4_OFFLOAD_STATS or OID_TCP6_OFFLOAD_STATS: resets the counters to 0, whatever the value.
    pub fn reset_tcp_stats(&mut self, version: IpVersion) {
        self.statistics[index(version)].tcp = TcpOffloadStats::default();
    }

    /// Set of OID_IP4_OFFLOAD_STATS or OID_IP6_OFFLOAD_STATS: resets the counters to 0.
    pub fn reset_ip_stats(&mut self, version: IpVersion) {
        self.statistics[index(version)].ip = IpOffloadStats::default();
    }

    pub(super) const fn statistics(&mut self, ipv6: bool) -> &mut Statistics {
        &mut self.statistics[ipv6 as usize]
    }

    /// Returns the capture comment for the host's first frame on a connection after its upload.
    pub(super) fn hand_over_comment(&mut self, frame: &[u8]) -> Option<&'static str> {
        if self.uploaded_flows.is_empty() {
            return None;
        }
        let flow = classify(frame)?.flow.reversed();
        let at = self.uploaded_flows.iter().position(|uploaded| *uploaded == flow)?;
        self.uploaded_flows.remove(at);
        Some("terminate")
    }

    /// Adds a capture comment to the next frame of `flow`, which reports the upload of the connection. Beyond
    /// [`UPLOADED_FLOWS_MAX`] the oldest entry is removed.
    pub(super) fn mark_uploaded(&mut self, flow: FlowKey) {
        if !self.link.uses_comments() {
            return;
        }
        if self.uploaded_flows.len() >= UPLOADED_FLOWS_MAX {
            self.uploaded_flows.pop_front();
        }
        self.uploaded_flows.push_back(flow);
    }

    /// Queries the host about the neighbor if neither side has confirmed it (CH §9.7). Called before a segment is sent
    /// on `path`.
    pub(super) fn query_reachability(&mut self, now: Instant, path: TargetContext) {
        let Some(query) = self.objects.reachability_query(now, path) else { return };
        let ReachabilityQuery { neighbor, host_reachability_delta, nic_reachability_delta } = query;
        self.notify_host(ToHost::NeighborReachabilityQuery {
            neighbor,
            host_reachability_delta,
            nic_reachability_delta,
        });
    }
}
