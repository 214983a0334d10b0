//! Invariants of every iWARP connection, checked on Wireshark's dissection.

use super::{BufferModel, Fpdu, Pdu, PduKind, Startup, opcode};

/// Octets of DDP headers: RFC 5041 §4.2 and §4.3.
const TAGGED_HEADER_OCTETS: u16 = 14;
const UNTAGGED_HEADER_OCTETS: u16 = 18;

/// One connection: its startup frames and both directions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conversation {
    /// The initiator's Request.
    pub request: Startup,
    /// The responder's Reply.
    pub reply: Startup,
    /// FPDUs of the initiator, in the order of the capture.
    pub initiator: Vec<Fpdu>,
    /// FPDUs of the responder, in the order of the capture.
    pub responder: Vec<Fpdu>,
}

impl Conversation {
    /// The connection with Wireshark's number `connection` among `pdus`.
    ///
    /// # Panics
    ///
    /// If it does not start with a Request and its Reply (RFC 5044 §7.1.2), or has a second one.
    pub fn of(pdus: &[Pdu], connection: u32) -> Self {
        let mut ours = pdus.iter().filter(|pdu| pdu.connection == connection);
        let (Some(first), Some(second)) = (ours.next(), ours.next()) else {
            panic!("connection {connection} has no startup frames")
        };
        let (PduKind::Request(request), PduKind::Reply(reply)) = (&first.kind, &second.kind) else {
            panic!("connection {connection} begins with {first:?} and {second:?}")
        };
        assert_ne!(first.source_port, second.source_port, "Request and Reply from the same port");
        let (mut initiator, mut responder) = (Vec::new(), Vec::new());
        for pdu in ours {
            let PduKind::Fpdu(fpdu) = &pdu.kind else {
                panic!("a second startup frame in connection {connection}: {pdu:?}")
            };
            let from_initiator = pdu.source_port == first.source_port;
            if from_initiator { &mut initiator } else { &mut responder }.push(fpdu.clone());
        }
        Self { request: request.clone(), reply: reply.clone(), initiator, responder }
    }

    /// Asserts the invariants of every orderly, finished connection. Untagged messages are numbered from 1
    /// without a gap, and offsets rise without a gap. Each Read Request has a Read Response, in order, with the
    /// requested placement and size. Terminates are ignored.
    ///
    /// # Panics
    ///
    /// If the assertion fails.
    pub fn assert_orderly(&self) {
        let Self { request: _, reply: _, initiator, responder } = self;
        for direction in [initiator, responder] {
            assert_queues_numbered(direction);
            assert_tagged_gapless(direction);
        }
        assert_reads_answered(initiator, responder);
        assert_reads_answered(responder, initiator);
    }

    /// Opcodes of one direction, in order.
    pub fn opcodes(direction: &[Fpdu]) -> Vec<u8> {
        direction.iter().map(|fpdu| fpdu.opcode).collect()
    }
}

fn payload_octets(fpdu: &Fpdu, header: u16) -> u32 {
    let payload = fpdu.ulpdu_length.checked_sub(header);
    u32::from(payload.unwrap_or_else(|| panic!("shorter than its header: {fpdu:?}")))
}

/// RFC 5041 §5.1: the message sequence number of a queue starts at 1 and counts messages; the offset counts
/// octets. The Terminate queue has one message at most.
fn assert_queues_numbered(direction: &[Fpdu]) {
    for of in 0..=2 {
        let (mut next, mut at) = (1u32, 0);
        for fpdu in direction {
            let BufferModel::Untagged { queue, msn, offset } = fpdu.buffer else { continue };
            assert!(queue <= 2, "RFC 5040 §4.2 has no queue {queue}");
            if queue != of {
                continue;
            }
            assert_eq!((msn, offset), (next, at), "number and offset in queue {queue}: {fpdu:?}");
            at += payload_octets(fpdu, UNTAGGED_HEADER_OCTETS);
            if fpdu.last {
                (next, at) = (next.wrapping_add(1), 0);
            }
        }
        assert_eq!(at, 0, "the last message of queue {of} was not finished");
    }
}

/// RFC 5041 §5.2: the segments of a tagged message have consecutive offsets of one STag.
fn assert_tagged_gapless(direction: &[Fpdu]) {
    let mut open: Option<(u32, u64)> = None;
    for fpdu in direction {
        let BufferModel::Tagged { stag, offset } = fpdu.buffer else { continue };
        if let Some(expected) = open {
            assert_eq!((stag, offset), expected, "a gap in a tagged message: {fpdu:?}");
        }
        let end = offset.wrapping_add(u64::from(payload_octets(fpdu, TAGGED_HEADER_OCTETS)));
        open = if fpdu.last { None } else { Some((stag, end)) };
    }
    assert_eq!(open, None, "the last tagged message was not finished");
}

