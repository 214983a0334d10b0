//! Start-up frames octet by octet, and the parameters negotiated by two sides.

use alloc::{string::ToString, vec, vec::Vec};

use proptest::{collection::vec as vec_of, prelude::*};

use super::*;
use crate::mpa::Slab;

fn frame(kind: FrameKind, behind_the_key: &[u8]) -> Vec<u8> {
    [kind.key(), behind_the_key].concat()
}

fn parsed(kind: FrameKind, behind_the_key: &[u8]) -> Frame {
    let octets = frame(kind, behind_the_key);
    let (parsed, taken) = Frame::parse(kind, &octets).unwrap().unwrap();
    assert_eq!(taken, octets.len());
    parsed
}

fn enhanced(ird: u16, ord: u16, rtr: RtrSet) -> Enhanced {
    Enhanced {
        ird: ReadDepth::new(ird),
        ord: ReadDepth::new(ord),
        peer_to_peer: rtr != RtrSet::NONE,
        rtr,
    }
}

const WRITE_OR_READ: RtrSet = RtrSet { send: false, write: true, read: true };

fn limits(ird: u16, ord: u16) -> ReadLimits {
    ReadLimits { ird, ord }
}

fn initiator(change: impl FnOnce(&mut StartupConfig)) -> Initiator {
    let mut config = StartupConfig::default();
    change(&mut config);
    Initiator::new(config)
}

fn reply(enhanced: Enhanced) -> Frame {
    Frame {
        kind: FrameKind::Reply,
        markers: false,
        crc: true,
        reject: false,
        revision: Revision::Two,
        enhanced: Some(enhanced),
        private_data: PrivateData::default(),
    }
}

// R1..R7; MPA-7.1.1-1, MPA-7.1.1-10, MPE-6-3, MPE-9-1.
#[test]
fn known_frames() {
    use FrameKind::{Reply, Request};
    let base = Frame {
        kind: Request,
        markers: false,
        crc: true,
        reject: false,
        revision: Revision::One,
        enhanced: None,
        private_data: PrivateData::default(),
    };
    for (octets, expected) in [
        (&[0x40, 1, 0, 0][..], base.clone()), // R1
        (
            &[0x10, 2, 0, 4, 0, 1, 0, 1], // R2
            Frame {
                crc: false,
                revision: Revision::Two,
                enhanced: Some(enhanced(1, 1, RtrSet::NONE)),
                ..base.clone()
            },
        ),
        (
            &[0x50, 2, 0, 4, 0x80, 0x10, 0xc0, 0x10], // R3
            Frame {
                revision: Revision::Two,
                enhanced: Some(enhanced(16, 16, WRITE_OR_READ)),
                ..base.clone()
            },
        ),
        (
            &[0x50, 2, 0, 4, 0x80, 0x10, 0x80, 0x08], // R4
            Frame {
                kind: Reply,
                revision: Revision::Two,
                enhanced: Some(enhanced(16, 8, RtrSet::only(RtrKind::Write))),
                ..base.clone()
            },
        ),
        (
            &[0x60, 1, 0, 2, b'n', b'o'], // R5
            Frame {
                kind: Reply,
                reject: true,
                private_data: PrivateData::new(&b"no"[..]).unwrap(),
                ..base.clone()
            },
        ),
        (&[0xc0, 1, 0, 0], Frame { markers: true, ..base.clone() }), // R6
        (
            &[0x70, 2, 0, 4, 0, 0, 0, 0], // R7
            Frame {
                kind: Reply,
                reject: true,
                revision: Revision::Two,
                enhanced: Some(enhanced(0, 0, RtrSet::NONE)),
                ..base
            },
        ),
    ] {
        assert_eq!(parsed(expected.kind, octets), expected);
        assert_eq!(expected.emit(), frame(expected.kind, octets));
    }
    // The default Request is R3.
    let request = initiator(|_| {}).request();
    assert_eq!(request, frame(Request, &[0x50, 2, 0, 4, 0x80, 0x10, 0xc0, 0x10]));
}

