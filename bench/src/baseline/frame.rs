//! Frame headers of the baselines, built once and patched for each frame: virtio-net, Ethernet, IPv4, TCP (with options
//! in a SYN only), and the ARP reply.
//!
//! Checksums are computed and stored in the machine's byte order: RFC 1071 §2(B).

use std::net::Ipv4Addr;

/// Length of the virtio-net header, as configured by the link.
pub(super) const VNET_BYTES: usize = 12;
/// Offset of the IP header.
const IP: usize = 14;
/// Offset of the TCP header.
const TCP: usize = 34;
/// Offset of the payload: length of all headers.
pub(super) const HEADERS_BYTES: usize = 54;
/// Options of a SYN: MSS and window scale, padded (RFC 9293 §3.2, RFC 7323 §2.2).
const SYN_OPTIONS_BYTES: usize = 8;
/// Length of IP and TCP headers: the MTU minus the MSS.
pub(super) const MTU_OVERHEAD_BYTES: usize = 40;
/// Window scale: enough for a window of 4 MiB.
pub(super) const WINDOW_SCALE: u32 = 8;

pub(super) const FIN: u8 = 0x01;
pub(super) const SYN: u8 = 0x02;
pub(super) const RST: u8 = 0x04;
pub(super) const ACK: u8 = 0x10;

const ETHERTYPE_IPV4: [u8; 2] = [0x08, 0x00];
const ETHERTYPE_ARP: [u8; 2] = [0x08, 0x06];
const PROTOCOL_TCP: u8 = 6;

/// virtio 1.2 §5.1.6: checksum offload, and segmentation of TCP over IPv4.
const VNET_NEEDS_CSUM: u8 = 1;
const VNET_GSO_TCPV4: u8 = 1;

/// Addresses of one end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Station {
    pub(super) mac: [u8; 6],
    pub(super) address: Ipv4Addr,
    pub(super) port: u16,
}

/// Method for the TCP checksum.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum Checksum {
    /// By the sender, over all bytes
    Software,
    /// By the kernel, as the virtio-net header asks; only if the frame leaves the machine
    Header,
}

/// Fields of a TCP header.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Segment {
    pub(super) seq: u32,
    pub(super) ack: u32,
    pub(super) flags: u8,
    /// Window field, not scaled.
    pub(super) window: u16,
}

/// Headers of the frames that one end sends.
#[derive(Debug)]
pub(super) struct Head {
    bytes: [u8; VNET_BYTES + HEADERS_BYTES + SYN_OPTIONS_BYTES],
    /// Start of a frame in `bytes`: after the virtio-net header if there is none.
    start: usize,
    checksum: Checksum,
    mss: u16,
    /// Sum of the IP header with length and identification 0.
    ip_sum: u64,
    /// Sum of addresses and protocol.
    pseudo_sum: u64,
    id: u16,
}

impl Head {
    /// Creates the headers of frames from `near` to `far`. [`Checksum::Header`] requires `vnet_header`.
    pub(super) fn new(
        near: Station,
        far: Station,
        vnet_header: bool,
        checksum: Checksum,
        mss: u16,
    ) -> Self {
        let mut bytes = [0; VNET_BYTES + HEADERS_BYTES + SYN_OPTIONS_BYTES];
        if checksum == Checksum::Header {
            bytes[0] = VNET_NEEDS_CSUM;
            bytes[6..8].copy_from_slice(&(TCP as u16).to_le_bytes());
            bytes[8..10].copy_from_slice(&16_u16.to_le_bytes());
        }
        let frame = &mut bytes[VNET_BYTES..];
        frame[..6].copy_from_slice(&far.mac);
        frame[6..12].copy_from_slice(&near.mac);
        frame[12..14].copy_from_slice(&ETHERTYPE_IPV4);
        // Version and header length; DF; TTL.
        (frame[IP], frame[IP + 6], frame[IP + 8]) = (0x45, 0x40, 64);
        frame[IP + 9] = PROTOCOL_TCP;
        frame[IP + 12..IP + 16].copy_from_slice(&near.address.octets());
        frame[IP + 16..IP + 20].copy_from_slice(&far.address.octets());
        frame[TCP..TCP + 2].copy_from_slice(&near.port.to_be_bytes());
        frame[TCP + 2..TCP + 4].copy_from_slice(&far.port.to_be_bytes());
        let ip_sum = sum(&frame[IP..TCP]);
        let pseudo_sum = sum(&frame[IP + 12..TCP]) + word(u16::from(PROTOCOL_TCP));
        let start = if vnet_header { 0 } else { VNET_BYTES };
        Self { bytes, start, checksum, mss, ip_sum, pseudo_sum, id: 0 }
    }

