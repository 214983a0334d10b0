//! Network incidents other than loss and delay of frames.

use std::{
    collections::VecDeque,
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use etherparse::{NetHeaders, PacketHeaders, TcpHeader, TransportHeader};
use flue_test_support::icmp;
use offload_engine::{
    link::{
        Link, RxBatch, RxChecksum, TxFrame, TxOutcome,
        wrapper::{LinkWrapper, wraps},
    },
    time::Instant,
};
use oorandom::Rand64;

use crate::plan::{draw, once_in};

/// One in this many segments with payload is changed.
const CHANGED: usize = 4;
const ETHERNET_BYTES: usize = 14;

/// Incident of the network.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Incident {
    /// No incident.
    None,
    /// A bit of the payload flips, with a matching checksum: as in a broken router, or in memory.
    Flip,
    /// Each segment has one byte.
    Split,
    /// After that many bytes of payload larger packets are dropped; senders get an ICMP message if `is_notified`.
    Narrow { after: usize, mtu: usize, is_notified: bool },
    /// After that many bytes the receiver of the next ones gets a forged reset.
    Reset { after: usize },
    /// After that many bytes all frames are dropped.
    Silent { after: usize },
}

/// State shared by both directions.
#[derive(Debug)]
pub(crate) struct Track {
    pub(crate) incident: Incident,
    pub(crate) rng: Rand64,
    /// Bytes of payload transmitted.
    pub(crate) passed: usize,
    /// Frames affected by the incident.
    pub(crate) count: u64,
}

/// Handle of the shared state.
#[derive(Clone, Debug)]
pub(crate) struct Shared(Arc<Mutex<Track>>);

impl Shared {
    /// Creates the state without an incident.
    pub(crate) fn new(rng: Rand64) -> Self {
        Self(Arc::new(Mutex::new(Track { incident: Incident::None, rng, passed: 0, count: 0 })))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Track> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts an incident.
    pub(crate) fn begin(&self, incident: Incident) {
        let mut track = self.lock();
        (track.incident, track.passed) = (incident, 0);
    }
}

/// Editable TCP segment.
#[derive(Debug)]
struct Editable<'a> {
    packet: PacketHeaders<'a>,
    tcp: TcpHeader,
    payload: &'a [u8],
}

impl<'a> Editable<'a> {
    fn of(frame: &'a [u8]) -> Option<Self> {
        let packet = PacketHeaders::from_ethernet_slice(frame).ok()?;
        let Some(TransportHeader::Tcp(tcp)) = packet.transport.clone() else { return None };
        let payload = packet.payload.slice();
        Some(Self { packet, tcp, payload })
    }

    /// Encodes the frame with another TCP header and payload, with valid lengths and checksums.
    fn write(&self, mut tcp: TcpHeader, payload: &[u8]) -> Vec<u8> {
        let mut frame = Vec::new();
        self.packet.link.as_ref().expect("Ethernet").write(&mut frame).unwrap();
        let length = tcp.header_len() + payload.len();
        match self.packet.net.clone() {
            Some(NetHeaders::Ipv4(mut ip, _)) => {
                ip.set_payload_len(length).unwrap();
                tcp.checksum = tcp.calc_checksum_ipv4(&ip, payload).unwrap();
                ip.write(&mut frame).unwrap();
            }
            Some(NetHeaders::Ipv6(mut ip, _)) => {
                ip.payload_length = length as u16;
                tcp.checksum = tcp.calc_checksum_ipv6(&ip, payload).unwrap();
                ip.write(&mut frame).unwrap();
            }
            other => panic!("{other:?}"),
        }
        tcp.write(&mut frame).unwrap();
        frame.extend_from_slice(payload);
        frame
    }

