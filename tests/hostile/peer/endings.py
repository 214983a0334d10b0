"""End of connections: FIN, RST and silence in each state."""

from expect import Case, Fin, Gone, Terminate
from link import Wrong
from operations import asked_to_read, respond
from placement import ask, post
from wire import fpdu
import wire

LOST = Gone(0x42001)


def reset(link):
    link.reset()


def put(make):
    return lambda link: link.put(make(link))


def ends(id, rules, *steps, expect=LOST, **fields):
    Case(f"end-{id}", rules, list(steps), expect, **fields)


RULES = "MPA-8-1 DDP-6.2.2-1 RDM-7.1-1"
ends("reset-idle", RULES, ask(b"E"), reset, receives=["SUCCESS", "CANCELLED"])
ends("reset-within-fpdu", RULES, ask(b"E"), put(lambda link: fpdu(link.send(b"Eabc"))[:10]), reset)
ends("reset-within-message", RULES, ask(b"E"), post(lambda link: link.send(b"Eabc", last=0)), reset)
ends("reset-with-read-of-ours", RULES + " RDM-6.2.1-2 DDP-6.2.2-2", asked_to_read(), reset)
ends("reset-within-response", RULES + " RDM-6.2.1-2", asked_to_read(), post(respond(b"r" * 10, last=0)), reset)
ends("reset-with-read-of-peer", RULES, ask(b"E"), post(lambda link: link.read(1, size=4096)), reset)


def terminated_then_reset(link):
    link.post(link.write(stag=7))
    if link.segment().op != wire.TERMINATE:
        raise Wrong("no Terminate")
    link.reset()


ends("reset-behind-terminate", RULES, ask(b"E"), terminated_then_reset, expect=Gone(0x1100))
# FIN: the server replies to commands before it, then closes too.
ORDERLY = "DDP-6.2.1-3 MPA-7.2-1 DDP-3-9"
ends("fin-idle", ORDERLY, lambda link: link.fin(), expect=Fin(0))


def echo_then_fin(link):
    link.put(fpdu(link.send(b"E" + bytes(1000))))
    link.message()
    link.fin()


ends("fin-behind-echo", ORDERLY, echo_then_fin, expect=Fin(0))


def fin_behind_read(link):
    link.post(link.read(1, size=4096))
    octets = 0
    while octets < 4096:
        octets += len(link.segment().data)
    link.fin()


ends("fin-behind-read", ORDERLY, fin_behind_read, expect=Fin(0))
ends("fin-with-read-of-ours", ORDERLY + " RDM-6.2.1-2", asked_to_read(), lambda link: link.fin(), expect=Fin(0))
ends("disconnect-of-ours", "DDP-6.2.1-1", put(lambda link: fpdu(link.send(b"X"))), expect=Fin(0))


def silent_behind_terminate(link):
    """The peer neither reads nor closes: the server aborts after its time limit."""
    link.post(link.write(stag=7))
    Terminate(1, 1, 0).check(link)
    link.await_reset()


ends("silence-behind-terminate", "RDM-6.2.1-3 RDM-7-1 DDP-6.2-1 DDP-6.2.2-3", silent_behind_terminate,
     expect=Gone(0x1100), slow=True)


def silent_behind_own_terminate(link):
    """The peer sends a Terminate and does not close."""
    link.post(wire.terminate(1, 1, 0))
    Fin().check(link)
    link.await_reset()


ends("silence-behind-terminate-of-peer", "RDM-6.2.1-3 RDM-7-1", silent_behind_own_terminate, expect=Gone(0x31100),
     slow=True)


def talks_on(link):
    """The server ignores octets that arrive after its Terminate."""
    link.post(link.write(stag=7))
    Terminate(1, 1, 0).check(link)
    link.put(fpdu(link.write(data=b"\0" * 64)))
    link.put(fpdu(link.send(b"E")))


ends("data-behind-terminate-of-ours", "DDP-7.1-4 RDM-7-1 DDP-3-8", talks_on, expect=Gone(0x1100))


def terminates_cross(link):
    """The peer's Terminate crosses the server's: neither side replies."""
    link.put(fpdu(link.write(stag=7)) + fpdu(wire.terminate(1, 1, 0)))
    link.offender = link.write(stag=7)


Case("end-terminates-cross", "RDM-5.4-3 RDM-7.1-5", [terminates_cross], Terminate(1, 1, 0))
