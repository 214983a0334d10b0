//! Legality of a segment sent by the host: one function for each group of clauses.

use super::connection::{Agreed, Connection, ConnectionConstants, Syn, unwrap};
use super::packet::Packet;
use super::{Clause, Counts, Rules};

/// Violated clause and its description.
type Violated = (Clause, String);

/// Allowed difference between the timestamp clock and the capture's clock, in addition to [`Rules::lag`]: a
/// tick on either side.
const CLOCK_SLACK_MS: u64 = 2;
/// MSS of a peer that sends no MSS option, IPv4 and IPv6 (RFC 9293 §3.7.1).
const MSS_DEFAULT: [u16; 2] = [536, 1220];

fn ensure(is_legal: bool, clause: Clause, detail: impl FnOnce() -> String) -> Result<(), Violated> {
    if is_legal { Ok(()) } else { Err((clause, detail())) }
}

/// Kind of the sequence space that a segment occupies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    /// None, or a probe one before SND.UNA.
    Empty,
    /// New data only.
    New,
    /// Byte that probes a closed window.
    WindowProbe,
    /// Retransmission.
    Again,
}

impl Connection {
    /// Checks a segment and records it.
    pub(super) fn validate(
        &mut self,
        time_ns: u64,
        packet: &Packet<'_>,
        rules: &Rules,
        counts: &mut Counts,
    ) -> Result<(), Violated> {
        counts.segments += 1;
        self.validate_header(packet)?;
        self.validate_ip(packet, rules)?;
        if packet.rst {
            counts.resets += 1;
            self.is_reset = true;
            let is_legal = rules.resets || self.is_closed();
            return ensure(is_legal, Clause::Reset, || "not requested".into());
        }
        self.validate_timestamps(time_ns, packet, rules)?;
        if packet.syn {
            return self.validate_syn(packet);
        }
        let Some(agreed) = self.agreed() else {
            return Err((Clause::Handshake, "no SYNs were exchanged".into()));
        };
        let lag_ns = u64::try_from(rules.lag.as_nanos()).unwrap_or(u64::MAX);
        self.sending.advance(time_ns, lag_ns);
        let kind = self.validate_sequence(packet, counts)?;
        self.validate_size(packet, rules)?;
        let was_idle = self.judge_acknowledgment(packet, agreed, rules)?;
        self.validate_sack(packet, agreed)?;
        self.validate_ecn(time_ns, packet, agreed, kind, lag_ns)?;
        counts.with_sack += u64::from(!packet.sack.is_empty());
        counts.echoes += u64::from(packet.ece);
        let is_idle = was_idle && kind == Kind::Empty && packet.sack.is_empty();
        counts.idle_acks += u64::from(is_idle && !self.receiving.unanswered);
        self.receiving.unanswered = false;
        Ok(())
    }

    fn validate_header(&self, packet: &Packet<'_>) -> Result<(), Violated> {
        let wrong = |detail: &str| (Clause::Header, detail.to_owned());
        match packet {
            Packet { is_intact: false, .. } => Err(wrong("a checksum is wrong")),
            Packet { reserved: true, .. } => Err(wrong("a reserved bit is set")),
            Packet { urg: true, .. } => Err(wrong("URG, but no urgent data is sent")),
            Packet { ack: None, syn: false, rst: false, .. } => Err(wrong("no ACK")),
            _ => Ok(()),
        }
    }

    fn validate_ip(&mut self, packet: &Packet<'_>, rules: &Rules) -> Result<(), Violated> {
        ensure(packet.source_mac == rules.mac, Clause::Ip, || {
            format!("from {:02x?}", packet.source_mac)
        })?;
        ensure(packet.ip.dont_fragment, Clause::Ip, || "DF is not set".into())?;
        let constants = ConnectionConstants {
            source_mac: packet.source_mac,
            ttl: packet.ip.ttl,
            dscp: packet.ip.dscp,
        };
        let before = *self.constants.get_or_insert(constants);
        ensure(constants == before || packet.rst, Clause::Ip, || {
            format!("{before:?} became {constants:?}")
        })
    }

