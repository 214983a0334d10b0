//! Steps of the TCP data path: two connections that exchange segments directly, without a link.
//!
//! The benchmarks in this directory measure their time. The guard in `tests/guard` counts their instructions.

#[path = "../../tests/simulation/state.rs"]
mod state;

use bytes::Bytes;
use offload_engine::{
    nbl::{NblChain, NetBufferList, ReceiveChain},
    tcp::{Config, CongestionAlgorithm, Connection, Consumer, Event, SeqNum, Transmit, TxLimits},
    time::{Duration, Instant},
};

use self::state::{Shape, state};

/// Payload bytes of a segment: an MTU of 1500 minus the IPv4, TCP and timestamp headers.
pub(crate) const SEGMENT_BYTES: usize = 1448;
/// Payload bytes of a GSO packet: the number of whole segments that fit into 64 KiB.
pub(crate) const GSO_PACKET_BYTES: usize = 44 * SEGMENT_BYTES;

/// Segments per batch, as an engine receives them from its link.
pub(crate) const BATCH: u64 = 16;

/// Consumer that reads received data and discards it.
#[derive(Debug)]
struct Reader;

impl Consumer for Reader {
    fn receive_complete(&mut self, _connection: &mut Connection, _chain: ReceiveChain) {}

    fn indicate(&mut self, _connection: &mut Connection, data: &[u8], _push: bool) -> usize {
        core::hint::black_box(data).len()
    }
}

/// A sender and a receiver.
#[derive(Debug)]
pub(crate) struct Ends {
    sender: Connection,
    receiver: Connection,
    reader: Reader,
    now: Instant,
    block: Bytes,
}

impl Ends {
    /// Creates two connections whose lists, and so segments, have `payload_bytes`.
    pub(crate) fn new(payload_bytes: usize) -> Self {
        let (one, other) = (SeqNum(1_000), SeqNum(0xffff_f000));
        Self {
            sender: connection(one, other),
            receiver: connection(other, one),
            reader: Reader,
            now: Instant::ZERO,
            block: Bytes::from(vec![0x5a; payload_bytes]),
        }
    }

    /// Posts a list and returns the segment or GSO packet built from it. Its payload is gathered as a link gathers it.
    pub(crate) fn transmit(&mut self) -> Transmit {
        self.now += Duration::from_micros(10);
        let list = NetBufferList::from_mdl(1, self.block.clone());
        self.sender.post_send(self.now, NblChain::from([list]));
        let limits = TxLimits { gso_payload_max: GSO_PACKET_BYTES, new_data: true };
        let transmit = self.sender.poll_transmit(self.now, limits).expect("the windows are open");
        let gathered: usize = self.sender.payload(&transmit).map(|piece| piece.len()).sum();
        assert_eq!(gathered, self.block.len());
        transmit
    }

    /// Receives a segment in order. Returns the acknowledgment if one is due.
    pub(crate) fn receive(&mut self, transmit: &Transmit) -> Option<Transmit> {
        let segment = transmit.received(&self.block);
        let received = self.receiver.handle_segment(self.now, &segment);
        let data = &segment.payload[received.in_order];
        self.receiver.deliver(self.now, data, received.push, &mut self.reader);
        self.receiver.poll_transmit(self.now, TxLimits { gso_payload_max: 0, new_data: true })
    }

    /// Processes an acknowledgment and the lists that it completes.
    pub(crate) fn acknowledge(&mut self, acknowledgment: &Transmit) {
        self.sender.handle_segment(self.now, &acknowledgment.received(&[]));
        while let Some(event) = self.sender.poll_event() {
            assert!(matches!(event, Event::SendComplete(_) | Event::SendBacklogChange(_)));
        }
    }
}

fn connection(local: SeqNum, remote: SeqNum) -> Connection {
    let config = Config {
        congestion: CongestionAlgorithm::Unlimited,
        // A batch of GSO packets exceeds the flight granted to so short a path.
        in_flight_min: u64::MAX,
        ..Config::default()
    };
    let window = 65_535 << 7;
    let mss = SEGMENT_BYTES + 12;
    let shape = Shape { sack: true, timestamps: true, mss: mss as u16, scale: 7, window };
    let state = Box::new(state(shape, local, remote));
    Connection::from_state(Instant::ZERO, state, mss, config).expect("a state that agrees")
}
