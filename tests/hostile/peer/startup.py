"""Start-up: RFC 5044 §7.1, RFC 6581."""

import struct
import time

from expect import Alive, Case, Closed, Fin, Gone, Reset, Terminate
from link import Link, Wrong
from wire import C, M, R, REPLY, REQUEST, RTR, S, enhanced, fpdu, frame, read_request, tagged
import wire


def put(octets):
    return lambda link: link.put(octets)


def fin(link):
    link.fin()


def piecewise(octets):
    def step(link):
        for at in range(len(octets)):
            link.put(octets[at:at + 1])
    return step


def no_request(id, rules, octets, expect=None):
    Case(f"startup-{id}", rules, [put(octets)], expect or Reset(), start="tcp")


# Not a Request: the connection is closed immediately, without a response.
KEY = "MPA-7.1.1-2 MPA-7.1.2-3 MPA-7.1.2-11 MPA-8-3"
no_request("first-octet-of-key", KEY, b"m")
no_request("last-octet-of-key", KEY, REQUEST[:15] + b"E")
no_request("reply-to-a-responder", KEY + " MPA-7.1.2-13", frame(REPLY, private=enhanced()))
no_request("http", KEY, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
no_request("tls", KEY, bytes.fromhex("16030100c8010000c40303") + bytes(64))
for revision in (3, 255):
    no_request(f"revision-{revision}", "MPA-7.1.1-9 MPA-7.1.2-3", frame(revision=revision, private=enhanced()))
for length in (513, 65535):
    # Complete length: the server does not wait for more.
    no_request(f"private-data-{length}", "MPA-7.1.1-10 MPA-7.1.2-14", frame(length=length) + bytes(length))
no_request("enhanced-word-cut", "MPE-6-3 MPA-7.1.1-10", frame(private=b"\0\4\0"))
no_request("fpdu-behind-request", "MPA-7.1.2-10", frame(private=enhanced()) + fpdu(RTR))
no_request("two-requests", "MPA-7.1.2-10", 2 * frame(private=enhanced()))

# Truncated by a FIN at any octet.
for octets in (0, 1, 15, 16, 17, 18, 19, 20, 23):
    request = frame(private=enhanced())[:octets]
    Case(f"startup-cut-{octets}", "MPA-7.1.2-3 MPA-8-1", [put(request), fin], Closed(), start="tcp")
# Truncated by silence: the time limit ends the connection.
for octets in (0, 20):
    request = frame(private=enhanced())[:octets]
    Case(f"startup-silence-{octets}", "MPA-7.1.2-15 MPA-7.1.2-13", [put(request)], Reset(), start="tcp",
         slow=True)


def silence_behind_reply(link):
    """The initiator sends no FPDU; the server's time limit ends the wait."""
    link.request()
    link.await_reply()


Case("startup-silence-behind-reply", "MPA-7.1.2-15", [silence_behind_reply], Reset(), start="tcp", opened="IO_TIMEOUT",
     slow=True)


def half_an_fpdu(link):
    """A part of the first FPDU does not complete the Accept."""
    octets = fpdu(RTR)
    link.put(octets[:10])
    for _ in range(5):
        link.witness.ping()
        if (opened := link.witness.report(link.number)["opened"]) is not None:
            raise Wrong(f"status of Accept {opened} before the first FPDU")
    link.put(octets[10:])


Case("startup-part-of-first-fpdu", "MPA-7.1.2-10", [half_an_fpdu], Alive(), start="reply", opened="SUCCESS")


# A Request without a response of the server's consumer, and octets after it.
def before_the_reply(link):
    before = link.witness.report(0)["holds"]
    link.request(private=b"H")
    deadline = time.monotonic() + 15
    while link.witness.report(0)["holds"] == before and time.monotonic() < deadline:
        pass
    link.put(fpdu(RTR))


Case("startup-fpdu-before-reply", "MPA-7.1.2-10", [before_the_reply], Reset(), start="tcp")


# Valid Requests, and the Replies to them.
def good(id, rules, request, flags, revision, word=None, private=None, rtr=RTR, after=None, markers=False):
    def step(link):
        for octets in request if isinstance(request, list) else [request]:
            link.put(octets)
        reply = link.await_reply()
        found = (reply["flags"], reply["revision"], reply["word"])
        if found != (flags, revision, word):
            raise Wrong(f"Reply {found}, expected {(flags, revision, word)}")
        if not link.is_quiet(0.02):
            raise Wrong("the responder sends before the first FPDU")
        link.stream.markers = markers
        if rtr is not None:
            link.put(fpdu(rtr))
        if after:
            after(link)
    Case(f"startup-{id}", rules, [step], Alive(), start="tcp")


def words(**fields):
    return struct.unpack(">HH", enhanced(**fields))


ORDINARY = words()
REQ = frame(private=enhanced())
good("octet-by-octet", "MPA-7.1.2-2 MPA-7.1.2-10 MPA-5.1-3", [REQ[at:at + 1] for at in range(len(REQ))],
     C | S, 2, ORDINARY)
good("reserved-bits", "MPA-7.1.1-8", frame(flags=C | S | 0x0F, private=enhanced()), C | S, 2, ORDINARY)
good("rejection-in-request", "MPA-7.1.1-7", frame(flags=C | S | R, private=enhanced()), C | S, 2, ORDINARY)
good("private-data-512", "MPA-7.1.1-11 MPE-6-3", frame(private=enhanced() + bytes(508)), C | S, 2, ORDINARY)
good("revision-0", "MPE-10-1 MPA-7.1.1-9", frame(flags=C, revision=0), C, 0)
good("revision-1", "MPE-6-2 MPE-10-1 MPA-7.1.1-9", frame(flags=C, revision=1), C, 1)
good("revision-1-with-s", "MPE-10-1 MPA-7.1.1-8", frame(flags=C | S, revision=1, private=b"\0\1\2\3"), C, 1)
good("revision-2-plain", "MPE-10-1", frame(flags=C), C, 2)
good("crc-not-wanted", "MPA-7.1.1-5 MPA-4.4-3 MPA-4.4-6", frame(flags=S, private=enhanced()), C | S, 2, ORDINARY)
good("client-server", "MPE-9.2-9 MPE-9.2-10", frame(private=enhanced(a=0, c=0)), C | S, 2, words(a=0, c=0))
good("client-server-with-rtr-bits", "MPE-9.2-10", frame(private=enhanced(a=0, b=1, c=1, d=1)),
     C | S, 2, words(a=0, c=0))
good("no-rtr-offered", "MPE-9.2-5 MPE-9.2-3", frame(private=enhanced(c=0)), C | S, 2, ORDINARY)
good("rtr-by-send-only", "MPE-9.2-5 MPE-9.2-6", frame(private=enhanced(b=1, c=0)), C | S, 2, ORDINARY)
good("limits-unspecified", "MPE-9.1-8 MPE-9.1-9", frame(private=enhanced(ird=0x3FFF, ord_=0x3FFF)),
     C | S, 2, words(ird=0x3FFF, ord_=0x3FFF))
good("no-reads-served", "MPE-9.1-2", frame(private=enhanced(ird=0)), C | S, 2, words(ord_=0))
good("one-read-served", "MPE-9.1-2 MPE-9-1", frame(private=enhanced(ird=1, ord_=2)), C | S, 2, words(ord_=1))


def empty_response(link):
    segment = link.segment()
    if segment.ulpdu != tagged(wire.READ_RESPONSE, 1, 0):
        raise Wrong(f"not the empty response to the RTR: {segment}")
    link.read_msn = 2


good("rtr-by-read", "MPE-9.2-4 MPE-9.1-3 RDM-5.2.1-6 RDM-5.2.1-7", frame(private=enhanced(c=0, d=1)), C | S, 2,
     words(c=0, d=1), rtr=read_request(1, 0, 1, 0, sink=(1, 0)), after=empty_response)


def marked(link):
    """Replies of many sizes: each marker is at its position, and covered by the CRC."""
    for size in (1, 3, 480, 485, 488, 500, 1000):
        text = b"E" + bytes(size)
        if link.ask(text) != text:
            raise Wrong("echo differs from the sent data")
    link.ask(b"B" + struct.pack(">I", 16384))
    if len(link.message()) != 16384:
        raise Wrong("the large Send is incomplete")
    if link.stream.found < 30:
        raise Wrong(f"only {link.stream.found} markers")


good("markers-demanded", "MPA-7.1.1-4 MPA-4.3-1 MPA-4.3-2 MPA-4.3-3 MPA-4.3-6 MPA-4.3-9 MPA-7.1.2-12 MPA-4.2-1",
     frame(flags=C | S | M, private=enhanced()), C | S, 2, ORDINARY, after=marked, markers=True)


def rejected(link):
    link.request(private=b"R")
    reply = link.await_reply()
    if reply["flags"] & R == 0 or reply["private"] != b"no":
        raise Wrong(f"not a rejection: {reply}")


Case("startup-rejected", "MPA-7.1.2-4", [rejected], Fin(), start="tcp")


# Ends during start-up.
def reset_after(octets):
    def step(link):
        link.put(octets)
        link.reset()
    return step


Case("startup-reset-at-once", "MPA-8-1", [reset_after(b"")], Gone(), start="tcp")
Case("startup-reset-within-request", "MPA-8-1", [reset_after(REQ[:18])], Gone(), start="tcp")
Case("startup-reset-behind-request", "MPA-8-1", [reset_after(REQ)], Gone(), start="tcp")
Case("startup-reset-behind-reply", "MPA-8-1 RDM-7.1-1", [lambda link: link.reset()], Gone(0x2001), start="reply",
     opened="CONNECTION_ABORTED")
Case("startup-fin-behind-reply", "MPA-7.2-1 RDM-7.1-1", [fin], Fin(0x2001), start="reply", opened="CONNECTION_ABORTED")
Case("startup-request-as-fpdu", "MPA-7.1.2-12 MPA-7.1-1 MPA-8-1 RDM-6.1-1", [put(REQ), fin], Terminate(2, 0, 1, None),
     start="reply", opened="CONNECTION_ABORTED")


# The server as initiator: its handling of Replies.
def connect_back(octets, then):
    """The server connects to the peer, which replies to its Request with `octets`."""
    def step(link):
        import socket
        listener = socket.create_server((link.socket.getsockname()[0], 0))
        listener.settimeout(15)
        host, port = listener.getsockname()
        number = link.ask(b"O" + socket.inet_aton(host) + struct.pack(">H", port))[1:]
        accepted, _ = listener.accept()
        listener.close()
        other = Link.__new__(Link)
        other.socket, other.stream, other.others = accepted, wire.Stream(), []
        link.others.append(other)
        request = b""
        while len(request) < 24:
            request += accepted.recv(64)
        right = frame(private=enhanced(c=1, d=1))
        if request != right:
            raise Wrong(f"Request {request.hex()}, expected {right.hex()}")
        other.put(octets)
        then(link, other, struct.unpack(">I", number)[0])
    return step


def connect_fails(how, status):
    def then(link, other, number):
        ended, octets = other.end()
        if (ended, octets) != (how, b""):
            raise Wrong(f"{ended} after {octets.hex()}, expected {how}")
        await_opened(link, number, status)
    return then


def await_opened(link, number, status):
    deadline = time.monotonic() + 15
    while (opened := link.witness.report(number)["opened"]) is None and time.monotonic() < deadline:
        pass
    if opened != status:
        raise Wrong(f"status of Connect {opened}, expected {status}")


def connect_ends_with(code):
    """A Terminate is the first and only FPDU (RFC 6581 §9.1, §9.2)."""
    def then(link, other, number):
        segment = other.segment()
        if segment.op != wire.TERMINATE or segment.data != bytes([0x20, code, 0, 0]):
            raise Wrong(f"not Terminate 2/0/{code:02x}: {segment}")
        ended, octets = other.end()
        if (ended, octets) != ("FIN", b""):
            raise Wrong(f"{ended} after {octets.hex()}")
        await_opened(link, number, "CONNECTION_ABORTED")
    return then


def connect_works(link, other, number):
    segment = other.segment()
    if segment.ulpdu != RTR:
        raise Wrong(f"not the RTR: {segment}")
    await_opened(link, number, "SUCCESS")


def back(id, rules, octets, then, **fields):
    Case(f"initiator-{id}", rules, [connect_back(octets, then)], Alive(), **fields)


def reply(flags=C | S, revision=2, private=None, length=None):
    return frame(REPLY, flags, revision, enhanced() if private is None else private, length)


aborted = connect_fails("RST", "CONNECTION_ABORTED")
back("good-reply", "MPE-5-1 MPE-9.2-7 MPA-7.1.2-9 MPA-7.1.1-1 MPE-9.2-1", reply(), connect_works)
back("reply-with-fpdu-behind", "MPA-7.1.2-9 MPA-7.1-1 MPA-7.1-2", reply() + fpdu(RTR), connect_works)
back("request-as-reply", "MPA-7.1.2-13 MPA-7.1.2-7", frame(private=enhanced()), aborted)
back("wrong-key", "MPA-7.1.2-7 MPA-7.1.1-2", b"MPA ID Rep Fram3" + bytes(4), aborted)
back("revision-3", "MPA-7.1.1-9 MPA-7.1.2-7", reply(revision=3), aborted)
back("private-data-513", "MPA-7.1.1-10 MPA-7.1.2-14", reply(length=513) + bytes(509), aborted)
back("plain-reply", "MPE-10-3", reply(flags=C, private=b""), aborted)
back("enhanced-word-cut", "MPE-6-3", reply(private=b"\0\1"), aborted)
back("silence", "MPA-7.1.2-15", b"", connect_fails("RST", "IO_TIMEOUT"), slow=True)
back("rejection", "MPA-7.1.2-8", reply(flags=C | S | R), connect_fails("FIN", "CONNECTION_REFUSED"))
back("more-reads-than-served", "MPE-9.1-6 MPE-8-1", reply(private=enhanced(ord_=100)), connect_ends_with(6))
back("rtr-by-send", "MPE-9.2-8", reply(private=enhanced(b=1, c=0)), connect_ends_with(7))
