"""RDMAP: RFC 5040."""

import struct
import time

from expect import Alive, Case, Fin, Terminate
from link import LIMIT, Wrong, pattern
from placement import PAGE, ask, fast, invalidate, post
from wire import READ_REQUEST, READ_RESPONSE, SEND_INV, SEND_SE, SEND_SE_INV, WRITE, fpdu, tagged, terminate


def case(id, rules, expect, *makes, **fields):
    Case(f"rdmap-{id}", rules, [post(make) for make in makes], expect, **fields)


# The control octet.
for version in (0, 2, 3):
    case(f"version-{version}", "RDM-4.1-4 RDM-7.2-1", Terminate(0, 2, 5),
         lambda link, it=version: link.send(b"E", rv=it))
    case(f"version-{version}-tagged", "RDM-4.1-4 RDM-7.2-1", Terminate(0, 2, 5),
         lambda link, it=version: link.write(rv=it))
case("reserved-bits", "RDM-4.1-4", Alive(), lambda link: link.send(b"?", rsv=3), receives=[("SUCCESS", 1)])
for opcode in (12, 13, 14, 15):
    case(f"opcode-{opcode:x}", "RDM-7.2-1 RDM-4.1-3", Terminate(0, 2, 6),
         lambda link, it=opcode: link.send(b"E", op=it))
for opcode in (*range(1, 2), *range(3, 16)):
    case(f"opcode-{opcode:x}-tagged", "RDM-4.1-3 RDM-7.2-1", Terminate(0, 2, 6),
         lambda link, it=opcode: tagged(it, *link.pages[0], b"data"))
for opcode in (WRITE, READ_RESPONSE):
    case(f"opcode-{opcode:x}-untagged", "RDM-4.1-3 RDM-7.2-1", Terminate(0, 2, 6),
         lambda link, it=opcode: link.send(b"E", op=it))

# Read Requests.
case("read-request-cut", "RDM-4.4-1 RDM-7.2-1", Terminate(2, 0, 3, None), lambda link: link.read(cut=27))
case("read-request-without-header", "RDM-4.4-1 RDM-7.2-1", Terminate(2, 0, 3, None), lambda link: link.read(cut=0))
case("read-request-long", "RDM-4.4-1 DDP-7.1-1", Terminate(1, 2, 5), lambda link: link.read(extra=b"x"))
case("read-request-not-last", "RDM-5.2.1-1 DDP-7.1-1", Terminate(1, 2, 5), lambda link: link.read(last=0))
case("read-request-msn", "DDP-4.3-2 RDM-5.2.1-2", Terminate(1, 2, 3), lambda link: link.read(msn=2))
case("read-request-offset", "DDP-7.1-1", Terminate(1, 2, 4), lambda link: link.read(mo=28))
for queue in (0, 2, 7):
    case(f"read-request-queue-{queue}", "RDM-5.2.1-1 RDM-4.1-3", Terminate(1, 2, 1),
         lambda link, it=queue: link.read(qn=it))


def protection(id, rules, code, make):
    case(f"read-{id}", "RDM-5.2.1-5 RDM-7.2-3 RDM-7.1-4 " + rules, Terminate(0, 1, code, "read"), make)


protection("unknown-stag", "", 0, lambda link: link.read(stag=0xDEADBEEF))
protection("dead-stag", "RDM-8.1.1-4", 0, lambda link: link.read(4))
protection("foreign-stag", "RDM-8.1.1-1 SEC-6.1.1-2", 3, lambda link: link.read(5))
protection("write-only", "SEC-6.3.5-1 RDM-8.1.1-3", 2, lambda link: link.read(2))
protection("local", "RDM-8.1.1-3", 2, lambda link: link.read(3))
protection("below", "SEC-6.2.1-1", 1, lambda link: link.read(1, -1))
protection("above", "SEC-6.2.1-1 RDM-5.2.1-3", 1, lambda link: link.read(1, PAGE - 63))
protection("of-4-gib", "RDM-8.1.1-2", 1, lambda link: link.read(1, size=0xFFFFFFFF))
protection("wrap", "RDM-7.2-3", 4, lambda link: link.read(1, to=(1 << 64) - 8))
Case("rdmap-read-behind-deregistration", "RDM-8.1.1-4 SEC-6.2.2-2", [ask(b"D\1"), post(lambda link: link.read(1))],
     Terminate(0, 1, 0, "read"))


def response(link, sink, octets):
    """Receives the complete response to the oldest read."""
    stag, to = sink
    found = b""
    while True:
        segment = link.segment()
        if (segment.is_tagged, segment.op) != (True, READ_RESPONSE):
            raise Wrong(f"not a Read Response: {segment}")
        if (segment.stag, segment.to) != (stag, to + len(found)):
            raise Wrong(f"a response with another STag or offset: {segment}")
        found += segment.data
        if segment.last:
            break
    if found != octets:
        raise Wrong("the octets of the response differ")


