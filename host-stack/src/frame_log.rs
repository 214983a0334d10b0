//! A line of the log for each frame, for `--trace`: what is sent and received, with the headers of each layer, and what
//! the node says of the frame (net buffer lists, hand-overs), as in the comments of a capture.

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

/// A link whose frames are logged.
struct LoggedLink {
    link: Box<dyn Link>,
    /// Of the frame that is logged.
    scratch: Vec<u8>,
}

/// The link, with its frames logged if this run logs at that level.
pub fn logged(link: Box<dyn Link>) -> Box<dyn Link> {
    if tracing::enabled!(Level::TRACE) {
        Box::new(LoggedLink { link, scratch: Vec::new() })
    } else {
        link
    }
}

/// The headers of a frame on one line.
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

    fn wants_comments(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // What is cut short, or nothing known, is logged too.
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
