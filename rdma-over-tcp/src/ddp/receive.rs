//! Sequence checks of the segments of a message.
//!
//! Over an in-order stream a source sends messages in sequence, and the segments of each in ascending order
//! without gaps (DDP-5.3-1, DDP-5.3-2). The receivers in this module enforce it, as Linux siw does: the last segment
//! then implies that the whole message is placed (DDP-5.4-1), and no map of missing ranges is needed. One untagged
//! message per queue and one tagged message may be in progress at a time.

use super::{DdpError, Msn, QueueNumber, Stag, TaggedOffset, TaggedSegment, UntaggedSegment};

/// Placement of an untagged payload in its buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UntaggedPlacement {
    /// Offset of the payload from the start of the buffer, in octets.
    pub offset: u32,
    /// Octets of the message; present if this was its last segment (DDP-5.4-2).
    pub message_octets: Option<u32>,
}

/// Sequence state of the messages of one queue.
#[derive(Clone, Debug)]
pub struct UntaggedReceiver {
    queue: QueueNumber,
    msn: Msn,
    octets: u32,
    /// RsvdULP of the message in progress.
    ulp: Option<(u8, u32)>,
}

impl UntaggedReceiver {
    /// Creates the state of a queue without received messages.
    pub const fn new(queue: QueueNumber) -> Self {
        Self { queue, msn: Msn::FIRST, octets: 0, ulp: None }
    }

    /// Returns the MSN of the message in progress, or of the next one.
    pub const fn msn(&self) -> Msn {
        self.msn
    }

    /// True if a message is in progress: its buffer is the one passed for its first segment.
    pub const fn is_in_message(&self) -> bool {
        self.ulp.is_some()
    }

    /// Checks a segment before its payload is placed (DDP-7.1-1). `capacity` is the size in octets of the message's
    /// buffer, `None` if none is posted.
    ///
    /// A zero-length message consumes a buffer too, so its numbers are checked like any other's.
    ///
    /// # Errors
    /// [`DdpError::InvalidQueue`], `InvalidMsn`, `InvalidOffset`, `Interleaved`, `NoBuffer` or `TooLong`, checked in
    /// this order; the state is then unchanged.
    pub fn accept(
        &mut self,
        segment: &UntaggedSegment,
        payload_octets: usize,
        capacity: Option<u32>,
    ) -> Result<UntaggedPlacement, DdpError> {
        let &UntaggedSegment { last, ulp, ulp_word, queue, msn, offset } = segment;
        if queue != self.queue {
            return Err(DdpError::InvalidQueue(queue));
        }
        if msn != self.msn {
            return Err(DdpError::InvalidMsn { received: msn, expected: self.msn });
        }
        if offset != self.octets {
            return Err(DdpError::InvalidOffset { received: offset, expected: self.octets });
        }
        if self.ulp.is_some_and(|first| first != (ulp, ulp_word)) {
            return Err(DdpError::Interleaved);
        }
        let capacity = capacity.ok_or(DdpError::NoBuffer(msn))?;
        let end = u64::from(offset) + payload_octets as u64;
        let octets = u32::try_from(end)
            .ok()
            .filter(|&end| end <= capacity)
            .ok_or(DdpError::TooLong { octets: end, capacity })?;
        if last {
            self.msn = msn.next();
            self.octets = 0;
            self.ulp = None;
        } else {
            self.octets = octets;
            self.ulp = Some((ulp, ulp_word));
        }
        Ok(UntaggedPlacement { offset, message_octets: last.then_some(octets) })
    }
}

/// Position of a tagged segment in its message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaggedPlacement {
    /// Octets of the message before this payload: 0 in its first segment.
    pub message_offset: u32,
    /// Octets of the message; present if this was its last segment.
    pub message_octets: Option<u32>,
}

#[derive(Clone, Copy, Debug)]
struct TaggedMessage {
    ulp: u8,
    stag: Stag,
    next: TaggedOffset,
    octets: u32,
}

/// Sequence state of the tagged messages of a stream: Writes and Read Responses.
#[derive(Clone, Debug, Default)]
pub struct TaggedReceiver {
    message: Option<TaggedMessage>,
}

impl TaggedReceiver {
    /// Creates the state of a stream without received tagged messages.
    pub const fn new() -> Self {
        Self { message: None }
    }

    /// True if a message is in progress.
    pub const fn is_in_message(&self) -> bool {
        self.message.is_some()
    }

    /// Checks a segment against the message that it continues, before its payload is placed. The caller checks STag,
    /// bounds and access rights of every segment with payload.
    ///
    /// A zero-length message is not checked (DDP-5.2-7).
    ///
    /// # Errors
    /// [`DdpError::Interleaved`], `InvalidStag`, `Bounds` (also for a message of 2^32 octets or more, DDP-5.2-2) or
    /// `Wrap`; the state is then unchanged.
    #[inline(always)]
    pub fn accept(
        &mut self,
        segment: &TaggedSegment,
        payload_octets: usize,
    ) -> Result<TaggedPlacement, DdpError> {
        let &TaggedSegment { last, ulp, stag, offset } = segment;
        let message_offset = match self.message {
            None if last && payload_octets == 0 => {
                return Ok(TaggedPlacement { message_offset: 0, message_octets: Some(0) });
            }
            None => 0,
            Some(message) if message.ulp != ulp => return Err(DdpError::Interleaved),
            Some(message) if message.stag != stag => return Err(DdpError::InvalidStag(stag)),
            Some(message) if message.next != offset => return Err(DdpError::Bounds(offset)),
            Some(message) => message.octets,
        };
        let octets = u32::try_from(payload_octets)
            .ok()
            .and_then(|octets| message_offset.checked_add(octets))
            .ok_or(DdpError::Bounds(offset))?;
        let next = offset.checked_add(payload_octets as u64).ok_or(DdpError::Wrap(offset))?;
        self.message = (!last).then_some(TaggedMessage { ulp, stag, next, octets });
        Ok(TaggedPlacement { message_offset, message_octets: last.then_some(octets) })
    }
}