    /// Returns the headers for `segment` with `payload`. The kernel segments a payload larger than the MSS. A SYN has
    /// options and no payload.
    pub(super) fn patch(&mut self, segment: Segment, payload: &[u8]) -> &[u8] {
        let Segment { seq, ack, flags, window } = segment;
        let options = if flags & SYN == 0 { 0 } else { SYN_OPTIONS_BYTES };
        let headers = HEADERS_BYTES + options;
        let gso = payload.len() > usize::from(self.mss);
        self.bytes[1] = if gso { VNET_GSO_TCPV4 } else { 0 };
        let (hdr_len, gso_size) = if gso { (headers as u16, self.mss) } else { (0, 0) };
        self.bytes[2..4].copy_from_slice(&hdr_len.to_le_bytes());
        self.bytes[4..6].copy_from_slice(&gso_size.to_le_bytes());

        let frame = &mut self.bytes[VNET_BYTES..];
        let tcp_bytes = (headers - TCP + payload.len()) as u16;
        let ip_bytes = tcp_bytes + (TCP - IP) as u16;
        self.id = self.id.wrapping_add(1);
        frame[IP + 2..IP + 4].copy_from_slice(&ip_bytes.to_be_bytes());
        frame[IP + 4..IP + 6].copy_from_slice(&self.id.to_be_bytes());
        let ip_checksum = !fold(self.ip_sum + word(ip_bytes) + word(self.id));
        frame[IP + 10..IP + 12].copy_from_slice(&ip_checksum.to_ne_bytes());

        let tcp = &mut frame[TCP..headers];
        tcp[4..8].copy_from_slice(&seq.to_be_bytes());
        tcp[8..12].copy_from_slice(&ack.to_be_bytes());
        (tcp[12], tcp[13]) = ((((headers - TCP) / 4) << 4) as u8, flags);
        tcp[14..16].copy_from_slice(&window.to_be_bytes());
        tcp[16..18].fill(0);
        if options > 0 {
            let [high, low] = self.mss.to_be_bytes();
            tcp[20..].copy_from_slice(&[2, 4, high, low, 3, 3, WINDOW_SCALE as u8, 1]);
        }
        let pseudo = self.pseudo_sum + word(tcp_bytes);
        let checksum = match self.checksum {
            Checksum::Header => fold(pseudo),
            Checksum::Software => !fold(pseudo + sum(tcp) + sum(payload)),
        };
        tcp[16..18].copy_from_slice(&checksum.to_ne_bytes());
        &self.bytes[self.start..VNET_BYTES + headers]
    }
}

/// A received segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Received {
    pub(super) segment: Segment,
    /// Length of the TCP options, bytes.
    pub(super) options_bytes: usize,
    pub(super) payload_bytes: usize,
}

/// Parses a frame: `head` is its first [`HEADERS_BYTES`], or all of a shorter one, and `rest_bytes` follow. `None` if
/// it is not a complete TCP segment for `port`.
pub(super) fn parse(head: &[u8], rest_bytes: usize, port: u16) -> Option<Received> {
    let head: &[u8; HEADERS_BYTES] = head.try_into().ok()?;
    let half = |at: usize| u16::from_be_bytes([head[at], head[at + 1]]);
    let full = |at: usize| u32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
    let is_ours = head[12..14] == ETHERTYPE_IPV4
        && head[IP] == 0x45
        && head[IP + 9] == PROTOCOL_TCP
        && half(TCP + 2) == port;
    if !is_ours {
        return None;
    }
    let tcp_bytes = usize::from(half(IP + 2)).checked_sub(TCP - IP)?;
    let header_bytes = usize::from(head[TCP + 12] >> 4) * 4;
    let options_bytes = header_bytes.checked_sub(HEADERS_BYTES - TCP)?;
    let payload_bytes = tcp_bytes.checked_sub(header_bytes)?;
    // A short frame has padding after the packet.
    if options_bytes + payload_bytes > rest_bytes {
        return None;
    }
    let (seq, ack) = (full(TCP + 4), full(TCP + 8));
    let segment = Segment { seq, ack, flags: head[TCP + 13], window: half(TCP + 14) };
    Some(Received { segment, options_bytes, payload_bytes })
}

/// Sets the sequence number of a frame without updating the checksum.
pub(super) fn set_sequence(frame: &mut [u8], seq: u32) {
    frame[TCP + 4..TCP + 8].copy_from_slice(&seq.to_be_bytes());
}