/// Read Responses match the Read Requests, RFC 5040 §5.2 and §5.5.
fn assert_reads_answered(asks: &[Fpdu], answers: &[Fpdu]) {
    let mut responses = answers.iter().filter(|fpdu| fpdu.opcode == opcode::READ_RESPONSE);
    for request in asks.iter().filter_map(|fpdu| fpdu.read_request) {
        let mut got = 0;
        loop {
            let part = responses.next();
            let part = part.unwrap_or_else(|| panic!("no answer to {request:?}"));
            let offset = request.sink_offset.wrapping_add(u64::from(got));
            let expected = BufferModel::Tagged { stag: request.sink_stag, offset };
            assert_eq!(part.buffer, expected, "the answer to {request:?}");
            got += payload_octets(part, TAGGED_HEADER_OCTETS);
            if part.last {
                break;
            }
        }
        assert_eq!(got, request.size, "octets of the answer to {request:?}");
    }
    assert_eq!(responses.next(), None, "Read Response without a Read Request");
}

#[cfg(test)]
mod tests {
    use super::super::{Crc, ReadRequest, Returned};
    use super::*;

    fn fpdu(opcode: u8, buffer: BufferModel, payload: u16, last: bool) -> Fpdu {
        let header = match buffer {
            BufferModel::Tagged { .. } => TAGGED_HEADER_OCTETS,
            BufferModel::Untagged { .. } => UNTAGGED_HEADER_OCTETS,
        };
        Fpdu {
            ulpdu_length: header + payload,
            crc: Crc::Good,
            last,
            buffer,
            opcode,
            invalidate_stag: None,
            read_request: None,
            terminate: None,
            atomic: None,
            returned: Returned::default(),
        }
    }

    fn send(msn: u32, offset: u32, payload: u16, last: bool) -> Fpdu {
        fpdu(opcode::SEND, BufferModel::Untagged { queue: 0, msn, offset }, payload, last)
    }

    fn write(stag: u32, offset: u64, payload: u16, last: bool) -> Fpdu {
        fpdu(opcode::WRITE, BufferModel::Tagged { stag, offset }, payload, last)
    }

    fn fails(judge: impl FnOnce() + std::panic::UnwindSafe) -> bool {
        std::panic::catch_unwind(judge).is_err()
    }

    #[test]
    fn untagged_messages_must_be_consecutive() {
        assert_queues_numbered(&[send(1, 0, 9, false), send(1, 9, 1, true), send(2, 0, 0, true)]);
        assert!(fails(|| assert_queues_numbered(&[send(2, 0, 9, true)])));
        assert!(fails(|| assert_queues_numbered(&[send(1, 0, 9, true), send(1, 0, 9, true)])));
        assert!(fails(|| assert_queues_numbered(&[send(1, 0, 9, false), send(1, 8, 1, true)])));
        assert!(fails(|| assert_queues_numbered(&[send(1, 0, 9, false)])));
    }

    #[test]
    fn tagged_messages_must_be_consecutive() {
        assert_tagged_gapless(&[
            write(5, 70, 9, false),
            write(5, 79, 1, true),
            write(6, 0, 0, true),
        ]);
        assert!(fails(|| assert_tagged_gapless(&[write(5, 70, 9, false), write(5, 80, 1, true)])));
        assert!(fails(|| assert_tagged_gapless(&[write(5, 70, 9, false), write(6, 79, 1, true)])));
        assert!(fails(|| assert_tagged_gapless(&[write(5, 70, 9, false)])));
    }

    #[test]
    fn read_responses_must_match_requests() {
        let asked = ReadRequest {
            sink_stag: 5,
            sink_offset: 70,
            size: 10,
            source_stag: 1,
            source_offset: 0,
        };
        let buffer = BufferModel::Untagged { queue: 1, msn: 1, offset: 0 };
        let request = fpdu(opcode::READ_REQUEST, buffer, 28, true);
        let request = [Fpdu { read_request: Some(asked), ..request }];
        let response = |stag: u32, offset: u64, payload: u16, last: bool| Fpdu {
            opcode: opcode::READ_RESPONSE,
            ..write(stag, offset, payload, last)
        };
        assert_reads_answered(&request, &[response(5, 70, 9, false), response(5, 79, 1, true)]);
        let wrong = [
            vec![],
            vec![response(5, 70, 9, true)],
            vec![response(6, 70, 10, true)],
            vec![response(5, 71, 10, true)],
            vec![response(5, 70, 10, true), response(5, 70, 10, true)],
        ];
        for answers in wrong {
            assert!(fails(|| assert_reads_answered(&request, &answers)), "{answers:?}");
        }
    }
}
