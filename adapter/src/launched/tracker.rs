//! Link that records the connections of a node in the table, by inspecting segments. It is placed directly above the
//! TAP, below any impairment, so it records the segments that are really sent.
//!
//! A connection begins with the SYN-ACK, which either end sends. It ends with an RST of either end, or when both ends
//! have sent a FIN and the local FIN is acknowledged. Segments without SYN, FIN or RST cost a check of their flags, and
//! a lookup while a local FIN is not acknowledged.

use std::{collections::HashMap, io, net::SocketAddr};

use offload_engine::{
    link::{
        Link, RxBatch, TxFrame, TxOutcome,
        wrapper::{LinkWrapper, wraps},
    },
    time::Instant,
};

use super::{
    segment::{ACK, FIN, RST, SYN, Segment},
    table::{Connection, Table},
};

#[derive(Debug)]
struct Tracked {
    slot: usize,
    /// Sequence number after the local FIN.
    fin_sent: Option<u32>,
    is_fin_acknowledged: bool,
    is_fin_received: bool,
}

/// The link and its connections.
pub(super) struct Tracker {
    link: Box<dyn Link>,
    connections: Connections,
}

/// The connections, by local and remote address.
#[derive(Debug)]
struct Connections {
    table: Table,
    tracked: HashMap<(SocketAddr, SocketAddr), Tracked>,
    /// Number of connections whose local FIN is not acknowledged.
    closing: usize,
}

impl Tracker {
    pub(super) fn new(link: Box<dyn Link>, table: Table) -> Self {
        Self { link, connections: Connections { table, tracked: HashMap::new(), closing: 0 } }
    }
}

impl Connections {
    fn sent(&mut self, segment: &Segment) {
        let Segment { source, destination, flags, seq, len, to, .. } = *segment;
        let ends = (source, destination);
        if flags & RST != 0 {
            self.end(ends);
        } else if flags & (SYN | ACK) == SYN | ACK {
            self.begin(Connection { hop: to, local: source, remote: destination, iss: seq });
        } else if flags & FIN != 0
            && let Some(tracked) = self.tracked.get_mut(&ends)
        {
            self.closing += usize::from(tracked.fin_sent.is_none());
            tracked.fin_sent = Some(seq.wrapping_add(len).wrapping_add(1));
        }
    }

    fn received(&mut self, segment: &Segment) {
        let Segment { source, destination, flags, ack, from, .. } = *segment;
        let ends = (destination, source);
        if flags & RST != 0 {
            return self.end(ends);
        }
        if flags & (SYN | ACK) == SYN | ACK {
            let iss = ack.wrapping_sub(1);
            return self.begin(Connection { hop: from, local: destination, remote: source, iss });
        }
        let Some(tracked) = self.tracked.get_mut(&ends) else { return };
        tracked.is_fin_received |= flags & FIN != 0;
        if !tracked.is_fin_acknowledged && tracked.fin_sent == Some(ack) && flags & ACK != 0 {
            tracked.is_fin_acknowledged = true;
            self.closing -= 1;
        }
        if tracked.is_fin_received && tracked.is_fin_acknowledged {
            self.end(ends);
        }
    }

    fn begin(&mut self, connection: Connection) {
        let ends = (connection.local, connection.remote);
        // A retransmitted SYN-ACK changes nothing. A SYN-ACK of a new connection replaces the one with the same
        // addresses.
        self.end(ends);
        match self.table.enter(&connection) {
            Some(slot) => {
                let (fin_sent, is_fin_acknowledged, is_fin_received) = (None, false, false);
                let tracked = Tracked { slot, fin_sent, is_fin_acknowledged, is_fin_received };
                self.tracked.insert(ends, tracked);
            }
            None => tracing::warn!(
                remote = %connection.remote,
                "table of connections: full; the connection is not reset when the program is killed"
            ),
        }
    }

    fn end(&mut self, ends: (SocketAddr, SocketAddr)) {
        if let Some(Tracked { slot, fin_sent, is_fin_acknowledged, .. }) =
            self.tracked.remove(&ends)
        {
            self.closing -= usize::from(fin_sent.is_some() && !is_fin_acknowledged);
            self.table.free(slot);
        }
    }
}

impl LinkWrapper for Tracker {
    wraps!(Box<dyn Link>, link);