def reads(link):
    """Reads of several sizes, each with its own sink; the response has the STag of the sink."""
    for size in (1, 63, 64, 1500, PAGE):
        sink = (0xAB000000 + size, (1 << 64) - 2 * PAGE)
        link.post(link.read(1, PAGE - size, size, sink=sink))
        response(link, sink, pattern(1)[PAGE - size:])


Case("rdmap-reads", "RDM-4.4-2 RDM-5.2-1 RDM-5.2.1-4 RDM-5.2.2-1 DDP-5.2-5", [reads], Alive())


def sink_wraps(link):
    """The responder does not check the sink of a response: its offsets wrap modulo 2^64."""
    link.post(link.read(1, 0, PAGE, sink=(8, (1 << 64) - 100)))
    found, to = b"", (1 << 64) - 100
    while len(found) < PAGE:
        segment = link.segment()
        if segment.to != (to + len(found)) % (1 << 64):
            raise Wrong(f"a response with another STag or offset: {segment}")
        found += segment.data
    if found != pattern(1):
        raise Wrong("the octets of the response differ")


Case("rdmap-read-sink-wraps", "RDM-4.4-2 DDP-5.2-5", [sink_wraps], Alive())


def reads_in_order(link):
    sinks = [(at + 1, 0x1000 * at) for at in range(4)]
    link.put(b"".join(fpdu(link.read(1, at, 100 + at, sink=sink)) for at, sink in enumerate(sinks)))
    for at, sink in enumerate(sinks):
        response(link, sink, pattern(1)[at:100 + 2 * at])


Case("rdmap-reads-in-order", "RDM-5.2.1-2 RDM-5.2.2-3 RDM-5.5-8 RDM-5.2.2-2", [reads_in_order], Alive())


def empty_read(link):
    for stag, to in ((0, 0), (0xDEADBEEF, (1 << 64) - 1), link.pages[5]):
        link.post(link.read(stag=stag, to=to, size=0, sink=(3, 4)))
        response(link, (3, 4), b"")


Case("rdmap-empty-reads", "RDM-5.2.1-6 RDM-5.2.1-7", [empty_read], Alive())


def read_sees_the_write(link):
    link.put(fpdu(link.write(0, 8, b"new!")) + fpdu(link.read(0, 0, 16, sink=(9, 9))))
    response(link, (9, 9), pattern(0)[:8] + b"new!" + pattern(0)[12:16])


Case("rdmap-read-sees-the-write", "RDM-5.5-3", [read_sees_the_write], Alive(), changes=[(0, 8, 4)])


def send_overtakes_responses(link):
    """A Send completes at the server while responses to earlier reads are blocked."""
    requests = b"".join(fpdu(link.read(1, size=PAGE, sink=(at, 0))) for at in range(4))
    link.put(requests + fpdu(link.send(b"?")))
    deadline = time.monotonic() + LIMIT
    while not link.witness.report(link.number)["receives"]:
        if time.monotonic() > deadline:
            raise Wrong("the Send is blocked by the responses")
    for at in range(4):
        response(link, (at, 0), pattern(1))


Case("rdmap-send-overtakes-responses", "RDM-5.5-9", [send_overtakes_responses], Alive(), receives=[("SUCCESS", 1)],
     receive_buffer=2048)


def too_many_reads(link):
    """One Read more than negotiated, in one segment."""
    requests = [link.read(1, size=PAGE) for _ in range(5)]
    link.put(b"".join(fpdu(it) for it in requests))
    link.offender = requests[4]


Case("rdmap-more-reads-than-agreed", "RDM-6.1-3 RDM-8.1.1-9 SEC-6.4.3.3-1", [too_many_reads],
     Terminate(0, 2, 7, before=READ_RESPONSE))


# Reads of the server: its request, and the response of the peer.
def asked_to_read(size=100):
    def step(link):
        link.put(fpdu(link.send(b"R" + struct.pack(">IQI", 0x51A6, 0x7000, size))))
        segment = link.segment()
        if (segment.op, segment.qn, segment.msn, len(segment.data)) != (READ_REQUEST, 1, 1, 28):
            raise Wrong(f"not a Read Request: {segment}")
        sink, to, octets, stag, source = struct.unpack(">IQIIQ", segment.data)
        if (octets, stag, source) != (size, 0x51A6, 0x7000):
            raise Wrong(f"a Read with other parameters: {segment}")
        link.kept["sink"] = (sink, to)
    return step


def answered(link, octets):
    """Checks that the server's consumer has received the octets."""
    if link.message() != b"R" + octets:
        raise Wrong("the server has read other octets")


