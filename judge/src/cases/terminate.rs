//! Terminates to the peer (RFC 5040 §4.8, §5.4).

use crate::{
    case::{Cases, Start, put_all},
    consumer::Consumer::{Flue, Rping},
    expect::Expect,
    link::Link,
    wire::{Header, TERMINATE, terminate, terminate_with},
};

/// Bit of the reason that the consumer reports: the peer has sent the Terminate.
const OF_PEER: u32 = 0x30000;
/// Reason for a Terminate that is too short for an error number.
const UNNUMBERED: u32 = 0x90000;

/// A Terminate, which only a FIN follows.
fn ended(
    cases: &mut Cases,
    name: &str,
    rules: &'static str,
    reason: u32,
    make: impl Fn(&mut Link) -> Vec<u8> + Send + Sync + 'static,
) {
    let case = cases.add(format!("rdmap-terminate-{name}"), rules, Rping).post(make);
    case.expect(Expect::Fin(Some(reason)));
}

/// Headers that a Terminate returns: those of a Write.
fn copies(link: &Link) -> Vec<u8> {
    [b"\0\x12", &link.write(0, 0, b"data")[..14]].concat()
}

pub(super) fn add(cases: &mut Cases) {
    let rules = "RDM-5.4-2 RDM-5.4-4";
    ended(cases, "access", rules, OF_PEER | 0x1100, |_| terminate((1, 1, 0), 0, b""));
    if let Some(case) = cases.0.last_mut() {
        case.receives("CANCELLED", None);
    }
    let rules = "RDM-5.4-2 RDM-5.4-4 RDM-4.8-3 RDM-4.8-4";
    ended(cases, "with-headers", rules, OF_PEER | 0x1101, |link| {
        terminate((1, 1, 1), 0xC0, &copies(link))
    });
    ended(cases, "reserved-bits", "RDM-4.8-2", OF_PEER | 0x1202, |_| {
        terminate((1, 2, 2), 0x18, b"")
    });
    ended(cases, "unknown-number", "RDM-4.8-1", OF_PEER | 0xFFFF, |_| {
        terminate((15, 15, 255), 0, b"")
    });
    for octets in 0..4 {
        let name = format!("of-{octets}-octets");
        ended(cases, &name, "RDM-4.8-1", UNNUMBERED, move |_| {
            terminate((1, 1, 0), 0, b"")[..18 + octets].to_vec()
        });
    }
    for octets in [1, 2, 15, 16] {
        let name = format!("headers-cut-at-{octets}");
        ended(cases, &name, "RDM-4.8-3 RDM-4.8-4", OF_PEER | 0x1100, move |link| {
            terminate((1, 1, 0), 0xC0, &copies(link)[..octets])
        });
    }
    let header = Header::untagged(TERMINATE, 2, 1);
    ended(cases, "not-last", "RDM-5.4-1", OF_PEER | 0x1100, move |_| {
        terminate_with(Header { is_last: false, ..header }, (1, 1, 0), 0, b"")
    });
    ended(cases, "of-60000-octets", "RDM-4.8-1", OF_PEER | 0x1100, |_| {
        terminate((1, 1, 0), 0xff, &[0xff; 60_000])
    });
    for queue in [0, 1, 3] {
        let name = format!("rdmap-terminate-queue-{queue}");
        let case = cases.add(name, "RDM-5.4-1 RDM-4.1-3", Rping);
        case.post(move |_| terminate_with(Header { qn: queue, ..header }, (1, 1, 0), 0, b""));
        case.terminates(1, 2, 1);
    }
    let case = cases.add("rdmap-data-behind-terminate", "RDM-5.4-3 RDM-7-1", Flue);
    case.step(|link| {
        let ended = terminate((1, 1, 0), 0, b"");
        let (write, send) = (link.write(0, 0, &[0; 64]), link.send(b"E"));
        put_all(link, [&ended, &write, &send]);
        Ok(())
    });
    case.expect(Expect::Fin(Some(OF_PEER | 0x1100))).receives("CANCELLED", None);
    let case = cases.add("rdmap-terminate-as-first-fpdu", "RDM-5.4-2 MPA-7.1.2-10", Rping);
    case.start(Start::Reply).post(|_| terminate((2, 0, 6), 0, b""));
    case.expect(Expect::Fin(Some(0x2006))).opened("CONNECTION_ABORTED");
    let case = cases.add("rdmap-terminate-crosses-read", "RDM-5.4-2 RDM-6.2.1-2", Rping);
    case.step(Link::ask_read).post(|_| terminate((0, 1, 0), 0, b""));
    case.expect(Expect::Fin(Some(OF_PEER | 0x0100)));
}