    fn receive(&mut self, now: Instant, batch: &mut RxBatch) -> io::Result<usize> {
        let before = batch.len();
        let added = Link::receive(&mut self.link, now, batch)?;
        for frame in batch.frames().skip(before) {
            if let Some(segment) = Segment::of(frame.data)
                && (segment.flags & (SYN | FIN | RST) != 0 || self.connections.closing > 0)
            {
                self.connections.received(&segment);
            }
        }
        Ok(added)
    }

    fn transmit(&mut self, now: Instant, frame: &TxFrame<'_>) -> TxOutcome {
        let segment = Segment::of(frame.head).filter(|it| it.flags & (SYN | FIN | RST) != 0);
        // Record before transmitting, so that a process killed in between leaves no unrecorded connection.
        if let Some(segment) = segment.filter(|it| it.flags & RST == 0) {
            self.connections.sent(&segment);
        }
        let outcome = Link::transmit(&mut self.link, now, frame);
        if let Some(segment) = segment.filter(|it| it.flags & RST != 0)
            && outcome == TxOutcome::Sent
        {
            self.connections.sent(&segment);
        }
        outcome
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use rustix::fs::{MemfdFlags, memfd_create};

    use super::*;

    fn ends() -> [SocketAddr; 2] {
        ["10.0.0.1:5000", "10.0.0.2:6000"].map(|end| end.parse().unwrap())
    }

    fn segment(is_sent: bool, flags: u8, seq: u32, ack: u32, len: u32) -> Segment {
        let [own, peer] = ends();
        let (source, destination) = if is_sent { (own, peer) } else { (peer, own) };
        let (to, from) = ([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]);
        Segment { to, from, source, destination, seq, ack, flags, len }
    }

    fn connections() -> (Connections, File) {
        let file = File::from(memfd_create("flue-test", MemfdFlags::CLOEXEC).unwrap());
        let table = Table::new(file.try_clone().unwrap()).unwrap();
        (Connections { table, tracked: HashMap::new(), closing: 0 }, file)
    }

    fn left(file: &File) -> Vec<(u32, u8)> {
        Table::read(file).unwrap().iter().map(|it| (it.iss, it.hop[5])).collect()
    }

    #[test]
    fn connection_is_recorded_from_syn_ack_to_acknowledged_fin() {
        for is_passive in [true, false] {
            let (mut connections, file) = connections();
            match is_passive {
                true => connections.sent(&segment(true, SYN | ACK, 100, 8, 0)),
                false => {
                    connections.sent(&segment(true, SYN, 100, 0, 0));
                    assert_eq!(left(&file), []);
                    connections.received(&segment(false, SYN | ACK, 7, 101, 0));
                }
            }
            assert_eq!(left(&file), [(100, if is_passive { 1 } else { 2 })]);
            connections.sent(&segment(true, FIN | ACK, 101, 8, 10));
            connections.received(&segment(false, ACK, 8, 111, 0));
            connections.received(&segment(false, FIN | ACK, 8, 111, 0));
            assert_eq!(
                (left(&file).len(), connections.closing),
                (1, 1),
                "the FIN is not acknowledged"
            );
            connections.received(&segment(false, ACK, 9, 112, 0));
            assert_eq!(
                (left(&file).len(), connections.closing, connections.tracked.len()),
                (0, 0, 0)
            );
        }
    }

    #[test]
    fn reset_connection_is_removed_and_replaced() {
        let (mut connections, file) = connections();
        connections.sent(&segment(true, SYN | ACK, 100, 8, 0));
        connections.sent(&segment(true, SYN | ACK, 100, 8, 0));
        assert_eq!(left(&file), [(100, 1)]);
        connections.sent(&segment(true, FIN | ACK, 101, 8, 0));
        connections.received(&segment(false, RST, 8, 0, 0));
        assert_eq!((left(&file).len(), connections.closing), (0, 0));
        connections.sent(&segment(true, SYN | ACK, 900, 8, 0));
        connections.sent(&segment(true, SYN | ACK, 901, 8, 0));
        assert_eq!(left(&file), [(901, 1)]);
        connections.sent(&segment(true, RST, 902, 0, 0));
        assert_eq!(left(&file), []);
    }
}