def respond(octets=b"r" * 100, stag=0, at=0, **fields):
    def make(link):
        sink, to = link.kept["sink"]
        return tagged(READ_RESPONSE, sink + stag & 0xFFFFFFFF, to + at & (1 << 64) - 1, octets, **fields)
    return make


RESPONSE = "RDM-5.2.2-5 DDP-7.1-2"


def response_case(id, expect, *makes, rules=RESPONSE, size=100):
    Case(f"rdmap-response-{id}", rules, [asked_to_read(size), *map(post, makes)], expect)


Case("rdmap-response", "RDM-5.2.2-4 RDM-5.5-7 RDM-5.2-1",
     [asked_to_read(), post(respond()), lambda link: answered(link, b"r" * 100)], Alive())
Case("rdmap-response-in-pieces", "RDM-5.2.2-1 DDP-5.4-1 DDP-4.1-1",
     [asked_to_read(), post(respond(b"a" * 60, last=0)), post(respond(b"b" * 40, at=60)),
      lambda link: answered(link, b"a" * 60 + b"b" * 40)], Alive())
Case("rdmap-response-unasked", RESPONSE, [post(lambda link: tagged(READ_RESPONSE, *link.pages[0], b"data"))],
     Terminate(0, 2, 6))
Case("rdmap-response-unasked-and-empty", RESPONSE, [post(lambda link: tagged(READ_RESPONSE, 1, 0))],
     Terminate(0, 2, 6))
Case("rdmap-response-twice", RESPONSE,
     [asked_to_read(), post(respond()), lambda link: answered(link, b"r" * 100), post(respond())], Terminate(0, 2, 6))
response_case("to-other-stag", Terminate(1, 1, 0), respond(stag=1))
response_case("to-registered-stag", Terminate(1, 1, 0), lambda link: tagged(READ_RESPONSE, *link.pages[0], b"r" * 100))
response_case("below", Terminate(1, 1, 1), respond(at=-1))
response_case("above", Terminate(1, 1, 1), respond(at=1))
response_case("too-long", Terminate(1, 1, 1), respond(b"r" * 101))
response_case("too-short", Terminate(1, 1, 1), respond(b"r" * 99))
response_case("empty", Terminate(1, 1, 1), respond(b""))
response_case("too-long-in-pieces", Terminate(1, 1, 1), respond(b"r" * 99, last=0), respond(b"rr", at=99, last=0))
response_case("gap", Terminate(1, 1, 1), respond(b"r" * 10, last=0), respond(b"r" * 10, at=11, last=0))
Case("rdmap-response-cut-by-fin", "MPA-7.2-1 RDM-5.5-7",
     [asked_to_read(), post(respond(b"r" * 10, last=0)), lambda link: link.fin()],
     Terminate(2, 0, 1, None, reason=0x22001))
Case("rdmap-write-into-read-sink", "RDM-8.1.1-3 SEC-6.2.1-1",
     [asked_to_read(), post(lambda link: tagged(WRITE, *link.kept["sink"], b"data"))], Terminate(1, 1, 0))


# Invalidation.
CANNOT = "RDM-5.3-5 RDM-7.2-2"


def invalidation(id, rules, expect, stag, **fields):
    case(f"invalidate-{id}", CANNOT + rules, expect, lambda link: link.send(b"?", op=SEND_INV, word=stag(link)),
         **fields)


invalidation("unknown", "", Terminate(0, 2, 9), lambda link: 0xDEADBEEF)
invalidation("zero", "", Terminate(0, 2, 9), lambda link: 0)
invalidation("dead", "", Terminate(0, 2, 9), lambda link: link.pages[4][0])
invalidation("foreign", " RDM-8.1.1-5", Terminate(0, 1, 9), lambda link: link.pages[5][0])
invalidation("of-another-connection", " RDM-8.1.1-5", Terminate(0, 1, 9), lambda link: link.witness.link.pages[0][0])
invalidation("not-fast-registered", " RDM-8.1.1-5", Terminate(0, 1, 9), lambda link: link.pages[0][0])
Case("rdmap-invalidate-twice", CANNOT, [fast, post(invalidate), post(invalidate)], Terminate(0, 2, 9),
     receives=["SUCCESS", "SUCCESS"])
Case("rdmap-invalidate-with-event", "RDM-5.3-5 RDM-4.1-2",
     [fast, post(lambda link: link.send(b"?", op=SEND_SE_INV, word=link.kept["fast"][0]))], Alive())


def invalidate_in_pieces(link):
    """The STag is invalidated by the complete message, not by its first segment."""
    stag, to = link.kept["fast"]
    link.post(link.send(b"?", op=SEND_INV, word=stag, last=0))
    link.post(link.write(stag=stag, to=to, data=b"\0" * 4))
    link.post(link.send(b"?", op=SEND_INV, word=stag, mo=1))
    link.post(link.write(stag=stag, to=to, data=b"\xff" * 8))


