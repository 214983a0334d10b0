//! Recycling of pages of transmitted GSO packets on the CPU that wrote them.
//!
//! Writing a GSO packet allocates 64 KiB of pages. The reader of another TAP frees them on its own CPU. Linux keeps
//! them there, in lists of that CPU with a capacity of tens of megabytes on a machine with few CPUs. So the writer
//! copies into memory that was not in its caches for 30 MiB of traffic. The kernel's TCP returns such pages
//! (`skb_attempt_defer_free`); the TUN driver does not.
//!
//! So a packet socket on the own interface holds a second reference to every written GSO packet. It releases the
//! oldest, on the writer's CPU, when [`HELD_FRAMES`] newer ones are held. By then the reader has released its own. No
//! data is copied. The cost is a clone and a `recv` of one byte per GSO packet.
#![forbid(unsafe_code)]

use std::io;

use rustix::{io::Errno, net::RecvFlags};

use super::packet::{self, Observer};

/// Smallest frame, in bytes, that is reclaimed. For smaller frames the cost exceeds the saving.
pub(super) const FRAME_BYTES_MIN: usize = 16 * 1024;

/// GSO packets held. The number exceeds the flight of a connection to a peer on the same machine
/// (`Config::in_flight_min`), so that the reader has released what is freed. It is small enough for the cache.
const HELD_FRAMES: u32 = 20;

/// Required capacity of the socket, in the kernel's accounting of buffers: one GSO packet more than is held, each with
/// the kernel's overhead.
const BUFFER_BYTES_MIN: usize = (HELD_FRAMES as usize + 1) * 80 * 1024;

crate::option_enum! {
    /// Recycling of pages of transmitted GSO packets on the CPU that wrote them.
    pub enum ReclaimMode {
        /// If the kernel's page lists make it useful and the prerequisites are met
        // Enabled with more than one CPU, one queue, the virtio-net header, and permission to open a packet socket.
        #[default]
        Auto,
        /// Fail if the prerequisites are not met
        // With `TapError::NoReclaim`.
        On,
        /// Readers free the pages
        Off,
    }
}

/// Second reference to the frames that an interface transmits.
#[derive(Debug)]
pub(super) struct Reclaim {
    observer: Observer,
    /// Estimated number of frames held by the socket. `None` before the first large one, when the socket is not bound:
    /// a bound socket costs a check of the length of every frame.
    held: Option<u32>,
}

impl Reclaim {
    /// Opens the socket for the interface `name`, with one queue.
    pub(super) fn open(name: &str) -> io::Result<Self> {
        let observer = packet::observer(name, FRAME_BYTES_MIN as u32)?;
        // Exceeding the system's limit requires more rights than a user namespace grants.
        let force = rustix::net::sockopt::set_socket_recv_buffer_size_force;
        if force(&observer.socket, BUFFER_BYTES_MIN).is_err() {
            rustix::net::sockopt::set_socket_recv_buffer_size(&observer.socket, BUFFER_BYTES_MIN)?;
        }
        // The kernel doubles the requested size.
        let granted = rustix::net::sockopt::socket_recv_buffer_size(&observer.socket)? / 2;
        if granted < BUFFER_BYTES_MIN {
            let text = std::format!(
                "packet socket: buffer of {granted} bytes, expected {BUFFER_BYTES_MIN}: raise net.core.rmem_max"
            );
            return Err(io::Error::other(text));
        }
        Ok(Self { observer, held: None })
    }

    /// Counts a written frame of at least [`FRAME_BYTES_MIN`]. Returns true if the oldest was reclaimed for it.
    pub(super) fn written(&mut self) -> bool {
        let Some(held) = &mut self.held else {
            // A removed interface has no frames to hold.
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
            // The interface was down, or the socket was full. The number of held frames is then unknown, and restarting
            // the count is safe.
            Err(_) => {
                *held = 0;
                false
            }
        }
    }
}

/// True if this kernel retains freed pages on the CPU that freed them, and the machine has several CPUs.
pub(super) fn is_useful() -> bool {
    let several = std::thread::available_parallelism().is_ok_and(|n| n.get() > 1);
    several && std::fs::read_to_string("/proc/zoneinfo").is_ok_and(|text| retains_pages(&text))
}

/// Determines this from the text of `/proc/zoneinfo`.
///
/// A CPU returns freed pages of several units at once after it has freed more than `batch + high_min / 2` pages without
/// an allocation (`free_frozen_page_commit`). Its counter is limited to `batch` times
/// 32. So with a large `high_min`, which is the zone's low watermark divided by the number of CPUs, this never happens,
///     and `high_min` pages are retained. Kernels before 6.7 have no `high_min` and are not evaluated.
fn retains_pages(zoneinfo: &str) -> bool {
    /// `CONFIG_PCP_BATCH_SCALE_MAX` is 5.
    const COUNTED_BATCHES_MAX: u64 = 1 << 5;
    let (mut batch, mut holds) = (0, false);
    for line in zoneinfo.lines() {
        let mut words = line.split_ascii_whitespace();
        let (name, value) = (words.next(), words.next().and_then(|word| word.parse::<u64>().ok()));
        match (name, value) {
            (Some("batch:"), Some(pages)) => batch = pages,
            // Follows the batch of the same CPU and zone.
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

    /// Text of `/proc/zoneinfo` for a zone with page lists of two CPUs.
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
    fn long_page_lists_retain_pages() {
        assert!(retains_pages(&zone(63, 8338)), "12 GiB, two CPUs");
        assert!(!retains_pages(&zone(63, 1042)), "12 GiB, sixteen CPUs");
        assert!(
            retains_pages(&std::format!("{}{}", zone(63, 1042), zone(63, 8338))),
            "one zone is enough"
        );
        // At most 63 * 32 pages are counted, 63 of them for the batch.
        assert!(!retains_pages(&zone(63, 2 * (63 * 31))));
        assert!(retains_pages(&zone(63, 2 * (63 * 31 + 1))));
    }

    #[test]
    fn missing_high_min_disables_reclaim() {
        assert!(!retains_pages(""));
        let old = zone(63, 8338).replace("high_min:", "high:");
        assert!(!retains_pages(&old));
    }
}