    fn validate_syn(&mut self, packet: &Packet<'_>) -> Result<(), Violated> {
        let syn = Syn::of(packet);
        let wrong = |detail: String| Err((Clause::Handshake, detail));
        if !packet.payload.is_empty() || packet.fin {
            return wrong("a SYN with data or FIN".into());
        }
        if let Some(ours) = self.ours {
            // RFC 3168 §6.1.1.1: a retransmitted SYN may drop ECN. Simultaneous open adds an ACK.
            let same = Syn { ece: ours.ece, cwr: ours.cwr, has_ack: ours.has_ack, ..syn };
            if same != ours {
                return wrong(format!("{ours:?} became {syn:?}"));
            }
        } else {
            self.open(syn);
        }
        let Some(ack) = packet.ack else { return Ok(()) };
        if self.theirs.is_none_or(|theirs| ack != (theirs.isn as u32).wrapping_add(1)) {
            return wrong(format!("acknowledges {ack}, not a SYN of the peer"));
        }
        let receiving = &mut self.receiving;
        receiving.acknowledged = unwrap(receiving.acknowledged, ack);
        receiving.edge = receiving.edge.max(receiving.acknowledged + u64::from(packet.window));
        receiving.unanswered = false;
        Ok(())
    }

    fn validate_sequence(
        &mut self,
        packet: &Packet<'_>,
        counts: &mut Counts,
    ) -> Result<Kind, Violated> {
        let sending = &self.sending;
        let (una, max) = (sending.una_known, sending.max);
        let start = unwrap(max, packet.seq);
        let end = start + packet.payload.len() as u64;
        // A keep-alive probe may carry any one byte (RFC 9293 §3.8.4), before an acknowledgment that it may
        // have processed.
        let is_probe = start + 1 == end && (end == una || end == sending.una);
        if !packet.fin && (end == start || is_probe) {
            ensure(start + 1 >= una && start <= max, Clause::Sequence, || {
                format!("{start} is not in [{una} - 1, {max}]")
            })?;
            counts.probes += u64::from(start < una);
            return Ok(Kind::Empty);
        }
        ensure(start >= una, Clause::Sequence, || {
            format!("{start} is retransmitted, but data up to {una} is acknowledged")
        })?;
        ensure(start <= max, Clause::Sequence, || format!("{max}..{start} was not sent before"))?;
        self.validate_fin(packet, end)?;
        self.validate_content(packet, start, end)?;
        let is_probe = self.validate_peer_window(start, end)?;
        let kind = match start < max {
            _ if is_probe => Kind::WindowProbe,
            true => Kind::Again,
            false => Kind::New,
        };
        self.count(packet, start, end, kind, counts);
        Ok(kind)
    }

    fn count(
        &mut self,
        packet: &Packet<'_>,
        start: u64,
        end: u64,
        kind: Kind,
        counts: &mut Counts,
    ) {
        let sending = &mut self.sending;
        let data_end = sending.data_end();
        let fresh = end.saturating_sub(data_end.max(start));
        counts.bytes += fresh;
        counts.bytes_retransmitted += (end - start) - fresh;
        counts.retransmitted += u64::from(kind == Kind::Again);
        counts.probes += u64::from(kind == Kind::WindowProbe);
        let new = packet.payload.len() - fresh as usize;
        sending.kept.extend(&packet.payload[new..]);
        if packet.fin && sending.fin.is_none() {
            counts.fins += 1;
            sending.fin = Some(end);
        }
        sending.max = sending.max.max(end + u64::from(packet.fin));
    }

    fn validate_fin(&self, packet: &Packet<'_>, end: u64) -> Result<(), Violated> {
        match self.sending.fin {
            Some(fin) if end > fin => {
                Err((Clause::Fin, format!("bytes up to {end} after the FIN at {fin}")))
            }
            Some(fin) if packet.fin && end != fin => {
                Err((Clause::Fin, format!("the FIN moved from {fin} to {end}")))
            }
            None if packet.fin && end < self.sending.max => {
                let max = self.sending.max;
                Err((Clause::Fin, format!("FIN at {end}, before {max}, which was sent")))
            }
            _ => Ok(()),
        }
    }

