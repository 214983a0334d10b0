//! Every kind of message, encoded by flue, and flue's decoding in Wireshark's terms.

use bytes::Bytes;
use flue_test_support::tshark::{BufferModel, Crc, Fpdu, ReadRequest as Theirs, Returned};
use rdma_over_tcp::{
    ddp::{HeaderCopy, Msn, Segment, Stag, TaggedOffset},
    error::WireError,
    mpa::{
        Encoder, Slab,
        startup::{Initiator, PrivateData, ReadLimits, Responder, ResponderConfig, StartupConfig},
    },
    rdmap::{
        Inbound, Opcode, ReadRequest, ReceivedTerminate, SendKind, Terminate, TerminatePhase,
        parse, read_request_header, read_response_header, send_header, terminate_header,
        write_header,
    },
};

/// Message, or one segment of it.
pub(crate) struct Message {
    /// Name of the message.
    pub(crate) name: String,
    ulpdu: Vec<u8>,
}

impl Message {
    fn new(name: &str, header: &[u8], payload: &[u8]) -> Self {
        Self { name: name.into(), ulpdu: [header, payload].concat() }
    }

    /// FPDU of the message.
    pub(crate) fn fpdu(&self) -> Vec<u8> {
        let mut list: Vec<Bytes> = Vec::new();
        Encoder::new(true, false).encode(&self.ulpdu, &[], &mut Slab::new(), &mut list);
        list.concat()
    }
}

/// MPA Request frame of the initiator.
pub(crate) fn request() -> Bytes {
    Initiator::new(StartupConfig::default()).request()
}

/// MPA Reply frame of the responder.
pub(crate) fn reply() -> Bytes {
    let offer = Responder::new(ResponderConfig::default()).receive(&request()).unwrap().unwrap();
    offer.accept(ReadLimits { ird: 4, ord: 4 }, PrivateData::default()).0
}

const STAG: Stag = Stag(0x00ab_cd07);
const OFFSET: TaggedOffset = TaggedOffset(0x7f00_1234_5000);
const REQUEST: ReadRequest = ReadRequest {
    sink_stag: Stag(0x0102_0304),
    sink_offset: TaggedOffset(0x2000),
    octets: 64,
    source_stag: STAG,
    source_offset: OFFSET,
};

/// ULPDU in error that a Terminate of this error reports.
fn offender(error: WireError) -> Vec<u8> {
    let number = error.number();
    match (number.layer, number.etype, number.code) {
        (0, _, 0x09) => send_header(true, SendKind::Invalidate(STAG), Msn(3), 0).to_vec(),
        (0, 1, _) => read_request_header(Msn(5), &REQUEST).to_vec(),
        (1, 1, _) => [&*write_header(true, STAG, OFFSET), b"data"].concat(),
        _ => [&*send_header(true, SendKind::Plain, Msn(9), 0), &[7; 16]].concat(),
    }
}

/// All messages.
pub(crate) fn messages() -> Vec<Message> {
    let send = |last, kind, msn, offset| send_header(last, kind, Msn(msn), offset);
    let mut all = vec![
        Message::new("Send", &send(true, SendKind::Plain, 1, 0), b"a message of some octets"),
        Message::new("Send of nothing", &send(true, SendKind::Plain, 2, 0), b""),
        Message::new("Send of one octet", &send(true, SendKind::Plain, 3, 0), b"x"),
        Message::new(
            "Send with Invalidate",
            &send(true, SendKind::Invalidate(STAG), 4, 0),
            b"bye!",
        ),
        Message::new("Send with Solicited Event", &send(true, SendKind::Solicited, 5, 0), b"se"),
        Message::new(
            "Send with both",
            &send(true, SendKind::SolicitedInvalidate(STAG), 6, 0),
            &[9; 20],
        ),
        Message::new("Send, first segment", &send(false, SendKind::Plain, 7, 0), &[1; 40]),
        Message::new("Send, last segment", &send(true, SendKind::Plain, 7, 40), &[2; 8]),
        Message::new("Write", &write_header(true, STAG, OFFSET), b"data"),
        Message::new("Write of nothing", &write_header(true, Stag(1), TaggedOffset(0)), b""),
        Message::new("Write, first segment", &write_header(false, STAG, OFFSET), &[3; 1400]),
        Message::new("Read Request", &read_request_header(Msn(1), &REQUEST), b""),
        Message::new(
            "Read Response",
            &read_response_header(true, REQUEST.sink_stag, REQUEST.sink_offset),
            &[5; 64],
        ),
        Message::new(
            "Read Response of nothing",
            &read_response_header(true, Stag(1), TaggedOffset(0)),
            b"",
        ),
    ];
    for &error in WireError::ALL {
        let terminate = Terminate::for_ulpdu(error, &offender(error));
        let name = format!("Terminate {}", error.number());
        all.push(Message::new(&name, &terminate_header(&terminate), b""));
    }
    all
}

fn read_request(request: &ReadRequest) -> Theirs {
    Theirs {
        sink_stag: request.sink_stag.0,
        sink_offset: request.sink_offset.0,
        size: request.octets,
        source_stag: request.source_stag.0,
        source_offset: request.source_offset.0,
    }
}

fn returned(terminate: &Terminate) -> Returned {
    Returned {
        length: terminate.segment_octets,
        ddp: terminate.header.as_deref().map_or_else(Vec::new, <[u8]>::to_vec),
        rdma: terminate.read_request.map_or_else(Vec::new, |request| request.emit().to_vec()),
    }
}

/// flue's decoding of a message, in Wireshark's terms.
pub(crate) fn ours(message: &Message) -> Fpdu {
    let ulpdu = &message.ulpdu[..];
    let segment = HeaderCopy::of(ulpdu).and_then(|header| header.segment()).unwrap();
    let buffer = match segment {
        Segment::Tagged(it) => BufferModel::Tagged { stag: it.stag.0, offset: it.offset.0 },
        Segment::Untagged(it) => {
            BufferModel::Untagged { queue: it.queue.0, msn: it.msn.0, offset: it.offset }
        }
    };
    let mut fpdu = Fpdu {
        ulpdu_length: ulpdu.len() as u16,
        crc: Crc::Good,
        last: segment.last(),
        buffer,
        opcode: Opcode::from_control(segment.ulp()).unwrap() as u8,
        invalidate_stag: None,
        read_request: None,
        terminate: None,
        atomic: None,
        returned: Returned::default(),
    };
    match parse(ulpdu).unwrap() {
        Inbound::Send { kind, .. } => fpdu.invalidate_stag = kind.invalidate().map(|stag| stag.0),
        Inbound::ReadRequest { request, .. } => fpdu.read_request = Some(read_request(&request)),
        Inbound::Terminate { payload, .. } => {
            let received = ReceivedTerminate::parse(payload, TerminatePhase::Startup).unwrap();
            let number = received.rfc.number;
            fpdu.terminate = Some([number.layer << 4 | number.etype, number.code, payload[2]]);
            fpdu.returned = returned(&received.rfc);
        }
        _ => {}
    }
    fpdu
}
