"""DDP segments and memory: RFC 5041 §4, §5, §7; RFC 5040 §8.1.1."""

import struct

from expect import Alive, Case, Terminate
from link import Link
from wire import SEND_INV, SEND_SE, WRITE, fpdu, tagged

PAGE = 4096


def post(make):
    return lambda link: link.post(make(link))


def ask(command):
    return lambda link: link.ask(command)


def untagged(id, rules, expect, *makes, **fields):
    Case(f"untagged-{id}", rules, [post(make) for make in makes], expect, **fields)


# Untagged segments.
for version in (0, 2, 3):
    untagged(f"version-{version}", "DDP-4.1-6 DDP-7.1-1 DDP-7.2-1", Terminate(1, 2, 6),
             lambda link, it=version: link.send(b"E", dv=it))
for queue in (1, 2, 3, 4, 0xFFFFFFFF):
    untagged(f"queue-{queue:x}", "DDP-7.1-1 RDM-4.1-3 RDM-7.2-1", Terminate(1, 2, 1),
             lambda link, it=queue: link.send(b"E", qn=it))
for number in (0, 2, 0x80000001, 0xFFFFFFFF):
    untagged(f"msn-{number:x}", "DDP-4.3-2 DDP-7.1-1", Terminate(1, 2, 3),
             lambda link, it=number: link.send(b"E", msn=it), receives=["CANCELLED"])
Case("untagged-msn-again", "DDP-4.3-2 DDP-5.3-4", [ask(b"E"), post(lambda link: link.send(b"E", msn=1))],
     Terminate(1, 2, 3), receives=["SUCCESS"])
for offset in (1, 0xFFFFFFFF):
    untagged(f"offset-{offset:x}", "DDP-4.3-3 DDP-7.1-1", Terminate(1, 2, 4),
             lambda link, it=offset: link.send(b"E", mo=it))
untagged("offset-gap", "DDP-5.2-4 DDP-7.1-1", Terminate(1, 2, 4),
         lambda link: link.send(b"E123", last=0), lambda link: link.send(b"5", mo=5))
untagged("offset-overlap", "DDP-5.2-4 DDP-7.1-1", Terminate(1, 2, 4),
         lambda link: link.send(b"E123", last=0), lambda link: link.send(b"3", mo=3))
untagged("too-long", "RDM-5.3-2 DDP-7.1-1", Terminate(1, 2, 5),
         lambda link: link.send(bytes(1025)), receives=[("BUFFER_OVERFLOW", 0)])
untagged("too-long-in-second-segment", "RDM-5.3-2 DDP-7.1-1", Terminate(1, 2, 5),
         lambda link: link.send(bytes(1024), last=0), lambda link: link.send(b"x", mo=1024),
         receives=["BUFFER_OVERFLOW"])
untagged("no-receive", "DDP-7.1-1 RDM-5.3-1", Terminate(1, 2, 2), lambda link: link.send(b"E"),
         private=b"N\0\4\0\0")
untagged("no-second-receive", "DDP-7.1-1 RDM-5.3-1", Terminate(1, 2, 2), lambda link: link.send(b"1"),
         lambda link: link.send(b"2"), private=b"N\1\4\0\0", receives=[("SUCCESS", 1)])
untagged("empty-without-receive", "RDM-5.3-3 DDP-7.1-1", Terminate(1, 2, 2), lambda link: link.send(b""),
         private=b"N\0\4\0\0")
untagged("empty-takes-the-receive", "RDM-5.3-3 DDP-5.2-6", Terminate(1, 2, 2), lambda link: link.send(b""),
         lambda link: link.send(b""), private=b"N\1\0\0\0", receives=[("SUCCESS", 0)])
untagged("one-octet-into-nothing", "RDM-5.3-2", Terminate(1, 2, 5), lambda link: link.send(b"x"),
         private=b"N\1\0\0\0", receives=["BUFFER_OVERFLOW"])
untagged("opcode-changes-in-message", "DDP-4.3-1", Terminate(0, 2, 6),
         lambda link: link.send(b"E", last=0), lambda link: link.send(b"E", mo=1, op=SEND_SE))
untagged("stag-changes-in-message", "DDP-4.3-1", Terminate(0, 2, 6),
         lambda link: link.send(b"E", last=0, op=SEND_INV, word=1),
         lambda link: link.send(b"E", mo=1, op=SEND_INV, word=2))