// MPA-7.1.1-2, MPA-7.1.2-11, MPA-7.1.2-13: a wrong key is detected at its first wrong octet.
#[test]
fn wrong_keys() {
    for at in 0..KEY_OCTETS {
        let mut octets = FrameKind::Reply.key()[..=at].to_vec();
        assert_eq!(Frame::parse(FrameKind::Reply, &octets), Ok(None));
        octets[at] ^= 0x20;
        let expected = Err(FrameError::Key { at });
        assert_eq!(Frame::parse(FrameKind::Reply, &octets), expected);
    }
    let theirs = initiator(|_| {}).request();
    let error = initiator(|_| {}).receive(&theirs).unwrap_err();
    assert_eq!(error, StartupError::Frame(FrameError::Key { at: 9 }));
    assert_eq!(error.action(), FailureAction::Close);
    assert_eq!(error.wire(), Some(WireError::MpaStartup));
}

// MPA-7.1.1-9..11, MPA-7.1.2-3, MPA-7.1.2-7, MPA-7.1.2-14, MPE-6-2.
#[test]
fn field_bounds_are_checked() {
    let parse =
        |octets: &[u8]| Frame::parse(FrameKind::Request, &frame(FrameKind::Request, octets));
    for revision in [3, 255] {
        assert_eq!(parse(&[0, revision]), Err(FrameError::Revision(revision)));
    }
    assert_eq!(parse(&[0, 1, 2, 1]), Err(FrameError::PrivateDataLength(513)));
    assert_eq!(parse(&[0, 2, 0xff, 0xff]), Err(FrameError::PrivateDataLength(0xffff)));
    for length in 0..4 {
        assert_eq!(parse(&[0x10, 2, 0, length]), Err(FrameError::EnhancedLength(length.into())));
    }
    for length in [257usize, 512] {
        let mut octets = vec![0x40, 1, (length >> 8) as u8, length as u8];
        octets.resize(4 + length - 1, 7);
        assert_eq!(parse(&octets), Ok(None));
        octets.push(7);
        let (frame, taken) = parse(&octets).unwrap().unwrap();
        assert_eq!((frame.private_data.as_bytes().len(), taken), (length, 20 + length));
    }
    assert_eq!(PrivateData::new(vec![0; 513]), Err(PrivateDataTooLong { octets: 513 }));
    assert!(PrivateData::new(vec![0; 512]).is_ok());
}

// MPA-7.1.1-9, MPE-10-1: revision 0 is accepted as a plain frame of revision 1, and echoed.
#[test]
fn revision_0_is_tolerated() {
    let request =
        Initiator::new(StartupConfig { revision: Revision::Zero, ..StartupConfig::default() });
    let octets = request.request();
    assert_eq!(octets[17], 0);
    let responder = Responder::new(ResponderConfig::default());
    let offer = responder.receive(&octets).unwrap().expect("a whole Request");
    assert!(offer.peer().is_none());
    let (reply, negotiated) = offer.accept(ReadLimits::default(), PrivateData::default());
    assert_eq!((reply[17], negotiated.revision), (0, Revision::Zero));
    let plain =
        Initiator::new(StartupConfig { revision: Revision::One, ..StartupConfig::default() });
    let (reply, _) = plain.receive(&reply).unwrap().expect("a whole Reply");
    assert_eq!(reply.negotiated.revision, Revision::Zero);
}

// MPA-7.1.1-7, MPA-7.1.1-8: R and reserved bits of a Request are not checked; with revision 1 S is
// reserved.
#[test]
fn unused_bits_are_not_checked() {
    let responder = Responder::new(ResponderConfig::default());
    let octets = frame(FrameKind::Request, &[0x7f, 1, 0, 2, 1, 2]);
    let offer = responder.receive(&octets).unwrap().unwrap();
    assert_eq!((offer.peer(), &offer.private_data()[..]), (None, &[1, 2][..]));
    let (reply, negotiated) = offer.accept(limits(4, 4), PrivateData::default());
    assert_eq!(reply, frame(FrameKind::Reply, &[0x40, 1, 0, 0]));
    assert!(!negotiated.enhanced);
}

// MPA-7.1.2-2, and a Request followed by an FPDU.
#[test]
fn octets_after_request_are_rejected() {
    let responder = Responder::new(ResponderConfig::default());
    let mut octets = initiator(|_| {}).request().to_vec();
    for end in 0..octets.len() {
        assert!(responder.receive(&octets[..end]).unwrap().is_none());
    }
    assert!(responder.receive(&octets).unwrap().is_some());
    octets.push(0);
    let error = responder.receive(&octets).unwrap_err();
    assert_eq!(error, StartupError::EarlyData { octets: 1 });
    assert_eq!(error.action(), FailureAction::Close);
}

