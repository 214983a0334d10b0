//! MiniportTcpOffloadForward (CH §8.3): segments that the host hands back.

use super::{Clients, Engine, port::ToHost};
use crate::{chimney::provider::Forward, frame, status::NdisStatus, time::Instant};

impl Engine {
    /// CH-FWD-5: a segment that the host hands back, to the connection that it names. Completed at once.
    pub(super) fn forward(&mut self, now: Instant, mut segment: Forward, clients: &mut Clients) {
        segment.status = self.take_forward(now, &segment, clients);
        match segment.status {
            NdisStatus::SUCCESS => self.stats.forwards += 1,
            _ => self.stats.forwards_dropped += 1,
        }
        self.notify_host(ToHost::ForwardComplete(segment));
    }

    /// SUCCESS: processed. UPLOAD_IN_PROGRESS: it is the host's, now or after the terminate. REQUEST_ABORTED: to be
    /// dropped, because the connection was reset or it is no segment of this connection.
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
        // What stops a connection is the host's to process, and so is what comes behind it (CH §9.3).
        let stopped = self.connections.slot(slot).is_some_and(|found| found.tcp.is_stopped());
        if stopped { NdisStatus::UPLOAD_IN_PROGRESS } else { NdisStatus::SUCCESS }
    }
}