untagged("reserved-bits", "DDP-4.1-5", Alive(), lambda link: link.send(b"?", rsvd=15), receives=[("SUCCESS", 1)])
untagged("reserved-word", "RDM-4.1-2", Alive(), lambda link: link.send(b"?", word=0xDEADBEEF),
         receives=[("SUCCESS", 1)])


def empty_segments(link):
    """A message of a thousand empty segments, followed by some octets."""
    link.put(fpdu(link.send(b"", last=0)) * 1000 + fpdu(link.send(b"E")))
    link.message()


Case("untagged-empty-segments", "DDP-5.4-1 DDP-5.3-4", [empty_segments], Alive(), receives=[("SUCCESS", 1)])


def octet_segments(link):
    """A message in segments of one octet."""
    text = b"E" + bytes(range(200))
    for at, octet in enumerate(text):
        link.put(fpdu(link.send(bytes([octet]), mo=at, last=int(at + 1 == len(text)))))
    if link.message() != text:
        raise ValueError("echo differs from the sent data")


Case("untagged-octet-segments", "DDP-4.1-1 DDP-5.2-3 DDP-5.2-4 DDP-5.4-2", [octet_segments], Alive(),
     receives=[("SUCCESS", 201)])


# Tagged segments.
def tagged_case(id, rules, expect, *makes, **fields):
    Case(f"tagged-{id}", rules, [post(make) for make in makes], expect, **fields)


STAG = "DDP-4.2-2 DDP-7.1-2 DDP-8.3-2"
BOUNDS = "DDP-7.1-2 RDM-8.1.1-2 SEC-6.2.1-1"
for version in (0, 2, 3):
    tagged_case(f"version-{version}", "DDP-4.1-6 DDP-7.1-2", Terminate(1, 1, 4),
                lambda link, it=version: link.write(dv=it))
for stag in (0, 1, 0xDEADBEEF, 0xFFFFFFFF):
    tagged_case(f"stag-{stag:x}", STAG, Terminate(1, 1, 0), lambda link, it=stag: link.write(stag=it))
tagged_case("stag-of-a-dead-registration", STAG + " RDM-8.1.1-4", Terminate(1, 1, 0), lambda link: link.write(4))
for bit in (0, 7):
    tagged_case(f"stag-key-{bit}", STAG + " RDM-8.1.1-6", Terminate(1, 1, 0),
                lambda link, it=bit: link.write(stag=link.pages[0][0] ^ 1 << it))
tagged_case("stag-index", STAG + " RDM-8.1.1-6", Terminate(1, 1, 0),
            lambda link: link.write(stag=link.pages[0][0] + 256))
tagged_case("stag-of-another-domain", "DDP-8.2-1 RDM-8.1.1-1 SEC-6.1.1-2", Terminate(1, 1, 2),
            lambda link: link.write(5))
tagged_case("stag-of-another-connection", "DDP-8.2-1 RDM-8.1.1-1 SEC-6.1.1-1", Terminate(1, 1, 2),
            lambda link: tagged(WRITE, *link.witness.link.pages[0], b"data"))
tagged_case("no-right-read-only", "RDM-8.1.1-3 SEC-6.3.5-1", Terminate(1, 1, 0), lambda link: link.write(1))
tagged_case("no-right-local", "RDM-8.1.1-3", Terminate(1, 1, 0), lambda link: link.write(3))
tagged_case("below", BOUNDS, Terminate(1, 1, 1), lambda link: link.write(0, -1))
tagged_case("below-into-other-page", BOUNDS, Terminate(1, 1, 1), lambda link: link.write(2, -1))
tagged_case("above", BOUNDS, Terminate(1, 1, 1), lambda link: link.write(0, PAGE - 3))
tagged_case("just-behind", BOUNDS, Terminate(1, 1, 1), lambda link: link.write(0, PAGE, b"x"))
tagged_case("offset-0", BOUNDS, Terminate(1, 1, 1), lambda link: link.write(to=0))
tagged_case("longer-than-the-page", BOUNDS, Terminate(1, 1, 1), lambda link: link.write(data=bytes(PAGE + 1)))
tagged_case("wrap", "DDP-7.1-2", Terminate(1, 1, 3), lambda link: link.write(to=(1 << 64) - 2))
tagged_case("wrap-by-one", "DDP-7.1-2", Terminate(1, 1, 3), lambda link: link.write(to=(1 << 64) - 3))
tagged_case("last-octets", BOUNDS, Alive(), lambda link: link.write(0, PAGE - 4, b"\0\0\0\0"),
            changes=[(0, PAGE - 4, 4)])
