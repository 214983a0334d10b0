//! Datagrams of queue pairs of [`QpService::Ud`](crate::rnic::QpService): calls of the transport.
//!
//! A request is gathered and sent in one step, in the order of its queue. It is done when the socket has the datagram.
//! A received one is checked completely before its first octet is placed; otherwise it is dropped and counted, without
//! an answer. A turn sends at most [`DATAGRAMS_PER_TURN`] datagrams.

#[cfg(test)]
mod tests;

use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};

use super::{
    Rnic,
    memory::{region::Regions, registration::Access},
    objects::id::QpId,
    queues::{
        cq::Arrival,
        qp::{Qp, QpState, ReceiveOutcome},
        send_queue::Progress,
        wr::{SendWord, WqeKind, WrFlags},
    },
    status::WcStatus,
    stream::{complete_receive, place_in},
    tables::Objects,
    transport::DatagramIo,
};
use crate::datagram::{DatagramHeader, HEADER_OCTETS, ROUTE_HEADER_OCTETS, route_header};

/// Datagrams sent in one turn, before the streams and other sockets are served.
const DATAGRAMS_PER_TURN: usize = 128;

/// Outcome of a queue pair's turn.
enum Turn {
    /// No request can start.
    Done,
    /// The turn is over, and requests are left.
    More,
    /// The socket has no room.
    Blocked,
}

/// Appends the header and the payload of a request to `datagram`. Returns false if its memory is not accessible.
fn gather(
    qp: &Qp,
    regions: &Regions,
    serial: u64,
    header: &DatagramHeader,
    datagram: &mut Vec<u8>,
) -> bool {
    datagram.clear();
    datagram.extend_from_slice(&header.encode());
    if let Some(captured) = qp.sends.captured(serial) {
        datagram.extend_from_slice(captured);
        return true;
    }
    qp.sends.sges(serial).filter(|sge| sge.length > 0).all(|sge| {
        let granted = regions.access(qp.user(), sge.token, sge.address, sge.length, Access::NONE);
        granted.map(|granted| granted.each_piece(|piece| piece.append_to(datagram))).is_ok()
    })
}

impl Rnic {
    /// Returns true if datagrams wait to be sent.
    #[inline]
    pub(crate) fn has_datagrams(&self) -> bool {
        !self.objects.datagrams.scheduled.is_empty()
    }

    /// Sends datagrams of scheduled queue pairs, for one turn.
    pub(crate) fn transmit_datagrams(&mut self, io: &mut impl DatagramIo) {
        let mut datagram = core::mem::take(&mut self.objects.datagrams.buffer);
        let mut left = DATAGRAMS_PER_TURN;
        while left > 0
            && let Some(id) = self.objects.datagrams.scheduled.pop_front()
        {
            let turn = transmit(&mut self.objects, id, &mut left, &mut datagram, io);
            let Objects { qps, datagrams, .. } = &mut self.objects;
            match turn {
                Turn::Done => {
                    if let Some(ud) = qps.get_mut(id).and_then(|qp| qp.ud.as_mut()) {
                        ud.is_scheduled = false;
                    }
                }
                Turn::More => datagrams.scheduled.push_back(id),
                Turn::Blocked => datagrams.blocked.push_back(id),
            }
        }
        self.objects.datagrams.buffer = datagram;
        self.finish_upcall();
    }

    /// Room in a socket that had none.
    pub(crate) fn handle_datagram_room(&mut self) {
        let datagrams = &mut self.objects.datagrams;
        datagrams.scheduled.append(&mut datagrams.blocked);
    }

    /// End of the datagrams received in a pass over a socket.
    pub(crate) fn handle_datagrams_end(&mut self) {
        self.finish_upcall();
    }

    /// Datagram received by the socket of `port`. [`Rnic::handle_datagrams_end`] follows the last one of a pass.
    pub(crate) fn handle_datagram(
        &mut self,
        port: u16,
        source: SocketAddr,
        destination: IpAddr,
        datagram: &[u8],
    ) {
        if self.accept_datagram(port, source, destination, datagram).is_none() {
            self.objects.counters.datagrams_dropped += 1;
        }
    }

