"""FPDUs: RFC 5044 §4, §8."""

import struct

from expect import Alive, Case, Terminate
from wire import RTR, SEND, WRITE, crc_field, fpdu, tagged, unsealed, untagged
import wire

CRC_BAD = Terminate(2, 0, 2, None)
TOO_SHORT = Terminate(2, 0, 3, None)


def put(make):
    return lambda link: link.put(make(link))


def fin(link):
    link.fin()


# Lengths that are too short for a header.
for length in (0, 1, 13):
    ulpdu = tagged(WRITE, 1, 0)[:length]
    Case(f"fpdu-length-{length}", "MPA-8-1 RDM-7.2-1", [put(lambda _, it=ulpdu: fpdu(it))], TOO_SHORT)
Case("fpdu-length-17", "MPA-8-1 RDM-7.2-1", [put(lambda _: fpdu(untagged(SEND, 0, 1)[:17]))], TOO_SHORT)
Case("fpdu-length-65535", "MPA-6-3 DDP-7.1-1", [lambda link: link.post(link.send(bytes(65535 - 18)))],
     Terminate(1, 2, 5), receives=["BUFFER_OVERFLOW"])


def flipped(at, bit=1, payload=b"E1234567890123"):
    """A Send of 32 octets with a pad of 2, with one changed bit."""
    def make(link):
        octets = bytearray(fpdu(link.send(payload)))
        octets[at] ^= bit
        return bytes(octets)
    return put(make)


# 2 length, 18 header, 14 payload, 2 pad, 4 CRC; a length of 33 instead of 32 does not change the size of the FPDU.
for part, at in {"length": 1, "header": 5, "payload": 20, "pad": 34, "crc": 39}.items():
    Case(f"fpdu-crc-{part}", "MPA-4.4-9 MPA-4.4-12 MPA-8-1 MPA-8-6 DDP-7.1-5 RDM-6.2.1-1", [flipped(at)], CRC_BAD)
Case("fpdu-crc-zero", "MPA-4.4-8 MPA-4.4-12", [put(lambda link: unsealed(link.send(b"E")) + bytes(4))], CRC_BAD)
Case("fpdu-crc-byte-order", "MPA-4.4-8",
     [put(lambda link: (lambda body: body + crc_field(body)[::-1])(unsealed(link.send(b"E"))))], CRC_BAD)
Case("fpdu-crc-of-first", "MPA-4.4-12 MPA-7.1.2-10", [put(lambda _: unsealed(RTR) + b"\1\2\3\4")], CRC_BAD,
     start="reply", opened="CONNECTION_ABORTED")


def padded(link):
    """The pad is not zero; the CRC is valid."""
    body = unsealed(link.send(b"Eab"), pad=b"\xff")
    link.put(body + crc_field(body))
    if link.message() != b"Eab":
        raise wire.Malformed("no echo")


Case("fpdu-pad-content", "MPA-4.1-2", [padded], Alive())


def split_everywhere(link):
    for at in range(1, len(fpdu(link.send(b"E" + bytes(9))))):
        link.msn -= 1 if at == 1 else 0
        octets = fpdu(link.send(b"E" + bytes(9)))
        link.put(octets[:at])
        link.put(octets[at:])
        if link.message() != b"E" + bytes(9):
            raise wire.Malformed("no echo")


Case("fpdu-split-at-every-octet", "MPA-5.1-3 MPA-A.4-1 MPA-5.2-1", [split_everywhere], Alive())


def octet_by_octet(link):
    octets = fpdu(link.write(data=b"x" * 100)) + fpdu(link.send(b"E"))
    for at in range(len(octets)):
        link.put(octets[at:at + 1])
    if link.message() != b"E":
        raise wire.Malformed("no echo")


Case("fpdu-octet-by-octet", "MPA-5.1-3 MPA-6-3", [octet_by_octet], Alive(), changes=[(0, 0, 100)])


def many_in_a_segment(link):
    writes = b"".join(fpdu(link.write(offset=4 * at, data=b"\0\0\0\0")) for at in range(30))
    link.put(writes + fpdu(link.send(b"E")))
    if link.message() != b"E":
        raise wire.Malformed("no echo")


Case("fpdu-many-in-a-segment", "MPA-5.1-2 MPA-5.1-3", [many_in_a_segment], Alive(), changes=[(0, 1, 119)])
# Markers are not enabled: four zero octets are the length 0, a pad, and the beginning of a CRC.
Case("fpdu-marker-unasked", "MPA-7.1.1-3 MPA-8-1", [put(lambda link: bytes(4) + fpdu(link.write()))], CRC_BAD)

# A FIN within an FPDU.
for cut in (1, 2, 3, 20, 37, 39):
    Case(f"fpdu-fin-{cut}", "MPA-7.2-1 MPA-8-1 DDP-6.2.1-2",
         [put(lambda link, it=cut: fpdu(link.send(b"E1234567890123"))[:it]), fin],
         Terminate(2, 0, 1, None, reason=0x12001))
Case("fpdu-fin-in-message", "MPA-7.2-1 DDP-5.4-1",
     [lambda link: link.post(link.send(b"E1", last=0)), fin], Terminate(2, 0, 1, None, reason=0x22001),
     receives=["CANCELLED"])
Case("fpdu-fin-in-write", "MPA-7.2-1 DDP-5.4-1",
     [lambda link: link.post(link.write(data=b"\0\0\0\0", last=0)), fin],
     Terminate(2, 0, 1, None, reason=0x22001), changes=[(0, 1, 3)])

# Input after an error is ignored: valid FPDUs as well as other errors.
Case("fpdu-good-behind-bad-crc", "MPA-8-5 DDP-7.1-4",
     [put(lambda link: unsealed(link.write()) + bytes(4) + fpdu(link.write(data=b"\0" * 64)))], CRC_BAD)


def two_errors(link):
    first = link.write(stag=0xDEADBEEF)
    link.put(fpdu(first) + fpdu(link.send(b"", qn=9)) + fpdu(link.write(data=b"\0" * 64)))
    link.offender = first


Case("fpdu-first-of-two-errors", "RDM-7.1-5 DDP-7.1-4 DDP-7.1-3", [two_errors], Terminate(1, 1, 0))


# FPDUs of the server: the segments of a large Send.
def large(link):
    link.ask(b"B" + struct.pack(">I", 16384))
    from link import Wrong, pattern
    octets, sizes = b"", []
    while len(octets) < 16384:
        segment = link.segment()
        if (segment.op, segment.qn, segment.msn, segment.mo) != (SEND, 0, 2, len(octets)):
            raise Wrong(f"not the next segment of Send 2: {segment}")
        octets += segment.data
        sizes.append(len(segment.ulpdu))
        if segment.last != (len(octets) == 16384):
            raise Wrong("the L bit is not in the last segment only")
    if octets != pattern(0) * 4:
        raise Wrong("the data differs from the memory")
    if max(sizes) > 64768:
        raise Wrong(f"ULPDUs of {max(sizes)} octets")


Case("fpdu-large-send-of-ours", "DDP-4.1-2 DDP-4.3-1 DDP-4.3-3 DDP-5.2-1 DDP-5.2-4 DDP-5.3-2 MPA-3-5", [large], Alive())
