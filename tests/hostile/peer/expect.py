"""Expected responses of the server, and the form of a case."""

import struct
import time

from link import Wrong, Ended, LIMIT
import wire

CASES = []


class Terminate:
    """A Terminate with these numbers and these header copies, then FIN.

    headers: "ddp" (length and DDP header), "read" (the Read Request header too), None.
    """

    def __init__(self, layer, etype, code, headers="ddp", reason=None, before=None):
        self.numbers, self.headers, self.before = (layer, etype, code), headers, before
        self.reason = layer << 12 | etype << 8 | code if reason is None else reason

    def control(self):
        layer, etype, code = self.numbers
        flags = {"ddp": 0xC0, "read": 0xE0, None: 0}[self.headers]
        return bytes([layer << 4 | etype, code, flags, 0])

    def copies(self, offender):
        if self.headers is None:
            return b""
        header = 14 if offender[0] & 0x80 else 18
        copied = header + (28 if self.headers == "read" else 0)
        return struct.pack(">H", len(offender)) + offender[:copied]

    def check(self, link):
        segment = link.segment()
        while self.before and segment.op == self.before:
            segment = link.segment()
        if segment.op != wire.TERMINATE:
            raise Wrong(f"not a Terminate: {segment}")
        if (segment.qn, segment.msn, segment.mo, segment.last, segment.word) != (2, 1, 0, 1, 0):
            raise Wrong(f"Terminate with a wrong queue or message number: {segment}")
        right = self.control() + self.copies(link.offender)
        if segment.data != right:
            raise Wrong(f"Terminate {segment.data.hex()}, expected {right.hex()}")
        Fin().check(link)


class Fin:
    """FIN, without octets before it."""

    reason = None

    def __init__(self, reason=None):
        self.reason = reason

    def check(self, link):
        how, octets = link.end()
        if (how, octets) != ("FIN", b"") or not link.stream.is_between():
            raise Wrong(f"{how} after {octets[:32].hex() or 'no octets'}, expected FIN after no octets")


class Reset:
    """RST, without octets before it. The server sends FIN instead of RST if it has read all received octets."""

    reason = None

    def __init__(self, reason=None):
        self.reason = reason

    def check(self, link):
        how, octets = link.end()
        if (how, octets) != ("RST", b""):
            raise Wrong(f"{how} after {octets[:32].hex() or 'no octets'}, expected RST after no octets")


class Closed:
    """FIN or RST, without octets before it: both are valid if the FIN may arrive before the server's accept."""

    reason = None

    def check(self, link):
        how, octets = link.end()
        if octets:
            raise Wrong(f"{how} after {octets[:32].hex()}")


class Alive:
    """The connection works, and ends in order."""

    reason = 0

    def check(self, link):
        link.ping()
        link.fin()
        Fin().check(link)


class Gone:
    """The case has ended the connection itself, and the server has detected that."""

    def __init__(self, reason=None):
        self.reason = reason

    def check(self, link):
        pass


class Case:
    """One case.

    id, rules: name of the case, and the rules that it tests.
    steps: functions of the link, called in order; start-up is complete before them, with the private data `private`,
        unless `start` is "tcp" (connected) or "reply" (the Reply has arrived).
    expect: expected response of the server.
    changes: pages of the server that may have changed: (page, first byte, bytes).
    receives: statuses of the first receives, as reported by the server's consumer.
    opened: status of the server's Accept.
    slow: the case waits for a time limit of the server; such cases run concurrently, before the others.
    """

    def __init__(self, id, rules, steps, expect, start="full", private=b"", changes=(), receives=(), opened=None,
                 receive_buffer=None, slow=False):
        self.id, self.rules, self.steps, self.expect = id, rules.split(), steps, expect
        self.start, self.private, self.opened = start, private, opened
        self.changes, self.receives, self.receive_buffer = list(changes), list(receives), receive_buffer
        self.slow = slow
        CASES.append(self)

    def report(self, witness, link):
        """Compares the report of the server's consumer with the expected values."""
        if link.number is None:
            return
        deadline = time.monotonic() + LIMIT
        while True:
            report = witness.report(link.number)
            is_over = report["ended"] is not None or report["opened"] not in (None, "SUCCESS")
            if self.expect.reason is None or is_over:
                break
            if time.monotonic() > deadline:
                raise Wrong(f"end of the connection not detected by the server: {report}")
        found = [(it["page"], it["first"], it["count"]) for it in report["changes"]]
        if found != self.changes:
            raise Wrong(f"changed pages {found}, expected {self.changes}")
        if self.expect.reason is not None and report["opened"] == "SUCCESS":
            if report["ended"] != self.expect.reason:
                raise Wrong(f"reason {report['ended']:#x}, expected {self.expect.reason:#x}")
        if self.opened and report["opened"] != self.opened:
            raise Wrong(f"status of Accept {report['opened']}, expected {self.opened}")
        seen = [tuple(it) if isinstance(want, tuple) else it[0]
                for want, it in zip(self.receives, report["receives"])]
        if seen != self.receives:
            raise Wrong(f"receives {report['receives']}, expected {self.receives}")
