//! Log line per frame, for `--trace`: direction, the headers of each layer, and the node's comments on the frame (net
//! buffer lists, offloads), as in a capture.

use core::fmt;
use std::{boxed::Box, io, string::ToString, vec::Vec};

use offload_engine::{
    link::{
        Link, RxBatch, TxFrame, TxOutcome,
        wrapper::{LinkWrapper, wraps},
    },
    time::Instant,
};
use smoltcp::wire::{EthernetFrame, PrettyPrinter};
use tracing::Level;

/// Link whose frames are logged.
struct LoggedLink {
    link: Box<dyn Link>,
    /// Buffer for the logged frame.
    scratch: Vec<u8>,
}

/// Wraps the link if trace logging is enabled.
pub fn logged(link: Box<dyn Link>) -> Box<dyn Link> {
    if tracing::enabled!(Level::TRACE) {
        Box::new(LoggedLink { link, scratch: Vec::new() })
    } else {
        link
    }
}

/// Headers of a frame, formatted on one line.
struct Headers<'a>(&'a [u8]);

impl fmt::Display for Headers<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = PrettyPrinter::<EthernetFrame<&[u8]>>::new("", &self.0).to_string();
        for (layer, line) in text.lines().enumerate() {
            let separator = if layer == 0 { "" } else { "; " };
            write!(f, "{separator}{}", line.trim_start_matches([' ', '\\']))?;
        }
        Ok(())
    }
}

impl LinkWrapper for LoggedLink {
    wraps!(Box<dyn Link>, link);

    fn receive(&mut self, now: Instant, batch: &mut RxBatch) -> io::Result<usize> {
        let before = batch.len();
        let added = Link::receive(&mut self.link, now, batch)?;
        for frame in batch.frames().skip(before) {
            tracing::trace!("received {} bytes: {}", frame.data.len(), Headers(frame.data));
        }
        Ok(added)
    }

    fn transmit(&mut self, now: Instant, frame: &TxFrame<'_>) -> TxOutcome {
        let outcome = Link::transmit(&mut self.link, now, frame);
        if outcome == TxOutcome::Sent {
            self.scratch.clear();
            frame.gather_into(&mut self.scratch);
            let bytes = self.scratch.len();
            tracing::trace!(
                comment = frame.comment,
                "sent {bytes} bytes: {}",
                Headers(&self.scratch)
            );
        }
        outcome
    }

    fn uses_comments(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Truncated and unknown frames are logged too.
    #[test]
    fn any_bytes_make_one_line() {
        let mut request = [0xff; 42];
        request[12..22].copy_from_slice(&[8, 6, 0, 1, 8, 0, 6, 4, 0, 1]);
        let line = Headers(&request).to_string();
        assert!(
            line.starts_with("EthernetII ") && line.contains("; ARP type=Ethernet+IPv4 "),
            "{line}"
        );
        for length in 0..request.len() {
            assert_eq!(Headers(&request[..length]).to_string().lines().count(), 1, "{length}");
        }
    }
}