// Linux siw sends FPDUs directly after its Reply: the initiator returns the end of the Reply.
#[test]
fn initiator_returns_end_of_reply() {
    let initiator = initiator(|_| {});
    let reply = reply(enhanced(16, 8, RtrSet::only(RtrKind::Write))).emit();
    let (_, taken) = initiator.receive(&[&reply, &b"fpdu"[..]].concat()).unwrap().unwrap();
    assert_eq!(taken, reply.len());
    assert!(initiator.receive(&reply[..taken - 1]).unwrap().is_none());
}

// MPA-4.4-3, MPA-4.4-6, MPA-7.1.1-3..6: one side is sufficient for CRC; markers are per direction.
#[test]
fn crc_and_markers() {
    for bits in 0..16 {
        let [crc_i, crc_r, markers_i, markers_r] = [1, 2, 4, 8].map(|bit| bits & bit != 0);
        let initiator = initiator(|config| {
            config.crc = crc_i;
            config.markers = markers_i;
        });
        let responder = Responder::new(ResponderConfig {
            crc: crc_r,
            markers: markers_r,
            ..ResponderConfig::default()
        });
        let offer = responder.receive(&initiator.request()).unwrap().unwrap();
        let (octets, theirs) = offer.accept(limits(16, 16), PrivateData::default());
        let ours = initiator.receive(&octets).unwrap().unwrap().0.negotiated;
        let framing =
            Framing { crc: crc_i || crc_r, send_markers: markers_r, receive_markers: markers_i };
        assert_eq!(ours.framing, framing);
        let framing = Framing { send_markers: markers_i, receive_markers: markers_r, ..framing };
        assert_eq!(theirs.framing, framing);
        assert_eq!((ours.role, theirs.role), (Role::Initiator, Role::Responder));
        // Each side decodes the other's stream, over several markers.
        for (from, to) in [(ours.framing, theirs.framing), (theirs.framing, ours.framing)] {
            let (mut encoder, mut decoder) = (from.encoder(), to.decoder());
            for _ in 0..3 {
                let mut fpdu: Vec<Bytes> = Vec::new();
                encoder.encode(&[5; 600], &[], &mut Slab::new(), &mut fpdu);
                let octets = fpdu.concat();
                assert_eq!(decoder.next(&mut &octets[..]), Ok(Some(&[5; 600][..])));
            }
            let markers = if from.send_markers { 4 } else { 0 };
            assert_eq!(decoder.counters().markers, markers);
        }
    }
}

// R4 answers R3; MPE-9.1-1, MPE-9.1-2, MPE-9.2-3, MPE-9.2-4, MPE-9.2-10.
#[test]
fn responder_accepts() {
    let responder = Responder::new(ResponderConfig::default());
    let accept = |request: &[u8], own| {
        let request = parsed(FrameKind::Request, request);
        let offer = responder.handle_request(&request);
        let (octets, negotiated) = offer.accept(own, PrivateData::default());
        let reply = Frame::parse(FrameKind::Reply, &octets).unwrap().unwrap().0;
        (octets[16..].to_vec(), reply.enhanced, negotiated)
    };
    let (octets, _, negotiated) = accept(&[0x50, 2, 0, 4, 0x80, 0x10, 0xc0, 0x10], limits(16, 8));
    assert_eq!(octets, [0x50, 2, 0, 4, 0x80, 0x10, 0x80, 0x08]);
    assert_eq!((negotiated.limits, negotiated.rtr), (limits(16, 8), Some(RtrKind::Write)));

    // ORD is reduced to the initiator's IRD; IRD is this side's own.
    let (_, answer, negotiated) = accept(&[0x50, 2, 0, 4, 0, 4, 0, 64], limits(16, 8));
    assert_eq!(answer, Some(enhanced(16, 4, RtrSet::NONE)));
    assert_eq!((negotiated.limits, negotiated.rtr), (limits(16, 4), None));

    // A=0: B, C and D are not significant.
    let (_, answer, negotiated) = accept(&[0x50, 2, 0, 4, 0x40, 4, 0xc0, 4], limits(4, 4));
    assert_eq!(answer, Some(enhanced(4, 4, RtrSet::NONE)));
    assert_eq!(negotiated.rtr, None);

    // Revision 2 without enhanced data is answered in the same form (MPE-10-1).
    let (octets, _, negotiated) = accept(&[0x40, 2, 0, 0], limits(4, 4));
    assert_eq!(octets, [0x40, 2, 0, 0]);
    assert_eq!((negotiated.enhanced, negotiated.revision), (false, Revision::Two));
}

