"""Floods: other clients are not affected, and the flood is processed in the end."""

import contextlib
import glob
import time

from expect import Alive, Case
from link import Link, Wrong
from raw import Raw, ipv6_of
from wire import READ_RESPONSE, WRITE, enhanced, fpdu, frame, tagged

# Time limit to serve a client during a flood, seconds. Time in which the server or the client waits for a CPU does not
# count: a connection needs some ten wake-ups of the server's threads, and on a busy machine each waits for 100 ms or
# more.
SERVED = 3.0


class Waits:
    """Time for which threads of the server, and the calling thread, were runnable without a CPU, since the creation."""

    def __init__(self, server):
        self.server = server
        self.before = self.waits()

    def waits(self):
        """Returns the nanoseconds by thread: second number of schedstat (kernel, scheduler/sched-stats.rst)."""
        waits = {}
        for path in ["/proc/thread-self", *glob.glob(f"/proc/{self.server}/task/*")]:
            with contextlib.suppress(OSError), open(f"{path}/schedstat") as stat:
                waits[path] = int(stat.read().split()[1])
        return waits

    def seconds(self):
        return sum(time - self.before.get(path, 0) for path, time in self.waits().items()) / 1e9


def second_client(link, address=None):
    """Connects a well-behaved client and checks that it is served in time."""
    waits, began = Waits(link.server), time.monotonic()
    other = Link(address or link.address).establish()
    other.ping()
    other.close()
    took, waited = time.monotonic() - began, waits.seconds()
    if took - waited > SERVED:
        raise Wrong(f"second client served after {took:.1f} s, of which {waited:.1f} s without a CPU")


def strangers(make):
    """Frames of more stations than backlogs can hold, and then continuously."""
    def step(link):
        raw = Raw(link.address)
        host, port = link.address
        addresses = [link.address, (ipv6_of(host), port)]
        for number in range(2000):
            raw.send(make(raw, number))
        for address in addresses:
            second_client(link, address)
        with raw.flood(lambda number: make(raw, number), per_second=10_000):
            for _ in range(5):
                for address in addresses:
                    second_client(link, address)
                link.ping()
        for address in addresses:
            second_client(link, address)
    return step


for id, make in [
    ("flood-syns", Raw.syn),
    ("flood-syns-ipv6", Raw.syn_ipv6),
    ("flood-fins", Raw.fin),
    ("flood-fins-ipv6", Raw.fin_ipv6),
    ("flood-arp-requests", Raw.arp),
    ("flood-neighbor-solicitations", Raw.neighbor_solicitation),
    ("flood-neighbor-advertisements", Raw.neighbor_advertisement),
]:
    Case(id, "MPA-7.1.2-15", [strangers(make)], Alive())


def cut_requests(link):
    """Requests truncated after each of their octets, several times."""
    request = frame(private=enhanced())
    cut = [Link(link.address) for _ in range(4 * len(request))]
    for number, other in enumerate(cut):
        other.put(request[:number % len(request)])
    second_client(link)
    for other in cut:
        other.close()
    second_client(link)


Case("flood-cut-requests", "MPA-7.1.2-15", [cut_requests], Alive())


def opened_and_closed(link):
    for _ in range(300):
        other = Link(link.address)
        other.fin()
        other.close()
    second_client(link)


Case("flood-connect-and-close", "MPA-8-1", [opened_and_closed], Alive())


def half_open(link):
    """Connections without a Request: they are reset, the oldest first or by the time limit."""
    silent = [Link(link.address) for _ in range(200)]
    link.ping()
    for other in silent:
        how, octets = other.end()
        if (how, octets) != ("RST", b""):
            raise Wrong(f"{how} after {octets.hex()}")
        other.close()


Case("flood-half-open", "MPA-7.1.2-15", [half_open], Alive())


def opened_and_reset(link):
    for _ in range(300):
        Link(link.address).reset()


Case("flood-connect-and-reset", "MPA-8-1", [opened_and_reset], Alive())


def started_and_reset(link):
    for _ in range(100):
        other = Link(link.address)
        other.request()
        other.reset()


Case("flood-request-and-reset", "MPA-8-1 RDM-7.1-1", [started_and_reset], Alive())


def connections(link):
    many = [Link(link.address).establish() for _ in range(50)]
    for other in many:
        other.ping()
    for other in many:
        other.close()


Case("flood-connections", "MPA-7.1.2-5", [connections], Alive())


def many(make, count, rest=b""):
    def step(link):
        one = fpdu(make(link))
        for _ in range(count // 1000):
            link.put(one * 1000)
        link.ping()
    return step


Case("flood-empty-writes", "RDM-5.1-3 DDP-5.2-7", [many(lambda link: tagged(WRITE, 0, 0), 50_000)], Alive())
Case("flood-octet-writes", "DDP-5.2-3", [many(lambda link: link.write(data=b"\xff"), 50_000)], Alive(),
     changes=[(0, 0, 1)])


def empty_response(link, stag, to):
    segment = link.segment()
    if segment.ulpdu != tagged(READ_RESPONSE, stag, to):
        raise Wrong(f"not an empty Read Response: {segment}")


def reads(link):
    for _ in range(500):
        link.put(b"".join(fpdu(link.read(1, size=0, sink=(5, 6))) for _ in range(4)))
        for _ in range(4):
            empty_response(link, 5, 6)


Case("flood-empty-reads", "RDM-5.2.1-7 RDM-6.1-3", [reads], Alive())


def reads_unread(link):
    """Reads whose responses are not received: the fifth outstanding Read ends the connection, and no memory is held."""
    requests = [link.read(1, size=4096) for _ in range(64)]
    link.put(b"".join(fpdu(it) for it in requests))
    responses = 0
    while (segment := link.segment()).op == READ_RESPONSE:
        responses += segment.last
    if segment.data[:4] != bytes([0x02, 0x07, 0xC0, 0]):
        raise Wrong(f"not Terminate 0/2/07: {segment}")
    # Only few Reads can have been answered: all requests are in few segments.
    msn = int.from_bytes(segment.data[6 + 10:6 + 14], "big")
    if not responses < msn <= responses + 5 + 4:
        raise Wrong(f"Terminate for request {msn} after {responses} responses")


class Over(Alive):
    reason = 0x0207

    def check(self, link):
        pass


Case("flood-reads-unread", "RDM-6.1-3 SEC-6.4.3.3-1", [reads_unread], Over(), receive_buffer=4096)


def echoes(link):
    """Two hundred echoes in sequence."""
    text = b"E" + bytes(1000)
    for _ in range(200):
        link.put(fpdu(link.send(text)))
        if link.message() != text:
            raise Wrong("echo differs from the sent data")


Case("flood-echoes", "RDM-5.5-1", [echoes], Alive())
