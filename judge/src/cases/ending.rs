//! End of connections: FIN, RST and silence in each state (RFC 5041 §6.2, RFC 5040 §6.2.1).

use crate::{
    case::{Case, Cases, put_all},
    consumer::{
        Consumer::{Flue, Rping},
        PAGE,
    },
    expect::Expect,
    finding::{Step, ensure},
    link::Link,
    wire::{Header, READ_RESPONSE, TERMINATE, fpdu, terminate},
};

const RESET: &str = "MPA-8-1 DDP-6.2.2-1 RDM-7.1-1";
const ORDERLY: &str = "DDP-6.2.1-3 MPA-7.2-1 DDP-3-9";
/// Reason that the consumer reports for a lost connection.
const LOST: u32 = 0x42001;

/// A case that the judge ends by a reset: only the consumer can report what the peer detects.
fn reset<'a>(cases: &'a mut Cases, name: &str, rules: &'static str) -> &'a mut Case {
    cases.add(format!("end-reset-{name}"), rules, Flue).expect(Expect::Gone(Some(LOST)))
}

/// A part of the Read Response.
fn partial(link: &mut Link) -> Vec<u8> {
    let (stag, to) = link.sink;
    Header { is_last: false, ..Header::tagged(READ_RESPONSE, stag, to) }.with(&[b'r'; 10])
}

fn refused_write(link: &mut Link) -> Step {
    let write = link.write_with(0, 0, b"data", |header| header.stag = 7);
    link.post(write);
    Ok(())
}

fn resets(cases: &mut Cases) {
    let case = reset(cases, "idle", RESET).ask(b"E").reset();
    case.receives("SUCCESS", None).receives("CANCELLED", None);
    let case = reset(cases, "within-fpdu", RESET).ask(b"E");
    case.put(|link| fpdu(&link.send(b"Eabc"))[..10].to_vec()).reset();
    let case = reset(cases, "within-message", RESET).ask(b"E");
    case.post(|link| link.send_with(b"Eabc", |header| header.is_last = false)).reset();
    let rules = "MPA-8-1 DDP-6.2.2-1 RDM-7.1-1 RDM-6.2.1-2 DDP-6.2.2-2";
    reset(cases, "with-read-of-ours", rules).step(Link::ask_read).reset();
    let rules = "MPA-8-1 DDP-6.2.2-1 RDM-7.1-1 RDM-6.2.1-2";
    reset(cases, "within-response", rules).step(Link::ask_read).post(partial).reset();
    let case = reset(cases, "with-read-of-peer", RESET).ask(b"E");
    case.post(|link| link.read(1, 0, PAGE as u32)).reset();
    let case = reset(cases, "behind-terminate", RESET).step(refused_write);
    case.step(|link| {
        let segment = link.segment()?;
        let is_terminate = segment.header.op == TERMINATE;
        ensure(is_terminate, || format!("{segment}: expected a Terminate"))
    });
    case.reset().expect(Expect::Gone(Some(0x1100)));
}

/// The peer replies before a FIN, then closes too.
fn orderly(cases: &mut Cases) {
    let end = Expect::Fin(Some(0));
    cases.add("end-fin-idle", ORDERLY, Rping).fin().expect(end);
    let case = cases.add("end-fin-behind-echo", ORDERLY, Rping);
    case.step(|link| link.ping()).fin().expect(end);
    let case = cases.add("end-fin-behind-read", ORDERLY, Flue);
    case.post(|link| link.read(1, 0, PAGE as u32)).step(|link| {
        let mut octets = 0;
        while octets < PAGE {
            octets += link.segment()?.data.len();
        }
        Ok(())
    });
    case.fin().expect(end);
    let rules = "DDP-6.2.1-3 MPA-7.2-1 DDP-3-9 RDM-6.2.1-2";
    let case = cases.add("end-fin-with-read-of-ours", rules, Rping);
    case.step(Link::ask_read).fin().expect(end);
    let case = cases.add("end-disconnect-of-ours", "DDP-6.2.1-1", Flue);
    case.put(|link| fpdu(&link.send(b"X"))).expect(end);
}

pub(super) fn add(cases: &mut Cases) {
    resets(cases);
    orderly(cases);
    // The judge neither reads nor closes: the peer aborts after its time limit.
    let rules = "RDM-6.2.1-3 RDM-7-1 DDP-6.2-1 DDP-6.2.2-3";
    let case = cases.add("end-silence-behind-terminate", rules, Rping).slow();
    case.step(refused_write).step(|link| {
        Expect::terminate(1, 1, 0).check(link)?;
        link.await_reset()
    });
    case.expect(Expect::Gone(Some(0x1100)));
    let rules = "RDM-6.2.1-3 RDM-7-1";
    let case = cases.add("end-silence-behind-terminate-of-peer", rules, Rping).slow();
    case.post(|_| terminate((1, 1, 0), 0, b"")).step(|link| {
        Expect::Fin(None).check(link)?;
        link.await_reset()
    });
    case.expect(Expect::Gone(Some(0x31100)));

    let rules = "DDP-7.1-4 RDM-7-1 DDP-3-8";
    let case = cases.add("end-data-behind-terminate-of-ours", rules, Flue).step(refused_write);
    case.step(|link| Expect::terminate(1, 1, 0).check(link));
    case.put(|link| fpdu(&link.write(0, 0, &[0; 64]))).put(|link| fpdu(&link.send(b"E")));
    case.expect(Expect::Gone(Some(0x1100)));
    // The Terminates of judge and peer cross: neither side replies.
    let case = cases.add("end-terminates-cross", "RDM-5.4-3 RDM-7.1-5", Rping);
    case.step(|link| {
        let write = link.write_with(0, 0, b"data", |header| header.stag = 7);
        put_all(link, [&write, &terminate((1, 1, 0), 0, b"")]);
        link.offender = write;
        Ok(())
    });
    case.terminates(1, 1, 0);
}