// MPE-9.1-3, MPE-9.2-5: only D raises IRD to 1; only B is answered with one of this side's own kinds.
#[test]
fn responder_chooses_the_rtr() {
    for (own, offered, chosen) in [
        (WRITE_OR_READ, WRITE_OR_READ, RtrKind::Write),
        (WRITE_OR_READ, RtrSet::only(RtrKind::Read), RtrKind::Read),
        (WRITE_OR_READ, RtrSet::only(RtrKind::Send), RtrKind::Write),
        (RtrSet::only(RtrKind::Send), WRITE_OR_READ, RtrKind::Send),
        (RtrSet::NONE, RtrSet::only(RtrKind::Read), RtrKind::Write),
    ] {
        let responder = Responder::new(ResponderConfig { rtr: own, ..ResponderConfig::default() });
        let request = Frame { kind: FrameKind::Request, ..reply(enhanced(0, 0, offered)) };
        let offer = responder.handle_request(&request);
        let (octets, negotiated) = offer.accept(limits(0, 9), PrivateData::default());
        assert_eq!(negotiated.rtr, Some(chosen));
        let ird = u16::from(chosen == RtrKind::Read);
        assert_eq!(negotiated.limits, limits(ird, 0));
        let reply = Frame::parse(FrameKind::Reply, &octets).unwrap().unwrap().0;
        assert_eq!(reply.enhanced, Some(enhanced(ird, 0, RtrSet::only(chosen))));
    }
}

// MPE-9.1-8..10.
#[test]
fn depths_left_unspecified() {
    let responder = Responder::new(ResponderConfig::default());
    let request = parsed(FrameKind::Request, &[0x50, 2, 0, 4, 0x3f, 0xff, 0x3f, 0xff]);
    let (octets, negotiated) =
        responder.handle_request(&request).accept(limits(7, 9), PrivateData::default());
    assert_eq!(octets[16..], [0x50, 2, 0, 4, 0x3f, 0xff, 0x3f, 0xff]);
    assert_eq!(negotiated.limits, limits(7, 9));

    let initiator = initiator(|config| config.rtr = RtrSet::NONE);
    let reply = initiator.receive(&octets).unwrap().unwrap().0;
    assert_eq!(reply.negotiated.limits, limits(16, 16));
    assert_eq!(reply.peer.unwrap().ird.reads(), None);
}

// MPE-9.1-5..7, MPE-9.2-7, MPE-9.2-8.
#[test]
fn reply_is_checked_against_request() {
    let judge = |offered: RtrSet, answer: Enhanced| {
        initiator(|config| config.rtr = offered).handle_reply(&reply(answer))
    };
    let agreed = judge(WRITE_OR_READ, enhanced(8, 16, WRITE_OR_READ)).unwrap();
    assert_eq!(agreed.negotiated.limits, limits(16, 8));
    assert_eq!(agreed.negotiated.rtr, Some(RtrKind::Write));
    assert_eq!(agreed.peer, Some(enhanced(8, 16, WRITE_OR_READ)));
    // A larger IRD than requested is not used.
    assert_eq!(
        judge(WRITE_OR_READ, enhanced(128, 0, WRITE_OR_READ)).unwrap().negotiated.limits,
        limits(16, 16)
    );

    let framing = Framing { crc: true, send_markers: false, receive_markers: false };
    let error = judge(WRITE_OR_READ, enhanced(8, 17, WRITE_OR_READ)).unwrap_err();
    assert_eq!(error, StartupError::InsufficientIrd { wanted: 17, have: 16, framing });
    assert_eq!(error.action(), FailureAction::Terminate(WireError::MpaInsufficientIrd, framing));

    // Kinds that were not offered, a Read with IRD 0 at the responder, and A=0.
    let write = RtrSet::only(RtrKind::Write);
    let read = RtrSet::only(RtrKind::Read);
    let client_server = Enhanced { peer_to_peer: false, ..enhanced(8, 8, WRITE_OR_READ) };
    let no_match = |ours, theirs| StartupError::NoMatchingRtr { ours, theirs, framing };
    for (offered, answer, expected) in [
        (write, enhanced(8, 8, read), no_match(write, read)),
        (WRITE_OR_READ, enhanced(0, 8, read), StartupError::ReadRtrWithoutIrd { framing }),
        (WRITE_OR_READ, client_server, no_match(WRITE_OR_READ, RtrSet::NONE)),
    ] {
        let error = judge(offered, answer).unwrap_err();
        assert_eq!(error, expected);
        assert_eq!(error.action(), FailureAction::Terminate(WireError::MpaNoMatchingRtr, framing));
    }
    assert_eq!(judge(read, enhanced(1, 1, read)).unwrap().negotiated.rtr, Some(RtrKind::Read));
    // Client-server: the responder's flags are not significant.
    assert_eq!(judge(RtrSet::NONE, enhanced(1, 1, read)).unwrap().negotiated.rtr, None);
}

