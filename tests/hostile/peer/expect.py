"""Expected responses of the server, and the form of a case."""

import time

from link import Wrong, LIMIT

CASES = []


class Fin:
    """FIN, without octets before it."""

    reason = None

    def __init__(self, reason=None):
        self.reason = reason

    def check(self, link):
        how, octets = link.end()
        if (how, octets) != ("FIN", b"") or not link.stream.is_between():
            raise Wrong(f"{how} after {octets[:32].hex() or 'no octets'}, expected FIN after no octets")


class Alive:
    """The connection works, and ends in order."""

    reason = 0

    def check(self, link):
        link.ping()
        link.fin()
        Fin().check(link)


class Case:
    """One case.

    id, rules: name of the case, and the rules that it tests.
    steps: functions of the link, called in order; start-up is complete before them.
    expect: expected response of the server.
    changes: pages of the server that may have changed: (page, first byte, bytes).
    """

    def __init__(self, id, rules, steps, expect, changes=(), receive_buffer=None):
        self.id, self.rules, self.steps, self.expect = id, rules.split(), steps, expect
        self.changes, self.receive_buffer = list(changes), receive_buffer
        CASES.append(self)

    def report(self, witness, link):
        """Compares the report of the server's consumer with the expected values."""
        deadline = time.monotonic() + LIMIT
        while True:
            report = witness.report(link.number)
            if report["ended"] is not None or report["opened"] not in (None, "SUCCESS"):
                break
            if time.monotonic() > deadline:
                raise Wrong(f"end of the connection not detected by the server: {report}")
        found = [(it["page"], it["first"], it["count"]) for it in report["changes"]]
        if found != self.changes:
            raise Wrong(f"changed pages {found}, expected {self.changes}")
        if report["ended"] != self.expect.reason:
            raise Wrong(f"reason {report['ended']:#x}, expected {self.expect.reason:#x}")
