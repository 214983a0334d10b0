//! MiniportTcpOffloadForward (CH §8.3): segments forwarded by the host.

use super::{Clients, Engine, port::ToHost};
use crate::{chimney::provider::Forward, frame, status::NdisStatus, time::Instant};

impl Engine {
    /// Processes a segment that the host forwards for the named connection (CH-FWD-5). Completed immediately.
    pub(super) fn forward(&mut self, now: Instant, mut segment: Forward, clients: &mut Clients) {
        segment.status = self.take_forward(now, &segment, clients);
        match segment.status {
            NdisStatus::SUCCESS => self.stats.forwards += 1,
            _ => self.stats.forwards_dropped += 1,
        }
        self.notify_host(ToHost::ForwardComplete(segment));
    }

    /// Processes a forwarded segment. SUCCESS: processed. UPLOAD_IN_PROGRESS: the host must process it, now or after
    /// the terminate. REQUEST_ABORTED: the host must drop it, because the connection was reset or the segment is not of
    /// this connection.
    fn take_forward(
        &mut self,
        now: Instant,
        segment: &Forward,
        clients: &mut Clients,
    ) -> NdisStatus {
        let Forward { connection, frame: data, status: _ } = segment;
        let Some(slot) = self.connections.find_context(*connection) else {
            return NdisStatus::UPLOAD_IN_PROGRESS;
        };
        let found = frame::parse(data).ok();
        let Some(offloaded) = self.connections.slot(slot) else {
            return NdisStatus::UPLOAD_IN_PROGRESS;
        };
        let Some(tcp) = found.filter(|tcp| tcp.flow == offloaded.flow) else {
            return NdisStatus::REQUEST_ABORTED;
        };
        if offloaded.tcp.is_closed() {
            return NdisStatus::REQUEST_ABORTED;
        }
        if !offloaded.tcp.is_stopped() {
            self.take_segment(now, slot, &tcp, 0, None, clients);
        }
        // The segment that stops a connection, and those after it, are processed by the host (CH §9.3).
        let stopped = self.connections.slot(slot).is_some_and(|found| found.tcp.is_stopped());
        if stopped { NdisStatus::UPLOAD_IN_PROGRESS } else { NdisStatus::SUCCESS }
    }
}
