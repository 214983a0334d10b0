//! A link that records in the table which connections begin and end, by watching segments. It sits right above the TAP,
//! below any impairment, so it sees what is really sent.
//!
//! A connection begins with the SYN-ACK, which either end sends. It ends with an RST of either end, or when both FINs
//! are out and ours is acknowledged. Segments without SYN, FIN or RST cost a look at their flags, and a look-up while a
//! FIN of ours waits for its acknowledgement.

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
    /// The number behind our FIN.
    fin_sent: Option<u32>,
    is_fin_acknowledged: bool,
    is_fin_received: bool,
}

/// The link.
pub(super) struct Tracker {
    link: Box<dyn Link>,
    book: Book,
}

/// The connections, by local and remote end.
#[derive(Debug)]
struct Book {
    table: Table,
    tracked: HashMap<(SocketAddr, SocketAddr), Tracked>,
    /// Connections whose FIN is not acknowledged.
    closing: usize,
}

impl Tracker {
    pub(super) fn new(link: Box<dyn Link>, table: Table) -> Self {
        Self { link, book: Book { table, tracked: HashMap::new(), closing: 0 } }
    }
}

impl Book {
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
        // A SYN-ACK that is sent again changes nothing; one of a new connection with the old ends begins it.
        self.end(ends);
        match self.table.enter(&connection) {
            Some(slot) => {
                let (fin_sent, is_fin_acknowledged, is_fin_received) = (None, false, false);
                let tracked = Tracked { slot, fin_sent, is_fin_acknowledged, is_fin_received };
                self.tracked.insert(ends, tracked);
            }
            None => tracing::warn!(
                remote = %connection.remote,
                "table of connections: no room; this one is not reset when the program dies"
            ),
        }
    }

    fn end(&mut self, ends: (SocketAddr, SocketAddr)) {
        if let Some(Tracked { slot, fin_sent, is_fin_acknowledged, .. }) =
            self.tracked.remove(&ends)
        {
            self.closing -= usize::from(fin_sent.is_some() && !is_fin_acknowledged);
            self.table.leave(slot);
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
                && (segment.flags & (SYN | FIN | RST) != 0 || self.book.closing > 0)
            {
                self.book.received(&segment);
            }
        }
        Ok(added)
    }

    fn transmit(&mut self, now: Instant, frame: &TxFrame<'_>) -> TxOutcome {
        let segment = Segment::of(frame.head).filter(|it| it.flags & (SYN | FIN | RST) != 0);
        // Noted before it is on the wire, so that a death between the two leaves nothing out.
        if let Some(segment) = segment.filter(|it| it.flags & RST == 0) {
            self.book.sent(&segment);
        }
        let outcome = Link::transmit(&mut self.link, now, frame);
        if let Some(segment) = segment.filter(|it| it.flags & RST != 0)
            && outcome == TxOutcome::Sent
        {
            self.book.sent(&segment);
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

    fn book() -> (Book, File) {
        let file = File::from(memfd_create("flue-test", MemfdFlags::CLOEXEC).unwrap());
        let table = Table::new(file.try_clone().unwrap()).unwrap();
        (Book { table, tracked: HashMap::new(), closing: 0 }, file)
    }

    fn left(file: &File) -> Vec<(u32, u8)> {
        Table::read(file).unwrap().iter().map(|it| (it.iss, it.hop[5])).collect()
    }

    #[test]
    fn a_connection_is_there_from_its_syn_ack_to_the_acknowledgement_of_its_fin() {
        for is_passive in [true, false] {
            let (mut book, file) = book();
            match is_passive {
                true => book.sent(&segment(true, SYN | ACK, 100, 8, 0)),
                false => {
                    book.sent(&segment(true, SYN, 100, 0, 0));
                    assert_eq!(left(&file), []);
                    book.received(&segment(false, SYN | ACK, 7, 101, 0));
                }
            }
            assert_eq!(left(&file), [(100, if is_passive { 1 } else { 2 })]);
            book.sent(&segment(true, FIN | ACK, 101, 8, 10));
            book.received(&segment(false, ACK, 8, 111, 0));
            book.received(&segment(false, FIN | ACK, 8, 111, 0));
            assert_eq!((left(&file).len(), book.closing), (1, 1), "the FIN is not acknowledged");
            book.received(&segment(false, ACK, 9, 112, 0));
            assert_eq!((left(&file).len(), book.closing, book.tracked.len()), (0, 0, 0));
        }
    }

    #[test]
    fn a_reset_ends_it_and_a_new_one_takes_its_place() {
        let (mut book, file) = book();
        book.sent(&segment(true, SYN | ACK, 100, 8, 0));
        book.sent(&segment(true, SYN | ACK, 100, 8, 0));
        assert_eq!(left(&file), [(100, 1)]);
        book.sent(&segment(true, FIN | ACK, 101, 8, 0));
        book.received(&segment(false, RST, 8, 0, 0));
        assert_eq!((left(&file).len(), book.closing), (0, 0));
        book.sent(&segment(true, SYN | ACK, 900, 8, 0));
        book.sent(&segment(true, SYN | ACK, 901, 8, 0));
        assert_eq!(left(&file), [(901, 1)]);
        book.sent(&segment(true, RST, 902, 0, 0));
        assert_eq!(left(&file), []);
    }
}