    /// Splits the segment into segments of one byte.
    fn split(&self) -> Vec<Vec<u8>> {
        let last = self.payload.len().saturating_sub(1);
        let pieces = self.payload.chunks(1).enumerate().map(|(at, piece)| {
            let mut tcp = self.tcp.clone();
            tcp.sequence_number = tcp.sequence_number.wrapping_add(at as u32);
            tcp.psh &= at == last;
            tcp.fin &= at == last;
            tcp.cwr &= at == 0;
            self.write(tcp, piece)
        });
        pieces.collect()
    }

    fn flipped(&self, rng: &mut Rand64) -> Vec<u8> {
        let mut payload = self.payload.to_vec();
        let at = draw(rng, payload.len());
        payload[at] ^= 1 << draw(rng, 8);
        self.write(self.tcp.clone(), &payload)
    }

    /// Creates a reset that directly follows the segment.
    fn reset(&self) -> Vec<u8> {
        let mut tcp = self.tcp.clone();
        let end = self.payload.len() as u32 + u32::from(tcp.fin);
        tcp.sequence_number = tcp.sequence_number.wrapping_add(end);
        (tcp.rst, tcp.psh, tcp.fin) = (true, false, false);
        self.write(tcp, &[])
    }
}

/// Port of a node in the network.
#[derive(Debug)]
pub(crate) struct NetworkPort<L> {
    link: L,
    track: Shared,
    /// Frames created by the network for this node.
    inbound: VecDeque<Vec<u8>>,
}

impl<L: Link> NetworkPort<L> {
    pub(crate) const fn new(link: L, track: Shared) -> Self {
        Self { link, track, inbound: VecDeque::new() }
    }

    /// Returns the frames transmitted instead of this one.
    fn replace(&mut self, data: Vec<u8>) -> Vec<Vec<u8>> {
        let track = &mut *self.track.lock();
        let Some(segment) = Editable::of(&data) else {
            let is_dead =
                matches!(track.incident, Incident::Silent { after } if track.passed > after);
            return if is_dead { Vec::new() } else { vec![data] };
        };
        let payload = segment.payload.len();
        track.passed += payload;
        match track.incident {
            Incident::Flip if payload > 0 && once_in(&mut track.rng, CHANGED) => {
                track.count += 1;
                vec![segment.flipped(&mut track.rng)]
            }
            Incident::Split if payload > 1 => {
                track.count += 1;
                segment.split()
            }
            Incident::Narrow { after, mtu, is_notified }
                if track.passed > after && data.len() - ETHERNET_BYTES > mtu =>
            {
                track.count += 1;
                self.inbound.extend(icmp::too_big(&data, mtu).filter(|_| is_notified));
                Vec::new()
            }
            Incident::Reset { after }
                if track.passed > after && payload > 0 && track.count == 0 =>
            {
                track.count += 1;
                let reset = segment.reset();
                vec![data, reset]
            }
            Incident::Silent { after } if track.passed > after => {
                track.count += 1;
                Vec::new()
            }
            _ => vec![data],
        }
    }
}

impl<L: Link> LinkWrapper for NetworkPort<L> {
    wraps!(L, link);

    fn receive(&mut self, now: Instant, batch: &mut RxBatch) -> io::Result<usize> {
        let mut received = self.link.receive(now, batch)?;
        while !batch.is_full()
            && let Some(frame) = self.inbound.pop_front()
        {
            batch.push(&frame, RxChecksum::Unverified, 0);
            received += 1;
        }
        Ok(received)
    }

    fn transmit(&mut self, now: Instant, frame: &TxFrame<'_>) -> TxOutcome {
        if self.track.lock().incident == Incident::None {
            return self.link.transmit(now, frame);
        }
        let mut data = Vec::with_capacity(frame.len());
        frame.gather_into(&mut data);
        for data in self.replace(data) {
            self.link.transmit(now, &TxFrame { head: &data, payload: &[], ..*frame });
        }
        TxOutcome::Sent
    }

    fn poll_at(&self) -> Option<Instant> {
        let waiting = (!self.inbound.is_empty()).then_some(Instant::ZERO);
        waiting.into_iter().chain(self.link.poll_at()).min()
    }
}
