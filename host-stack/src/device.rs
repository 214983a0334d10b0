//! smoltcp's device: two queues, filled and drained by the caller that polls the interface.

use alloc::{collections::VecDeque, vec, vec::Vec};

use smoltcp::{
    phy::{Checksum, Device, DeviceCapabilities, Medium, RxToken, TxToken},
    time::Instant,
};

/// Bytes of an Ethernet header.
const ETHERNET_HEADER_LEN: usize = 14;

/// Device with frames in memory.
#[derive(Debug)]
pub(crate) struct QueueDevice {
    /// Frames for the interface to receive.
    pub(crate) received: VecDeque<Vec<u8>>,
    /// Frames sent by the interface.
    pub(crate) sent: VecDeque<Vec<u8>>,
    medium: Medium,
    mtu: usize,
}

impl QueueDevice {
    /// Creates a device; `mtu` is the size of the IP packet without an Ethernet header.
    pub(crate) const fn new(medium: Medium, mtu: usize) -> Self {
        Self { received: VecDeque::new(), sent: VecDeque::new(), medium, mtu }
    }
}

impl Device for QueueDevice {
    type RxToken<'a> = Received;
    type TxToken<'a> = Send<'a>;

    fn receive(&mut self, _now: Instant) -> Option<(Received, Send<'_>)> {
        let frame = self.received.pop_front()?;
        Some((Received(frame), Send(&mut self.sent)))
    }

    fn transmit(&mut self, _now: Instant) -> Option<Send<'_>> {
        Some(Send(&mut self.sent))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = self.medium;
        capabilities.max_transmission_unit = match self.medium {
            Medium::Ethernet => self.mtu + ETHERNET_HEADER_LEN,
            Medium::Ip => self.mtu,
        };
        // P14: a burst limit would clamp the window field without regard to its scale.
        capabilities.max_burst_size = None;
        // A frame that was not sent on a wire may have a partial TCP checksum, which only the link detects. Ingress
        // verifies checksums where needed; smoltcp only computes them.
        capabilities.checksum.tcp = Checksum::Tx;
        capabilities
    }
}

/// Frame received by the interface.
#[derive(Debug)]
pub(crate) struct Received(Vec<u8>);

impl RxToken for Received {
    fn consume<R, F>(self, read: F) -> R
    where
        F: FnOnce(&[u8]) -> R,
    {
        read(&self.0)
    }
}

/// Buffer for a frame sent by the interface.
#[derive(Debug)]
pub(crate) struct Send<'a>(&'a mut VecDeque<Vec<u8>>);

impl TxToken for Send<'_> {
    fn consume<R, F>(self, len: usize, write: F) -> R
    where
        F: FnOnce(&mut [u8]) -> R,
    {
        let mut frame = vec![0; len];
        let result = write(&mut frame);
        self.0.push_back(frame);
        result
    }
}
