"""Connection of the peer: kernel TCP, and the state of a case."""

import errno
import socket
import struct
import time

import wire

# Time limit for an immediate response, seconds.
LIMIT = 15.0


class Wrong(Exception):
    """The server did not behave as the case expects."""


class Ended(Exception):
    """The connection has ended: "FIN" or "RST"."""


class Link:
    was_reset = False

    def __init__(self, address, receive_buffer=None):
        family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self.socket = socket.socket(family)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if receive_buffer:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.settimeout(LIMIT)
        self.socket.connect(address)
        self.stream = wire.Stream()
        self.msn, self.read_msn = 1, 1
        self.number, self.pages = None, []
        self.reply = None
        self.answer = b""

    # Octets.

    def put(self, octets):
        try:
            self.socket.sendall(octets)
        except (ConnectionResetError, BrokenPipeError):
            # Record the reset for the case: the kernel reports it only once.
            self.was_reset = True

    def get(self, deadline):
        """Receives octets. Raises Ended at the end of the connection, Wrong after the time limit."""
        self.socket.settimeout(max(deadline - time.monotonic(), 0.001))
        try:
            octets = self.socket.recv(1 << 16)
        except socket.timeout:
            raise Wrong("no octets from the server") from None
        except ConnectionResetError:
            raise Ended("RST") from None
        except BrokenPipeError:
            raise Ended("RST") from None
        if not octets:
            raise Ended("RST" if self.was_reset else "FIN")
        return octets

    def end(self):
        """Waits for the end of the connection. Returns "FIN" or "RST", and the octets before it."""
        octets, deadline = b"", time.monotonic() + LIMIT
        try:
            while True:
                octets += self.get(deadline)
        except Ended as ended:
            return str(ended), octets

    def fin(self):
        try:
            self.socket.shutdown(socket.SHUT_WR)
        except OSError as error:
            if error.errno != errno.ENOTCONN:
                raise

    def reset(self):
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()

    def close(self):
        self.socket.close()

    # Start-up.

    def request(self, private=b"", word=None, **fields):
        word = wire.enhanced() if word is None else word
        self.put(wire.frame(private=word + private, **fields))

    def await_reply(self):
        """Receives the Reply: flags, revision, enhanced word, private data."""
        octets, deadline = b"", time.monotonic() + LIMIT
        while len(octets) < 20 or len(octets) < 20 + struct.unpack(">H", octets[18:20])[0]:
            octets += self.get(deadline)
        if octets[:16] != wire.REPLY:
            raise Wrong(f"not a Reply: {octets[:32].hex()}")
        flags, revision, length = struct.unpack(">BBH", octets[16:20])
        private, rest = octets[20:20 + length], octets[20 + length:]
        word = None
        if flags & wire.S:
            word, private = struct.unpack(">HH", private[:4]), private[4:]
        self.reply = {"flags": flags, "revision": revision, "word": word, "private": private}
        if rest:
            raise Wrong("octets after the Reply, before the first FPDU of the initiator")
        if not flags & wire.R and len(private) >= 4:
            self.number = struct.unpack(">I", private[:4])[0]
            step = range(4, len(private), 12)
            self.pages = [struct.unpack(">IQ", private[at:at + 12]) for at in step]
        return self.reply

    def establish(self, private=b""):
        self.request(private)
        self.await_reply()
        self.put(wire.fpdu(wire.RTR))
        return self

    # Full Operation.

    def send(self, data, **fields):
        """Returns the next Send."""
        fields = {"op": wire.SEND, "qn": 0, "msn": self.msn, **fields}
        if fields.get("last", 1):
            self.msn += 1
        return wire.untagged(data=data, **fields)

    def write(self, page=0, offset=0, data=b"data", stag=None, to=None, **fields):
        own, base = self.pages[page]
        stag = own if stag is None else stag
        to = base + offset if to is None else to
        return wire.tagged(wire.WRITE, stag & 0xFFFFFFFF, to & (1 << 64) - 1, data, **fields)

    def read(self, page=0, offset=0, size=64, stag=None, to=None, msn=None, **fields):
        own, base = self.pages[page]
        stag = own if stag is None else stag
        to = base + offset if to is None else to
        msn = self.read_msn if msn is None else msn
        self.read_msn += 1
        return wire.read_request(msn, size, stag & 0xFFFFFFFF, to & (1 << 64) - 1, **fields)

    def segment(self, deadline=None):
        """Receives the server's next segment."""
        deadline = deadline or time.monotonic() + LIMIT
        while (ulpdu := self.stream.next()) is None:
            self.stream.feed(self.get(deadline))
        segment = wire.Segment(ulpdu)
        if not segment.is_clean:
            raise Wrong(f"reserved bits or versions: {segment}")
        return segment

    def message(self):
        """Receives the octets of the server's next Send."""
        octets = b""
        while True:
            segment = self.segment()
            if segment.is_tagged or segment.op not in (3, 4, 5, 6) or segment.mo != len(octets):
                raise Wrong(f"not a Send, or not its next segment: {segment}")
            octets += segment.data
            if segment.last:
                return octets

    def ask(self, command):
        """Sends a command and receives its reply."""
        self.put(wire.fpdu(self.send(command)))
        self.answer = self.message()
        if self.answer[:1] != command[:1]:
            raise Wrong(f"reply to {command[:1]}: {self.answer[:32]}")
        return self.answer

    def ping(self):
        text = b"E" + struct.pack(">d", time.monotonic()) + bytes(range(64))
        if self.ask(text) != text:
            raise Wrong("echo differs from the sent data")
