"""MPA, DDP and RDMAP encoding and decoding for this suite, independent of the code under test."""

import struct

TABLE = []
for _number in range(256):
    _crc = _number
    for _ in range(8):
        _crc = (_crc >> 1) ^ (0x82F63B78 if _crc & 1 else 0)
    TABLE.append(_crc)


def crc32c(octets):
    crc = 0xFFFFFFFF
    for octet in octets:
        crc = (crc >> 8) ^ TABLE[(crc ^ octet) & 0xFF]
    return crc ^ 0xFFFFFFFF


def crc_field(octets):
    return struct.pack("<I", crc32c(octets))


# MPA start-up (RFC 5044 §7.1.1, RFC 6581 §9).
REQUEST = b"MPA ID Req Frame"
REPLY = b"MPA ID Rep Frame"
M, C, R, S = 0x80, 0x40, 0x20, 0x10


def frame(key=REQUEST, flags=C | S, revision=2, private=b"", length=None):
    length = len(private) if length is None else length
    return key + struct.pack(">BBH", flags, revision, length) + private


def enhanced(ird=4, ord_=4, a=1, b=0, c=1, d=0):
    return struct.pack(">HH", a << 15 | b << 14 | ird, c << 15 | d << 14 | ord_)


# FPDUs (RFC 5044 §4).
def unsealed(ulpdu, length=None, pad=None):
    """Returns an FPDU without its CRC."""
    body = struct.pack(">H", len(ulpdu) if length is None else length) + ulpdu
    return body + (bytes(-len(body) % 4) if pad is None else pad)


def fpdu(ulpdu, **fields):
    body = unsealed(ulpdu, **fields)
    return body + crc_field(body)


# DDP segments (RFC 5041 §4) with RDMAP's control octet (RFC 5040 §4.1).
WRITE, READ_REQUEST, READ_RESPONSE, SEND, SEND_INV, SEND_SE, SEND_SE_INV, TERMINATE = range(8)


def untagged(op, qn, msn, mo=0, data=b"", last=1, word=0, dv=1, rv=1, rsvd=0, rsv=0):
    first = last << 6 | rsvd << 2 | dv
    return struct.pack(">BBIIII", first, rv << 6 | rsv << 4 | op, word, qn, msn, mo) + data


def tagged(op, stag, to, data=b"", last=1, dv=1, rv=1, rsvd=0, rsv=0):
    first = 0x80 | last << 6 | rsvd << 2 | dv
    return struct.pack(">BBIQ", first, rv << 6 | rsv << 4 | op, stag, to) + data


def read_request(msn, size, stag, to, sink=(0x01020304, 0x2000), extra=b"", cut=28, **fields):
    header = struct.pack(">IQIIQ", sink[0], sink[1], size, stag, to)
    fields = {"qn": 1, "msn": msn, **fields}
    return untagged(READ_REQUEST, data=header[:cut] + extra, **fields)


RTR = tagged(WRITE, 1, 0)


class Segment:
    """Decoded ULPDU."""

    def __init__(self, ulpdu):
        self.ulpdu = ulpdu
        self.is_tagged = bool(ulpdu[0] & 0x80)
        self.last = ulpdu[0] >> 6 & 1
        self.op = ulpdu[1] & 0x0F
        self.is_clean = ulpdu[0] & 0x3F == 1 and ulpdu[1] & 0xF0 == 0x40
        if self.is_tagged:
            self.stag, self.to = struct.unpack(">IQ", ulpdu[2:14])
            self.data = ulpdu[14:]
        else:
            self.word, self.qn, self.msn, self.mo = struct.unpack(">IIII", ulpdu[2:18])
            self.data = ulpdu[18:]

    def __repr__(self):
        return f"op {self.op:x}, ULPDU {self.ulpdu[:48].hex()} ({len(self.ulpdu)} octets)"


class Malformed(Exception):
    """Octets of the server violate the protocol."""


class Stream:
    """Decoder of the server's direction of Full Operation, from octets to ULPDUs."""

    def __init__(self, markers=False, crc=True):
        self.markers, self.crc = markers, crc
        self.position = 0
        self.raw = b""
        # FPDU in progress: its octets without markers, and the octets that the CRC covers.
        self.clean, self.covered = bytearray(), bytearray()
        self.start = None
        self.found = 0

    def feed(self, octets):
        self.raw += octets

    def take_marker(self):
        marker, self.raw = self.raw[:4], self.raw[4:]
        reserved, pointer = struct.unpack(">HH", marker)
        wanted = 0 if self.start is None else self.position - self.start
        if (reserved, pointer) != (0, wanted):
            raise Malformed(f"marker {marker.hex()} at {self.position}, expected FPDUPTR {wanted}")
        self.covered += marker
        self.position += 4
        self.found += 1

    def wanted(self):
        if len(self.clean) < 2:
            return 2
        ulpdu = self.clean[0] << 8 | self.clean[1]
        return 2 + ulpdu + -(2 + ulpdu) % 4 + 4

    def next(self):
        """Returns the next ULPDU, or None."""
        while self.raw:
            due = self.markers and self.position % 512 == 0
            # A marker between pad and CRC belongs to this FPDU, a marker after the CRC to the next one.
            if due:
                if len(self.raw) < 4:
                    return None
                self.take_marker()
            if self.start is None and self.raw:
                self.start = self.position
            room = 512 - self.position % 512 if self.markers else len(self.raw)
            body = self.wanted() - 4
            part = self.wanted() - len(self.clean)
            if len(self.clean) < body:
                part = body - len(self.clean)
            if len(self.clean) < 2:
                part = 2 - len(self.clean)
            piece = self.raw[: min(part, room, len(self.raw))]
            if not piece:
                continue
            self.raw = self.raw[len(piece):]
            self.position += len(piece)
            is_crc = len(self.clean) >= 2 and len(self.clean) >= body
            self.clean += piece
            if not is_crc:
                self.covered += piece
            if len(self.clean) >= 2 and len(self.clean) == self.wanted():
                return self.finish()
        return None

    def finish(self):
        ulpdu = self.clean[0] << 8 | self.clean[1]
        field = bytes(self.clean[-4:])
        if self.crc and field != crc_field(self.covered):
            raise Malformed(f"wrong CRC {field.hex()}")
        if any(self.clean[2 + ulpdu:-4]):
            raise Malformed("the pad is not zero")
        found = bytes(self.clean[2:2 + ulpdu])
        self.clean, self.covered, self.start = bytearray(), bytearray(), None
        return found

    def is_between(self):
        return not self.raw and not self.clean
