//! Legality of a segment that the connection sends.

use offload_engine::{
    memory::to_vec,
    tcp::{Ecn, Flags, SackBlock, SeqNum, Transmit},
};

use super::{End, World, stream::Stream};

impl World {
    pub(super) fn check_transmit(&mut self, transmit: &Transmit, gso_payload_max: usize) {
        let una = self.una;
        let distance = transmit.seq.distance(SeqNum(self.setup.local_isn) + una as u32);
        let start = una.cast_signed() + i64::from(distance);
        if transmit.flags.contains(Flags::RST) {
            assert!(matches!(self.end, Some(End::Abort | End::Upload)), "an RST without an abort");
            assert!(start >= una.cast_signed() - 1 && start <= self.snd_max.cast_signed());
            return;
        }
        self.check_ecn(transmit);
        assert!(transmit.flags.contains(Flags::ACK), "{transmit:?}");
        assert!(!transmit.flags.contains(Flags::SYN), "{transmit:?}");
        let fin = transmit.flags.contains(Flags::FIN);
        if transmit.payload_len > 0 || fin {
            assert!(
                start >= una.cast_signed(),
                "acknowledged bytes are retransmitted: {transmit:?}"
            );
            self.check_data(transmit, start.cast_unsigned(), fin, gso_payload_max);
        } else {
            // An acknowledgment, or an empty probe one byte back (RFC 9293 §3.8.4).
            let legal = start >= una.cast_signed() - 1 && start <= self.snd_max.cast_signed();
            assert!(legal, "{start} is not in [{una} - 1, {}]", self.snd_max);
        }
        self.check_acknowledgment(transmit);
        self.check_options(transmit);
    }

    fn check_data(&mut self, transmit: &Transmit, start: u64, fin: bool, super_max: usize) {
        let data_end = start + transmit.payload_len as u64;
        let end = data_end + u64::from(fin);
        assert!(data_end <= self.requests.posted(), "more than was posted: {transmit:?}");
        if fin {
            assert!(
                self.requests.has_pending_fin() && data_end == self.requests.posted(),
                "early FIN"
            );
        }
        assert!(transmit.payload_len <= super_max.max(transmit.mss), "too large: {transmit:?}");
        assert_eq!(transmit.mss, self.mss());
        assert_eq!(transmit.retransmission, start < self.snd_max, "{transmit:?}");
        if end > self.snd_max {
            // RFC 9293 §3.8.6: new data is within the window, except for the byte of a probe.
            let probe = self.wnd == 0 && start == self.una && end == start + 1;
            let edge = self.una + self.wnd;
            assert!(probe || end <= edge, "{start}..{end} is beyond the edge {edge}");
            self.summary.window_probes += u64::from(probe);
        }
        let mut at = start;
        for piece in self.tcp.payload(transmit) {
            if let Err(at) = Stream::Ours.check(at, &to_vec([piece])) {
                panic!("wrong byte at {at}");
            }
            at += piece.len() as u64;
        }
        assert_eq!(at, data_end, "the payload length differs from the header");
        self.snd_max = self.snd_max.max(end);
        self.fin_sent |= fin;
    }

    fn check_acknowledgment(&mut self, transmit: &Transmit) {
        let nxt = self.rcv_nxt();
        let expected = SeqNum(self.setup.remote_isn) + nxt as u32;
        assert_eq!(transmit.ack, expected, "the acknowledgment is RCV.NXT");
        let edge = nxt + (u64::from(transmit.window) << self.setup.scale);
        // RFC 7323 §2.4: less than a unit of the scale may be retracted, if every advertised window is honored.
        let unit = 1 << self.setup.scale;
        assert!(edge + unit > self.edge, "the right edge moves left by {} bytes", self.edge - edge);
        self.edge = self.edge.max(edge);
    }

    fn check_options(&mut self, transmit: &Transmit) {
        assert_eq!(transmit.timestamps.is_some(), self.setup.timestamps);
        if let Some(timestamps) = transmit.timestamps {
            let age = self.our_stamp.map_or(0, |before| timestamps.value.wrapping_sub(before));
            assert!(age.cast_signed() >= 0, "the timestamps decrease");
            self.our_stamp = Some(timestamps.value);
            assert!(
                self.stamps.contains(&timestamps.echo),
                "an echo of a timestamp that was not sent"
            );
        }
        let blocks = &transmit.sack[..transmit.sack_count];
        if blocks.is_empty() {
            return;
        }
        assert!(self.setup.sack, "SACK was not negotiated");
        // RFC 2018 §3: number of blocks that fit with timestamps.
        assert!(blocks.len() <= 4 - usize::from(self.setup.timestamps));
        let places: Vec<_> = blocks.iter().map(|block| self.locate(block)).collect();
        let nxt = self.rcv_nxt().cast_signed();
        for (index, &(start, end)) in places.iter().enumerate() {
            assert!(start < end, "an empty block: {blocks:?}");
            // RFC 2883 §4: the first block may report a duplicate.
            let inside_next = places.get(1).is_some_and(|&(from, to)| from <= start && end <= to);
            if index == 0 && (end <= nxt || inside_next) {
                assert!(end <= self.edge.cast_signed());
                continue;
            }
            assert!(start > nxt, "a block that touches RCV.NXT: {blocks:?}");
            let (start, end) = (start.cast_unsigned(), end.cast_unsigned());
            assert!(
                self.sent.covers(start, end),
                "a block of bytes that were not sent: {blocks:?}"
            );
            self.sacked.insert(start, end);
            self.summary.sack_blocks += 1;
        }
    }

    /// RFC 3168 §6.1.2 to §6.1.6: only new data is ECN-capable and carries CWR; an echo has a cause.
    fn check_ecn(&self, transmit: &Transmit) {
        let probe = self.wnd == 0;
        let fresh = transmit.payload_len > 0 && !transmit.retransmission && !probe;
        let capable = self.setup.ecn && fresh;
        assert_eq!(transmit.ecn != Ecn::NotCapable, capable, "{transmit:?}");
        assert_ne!(transmit.ecn, Ecn::Congestion, "{transmit:?}");
        assert!(!transmit.flags.contains(Flags::CWR) || capable, "{transmit:?}");
        let echo = transmit.flags.contains(Flags::ECE);
        assert!(!echo || self.setup.ecn && self.marked, "ECE without a mark: {transmit:?}");
    }

    fn locate(&self, block: &SackBlock) -> (i64, i64) {
        let nxt = self.rcv_nxt();
        let origin = SeqNum(self.setup.remote_isn) + nxt as u32;
        let place = |seq: SeqNum| nxt.cast_signed() + i64::from(seq.distance(origin));
        (place(block.start), place(block.end))
    }
}