Case("rdmap-invalidate-in-pieces", "RDM-5.3-5 DDP-5.4-1", [fast, invalidate_in_pieces], Terminate(1, 1, 0),
     changes=[(5, 0, 4)])


def invalidates_ours(link):
    link.ask(b"V" + struct.pack(">I", 0x12345678))
    if link.message() != b"V":
        raise Wrong("no reply before the Send with Invalidate")
    segment = link.kept["send"]
    if (segment.op, segment.word) != (SEND_SE_INV, 0x12345678):
        raise Wrong(f"not a Send with Solicited Event and Invalidate: {segment}")


Case("rdmap-invalidate-of-ours", "RDM-4.1-1 RDM-4.1-2", [invalidates_ours], Alive())
case("solicited", "RDM-4.1-3", Alive(), lambda link: link.send(b"?", op=SEND_SE), receives=[("SUCCESS", 1)])


# Writes of the server.
def written(link):
    link.put(fpdu(link.send(b"W" + struct.pack(">IQI", 0xABCD, 0xFFFFFFFF00000000, PAGE))))
    found = b""
    while len(found) < PAGE:
        segment = link.segment()
        if (segment.op, segment.stag, segment.to) != (WRITE, 0xABCD, 0xFFFFFFFF00000000 + len(found)):
            raise Wrong(f"not the next segment of the Write: {segment}")
        found += segment.data
    if found != pattern(0) or not segment.last:
        raise Wrong("Write with wrong octets, or without a last segment")
    if link.message() != b"W":
        raise Wrong("no reply after the Write")


Case("rdmap-write-of-ours", "RDM-5.1-1 RDM-5.1-2 RDM-5.5-4 DDP-4.2-1 DDP-5.2-5 DDP-5.3-1", [written], Alive())


# Terminates of the peer.
OF_PEER = 0x30000


def ended(id, rules, make, reason, **fields):
    """Expects only a FIN after a Terminate of the peer."""
    Case(f"rdmap-terminate-{id}", rules, [post(make)], Fin(OF_PEER | reason), **fields)


TERMINATED = "RDM-5.4-2 RDM-5.4-4"
# A Terminate that is too short for an error number.
UNNUMBERED = 0x90000
ended("access", TERMINATED, lambda link: terminate(1, 1, 0), 0x1100, receives=["CANCELLED"])
ended("with-headers", TERMINATED + " RDM-4.8-3 RDM-4.8-4",
      lambda link: terminate(1, 1, 1, 0xC0, struct.pack(">H", 18) + link.write()[:14]), 0x1101)
ended("reserved-bits", "RDM-4.8-2", lambda link: terminate(1, 2, 2, 0x18), 0x1202)
ended("unknown-number", "RDM-4.8-1", lambda link: terminate(15, 15, 255), 0xFFFF)
for octets in range(4):
    Case(f"rdmap-terminate-of-{octets}-octets", "RDM-4.8-1",
         [post(lambda link, it=octets: terminate(1, 1, 0)[:18 + it])], Fin(UNNUMBERED))
for octets in (1, 2, 15, 16):
    ended(f"headers-cut-at-{octets}", "RDM-4.8-3 RDM-4.8-4",
          lambda link, it=octets: terminate(1, 1, 0, 0xC0, (b"\0\x12" + link.write())[:it]), 0x1100)
ended("not-last", "RDM-5.4-1", lambda link: terminate(1, 1, 0, last=0), 0x1100)
ended("of-60000-octets", "RDM-4.8-1", lambda link: terminate(1, 1, 0, 0xFF, b"\xff" * 60000), 0x1100)
for queue in (0, 1, 3):
    case(f"terminate-queue-{queue}", "RDM-5.4-1 RDM-4.1-3", Terminate(1, 2, 1),
         lambda link, it=queue: terminate(1, 1, 0, qn=it))


def behind_it(link):
    link.put(fpdu(terminate(1, 1, 0)) + fpdu(link.write(data=b"\0" * 64)) + fpdu(link.send(b"E")))


Case("rdmap-data-behind-terminate", "RDM-5.4-3 RDM-7-1", [behind_it], Fin(OF_PEER | 0x1100), receives=["CANCELLED"])
Case("rdmap-terminate-as-first-fpdu", "RDM-5.4-2 MPA-7.1.2-10", [post(lambda link: terminate(2, 0, 6))], Fin(0x2006),
     start="reply", opened="CONNECTION_ABORTED")
Case("rdmap-terminate-crosses-read", "RDM-5.4-2 RDM-6.2.1-2",
     [asked_to_read(), post(lambda link: terminate(0, 1, 0, 0))], Fin(OF_PEER | 0x0100))