    fn validate_content(&self, packet: &Packet<'_>, start: u64, end: u64) -> Result<(), Violated> {
        let sending = &self.sending;
        let (from, to) = (start.max(sending.kept_from), end.min(sending.data_end()));
        if from >= to {
            return Ok(());
        }
        let sent_now = &packet.payload[(from - start) as usize..(to - start) as usize];
        let first = (from - sending.kept_from) as usize;
        let sent_before = sending.kept.range(first..first + sent_now.len());
        let mut pairs = sent_now.iter().zip(sent_before);
        match pairs.position(|(now, before)| now != before) {
            None => Ok(()),
            Some(at) => Err((Clause::Content, format!("the byte at {} changed", from + at as u64))),
        }
    }

    /// True if the segment probes a closed window. A FIN needs no window.
    fn validate_peer_window(&self, start: u64, end: u64) -> Result<bool, Violated> {
        let edge = self.sending.edge;
        if end <= edge {
            return Ok(false);
        }
        let is_closed = edge <= self.sending.una;
        ensure(is_closed && start == edge && end == start + 1, Clause::PeerWindow, || {
            format!("bytes up to {end}, beyond the peer's window at {edge}")
        })?;
        Ok(true)
    }

    fn validate_size(&self, packet: &Packet<'_>, rules: &Rules) -> Result<(), Violated> {
        let bytes = packet.ip.bytes;
        if bytes > rules.mtu {
            return ensure(rules.gso_packets, Clause::SegmentSize, || {
                format!("packet of {bytes} bytes")
            });
        }
        let default = MSS_DEFAULT[usize::from(packet.from.is_ipv6())];
        let mss = self.theirs.and_then(|syn| syn.mss).unwrap_or(default);
        let taken = packet.payload.len() + packet.option_bytes;
        ensure(rules.gso_packets || taken <= usize::from(mss), Clause::SegmentSize, || {
            format!("{taken} bytes of options and payload, more than the peer's MSS of {mss}")
        })
    }

    /// True if the segment acknowledges nothing new and opens no window.
    fn judge_acknowledgment(
        &mut self,
        packet: &Packet<'_>,
        agreed: Agreed,
        rules: &Rules,
    ) -> Result<bool, Violated> {
        let receiving = &mut self.receiving;
        let before = (receiving.acknowledged, receiving.edge);
        let ack = unwrap(before.0, packet.ack.expect("judge_header checks ACK"));
        ensure(ack >= before.0, Clause::Acknowledgment, || {
            format!("{ack}, less than the {} acknowledged before", before.0)
        })?;
        ensure(ack <= receiving.next, Clause::Acknowledgment, || {
            format!("{ack}, but only data up to {} was received", receiving.next)
        })?;
        let promise = receiving.reported.around(ack);
        ensure(promise.is_none(), Clause::Reneging, || {
            format!("{ack} is missing, but SACK blocks contained {promise:?}")
        })?;
        receiving.reported.remove_below(ack);
        receiving.acknowledged = ack;
        let window = u64::from(packet.window) << agreed.our_scale;
        let unit = 1 << agreed.our_scale;
        ensure(window < rules.window_max + unit, Clause::WindowLimit, || {
            format!("{window} bytes, more than the limit of {}", rules.window_max)
        })?;
        let edge = ack + window;
        ensure(edge + unit > before.1, Clause::RightEdge, || {
            format!("moved left by {} bytes, more than the unit of {unit}", before.1 - edge)
        })?;
        receiving.edge = receiving.edge.max(edge);
        Ok((receiving.acknowledged, receiving.edge) == before)
    }

    fn validate_timestamps(
        &mut self,
        time_ns: u64,
        packet: &Packet<'_>,
        rules: &Rules,
    ) -> Result<(), Violated> {
        let expected =
            if packet.syn { None } else { self.agreed().map(|agreed| agreed.timestamps) };
        ensure(
            expected.is_none_or(|expected| expected == packet.timestamps.is_some()),
            Clause::Timestamps,
            || format!("negotiated: {expected:?}, sent: {:?}", packet.timestamps),
        )?;
        let Some((value, echo)) = packet.timestamps else { return Ok(()) };
        let stamps = &mut self.stamps;
        let (first_ns, first) = *stamps.first.get_or_insert((time_ns, value));
        let before = stamps.last.replace(value).unwrap_or(value);
        let step = value.wrapping_sub(before).cast_signed();
        ensure(step >= 0, Clause::Timestamps, || {
            format!("TSval decreases by {}", -i64::from(step))
        })?;
        let counted = u64::from(value.wrapping_sub(first));
        let passed = (time_ns - first_ns) / 1_000_000;
        let lag_ms = u64::try_from(rules.lag.as_millis()).unwrap_or(u64::MAX);
        ensure(counted.abs_diff(passed) <= CLOCK_SLACK_MS + lag_ms, Clause::Timestamps, || {
            format!("TSval advances by {counted} ms in {passed} ms")
        })?;
        self.validate_echo(packet, echo, rules.echoes_latest_timestamp)
    }

