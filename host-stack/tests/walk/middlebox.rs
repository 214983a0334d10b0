//! A box on the way that takes options out of SYNs, as some do: so a run has connections without SACK or
//! without window scaling, which no setting of the host turns off.

use etherparse::{NetSlice, SlicedPacket, TcpSlice, TransportSlice};
use offload_engine::{
    link::{
        Link, TxFrame, TxOffload, TxOutcome,
        wrapper::{LinkWrapper, wraps},
    },
    time::Instant,
};

use crate::plan::Stripped;

const OPTION_END: u8 = 0;
const OPTION_NOP: u8 = 1;
const OPTION_WINDOW_SCALE: u8 = 3;
const OPTION_SACK_PERMITTED: u8 = 4;
const TCP_HEADER_BYTES: usize = 20;
const TCP_CHECKSUM: usize = 16;

/// Strips the SYNs (not the SYN-ACKs) that leave through it.
#[derive(Debug)]
pub(crate) struct Middlebox<L> {
    link: L,
    stripped: Stripped,
}

impl<L: Link> Middlebox<L> {
    pub(crate) const fn new(link: L, stripped: Stripped) -> Self {
        Self { link, stripped }
    }

    /// The frame without the options, if it is a SYN that has some of them.
    fn strip(&self, frame: &TxFrame<'_>) -> Option<Vec<u8>> {
        // A SYN has no payload.
        if self.stripped == Stripped::default() || !frame.payload.is_empty() {
            return None;
        }
        let data = frame.head.to_vec();
        let (_, tcp) = parts(&data)?;
        if !tcp.syn() || tcp.ack() {
            return None;
        }
        let tcp_at = data.len() - tcp.slice().len();
        let options = tcp_at + TCP_HEADER_BYTES..tcp_at + tcp.header_slice().len();
        let mut stripped = data.clone();
        self.blank(&mut stripped[options]);
        let (net, tcp) = parts(&stripped)?;
        let sum = match net {
            NetSlice::Ipv4(ip) => {
                tcp.calc_checksum_ipv4(ip.header().source(), ip.header().destination())
            }
            NetSlice::Ipv6(ip) => {
                tcp.calc_checksum_ipv6(ip.header().source(), ip.header().destination())
            }
            NetSlice::Arp(_) => return None,
        };
        let sum = sum.ok()?;
        stripped[tcp_at + TCP_CHECKSUM..][..2].copy_from_slice(&sum.to_be_bytes());
        Some(stripped)
    }

    fn blank(&self, mut options: &mut [u8]) {
        while let [kind, ..] = *options {
            let length = match kind {
                OPTION_END => return,
                OPTION_NOP => 1,
                _ => usize::from(options[1]).max(2),
            };
            let goes = match kind {
                OPTION_WINDOW_SCALE => self.stripped.window_scale,
                OPTION_SACK_PERMITTED => self.stripped.sack,
                _ => false,
            };
            if goes {
                options[..length].fill(OPTION_NOP);
            }
            options = &mut options[length..];
        }
    }
}

/// The network's and TCP's part of a frame.
fn parts(frame: &[u8]) -> Option<(NetSlice<'_>, TcpSlice<'_>)> {
    let packet = SlicedPacket::from_ethernet(frame).ok()?;
    match packet.transport? {
        TransportSlice::Tcp(tcp) => Some((packet.net?, tcp)),
        _ => None,
    }
}

impl<L: Link> LinkWrapper for Middlebox<L> {
    wraps!(L, link);

    fn transmit(&mut self, now: Instant, frame: &TxFrame<'_>) -> TxOutcome {
        match self.strip(frame) {
            None => self.link.transmit(now, frame),
            Some(head) => {
                let offload = TxOffload::default();
                self.link.transmit(now, &TxFrame { offload, head: &head, payload: &[], ..*frame })
            }
        }
    }
}