tagged_case("whole-page", "DDP-4.1-1 DDP-5.2-3 RDM-5.1-1", Alive(), lambda link: link.write(2, 0, b"\xff" * PAGE),
            changes=[(2, 0, 4080)])
tagged_case("write-only-is-written", "RDM-8.1.1-3", Alive(), lambda link: link.write(2, 8, b"\xff"),
            changes=[(2, 8, 1)])
tagged_case("reserved-bits", "DDP-4.1-5", Alive(), lambda link: link.write(data=b"\xff", rsvd=15), changes=[(0, 0, 1)])
tagged_case("empty-to-anywhere", "DDP-5.2-7 RDM-5.1-3 DDP-5.2-6", Alive(), lambda link: tagged(WRITE, 0xDEADBEEF, 7))
tagged_case("empty-then-foreign", "DDP-7.1-2", Terminate(1, 1, 2), lambda link: link.write(5, data=b"", last=0),
            lambda link: link.write(5))
# The first segment is valid and placed; the second is refused.
FIRST = dict(changes=[(0, 0, 4)])
first = lambda link: link.write(data=b"\xff" * 4, last=0)  # noqa: E731
tagged_case("stag-changes-in-message", "DDP-4.2-1 DDP-7.1-3", Terminate(1, 1, 0), first,
            lambda link: link.write(2, 4), **FIRST)
tagged_case("gap", "DDP-5.2-5 DDP-5.3-2", Terminate(1, 1, 1), first, lambda link: link.write(0, 5), **FIRST)
tagged_case("overlap", "DDP-5.2-5 DDP-5.3-2", Terminate(1, 1, 1), first, lambda link: link.write(0, 3), **FIRST)
tagged_case("second-segment-leaves-the-page", BOUNDS, Terminate(1, 1, 1),
            lambda link: link.write(0, PAGE - 4, b"\0\0\0\0", last=0), lambda link: link.write(0, PAGE, b"x"),
            changes=[(0, PAGE - 4, 4)])


def with_a_send_between(link):
    link.post(link.write(data=b"\xff" * 4, last=0))
    link.ask(b"E")
    link.post(link.write(0, 4, data=b"\xff" * 4))


Case("tagged-send-between-segments", "DDP-5.3-1 DDP-5.4-1", [with_a_send_between], Alive(), changes=[(0, 0, 8)])

# Revocation.
REVOKED = "RDM-8.1.1-4 SEC-6.2.2-2 DDP-8.3-1"
Case("tagged-behind-deregistration", REVOKED, [ask(b"D\0"), post(lambda link: link.write())], Terminate(1, 1, 0))


def within_a_message(link):
    link.post(link.write(data=b"\xff" * 4, last=0))
    link.ask(b"D\0")
    link.post(link.write(0, 4))


Case("tagged-deregistration-within-message", REVOKED, [within_a_message], Terminate(1, 1, 0), **FIRST)


def fast(link):
    """Requests a fast registration of page 5 of the server; keeps STag and address."""
    answer = link.ask(b"F")
    link.kept["fast"] = struct.unpack(">IQ", answer[1:13])


def fast_write(link, data=b"\0" * 4):
    stag, to = link.kept["fast"]
    return link.write(stag=stag, to=to, data=data)


def invalidate(link, octets=b"?", **fields):
    return link.send(octets, op=SEND_INV, word=link.kept["fast"][0], **fields)


Case("tagged-behind-invalidation", REVOKED + " RDM-5.3-5",
     [fast, post(fast_write), post(invalidate), post(lambda link: fast_write(link, b"\xff" * 64))],
     Terminate(1, 1, 0), changes=[(5, 0, 4)])
Case("tagged-registered-again", "RDM-8.1.1-4 RDM-8.1.1-6",
     [fast, post(invalidate), lambda link: link.kept.update(old=link.kept["fast"]), fast,
      post(lambda link: link.write(stag=link.kept["old"][0], to=link.kept["old"][1]))], Terminate(1, 1, 0))


def guesses(link):
    """Random STags, and neighbors of valid STags: none grants access."""
    import random
    draw = random.Random(7)
    known = link.pages[0][0]
    stags = [draw.getrandbits(32) for _ in range(24)]
    stags += [known ^ 1 << bit for bit in range(32)]
    for stag in stags:
        other = Link(link.address).establish()
        try:
            other.post(link.write(stag=stag, to=link.pages[0][1]))
            Terminate(1, 1, 0).check(other)
        finally:
            other.close()


Case("tagged-guesses", "RDM-8.1.1-6 SEC-6.1.1-2", [guesses], Alive())