    fn validate_echo(&mut self, packet: &Packet<'_>, echo: u32, any: bool) -> Result<(), Violated> {
        // Without ACK the field is undefined.
        if packet.ack.is_none() {
            return Ok(());
        }
        let stamps = &mut self.stamps;
        let has_come = stamps.newest_arrived == Some(echo) || stamps.arrived.contains(&echo);
        ensure(has_come, Clause::Echo, || format!("{echo} was never received"))?;
        let step = stamps.echoed.map_or(0, |before| echo.wrapping_sub(before).cast_signed());
        ensure(any || step >= 0, Clause::Echo, || {
            format!("TSecr decreases by {}", -i64::from(step))
        })?;
        stamps.echoed = Some(echo);
        Ok(())
    }

    fn validate_sack(&mut self, packet: &Packet<'_>, agreed: Agreed) -> Result<(), Violated> {
        if packet.sack.is_empty() {
            return Ok(());
        }
        let wrong = |detail: String| Err((Clause::Sack, detail));
        if !agreed.sack {
            return wrong("not negotiated".into());
        }
        let receiving = &mut self.receiving;
        let ack = receiving.acknowledged;
        let blocks: Vec<(u64, u64)> = packet
            .sack
            .iter()
            .map(|&(start, end)| (unwrap(ack, start), unwrap(ack, end)))
            .collect();
        for (index, &(start, end)) in blocks.iter().enumerate() {
            if start >= end || end > receiving.edge {
                return wrong(format!("{start}..{end}, beyond the window at {}", receiving.edge));
            }
            // RFC 2883 §4: the first block may report a duplicate, below SEG.ACK or within the second.
            let second = blocks.get(1).copied().unwrap_or_default();
            let is_within = second.0 <= start && end <= second.1;
            if index == 0 && (end <= ack || is_within) {
                continue;
            }
            if start <= ack {
                return wrong(format!("{start}..{end} touches the acknowledged {ack}"));
            }
            if !receiving.arrived.covers(start, end) {
                return wrong(format!("not all of {start}..{end} was received"));
            }
            receiving.reported.insert(start, end);
        }
        Ok(())
    }

    fn validate_ecn(
        &self,
        time_ns: u64,
        packet: &Packet<'_>,
        agreed: Agreed,
        kind: Kind,
        lag_ns: u64,
    ) -> Result<(), Violated> {
        const NOT_ECT: u8 = 0;
        const CE: u8 = 3;
        let wrong = |detail: &str| Err((Clause::Ecn, detail.to_owned()));
        let bits = packet.ip.ecn;
        if !agreed.ecn {
            return match bits == NOT_ECT && !packet.ece && !packet.cwr {
                true => Ok(()),
                false => wrong("not negotiated"),
            };
        }
        // RFC 3168 §6.1.4 to §6.1.6.
        if bits == CE || bits != NOT_ECT && kind != Kind::New {
            return wrong("ECN-capable without new data");
        }
        // Regardless of the cause of the reduction (§6.1.2).
        if packet.cwr && kind != Kind::New {
            return wrong("CWR without new data");
        }
        if packet.ece && !self.marks.ce_received {
            return wrong("ECE without a mark");
        }
        let is_owed = self.marks.echo_due.is_some_and(|(since, end)| {
            since + lag_ns < time_ns && end <= self.receiving.acknowledged
        });
        if is_owed && !packet.ece {
            return wrong("ECE missing after a mark, without a CWR since");
        }
        Ok(())
    }
}
