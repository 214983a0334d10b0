//! MPA startup frames: any octets, with any segmentation, to either side.
//!
//! Input: octet 0 is the configuration of both sides. The stream follows.

use rdma_over_tcp::mpa::startup::{
    Frame, FrameKind, Initiator, PrivateData, ReadLimits, Responder, ResponderConfig, Revision,
    RtrSet, StartupConfig,
};

fn rtr(bits: u8) -> RtrSet {
    RtrSet { send: bits & 1 != 0, write: bits & 2 != 0, read: bits & 4 != 0 }
}

/// Parses a frame by RFC 5044 §7.1.1. Returns its length in octets, `None` if it is incomplete.
fn read(kind: FrameKind, octets: &[u8]) -> Result<Option<usize>, ()> {
    let key = kind.key();
    if octets.iter().zip(key).any(|(octet, key)| octet != key) {
        return Err(());
    }
    if octets.len() < 18 {
        return Ok(None);
    }
    if octets[17] > 2 {
        return Err(());
    }
    if octets.len() < 20 {
        return Ok(None);
    }
    let length = usize::from(octets[18]) << 8 | usize::from(octets[19]);
    let has_word = octets[17] == 2 && octets[16] & 0x10 != 0;
    if length > 512 || has_word && length < 4 {
        return Err(());
    }
    Ok((octets.len() >= 20 + length).then_some(20 + length))
}

/// A parsed and re-encoded frame has the same meaning.
fn check_again(frame: &Frame) {
    let emitted = frame.emit();
    let again = Frame::parse(frame.kind, &emitted);
    assert_eq!(again, Ok(Some((frame.clone(), emitted.len()))));
}

fn check_frame(kind: FrameKind, octets: &[u8]) {
    let parsed = Frame::parse(kind, octets);
    assert_eq!(
        parsed.as_ref().map(|it| it.as_ref().map(|it| it.1)).map_err(|_| ()),
        read(kind, octets)
    );
    // The result for a prefix is final.
    let last = octets.len().min(540);
    for prefix in (0..last).map(|end| &octets[..end]) {
        match Frame::parse(kind, prefix) {
            Ok(None) => {}
            Ok(Some(found)) => assert_eq!(parsed, Ok(Some(found))),
            Err(_) => assert!(parsed.is_err()),
        }
    }
    if let Ok(Some((frame, _))) = parsed {
        check_again(&frame);
    }
}

/// Checks one input.
///
/// # Panics
/// If two parsers differ, or a Reply of this side is rejected.
pub fn check(data: &[u8]) {
    let [form, octets @ ..] = data else { return };
    check_frame(FrameKind::Request, octets);
    check_frame(FrameKind::Reply, octets);
    let limits = ReadLimits { ird: u16::from(form >> 3), ord: u16::from(form >> 2 & 7) };
    let initiator = Initiator::new(StartupConfig {
        revision: if form & 0x80 == 0 { Revision::Two } else { Revision::One },
        crc: form & 0x40 != 0,
        limits,
        rtr: rtr(*form),
        ..StartupConfig::default()
    });
    if let Ok(Some((reply, taken))) = initiator.receive(octets) {
        assert!(taken <= octets.len() && reply.negotiated.limits.ird >= limits.ird);
    }
    let config =
        ResponderConfig { crc: form & 0x40 != 0, rtr: rtr(*form), ..ResponderConfig::default() };
    let Ok(Some(offer)) = Responder::new(config).receive(octets) else { return };
    let peer = offer.peer().copied();
    let rejection = offer.clone().reject(limits, PrivateData::default());
    let (reply, negotiated) = offer.accept(limits, PrivateData::default());
    for octets in [&rejection, &reply] {
        let (frame, taken) = Frame::parse(FrameKind::Reply, octets)
            .expect("a valid Reply")
            .expect("a complete Reply");
        assert_eq!(taken, octets.len());
        assert_eq!(frame.enhanced.is_some(), peer.is_some(), "MPE-10-1");
        assert_eq!(frame.reject, *octets == rejection);
        check_again(&frame);
    }
    if let Some(ird) = peer.and_then(|peer| peer.ird.reads()) {
        assert!(negotiated.limits.ord <= ird, "MPE-9.1-2");
    }
}