    /// Places a datagram in a receive of its queue pair. `None`: it is dropped.
    fn accept_datagram(
        &mut self,
        port: u16,
        source: SocketAddr,
        destination: IpAddr,
        datagram: &[u8],
    ) -> Option<()> {
        let (header, payload) = DatagramHeader::parse(datagram)?;
        // A number without a port is that of no queue pair.
        let is_of_ports = header.destination as u16 == port
            && header.source as u16 == source.port()
            && source.port() != 0;
        let objects = &mut self.objects;
        let id = *objects.datagrams.numbers.get(&header.destination).filter(|_| is_of_ports)?;
        let qp = objects.qps.get(id).filter(|qp| qp.state != QpState::Error)?;
        qp.ud.as_ref().filter(|ud| ud.payload_max > 0 && ud.key == header.key)?;
        let bytes = u32::try_from(ROUTE_HEADER_OCTETS + payload.len()).ok()?;
        let queue = objects.receive_queues.get(qp.receives)?;
        queue.next_length().filter(|length| *length >= bytes)?;
        objects.take_receive(id)?;
        let route = route_header(source.ip(), destination, payload.len());
        let Objects { qps, regions, .. } = objects;
        let qp = qps.get(id)?;
        if !place(regions, qp, bytes, &route, payload) {
            let outcome = ReceiveOutcome::failed(WcStatus::LocalProtection, None);
            objects.complete_receive(id, outcome);
            self.break_qp(id);
            return Some(());
        }
        let is_ipv4 = source.is_ipv4();
        let DatagramHeader { source, immediate, solicited, .. } = header;
        let arrival = Arrival::Datagram { source, immediate, is_ipv4 };
        complete_receive(objects, id, bytes, arrival, solicited);
        Some(())
    }
}

/// Places both parts of a message of `bytes` in the receive of the queue pair. Returns false if nothing was placed.
fn place(regions: &Regions, qp: &Qp, bytes: u32, route: &[u8], payload: &[u8]) -> bool {
    let is_accessible = qp.receiving.pieces(0, bytes).all(|piece| {
        let (address, length) = (piece.address, piece.length);
        regions.access(qp.user(), piece.token, address, length, Access::LOCAL_WRITE).is_ok()
    });
    let mut hint = None;
    is_accessible
        && place_in(regions, &mut hint, qp, 0, route)
        && place_in(regions, &mut hint, qp, ROUTE_HEADER_OCTETS as u32, payload)
}

/// Sends datagrams of a queue pair.
fn transmit(
    objects: &mut Objects,
    id: QpId,
    left: &mut usize,
    datagram: &mut Vec<u8>,
    io: &mut impl DatagramIo,
) -> Turn {
    let Objects { qps, regions, completed, .. } = objects;
    let Some(qp) = qps.get_mut(id).filter(|qp| qp.state == QpState::Connected) else {
        return Turn::Done;
    };
    let number = qp.number.unwrap_or_else(|| id.number());
    loop {
        let Some(ud) = qp.ud.as_ref().filter(|ud| !ud.holds_sends) else { return Turn::Done };
        let (own_key, payload_max) = (ud.key, ud.payload_max);
        let Some(destination) = ud.destinations.front().copied() else { return Turn::Done };
        if *left == 0 {
            return Turn::More;
        }
        let serial = qp.sends.next_serial();
        let Some(request) = qp.sends.next_mut() else { return Turn::Done };
        let immediate = match request.kind {
            WqeKind::Send { word: SendWord::Immediate(data) } => Some(data),
            _ => None,
        };
        let header = DatagramHeader {
            destination: destination.qp,
            source: number,
            key: destination.key_for(own_key),
            immediate,
            solicited: request.flags.contains(WrFlags::SOLICITED),
        };
        let length = request.length;
        let failure = if length > payload_max {
            Some(WcStatus::LocalLength)
        } else if !gather(qp, regions, serial, &header, datagram) {
            Some(WcStatus::LocalProtection)
        } else {
            debug_assert!(datagram.len() <= HEADER_OCTETS + payload_max as usize);
            None
        };
        if let Some(status) = failure {
            qp.sends.advance(Progress::Done(status));
            qp.complete_done(completed);
            // Later requests are flushed until the consumer resumes the queue pair; receives continue.
            qp.flush_sends(completed);
            if let Some(ud) = &mut qp.ud {
                ud.has_failed = true;
            }
            return Turn::Done;
        }
        if !io.send(number as u16, &destination.addressed(), datagram) {
            return Turn::Blocked;
        }
        *left -= 1;
        qp.stats.sends += 1;
        qp.stats.send_bytes += u64::from(length);
        if let Some(ud) = &mut qp.ud {
            ud.destinations.pop_front();
        }
        qp.sends.advance(Progress::Done(WcStatus::Success));
        qp.complete_done(completed);
    }
}
