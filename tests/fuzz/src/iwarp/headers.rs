//! ULPDU: DDP and RDMAP headers parsed by the library, compared with RFC 5041 §4 and RFC 5040 §4; and the
//! resulting Terminate.

use rdma_over_tcp::{
    error::WireError,
    rdmap::{
        Acknowledgment, Extension, Inbound, Opcode, RdmapError, ReceivedTerminate, Terminate,
        TerminatePhase, parse, terminate_header,
    },
};

/// Error of a ULPDU, by fields in their order; `None` if it has no error that is detectable without state.
fn error(ulpdu: &[u8]) -> Option<WireError> {
    let Some(&first) = ulpdu.first() else { return Some(WireError::MpaMarker) };
    let is_tagged = first & 0x80 != 0;
    if first & 3 != 1 {
        let untagged = WireError::UntaggedVersion;
        return Some(if is_tagged { WireError::TaggedVersion } else { untagged });
    }
    let header = if is_tagged { 14 } else { 18 };
    if ulpdu.len() < header {
        return Some(WireError::MpaMarker);
    }
    if ulpdu[1] >> 6 != 1 {
        return Some(WireError::OperationVersion);
    }
    let (opcode, payload) = (ulpdu[1] & 15, ulpdu.len() - header);
    let queue = match (opcode, is_tagged) {
        (0 | 2, true) => return None,
        (3..=6, false) => 0,
        (1, false) => 1,
        (7, false) => 2,
        _ => return Some(WireError::OperationUnexpectedOpcode),
    };
    if opcode == 1 && payload < 28 {
        return Some(WireError::MpaMarker);
    }
    if opcode == 1 && (payload > 28 || first & 0x40 == 0) {
        return Some(WireError::UntaggedTooLong);
    }
    let found = u32::from_be_bytes([ulpdu[6], ulpdu[7], ulpdu[8], ulpdu[9]]);
    (found != queue).then_some(WireError::UntaggedQueue)
}

/// True for RFC 7306 and private opcodes, which may be rejected or accepted; their payload is not checked here.
fn is_extension(ulpdu: &[u8]) -> bool {
    ulpdu.len() >= 18 && ulpdu[0] & 0x83 == 1 && matches!(ulpdu[1] & 0xcf, 0x48..0x4c | 0x4e | 0x4f)
}

/// Expected Terminate for this error, by RFC 5040 §4.8, figure 10.
fn terminate(error: WireError, ulpdu: &[u8]) -> Vec<u8> {
    let number = error.number();
    let header = if ulpdu.first().is_some_and(|it| it & 0x80 != 0) { 14 } else { 18 };
    let has_header = number.layer < 2 && number.etype != 0 && ulpdu.len() >= header;
    let mut octets = vec![number.layer << 4 | number.etype, number.code];
    octets.extend([if has_header { 0xc0 } else { 0 }, 0]);
    if has_header {
        octets.extend_from_slice(&(ulpdu.len() as u16).to_be_bytes());
        octets.extend_from_slice(&ulpdu[..header]);
    }
    octets
}

fn check_terminate(payload: &[u8]) {
    for phase in [TerminatePhase::Startup, TerminatePhase::Operation] {
        let received = ReceivedTerminate::parse(payload, phase);
        assert_eq!(received.is_some(), payload.len() >= 4);
        let Some(received) = received else { continue };
        // Any parsed Terminate can be formatted and encoded again.
        let _ = received.to_string();
        let again = terminate_header(&received.rfc);
        assert_eq!(again[18..20], payload[..2]);
        assert!(again.len() <= 18 + 52);
    }
}

/// Checks one input.
///
/// # Panics
/// If two parsers differ.
pub fn check(data: &[u8]) {
    let ulpdu = &data[..data.len().min(usize::from(u16::MAX))];
    let parsed = parse(ulpdu);
    if !is_extension(ulpdu) {
        assert_eq!(
            parsed.as_ref().err().copied().map(RdmapError::wire),
            error(ulpdu),
            "{ulpdu:02x?}"
        );
    }
    match parsed {
        Ok(Inbound::Terminate { payload, .. }) => check_terminate(payload),
        Ok(Inbound::ReadRequest { request, .. }) => assert_eq!(request.emit(), ulpdu[18..]),
        Ok(Inbound::Write { payload, .. } | Inbound::ReadResponse { payload, .. }) => {
            assert_eq!(payload, &ulpdu[14..]);
        }
        Ok(Inbound::Send { payload, kind, .. }) => {
            assert_eq!(payload, &ulpdu[18..]);
            assert_eq!(kind.opcode().control(), ulpdu[1] & 0xcf);
            let invalidates =
                matches!(kind.opcode(), Opcode::SendInvalidate | Opcode::SendSolicitedInvalidate);
            assert_eq!(kind.invalidate().is_some(), invalidates);
        }
        Ok(Inbound::Extension { segment, payload, opcode }) => {
            assert_eq!(payload, &ulpdu[18..]);
            // Accepted or rejected, for any content.
            let _ = Extension::parse(opcode, &segment, payload);
        }
        Ok(Inbound::Private { segment, payload, .. }) => {
            assert_eq!(payload, &ulpdu[18..]);
            if let Ok(acknowledgment) = Acknowledgment::parse(payload, segment.last) {
                assert_eq!(acknowledgment.emit()[..5], payload[..5]);
            }
        }
        Err(error) => {
            let answer = terminate_header(&Terminate::for_ulpdu(error.wire(), ulpdu));
            assert_eq!(answer[18..], terminate(error.wire(), ulpdu));
        }
    }
}