#[test]
fn errors_name_the_received_and_the_expected_value() {
    let framing = Framing { crc: true, send_markers: false, receive_markers: false };
    let (write, send) = (RtrSet::only(RtrKind::Write), RtrSet::only(RtrKind::Send));
    let form = |revision, enhanced, requested| StartupError::Form { revision, enhanced, requested };
    for (error, text) in [
        (
            form(Revision::One, false, Revision::Two),
            "revision 1 without enhanced data, expected revision 2 with enhanced data: \
             connect with revision 1",
        ),
        (
            form(Revision::Two, true, Revision::One),
            "revision 2 with enhanced data, expected revision 1 without enhanced data",
        ),
        (
            StartupError::InsufficientIrd { wanted: 17, have: 16, framing },
            "the peer's ORD 17 exceeds this side's IRD 16: reduce the ORD or increase the IRD",
        ),
        (
            StartupError::NoMatchingRtr { ours: WRITE_OR_READ, theirs: send, framing },
            "no common ready-to-receive message: the peer's Reply has Send, \
             expected one of Write, Read: allow the same one on both sides",
        ),
        (
            StartupError::NoMatchingRtr { ours: write, theirs: RtrSet::NONE, framing },
            "no common ready-to-receive message: the peer's Reply has none, \
             expected one of Write: allow the same one on both sides",
        ),
        (
            StartupError::ReadRtrWithoutIrd { framing },
            "ready-to-receive message Read: the peer's IRD is 0, expected at least 1: \
             increase it or allow another message on both sides",
        ),
        (
            FrameError::PrivateDataLength(513).into(),
            "not an MPA frame: private data of 513 octets: expected at most 512",
        ),
    ] {
        assert_eq!(error.to_string(), text);
    }
}

// MPE-10-1, MPE-10-3, MPE-6-1, MPE-10-2: the Reply has the form of the Request, enhanced or plain.
#[test]
fn reply_has_form_of_request() {
    let plain = initiator(|config| config.revision = Revision::One);
    assert_eq!(plain.request(), frame(FrameKind::Request, &[0x40, 1, 0, 0]));
    let agreed = plain.handle_reply(&parsed(FrameKind::Reply, &[0x40, 1, 0, 0])).unwrap();
    assert_eq!((agreed.negotiated.limits, agreed.peer), (limits(16, 16), None));
    assert_eq!(agreed.negotiated.rtr, None);

    let form = |initiator: &Initiator, octets: &[u8]| match initiator
        .handle_reply(&parsed(FrameKind::Reply, octets))
    {
        Err(error @ StartupError::Form { .. }) => error.action(),
        other => panic!("{other:?}"),
    };
    assert_eq!(form(&plain, &[0x50, 2, 0, 4, 0, 1, 0, 1]), FailureAction::Close);
    let enhanced = initiator(|_| {});
    assert_eq!(form(&enhanced, &[0x40, 1, 0, 0]), FailureAction::Close);
    assert_eq!(form(&enhanced, &[0x40, 2, 0, 0]), FailureAction::Close);
}

