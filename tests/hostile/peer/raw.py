"""Frames that kernel TCP would not send: from stations that do not exist, over IPv4 and IPv6."""

import contextlib
import os
import signal
import socket
import struct
import time

ETHERNET = struct.Struct("!6s6sH")
TCP, ICMPV6 = 6, 58
FIN, SYN, ACK = 1, 2, 16
# Frames that are sent without a pause in between.
BURST = 20


def checksum(octets):
    octets += b"\0" * (len(octets) % 2)
    total = sum(struct.unpack(f"!{len(octets) // 2}H", octets))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def checked(protocol, addresses, payload):
    """Returns the payload with its checksum filled in."""
    at = 16 if protocol == TCP else 2
    pseudo = addresses + struct.pack("!II", len(payload), protocol)
    return payload[:at] + struct.pack("!H", checksum(pseudo + payload)) + payload[at + 2:]


def ipv6_of(host):
    """Returns the address of the same host in fd00::/64."""
    return socket.inet_ntop(socket.AF_INET6, socket.inet_pton(socket.AF_INET6, "fd00::")[:12] + socket.inet_aton(host))


class Raw:
    """Packet socket on the interface to the server, whose Ethernet address the kernel has resolved."""

    def __init__(self, address):
        self.host, self.port = address
        self.host_ipv6 = ipv6_of(self.host)
        with open("/proc/net/arp") as table:
            rows = [line.split() for line in table]
        row = next(row for row in rows if row[0] == self.host)
        self.mac = bytes.fromhex(row[3].replace(":", ""))
        self.socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
        self.socket.bind((row[5], 0))

    @staticmethod
    def stranger(number):
        """Returns Ethernet address, IP address and port of a station on the server's link."""
        mac = b"\x02\x01" + struct.pack("!I", number)
        return mac, socket.inet_aton(f"10.0.0.{20 + number % 200}"), 1024 + number // 200 % 60000

    @staticmethod
    def stranger_ipv6(number):
        mac, _, port = Raw.stranger(number)
        network = socket.inet_pton(socket.AF_INET6, "fd00::")[:8]
        return mac, network + struct.pack("!II", 1, number), port

    def ipv4(self, mac, source, protocol, payload):
        destination = socket.inet_aton(self.host)
        payload = checked(protocol, source + destination, payload)
        ip = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 20 + len(payload), 0, 0x4000, 64, protocol, 0, source, destination)
        ip = ip[:10] + struct.pack("!H", checksum(ip)) + ip[12:]
        return ETHERNET.pack(self.mac, mac, 0x0800) + ip + payload

    def ipv6(self, mac, source, protocol, payload):
        destination = socket.inet_pton(socket.AF_INET6, self.host_ipv6)
        payload = checked(protocol, source + destination, payload)
        ip = struct.pack("!IHBB16s16s", 6 << 28, len(payload), protocol, 255, source, destination)
        return ETHERNET.pack(self.mac, mac, 0x86DD) + ip + payload

    def tcp(self, port, number, flags, options=b""):
        """Returns a segment without data; its checksum is zero."""
        words = (20 + len(options)) // 4
        header = (port, self.port, number, number, words << 4, flags, 64240, 0, 0)
        return struct.pack("!HHIIBBHHH", *header) + options

    def syn_options(self, number, mss):
        return struct.pack("!BBHBBIIBBB", 2, 4, mss, 8, 10, number, 0, 3, 3, 7) + b"\1" * 3

    def syn(self, number):
        mac, source, port = self.stranger(number)
        return self.ipv4(mac, source, TCP, self.tcp(port, number, SYN, self.syn_options(number, 1460)))

    def syn_ipv6(self, number):
        mac, source, port = self.stranger_ipv6(number)
        return self.ipv6(mac, source, TCP, self.tcp(port, number, SYN, self.syn_options(number, 1440)))

    def fin(self, number):
        """Returns a FIN and ACK that belong to no connection."""
        mac, source, port = self.stranger(number)
        return self.ipv4(mac, source, TCP, self.tcp(port, number, FIN | ACK))

    def fin_ipv6(self, number):
        mac, source, port = self.stranger_ipv6(number)
        return self.ipv6(mac, source, TCP, self.tcp(port, number, FIN | ACK))

    def arp(self, number):
        mac, source, _ = self.stranger(number)
        packet = struct.pack("!HHBBH", 1, 0x0800, 6, 4, 1) + mac + source + bytes(6) + socket.inet_aton(self.host)
        return ETHERNET.pack(b"\xff" * 6, mac, 0x0806) + packet

    def neighbor_solicitation(self, number):
        mac, source, _ = self.stranger_ipv6(number)
        target = socket.inet_pton(socket.AF_INET6, self.host_ipv6)
        return self.ipv6(mac, source, ICMPV6, struct.pack("!BBHI", 135, 0, 0, 0) + target + b"\1\1" + mac)

    def neighbor_advertisement(self, number):
        """Returns an unsolicited advertisement with the override flag."""
        mac, source, _ = self.stranger_ipv6(number)
        return self.ipv6(mac, source, ICMPV6, struct.pack("!BBHI", 136, 0, 0, 1 << 29) + source + b"\2\1" + mac)

    def send(self, frame):
        with contextlib.suppress(OSError):  # if the queue of the interface is full, the frame is dropped
            self.socket.send(frame)

    @contextlib.contextmanager
    def flood(self, make, per_second):
        """Sends frames in the background: in a process, so that it does not hold the interpreter's lock of this one."""
        process = os.fork()
        if process == 0:
            # It also ends with its parent.
            parent = os.getppid()
            try:
                number, began = 0, time.monotonic()
                while os.getppid() == parent:
                    for _ in range(BURST):
                        self.send(make(number))
                        number += 1
                    time.sleep(max(began + number / per_second - time.monotonic(), 0))
            finally:
                os._exit(1)
        try:
            yield
        finally:
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)
            self.socket.close()
