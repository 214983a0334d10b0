"""What must come back, and how a case is written down."""

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
            raise Wrong(f"a Terminate of another queue or number: {segment}")
        right = self.control() + self.copies(link.offender)
        if segment.data != right:
            raise Wrong(f"the Terminate is {segment.data.hex()}, {right.hex()} is right")
        Fin().check(link)


class Fin:
    """FIN, and nothing more before it."""

    reason = None

    def __init__(self, reason=None):
        self.reason = reason

    def check(self, link):
        how, octets = link.end()
        if (how, octets) != ("FIN", b"") or not link.stream.is_between():
            raise Wrong(f"{how} behind {octets[:32].hex() or 'nothing'}, not FIN behind nothing")


class Reset:
    """RST, and nothing before it. Where the server has read all that was sent, a FIN is no RST."""

    reason = None

    def __init__(self, reason=None):
        self.reason = reason

    def check(self, link):
        how, octets = link.end()
        if (how, octets) != ("RST", b""):
            raise Wrong(f"{how} behind {octets[:32].hex() or 'nothing'}, not RST behind nothing")


class Closed:
    """FIN or RST, and nothing before it: where our FIN may overtake the server's accept, both are right."""

    reason = None

    def check(self, link):
        how, octets = link.end()
        if octets:
            raise Wrong(f"{how} behind {octets[:32].hex()}")


class Alive:
    """The connection works, and ends in order."""

    reason = 0

    def check(self, link):
        link.ping()
        link.fin()
        Fin().check(link)


class Gone:
    """The case has ended the connection itself; the server has noticed."""

    def __init__(self, reason=None):
        self.reason = reason

    def check(self, link):
        pass


class Case:
    """One case.

    id, rules: its name, and the rules that it is about.
    steps: functions of the link, one after the other; before them start-up is done, with the private data `private`,
        unless `start` says "tcp" (connected) or "reply" (the Reply has come).
    expect: what comes back.
    changes: pages of the server that may have changed: (page, first byte, bytes).
    receives: the statuses of receives, the first of them, as the server's consumer has seen them.
    opened: the status of the server's Accept.
    slow: it waits for a time limit of the server's; such cases run at once, before the others.
    """

    def __init__(self, id, rules, steps, expect, start="full", private=b"", changes=(), receives=(), opened=None,
                 receive_buffer=None, slow=False):
        self.id, self.rules, self.steps, self.expect = id, rules.split(), steps, expect
        self.start, self.private, self.opened = start, private, opened
        self.changes, self.receives, self.receive_buffer = list(changes), list(receives), receive_buffer
        self.slow = slow
        CASES.append(self)

    def report(self, witness, link):
        """Compares what the server's consumer has seen."""
        if link.number is None:
            return
        deadline = time.monotonic() + LIMIT
        while True:
            report = witness.report(link.number)
            is_over = report["ended"] is not None or report["opened"] not in (None, "SUCCESS")
            if self.expect.reason is None or is_over:
                break
            if time.monotonic() > deadline:
                raise Wrong(f"the server does not notice the end: {report}")
        found = [(it["page"], it["first"], it["count"]) for it in report["changes"]]
        if found != self.changes:
            raise Wrong(f"pages changed: {found}, {self.changes} are right")
        if self.expect.reason is not None and report["opened"] == "SUCCESS":
            if report["ended"] != self.expect.reason:
                raise Wrong(f"reason {report['ended']:#x}, {self.expect.reason:#x} is right")
        if self.opened and report["opened"] != self.opened:
            raise Wrong(f"the Accept is {report['opened']}, {self.opened} is right")
        seen = [tuple(it) if isinstance(want, tuple) else it[0]
                for want, it in zip(self.receives, report["receives"])]
        if seen != self.receives:
            raise Wrong(f"receives {report['receives']}, not {self.receives}")
