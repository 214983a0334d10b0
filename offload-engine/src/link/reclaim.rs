//! Transmitted pages come back to the processor that wrote them.
//!
//! A write of a super-segment takes 64 KiB of fresh pages. Whoever reads the frame from another TAP frees them on
//! the reader's processor, and Linux keeps them there, in lists of that processor that are tens of megabytes deep on
//! a machine with few processors: the writer copies into memory that no cache of its own has seen for 30 MiB of
//! traffic. The kernel's TCP knows that and sends pages home (`skb_attempt_defer_free`); the TUN driver does not.
//!
//! So a packet socket on our own interface holds a second reference to every super-segment that we write, and lets go
//! of the oldest, on our processor, when [`HELD_FRAMES`] newer ones are out: by then the reader has let go of its
//! own. Nothing is copied. It costs a clone and a `recv` of one byte a super-segment.
#![forbid(unsafe_code)]

use std::io;

use rustix::{io::Errno, net::RecvFlags};

use super::packet::{self, Observer};

/// Frames below this are left alone: what they would save is less than what it costs.
pub(super) const FRAME_BYTES_MIN: usize = 16 * 1024;

/// Super-segments that are held: more than a connection to a peer on the same machine has in flight
/// (`Config::in_flight_min`), so that the other end has let go of what is freed; and few enough for the
/// cache.
const HELD_FRAMES: u32 = 20;

/// What the socket must be able to hold, in the kernel's accounting of buffers: one super-segment more than is
/// held, each with the kernel's own overhead.
const BUFFER_BYTES_MIN: usize = (HELD_FRAMES as usize + 1) * 80 * 1024;

crate::option_enum! {
    /// Whether pages of transmitted super-segments are brought back to the processor that wrote them.
    pub enum ReclaimMode {
        /// Where the kernel's page lists make it worth while, and it can be had
        // That is: with more than one processor, one queue, the virtio-net header, and the right to open a packet
        // socket.
        #[default]
        Auto,
        /// Fail where it cannot be had
        // With `TapError::NoReclaim`.
        On,
        /// Leave them to their readers
        Off,
    }
}

/// The second reference to what an interface transmits.
#[derive(Debug)]
pub(super) struct Reclaim {
    observer: Observer,
    /// Frames that the socket holds, as far as we know; `None` before the first large one. A bound socket costs every
    /// frame a look at its length, which those who only exchange small ones need not pay.
    held: Option<u32>,
}

impl Reclaim {
    /// For the interface `name`, with one queue.
    pub(super) fn open(name: &str) -> io::Result<Self> {
        let observer = packet::observer(name, FRAME_BYTES_MIN as u32)?;
        // Past the system's limit needs more rights than a user namespace gives.
        let force = rustix::net::sockopt::set_socket_recv_buffer_size_force;
        if force(&observer.socket, BUFFER_BYTES_MIN).is_err() {
            rustix::net::sockopt::set_socket_recv_buffer_size(&observer.socket, BUFFER_BYTES_MIN)?;
        }
        // The kernel doubles what was asked for.
        let granted = rustix::net::sockopt::socket_recv_buffer_size(&observer.socket)? / 2;
        if granted < BUFFER_BYTES_MIN {
            let text = std::format!(
                "its receive buffer is limited to {granted} of {BUFFER_BYTES_MIN} bytes: raise net.core.rmem_max"
            );
            return Err(io::Error::other(text));
        }
        Ok(Self { observer, held: None })
    }

    /// A frame of at least [`FRAME_BYTES_MIN`] was written. Whether the oldest came back for it.
    pub(super) fn written(&mut self) -> bool {
        let Some(held) = &mut self.held else {
            // An interface that is gone has no frames to hold.
            self.held = self.observer.begin().is_ok().then_some(0);
            return false;
        };
        *held += 1;
        if *held <= HELD_FRAMES {
            return false;
        }
        match rustix::net::recv(&self.observer.socket, &mut [0; 1], RecvFlags::DONTWAIT) {
            Ok(_) => {
                *held -= 1;
                true
            }
            Err(Errno::INTR) => false,
            // The interface was down, or frames found the socket full: what it holds is not known, and nothing is
            // lost by counting anew.
            Err(_) => {
                *held = 0;
                false
            }
        }
    }
}

/// Whether this machine's kernel holds freed pages back on the processor that freed them, and there is another one.
pub(super) fn helps() -> bool {
    let several = std::thread::available_parallelism().is_ok_and(|n| n.get() > 1);
    several && std::fs::read_to_string("/proc/zoneinfo").is_ok_and(|text| holds_back(&text))
}

/// Reads it from the text of `/proc/zoneinfo`.
///
/// A processor that frees pages of several units in a row gives them back at once when it has freed more than
/// `batch + high_min / 2` pages without taking any (`free_frozen_page_commit`). What it counts ends at `batch` times
/// 32, so with a large `high_min`, which is the zone's low watermark divided among the processors, that never comes,
/// and `high_min` pages stay. Kernels before 6.7 have no `high_min`; nothing is known of them here.
fn holds_back(zoneinfo: &str) -> bool {
    /// `CONFIG_PCP_BATCH_SCALE_MAX` is 5.
    const COUNTED_BATCHES_MAX: u64 = 1 << 5;
    let (mut batch, mut holds) = (0, false);
    for line in zoneinfo.lines() {
        let mut words = line.split_ascii_whitespace();
        let (name, value) = (words.next(), words.next().and_then(|word| word.parse::<u64>().ok()));
        match (name, value) {
            (Some("batch:"), Some(pages)) => batch = pages,
            // Follows the batch of the same processor and zone.
            (Some("high_min:"), Some(high_min)) => {
                holds |=
                    batch.saturating_add(high_min / 2) > batch.saturating_mul(COUNTED_BATCHES_MAX);
            }
            _ => {}
        }
    }
    holds
}

#[cfg(test)]
mod tests {
    use std::string::String;

    use super::*;

    /// As `/proc/zoneinfo` has it, of a zone that two processors have lists of.
    fn zone(batch: u64, high_min: u64) -> String {
        let processor = |n| {
            let head =
                std::format!("    cpu: {n}\n  count: 4067\n  high: 8400\n  batch: {batch}\n");
            head + &std::format!("  high_min: {high_min}\n  high_max: 182272\n")
        };
        std::format!(
            "Node 0, zone   Normal\n  pages free     2207013\n  pagesets\n{}{}",
            processor(0),
            processor(1)
        )
    }

    #[test]
    fn deep_lists_hold_pages_back() {
        assert!(holds_back(&zone(63, 8338)), "12 GiB, two processors");
        assert!(!holds_back(&zone(63, 1042)), "the same, sixteen");
        assert!(
            holds_back(&std::format!("{}{}", zone(63, 1042), zone(63, 8338))),
            "one zone is enough"
        );
        // 63 * 32 pages are counted at most; 63 of them are the batch.
        assert!(!holds_back(&zone(63, 2 * (63 * 31))));
        assert!(holds_back(&zone(63, 2 * (63 * 31 + 1))));
    }

    #[test]
    fn nothing_is_known_without_the_field() {
        assert!(!holds_back(""));
        let old = zone(63, 8338).replace("high_min:", "high:");
        assert!(!holds_back(&old));
    }
}
