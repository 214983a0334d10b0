//! RDMA Writes with the codec only: no net buffer, no adapter, no TCP.
//!
//! A consumer of `rdma-over-tcp` without its features: `no_std`, with its own gather list and payload type. [`send`]
//! converts a message to octets of a TCP stream, [`Sink`] places the data of such a stream.
#![no_std]

extern crate alloc;

use alloc::vec::Vec;

use bytes::Bytes;
use rdma_over_tcp::{
    ddp::{Stag, TAGGED_OCTETS, TaggedOffset, TaggedReceiver},
    error::WireError,
    mpa::{Decoder, Encoder, GatherList, Payload, Slab, crc::Crc32c},
    rdmap::{Inbound, Segmenter, parse, write_header},
};

/// Octets of a message that are sent without a copy.
#[derive(Clone, Copy, Debug)]
pub struct Lent<'a>(pub &'a [u8]);

impl Payload for Lent<'_> {
    fn octets(&self) -> usize {
        self.0.len()
    }

    fn split_to(&mut self, octets: usize) -> Self {
        let (first, rest) = self.0.split_at(octets);
        self.0 = rest;
        Self(first)
    }

    fn add_to_crc(&self, crc: &mut Crc32c) {
        crc.update(self.0);
    }
}

/// Entry of a [`List`].
#[derive(Clone, Debug)]
pub enum Piece<'a> {
    /// Written by the encoder.
    Encoded(Bytes),
    /// Part of the message.
    Lent(Lent<'a>),
}

impl Piece<'_> {
    /// Returns the octets.
    pub fn octets(&self) -> &[u8] {
        match self {
            Self::Encoded(octets) => octets,
            Self::Lent(Lent(octets)) => octets,
        }
    }
}

/// Gather list of one write to the stream.
#[derive(Clone, Debug, Default)]
pub struct List<'a>(pub Vec<Piece<'a>>);

impl<'a> GatherList for List<'a> {
    type Payload = Lent<'a>;

    fn push_encoded(&mut self, octets: Bytes) {
        self.0.push(Piece::Encoded(octets));
    }

    fn push_payload(&mut self, payload: Lent<'a>) {
        self.0.push(Piece::Lent(payload));
    }
}

/// Encodes an RDMA Write of `message` into a list, in FPDUs of at most `mulpdu` octets of ULPDU.
pub fn send<'a>(
    encoder: &mut Encoder,
    slab: &mut Slab,
    stag: Stag,
    message: &'a [u8],
    mulpdu: u16,
) -> List<'a> {
    let mut list = List::default();
    let mut segmenter = Segmenter::new(message.len() as u32);
    while let Some(cut) = segmenter.next(mulpdu, TAGGED_OCTETS) {
        let header = write_header(cut.last, stag, TaggedOffset(cut.offset.into()));
        let payload = &message[cut.offset as usize..][..cut.octets as usize];
        encoder.encode(&header, &[Lent(payload)], slab, &mut list);
    }
    list
}

/// Memory of one STag, and the stream that writes to it.
#[derive(Debug)]
pub struct Sink {
    /// The STag.
    pub stag: Stag,
    /// The memory.
    pub memory: Vec<u8>,
    /// Decoder from octets to ULPDUs.
    pub decoder: Decoder,
    /// State of the message in progress.
    pub receiver: TaggedReceiver,
}

impl Sink {
    /// Receives octets of the stream, split at any point. Returns the number of messages that they complete.
    ///
    /// # Errors
    /// The error that a Terminate would report.
    pub fn receive(&mut self, mut octets: &[u8]) -> Result<usize, WireError> {
        let mut messages = 0;
        while let Some(ulpdu) = self.decoder.next(&mut octets).map_err(|error| error.wire())? {
            let Inbound::Write { segment, payload } = parse(ulpdu).map_err(|error| error.wire())?
            else {
                return Err(WireError::OperationUnexpectedOpcode);
            };
            let place =
                self.receiver.accept(&segment, payload.len()).map_err(|error| error.wire())?;
            if segment.stag != self.stag {
                return Err(WireError::TaggedInvalidStag);
            }
            let start = usize::try_from(segment.offset.0).map_err(|_| WireError::TaggedBounds)?;
            let rest = self.memory.get_mut(start..).ok_or(WireError::TaggedBounds)?;
            rest.get_mut(..payload.len()).ok_or(WireError::TaggedBounds)?.copy_from_slice(payload);
            messages += usize::from(place.message_octets.is_some());
        }
        Ok(messages)
    }
}