// MPA-7.1.2-4, MPA-7.1.2-8, MPE-9.1-4, and R7, siw's Reply to M=1.
#[test]
fn rejection() {
    let initiator = initiator(|_| {});
    let offer =
        Responder::new(ResponderConfig::default()).receive(&initiator.request()).unwrap().unwrap();
    let octets = offer.reject(limits(2, 32), PrivateData::new(&b"no"[..]).unwrap());
    assert_eq!(octets[16..], [0x70, 2, 0, 6, 0x80, 2, 0x80, 32, b'n', b'o']);
    let error = initiator.receive(&octets).unwrap_err();
    assert_eq!((error.action(), error.wire()), (FailureAction::LeaveMpa, None));
    let StartupError::Rejected { private_data, enhanced: Some(theirs) } = error else {
        panic!("not rejected")
    };
    assert_eq!(private_data, &b"no"[..]);
    assert_eq!(theirs.ord.reads(), Some(32));

    let r7 = parsed(FrameKind::Reply, &[0x70, 2, 0, 4, 0, 0, 0, 0]);
    assert!(matches!(initiator.handle_reply(&r7), Err(StartupError::Rejected { .. })));
    let r5 = parsed(FrameKind::Reply, &[0x60, 1, 0, 2, b'n', b'o']);
    assert!(matches!(initiator.handle_reply(&r5), Err(StartupError::Rejected { .. })));
}

fn rtr_set() -> impl Strategy<Value = RtrSet> {
    any::<[bool; 3]>().prop_map(|[send, write, read]| RtrSet { send, write, read })
}

proptest! {
    // A peer's octets never panic, and a prefix of a frame is never parsed as the frame.
    #[test]
    fn arbitrary_octets_never_panic(
        octets in vec_of(any::<u8>(), 0..600),
        with_key in any::<bool>(),
    ) {
        let key: &[u8] = if with_key { FrameKind::Reply.key() } else { &[] };
        let octets = [key, &octets].concat();
        if let Ok(Some((frame, taken))) = Frame::parse(FrameKind::Reply, &octets) {
            prop_assert_eq!(Frame::parse(FrameKind::Reply, &octets[..taken - 1]), Ok(None));
            prop_assert!(taken <= FRAME_HEADER_OCTETS + PRIVATE_DATA_OCTETS_MAX);
            let again = frame.emit();
            prop_assert_eq!(Frame::parse(FrameKind::Reply, &again), Ok(Some((frame, taken))));
        }
        let _ = initiator(|_| {}).receive(&octets);
    }

    // For any configuration of the two sides: they agree on the same parameters, or the initiator detects that they do
    // not.
    #[test]
    fn two_sides_agree(
        ours in any::<(u16, u16)>(),
        theirs in any::<(u16, u16)>(),
        offered in rtr_set(),
        supported in rtr_set(),
        private_data in vec_of(any::<u8>(), 0..=508),
    ) {
        let private_data = PrivateData::new(private_data).unwrap();
        let initiator = initiator(|config| {
            config.limits = limits(ours.0, ours.1);
            config.rtr = offered;
            config.private_data = private_data.clone();
        });
        let config = ResponderConfig { rtr: supported, ..ResponderConfig::default() };
        let offer = Responder::new(config).receive(&initiator.request()).unwrap().unwrap();
        prop_assert_eq!(offer.private_data(), private_data.as_bytes());
        let (octets, responder) = offer.accept(limits(theirs.0, theirs.1), private_data.clone());
        match initiator.receive(&octets) {
            Ok(Some((reply, taken))) => {
                prop_assert_eq!(taken, octets.len());
                prop_assert_eq!(&reply.private_data, private_data.as_bytes());
                let initiator = reply.negotiated;
                prop_assert_eq!(initiator.rtr, responder.rtr);
                // MPA-3-9: both sides have the revision that was agreed on.
                prop_assert_eq!([initiator.revision, responder.revision], [Revision::Two; 2]);
                prop_assert!(initiator.limits.ord <= responder.limits.ird);
                prop_assert!(responder.limits.ord <= initiator.limits.ird);
                prop_assert_eq!(initiator.rtr.is_some(), offered != RtrSet::NONE);
            }
            Err(StartupError::NoMatchingRtr { .. }) => {
                prop_assert!(offered.and(supported) == RtrSet::NONE);
            }
            other => prop_assert!(false, "{:?}", other),
        }
    }
}
