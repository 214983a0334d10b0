//! The adapter as a whole: pause, resume, upload-all (CH §5.7), statistics (CH §11), reachability of neighbors (CH
//! §9.7).

use super::{Engine, port::ToHost};
use crate::{
    chimney::{
        objects::ReachabilityQuery,
        provider::{AdapterStatus, OffloadCapabilities},
        statistics::{IpOffloadStats, IpVersion, TcpOffloadStats},
        tree::TargetContext,
    },
    frame::{FlowKey, classify},
    link::TxOutcome,
    tcp::{Flags, Transmit},
    time::Instant,
};

/// Connections given back whose next frame is to have a comment.
const GIVEN_BACK_MAX: usize = 64;

/// Statistics of one IP version.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Statistics {
    tcp: TcpOffloadStats,
    ip: IpOffloadStats,
}

/// What a frame counts for: the link may have put several segments together, or will cut this one up.
#[derive(Clone, Copy, Debug)]
pub(super) struct Counted {
    pub(super) segments: usize,
    /// Of IP and TCP headers in each.
    pub(super) header_octets: usize,
    /// Of all together.
    pub(super) payload_octets: usize,
}

impl Counted {
    const fn octets(self) -> u64 {
        (self.segments * self.header_octets + self.payload_octets) as u64
    }
}

impl Statistics {
    pub(super) const fn received(&mut self, counted: Counted) {
        self.ip.in_receives = self.ip.in_receives.wrapping_add(counted.segments as u64);
        self.ip.in_octets = self.ip.in_octets.wrapping_add(counted.octets());
    }

    /// Those that TCP gets.
    pub(super) const fn delivered(&mut self, counted: Counted) {
        let segments = counted.segments as u64;
        self.ip.in_delivers = self.ip.in_delivers.wrapping_add(segments);
        self.tcp.in_segments = self.tcp.in_segments.wrapping_add(segments);
    }

    pub(super) const fn discarded(&mut self, counted: Counted) {
        self.ip.in_discards = self.ip.in_discards.wrapping_add(counted.segments as u32);
    }

    pub(super) const fn failed(&mut self, counted: Counted) {
        self.tcp.in_errors = self.tcp.in_errors.wrapping_add(counted.segments as u32);
    }

    pub(super) const fn reset_established(&mut self) {
        self.tcp.reset_established = self.tcp.reset_established.wrapping_add(1);
    }

    /// `outcome`: what the link did with it; `None`: it was not even tried.
    pub(super) fn sent(
        &mut self,
        transmit: &Transmit,
        counted: Counted,
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
    /// Asks the host to offload nothing more (OFFLOAD_PAUSE). What is offloaded goes on; initiates that are under way
    /// wait for [`Engine::resume`].
    pub fn pause(&mut self) {
        self.paused = true;
        self.notify_host(ToHost::Status(AdapterStatus::Pause));
    }

    /// Asks the host to terminate everything, and to offload nothing more (UPLOAD_ALL).
    pub fn upload_all(&mut self) {
        self.paused = true;
        self.notify_host(ToHost::Status(AdapterStatus::UploadAll));
    }

    /// Offloading may go on (OFFLOAD_RESUME), within other limits: capabilities only change this way (CH-CFG-1). What
    /// exceeds them already stays.
    pub fn resume(&mut self, capabilities: OffloadCapabilities) {
        self.paused = false;
        self.objects.set_capabilities(capabilities);
        self.notify_host(ToHost::Status(AdapterStatus::Resume(capabilities)));
        // For the trees that waited.
        self.doorbell.ring();
    }

    /// Whether offloading is paused.
    pub const fn is_paused(&self) -> bool {
        self.paused
    }

    /// A query of OID_TCP4_OFFLOAD_STATS or OID_TCP6_OFFLOAD_STATS.
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

    /// A query of OID_IP4_OFFLOAD_STATS or OID_IP6_OFFLOAD_STATS.
    pub const fn ip_stats(&self, version: IpVersion) -> IpOffloadStats {
        self.statistics[index(version)].ip
    }

    /// A set of OID_TCP4_OFFLOAD_STATS or OID_TCP6_OFFLOAD_STATS: whatever it holds, the counters start from 0.
    pub fn reset_tcp_stats(&mut self, version: IpVersion) {
        self.statistics[index(version)].tcp = TcpOffloadStats::default();
    }

    /// A set of OID_IP4_OFFLOAD_STATS or OID_IP6_OFFLOAD_STATS.
    pub fn reset_ip_stats(&mut self, version: IpVersion) {
        self.statistics[index(version)].ip = IpOffloadStats::default();
    }

    pub(super) const fn statistics(&mut self, ipv6: bool) -> &mut Statistics {
        &mut self.statistics[ipv6 as usize]
    }

    /// The comment in a capture of the first frame that the host sends on a connection that it has taken back.
    pub(super) fn hand_over_note(&mut self, frame: &[u8]) -> Option<&'static str> {
        if self.given_back.is_empty() {
            return None;
        }
        let flow = classify(frame)?.flow.reversed();
        let at = self.given_back.iter().position(|given_back| *given_back == flow)?;
        self.given_back.remove(at);
        Some("terminate")
    }

    /// Has the next frame of `flow` say that the connection is the host's again. Beyond [`GIVEN_BACK_MAX`] the oldest
    /// goes without.
    pub(super) fn note_given_back(&mut self, flow: FlowKey) {
        if !self.link.wants_comments() {
            return;
        }
        if self.given_back.len() >= GIVEN_BACK_MAX {
            self.given_back.pop_front();
        }
        self.given_back.push_back(flow);
    }

    /// Before a segment is sent on `path`: queries the host about the neighbor, if neither side has confirmed it (CH
    /// §9.7).
    pub(super) fn ask_reachability(&mut self, now: Instant, path: TargetContext) {
        let Some(question) = self.objects.question(now, path) else { return };
        let ReachabilityQuery { neighbor, host_reachability_delta, nic_reachability_delta } =
            question;
        self.notify_host(ToHost::NeighborReachabilityQuery {
            neighbor,
            host_reachability_delta,
            nic_reachability_delta,
        });
    }
}
