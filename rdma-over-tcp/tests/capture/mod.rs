//! Minimal extraction of TCP streams from a pcap file: Ethernet, IPv4, no gaps.

use std::{collections::BTreeMap, fs, path::Path};

use etherparse::{NetSlice, SlicedPacket, TransportSlice};

/// One TCP connection: the octets of each side, in captured pieces, in order.
pub(crate) struct Conversation {
    /// Sent by the side that sent the SYN.
    pub(crate) client: Vec<Vec<u8>>,
    /// Sent by the other side.
    pub(crate) server: Vec<Vec<u8>>,
}

type Endpoint = ([u8; 4], u16);

#[derive(Default)]
struct Half {
    isn: u32,
    /// Pieces by octets since the SYN.
    pieces: BTreeMap<u32, Vec<u8>>,
}

impl Half {
    fn in_order(self) -> Vec<Vec<u8>> {
        let mut next = 1;
        let mut out = Vec::new();
        for (at, mut piece) in self.pieces {
            assert!(at <= next, "octets {next}..{at} are not in the capture");
            let seen = (next - at) as usize;
            if seen < piece.len() {
                out.push(piece.split_off(seen));
                next += out[out.len() - 1].len() as u32;
            }
        }
        out
    }
}

/// Returns the connections of a capture in order of their SYNs.
pub(crate) fn conversations(name: &str) -> Vec<Conversation> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name);
    let file = fs::read(path).unwrap();
    let mut order: Vec<(Endpoint, Endpoint)> = Vec::new();
    let mut halves: BTreeMap<(Endpoint, Endpoint), Half> = BTreeMap::new();
    for frame in frames(&file) {
        let packet = SlicedPacket::from_ethernet(frame).unwrap();
        let (Some(NetSlice::Ipv4(ip)), Some(TransportSlice::Tcp(tcp))) =
            (&packet.net, &packet.transport)
        else {
            continue;
        };
        let from = (ip.header().source(), tcp.source_port());
        let to = (ip.header().destination(), tcp.destination_port());
        let half = halves.entry((from, to)).or_default();
        if tcp.syn() {
            half.isn = tcp.sequence_number();
            if !tcp.ack() {
                order.push((from, to));
            }
        } else if !tcp.payload().is_empty() {
            let at = tcp.sequence_number().wrapping_sub(half.isn);
            let piece = half.pieces.entry(at).or_default();
            if piece.len() < tcp.payload().len() {
                *piece = tcp.payload().to_vec();
            }
        }
    }
    let mut half = |from, to| halves.remove(&(from, to)).unwrap_or_default().in_order();
    order
        .into_iter()
        .map(|(client, server)| Conversation {
            client: half(client, server),
            server: half(server, client),
        })
        .collect()
}

/// Iterates over the frames of a little-endian pcap file of Ethernet frames.
fn frames(file: &[u8]) -> impl Iterator<Item = &[u8]> {
    let word = |octets: &[u8]| u32::from_le_bytes(octets.try_into().unwrap());
    assert!(matches!(word(&file[..4]), 0xa1b2_c3d4 | 0xa1b2_3c4d), "not a pcap file");
    assert_eq!(word(&file[20..24]), 1, "not Ethernet");
    let mut rest = &file[24..];
    std::iter::from_fn(move || {
        let (header, behind) = rest.split_at_checked(16)?;
        let (frame, behind) = behind.split_at(word(&header[8..12]) as usize);
        assert_eq!(header[8..12], header[12..16], "truncated frame");
        rest = behind;
        Some(frame)
    })
}
