"""Frames that kernel TCP would not send: SYNs and ARP requests of stations that do not exist."""

import contextlib
import socket
import struct
import threading
import time

ETHERNET = struct.Struct("!6s6sH")
# Frames that are sent without a pause.
BURST = 20


def checksum(octets):
    octets += b"\0" * (len(octets) % 2)
    total = sum(struct.unpack(f"!{len(octets) // 2}H", octets))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


class Raw:
    """A packet socket on the interface that leads to the server, whose Ethernet address the kernel has resolved."""

    def __init__(self, address):
        self.host, self.port = address
        with open("/proc/net/arp") as table:
            rows = [line.split() for line in table]
        row = next(row for row in rows if row[0] == self.host)
        self.mac = bytes.fromhex(row[3].replace(":", ""))
        self.socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
        self.socket.bind((row[5], 0))

    @staticmethod
    def stranger(number):
        """Ethernet address, IP address and port of a station on the server's link."""
        mac = b"\x02\x01" + struct.pack("!I", number)
        return mac, socket.inet_aton(f"10.0.0.{20 + number % 200}"), 1024 + number // 200 % 60000

    def syn(self, number):
        mac, source, port = self.stranger(number)
        destination = socket.inet_aton(self.host)
        options = struct.pack("!BBHBBIIBBB", 2, 4, 1460, 8, 10, number, 0, 3, 3, 7) + b"\1" * 3
        tcp = struct.pack("!HHIIBBHHH", port, self.port, number, 0, 10 << 4, 2, 64240, 0, 0) + options
        pseudo = source + destination + struct.pack("!HH", 6, len(tcp))
        tcp = tcp[:16] + struct.pack("!H", checksum(pseudo + tcp)) + tcp[18:]
        ip = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 20 + len(tcp), 0, 0x4000, 64, 6, 0, source, destination)
        ip = ip[:10] + struct.pack("!H", checksum(ip)) + ip[12:]
        return ETHERNET.pack(self.mac, mac, 0x0800) + ip + tcp

    def arp(self, number):
        mac, source, _ = self.stranger(number)
        packet = struct.pack("!HHBBH", 1, 0x0800, 6, 4, 1) + mac + source + bytes(6) + socket.inet_aton(self.host)
        return ETHERNET.pack(b"\xff" * 6, mac, 0x0806) + packet

    def send(self, frame):
        with contextlib.suppress(OSError):  # the queue of the interface is full: one frame fewer
            self.socket.send(frame)

    @contextlib.contextmanager
    def flood(self, make, per_second):
        """Sends frames in the background."""
        over = threading.Event()

        def run():
            number, began = 0, time.monotonic()
            while not over.is_set():
                for _ in range(BURST):
                    self.send(make(number))
                    number += 1
                over.wait(max(began + number / per_second - time.monotonic(), 0))

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
            self.socket.close()
