//! Lists of buffers below MPA: one net buffer for each FPDU or group of FPDUs.

use alloc::{vec, vec::Vec};

use bytes::Bytes;
use offload_engine::{memory::Span, nbl::NetBuffer};

use crate::mpa::GatherList;

/// Net buffers kept for reuse.
const SPARE_MAX: usize = 1024;

/// FPDUs are the MDLs of a net buffer.
impl GatherList for NetBuffer {
    type Payload = Span;

    #[inline]
    fn push_encoded(&mut self, octets: Bytes) {
        self.push_mdl(octets);
    }

    #[inline]
    fn push_payload(&mut self, payload: Span) {
        self.push_mdl(payload);
    }
}

/// Content of a net buffer list: one net buffer.
#[derive(Debug)]
pub(super) struct Buffers(pub(super) Vec<NetBuffer>);

impl GatherList for Buffers {
    type Payload = Span;

    #[inline]
    fn push_encoded(&mut self, octets: Bytes) {
        self.0[0].push_mdl(octets);
    }

    #[inline]
    fn push_payload(&mut self, payload: Span) {
        self.0[0].push_mdl(payload);
    }
}

/// Storage of completed lists for reuse: one empty net buffer each.
#[derive(Default, Debug)]
pub(super) struct Spare(Vec<Vec<NetBuffer>>);

impl Spare {
    #[inline]
    pub(super) fn take(&mut self) -> Buffers {
        Buffers(self.0.pop().unwrap_or_else(|| vec![NetBuffer::new()]))
    }

    #[inline]
    pub(super) fn keep(&mut self, mut buffers: Vec<NetBuffer>) {
        if let [buffer] = &mut buffers[..]
            && self.0.len() < SPARE_MAX
        {
            buffer.clear();
            self.0.push(buffers);
        }
    }
}