/// Returns true if the TCP checksum is correct; `rest` contains the bytes after the headers, without padding.
pub(super) fn is_checksum_valid(head: &[u8; HEADERS_BYTES], rest: &[u8]) -> bool {
    let tcp_bytes = HEADERS_BYTES - TCP + rest.len();
    let pseudo = sum(&head[IP + 12..TCP]) + word(u16::from(PROTOCOL_TCP)) + word(tcp_bytes as u16);
    fold(pseudo + sum(&head[TCP..]) + sum(rest)) == 0xffff
}

/// Returns the window scale in the options of a SYN.
pub(super) fn window_scale(mut options: &[u8]) -> u32 {
    const MAX: u32 = 14; // RFC 7323 §2.3
    loop {
        match *options {
            [0, ..] | [] => return 0,
            [1, ref rest @ ..] => options = rest,
            [3, 3, scale, ..] => return u32::from(scale).min(MAX),
            [_, bytes, ..] if bytes >= 2 && usize::from(bytes) <= options.len() => {
                options = &options[usize::from(bytes)..];
            }
            _ => return 0,
        }
    }
}

/// Length of a frame with an ARP packet for IPv4.
pub(super) const ARP_BYTES: usize = 42;

/// Returns the reply to an ARP request for `me` (RFC 826).
pub(super) fn arp_answer(frame: &[u8], me: Station) -> Option<[u8; ARP_BYTES]> {
    const REQUEST: [u8; 8] = [0, 1, 0x08, 0, 6, 4, 0, 1];
    let frame = frame.first_chunk::<ARP_BYTES>()?;
    let is_for_me = frame[12..14] == ETHERTYPE_ARP
        && frame[14..22] == REQUEST
        && frame[38..42] == me.address.octets();
    if !is_for_me {
        return None;
    }
    let mut answer = *frame;
    answer[..6].copy_from_slice(&frame[22..28]);
    answer[6..12].copy_from_slice(&me.mac);
    answer[21] = 2;
    answer[22..28].copy_from_slice(&me.mac);
    answer[28..32].copy_from_slice(&me.address.octets());
    answer[32..42].copy_from_slice(&frame[22..32]);
    Some(answer)
}

/// Returns a header field as a term of the sum.
const fn word(number: u16) -> u64 {
    u16::from_ne_bytes(number.to_be_bytes()) as u64
}

/// Returns the unfolded sum of `bytes` (RFC 1071). Not `offload_engine::checksum`: the baseline that flue is compared
/// with must not change with flue. Only the last of several parts may have an odd length.
fn sum(bytes: &[u8]) -> u64 {
    // 32-bit words in a 64-bit sum lose no carry, and 2^16 is 1 modulo 65,535.
    let (words, tail) = bytes.as_chunks::<4>();
    let total: u64 = words.iter().map(|word| u64::from(u32::from_ne_bytes(*word))).sum();
    let mut rest = [0; 4];
    rest[..tail.len()].copy_from_slice(tail);
    total + u64::from(u32::from_ne_bytes(rest))
}

const fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NEAR: Station =
        Station { mac: [2, 0, 0, 0, 0, 1], address: Ipv4Addr::new(10, 1, 2, 3), port: 4000 };
    const FAR: Station =
        Station { mac: [2, 0, 0, 0, 0, 2], address: Ipv4Addr::new(10, 1, 2, 4), port: 5000 };
    const SEGMENT: Segment = Segment { seq: 0x0102_0304, ack: 7, flags: ACK, window: 0x1234 };

    fn plain() -> Head {
        Head::new(NEAR, FAR, false, Checksum::Software, 1460)
    }

    fn whole(head: &[u8]) -> &[u8; HEADERS_BYTES] {
        head.first_chunk().unwrap()
    }

    /// RFC 1071 §3: the sum of these octets is ddf2.
    #[test]
    fn checksum_matches_example_of_rfc_1071() {
        let octets = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
        assert_eq!(fold(sum(&octets)).to_ne_bytes(), [0xdd, 0xf2]);
    }

    #[test]
    fn frame_round_trips() {
        let mut head = plain();
        let payload = [0xa5; 1460];
        let bytes = head.patch(SEGMENT, &payload);
        assert_eq!(bytes.len(), HEADERS_BYTES);
        let received = parse(bytes, payload.len(), FAR.port).unwrap();
        let expected = Received { segment: SEGMENT, options_bytes: 0, payload_bytes: 1460 };
        assert_eq!(received, expected);
        assert!(is_checksum_valid(whole(bytes), &payload));
        assert_eq!(fold(sum(&bytes[IP..TCP])), 0xffff, "the IP header's checksum");
        let mut other = *whole(bytes);
        set_sequence(&mut other, 9);
        assert_eq!(
            parse(&other, payload.len(), FAR.port).unwrap().segment,
            Segment { seq: 9, ..SEGMENT }
        );
        assert_eq!(parse(bytes, payload.len(), 4999), None, "for another station");
        assert_eq!(parse(bytes, payload.len() - 1, FAR.port), None, "truncated");
        assert_eq!(parse(&bytes[..53], 0, FAR.port), None, "a runt");
    }

    #[test]
    fn syn_has_options_with_window_scale() {
        let mut head = plain();
        let bytes = head.patch(Segment { flags: SYN, ..SEGMENT }, &[]);
        let (first, options) = bytes.split_at(HEADERS_BYTES);
        assert!(is_checksum_valid(whole(first), options));
        let received = parse(first, options.len(), FAR.port).unwrap();
        assert_eq!((received.options_bytes, received.payload_bytes), (8, 0));
        assert_eq!(window_scale(options), WINDOW_SCALE);
    }

    #[test]
    fn other_options_are_skipped_and_bad_ones_end_the_search() {
        assert_eq!(window_scale(&[2, 4, 5, 180, 1, 3, 3, 7]), 7);
        assert_eq!(window_scale(&[3, 3, 99]), 14);
        for bad in [&[][..], &[0, 3, 3, 7], &[8, 0, 3, 3, 7], &[8, 200, 3], &[3], &[5]] {
            assert_eq!(window_scale(bad), 0, "{bad:?}");
        }
    }

    #[test]
    fn offloads_are_requested_in_the_virtio_net_header() {
        let mut head = Head::new(NEAR, FAR, true, Checksum::Header, 1460);
        let payload = vec![1; 44 * 1460];
        let bytes = head.patch(SEGMENT, &payload);
        // flags, gso_type; hdr_len, gso_size, csum_start, csum_offset, little endian.
        let expected = [1, 1, 54, 0, 0xb4, 0x05, 34, 0, 16, 0, 0, 0];
        assert_eq!(bytes[..VNET_BYTES], expected);
        let frame = &bytes[VNET_BYTES..];
        let pseudo = sum(&frame[IP + 12..TCP]) + word(6) + word(20 + 64_240);
        assert_eq!(frame[TCP + 16..TCP + 18], fold(pseudo).to_ne_bytes());
        let bytes = head.patch(SEGMENT, &payload[..1460]);
        assert_eq!(bytes[..VNET_BYTES], [1, 0, 0, 0, 0, 0, 34, 0, 16, 0, 0, 0]);
    }

    #[test]
    fn arp_request_for_own_address_is_answered() {
        let mut request = [0; 60];
        request[..6].fill(0xff);
        request[6..12].copy_from_slice(&FAR.mac);
        request[12..22].copy_from_slice(&[8, 6, 0, 1, 8, 0, 6, 4, 0, 1]);
        request[22..28].copy_from_slice(&FAR.mac);
        request[28..32].copy_from_slice(&FAR.address.octets());
        request[38..42].copy_from_slice(&NEAR.address.octets());
        let answer = arp_answer(&request, NEAR).unwrap();
        assert_eq!((&answer[..6], &answer[6..12]), (&FAR.mac[..], &NEAR.mac[..]));
        assert_eq!(answer[20..22], [0, 2]);
        assert_eq!((&answer[22..28], &answer[28..32]), (&NEAR.mac[..], &[10, 1, 2, 3][..]));
        assert_eq!((&answer[32..38], &answer[38..42]), (&FAR.mac[..], &[10, 1, 2, 4][..]));
        assert_eq!(arp_answer(&request, FAR), None, "for another station");
        assert_eq!(arp_answer(&answer, NEAR), None, "a reply");
        assert_eq!(arp_answer(&request[..41], NEAR), None, "truncated");
    }

    proptest! {
        #[test]
        fn one_flipped_bit_is_detected(
            payload in proptest::collection::vec(any::<u8>(), 1..300),
            at in any::<proptest::sample::Index>(),
            bit in 0_u32..8,
        ) {
            let mut head = plain();
            let bytes = *whole(head.patch(SEGMENT, &payload));
            prop_assert!(is_checksum_valid(&bytes, &payload));
            let mut damaged = payload.clone();
            damaged[at.index(payload.len())] ^= 1_u8 << bit;
            prop_assert!(!is_checksum_valid(&bytes, &damaged));
        }

        #[test]
        fn arbitrary_frame_never_panics(
            bytes in proptest::collection::vec(any::<u8>(), 0..80),
            rest in 0_usize..2000,
            port: u16,
        ) {
            if let Some(received) = parse(&bytes, rest, port) {
                prop_assert!(received.options_bytes + received.payload_bytes <= rest);
            }
            let _ = window_scale(&bytes);
            let _ = arp_answer(&bytes, NEAR);
        }
    }
}
