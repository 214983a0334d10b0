"""Floods: runs its cases against a server of queue pairs, each followed by a ping of a well-behaved peer.

    python3 main.py --list
    python3 main.py HOST:PORT [--only PATTERN] [--all] [--rounds N] [--pid PID]

Exits with status 1 at the first failed case, with --all after all cases. With --pid, time in which threads of the
server wait for a CPU does not count.
"""

import argparse
import fnmatch
import json
import os
import struct
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from link import LIMIT, Ended, Link, Wrong
from wire import Malformed
import expect
import floods  # noqa: F401 adds its cases


class Witness:
    """Well-behaved client that stays connected. `server`: process id, if known."""

    def __init__(self, address, server):
        self.link = Link(address).establish()
        self.server = server

    def ping(self):
        self.link.ping()

    def report(self, number):
        answer = self.link.ask(b"Q" + struct.pack(">I", number))
        return json.loads(answer[1:])


def run(case, address, witness):
    link = Link(address, case.receive_buffer)
    link.address, link.server = address, witness.server
    try:
        link.establish()
        for step in case.steps:
            step(link)
        case.expect.check(link)
    except Ended as ended:
        raise Wrong(f"unexpected {ended}") from None
    except Malformed as malformed:
        raise Wrong(str(malformed)) from None
    finally:
        link.close()
    witness.ping()
    case.report(witness, link)


def outcome(case, address, witness):
    """Runs a case and returns its line of the report."""
    began = time.monotonic()
    name = f"{case.id} [{' '.join(case.rules)}]"
    try:
        run(case, address, witness)
    except Exception as error:  # any error is reported with the name of the case
        return f"FAILED {name}: {type(error).__name__}: {error}"
    return f"ok {name} {(time.monotonic() - began) * 1000:.0f} ms"


def connections_left(witness):
    """Returns the connections of the server's adapter, once those that have ended are removed."""
    deadline = time.monotonic() + LIMIT
    while (left := witness.report(0)["connections"]) > 1 and time.monotonic() < deadline:
        pass
    return left


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("server", nargs="?")
    parser.add_argument("--only")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--pid", type=int)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--all", action="store_true", help="continue after a failure")
    options = parser.parse_args()
    cases = [case for case in expect.CASES if fnmatch.fnmatchcase(case.id, options.only or "*")]
    if options.list:
        for case in cases:
            print(case.id, *case.rules)
        return 0
    if not cases:
        print(f"no case matches {options.only}")
        return 2
    if options.server is None:
        parser.error("HOST:PORT of the server is missing")
    host, port = options.server.rsplit(":", 1)
    address = (host, int(port))
    witness = Witness(address, options.pid)
    witness.ping()
    failed = 0
    for case in cases * options.rounds:
        line = outcome(case, address, witness)
        print(line, flush=True)
        if line.startswith("FAILED"):
            failed += 1
            if not options.all:
                return 1
    left = connections_left(witness)
    if left != 1:
        print(f"FAILED connections: {left} remain, expected 1")
        failed += 1
    print(f"done: {len(cases)} cases", flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
