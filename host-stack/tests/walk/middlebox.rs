//! Middlebox that removes options from SYNs: so a run has connections without SACK or without window scaling, which no
//! setting of the host disables.

use offload_engine::{
    link::{
        Link, TxFrame, TxOutcome,
        wrapper::{LinkWrapper, wraps},
    },
    time::Instant,
};

use crate::{
    frames::{self, Tcp},
    plan::StrippedOptions,
};

const OPTION_END: u8 = 0;
const OPTION_NOP: u8 = 1;
const OPTION_WINDOW_SCALE: u8 = 3;
const OPTION_SACK_PERMITTED: u8 = 4;
const TCP_HEADER_BYTES: usize = 20;
const TCP_CHECKSUM: usize = 16;

/// Strips options from the SYNs (not the SYN-ACKs) that are sent through it.
#[derive(Debug)]
pub(crate) struct Middlebox<L> {
    link: L,
    stripped: StrippedOptions,
}

impl<L: Link> Middlebox<L> {
    pub(crate) const fn new(link: L, stripped: StrippedOptions) -> Self {
        Self { link, stripped }
    }

    /// Returns the frame without the options, if it is a SYN with any of them.
    fn strip(&self, frame: &TxFrame<'_>) -> Option<Vec<u8>> {
        // A SYN has no payload.
        if self.stripped == StrippedOptions::default() || !frame.payload.is_empty() {
            return None;
        }
        let tcp = Tcp::of(frame.head).filter(|tcp| tcp.syn && !tcp.is_ack)?;
        let options = tcp.at + TCP_HEADER_BYTES..tcp.options_end;
        let mut stripped = frame.head.to_vec();
        self.blank(&mut stripped[options.clone()]);
        // The link's partial checksum does not cover options.
        if frame.offload.checksum.is_none() {
            let new = stripped[options.clone()].to_vec();
            let at = tcp.at + TCP_CHECKSUM;
            frames::adjust(&mut stripped, at, &frame.head[options], &new);
        }
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

impl<L: Link> LinkWrapper for Middlebox<L> {
    wraps!(L, link);

    fn transmit(&mut self, now: Instant, frame: &TxFrame<'_>) -> TxOutcome {
        match self.strip(frame) {
            None => self.link.transmit(now, frame),
            Some(head) => self.link.transmit(now, &TxFrame { head: &head, ..*frame }),
        }
    }
}
